"""Tables of numbers and words, typeset: columns by the width of their texts, one line below the headings."""

import textwrap

from attnkit.display.figures.fonts import text_width, visible
from attnkit.display.figures.shapes import (
    LINE,
    TEXT_SIZE,
    Drawing,
    Path,
    Preformatted,
    Shape,
    Table,
    Text,
    short,
)

ROW = 19  # height of a row
COLUMN_GAP = 16
MAX_CHARACTERS = 130  # in a line of preformatted text


def draw_table(table: Table) -> Drawing:
    """Draw a table: its title, its headings, a line, its rows.

    >>> drawing = draw_table(Table([["token", "0"], ["cat", "1.0"]]))
    >>> [(shape.text, shape.anchor) for shape in drawing.shapes if isinstance(shape, Text)]
    [('token', 'start'), ('0', 'end'), ('cat', 'start'), ('1.0', 'end')]
    """
    sizes = [max(text_width(text, TEXT_SIZE) for text in column) for column in zip(*table.rows, strict=True)]
    starts = [sum(sizes[:at]) + COLUMN_GAP * at for at in range(len(sizes))]
    width = starts[-1] + sizes[-1]
    shapes: list[Shape] = []
    y = 0.0
    if table.title:
        shapes.append(Text(0, TEXT_SIZE, table.title, is_bold=True))
        width = max(width, text_width(table.title, TEXT_SIZE) * 1.1)
        y = ROW
    for at, row in enumerate(table.rows):
        baseline = y + ROW * (at + 0.7) + (4 if at else 0)
        for column, text in enumerate(row):
            is_left = column in table.left
            x = starts[column] + (0 if is_left else sizes[column])
            color = "muted" if at == 0 else "ink"
            shapes.append(Text(x, baseline, text, anchor="start" if is_left else "end", color=color))
    rule = f"M0 {short(y + ROW + 0.5)}h{short(width)}"
    return Drawing(width, y + ROW * len(table.rows) + 6, [*shapes, Path(rule, stroke="grid")])


def draw_preformatted(text: Preformatted) -> Drawing:
    """Draw lines of text in a font of one width.

    >>> draw_preformatted(Preformatted(["a", "bcd"]))[:2]
    (22, 34)
    """
    lines = [part for line in text.lines for part in _wrap(line)]
    shapes = [Text(0, TEXT_SIZE * (at * LINE + 1), line, is_mono=True) for at, line in enumerate(lines) if line]
    width = max((text_width(shape.text, TEXT_SIZE, is_mono=True) for shape in shapes), default=1)
    return Drawing(round(width), round(len(lines) * TEXT_SIZE * LINE), shapes)


def _wrap(line: str) -> list[str]:
    """Break a line of text at spaces into lines of at most MAX_CHARACTERS; its indentation stays."""
    text = visible(line) if line else ""
    return textwrap.wrap(text, MAX_CHARACTERS, drop_whitespace=False, break_on_hyphens=False) or [""]
