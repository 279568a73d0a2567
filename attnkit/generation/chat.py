"""Make the prompts of a chat: messages, written by the chat template of a model."""

import os
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from attnkit import callbacks
from attnkit.errors import AttnkitNote, AttnkitWarning, UsageError
from attnkit.generation.options import DecodeOptions
from attnkit.inputs.text_inputs import require_unicode
from attnkit.records import Record
from attnkit.tokenizers.chat_template import ChatTemplates, Message, load_chat_templates, render_chat

DATE = "SOURCE_DATE_EPOCH"  # the variable that replaces the time, in seconds since 1970


def render_chats(source: Sequence[str] | Record | None, options: DecodeOptions) -> list[str]:
    """Render a prompt for each text, a message of the user after those of --messages.

    Without a text the messages are the whole chat. Warn about messages that the template leaves out.
    """
    if isinstance(source, Record):
        raise UsageError("needs TEXT or --messages FILE, got a record", "--chat")
    chat, earlier = options.chat, options.chat.messages or ()
    templates: ChatTemplates = options.checkpoint.load_companion("chat", load_chat_templates)
    if chat.system is not None and any(message["role"] == "system" for message in earlier):
        raise UsageError("the messages of --messages have a system message already", "--system")
    variables = parse_variables(chat.variable)
    template, name = chat.template, "--template"
    if template is None:
        template, name = templates.select(variables.get("tools") is not None), templates.name
    first: list[Message] = [{"role": "system", "content": text} for text in require_unicode(chat.system)]
    last = [[{"role": "user", "content": text}] for text in require_unicode(source)] or [[]]
    date, is_dated, prompts = chat.date or current_date(), False, []
    for message in last:
        messages = [*first, *earlier, *message]
        if not messages:
            raise UsageError("no message; give TEXT or --messages FILE", "--chat")
        if options.checkpoint.pictures:
            messages = list_parts(messages, options.image is not None)
        rendered = render_chat(template, messages, {**templates.special, **variables}, name, date)
        is_dated |= rendered.is_dated
        for role in rendered.ignored:
            problem = f"the chat template leaves out a message of the role {role!r}"
            warnings.warn(problem, AttnkitWarning, stacklevel=2)
        prompts.append(rendered.text)
    if is_dated:
        callbacks.current().on_default("date", date)
    elif chat.date:
        warnings.warn("the chat template writes no date (--date)", AttnkitNote, stacklevel=2)
    return prompts


def list_parts(messages: Sequence[Message], has_image: bool) -> list[Message]:
    """Messages with lists of parts as their content, as templates with pictures need.

    has_image  whether a picture is the first part of the last message of the user, where no message has one

    UsageError for a picture without a message of a user.

    >>> list_parts([{"role": "user", "content": "Hi"}], True)
    [{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'Hi'}]}]
    """
    parts: list[Message] = [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if isinstance(one.get("content"), str) else one
        for one in messages
    ]
    contents = [one["content"] for one in parts if isinstance(one.get("content"), list)]
    held = any(isinstance(part, dict) and part.get("type") == "image" for one in contents for part in one)
    if not has_image or held:
        return parts
    users = [at for at, one in enumerate(parts) if one["role"] == "user" and isinstance(one.get("content"), list)]
    if not users:
        raise UsageError("no message of the user that shows the picture", "--image")
    last = parts[users[-1]]
    parts[users[-1]] = {**last, "content": [{"type": "image"}, *last["content"]]}
    return parts


def current_date() -> str:
    """The date and time in ISO 8601, by SOURCE_DATE_EPOCH if it is set."""
    seconds = os.environ.get(DATE)
    if not seconds:
        return datetime.now().isoformat(timespec="seconds")
    try:
        return datetime.fromtimestamp(int(seconds), UTC).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{seconds!r} (expected seconds since 1970)", DATE) from None


def parse_variables(texts: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE, where VALUE is JSON or else a text.

    >>> parse_variables(["enable_thinking=false", "date=26 Jul 2024"])
    {'enable_thinking': False, 'date': '26 Jul 2024'}
    """
    import orjson

    variables: dict[str, Any] = {}
    for text in require_unicode(texts):
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name == "messages":
            raise UsageError(f"expected NAME=VALUE, got {text!r}", "--variable")
        try:
            variables[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            variables[name] = value
    return variables
