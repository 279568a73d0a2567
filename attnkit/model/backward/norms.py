"""The adjoints of layer, RMS and batch normalization.

All have one form. With x̂ the normalized x, s its inverse standard deviation and g = dy γ the gradient of x̂:

    dx = s (g − mean(g) − x̂ mean(g x̂))        dγ = Σ dy x̂        dβ = Σ dy

where mean(g) is absent if no mean is subtracted (RMS), and a statistic that was passed is a constant. The means are
those of the axes that are normalized, the sums those of all others. Both are computed in float64, as in the forward
pass, in blocks of rows that fit a processor's cache. Source: Ioffe and Szegedy 2015, section 3, for batches; Ba et
al. 2016 and Zhang and Sennrich 2019 have the other two.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnkit.model.backward.linear import check_gradient, sum_to_shape
from attnkit.model.dtypes import Array, DType, cast, quiet, working
from attnkit.model.norms import LARGE, batch_norm, row_blocks, standardize_rows


class NormGradients(NamedTuple):
    """The gradients of x, gamma and beta; None for those that the norm does not have."""

    x: Array
    gamma: Array | None
    beta: Array | None


def layer_norm_backward(
    grad_output: Array,
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    eps: float = 1e-5,
    axis: int = -1,
) -> NormGradients:
    """Return the gradients of layer normalization over all axes from `axis` to the last.

    grad_output (..., D), x (..., D), gamma, beta (D,) -> x (..., D), gamma, beta (D,)

    The statistics are computed again from x. DataError where the gradient does not have the shape of x.

    >>> dy, x = np.array([[4.0, 0.0, 0.0, 0.0]]), np.array([[1.0, 1.0, 5.0, 5.0]])
    >>> dx, dgamma, _ = layer_norm_backward(dy, x, np.ones(4), eps=1e-12)
    >>> dx.round(4) + 0  # x̂ = -1 -1 1 1, s = 1/2, mean(g) = 1, mean(g x̂) = -1
    array([[ 1., -1.,  0.,  0.]])
    >>> dgamma.round(4).tolist()
    [-4.0, 0.0, 0.0, 0.0]
    """
    return _backward_rows(grad_output, x, (gamma, beta), eps, axis, centred=True)


def rms_norm_backward(
    grad_output: Array, x: Array, gamma: Array | None = None, *, eps: float = 1e-5, axis: int = -1
) -> NormGradients:
    """Return the gradients of RMS normalization over all axes from `axis` to the last.

    grad_output (..., D), x (..., D), gamma (D,) -> x (..., D), gamma (D,), None

    DataError where the gradient does not have the shape of x.

    >>> gradients = rms_norm_backward(np.array([[1.0, 0.0]]), np.array([[1.0, 7.0]]), np.ones(2))
    >>> [gradient.round(4).tolist() for gradient in gradients[:2]]  # x̂ = x / 5, mean(g x̂) = 0.1: g - x̂ / 10 over 5
    [[[0.196, -0.028]], [0.2, 0.0]]
    """
    return _backward_rows(grad_output, x, (gamma, None), eps, axis, centred=False)


@quiet
def _backward_rows(
    grad_output: Array, x: Array, params: tuple[Array | None, Array | None], eps: float, axis: int, *, centred: bool
) -> NormGradients:
    check_gradient(grad_output, x.shape, "the norm")
    gamma, _ = params
    shape, dtype = x.shape[axis % x.ndim :], working(grad_output, x)
    size = math.prod(shape)
    rows = x.reshape(math.prod(x.shape[: axis % x.ndim]), size)
    dy = grad_output.reshape(rows.shape)
    scale = 1.0 if gamma is None else np.broadcast_to(gamma, shape).astype(np.float64).ravel()
    parts = list(row_blocks(rows))
    dx, sums = np.empty(rows.shape, dtype), np.zeros((2, len(parts), size))

    @quiet
    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            part = parts[number]
            normalized, _, inverse_std = standardize_rows(rows[part], eps, centred=centred)
            gradient = dy[part].astype(np.float64, order="C")
            np.einsum("ij,ij->j", gradient, normalized, out=sums[0, number])
            gradient.sum(axis=0, out=sums[1, number])
            gradient *= scale
            along = np.einsum("ij,ij->i", gradient, normalized)[:, None] / size
            if centred:
                gradient -= gradient.mean(axis=-1, keepdims=True)
            gradient -= np.multiply(normalized, along, out=normalized)
            gradient *= inverse_std
            dx[part] = gradient

    if rows.size < LARGE:
        work(iter(range(len(parts))))
    else:
        from attnkit.model.kernels.threads import run_parallel

        run_parallel(work, range(len(parts)))
    totals = sums.sum(axis=1).reshape(2, *shape)
    return NormGradients(dx.reshape(x.shape), *_fit_parameters(totals, params, dtype))


def _fit_parameters(
    totals: Array, params: tuple[Array | None, Array | None], dtype: DType
) -> tuple[Array | None, Array | None]:
    """Return the gradients of gamma and beta in their own shapes, from those of every normalized element."""
    gamma, beta = (
        None if param is None else sum_to_shape(total, param.shape).astype(dtype)
        for total, param in zip(totals, params, strict=True)
    )
    return gamma, beta


@quiet
def batch_norm_backward(
    grad_output: Array,
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    eps: float = 1e-5,
    mean: Array | None = None,
    variance: Array | None = None,
) -> NormGradients:
    """Return the gradients of batch normalization, of each feature over all other axes.

    grad_output (..., D), x (..., D), gamma, beta, mean, variance (D,) -> x (..., D), gamma, beta (D,)

    A mean or variance that is passed (running statistics) is a constant. DataError where the gradient does not have
    the shape of x.

    >>> x, dy = np.array([[1.0], [5.0]]), np.array([[1.0], [0.0]])
    >>> statistics = {"mean": np.array([3.0]), "variance": np.array([4.0])}
    >>> batch_norm_backward(dy, x, 4 * np.ones(1), **statistics).x.round(4).tolist()  # x̂ = -1 1, s = 1/2
    [[2.0], [0.0]]
    """
    check_gradient(grad_output, x.shape, "the norm")
    dtype, wide = working(grad_output, x), np.dtype(np.float64)
    normalized, _, inverse_std = batch_norm(cast(x, wide), eps=eps, mean=mean, variance=variance)
    gradient, axes = cast(grad_output, wide), tuple(range(x.ndim - 1))
    totals = np.stack([(gradient * normalized).sum(axis=axes), gradient.sum(axis=axes)])
    if gamma is not None:
        gradient = gradient * gamma
    dx = gradient.copy()
    if mean is None:
        dx -= gradient.mean(axis=axes)
    if variance is None:
        dx -= normalized * (gradient * normalized).mean(axis=axes)
    dx *= inverse_std
    return NormGradients(dx.astype(dtype), *_fit_parameters(totals, (gamma, beta), dtype))
