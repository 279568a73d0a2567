"""Tables for other programs and documents: CSV, TSV and Markdown."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnkit.display.slicing import TensorView
from attnkit.errors import escaped
from attnkit.records import Labels, row_labels, shared_labels

NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "True": "true", "False": "false"}
SEPARATORS = {"csv": ",", "tsv": "\t"}
NUMERIC = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf(inity)?|true|false", re.IGNORECASE)
FORMULA_STARTS = ("=", "+", "-", "@")  # a text that begins so is a formula to a spreadsheet


class Cells(NamedTuple):
    """A table: headings, and rows of texts, numbers and empty cells (None)."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]


def tensor_cells(view: TensorView, name: str) -> Cells:
    """A tensor as a table: a matrix, a column, or a row for each element.

    A first dimension of size 1, such as that of a single head, is left out.

    >>> matrix = TensorView("x", np.eye(2), ("token", "model"), (["The", "cat"], None))
    >>> print(format_cells(tensor_cells(matrix, "x"), "csv"), end="")
    token,0,1
    The,1.0,0.0
    cat,0.0,1.0
    >>> maps = TensorView("p", np.ones((2, 1, 1)), ("head", "query", "key"), (None, None, ["a"]))
    >>> print(format_cells(tensor_cells(maps, "p"), "csv"), end="")
    head,query,key,key_label,p
    0,0,0,a,1.0
    1,0,0,a,1.0
    """
    array, is_nested = view.array, any(isinstance(row, list) for labels in view.labels for row in labels or ())
    if array.ndim > 2 and len(array) == 1 and not is_nested:
        return tensor_cells(replace(view, array=array[0], axes=view.axes[1:], labels=view.labels[1:]), name)
    return _element_rows(view, name) if array.ndim > 2 or is_nested else _matrix_rows(view, name)


def _matrix_rows(view: TensorView, name: str) -> Cells:
    array = view.array
    names = [shared_labels(labels) for labels in view.labels]
    if array.ndim == 0:
        return Cells([name], [[array[()]]])
    stubs: Sequence[Any] = names[0] or range(len(array))
    heads = [name] if array.ndim == 1 else names[1] or [str(at) for at in range(array.shape[1])]
    values = array.reshape(len(array), len(heads))
    return Cells([view.axes[0], *heads], [[stub, *row] for stub, row in zip(stubs, values, strict=True)])


def _element_rows(view: TensorView, name: str) -> Cells:
    heads = []
    for axis, labels in zip(view.axes, view.labels, strict=True):
        heads += [axis, f"{axis}_label"] if labels else [axis]
    batch = view.axes.index("batch") if "batch" in view.axes else None
    rows = []
    for index in itertools.product(*map(range, view.array.shape)):
        row: list[Any] = []
        for at, labels in zip(index, view.labels, strict=True):
            row += [at, _label_at(labels, at, 0 if batch is None else index[batch])] if labels else [at]
        rows.append([*row, view.array[index]])
    return Cells([*heads, name], rows)


def _label_at(labels: Labels, at: int, row: int) -> str:
    own = row_labels(labels, row)
    return own[at] if at < len(own) else ""


def format_cells(cells: Cells, format: str, precision: int | None = None) -> str:
    r"""A table as text, ending in a line end: csv, tsv or markdown.

    precision  decimals of the floats; None: the shortest text that reads back to the same number

    A text that a spreadsheet would take for a formula or a number is quoted; a Markdown text shows its own characters.

    >>> cells = Cells(["token", "p"], [["=1|a", 0.1], ["b", np.float32(np.nan)]])
    >>> format_cells(cells, "csv"), format_cells(cells, "tsv", 2)
    ('token,p\n"=1|a",0.1\nb,NaN\n', 'token\tp\n"=1|a"\t0.10\nb\tNaN\n')
    >>> print(format_cells(cells, "markdown"), end="")
    | token | p |
    | --- | ---: |
    | =1\|a | 0.1 |
    | b | NaN |
    """
    if format == "markdown":
        return "".join(f"| {' | '.join(line)} |\n" for line in _markdown_lines(cells, precision))
    separator = SEPARATORS[format]
    heads = [_quote(head, separator) for head in cells.heads]
    rows = (
        [_quote_label(cell, separator) if isinstance(cell, str) else _format_number(cell, precision) for cell in row]
        for row in cells.rows
    )
    return "".join(separator.join(line) + "\n" for line in itertools.chain([heads], rows))


def _markdown_lines(cells: Cells, precision: int | None) -> Iterator[list[str]]:
    """Yield the cells of each line of a Markdown table: headings, alignments, rows."""
    first = cells.rows[0] if cells.rows else cells.heads
    yield [_escape_markdown(head) for head in cells.heads]
    yield ["---" if isinstance(cell, str | None) else "---:" for cell in first]
    for row in cells.rows:
        yield [_escape_markdown(cell) if isinstance(cell, str) else _format_number(cell, precision) for cell in row]


def _format_number(value: Any, precision: int | None) -> str:
    if value is None:
        return ""
    if precision is not None and isinstance(value, float | np.floating):
        value = f"{float(value):.{precision}f}"
    text = str(value)
    return NON_FINITE.get(text, text)


def _quote(text: str, separator: str) -> str:
    needs_quotes = re.search(f'[{separator}\t"\r\n]', text) or text.strip() != text or text.startswith(FORMULA_STARTS)
    return '"' + text.replace('"', '""') + '"' if needs_quotes else text


def _quote_label(text: str, separator: str) -> str:
    return f'"{text}"' if NUMERIC.fullmatch(text) else _quote(text, separator)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*\[\]<>|~&]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", escaped(text))
