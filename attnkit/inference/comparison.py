"""Compare two tensors number by number: how many differ, the largest difference and its place, cosine similarity."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.record import Array, Record, row_labels, shared_labels


@dataclass(frozen=True)
class Element:
    """One element of two tensors: its index, its place by axes and labels, by labels alone, and both numbers."""

    index: tuple[int, ...]
    place: str
    short_place: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"[{self.place}]: {format_pair(self.a, self.b)}"


@dataclass(frozen=True)
class Comparison:
    """How the tensors of one name differ.

    differing  how many of `size` numbers differ: all of them where the tensors cannot be compared number by number
    max_abs    the largest |a − b|; NaN where one number is NaN and the other is not
    max_rel    the largest |a − b| / |b| where b is not 0; NaN where b is 0 wherever a and b are not equal
    cosine     of both tensors as vectors, without the NaN and infinities that they share
    problem    why they cannot be compared, "" where they can
    first      the first element that differs; largest: the one with the largest |a − b|; None where none differs
    """

    name: str
    differing: int
    size: int
    max_abs: float = np.nan
    max_rel: float = np.nan
    cosine: float = np.nan
    problem: str = ""
    first: Element | None = None
    largest: Element | None = None


def compare_tensors(a: Record, b: Record, name: str, rtol: float, atol: float) -> Comparison:
    """Compare the tensors of one name number by number, as far as both records have them in one shape."""
    if name not in a or name not in b:
        side, x = ("A", a[name]) if name in a else ("B", b[name])
        return Comparison(name, max(x.size, 1), x.size, problem=f"only in {side}")
    x, y = a[name], b[name]
    if x.shape != y.shape:
        size = max(x.size, y.size)
        return Comparison(name, max(size, 1), size, problem=f"shape {x.shape} in A, {y.shape} in B")
    left, right, difference = subtract(x, y)
    with np.errstate(all="ignore"):
        equal = (x == y).ravel() | (np.isnan(left) & np.isnan(right))
        absolute = np.where(equal, 0.0, np.abs(difference))
        near = (absolute <= atol + rtol * np.abs(right)) & np.isfinite(left) & np.isfinite(right)
        differing = ~equal & ~near if rtol or atol else ~equal
    first, largest = find_elements(a, b, name, absolute, differing) if differing.any() else (None, None)
    return Comparison(
        name,
        int(differing.sum()),
        x.size,
        float(absolute.max(initial=0)),
        max_relative(absolute, right, equal),
        compute_cosine(left, right, equal),
        first=first,
        largest=largest,
    )


def subtract(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return two tensors of one shape as vectors of a type that holds both, and their difference, rounded once."""
    is_integer = x.dtype.kind in "iu" and y.dtype.kind in "iu"  # a long double may hold every 64-bit integer
    wide: Any = np.longdouble if is_integer else np.float64
    left, right = (array.astype(wide).ravel() for array in (x, y))
    with np.errstate(all="ignore"):
        return left, right, subtract_integers(x, y).ravel() if is_integer else left - right


def max_relative(absolute: Array, right: Array, equal: Array) -> float:
    """Return the largest |a − b| / |b| of the numbers that are not equal: (N), (N), (N) -> scalar.

    Where b is 0 it is not defined; NaN where it is defined for none.

    >>> x, y = np.array([1.0, 3.0, 5.0]), np.array([0.0, 2.0, 5.0])
    >>> max_relative(np.abs(x - y), y, x == y), max_relative(np.array([1.0]), np.array([0.0]), np.array([False]))
    (0.5, nan)
    """
    if equal.all():
        return 0.0
    with np.errstate(all="ignore"):
        relative = absolute / np.abs(right)
    is_defined = ~equal & (right != 0) & ~np.isnan(relative)
    return float(relative[is_defined].max()) if is_defined.any() else np.nan


def compute_cosine(left: Array, right: Array, equal: Array) -> float:
    """Return the cosine similarity of two vectors without the NaN and infinities that they share; 1 if all is equal."""
    shared = equal & ~np.isfinite(left)
    with np.errstate(all="ignore"):
        return 1.0 if equal.all() else cosine_similarity(left[~shared], right[~shared])


def find_elements(a: Record, b: Record, name: str, absolute: Array, differing: Array) -> tuple[Element, Element]:
    """Return the first element that differs, and the one with the largest difference, by the labels of A, or else of B.

    absolute  differences of two tensors (N); differing (N) whether they are outside the tolerance
    """
    x, y = a[name], b[name]
    labelled = a if has_labels(a, name) else b

    def element(rank: Array) -> Element:
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(rank)), x.shape))
        return Element(index, *name_place(labelled, name, index), x[index], y[index])

    return element(differing), element(rank_differences(absolute, differing))


def name_place(labelled: Record, name: str, index: tuple[int, ...]) -> tuple[str, str]:
    """Return the place of an element in words: by axes and labels, and by labels alone.

    >>> name_place(Record({"x": np.zeros((2, 2))}, {"token": ["The", "cat"]}), "x", (1, 0))
    ("token 1 'cat', model 0", "1 'cat', 0")
    """
    parts = label_index(labelled, name, index)
    return ", ".join(" ".join(part) for part in parts), ", ".join(part for _, part in parts)


def has_labels(record: Record, name: str) -> bool:
    """Return whether an axis of a tensor has labels.

    >>> has_labels(Record({"x": np.zeros((1, 2))}, {"token": ["a"]}), "x"), has_labels(Record({"x": np.zeros(1)}), "x")
    (True, False)
    """
    return any(record.labels_of(name, dimension) for dimension in range(record[name].ndim))


def subtract_integers(x: Array, y: Array) -> Array:
    """Subtract integers of any width, rounding once: in two halves, since a long double may be no more than a double.

    >>> print(subtract_integers(np.array([2**63 - 1]), np.array([2**63 - 3], np.uint64)))
    [2.]
    """
    wide = [array if array.dtype == np.uint64 else array.astype(np.int64) for array in (x, y)]
    (high_x, low_x), (high_y, low_y) = (
        ((array >> 32).astype(np.longdouble), (array & 0xFFFFFFFF).astype(np.longdouble)) for array in wide
    )
    difference: Array = (high_x - high_y) * 2.0**32 + (low_x - low_y)
    return difference


def cosine_similarity(left: Array, right: Array) -> float:
    """Return the cosine similarity of two vectors: (N), (N) -> scalar; NaN where one is not finite, 0 where one is 0.

    >>> cosine_similarity(np.array([3.0, 4.0]), np.array([6.0, 8.0]))
    1.0
    >>> cosine_similarity(np.array([1e300]), np.array([-1e300]))
    -1.0
    """
    scaled = [x / max(np.abs(x).max(initial=0), np.finfo(x.dtype).tiny) for x in (left, right)]
    norms = np.linalg.norm(scaled[0]) * np.linalg.norm(scaled[1])
    return float(np.clip(scaled[0] @ scaled[1] / norms, -1, 1)) if norms else 0.0


def rank_differences(differences: Array, differing: Array) -> Array:
    """Return the differences for argmax: -1 within the tolerance, infinity where one number is NaN."""
    return np.where(differing, np.where(np.isnan(differences), np.inf, differences), -1)


def format_pair(x: Any, y: Any) -> str:
    """Write two numbers that differ in the fewest digits that show the difference.

    >>> format_pair(np.float16(0.1), np.float64(0.1))
    '0.0999755859375 and 0.1'
    """
    short, full = f"{x!s} and {y!s}", f"{float(x)!r} and {float(y)!r}"
    return full if str(x) == str(y) else short


def label_index(record: Record, name: str, index: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return the axes of a tensor with the indices of an element, and their labels.

    >>> label_index(Record({"x": np.zeros((2, 3))}, labels={"token": ["The", "cat"]}), "x", (1, 2))
    [('token', "1 'cat'"), ('model', '2')]
    """
    axes, parts = record.axes_of(name), []
    for dimension, at in enumerate(index):
        labels = record.labels_of(name, dimension)
        row = row_labels(labels, index[axes.index("batch")]) if "batch" in axes else shared_labels(labels)
        parts.append((axes[dimension], f"{at} {row[at]!r}" if at < len(row) else str(at)))
    return parts
