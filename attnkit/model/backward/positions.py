"""The adjoints of positions: learned tables, and the learned bias of T5 on the scores.

Sinusoidal and ALiBi positions have no parameters: the gradient passes through the addition unchanged.
"""

import numpy as np
from numpy.typing import ArrayLike

from attnkit.model.backward.embedding import embed_backward
from attnkit.model.backward.linear import check_gradient, sum_to_shape
from attnkit.model.dtypes import Array, working
from attnkit.model.embedding import check_ids


def add_positions_backward(grad_output: Array, encoding_shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the gradients of x and of the encodings that were added to it, summed over the batch they share.

    grad_output (..., T, D), encoding_shape (T, D) or (B, T, D) -> (..., T, D), encoding_shape

    >>> x, encoding = add_positions_backward(np.array([[[1.0]], [[2.0]]]), (1, 1))
    >>> x.ravel().tolist(), encoding.tolist()
    ([1.0, 2.0], [[3.0]])
    """
    if grad_output.ndim == 4 and len(encoding_shape) == 3:
        batch, *rest = encoding_shape
        return grad_output, sum_to_shape(grad_output, (batch, 1, *rest)).reshape(encoding_shape)  # was (B, 1, T, D)
    return grad_output, sum_to_shape(grad_output, encoding_shape)


def learned_positions_backward(grad_output: Array, positions: ArrayLike, size: int) -> Array:
    """Return the gradient of a table of learned positions: row p is the sum over the tokens at position p.

    grad_output (..., T, D), positions (..., T), size P -> (P, D)

    DataError names a position outside 0..P-1.

    >>> learned_positions_backward(np.array([[1.0], [2.0], [5.0]]), [1, 0, 1], 2).tolist()
    [[2.0], [6.0]]
    """
    return embed_backward(grad_output, positions, size, "position")


def t5_bias_backward(grad_output: Array, buckets: ArrayLike, size: int) -> Array:
    """Return the gradient of the table of T5's bias: row n is the sum over all pairs of tokens in bucket n.

    grad_output (H, T, S), buckets (T, S), size N -> (N, H)

    Summed in float64. DataError for a bucket outside 0..N-1, or where the shapes do not match.

    >>> t5_bias_backward(np.array([[[1.0, 2.0], [4.0, 8.0]]]), [[0, 1], [2, 0]], 3).tolist()
    [[9.0], [2.0], [4.0]]
    """
    rows = check_ids(buckets, size, "bucket")
    check_gradient(grad_output, (*grad_output.shape[:1], *rows.shape), "the bias")
    flat = [np.bincount(rows.ravel(), head.ravel(), size) for head in grad_output]
    table: Array = np.stack(flat, axis=-1).astype(working(grad_output), copy=False)
    return table
