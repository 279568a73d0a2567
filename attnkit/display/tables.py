"""Tables: one tensor as matrices of numbers with their labels."""

from collections import Counter
from collections.abc import Sequence

from attnkit.display.numbers import CellFormat, cell_format, to_python
from attnkit.display.slicing import (
    Elision,
    IndexLabels,
    Matrix,
    TensorView,
    elide,
    elide_rows,
    shared_format,
    to_matrices,
)
from attnkit.display.style import Style
from attnkit.display.text import (
    Block,
    ansi,
    block,
    display_width,
    glyphs,
    join_lines,
    label_text,
    numbered,
    pad,
    side_by_side,
    wrap,
)

MAX_ROWS = 30
MAX_MATRICES = 8
COLUMN_GAP = 2  # spaces between two columns
TIGHT_GAP = 1  # where all columns fit only with this one
HEATMAP_HINT = "show --heatmap draws more columns"
RED, BLUE = "31", "34"  # the colours of bars: of positive and of negative numbers; red is that of NaN, too


def tensor_table(view: TensorView) -> str:
    r"""Draw a tensor as text: its heading, then a table for each of its matrices.

    Rows and columns that do not fit are left out between head and tail, and counted.
    Raises DataError if the mask does not broadcast.

    >>> import numpy as np
    >>> print(tensor_table(TensorView("x", np.eye(2), ("token", "model"), (["The", "cat"], None))))
    x (token 2, model 2) float64
    token\model       0       1
    ───────────────────────────
    The          1.0000  0.0000
    cat          0.0000  1.0000
    """
    array, style = view.array, view.style
    lines = view.heading()
    if array.size == 0:
        return join_lines([*lines, "empty"])
    if array.ndim == 0:
        return join_lines([*lines, cell_format(array, style.precision).text(to_python(array))])
    parts = to_matrices(view, MAX_MATRICES)
    tables, hidden_columns = _draw_matrices(parts.matrices, parts.corner, style)
    lines += side_by_side(tables, style)
    lines += [ansi(line, "2", style) for line in wrap(parts.hidden, style)]
    if any(part.masked.any() for part in parts.matrices):
        lines.append(ansi(f"{glyphs(style).masked_mark} masked", "2", style))
    if hidden_columns and "query" in view.axes[-2:-1]:
        lines += [ansi(line, "2", style) for line in wrap(HEATMAP_HINT, style)]
    return join_lines(lines)


def _draw_matrices(parts: Sequence[Matrix], corner: str, style: Style) -> tuple[list[Block], int]:
    """Draw a table for each matrix, all alike. Returns the hidden columns too."""
    height, width = parts[0].values.shape
    rows, columns = elide_rows(height, MAX_ROWS), elide(width, style.width)  # more could not fit
    numbers = shared_format(parts, rows, columns, style.precision)
    tables = [_to_texts(part, corner, rows, columns, numbers, style) for part in parts]
    stub = 1 if parts[0].rows else 0  # columns of row labels
    sizes = column_widths([row for table in tables for row in table])
    gaps = [gap for gap in (COLUMN_GAP, TIGHT_GAP) if sum(sizes) + gap * (len(sizes) - 1) <= style.width]
    gap = gaps[0] if gaps and not columns.hidden else COLUMN_GAP
    elision = _fit_columns(sizes[stub:], columns, style.width - sum(sizes[:stub]) - stub * gap, gap, style)
    tables = [_hide_columns(table, elision, stub, style) for table in tables]
    sizes = column_widths([row for table in tables for row in table])
    blocks = [
        grid(table, sizes, style, left=range(stub), title=part.title, gap=gap)
        for part, table in zip(parts, tables, strict=True)
    ]
    return blocks, elision.hidden


def _to_texts(
    part: Matrix, corner: str, rows: Elision, columns: Elision, numbers: CellFormat, style: Style
) -> list[list[str]]:
    marks = glyphs(style)
    cells = part.texts(rows, columns, marks.masked_mark, lambda value: part.format_value(value, numbers, style))
    heads = _label_texts(part.columns, columns, style)
    if part.rows:
        stubs = _label_texts(part.rows, rows, style)
        cells = [[stub, *row] for stub, row in zip(stubs, cells, strict=True)]
        heads = [label_text(corner, style), *heads]
    mark = [label_text(f"{marks.ellipsis} {rows.hidden} more", style), *[marks.ellipsis] * (len(heads) - 1)]
    return [heads, *rows.with_gap(cells, mark)]


def _label_texts(names: Sequence[str], elision: Elision, style: Style) -> list[str]:
    """The labels that are shown, with their indices where several of all are alike.

    >>> _label_texts(["the", "cat", "the"], elide(3, 2), Style())
    ['the 0', 'cat']
    """
    counts = Counter(() if isinstance(names, IndexLabels) else names)
    visible = [(at, names[at]) for at in elision.pick(range(len(names)))]
    return [numbered(name, at, style) if counts[name] > 1 else label_text(name, style) for at, name in visible]


def _hide_columns(table: list[list[str]], elision: Elision, stub: int, style: Style) -> list[list[str]]:
    """Keep the first `stub` columns and the elided ones, and count the others."""
    present = elision._replace(size=len(table[0]) - stub)
    marks = [_hidden_heading(elision.hidden, style)] + [glyphs(style).ellipsis] * (len(table) - 1)
    return [
        row[:stub] + elision.with_gap(present.pick(row[stub:]), mark) for row, mark in zip(table, marks, strict=True)
    ]


def _hidden_heading(hidden: int, style: Style) -> str:
    """The heading in place of hidden columns, short in a narrow terminal."""
    return f"{glyphs(style).ellipsis} {hidden} more" if style.width >= 60 else f"+{hidden}"


def _fit_columns(sizes: Sequence[int], columns: Elision, room: int, gap: int, style: Style) -> Elision:
    if not columns.hidden and sum(sizes) + gap * (len(sizes) - 1) <= room:
        return columns
    mark = display_width(_hidden_heading(columns.size, style))
    for limit in range(len(sizes) - 1, 1, -1):
        elision = elide(columns.size, limit)
        taken = sum(sizes[: elision.head]) + sum(sizes[len(sizes) - elision.tail :]) + mark
        if taken + gap * limit <= room:
            return elision
    return elide(columns.size, 1)


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column of these rows.

    >>> column_widths([["a", "key"], ["query", "日"]])
    [5, 3]
    """
    return [max(map(display_width, column)) for column in zip(*rows, strict=True)]


def grid(
    rows: Sequence[Sequence[str]],
    sizes: Sequence[int],
    style: Style,
    *,
    left: Sequence[int] = (0,),
    title: str = "",
    gap: int = COLUMN_GAP,
    signed: Sequence[int] = (),
) -> Block:
    """Draw a table of texts, headings first, columns in `left` left-aligned.

    signed  the columns of bars, red, and blue after a minus

    >>> print(*grid([["name", "size"], ["x", "3"]], [4, 4], Style()).lines, sep="\\n")
    name  size
    ──────────
    x        3
    """
    total = sum(sizes) + gap * (len(sizes) - 1)
    aligned = [[pad(text, sizes[i], right=i not in left) for i, text in enumerate(row)] for row in rows]
    lines = [
        (ansi(" " * (gap - 1), "1", style) + " ").join(ansi(cell, "1;36", style) for cell in aligned[0]),
        ("─" if style.unicode else "-") * total,
    ]
    for texts, cells in zip(rows[1:], aligned[1:], strict=True):
        colors = [
            (BLUE if text.startswith(("−", "-")) else RED) if i in signed else _cell_color(text, i in left, style)
            for i, text in enumerate(texts)
        ]
        lines.append((" " * gap).join(ansi(cell, color, style) for cell, color in zip(cells, colors, strict=True)))
    return block(lines, total, title, style)


def _cell_color(text: str, is_label: bool, style: Style) -> str:
    """The ANSI code of a cell: dim for masked or hidden, red for not finite."""
    marks = glyphs(style)
    if text in (marks.masked_mark, marks.ellipsis, "-inf"):
        return "2"
    return "36" if is_label else RED if text in ("nan", "inf") else ""
