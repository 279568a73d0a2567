"""The style of a terminal: width, colour, encoding and decimals."""

import os
from collections.abc import Mapping
from typing import NamedTuple

MIN_WIDTH = 20


class Style(NamedTuple):
    """How to draw: width, colours, Unicode, decimals and spelling of tokens.

    cell_precision  decimals in the cells of heat maps
    plain_tokens    whether the tokens of a vocabulary are spelled plain: `·fox` for Ġfox
    heads           the heads whose tables are drawn; None: the first ones
    """

    width: int = 80
    color: bool = False
    unicode: bool = True
    precision: int = 4
    cell_precision: int = 2
    plain_tokens: bool = False
    heads: range | None = None


DEFAULT_STYLE = Style()


def detect_style(
    terminal: bool, environ: Mapping[str, str], encoding: str | None, precision: int | None = None
) -> Style:
    """Choose the style of a stream by the terminal, environment and encoding.

    NO_COLOR beats everything, TERM=dumb beats FORCE_COLOR (no-color.org, force-color.org). A terminal without TERM has
    no colour of its own.

    >>> detect_style(True, {"COLUMNS": "100", "TERM": "xterm"}, "utf-8")
    Style(width=100, color=True, unicode=True, precision=4, cell_precision=2, plain_tokens=False, heads=None)
    >>> detect_style(False, {"COLUMNS": "100"}, "ascii", precision=3)[2:5]
    (False, 3, 3)
    """
    is_plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    has_escapes = terminal and bool(environ.get("TERM"))
    color = not is_plain and (has_escapes or bool(environ.get("FORCE_COLOR")))
    unicode = (encoding or "").lower().startswith("utf")
    style = Style(_width(environ.get("COLUMNS", "")), color, unicode)
    return style if precision is None else style._replace(precision=precision, cell_precision=precision)


def _width(columns: str) -> int:
    if columns.isascii() and columns.isdigit() and len(columns) <= 5 and int(columns) > 0:
        return max(int(columns), MIN_WIDTH)
    for descriptor in (1, 2, 0):
        try:
            return max(os.get_terminal_size(descriptor).columns or 80, MIN_WIDTH)
        except OSError:
            continue  # not a terminal, or closed
    return 80
