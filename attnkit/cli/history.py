"""Command lines out of names and values: the entry of a result's history, from which a tool can be run again."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnkit import __version__
from attnkit.errors import flag_name


def command_line(tool: str, arguments: Sequence[str], values: Iterable[tuple[str, Any]]) -> str:
    """Return the command line of a tool with these arguments, and these values of its parameters.

    >>> command_line("attend", ["x.json"], [("heads", 2), ("causal", True)]), command_line("embed", ["-a b"], [])
    ('attnkit attend x.json --heads 2 --causal', "attnkit embed -- '-a b'")
    """
    words = [word for name, value in values for word in to_flags(name, value)]
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join(["attnkit", tool, *words, "--", *arguments])
    return shlex.join(["attnkit", tool, *arguments, *words])


def history_entry(command: str, files: Mapping[str, str], beside: str = "") -> dict[str, Any]:
    """Return the history entry of a result: its command, the version, and the SHA-256 of every file read.

    beside  the file that the result is written to, where it is not the output of the stage
    """
    entry: dict[str, Any] = {"command": to_unicode(command), "version": __version__}
    if files:
        entry["files"] = {to_unicode(name): digest for name, digest in files.items()}
    if beside:
        entry["beside"] = to_unicode(beside)
    return entry


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
