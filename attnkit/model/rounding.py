"""Rounding: how far it may move a number, and whether arrays differ by more.

Noise is measured where a computation can run again: once in float64, once in its own dtype, and with each result
rounded to either side at random. The differences, times MARGIN, are what rounding explains. Of arrays alone the noise
is derived: from their dtype, the depth of a sum, and the largest number of each row.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.model.dtypes import LARGEST, Array, is_float, quiet, rounded

MARGIN = 8.0  # by which rounding in another order may exceed the rounding that was measured
ULPS = 64  # of the largest number of a row: what two implementations of one node may differ by
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "fp8-e4m3": 2.0**-3}
DEEPEST = 4096  # terms of a sum from which on its rounding is taken to grow no more
SYSTEMATIC = 4.0  # units in the last place from which on a common factor or offset is no rounding
MANY = 16  # numbers from which on a line through them is no chance
EXPLAINED = 0.1  # the share of a difference that such a factor or offset leaves at most

IDENTICAL, ROUNDING, DIFFERENT = "identical", "rounding", "different"


@quiet
def gap(x: Array, y: Array) -> Array:
    """|x − y|; 0 where both are the same infinity or NaN, infinite where one is NaN.

    >>> gap(np.array([1.0, np.nan, np.inf, 1.0]), np.array([3.0, np.nan, np.inf, np.nan])).tolist()
    [2.0, 0.0, 0.0, inf]
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    difference = np.abs(x - y)
    is_same = (x == y) | (np.isnan(x) & np.isnan(y))
    result: Array = np.where(is_same, 0.0, np.where(np.isnan(difference), np.inf, difference))
    return result


def largest_gap(x: Array, y: Array) -> float:
    """The largest |x − y|."""
    return float(gap(x, y).max(initial=0))


def largest_of_rows(x: Array) -> Array:
    """The largest finite number of each row: (rows, N) -> (rows,).

    >>> largest_of_rows(np.array([[0.25, -0.5, np.inf], [0.0, np.nan, 0.0]])).tolist()
    [0.5, 0.0]
    """
    result: Array = np.where(np.isfinite(x), np.abs(x), 0).max(axis=-1, initial=0)
    return result


@quiet
def noise_floor(expected: Array, narrow: Array, dtype: str, scale: Array) -> Array:
    """The largest difference that rounding explains in each row.

    expected, narrow (rows, N), scale (rows,) -> (rows, 1)

    It is some times the difference that the dtype was measured to make in this row or in all rows on average, and a few
    units in the last place of the scale of the row.
    """
    noise = gap(expected, narrow)
    noise = np.where(np.isfinite(noise), noise, 0).max(axis=-1, initial=0)
    usual = float(np.mean(noise[scale > 0] / scale[scale > 0])) if (scale > 0).any() else 0.0
    least = EPSILON.get(dtype, EPSILON["float32"]) * (0.5 if dtype in LARGEST else 2)
    return np.asarray(MARGIN * np.maximum(noise, usual * scale) + least * scale + 1e-300)[:, None]


@quiet
def excess(mine: Array, expected: Array, floor: Array) -> float:
    """The largest difference in units of the noise of its row."""
    return float((gap(mine, expected) / floor).max(initial=0))


def derived_floor(x: Array, dtype: str, depth: int) -> Array:
    """The noise of each row of an array without a history.

    x (rows, N) -> (rows, 1)

    A number of a row is rounded once to its dtype, after a sum of `depth` terms in float32, or in float64 for float64,
    whose rounding grows with the root of their number. A row of small numbers has the scale of the usual row.

    >>> derived_floor(np.array([[1.0, -2.0]]), "float32", 4).tolist() == [[8 * (2.0**-24 + 2 * 2.0**-24) * 2]]
    True
    """
    largest = largest_of_rows(x)
    usual = float(np.median(largest[largest > 0])) if (largest > 0).any() else 0.0
    sums = min(EPSILON[dtype], EPSILON["float32"]) * math.sqrt(min(max(depth, 1), DEEPEST))
    return np.asarray(MARGIN / 2 * (EPSILON[dtype] + sums) * np.maximum(largest, usual) + 1e-300)[:, None]


def rows_of(x: Array) -> Array:
    """An array as a matrix of float64 with the rows of its last axis.

    >>> rows_of(np.zeros((2, 3, 4))).shape, rows_of(np.float32(1)).shape
    ((6, 4), (1, 1))
    """
    x = np.atleast_1d(np.asarray(x, np.float64))
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def make_rounding(dtype: str, seed: int) -> Callable[[Array], Array]:
    """Make a rounding to a dtype: to the nearest for seed 0, else to either side.

    >>> make_rounding("float16", 0)(np.array([1 / 3])).tolist()
    [0.333251953125]
    """
    generator = np.random.default_rng(seed)

    def change(value: Array) -> Array:
        moved = value * (1 + EPSILON[dtype] * (generator.random(value.shape) - 0.5)) if seed else value
        return rounded(moved, dtype).astype(np.float64)

    return change


def held_dtype(*arrays: Array) -> str:
    """The name of the coarsest dtype that holds one of some arrays of floats.

    Numbers of float64 that float32 holds, and float16 does not, were computed in float32 and written as text.

    >>> held_dtype(np.float32([0.1]).astype(float)), held_dtype(np.array([0.1])), held_dtype(np.array([0.5]))
    ('float32', 'float64', 'float64')
    """
    return max(map(_held, arrays), key=EPSILON.__getitem__, default="float64")


@quiet
def _held(x: Array) -> str:
    if not is_float(x.dtype):
        return "float64"
    if x.dtype.name != "float64":
        return x.dtype.name
    finite = x[np.isfinite(x)]
    single = finite.astype(np.float32)
    is_single = bool((single == finite).all()) and bool((single.astype(np.float16) != finite).any())
    return "float32" if is_single else "float64"


class LinearFit(NamedTuple):
    """The line that is nearest to B as a function of A: B ≈ scale · A + offset.

    rest  the largest difference that it leaves
    """

    scale: float = 1.0
    offset: float = 0.0
    rest: float = 0.0


@quiet
def fit_line(a: Array, b: Array) -> LinearFit:
    """The scale and offset of b on a by least squares, over finite numbers.

    >>> fit_line(np.array([0.0, 2.0, 4.0]), np.array([1.0, 4.0, 7.0]))
    LinearFit(scale=1.5, offset=1.0, rest=0.0)
    """
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    if not a.size:
        return LinearFit()
    unit = float(np.abs(a).max()) or 1.0
    centred = (a - a.mean()) / unit
    spread = float(centred @ centred)
    scale = float(centred @ ((b - b.mean()) / unit)) / spread if spread > a.size * EPSILON["float64"] else 1.0
    offset = float(b.mean()) - scale * float(a.mean())
    rest = float(np.abs(b - (scale * a + offset)).max())
    return LinearFit(scale, offset, rest)


class Judgement(NamedTuple):
    """What two arrays of one shape differ by, and which verdict that is.

    verdict  identical, rounding or different
    largest  the largest |a − b|, infinite where one number is NaN
    ulp      the same in units in the last place of the larger of these two numbers
    relative  the same in units of the largest number of both arrays
    noise    the largest difference that rounding explains
    beyond   the share of numbers that differ by more
    line     the best scale and offset of B on A, with the rest after them
    at       the index of the first number beyond rounding; of rounding that of the largest difference
    is_systematic  whether a common factor or offset differs, and each number by no more than rounding
    """

    verdict: str
    largest: float = 0.0
    ulp: float = 0.0
    relative: float = 0.0
    noise: float = 0.0
    beyond: float = 0.0
    line: LinearFit = LinearFit()
    at: tuple[int, ...] = ()
    is_systematic: bool = False


def judge_arrays(a: Array, b: Array, floor: Array | None = None, ties: Sequence[Array] = ()) -> Judgement:
    """Judge two arrays of one shape by the noise of each row of the first.

    floor  (rows, 1), or of one shape with the rows, what rounding explains; None: derived from both
    ties   whole numbers or booleans that rounding was measured to give in place of a

    >>> a = np.array([1.0, 2.0, 3.0], np.float32)
    >>> [judge_arrays(a, b).verdict for b in (a, np.nextafter(a, np.float32(9)), a + np.float32(0.01))]
    ['identical', 'rounding', 'different']
    """
    if not (is_float(a.dtype) or is_float(b.dtype)):
        return judge_exact(a, b, ties)
    x, y = rows_of(a), rows_of(b)
    off = gap(x, y)
    if not off.any():
        return Judgement(IDENTICAL)
    dtype = held_dtype(*(one for one in (a, b) if is_float(one.dtype)))
    if floor is None:
        floor = derived_floor(x, dtype, max(a.shape, default=1))
    beyond = off > floor
    worst = int(np.argmax(off))
    scale = max(float(largest_of_rows(one).max(initial=0)) for one in (x, y))
    largest, line = float(off.flat[worst]), fit_line(x, y)
    is_systematic = not beyond.any() and is_common(x, y, line, EPSILON[dtype] * scale)
    is_different = bool(beyond.any()) or is_systematic
    at = int(np.argmax(beyond if beyond.any() else off > 0 if is_different else off == largest))
    return Judgement(
        DIFFERENT if is_different else ROUNDING,
        largest,
        largest / last_place(max(abs(x.flat[worst]), abs(y.flat[worst])), dtype),
        largest / scale if scale else math.inf,
        float(np.max(floor, initial=0)),
        float(beyond.mean()),
        line,
        tuple(map(int, np.unravel_index(at, a.shape))),
        is_systematic,
    )


def judge_exact(a: Array, b: Array, ties: Sequence[Array] = ()) -> Judgement:
    """Judge whole numbers or booleans, which are the same, a tie, or different.

    >>> judge_exact(np.array([1, 2]), np.array([1, 3])).verdict
    'different'
    >>> judge_exact(np.array([1, 2]), np.array([1, 3]), [np.array([1, 3])]).verdict
    'rounding'
    """
    wrong = a != b
    if not wrong.any():
        return Judgement(IDENTICAL)
    is_tie = np.zeros(a.shape, bool)
    for one in ties:
        if one.shape == b.shape:
            is_tie |= one == b
    beyond = wrong & ~is_tie
    at = int(np.argmax(beyond if beyond.any() else wrong))
    index = tuple(map(int, np.unravel_index(at, a.shape)))
    verdict = DIFFERENT if beyond.any() else ROUNDING
    return Judgement(verdict, largest_gap(a, b), beyond=float(beyond.mean()), line=fit_line(a, b), at=index)


def is_common(a: Array, b: Array, line: LinearFit, unit: float) -> bool:
    """Whether a difference is a factor or an offset that all numbers share.

    It is more than a few units in the last place, and explains most of the difference.
    """
    moved = line.scale * a + line.offset
    shift, left = (float(np.sqrt(np.mean(one[np.isfinite(one)] ** 2))) for one in (gap(moved, a), gap(moved, b)))
    return a.size >= MANY and largest_gap(moved, a) > SYSTEMATIC * unit and left <= EXPLAINED * shift


def last_place(number: float, dtype: str) -> float:
    """The unit in the last place of a number in a dtype.

    >>> last_place(1.5, "float32") == 2.0**-23, last_place(4.0, "float16") == 2.0**-8
    (True, True)
    """
    exponent = math.frexp(number)[1] - 1 if 0 < number < math.inf else 0
    return EPSILON[dtype] * 2.0 ** max(exponent, -1022 + 52)
