"""Matrix products by blocks of rows: on every core, or of fixed shapes."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from operator import matmul
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.dtypes import Array

LARGE = 1 << 25  # multiplications from which several threads are faster
SHARED = 1 << 22  # the same of products of fixed shapes
Multiply = Callable[..., Any]  # (x, y) -> x @ y
BLOCKS, LEAST = 8, 96  # most blocks of a product, and the fewest rows of one; on any number of cores
TILE, HALF = 12, 6  # a multiple of the rows that a loop of OpenBLAS computes at once, and half of it
ROWS = 2 * TILE  # rows of a small product
BLOCK = 20 * ROWS  # rows that one call multiplies
SMALL = 1 << 20  # multiplications up to which OpenBLAS has other loops, on some processors
THREADED = 1 << 18  # multiplications from which BLAS may take several threads
LANES = 32  # the columns of a large right matrix are halved at a multiple of those


def row_places(lengths: Sequence[int], step: int = ROWS) -> tuple[list[Array], int]:
    """Places of the rows of several texts in one matrix, and its number of rows.

    lengths  the rows of each text
    step     what the rows of the matrix are a multiple of: TILE, or ROWS if it has small products

    Even rows of a text are in the first half of a tile, odd rows in the second: see `fixed_matrix_product`.

    >>> places, size = row_places([3, 4])
    >>> [one.tolist() for one in places], size
    ([[0, 6, 1], [2, 7, 3, 8]], 24)
    """
    halves, places = [0, 0], []
    for length in lengths:
        own = np.empty(length, np.intp)
        for odd in (0, 1):
            at = halves[odd] + np.arange(len(own[odd::2]))
            own[odd::2] = at // HALF * TILE + at % HALF + odd * HALF
            halves[odd] += len(at)
        places.append(own)
    tiles = -(-max(halves) // HALF)
    return places, -(-tiles * TILE // step) * step


def matrix_product(x: Array, y: Array) -> Array:
    """x @ y; a large product by a few blocks of rows on every core.

    The result is the same on any number of threads.

    x (..., M, K), y (K, N) -> (..., M, N)

    BLAS's own threads wait actively for each other, which on a busy machine takes most of their time, and between
    products they take it from other parallel work.

    >>> matrix_product(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])).tolist()
    [[11.0]]
    """
    count = math.prod(x.shape[:-1])
    if x.size * y.shape[-1] < LARGE or count < 2 * LEAST:
        product: Array = x @ y
        return product
    from attnkit.model.processor.threads import run_parallel, split_range

    rows = x.reshape(count, x.shape[-1])
    result = np.empty((count, y.shape[-1]), np.result_type(x, y))

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            np.matmul(rows[part], y, out=result[part])

    blocks = min(BLOCKS, 1 << (count // LEAST).bit_length() - 1)  # a power of two, which few cores share equally
    run_parallel(work, split_range(0, count, -(-count // blocks)))
    return result.reshape(*x.shape[:-1], y.shape[-1])


def fixed_matrix_product(x: Array, y: Array) -> Array:
    """x @ y, where other rows and the number of threads change no bits of a row.

    x (..., M, K), y (K, N) -> (..., M, N)

    OpenBLAS multiplies tiles of rows, of up to 12 on any processor, and those left over by other loops, which round
    differently; on some processors also the two halves of a tile, and small products. So a product of fixed shape has a
    multiple of TILE rows, the last ones zeros, with even rows in the first halves of tiles and odd rows in the second
    halves; it is divided at such multiples, with BLAS on one thread; a large y is divided into halves of its columns,
    and a small one multiplies ROWS rows at a time, on one thread too.

    >>> fixed_matrix_product(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])).tolist()
    [[11.0]]
    """
    if not (x.ndim > 1 and x.size and y.size):
        product: Array = x @ y
        return product
    texts = x.shape[:-2]
    places, size = _places_of(x.shape[-2], math.prod(texts))
    step = TILE if TILE * y.size > SMALL and not y.shape[1] % 4 else ROWS  # other columns: by loops of their own
    rows = np.zeros((-(-size // step) * step, x.shape[-1]), x.dtype)
    rows[places] = x.reshape(len(places), -1)
    return arranged_product(rows, y)[places].reshape(*x.shape[:-1], y.shape[1])


def fixed_stacked_product(x: Array, y: Array) -> Array:
    """x @ y of stacks of matrices, large ones on one thread each to keep their bits.

    x (..., T, M), y (..., M, N), broadcast to x -> (..., T, N)

    >>> fixed_stacked_product(np.ones((2, 1, 3)), np.ones((2, 3, 1))).tolist()
    [[[3.0]], [[3.0]]]
    """
    if x.shape[-2] * x.shape[-1] * y.shape[-1] < THREADED:
        product: Array = x @ y
        return product
    from attnkit.model.processor.threads import run_parallel

    result = np.empty((*x.shape[:-1], y.shape[-1]), np.result_type(x, y))
    y = np.broadcast_to(y, (*x.shape[:-2], *y.shape[-2:]))

    def work(places: Iterator[tuple[int, ...]]) -> None:
        for place in places:
            np.matmul(x[place], y[place], out=result[place])

    run_parallel(work, np.ndindex(x.shape[:-2]))
    return result


def whole_tiles_product(x: Array, y: Array, multiply: Multiply = matmul) -> Array:
    """x @ y of stacks of matrices, where later rows change no bits of a row.

    x (..., T, M), y (..., M, N), broadcast to x -> (..., T, N)

    >>> whole_tiles_product(np.ones((2, 1, 3)), np.ones((3, 1))).tolist()
    [[[3.0]], [[3.0]]]
    """
    rows = np.zeros((*x.shape[:-2], -(-x.shape[-2] // ROWS) * ROWS, x.shape[-1]), x.dtype)
    rows[..., : x.shape[-2], :] = x
    product: Array = multiply(rows, y)[..., : x.shape[-2], :]
    return product


@lru_cache(maxsize=16)
def _places_of(rows: int, texts: int) -> tuple[Array, int]:
    """Places of the rows of texts of one length, and how many rows their tiles have."""
    places, size = row_places([rows] * texts, TILE)
    return np.concatenate(places), size


def column_width(inner: int, columns: int) -> int:
    """Columns of a right matrix (K, N) multiplied at once: half of a large one.

    >>> column_width(384, 384), column_width(384, 1536)
    (384, 768)
    """
    half = -(-columns // (2 * LANES)) * LANES
    return half if TILE * inner * (columns - half) > SMALL else columns


def arranged_product(rows: Array, y: Array) -> Array:
    """rows @ y by blocks of whole tiles of rows, on every core if it is large.

    The caller has placed the rows by `row_places`.
    """
    from attnkit.model.processor.threads import run_parallel, single_blas, split_range

    small, is_shared = ROWS * y.size, rows.size * y.shape[1] >= SHARED
    if small < THREADED or (small <= SMALL and not is_shared):
        with single_blas() if small >= THREADED else nullcontext():
            product: Array = rows.reshape(-1, ROWS, rows.shape[1]) @ y
        return product.reshape(len(rows), y.shape[1])
    result = np.empty((len(rows), y.shape[1]), np.result_type(rows, y))
    width = column_width(*y.shape)
    height = BLOCK if width < y.shape[1] else min(BLOCK, -(-len(rows) // (2 * ROWS)) * ROWS)
    height = ROWS if small <= SMALL else height

    def work(parts: Iterator[tuple[slice, slice]]) -> None:
        for part, columns in parts:
            np.matmul(rows[part], y[:, columns], out=result[part, columns])

    blocks = [*split_range(0, len(rows), height)]
    tasks = [(part, columns) for columns in split_range(0, y.shape[1], width) for part in blocks]
    run_parallel(work, tasks, None if is_shared else 1)
    return result


class Products(NamedTuple):
    """How a layer multiplies rows by a weight, and stacks of matrices by each other."""

    matrix: Multiply = matrix_product
    stacked: Multiply = matmul

    @property
    def is_fixed(self) -> bool:
        """Whether other rows change no bits of a row."""
        return self.stacked is fixed_stacked_product


PLAIN = Products()
FIXED = Products(fixed_matrix_product, fixed_stacked_product)
ARRANGED = Products(arranged_product, fixed_stacked_product)
