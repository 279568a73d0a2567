"""Command lines out of values: the entry of a result's history, from which the tool can be run again."""

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnkit import __version__
from attnkit.errors import flag_name
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.cli.stage import Item, Stage


def command_line(stage: "Stage", item: "Item") -> str:
    """Return the command line that does this again: every value other than its default, and the seed in use."""
    words = [word for name, value in values_to_record(stage).items() for word in value_words(stage, name, value)]
    arguments = input_arguments(stage, item)
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join(["attnkit", stage.tool.name, *words, "--", *arguments])
    return shlex.join(["attnkit", stage.tool.name, *arguments, *words])


def input_arguments(stage: "Stage", item: "Item") -> list[str]:
    """Return the positional arguments to record: texts, or the files of an input without a history."""
    if isinstance(item, tuple):
        return list(item)
    if isinstance(item, Record) and item.history:
        return []
    return [operand for operand in stage.operands if operand != "-"]


def values_to_record(stage: "Stage") -> dict[str, Any]:
    """Return the values by name that differ from their default, or that the tool always records."""
    always = stage.tool.record_defaults(stage.parameters)
    common = {name: stage.common.get(name) for name in ("only", "dtype")}
    extra = stage.extra | {"format": "json"} if stage.tool.derived(stage) else {}
    values = stage.parameters | always | common | extra
    return {
        name: value
        for name, value in values.items()
        if name in always or not is_default(value, stage.tool.defaults.get(name))
    }


def is_default(value: Any, default: Any) -> bool:
    """Return whether a value is the default, in type as well: 1 is not True."""
    return type(value) is type(default) and bool(value == default)


def value_words(stage: "Stage", name: str, value: Any) -> list[str]:
    """Return the words of one value; a flag that may come several times is repeated."""
    is_repeated = name in stage.tool.flags and stage.tool.flags[name].several
    return [word for one in (value if is_repeated else (value,)) for word in to_flags(name, one)]


def history_entry(stage: "Stage", item: "Item", beside: str = "") -> dict[str, Any]:
    """Return the history entry of a result: its command, version and the SHA-256 of every file read.

    beside  the file that the result is written to, where it is not the output of the stage
    """
    files = dict(stage.files)
    before = item.history if isinstance(item, Record) else []
    if stage.keeps_history and not before and stage.source is not None and stage.source.digest():
        files[stage.source.name] = stage.source.digest()
    entry: dict[str, Any] = {"command": to_unicode(command_line(stage, item)), "version": __version__}
    for content in stage.loaded.values() if stage.keeps_history else ():
        if hasattr(content, "digests"):  # a model, whose files are large
            files |= content.digests()
    if files:
        entry["files"] = {to_unicode(name): digest for name, digest in files.items()}
    if beside:
        entry["beside"] = to_unicode(beside)
    return entry


def add_history(stage: "Stage", item: "Item", result: Record, beside: str = "") -> Record:
    """Return the result with its history entry; DataError where its axes or labels don't fit its shapes."""
    before = item.history if isinstance(item, Record) else []
    return replace(result, history=[*before, history_entry(stage, item, beside)]).check()


def to_unicode(text: str) -> str:
    r"""Return text of the command line as Unicode, with each undecodable byte of a file name as an escape.

    >>> to_unicode("caf\udce9")
    'caf\\xe9'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_flags(name: str, value: Any) -> list[str]:
    """Return the words of a parameter on a command line.

    >>> to_flags("kv_heads", 2), to_flags("causal", True), to_flags("window", (-1, 0))
    (['--kv-heads', '2'], ['--causal'], ['--window', '-1,0'])
    """
    flag = flag_name(name)
    if value is True:
        return [flag]
    if isinstance(value, tuple):
        return [flag, ",".join(map(str, value))]
    return [flag, str(value) if isinstance(value, str | int | float) else f"<{type(value).__name__}>"]
