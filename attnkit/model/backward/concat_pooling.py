"""The adjoint of the pooling of a classifier: of one vector of a text back to all its hidden states."""

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.pooling import last_tokens


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
