"""Lists of properties in two columns, and tables of text whose last column wraps."""

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from attnkit.display.style import Style
from attnkit.display.tables import COLUMN_GAP, column_widths, grid
from attnkit.display.text import ASCII_SPELLING, ansi, display_width, escape, heading, join_lines, pad, wrap


class TextTable(NamedTuple):
    """A table of texts: headings, rows, right-aligned columns, title, footer.

    signed  the columns of bars of numbers of both signs, which have the colour of their sign
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    title: str = ""
    footer: str = ""
    signed: Sequence[int] = ()

    @property
    def left(self) -> list[int]:
        """The left-aligned columns."""
        return [at for at in range(len(self.heads)) if at not in self.numbers]


MIN_LAST_COLUMN = 16  # columns that are too few for the last column of a table


def property_list(title: str, rows: Sequence[tuple[str, str]], style: Style) -> str:
    """Draw names and their values, one a line, or more if a value is too wide.

    >>> print(property_list("model", [("family", "bert"), ("width", "4")], Style()))
    model
    family  bert
    width   4
    """
    indent = max(display_width(name) for name, _ in rows) + COLUMN_GAP
    lines = heading(title, "", "", style)
    for name, value in rows:
        first, *more = _break_lines(_to_charset(value, style), style.width - indent)
        lines.append(ansi(pad(name, indent - COLUMN_GAP), "36", style) + " " * COLUMN_GAP + first)
        lines += [" " * indent + line for line in more]
    return join_lines(lines)


def text_lines(text: str, style: Style) -> str:
    """Break a text into lines that fit, in ASCII if the style has no Unicode.

    >>> text_lines("clean 13.4916, corrupted − 5.8", Style(width=20, unicode=False))
    'clean 13.4916,\\n    corrupted - 5.8'
    """
    return "\n".join(wrap(_to_charset(text, style), style))


def format_table(table: TextTable, style: Style) -> str:
    """Draw a table of texts, its last column on several lines if it is too wide.

    >>> print(format_table(TextTable(["beam", "sum"], [["a cat", "-10"], ["b", "5"]], [1]), Style()))
    beam   sum
    ──────────
    a cat  -10
    b        5
    """
    above = heading(table.title, "", "", style) if table.title else []
    cells = [[_to_charset(text, style) for text in row] for row in (table.heads, *table.rows)]
    widest = {i: max(len(row[i]) for row in cells) for i in table.numbers}
    cells = [[text.rjust(widest.get(i, 0)) for i, text in enumerate(row)] for row in cells]
    sizes = column_widths(cells)
    room = style.width - sum(size + COLUMN_GAP for size in sizes[:-1])
    if room >= min(MIN_LAST_COLUMN, sizes[-1]):
        broken = [
            [*(row[:-1] if i == 0 else [""] * (len(row) - 1)), line]
            for row in cells
            for i, line in enumerate(_break_lines(row[-1], room))
        ]
        body = grid(broken, column_widths(broken), style, left=range(len(table.heads)), signed=table.signed).lines
    else:
        body = [line for row in cells[1:] for line in _stack(row, cells[0], style)]
    below = [ansi(line, "2", style) for line in wrap(_to_charset(table.footer, style), style)] if table.footer else []
    return join_lines([*above, *body, *below])


def _stack(row: Sequence[str], heads: Sequence[str], style: Style) -> list[str]:
    """Draw a row that is too wide: its first text, and the others below, no blanks.

    >>> _stack(["0:1", "0.25", "", "0.5", "++"], ["head", "self", "dup", "first", ""], Style(width=16))
    ['0:1', '  self 0.25,', '  first 0.5, ++']
    """
    named = [
        f"{head.strip()} {text.strip()}".strip() for head, text in zip(heads[1:], row[1:], strict=True) if text.strip()
    ]
    below = _break_lines(", ".join(named), style.width - COLUMN_GAP) if named else []
    return [
        *(ansi(line, "36", style) for line in _break_lines(row[0], style.width)),
        *(" " * COLUMN_GAP + line for line in below),
    ]


def _to_charset(text: str, style: Style) -> str:
    """Escape a text, in ASCII if the style has no Unicode."""
    return escape(text if style.unicode else text.translate(ASCII_SPELLING), style) if text else ""


def _break_lines(text: str, room: int) -> list[str]:
    """Break a text after commas if that is enough, otherwise at spaces."""
    unbroken = re.sub(r"\([^()]*\)|(?<!,) ", lambda match: match[0].replace(" ", "\0"), text)
    for source in (unbroken, text):
        wrapped = textwrap.wrap(source, max(room, 1), break_long_words=source is text)
        lines = [line.replace("\0", " ") for line in wrapped]
        if all(display_width(line) <= room for line in lines):
            break
    return lines or [""]
