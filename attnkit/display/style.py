"""What the terminal can show, and the few decisions that follow from it."""

import os
from collections.abc import Mapping
from typing import NamedTuple

NARROWEST = 20


class Style(NamedTuple):
    """How to draw: columns there are, ANSI colours or not, Unicode or ASCII, decimals of a number."""

    width: int = 80
    color: bool = False
    unicode: bool = True
    precision: int = 4


def detect_style(terminal: bool, environ: Mapping[str, str], encoding: str | None, precision: int = 4) -> Style:
    """The look for a stream: is it a terminal, under which environment, in which encoding.

    NO_COLOR beats everything, TERM=dumb beats FORCE_COLOR (no-color.org, force-color.org).

    >>> detect_style(True, {"COLUMNS": "100", "TERM": "xterm"}, "utf-8")
    Style(width=100, color=True, unicode=True, precision=4)
    >>> detect_style(False, {"COLUMNS": "100"}, "ascii", precision=2)
    Style(width=100, color=False, unicode=False, precision=2)
    """
    plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    color = not plain and (terminal or bool(environ.get("FORCE_COLOR")))
    unicode = (encoding or "").lower().startswith("utf")
    return Style(_width(environ.get("COLUMNS", "")), color, unicode, precision)


def _width(columns: str) -> int:
    if columns.isascii() and columns.isdigit() and len(columns) <= 5 and int(columns) > 0:
        return max(int(columns), NARROWEST)
    for descriptor in (1, 2, 0):
        try:
            return max(os.get_terminal_size(descriptor).columns or 80, NARROWEST)
        except OSError:
            continue  # not a terminal, or closed
    return 80
