"""The adjoints of linear projections x W + b, and of residual connections."""

import math
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.kernels.products import matrix_product


class LinearGradients(NamedTuple):
    """The gradients of x, weight and bias; None for those that the projection does not have."""

    x: Array
    weight: Array | None
    bias: Array | None


@quiet
def linear_backward(
    grad_output: Array, x: Array, weight: Array | None = None, bias: Array | None = None
) -> LinearGradients:
    """Return the gradients of x W + b: dx = dy Wᵀ, dW = xᵀ dy and db = dy, the last two summed over all rows.

    grad_output (..., E), x (..., D), weight (D, E), bias (E,) -> x (..., D), weight (D, E), bias (E,)

    All rows are multiplied as one matrix. DataError where the shapes do not match.

    >>> x, w = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])
    >>> gradients = linear_backward(np.array([[10.0]]), x, w, np.array([0.0]))
    >>> [gradient.tolist() for gradient in gradients]
    [[[30.0, 40.0]], [[10.0], [20.0]], [10.0]]
    """
    dtype = working(*(array for array in (grad_output, x, weight, bias) if array is not None))
    dy = cast(grad_output, dtype)
    if weight is None:
        check_gradient(dy, x.shape, "x")
        return LinearGradients(dy, None, None if bias is None else sum_rows(dy))
    check_gradient(dy, (*x.shape[:-1], weight.shape[1]), "x W + b")
    rows = as_rows(dy)
    dx = matrix_product(rows, np.asarray(weight, dtype).T).reshape(x.shape)
    dw = matrix_product(as_rows(cast(x, dtype)).T, rows)
    return LinearGradients(dx, dw, None if bias is None else sum_rows(dy))


def as_rows(x: Array) -> Array:
    """Return x as one matrix, with the tokens of all texts as its rows: (..., D) -> (rows, D).

    >>> as_rows(np.zeros((2, 3, 4))).shape
    (6, 4)
    """
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def sum_rows(gradient: Array) -> Array:
    """Return the sum over all axes but the last, by one product of a row of ones with a matrix.

    gradient (..., E) -> (E,)

    >>> sum_rows(np.array([[1.0, 2.0], [10.0, 20.0]])).tolist()
    [11.0, 22.0]
    """
    rows = as_rows(gradient)
    total: Array = np.ones(len(rows), rows.dtype) @ rows
    return total


def add_backward(grad_output: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Return the gradients of the residual connection x + y: that of the sum, for y summed where it was broadcast.

    grad_output (..., D), x (..., D), y broadcast to it -> (..., D), the shape of y

    DataError where the shapes do not match.

    >>> [gradient.tolist() for gradient in add_backward(np.ones((2, 2)), np.ones((2, 2)), np.array([1.0, 2.0]))]
    [[[1.0, 1.0], [1.0, 1.0]], [2.0, 2.0]]
    """
    dtype = working(grad_output, x, y)
    check_gradient(grad_output, x.shape, "x + y")
    dy = cast(grad_output, dtype)
    return dy, sum_to_shape(dy, y.shape)


def sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over the axes along which an array of a shape was broadcast; the adjoint of broadcasting.

    gradient (..., D) -> an array of `shape`

    DataError where the shape does not broadcast to that of the gradient.

    >>> sum_to_shape(np.ones((2, 3)), (2, 1)).tolist()
    [[3.0], [3.0]]
    """
    if gradient.shape == shape:
        return gradient
    lead = gradient.ndim - len(shape)
    pairs = list(zip(gradient.shape[max(lead, 0) :], shape, strict=False))
    if lead < 0 or any(size not in (1, full) for full, size in pairs):
        raise DataError(f"gradient {as_text(gradient.shape)}: {as_text(shape)} does not broadcast to it")
    axes = [*range(lead), *(lead + i for i, (full, size) in enumerate(pairs) if size != full)]
    total: Array = gradient.sum(axis=tuple(axes), keepdims=True)
    return total.reshape(shape)


def check_gradient(grad_output: Array, shape: tuple[int, ...], name: str) -> None:
    """Raise DataError unless a gradient has the shape of the output that it belongs to.

    >>> check_gradient(np.zeros((2, 3)), (2, 3), "y")
    """
    if grad_output.shape != shape:
        raise DataError(f"gradient {as_text(grad_output.shape)} of {name}: expected {as_text(shape)}")
