"""The format of a result: by flag, by the suffix of a file, or by default."""

import os
from collections.abc import Mapping
from typing import Any

from attnkit import formats
from attnkit.cli import options
from attnkit.errors import UsageError

DISPLAY_FORMATS = ("table", "svg", "html")
TEXT = "text"  # the format of a tool that returns text, whatever the suffix of its file
SUFFIXES = {".txt": "table", ".svg": "svg", ".html": "html"}
STDOUT = 1


def requested_format(common: Mapping[str, Any], shows_table: bool) -> str | None:
    """Return the format that a flag, a suffix or a terminal requests, in this order; None where none does.

    common       the flags all tools share
    shows_table  whether the tool writes a table unless another format is requested

    >>> requested_format({"format": "npz", "output": "a.json"}, False), requested_format({"output": "a.json"}, False)
    ('npz', 'json')
    """
    path = common.get("output") or "-"
    suffix = os.path.splitext(path)[1]
    if common.get("format"):
        return str(common["format"])
    if path == "-":
        if shows_table or os.isatty(STDOUT):
            return "table"
    elif by_suffix := formats.suffix_format(path) or SUFFIXES.get(suffix):
        return by_suffix
    elif suffix and not path.startswith("/dev/"):
        raise UsageError(f"no format has the suffix {suffix!r}; -f FORMAT chooses one", path)
    return None


def text_format(common: Mapping[str, Any]) -> str:
    """Return the format of a text: itself, or a picture of it; UsageError for a format that holds tensors.

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
    """Return the format where nothing else chooses one: ATTNKIT_FORMAT, else JSON."""
    name = os.environ.get("ATTNKIT_FORMAT") or "json"
    if name not in options.FORMATS:
        raise UsageError(f"no format {name!r} (expected {' '.join(options.FORMATS)})", "ATTNKIT_FORMAT")
    return name
