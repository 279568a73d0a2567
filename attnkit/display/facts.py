"""Sheets of facts: what is what, in two columns; and tables of texts whose last column takes several lines."""

import re
import textwrap
from collections.abc import Sequence

from attnkit.display.style import Style
from attnkit.display.tables import BETWEEN, grid, widths
from attnkit.display.text import SPELLED, ansi, display_width, escape, heading, join_lines, pad, wrapped

NARROW = 16  # columns that are too few for the last column of a table


def facts(title: str, rows: Sequence[tuple[str, str]], look: Style) -> str:
    """What each thing is, a line each, more where it does not fit the width.

    >>> print(facts("model", [("family", "bert"), ("width", "4")], Style()))
    model
    family  bert
    width   4
    """
    wide = max(display_width(name) for name, _ in rows)
    lines = heading(title, "", "", look)
    for name, value in rows:
        first, *more = _lines(_shown(value, look), look.width - wide - BETWEEN)
        lines.append(ansi(pad(name, wide), "36", look) + " " * BETWEEN + first)
        lines += [" " * (wide + BETWEEN) + line for line in more]
    return join_lines(lines)


def facts_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], look: Style, title: str = "", last: str = ""
) -> str:
    """A table of texts, the last column in as many lines as it takes; `last` is a line below it.

    >>> print(facts_table(["layer", "parameters"], [["norm", "gamma, beta"]], Style(), last="1 layer"))
    layer  parameters
    ──────────────────
    norm   gamma, beta
    1 layer
    """
    top = heading(title, "", "", look) if title else []
    cells = [[_shown(text, look) for text in row] for row in (heads, *rows)]
    room = look.width - sum(width + BETWEEN for width in widths(cells)[:-1])
    if room >= min(NARROW, widths(cells)[-1]):
        spread = [
            [*(row[:-1] if at == 0 else [""] * (len(row) - 1)), line]
            for row in cells
            for at, line in enumerate(_lines(row[-1], room))
        ]
        body = grid(spread, widths(spread), look, left=range(len(heads))).lines
    else:
        body = [line for row in cells[1:] for line in _stacked(row, look)]
    below = [ansi(line, "2", look) for line in wrapped(_shown(last, look), look)] if last else []
    return join_lines([*top, *body, *below])


def _stacked(row: Sequence[str], look: Style) -> list[str]:
    """A row where columns do not fit side by side: its first text, and the others below it, further in."""
    below = _lines(", ".join(row[1:]), look.width - BETWEEN)
    return [
        *(ansi(line, "36", look) for line in _lines(row[0], look.width)),
        *(" " * BETWEEN + line for line in below),
    ]


def _shown(text: str, look: Style) -> str:
    return escape(text if look.unicode else text.translate(SPELLED), look) if text else ""


def _lines(text: str, room: int) -> list[str]:
    """The text in lines of this width: broken after commas outside of brackets if that is enough, else at spaces."""
    whole = re.sub(r"\([^()]*\)|(?<!,) ", lambda found: found[0].replace(" ", "\0"), text)
    for one in (whole, text):
        lines = [line.replace("\0", " ") for line in textwrap.wrap(one, max(room, 1), break_long_words=one is text)]
        if all(display_width(line) <= room for line in lines):
            break
    return lines or [""]
