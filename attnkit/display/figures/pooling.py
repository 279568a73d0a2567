"""From matrices to the cells of a heat map: the range of the colours, and blocks of elements pooled into one cell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.display.figures.colors import LEVELS, color_levels
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.shapes import Array
from attnkit.display.slicing import Matrix
from attnkit.errors import counted

MASKED, NOT_FINITE = LEVELS, LEVELS + 1  # the levels of masked cells, and of NaN and infinity


class Cellular(NamedTuple):
    """One map: its title, and its cells after pooling.

    values  (rows, columns), 0 where a cell is masked or not finite
    levels  (rows, columns), one of LEVELS colours, MASKED or NOT_FINITE
    low     the low end of the range of the colours, `high` its other end
    """

    title: str
    values: Array
    levels: Array
    low: float
    high: float


def find_ranges(parts: Sequence[Matrix], options: FigureOptions) -> list[tuple[float, float]]:
    """Return the range of the colours of each map: what was requested, its own, or that of all maps together."""
    if isinstance(options.range, tuple):
        return [options.range] * len(parts)
    ends = [_finite_range(part) for part in parts]
    if options.range == "each":
        return [symmetric(*(one or (0.0, 0.0))) for one in ends]
    finite_ends = [one for one in ends if one]
    low, high = min((one[0] for one in finite_ends), default=0.0), max((one[1] for one in finite_ends), default=0.0)
    return [symmetric(low, high)] * len(parts)


def _finite_range(part: Matrix) -> tuple[float, float] | None:
    """Return the least and the greatest finite value that is not masked, None where there is none."""
    values = part.values[~part.masked].astype(np.float64)
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else None


def symmetric(low: float, high: float) -> tuple[float, float]:
    """Return the range, symmetric about 0 where it has both signs.

    >>> symmetric(-1.0, 2.0), symmetric(0.5, 2.0)
    ((-2.0, 2.0), (0.5, 2.0))
    """
    return (-max(-low, high), max(-low, high)) if low < 0 < high else (low, high)


def make_cells(part: Matrix, factors: tuple[int, int], ends: tuple[float, float]) -> Cellular:
    """Return the cells of a matrix, one for each block of `factors` rows and columns.

    A cell has the value of largest magnitude in its block; it is not finite where one value is NaN or infinity, and
    masked where all are masked (or -inf, as in scores).

    >>> x, none = np.array([[1.0, -3.0], [2.0, 0.0]]), np.zeros((2, 2), bool)
    >>> make_cells(Matrix("", x, none, [], [], []), (2, 2), (-3.0, 3.0))[1:3]
    (array([[-3.]]), array([[0]]))
    """
    values = part.values.astype(np.float64)
    is_masked = part.masked | (values == -np.inf)
    is_other = ~np.isfinite(values) & ~is_masked
    finite = np.where(is_masked | is_other, 0.0, values)
    if factors != (1, 1):
        blocks = _to_blocks(finite, factors, 0.0)
        peak = np.abs(blocks).argmax(axis=-1)[..., None]
        finite = np.take_along_axis(blocks, peak, axis=-1)[..., 0]
        is_masked = _to_blocks(is_masked, factors, True).all(axis=-1)
        is_other = _to_blocks(is_other, factors, False).any(axis=-1)
    levels = np.where(is_masked, MASKED, np.where(is_other, NOT_FINITE, color_levels(finite, *ends)))
    return Cellular(part.title, finite, levels, *ends)


def _to_blocks(values: Array, factors: tuple[int, int], fill: float) -> Array:
    """Return the blocks of a matrix: (rows, columns) -> (cells down, cells across, elements of a block)."""
    (height, width), (down, across) = values.shape, factors
    padded = np.pad(values, ((0, -height % down), (0, -width % across)), constant_values=fill)
    rows, columns = padded.shape[0] // down, padded.shape[1] // across
    return padded.reshape(rows, down, columns, across).swapaxes(1, 2).reshape(rows, columns, down * across)


def outside_note(parts: Sequence[Matrix], options: FigureOptions) -> str:
    """Return the note that counts the finite numbers, not masked, outside of the requested range; "" for none."""
    if not isinstance(options.range, tuple):
        return ""
    low, high = options.range
    count = 0
    for part in parts:
        values = part.values[~part.masked].astype(np.float64)
        count += int(((values < low) | (values > high))[np.isfinite(values)].sum())
    return f"{counted(count, 'number')} outside of the range, drawn at its end" if count else ""
