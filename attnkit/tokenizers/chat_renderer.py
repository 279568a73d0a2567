"""The program that renders a chat template, in a process of its own.

A template is a program by whoever published the model. The sandbox of Jinja keeps it from files and from the
internals of Python, and the limits of this process bound its time and memory.

Standard input is a JSON object of what `render_messages` takes, with the messages of several `chats`. Standard output
is a list of what it returns for each, or an object with the `problem`. The file is run by its path and imports nothing
of attnkit. What a template can use is what `apply_chat_template` of transformers 5.23 offers:
utils/chat_template_utils.py.
"""

import contextlib
import json
import resource
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

SECONDS = 5  # of computing
MEMORY, MEMORY_FACTOR = 1 << 28, 64  # bytes, and for each byte of the input
MOST, MOST_FACTOR = 1 << 20, 4  # characters of a prompt, and for each byte of the input
Messages = list[dict[str, Any]]  # messages
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of the same part of a message
TAG = "<CONTINUE> "  # written after the text of a message that is continued; some templates strip its space


class GenerationTag(Extension):  # type: ignore[misc]
    """`{% generation %}…{% endgeneration %}`, which marks what the model has written."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("write"), [], [], body).set_lineno(line)

    def write(self, caller: Macro) -> str:
        return str(caller())


class Values(Namespace):  # type: ignore[misc]
    """The `namespace` of Jinja without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *others = args
        values = dict(*others, **values)
        for name in values:
            check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        super().__setitem__(name, value)


def check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace has no {name!r}, which begins with an underscore")


class Dictionaries:
    """The `dict` of templates: a function without the attributes of the class."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def raise_exception(message: str) -> None:
    raise TemplateError(message)


class Clock:
    """The date that a template writes, and whether it has asked for it."""

    def __init__(self, date: str) -> None:
        self.now, self.is_read = datetime.fromisoformat(date), False

    def strftime_now(self, pattern: str) -> str:
        self.is_read = True
        return self.now.strftime(pattern)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; the filter of Jinja would escape what HTML reserves."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment(strftime_now: Callable[[str], str]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": Dictionaries(),
        "namespace": Values,
    }
    return environment


def render_messages(
    template: str, messages: Messages, variables: Mapping[str, Any], continues: bool, date: str, most: int
) -> dict[str, Any]:
    """The `text` of a chat, roles `ignored` by it, and whether it `is_dated`.

    continues  whether the text ends in the last message, which is to be continued
    date       what the template takes for now, in ISO 8601
    most       characters that the text may have
    """
    clock = Clock(date)
    program = make_environment(lambda pattern: clock.strftime_now(pattern)).from_string(template)
    defaults = {"tools": None, "documents": None, "add_generation_prompt": not continues}

    def write(chat: Messages) -> str:
        parts, size = [], 0
        for part in program.generate(defaults | {**variables, "messages": chat}):
            parts.append(part)
            size += len(part)
            if size > most:
                raise ValueError(f"it writes more than {most:,} characters")
        return "".join(parts)

    chat = [alias_reasoning(message) for message in messages]
    text = cut_at_tag(write(change_content(chat, -1, TAG))) if continues else write(chat)
    suspects = {message["role"]: at for at, message in enumerate(chat) if may_be_ignored(message, text)}
    changed = {role: try_to_write(write, change_content(chat, at, "x")) for role, at in suspects.items()}
    ignored = [role for role, other in changed.items() if other == text]
    return {"text": text, "ignored": ignored, "is_dated": clock.is_read}


def alias_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without empty values, with its reasoning under the names of templates.

    >>> alias_reasoning({"role": "assistant", "reasoning": "2 + 2", "name": None})
    {'thinking': '2 + 2', 'role': 'assistant', 'reasoning': '2 + 2', 'reasoning_content': '2 + 2'}
    """
    stated = {key: value for key, value in message.items() if value is not None}
    reasoning = next((stated[key] for key in REASONING if key in stated), None)
    return stated if reasoning is None else {"thinking": reasoning, **stated, "reasoning_content": reasoning}


def change_content(chat: Messages, at: int, addition: str) -> Messages:
    """A chat with an addition after the text of one message."""
    changed = [*chat]
    content = chat[at]["content"]
    if isinstance(content, list):
        *first, last = content
        changed[at] = {**chat[at], "content": [*first, {**last, "text": last["text"] + addition}]}
    else:
        changed[at] = {**chat[at], "content": content + addition}
    return changed


def cut_at_tag(text: str) -> str:
    """Cut a text at the tag. If its space is stripped, so is the space before it.

    >>> cut_at_tag("A: Well, <CONTINUE> <end>"), cut_at_tag("A: Well, <CONTINUE><end>")
    ('A: Well, ', 'A: Well,')
    """
    at = text.rfind(TAG.strip())
    if at < 0:
        raise ValueError("it leaves out the last message, which is of the assistant and is to be continued")
    return text[:at] if text.startswith(TAG, at) else text[:at].rstrip()


def may_be_ignored(message: Mapping[str, Any], text: str) -> bool:
    """Whether a text lacks the content of a message, as it is or changed."""
    content = message.get("content")
    return isinstance(content, str) and bool(content.strip()) and content.strip() not in text


def try_to_write(write: Callable[[Messages], str], chat: Messages) -> str | None:
    """The text of a chat; None if the template raises an error."""
    try:
        return write(chat)
    except Exception:
        return None


def describe_failure(error: Exception) -> str:
    """What a template has raised, in one line.

    >>> describe_failure(MemoryError()), describe_failure(ValueError("a\\nb")), describe_failure(KeyError())
    ('it needs too much memory', 'a b', 'KeyError')
    """
    if isinstance(error, MemoryError | RecursionError):
        return "it needs too much memory" if isinstance(error, MemoryError) else "it calls itself without end"
    place = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
    return place + (" ".join(str(error).split()) or type(error).__name__)


def set_limit(kind: int, most: int) -> None:
    """Lower a limit of this process; one that cannot be set stays as it is."""
    _, hard = resource.getrlimit(kind)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> None:
    """Render the request on standard input."""
    request = sys.stdin.buffer.read()
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_CPU, SECONDS)
    set_limit(resource.RLIMIT_AS, MEMORY + MEMORY_FACTOR * len(request))
    try:
        shared = json.loads(request)
        most, chats = MOST + MOST_FACTOR * len(request), shared.pop("chats")
        answers = [render_messages(messages=chat, **shared, most=most) for chat in chats]
        output = json.dumps(answers, ensure_ascii=False).encode()
    except Exception as error:
        output = json.dumps({"problem": describe_failure(error)}).encode()
    sys.stdout.buffer.write(output)


if __name__ == "__main__":
    main()
