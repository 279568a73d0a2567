"""Records and tensors as HTML for notebooks, escaped and without scripts."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnkit.display.blocks import Block, Map, Note, Text, drawn_in
from attnkit.display.colors import LIGHT, NOT_FINITE_COLOR, SIGNED, UNSIGNED, color_map, contrasting_ink
from attnkit.display.facts import TextTable
from attnkit.display.heatmaps import Scale, make_scale
from attnkit.display.numbers import number_format, to_python
from attnkit.display.record_views import tensor_view
from attnkit.display.slicing import Elision, Matrices, Matrix, TensorView, elide, elide_rows, shared_format, to_matrices
from attnkit.display.style import Style
from attnkit.errors import escaped
from attnkit.records import Record

STYLE = Style(color=True)
SMALL = 64  # most numbers of a tensor that is shown as a table, and not as a heat map
LARGE = 1 << 22  # a larger tensor is in the list alone
MANY = 8  # most tensors that are shown one by one
MAX_MATRICES = 8
MAX_ROWS, MAX_COLUMNS, MAX_CELLS = 30, 16, 48  # of a table; of a heat map
NUMBERED = 12  # most columns of a heat map that shows its numbers
TABLE = '<table style="border-collapse:collapse;display:inline-table;margin:4px 16px 8px 0;font-size:13px">'
CELL = "padding:1px 6px;text-align:right;border:0;white-space:nowrap"
HEAD = "padding:1px 6px;text-align:left;border:0;font-weight:600;white-space:nowrap"


@dataclass(frozen=True)
class Rendering:
    """What `show` shows: its text on a console, its HTML in a notebook.

    >>> Rendering("x 1", lambda: "<b>x</b> 1")
    x 1
    """

    text: str
    draw: Callable[[], str]

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.draw()


def record_html(record: Record) -> str:
    """A record as HTML: tables, heat maps, or a list of many tensors.

    >>> "<td" in record_html(Record({"x": np.eye(2)})), "&lt;b&gt;" in record_html(Record({"<b>": np.zeros(1)}))
    (True, True)
    """
    names = [name for name, one in record.tensors.items() if one.array.size <= LARGE]
    if len(record) > MANY:
        names = [name for name in names if name == "x"]
    views = [view_tensor(record, name) for name in names]
    parts = [tensor_html(view, is_map=view.array.size > SMALL and view.array.ndim > 1) for view in views]
    if len(names) < len(record):
        rows = [(name, *view_tensor(record, name).description().rsplit(" ", 1)) for name in record]
        parts.append(rows_html([("name", "shape", "dtype"), *rows], left=(0, 1, 2)))
    return "".join(parts) or "an empty record"


def view_tensor(record: Record, name: str) -> TensorView:
    return replace(tensor_view(record, name, STYLE), axes=record.tensor(name).axis_names(), words=None)


def tensor_html(view: TensorView, is_map: bool) -> str:
    """A tensor as HTML: a table or a heat map for each of its matrices."""
    formula = f" = {escape_html(view.formula)}" if view.formula else ""
    title, description = escape_html(view.title), escape_html(view.description())
    head = f'<div style="margin-top:6px"><b>{title}</b> <small>{description}</small>{formula}</div>'
    if view.array.size == 0:
        return f"{head}<div>empty</div>"
    parts = to_matrices(view, MAX_MATRICES)
    body = map_html(view, parts) if is_map else "".join(table_html(part, parts.corner) for part in parts.matrices)
    return f"{head}<div>{body}</div>" + (f"<small>{escape_html(parts.hidden)}</small>" if parts.hidden else "")


def table_html(part: Matrix, corner: str) -> str:
    height, width = part.values.shape
    rows, columns = elide_rows(height, MAX_ROWS), elide(width, MAX_COLUMNS)
    numbers = shared_format([part], rows, columns, STYLE.precision)
    texts = part.texts(rows, columns, "·", numbers.text)
    cells = [[f'<td style="{CELL}">{number}</td>' for number in row] for row in texts]
    return grid_html(part, corner, rows, columns, cells)


def map_html(view: TensorView, parts: Matrices) -> str:
    """Matrices as heat maps on one scale, with its range below."""
    scale = make_scale(parts.matrices, STYLE, view.is_signed)
    colors = color_map(SIGNED if scale.low < 0 < scale.high else UNSIGNED)
    maps = "".join(draw_map(part, parts.corner, scale, colors) for part in parts.matrices)
    stops = ",".join([*colors[:: len(colors) // 8], colors[-1]])
    box = f"display:inline-block;width:128px;height:10px;background:linear-gradient(to right,{stops})"
    return f'{maps}<div><small>{scale.low:.4g} <span style="{box}"></span> {scale.high:.4g}</small></div>'


def draw_map(part: Matrix, corner: str, scale: Scale, colors: Sequence[str]) -> str:
    """A matrix as a table of coloured cells, with numbers if there is room."""
    height, width = part.values.shape
    rows, columns = elide(height, MAX_CELLS), elide(width, MAX_CELLS)
    values = part.values[np.ix_(rows.indices(), columns.indices())]
    numbers = number_format(values, 2) if width <= NUMBERED else ""
    levels, fills = scale.levels(part, rows, columns), [*colors, LIGHT.masked, NOT_FINITE_COLOR]
    cells = [
        [cell_html(format(value, numbers) if numbers else "", fills[level]) for value, level in zip(*pair, strict=True)]
        for pair in zip(to_python(values), levels, strict=True)
    ]
    return grid_html(part, corner, rows, columns, cells)


def cell_html(number: str, fill: str) -> str:
    """A coloured cell, its number black or white, whichever is legible."""
    if not number:
        return f'<td style="background:{fill};min-width:9px;height:12px;padding:0;border:0"></td>'
    return f'<td style="{CELL};background:{fill};color:{contrasting_ink(fill)}">{number}</td>'


def grid_html(part: Matrix, corner: str, rows: Elision, columns: Elision, cells: list[list[str]]) -> str:
    """The cells of a matrix as a table with labels, hidden ones counted."""
    is_narrow = len(part.columns) > NUMBERED and "min-width" in cells[0][0]
    turn = ";writing-mode:vertical-rl;padding:2px 0" if is_narrow else ";text-align:right"
    heads = [f'<th style="{HEAD}{turn}">{escape_html(name)}</th>' for name in columns.pick(part.columns)]
    gap = f'<td style="{CELL}" title="{columns.hidden} more">…</td>'
    above = "".join(columns.with_gap(heads, gap))
    lines = ["".join(columns.with_gap(row, gap)) for row in cells]
    if part.rows:
        above = f'<th style="{HEAD}">{escape_html(corner)}</th>{above}'
        names = rows.pick(part.rows)
        lines = [f'<th style="{HEAD}">{escape_html(name)}</th>{line}' for name, line in zip(names, lines, strict=True)]
    lines = rows.with_gap(lines, f'<td style="{CELL}">… {rows.hidden} more</td>')
    title = f"<caption>{escape_html(part.title)}</caption>" if part.title else ""
    return f"{TABLE}{title}<tr>{above}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def rows_html(rows: Sequence[Sequence[str]], left: Sequence[int], lines: Sequence[str] = ()) -> str:
    """Rows of texts as a table, headings first, with lines below it.

    left  the columns that are left-aligned

    >>> rows_html([], (), ["a < b"])
    '<div><small>a &lt; b</small></div>'
    """
    body = ""
    for at, row in enumerate(rows):
        tag, style = ("td", f"{HEAD};font-weight:400") if at else ("th", HEAD)
        styles = [style if column in left else f"{style};text-align:right" for column in range(len(row))]
        cells = (f'<{tag} style="{one}">{escape_html(text)}</{tag}>' for one, text in zip(styles, row, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    table = f"{TABLE}{body}</table>" if rows else ""
    return table + "".join(f"<div><small>{escape_html(line)}</small></div>" for line in lines)


def blocks_html(blocks: Sequence[Block]) -> str:
    """Blocks as HTML, those that a figure has."""
    return "".join(HTML[type(block)](block) for block in drawn_in(blocks, "figure"))


def text_html(lines: str) -> str:
    """A text as HTML in a font of one width.

    >>> text_html("a < b")
    '<pre style="line-height:1.2">a &lt; b</pre>'
    """
    return f'<pre style="line-height:1.2">{html.escape(escaped(lines, chr(10)))}</pre>'


def escape_html(content: str) -> str:
    """Escape a text for an element, control characters included."""
    return html.escape(escaped(content))


HTML: Mapping[type, Callable[[Any], str]] = {
    TensorView: lambda block: tensor_html(block, is_map=False),
    Map: lambda block: tensor_html(block.view, is_map=True),
    TextTable: lambda block: rows_html([block.heads, *block.rows] if block.heads else [], block.left),
    Text: lambda block: text_html(block.text),
    Note: lambda block: rows_html([], (), [block.line]),
}
