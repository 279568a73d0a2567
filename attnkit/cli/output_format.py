"""Which format a result takes."""

import os
from collections.abc import Mapping
from typing import Any

from attnkit import formats
from attnkit.cli import options
from attnkit.errors import UsageError

DISPLAY_FORMATS = ("table", "svg", "html")
TEXT = "text"  # what a tool that prints writes, whatever its file is called
SUFFIXES = {".txt": "table", ".svg": "svg", ".html": "html"}
STDOUT = 1


def asked_format(common: Mapping[str, Any], eyes: bool) -> str | None:
    """The format that a flag, a suffix or a terminal asks for, in this order; None where none of them does.

    common  the flags all tools share
    eyes    whether the tool writes a table unless asked for something else

    >>> asked_format({"format": "npz", "output": "a.json"}, False), asked_format({"output": "a.json"}, False)
    ('npz', 'json')
    """
    path = common.get("output") or "-"
    suffix = os.path.splitext(path)[1]
    if common.get("format"):
        return str(common["format"])
    if path == "-":
        if eyes or os.isatty(STDOUT):
            return "table"
    elif by_suffix := formats.suffix_format(path) or SUFFIXES.get(suffix):
        return by_suffix
    elif suffix and not path.startswith("/dev/"):
        raise UsageError(f"no format has the suffix {suffix!r}; -f FORMAT chooses one", path)
    return None


def text_format(common: Mapping[str, Any]) -> str:
    """What a text is written as: itself, or a picture of it; UsageError for a format that holds tensors.

    >>> text_format({"output": "a.sh"}), text_format({"format": "svg"}), text_format({"format": "table"})
    ('text', 'svg', 'text')
    """
    path = common.get("output") or "-"
    chosen = common.get("format") or formats.suffix_format(path) or SUFFIXES.get(os.path.splitext(path)[1], "table")
    if chosen not in DISPLAY_FORMATS:
        name = "--format" if common.get("format") else path
        raise UsageError(f"the result is text, which {chosen} does not hold (expected table, svg or html)", name)
    return TEXT if chosen == "table" else str(chosen)


def default_format() -> str:
    """The format where nothing else chooses one: ATTNKIT_FORMAT, else JSON."""
    asked = os.environ.get("ATTNKIT_FORMAT") or "json"
    if asked not in options.FORMATS:
        raise UsageError(f"no format {asked!r} (expected {' '.join(options.FORMATS)})", "ATTNKIT_FORMAT")
    return asked
