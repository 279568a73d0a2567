"""Embeddings: token ids to vectors."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, index
from attnkit.model.dtypes import Array, cast, is_float, output_dtype, quiet, working


def check_ids(ids: ArrayLike, size: int, noun: str = "token id") -> Array:
    """Return ids as int64; DataError unless each is an integer in 0..size-1.

    ids (...) -> (...)

    DataError names the first that is not; floats are taken where every value is whole, booleans never.

    >>> check_ids([[3, 0]], 4)
    array([[3, 0]])
    """
    array = np.asarray(ids)
    if array.dtype.kind not in "iu" and not is_float(array.dtype):
        raise DataError(f"{noun}s are {array.dtype} (expected whole numbers)")
    values = array.astype(working(array)) if is_float(array.dtype) else array
    _reject(array, values != np.floor(values), f"{noun} {{}}{{}} is not a whole number")
    _reject(array, (values < 0) | (values >= size), f"{noun} {{}}{{}} outside 0..{size - 1}")
    return array.astype(np.int64)


def _reject(values: Array, bad: Array, message: str) -> None:
    if bad.any():
        place = index(bad)
        raise DataError(message.format(values[bad][0], f" at {place}" if place else ""))


def one_hot(ids: ArrayLike, size: int, dtype: DTypeLike = np.float32) -> Array:
    """Return a one-hot row for each token.

    ids (...) -> (..., N)

    DataError for an id outside 0..N-1.

    >>> one_hot([1, 0], 3)
    array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    rows: Array = check_ids(ids, size)[..., None] == np.arange(size)
    return rows.astype(dtype)


def embed(ids: ArrayLike, table: Array) -> Array:
    """Return the row of the table for each token.

    ids (...), table (N, D) -> (..., D)

    DataError for an id outside 0..N-1, or a table that is not a matrix.

    >>> embed([2, 0], np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    array([[5., 6.],
           [1., 2.]])
    """
    if table.ndim != 2:
        raise DataError(f"table {as_text(table.shape)}: rank {table.ndim}, expected 2 (vocab, model)")
    return np.ascontiguousarray(table[check_ids(ids, len(table))])


def random_table(words: Sequence[str], dim: int, seed: int = 0) -> Array:
    """Return a standard normal vector per word that depends on seed and word only.

    words (N), dim D -> (N, D) float32

    The generator of a word is seeded with [seed, SHA-256 of the word as eight big-endian 32-bit numbers].
    UsageError for dim < 1 or a seed outside 0..2^64-1.

    >>> bool((random_table(["cat", "sat"], 4)[1] == random_table(["sat"], 4)[0]).all())
    True
    """
    if dim < 1:
        raise UsageError(f"dim {dim} (expected 1 or more)")
    if not 0 <= seed < 2**64:
        raise UsageError(f"seed {seed} outside 0..2^64-1")
    rows = [np.random.default_rng([seed, *_digest(word)]).standard_normal(dim) for word in words]
    return np.array(rows, dtype=np.float32).reshape(len(words), dim)


def _digest(word: str) -> list[int]:
    import hashlib  # imported here, as it would cost every other stage of a pipe two milliseconds

    return [int(number) for number in np.frombuffer(hashlib.sha256(word.encode()).digest(), ">u4")]


@quiet
def scale_embedding(x: Array) -> Array:
    """Multiply embeddings by the square root of their width (Attention Is All You Need, section 3.4).

    x (..., D) -> (..., D)

    DataError for a single number, which has no width.

    >>> scale_embedding(np.array([1.0, 2.0, 3.0, 4.0]))
    array([2., 4., 6., 8.])
    """
    if x.ndim == 0:
        raise DataError("x (): a single number has no width to scale by")
    scaled: Array = cast(x, working(x)) * math.sqrt(x.shape[-1])
    return scaled.astype(output_dtype(x), copy=False)
