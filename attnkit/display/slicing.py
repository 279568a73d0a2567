"""Cut an array into matrices with labels, and choose the part to show."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from attnkit.display.numbers import CellFormat, are_probabilities, cell_format, to_python
from attnkit.display.style import DEFAULT_STYLE, Style
from attnkit.display.text import escape, glyphs, heading, label_text, numbered
from attnkit.errors import DataError, UsageError
from attnkit.records import Labels, row_labels

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")
UNNAMED = re.compile("axis[0-9]+")  # the number of an axis without a name


@dataclass(frozen=True, eq=False)
class TensorView:
    """A tensor to draw, and how.

    array    (..., rows, columns)
    axes     one name a dimension
    labels   one list a dimension, None for indices; columns may have one list a batch row
    formula  how the tensor was computed, "" for none
    mask     broadcastable to the array, True = may attend; None where nothing is masked
    is_signed  whether colours are even about 0, whatever the signs of the numbers
    words    labels that the values are indices of, or one such list a batch row; None where they are numbers
    """

    title: str
    array: Array
    axes: Sequence[str]
    labels: Sequence[Labels | None]
    style: Style = DEFAULT_STYLE
    formula: str = ""
    mask: Array | None = None
    is_signed: bool = False
    words: Labels | None = None

    def heading(self) -> list[str]:
        """The lines above the numbers: title, shape, dtype and formula."""
        return heading(self.title, self.description(), self.formula, self.style)

    def description(self) -> str:
        """The shape with its axis names, and the dtype."""
        shape = format_shape(self.array, self.axes, self.style) if self.array.ndim else "scalar"
        return f"{shape} {self.array.dtype.name}"


class Matrix(NamedTuple):
    """One matrix of an array; `rows` is empty where the array has no axis for them."""

    title: str
    values: Array  # (rows, columns)
    masked: Array  # (rows, columns), True = may not attend
    rows: Sequence[str]
    columns: Sequence[str]
    words: list[str]  # the labels that the values are indices of, [] where they are numbers

    def finite_values(self) -> Array:
        """The numbers that are finite and not masked, as one row."""
        values: Array = self.values[~self.masked].astype(np.float64)
        return values[np.isfinite(values)]

    def texts(self, rows: "Elision", columns: "Elision", mark: str, write: Callable[[Any], str]) -> list[list[str]]:
        """The cells that are shown as texts, the mark in place of the masked."""
        at = np.ix_(rows.indices(), columns.indices())
        return [
            [mark if is_masked else write(value) for value, is_masked in zip(*pair, strict=True)]
            for pair in zip(to_python(self.values[at]), self.masked[at].tolist(), strict=True)
        ]

    def format_value(self, value: Any, numbers: CellFormat, style: Style = DEFAULT_STYLE) -> str:
        """Format a value, by the word that it is the index of.

        >>> matrix = Matrix("", np.zeros((1, 1)), np.zeros((1, 1)), [], [], ["a", "b", "a"])
        >>> [matrix.format_value(at, CellFormat("d")) for at in (0, 1, -1)]
        ['a 0', 'b', '-1']
        """
        if not 0 <= value < len(self.words):
            return numbers.text(value)
        word = self.words[value]
        return numbered(word, value, style) if self.words.count(word) > 1 else label_text(word, style)


class Matrices(NamedTuple):
    """The matrices to show, a count of hidden ones, and the corner of tables."""

    matrices: list[Matrix]
    hidden: str
    corner: str


def to_matrices(view: TensorView, limit: int) -> Matrices:
    """Cut an array (..., rows, columns) into at most `limit` matrices.

    Raises DataError if the mask does not broadcast to the array.

    >>> parts = to_matrices(TensorView("w", np.zeros((3, 2, 2)), ("head", "query", "key"), [None] * 3), 2)
    >>> [matrix.title for matrix in parts.matrices], parts.hidden, parts.corner
    (['head 0', 'head 1'], '… 1 more heads', 'query\\\\key')
    """
    array, axes, style = view.array, view.axes, view.style
    try:
        masked = np.broadcast_to(np.False_ if view.mask is None else ~view.mask.astype(bool), array.shape)
    except ValueError:
        shape = np.asarray(view.mask).shape
        raise DataError(f"mask {shape} does not broadcast to the tensor {array.shape}") from None
    has_own_columns = array.ndim > 1 and axes[-2] == "batch" and _is_nested(view.labels[-1])
    inner = 1 if has_own_columns else min(array.ndim, 2)
    leading = array.shape[: array.ndim - inner]
    matrices = []
    if style.heads and len(style.heads) > limit:  # all of them
        limit = int(np.prod(leading))
    for index in islice(_shown_indices(leading, axes, style.heads), limit):
        batch = index[axes.index("batch")] if "batch" in axes[: len(leading)] else None
        names = [_dimension_labels(view, i, batch) for i in range(array.ndim)]
        parts = [f"{escape(axes[i], style)} {escape(names[i][at], style)}" for i, at in enumerate(index)]
        matrices.append(
            Matrix(
                title=glyphs(style).separator.join(parts),
                values=np.atleast_2d(array[index]),
                masked=np.atleast_2d(masked[index]),
                rows=names[-2] if inner == 2 else [],
                columns=names[-1] if inner else ["0"],
                words=row_labels(view.words, batch or 0) if array.dtype.kind in "iu" else [],
            )
        )
    corner = "\\".join(escape(axis, style) for axis in axes[-2:] if not is_reduced(axis)) if inner == 2 else ""
    count, hidden = int(np.prod(leading)) - len(matrices), ""
    if count > 0:
        kind = "matrices" if len(leading) > 1 else pluralize(escape(axes[0], style))
        remedy = "; --show-head N or all shows them" if style.heads and "head" in axes else ""
        hidden = f"{glyphs(style).ellipsis} {count} more {kind}{remedy}"
    return Matrices(matrices, hidden, corner)


def _shown_indices(leading: tuple[int, ...], axes: Sequence[str], heads: range | None) -> Iterator[tuple[int, ...]]:
    """Yield the indices of leading axes, or of some heads.

    >>> list(_shown_indices((2, 3), ("batch", "head", "query", "key"), range(2, 3)))
    [(0, 2), (1, 2)]
    """
    if heads is None or "head" not in axes[: len(leading)]:
        return np.ndindex(leading)
    at = axes.index("head")
    if heads.start >= leading[at]:
        raise UsageError(f"expected a head from 0 to {leading[at] - 1}, got {heads.start}", "--show-head")
    return (index for index in np.ndindex(leading) if index[at] in heads)


def _is_nested(labels: Labels | None) -> bool:
    return bool(labels) and isinstance(labels[0], list)  # type: ignore[index]


class IndexLabels(Sequence[str]):
    """Index labels of a dimension that has none; few are shown and written.

    >>> IndexLabels(range(10**12))[-1], [*IndexLabels(range(10**12))[:2]]
    ('999999999999', ['0', '1'])
    """

    def __init__(self, indices: range) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> "IndexLabels": ...

    def __getitem__(self, at: int | slice) -> "str | IndexLabels":
        return IndexLabels(self.indices[at]) if isinstance(at, slice) else str(self.indices[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexLabels) and self.indices == other.indices

    def __hash__(self) -> int:
        return hash(self.indices)


def _dimension_labels(view: TensorView, dimension: int, batch: int | None) -> Sequence[str]:
    """The labels of one dimension. A reduced axis is labelled by its name."""
    size, axis, labels = view.array.shape[dimension], view.axes[dimension], view.labels[dimension]
    if size == 1 and is_reduced(axis):
        return [axis if dimension < view.array.ndim - 1 else view.title]
    if labels and _is_nested(labels):
        row = 0 if len(labels) == 1 else batch
        labels = labels[row] if row is not None and row < len(labels) else None  # type: ignore[assignment]
    return [str(label) for label in labels] if labels and len(labels) == size else IndexLabels(range(size))


def pluralize(noun: str) -> str:
    """The plural of an axis name.

    >>> pluralize("head"), pluralize("batch"), pluralize("query")
    ('heads', 'batches', 'queries')
    """
    if noun.endswith(("ch", "s", "x")):
        return noun + "es"
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


class Elision(NamedTuple):
    """The indices of an axis that are shown: `head` first and `tail` last ones."""

    head: int
    tail: int
    size: int

    @property
    def hidden(self) -> int:
        return self.size - self.head - self.tail

    def pick(self, items: Sequence[T]) -> list[T]:
        return [*items[: self.head], *items[self.size - self.tail :]]

    def indices(self) -> Array:
        return np.concatenate([np.arange(self.head), np.arange(self.size - self.tail, self.size)])

    def with_gap(self, visible: Sequence[T], mark: T) -> list[T]:
        """Insert the mark into the visible items where others are hidden."""
        return [*visible[: self.head], mark, *visible[self.head :]] if self.hidden else list(visible)


def elide(size: int, limit: int) -> Elision:
    """Keep two thirds of `limit` indices at the start and a third at the end.

    >>> elide(100, 6), elide(5, 6)
    (Elision(head=4, tail=2, size=100), Elision(head=5, tail=0, size=5))
    """
    if size <= limit:
        return Elision(size, 0, size)
    tail = limit // 3
    return Elision(limit - tail, tail, size)


def elide_rows(size: int, limit: int) -> Elision:
    """Keep about `limit` rows: all where only one would be hidden, by a line as long.

    >>> elide_rows(100, 6), elide_rows(7, 6)
    (Elision(head=4, tail=2, size=100), Elision(head=7, tail=0, size=7))
    """
    return elide(size, size if size == limit + 1 else limit)


def shared_format(parts: Sequence[Matrix], rows: Elision, columns: Elision, precision: int) -> CellFormat:
    """Choose one format for the numbers of all matrices that are shown."""
    at = np.ix_(rows.indices(), columns.indices())
    visible = np.concatenate([part.values[at][~part.masked[at]] for part in parts])
    return cell_format(visible, precision, all(are_probabilities(part.values[rows.indices()]) for part in parts))


def format_shape(array: Array, axes: Sequence[str], style: Style) -> str:
    """The shape with its axis names: `(token 3, model 4)`."""
    texts = [
        str(size) if (is_reduced(axis) and size == 1) or UNNAMED.fullmatch(axis) else f"{escape(axis, style)} {size}"
        for axis, size in zip(axes, array.shape, strict=True)
    ]
    return f"({', '.join(texts)})"


def is_reduced(axis: str) -> bool:
    """Whether an axis of size 1 stands for a whole axis, such as a mean.

    >>> is_reduced("over model"), is_reduced("all queries"), is_reduced("query")
    (True, True, False)
    """
    return axis.startswith(("over ", "all "))
