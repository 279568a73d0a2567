"""What a figure shows: sections of tables, texts and drawings; and how it looks."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from attnkit.display.colors import Theme
from attnkit.display.figures.canvas import Drawing
from attnkit.display.numbers import CellFormat, cell_format, to_python
from attnkit.display.slicing import (
    Elision,
    Matrix,
    TensorView,
    elide,
    elide_rows,
    format_shape,
    shared_format,
    to_matrices,
)
from attnkit.display.style import DEFAULT_STYLE
from attnkit.display.summaries import Candidates, count_tensors, ordinal
from attnkit.display.text import clip, escape
from attnkit.errors import format_bytes
from attnkit.records import Array

MAX_MATRICES = 16
MAX_ROWS, MAX_COLUMNS = 60, 16
MAX_LABEL = 24  # characters
MASKED_MARK = "·"
PRECISION = 4


class FigureOptions(NamedTuple):
    """How to draw a figure.

    theme      light, dark or transparent; None: light, or in HTML whichever the browser prefers
    title      replaces the name and the formula of the tensor; "" keeps them
    numbers    whether cells show their numbers; None: if they fit
    precision  decimals; None: 2 in cells, 4 in tables
    range      (low, high) of the colours; None: one range for all maps; "each": a range for each map
    colors     the name of a colour map; None: chosen by the signs of the numbers
    """

    theme: Theme | None = None
    title: str = ""
    numbers: bool | None = None
    precision: int | None = None
    range: tuple[float, float] | Literal["each"] | None = None
    colors: str | None = None


class Table(NamedTuple):
    """A table of texts, the headings in its first row.

    left  the columns that are left-aligned; the others are right-aligned
    """

    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    title: str = ""


Panel = Drawing | Table | str  # lines of text in a monospaced font


class Section(NamedTuple):
    """Panels below a title, a formula and a description, and above notes."""

    title: str
    panels: Sequence[Panel]
    formula: str = ""
    description: str = ""
    notes: Sequence[str] = ()


def tensor_section(view: TensorView, options: FigureOptions) -> Section:
    """A tensor as tables, one for each of its matrices.

    Rows and columns that do not fit are counted. Raises DataError if the mask does not broadcast.

    >>> import numpy as np
    >>> view = TensorView("x", np.eye(2), ("token", "model"), (["The", "cat"], None))
    >>> tensor_section(view, FigureOptions(precision=1)).panels[0].rows
    [['token \\\\ model', '0', '1'], ['The', '1.0', '0.0'], ['cat', '0.0', '1.0']]
    """
    array = view.array
    precision = PRECISION if options.precision is None else options.precision
    if array.size == 0:
        return Section(view.title, [], view.formula, f"{view.description()}, empty")
    if array.ndim == 0:
        text = cell_format(array, precision).text(to_python(array))
        return Section(view.title, [text], view.formula, view.description())
    parts = to_matrices(view, MAX_MATRICES)
    height, width = parts.matrices[0].values.shape
    rows, columns = elide_rows(height, MAX_ROWS), elide(width, MAX_COLUMNS)
    numbers = shared_format(parts.matrices, rows, columns, precision)
    corner = " \\ ".join(escape(axis, DEFAULT_STYLE) for axis in view.axes[-2:])
    tables = [_table(one, corner, rows, columns, numbers) for one in parts.matrices]
    notes = [parts.hidden, f"{MASKED_MARK} masked" if any(one.masked.any() for one in parts.matrices) else ""]
    return Section(view.title, tables, view.formula, view.description(), [note for note in notes if note])


def _table(part: Matrix, corner: str, rows: Elision, columns: Elision, numbers: CellFormat) -> Table:
    cells = part.texts(rows, columns, MASKED_MARK, numbers.text)
    heads = columns.with_gap(_labels(columns.pick(part.columns)), f"… {columns.hidden} more")
    cells = [columns.with_gap(row, "…") for row in cells]
    if not part.rows:
        return Table([heads, *cells], left=(), title=part.title)
    body = [[stub, *row] for stub, row in zip(_labels(rows.pick(part.rows)), cells, strict=True)]
    gap = [f"… {rows.hidden} more", *["…"] * len(heads)]
    return Table([[corner, *heads], *rows.with_gap(body, gap)], title=part.title)


def _labels(labels: Sequence[str]) -> list[str]:
    return [clip(escape(label, DEFAULT_STYLE), MAX_LABEL, DEFAULT_STYLE) for label in labels]


def list_section(named: Mapping[str, tuple[Array, Sequence[str]]]) -> Section:
    """A table of tensors: their names, shapes, dtypes and bytes, and the totals.

    >>> import numpy as np
    >>> list_section({"x": (np.zeros((3, 4)), ("token", "model"))}).panels[0].rows[1]
    ['x', '(token 3, model 4)', 'float64', '96 B']
    """
    rows: list[Sequence[str]] = [("name", "shape", "dtype", "bytes")]
    for name, (array, axes) in named.items():
        shape = format_shape(array, axes, DEFAULT_STYLE)
        rows.append([escape(name, DEFAULT_STYLE), shape, array.dtype.name, format_bytes(array.nbytes)])
    return Section("", [Table(rows, left=(0, 1, 2))], notes=[count_tensors(named)])


def candidates_section(candidates: Candidates, precision: int) -> Section:
    """A table of the most probable tokens at each position, with their probabilities.

    >>> import numpy as np
    >>> candidates = Candidates(["The"], np.array([[1, 0]]), np.array([[0.7, 0.3]]), ["a", "cat"])
    >>> candidates_section(candidates, 2).panels[0].rows
    [['position', '1st', '', '2nd', ''], ['The', 'cat', '0.70', 'a', '0.30']]
    """
    names, ids, probs, vocabulary, title, formula, corner = candidates
    if ids.size == 0:
        return Section(title, [], formula, "empty")
    rows = [[corner, *(text for place in range(ids.shape[1]) for text in (ordinal(place + 1), ""))]]
    for name, tokens, chances in zip(names, ids.tolist(), to_python(probs), strict=True):
        words = [vocabulary[token] if vocabulary and token < len(vocabulary) else str(token) for token in tokens]
        pairs = zip(_labels(words), chances, strict=True)
        rows.append([*_labels([name]), *(text for word, chance in pairs for text in (word, f"{chance:.{precision}f}"))])
    return Section(title, [Table(rows, [0, *range(1, len(rows[0]), 2)])], formula)
