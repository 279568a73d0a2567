"""The adjoints of pooling: of one vector of a text back to all its hidden states."""

import numpy as np

from attnkit.model.dtypes import Array, quiet
from attnkit.model.pooling import last_tokens


def first_token_backward(grad_output: Array, shape: tuple[int, ...]) -> Array:
    """Return the gradient of hidden states of a shape of which only the first token was used.

    grad_output (..., D), shape (..., T, D) -> (..., T, D)

    >>> first_token_backward(np.array([1.0, 2.0]), (2, 2)).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    gradient = np.zeros(shape, grad_output.dtype)
    gradient[..., 0, :] = grad_output
    return gradient


def mean_pool_backward(grad_output: Array, real: Array) -> Array:
    """Return the gradient of hidden states of which the mean over the real tokens was taken.

    grad_output (..., D), real (..., T), True = a token, not padding -> (..., T, D)

    >>> mean_pool_backward(np.array([6.0]), np.array([True, True, False])).tolist()
    [[3.0], [3.0], [0.0]]
    """
    weights = real[..., None].astype(grad_output.dtype)
    gradient: Array = grad_output[..., None, :] * weights / np.maximum(weights.sum(axis=-2, keepdims=True), 1)
    return gradient


def concat_pool_backward(grad_output: Array, x: Array, real: Array) -> Array:
    """Return the gradient of the hidden states that `concat_pool` made one vector of.

    grad_output (..., 3 D), x (..., T, D), real (..., T) -> (..., T, D)

    That of the maximum goes to the first of equal ones.

    >>> concat_pool_backward(np.array([1.0, 10.0, 100.0]), np.array([[5.0], [3.0]]), np.array([True, True])).tolist()
    [[60.0], [51.0]]
    """
    last, highest, mean = np.split(grad_output[..., None, :], 3, axis=-1)  # (..., 1, D)
    counts = real.sum(axis=-1)[..., None, None].astype(x.dtype)
    gradient = np.where(real[..., None], mean / counts, 0).astype(x.dtype, copy=False)
    places = np.where(real[..., None], x, -np.inf).argmax(axis=-2)[..., None, :]
    for where, part in ((last_tokens(real)[..., None, None], last), (places, highest)):
        where = np.broadcast_to(where, part.shape)
        np.put_along_axis(gradient, where, np.take_along_axis(gradient, where, axis=-2) + part, axis=-2)
    return gradient


@quiet
def l2_normalize_backward(grad_output: Array, x: Array) -> Array:
    """Return the gradient of x before `l2_normalize`: dx = (dy - y (y · dy)) / |x|; that of a row of zeros is dy.

    grad_output (..., D), x (..., D) -> (..., D)

    >>> l2_normalize_backward(np.array([1.0, 0.0]), np.array([3.0, 4.0])).round(3).tolist()  # y = 0.6 0.8
    [0.128, -0.096]
    """
    wide = x.astype(np.float64)
    length = np.linalg.norm(wide, axis=-1, keepdims=True)
    length = np.where(length == 0, 1, length)
    y = wide / length
    gradient: Array = (grad_output - y * (y * grad_output).sum(axis=-1, keepdims=True)) / length
    return gradient.astype(grad_output.dtype)
