"""Linear projections x W + b and residual connections, with their adjoints."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text, check_gradient, fit
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.processor.products import PLAIN, Products, matrix_product


@quiet
def linear(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    names: tuple[str, str, str] = ("x", "w", "b"),
    products: Products = PLAIN,
    can_scale: bool = False,
) -> Array:
    """x W + b; a missing weight is the identity and a missing bias zero.

    x (..., D), weight (D, E), bias (E,) -> (..., E)

    A weight (D,), if it `can_scale`, is the diagonal of a matrix, which multiplies each feature by a factor.

    DataError if the shapes do not match, with `names` for x, weight and bias. `products` are those of the layer.

    >>> linear(np.array([[1.0, 2.0]]), np.eye(2), np.array([10.0, 20.0]))
    array([[11., 22.]])
    """
    dtype = working(*(array for array in (x, weight, bias) if array is not None))
    y = cast(x, dtype)
    if weight is not None and weight.ndim == 1 and can_scale:
        check_diagonal(x, weight, names)
        y = y * cast(weight, dtype)
    elif weight is not None:
        check_inner(x, weight, names)
        # not made contiguous: a tied table is a transposed view, too big to copy
        y = products.matrix(y, np.asarray(weight, dtype))
    if bias is not None:
        if bias.shape != y.shape[-1:]:
            raise DataError.about(names[2], f"{as_text(bias.shape)}: expected {as_text(y.shape[-1:])}")
        y = np.add(y, cast(bias, dtype), out=None if weight is None else y)
    return y.astype(output_dtype(x), copy=False)


class LinearGradients(NamedTuple):
    """Gradients of x, weight and bias; None for a missing parameter."""

    x: Array
    weight: Array | None
    bias: Array | None


@quiet
def linear_backward(
    grad_output: Array, x: Array, weight: Array | None = None, bias: Array | None = None
) -> LinearGradients:
    """Gradients of x W + b: dx = dy Wᵀ, dW = xᵀ dy and db = dy.

    grad_output (..., E), x (..., D), weight (D, E), bias (E,) -> x (..., D), weight (D, E), bias (E,)

    dW and db are sums over all rows, which are multiplied as one matrix. Of a diagonal (D,), dW is its diagonal.
    DataError if the shapes do not match.

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
    check_gradient(dy, (*x.shape[:-1], weight.shape[-1]), "x W + b")
    if weight.ndim == 1:
        return LinearGradients(
            dy * cast(weight, dtype), sum_rows(dy * cast(x, dtype)), None if bias is None else sum_rows(dy)
        )
    rows = as_rows(dy)
    dx = matrix_product(rows, np.asarray(weight, dtype).T).reshape(x.shape)
    dw = matrix_product(as_rows(cast(x, dtype)).T, rows)
    return LinearGradients(dx, dw, None if bias is None else sum_rows(dy))


def projection_backward(
    grad_output: Array, x: Array, params: Mapping[str, Array], suffix: str = ""
) -> tuple[Array, dict[str, Array]]:
    """Gradients of x W + b: of x, and of w and b with a suffix, by name.

    grad_output (..., E), x (..., D) -> (..., D), {"w" + suffix: (D, E), "b" + suffix: (E,)} of those in `params`

    >>> dx, gradients = projection_backward(np.array([[10.0]]), np.array([[2.0]]), {"w1": np.array([[3.0]])}, "1")
    >>> dx.tolist(), gradients["w1"].tolist()
    ([[30.0]], [[20.0]])
    """
    names = f"w{suffix}", f"b{suffix}"
    dx, *parts = linear_backward(grad_output, x, *map(params.get, names))
    return dx, {name: part for name, part in zip(names, parts, strict=True) if part is not None}


def as_rows(x: Array) -> Array:
    """Reshape x to one matrix of tokens: (..., D) -> (rows, D).

    >>> as_rows(np.zeros((2, 3, 4))).shape
    (6, 4)
    """
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def sum_rows(gradient: Array) -> Array:
    """Sum over all axes but the last, by one product of a row of ones with a matrix.

    gradient (..., E) -> (E,)

    >>> sum_rows(np.array([[1.0, 2.0], [10.0, 20.0]])).tolist()
    [11.0, 22.0]
    """
    rows = as_rows(gradient)
    total: Array = np.ones(len(rows), rows.dtype) @ rows
    return total


def sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over broadcast axes: the adjoint of broadcasting.

    gradient (..., D) -> an array of `shape`

    DataError if the shape does not broadcast to the gradient's.

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


def check_inner(x: Array, weight: Array, names: tuple[str, ...]) -> None:
    """Raise DataError unless x (..., D) can be multiplied by weight (D, E)."""
    if weight.ndim == 2 and x.ndim and weight.shape[0] == x.shape[-1]:
        return
    pair = f"{as_text(weight.shape)} for {names[0]} {as_text(x.shape)}"
    if weight.ndim != 2:
        raise DataError.about(names[1], f"{pair}: rank {weight.ndim}, expected 2 (in, out)")
    if x.ndim == 0:
        raise DataError.about(names[1], f"{pair}: a single number has no axis to multiply")
    raise DataError.about(names[1], f"{pair}: first dimension {weight.shape[0]} != {x.shape[-1]}")


def check_diagonal(x: Array, weight: Array, names: tuple[str, str, str]) -> None:
    """Raise DataError unless x (..., D) fits a diagonal (D,)."""
    if x.shape[-1:] != weight.shape:
        pair = f"{as_text(weight.shape)} for {names[0]} {as_text(x.shape)}"
        raise DataError.about(names[1], f"{pair}: expected a factor for each feature")


def to_column_major(weight: Array) -> Array:
    """Copy a weight (D, E) in column-major (Fortran) order.

    The product of one row with a weight of more rows than columns is 25 % faster with it.

    >>> to_column_major(np.eye(2)).flags.f_contiguous
    True
    """
    from attnkit.model.processor.threads import run_parallel, split_range

    columns = np.empty(weight.shape[::-1], weight.dtype)

    def transpose(tasks: Iterator[slice]) -> None:
        for rows in tasks:
            for block in split_range(0, len(columns), 256):  # blocks that stay in the cache
                columns[block, rows] = weight[rows, block].T

    run_parallel(transpose, split_range(0, len(weight), 64))
    return columns.T


def scaled(x: Array, factor: float) -> Array:
    """x times a factor in the dtype of x; x itself if the factor is 1.

    >>> scaled(np.array([3.0], np.float32), 0.5)
    array([1.5], dtype=float32)
    """
    return x if factor == 1 else x * np.asarray(factor, x.dtype)


def add(x: Array, y: Array) -> Array:
    """Residual connection x + y, in the dtype of x.

    x (..., D), y broadcast to it -> (..., D)

    DataError if the shapes do not match. Source: Attention Is All You Need, section 3.1.

    >>> add(np.array([[1.0, 2.0]], np.float32), np.array([10.0, 20.0])).tolist()
    [[11.0, 22.0]]
    """
    dtype = working(x, y)
    other = y if y.shape == x.shape else fit(y, x.shape, "residual", f"x {as_text(x.shape)}")
    return (cast(x, dtype) + cast(other, dtype)).astype(output_dtype(x), copy=False)


def random_weight(rng: "np.random.Generator", rows: int, columns: int) -> Array:
    """Weight matrix from N(0, 1/rows), which preserves the variance of its inputs.

    -> (rows, columns) float64

    >>> random_weight(np.random.default_rng(0), 4, 2).shape
    (4, 2)
    """
    weight: Array = rng.standard_normal((rows, columns)) / max(rows, 1) ** 0.5
    return weight
