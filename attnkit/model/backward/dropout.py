"""The adjoint of dropout."""

from attnkit.model.dropout import dropout
from attnkit.model.dtypes import Array


def dropout_backward(grad_output: Array, rate: float, *, seed: int, step: int, place: str, row: int = 0) -> Array:
    """Return the gradient of x before dropout: zero where an element was dropped, divided by 1 - rate elsewhere.

    grad_output (...) -> (...)

    The mask is computed again from the same seed, step, place and row. Errors are those of `dropout_mask`.

    >>> import numpy as np
    >>> dropout_backward(np.arange(8.0), 0.5, seed=0, step=0, place="embed").tolist()
    [0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 12.0, 0.0]
    """
    return dropout(grad_output, rate, seed=seed, step=step, place=place, row=row)
