"""Chat templates: from the messages of a chat to the prompt of a model."""

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.errors import DataError, FileError, UsageError, system_reason
from attnkit.libraries import import_library, install_extra
from attnkit.tokenizers.files import SPECIAL_TOKENS, TokenizerFolder, open_folder, token_content

Message = Mapping[str, Any]  # role, content, and what else a template reads

OLDEST_JINJA = (3, 1, 6)  # the sandbox of older versions has known holes
RENDERER = os.path.join(os.path.dirname(__file__), "chat_renderer.py")
TEMPLATE, LEGACY, MORE = "chat_template.jinja", "chat_template.json", "additional_chat_templates"
DEFAULT, WITH_TOOLS = "default", "tool_use"  # names of templates; the second one is for chats with tools
NO_TEMPLATE = (
    f"no chat template in the folder (looked for {TEMPLATE}, chat_template in tokenizer_config.json, {LEGACY})"
)


class ChatTemplates(NamedTuple):
    """The chat templates of a model.

    texts    name -> template
    special  special tokens, which templates know as bos_token, eos_token, …
    name     the file they are in, for errors
    files    the files they were read from
    """

    texts: Mapping[str, str]
    special: Mapping[str, str]
    name: str
    files: tuple[str, ...] = ()

    def select(self, has_tools: bool) -> str:
        """The template of a chat, with or without tools."""
        if not self.texts:
            raise DataError(f"{NO_TEMPLATE}; --template FILE is one", self.name)
        name = WITH_TOOLS if has_tools and WITH_TOOLS in self.texts else DEFAULT
        if name not in self.texts:
            known = ", ".join(sorted(self.texts))
            raise DataError(f"no chat template is the default ({known}); --template FILE is one", self.name)
        return self.texts[name]


class RenderedChat(NamedTuple):
    """The prompt of a chat, the roles without effect, and whether it has the date."""

    text: str
    ignored: Sequence[str]
    is_dated: bool = False


def load_chat_templates(place: str | TokenizerFolder, part: str) -> ChatTemplates:
    """Read the chat templates of a folder, perhaps none, and its special tokens.

    Files of templates replace those in tokenizer_config.json, as in transformers.
    """
    folder = open_folder(place)
    special = {key: token_content(folder.settings.get(key)) for key in (f"{name}_token" for name in SPECIAL_TOKENS)}
    texts = read_template_files(folder)
    name = TEMPLATE
    if not texts:
        name, stated = "tokenizer_config.json", folder.settings.get("chat_template")
        if stated is None:
            stated = folder.read_json(LEGACY).get("chat_template")
            name = name if stated is None else LEGACY
        texts = {} if stated is None else parse_templates(stated, folder, name)
    place = folder.file_path(name) if texts else folder.path
    return ChatTemplates(texts, {key: token for key, token in special.items() if token}, place, tuple(folder.files))


def read_template_files(folder: TokenizerFolder) -> dict[str, str]:
    """The templates of chat_template.jinja and additional_chat_templates."""
    texts = {DEFAULT: folder.read_text(TEMPLATE)} if TEMPLATE in folder.names else {}
    names = sorted(TokenizerFolder(folder.file_path(MORE)).names) if MORE in folder.names else []
    for name in names:
        if name.endswith(".jinja"):
            texts[name.removesuffix(".jinja")] = folder.read_text(os.path.join(MORE, name))
    return texts


def parse_templates(stated: Any, folder: TokenizerFolder, file: str) -> dict[str, str]:
    """The templates of a value of chat_template: a text, or a list of named ones."""
    named = [{"name": DEFAULT, "template": stated}] if isinstance(stated, str) else stated
    texts = {}
    for one in named if isinstance(named, list) else [None]:
        name, text = (one.get("name"), one.get("template")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            problem = "chat_template is neither a text nor a list of objects with a name and a template"
            raise folder.error(problem, file)
        texts[name] = text
    return texts


def render_chat(
    template: str, messages: Sequence[Message], variables: Mapping[str, Any], name: str, date: str
) -> RenderedChat:
    """Render a chat: the prompt of an answer, or of the rest of one.

    variables  what the template reads beside the messages: bos_token, enable_thinking, …
    name       the file of the template, for errors
    date       what the template takes for now, in ISO 8601

    DataError states what the template raises.
    """
    continues = messages[-1]["role"] == "assistant"
    if continues and not has_text(messages[-1].get("content")):
        raise DataError("the last message is of the assistant and has no text to continue", "--messages")
    return run_template(template, [messages], variables, name, date, continues)[0]


def run_template(
    template: str,
    chats: Sequence[Sequence[Message]],
    variables: Mapping[str, Any],
    name: str,
    date: str,
    continues: bool = False,
) -> list[RenderedChat]:
    """Render chats by one template, in a process of its own.

    continues  whether each text ends in its last message, which is to be continued

    The other arguments are those of `render_chat`. The process has limits of time and memory.
    """
    import subprocess

    import orjson

    check_jinja(name)
    request = {"template": template, "chats": chats, "variables": variables, "continues": continues, "date": date}
    try:
        data = orjson.dumps(request)
    except orjson.JSONEncodeError as error:
        raise DataError(f"messages and variables that are not JSON: {error}", "--chat") from None
    command = [sys.executable, "-SP", RENDERER]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(command, input=data, capture_output=True, env=environment)
    except OSError as error:
        raise FileError(system_reason(error), command[0]) from None
    answers = {"problem": describe_end(done.returncode)} if done.returncode else orjson.loads(done.stdout)
    if isinstance(answers, dict):
        raise DataError(f"chat template: {answers['problem']}", name)
    return [RenderedChat(**answer) for answer in answers]


def has_text(content: Any) -> bool:
    """Whether the content of a message ends in a text: it is one, or its last part.

    >>> has_text("Hi"), has_text([{"type": "text", "text": "Hi"}]), has_text([{"type": "image"}])
    (True, True, False)
    """
    last = content[-1] if isinstance(content, list) and content else content
    return isinstance(last.get("text") if isinstance(last, dict) else last, str)


def check_jinja(name: str) -> None:
    """Raise UsageError if Jinja is missing or too old to be safe."""
    from importlib import metadata

    try:
        version = metadata.version("jinja2")
    except metadata.PackageNotFoundError:
        import_library("jinja2", "text", name)
        raise
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < OLDEST_JINJA:
        raise UsageError(f"needs jinja2 of at least 3.1.6, not {version}: {install_extra('text')}", name)


def describe_end(code: int) -> str:
    """Why the process of a template ended without an answer.

    >>> describe_end(-signal.SIGXCPU), describe_end(-9)
    ('it computes for more than 5 seconds', 'its process was ended by signal 9')
    """
    if code == -signal.SIGXCPU:
        return "it computes for more than 5 seconds"
    return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}"
