"""The adjoints of embeddings: vectors back to the rows of the table that they were copied from."""

import math

import numpy as np
from numpy.typing import ArrayLike

from attnkit.model.backward.linear import check_gradient
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.embedding import check_ids


def embed_backward(grad_output: Array, ids: ArrayLike, size: int, noun: str = "token id") -> Array:
    """Return the gradient of an embedding table: row n is the sum of the gradients of all tokens with id n.

    grad_output (..., D), ids (...), size N -> (N, D)

    Equal ids are brought together by a stable sort, so the order of every sum is that of the tokens. DataError for an
    id outside 0..N-1, or where the shapes do not match.

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


@quiet
def scale_embedding_backward(grad_output: Array) -> Array:
    """Return the gradient of embeddings that were multiplied by the square root of their width.

    grad_output (..., D) -> (..., D)

    >>> scale_embedding_backward(np.array([1.0, 0.0, 0.0, 3.0])).tolist()
    [2.0, 0.0, 0.0, 6.0]
    """
    gradient: Array = cast(grad_output, working(grad_output)) * math.sqrt(grad_output.shape[-1])
    return gradient
