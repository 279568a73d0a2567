"""An array of any rank as a row of matrices with labels, and which of their rows and columns to show."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attnkit.display.style import Style
from attnkit.display.text import escape, glyphs
from attnkit.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
Labels = list[str] | list[list[str]]
T = TypeVar("T")


class Matrix(NamedTuple):
    """One matrix of an array: `rows` is empty where the array has no axis for them."""

    title: str
    values: Array  # (rows, columns)
    masked: Array  # (rows, columns), True = may not attend
    rows: list[str]
    columns: list[str]


class Matrices(NamedTuple):
    """The matrices to show, and a line about those that are not ("" for none)."""

    shown: list[Matrix]
    hidden: str
    corner: str


def to_matrices(
    array: Array,
    axes: Sequence[str],
    labels: Sequence[Labels | None],
    look: Style,
    mask: Array | None,
    most: int,
) -> Matrices:
    """The array (..., rows, columns) cut along its leading axes into at most `most` matrices.

    Raises DataError where the mask does not broadcast to the array.
    """
    masked = _masked(array, mask)
    inner = _matrix_rank(array, axes, labels)
    leading = array.shape[: array.ndim - inner]
    shown = []
    for index in islice(np.ndindex(leading), most):
        batch = index[axes.index("batch")] if "batch" in axes[: len(leading)] else None
        names = [_names(labels[i], size, batch) for i, size in enumerate(array.shape)]
        parts = [f"{escape(axes[i], look)} {escape(names[i][at], look)}" for i, at in enumerate(index)]
        matrix, hidden = np.atleast_2d(array[index]), np.atleast_2d(masked[index])
        rows = names[-2] if inner == 2 else []
        columns = names[-1] if inner else ["0"]
        shown.append(Matrix(glyphs(look).join.join(parts), matrix, hidden, rows, columns))
    corner = "\\".join(escape(axis, look) for axis in axes[-2:]) if inner == 2 else ""
    return Matrices(shown, _left_out(leading, axes, len(shown), look), corner)


def _masked(array: Array, mask: Array | None) -> Array:
    if mask is None:
        return np.broadcast_to(np.False_, array.shape)
    try:
        masked: Array = np.broadcast_to(~mask.astype(bool), array.shape)
    except ValueError:
        raise DataError(f"mask {mask.shape} does not broadcast to the tensor {array.shape}") from None
    return masked


def _matrix_rank(array: Array, axes: Sequence[str], labels: Sequence[Labels | None]) -> int:
    """2, or 1 where each batch row has column labels of its own (the ids of two texts)."""
    by_batch = array.ndim > 1 and axes[-2] == "batch" and _nested(labels[-1])
    return 1 if by_batch else min(array.ndim, 2)


def _nested(labels: Labels | None) -> bool:
    return bool(labels) and isinstance(labels[0], list)  # type: ignore[index]


def _names(labels: Labels | None, size: int, batch: int | None) -> list[str]:
    """The labels of one dimension, its indices where there are none that fit."""
    if labels and _nested(labels):
        row = 0 if len(labels) == 1 else batch
        labels = labels[row] if row is not None and row < len(labels) else None  # type: ignore[assignment]
    return [str(one) for one in labels] if labels and len(labels) == size else [str(i) for i in range(size)]


def _left_out(leading: tuple[int, ...], axes: Sequence[str], shown: int, look: Style) -> str:
    more = int(np.prod(leading)) - shown
    if more <= 0:
        return ""
    kind = "matrices" if len(leading) > 1 else plural(escape(axes[0], look))
    return f"{glyphs(look).ellipsis} {more} more {kind}"


def plural(noun: str) -> str:
    """The plural of an axis name.

    >>> plural("head"), plural("batch"), plural("query")
    ('heads', 'batches', 'queries')
    """
    if noun.endswith(("ch", "s", "x")):
        return noun + "es"
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


class Elision(NamedTuple):
    """The indices of an axis that are shown: `head` from its start, `tail` from its end."""

    head: int
    tail: int
    size: int

    @property
    def hidden(self) -> int:
        """How many are not shown."""
        return self.size - self.head - self.tail

    def of(self, items: Sequence[T]) -> list[T]:
        """The items that are shown."""
        return [*items[: self.head], *items[self.size - self.tail :]]

    def where(self) -> Array:
        """The indices that are shown."""
        return np.concatenate([np.arange(self.head), np.arange(self.size - self.tail, self.size)])

    def gap(self, shown: Sequence[T], mark: T) -> list[T]:
        """The shown items with the mark where others are hidden."""
        return [*shown[: self.head], mark, *shown[self.head :]] if self.hidden else list(shown)


def elide(size: int, most: int) -> Elision:
    """Two thirds of `most` from the start and the rest from the end, all of them where they fit.

    >>> elide(100, 6), elide(5, 6)
    (Elision(head=4, tail=2, size=100), Elision(head=5, tail=0, size=5))
    """
    if size <= most:
        return Elision(size, 0, size)
    tail = most // 3
    return Elision(most - tail, tail, size)


def shape_text(array: Array, axes: Sequence[str], look: Style) -> str:
    """The shape with its axis names: `(token 3, model 4)`."""
    sizes = zip(axes, array.shape, strict=True)
    return "(" + ", ".join(f"{escape(axis, look)} {size}" for axis, size in sizes) + ")"


def describe_tensor(array: Array, axes: Sequence[str], look: Style) -> str:
    """Shape and dtype, as the first line of a display says them."""
    return f"{shape_text(array, axes, look) if array.ndim else 'scalar'} {array.dtype.name}"
