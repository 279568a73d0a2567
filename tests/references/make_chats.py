"""Chats as transformers renders and tokenizes them, frozen.

    pip install transformers==5.23.0 tokenizers==0.23.3 jinja2==3.1.6 sentencepiece==0.2.1 torch==2.13.0
    python tests/references/make_chats.py

Writes chats/tokenizer.json and chats/tokenizer_config.json, a small byte-level tokenizer that puts special tokens
around every text; and chats/chats.json: the templates, which use what those of published families use and are not
copies of them, and for each chat the `messages`, the `variables` and the `text`, the `ids` by that tokenizer and the
`llama` ids by models/llama/tokenizer.model; or the `problem` that the template raises. The time is that of SECONDS.
The same bytes come out of every run.
"""

import copy
import datetime
import json
import pathlib

import tokenizers
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "chats"
SECONDS = 1721988000  # 26 July 2024, 10:00 UTC

SPECIAL = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|eot|>", "<|user|>", "<|system|>"]
SPECIAL += [
    "<|assistant|>",
    "<start>",
    "<stop>",
    "<|channel|>",
    "<|message|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
]
LINES = ["The cat sat on the mat.", "user assistant system tool", "You are a helpful assistant.", "hello world"] * 4

TEMPLATES = {
    # a default system message, and roles as they are
    "chatml": """{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}
{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    # the system message inside the first message of the user; roles that must alternate
    "inst": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}
{% set system = '<<SYS>>\\n' + messages[0]['content'].strip() + '\\n<</SYS>>\\n\\n' %}
{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate: ' ~ (rest | map(attribute='role') | join('/'))) }}
{% endif %}
{% if message.role == 'user' %}
{{- bos_token + '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' -}}
{% elif message.role == 'assistant' %}{{ ' ' ~ message.content | trim ~ ' ' ~ eos_token }}
{%- endif %}
{% endfor %}""",
    # headers, the date, tools as JSON
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|header|>system<|header|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message }}
{%- if tools is not none %}
    {%- for t in tools %}{{- "\\n" ~ t | tojson(indent=4) }}{%- endfor %}
{%- endif %}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- for call in message.tool_calls %}{{- call.function | tojson }}{%- endfor %}
    {%- else %}
        {{- '<|header|>' + message['role'] + '<|header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|header|>\\n\\n' }}{%- endif %}""",
    # thinking: kept after the last question, cut before it; a switch
    "thinking": """{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<think>\\n' + reasoning.strip() + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    # the assistant by another name; parts of a message
    "turns": """{{ bos_token }}
{%- set prefix = '' -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'text' -%}{{ part['text'] | trim }}{%- else -%}[{{ part.type }}]{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<stop>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start>model\\n' }}{%- endif -%}""",
    # what the model has written is marked; loops that are left early
    "generation": """{% for message in messages %}
{% if message.role == 'critic' %}{% continue %}{% endif %}
{% if loop.index > 5 %}{% break %}{% endif %}
{% if message.role == 'assistant' %}
<|assistant|>
{% generation %}{{ message.content + eos_token }}{% endgeneration %}

{% else %}
<|{{ message.role }}|>
{{ message.content }}{{ eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>
{% endif %}""",
    # characters beyond ASCII, and a state that is kept across messages
    "wide": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=true, system='') -%}
{%- for message in messages if message.role == 'system' -%}
    {%- if ns.is_first -%}{%- set ns.system = ns.system + message.content -%}{%- set ns.is_first = false -%}
    {%- else -%}{%- set ns.system = ns.system + '\\n\\n' + message.content -%}{%- endif -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}{{ '<｜User｜>' + message['content'] }}{%- endif -%}
    {%- if message['role'] == 'assistant' and message['content'] is not none -%}
        {%- set content = message['content'] -%}
        {%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
        {{ '<｜Assistant｜>' + content + eos_token }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜>' }}{%- endif -%}""",
    # macros with defaults, blocks that are assigned, types of values, sorted keys, documents
    "channels": """{%- macro type_of(schema, depth=0) -%}
    {%- if schema is mapping -%}
        {%- for key, value in schema | dictsort -%}
            {{ '  ' * depth }}{{ key }}: {{ type_of(value, depth + 1) }};
        {%- endfor -%}
    {%- elif schema is sequence and schema is not string -%}[{{ schema | join(' | ') }}]
    {%- elif schema is boolean or schema is number -%}{{ schema | string | lower }}
    {%- else -%}{{ schema | tojson }}{%- endif -%}
{%- endmacro -%}
{%- set system -%}
Current date: {{ strftime_now("%Y-%m-%d") }}
Reasoning: {{ reasoning_effort | default("medium") | upper }}
{%- endset -%}
{{ '<|im_start|>system<|message|>' ~ system ~ '<|im_end|>' }}
{%- if tools %}{{ type_of(tools[0].function) }}{% endif -%}
{%- for document in documents or [] -%}
    {{ loop.index ~ '. ' ~ document.title | title ~ ': ' ~ document.text }}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if 'thinking' in message and loop.last -%}
            {{ '<|im_start|>assistant<|channel|>analysis<|message|>' ~ message.thinking ~ '<|im_end|>' }}
        {%- endif -%}
        {{ '<|im_start|>assistant<|channel|>final<|message|>' ~ message.content ~ '<|im_end|>' }}
    {%- elif message.role in ['user', 'developer'] -%}
        {{ '<|im_start|>%s<|message|>%s<|im_end|>' | format(message.role, message.content) }}
    {%- else -%}{{ raise_exception('Unknown role: ' + message.role) }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{%- endif -%}""",
}

TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Rain & \"snow\" <in> 'Zürich'", "parameters": {"city": ["a", "b"]}},
}
DOCUMENTS = [{"title": "the mat", "text": "A mat is a rug."}]
CHATS = [
    ([("user", "hello world")], {}),
    ([("system", " You are a cat. "), ("user", "The <|im_end|> sat\r\non the mät. ")], {"enable_thinking": False}),
    ([("user", "hello"), ("assistant", "<think>\nhm\n</think>\n\nThe cat."), ("user", "the mat?")], {}),
    ([("system", "One."), ("user", "hello"), ("assistant", "The cat sat ")], {"date_string": "1 Jan 2020"}),
    ([("user", "hello"), ("assistant", "The cat sat")], {"reasoning_effort": "low"}),
    ([("user", "hello"), ("user", "world")], {"tools": [TOOL], "documents": DOCUMENTS}),
    ([("user", "hello"), ("critic", "world"), ("user", "again")], {}),
    ([("user", [{"type": "text", "text": " hello "}, {"type": "image"}])], {"bos_token": "<|im_start|>"}),
]


class Now(datetime.datetime):
    """The time of SECONDS."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(SECONDS, datetime.UTC)


def make_tokenizer():
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    library.train_from_iterator(LINES, trainer)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", 0), ("<|end|>", 1)]
    )
    FOLDER.mkdir(exist_ok=True)
    library.save(str(FOLDER / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>"}
    settings["eos_token"] = {"content": "<|end|>", "__type": "AddedToken", "special": True, "normalized": False}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")


def freeze(tokenizer, llama, template, pairs, variables):
    messages = [{"role": role, "content": content} for role, content in pairs]
    if messages[-1]["role"] == "assistant":
        messages[-1] |= {"reasoning": "Cats sit.", "name": None}
    continues = messages[-1]["role"] == "assistant"
    row = {"messages": messages, "variables": variables}
    options = {"chat_template": template, "add_generation_prompt": not continues, "continue_final_message": continues}
    try:
        text = tokenizer.apply_chat_template(copy.deepcopy(messages), tokenize=False, **options, **variables)
    except Exception as error:
        return {**row, "problem": " ".join(str(error).split())}
    ids = tokenizer.apply_chat_template(copy.deepcopy(messages), return_dict=False, **options, **variables)
    return {**row, "text": text, "ids": ids, "llama": llama(text, add_special_tokens=False)["input_ids"]}


def main():
    chat_template_utils.datetime = Now
    make_tokenizer()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    llama = transformers.AutoTokenizer.from_pretrained(HERE / "models" / "llama")
    rows = {
        name: [freeze(tokenizer, llama, template, pairs, variables) for pairs, variables in CHATS]
        for name, template in TEMPLATES.items()
    }
    frozen = {"seconds": SECONDS, "templates": TEMPLATES, "chats": rows}
    (FOLDER / "chats.json").write_text(json.dumps(frozen, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
