"""Embeddings: token ids to vectors."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, check_gradient, index
from attnkit.model.dtypes import Array, cast, is_float, output_dtype, quiet, working


def check_ids(ids: ArrayLike, size: int, noun: str = "token id") -> Array:
    """Convert ids to int64; DataError unless each is an integer in 0..size-1.

    ids (...) -> (...)

    DataError names the first that is not; floats are accepted if every value is whole, booleans never.

    >>> check_ids([[3, 0]], 4)
    array([[3, 0]])
    """
    array = np.asarray(ids)
    if array.dtype.kind not in "iu" and not is_float(array.dtype):
        raise DataError.about(f"{noun}s", f"are {array.dtype} (expected whole numbers)")
    values = array.astype(working(array)) if is_float(array.dtype) else array
    fractions, outside = values != np.floor(values), (values < 0) | (values >= size)
    for bad, problem in ((fractions, "is not a whole number"), (outside, f"outside 0..{size - 1}")):
        if bad.any():
            place = index(bad)
            raise DataError.about(noun, f"{array[bad][0]}{f' at {place}' if place else ''} {problem}")
    return array.astype(np.int64)


def one_hot(ids: ArrayLike, size: int, dtype: DTypeLike = np.float32) -> Array:
    """One-hot row for each token.

    ids (...) -> (..., N)

    DataError for an id outside 0..N-1.

    >>> one_hot([1, 0], 3)
    array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    rows: Array = check_ids(ids, size)[..., None] == np.arange(size)
    return rows.astype(dtype)


def embed(ids: ArrayLike, table: Array) -> Array:
    """Row of the table for each token.

    ids (...), table (N, D) -> (..., D)

    DataError for an id outside 0..N-1, or a table that is not a matrix.

    >>> embed([2, 0], np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    array([[5., 6.],
           [1., 2.]])
    """
    if table.ndim != 2:
        raise DataError.about("table", f"{as_text(table.shape)}: rank {table.ndim}, expected 2 (vocab, model)")
    return np.ascontiguousarray(table[check_ids(ids, len(table))])


def embed_backward(grad_output: Array, ids: ArrayLike, size: int, noun: str = "token id") -> Array:
    """Gradient of an embedding table: row n sums the gradients of tokens with id n.

    grad_output (..., D), ids (...), size N -> (N, D)

    A stable sort brings equal ids together, so every sum is in the order of the tokens. DataError for an id outside
    0..N-1, or if the shapes do not match.

    >>> embed_backward(np.array([[1.0, 2.0], [10.0, 20.0], [5.0, 6.0]]), [2, 0, 2], 3)
    array([[10., 20.],
           [ 0.,  0.],
           [ 6.,  8.]])
    """
    rows = check_ids(ids, size, noun)
    check_gradient(grad_output, (*rows.shape, grad_output.shape[-1]), "the embeddings")
    gradient = cast(grad_output, working(grad_output)).reshape(rows.size, grad_output.shape[-1])
    table = np.zeros((size, gradient.shape[-1]), gradient.dtype)
    if rows.size:
        order = np.argsort(rows, axis=None, kind="stable")
        present, starts = np.unique(rows.ravel()[order], return_index=True)
        table[present] = np.add.reduceat(gradient[order], starts, axis=0)
    return table


def random_table(words: Sequence[str], dim: int, seed: int = 0) -> Array:
    """Standard normal vector per word that depends on seed and word only.

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
    """Multiply embeddings by the square root of their width.

    x (..., D) -> (..., D)

    Source: Attention Is All You Need, section 3.4. DataError for a single number, which has no width.

    >>> scale_embedding(np.array([1.0, 2.0, 3.0, 4.0]))
    array([2., 4., 6., 8.])
    """
    if x.ndim == 0:
        raise DataError("x (): a single number has no width to scale by")
    scaled: Array = cast(x, working(x)) * math.sqrt(x.shape[-1])
    return scaled.astype(output_dtype(x), copy=False)
