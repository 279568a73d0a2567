"""The adjoints of layer, RMS and batch normalization.

All have one form. With x̂ the normalized x, s its inverse standard deviation and g = dy γ the gradient of x̂:

    dx = s (g − mean(g) − x̂ mean(g x̂))        dγ = Σ dy x̂        dβ = Σ dy

where mean(g) is absent if no mean is subtracted (RMS), and a statistic that was passed is a constant. The means are
those of the axes that are normalized, the sums those of all others. x̂ and s come from statistics in float64, as in the
forward pass; rows are processed in blocks that fit a processor's cache, whose sums are added up in float64. Source:
Ioffe and Szegedy 2015, section 3, for batches; Ba et al. 2016 and Zhang and Sennrich 2019 have the other two.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.model.backward.linear import check_gradient, sum_to_shape
from attnkit.model.dtypes import Array, DType, quiet, working
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.norms import LARGE, normalize_rows, row_blocks


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
    saved: Mapping[str, Array] | None = None,
) -> NormGradients:
    """Return the gradients of layer normalization over all axes from `axis` to the last.

    grad_output (..., D), x (..., D), gamma, beta (D,) -> x (..., D), gamma, beta (D,)

    `saved` is what `norm_forward` returned [computed again]. DataError where the gradient does not have the shape of x.

    >>> dy, x = np.array([[4.0, 0.0, 0.0, 0.0]]), np.array([[1.0, 1.0, 5.0, 5.0]])
    >>> dx, dgamma, _ = layer_norm_backward(dy, x, np.ones(4), eps=1e-12)
    >>> dx.round(4) + 0  # x̂ = -1 -1 1 1, s = 1/2, mean(g) = 1, mean(g x̂) = -1
    array([[ 1., -1.,  0.,  0.]])
    >>> dgamma.round(4).tolist()
    [-4.0, 0.0, 0.0, 0.0]
    """
    saved = saved or norm_forward(x, eps=eps, axis=axis, centred=True)[1]
    return _backward_rows(grad_output, saved, (gamma, beta), axis, centred=True)


def rms_norm_backward(
    grad_output: Array,
    x: Array,
    gamma: Array | None = None,
    *,
    eps: float = 1e-5,
    axis: int = -1,
    saved: Mapping[str, Array] | None = None,
) -> NormGradients:
    """Return the gradients of RMS normalization over all axes from `axis` to the last.

    grad_output (..., D), x (..., D), gamma (D,) -> x (..., D), gamma (D,), None

    `saved` is what `norm_forward` returned [computed again]. DataError where the gradient does not have the shape of x.

    >>> gradients = rms_norm_backward(np.array([[1.0, 0.0]]), np.array([[1.0, 7.0]]), np.ones(2))
    >>> [gradient.round(4).tolist() for gradient in gradients[:2]]  # x̂ = x / 5, mean(g x̂) = 0.1: g - x̂ / 10 over 5
    [[[0.196, -0.028]], [0.2, 0.0]]
    """
    saved = saved or norm_forward(x, eps=eps, axis=axis, centred=False)[1]
    return _backward_rows(grad_output, saved, (gamma, None), axis, centred=False)


@quiet
def _backward_rows(
    grad_output: Array,
    saved: Mapping[str, Array],
    params: tuple[Array | None, Array | None],
    axis: int,
    *,
    centred: bool,
) -> NormGradients:
    x, gamma = saved["normalized"], params[0]
    check_gradient(grad_output, x.shape, "the norm")
    shape, dtype = x.shape[axis % x.ndim :], working(grad_output, x)
    size = math.prod(shape)
    normalized, dy = (array.reshape(math.prod(x.shape[: axis % x.ndim]), size) for array in (x, grad_output))
    inverse_std = saved["inverse_std"].reshape(-1, 1)
    scale = 1 if gamma is None else np.broadcast_to(gamma, shape).astype(dtype).ravel()
    parts = list(row_blocks(normalized))
    dx, sums = np.empty(normalized.shape, dtype), np.zeros((2, len(parts), size))

    @quiet
    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            part = parts[number]
            rows, gradient = normalized[part], dy[part]
            sums[0, number] = np.einsum("ij,ij->j", gradient, rows)
            sums[1, number] = gradient.sum(axis=0)
            block = np.multiply(gradient, scale, dtype=dtype, out=dx[part])
            along = np.einsum("ij,ij->i", block, rows)[:, None] / size
            if centred:
                block -= block.mean(axis=-1, keepdims=True)
            block -= rows * along
            block *= inverse_std[part]

    if normalized.size < LARGE:
        work(iter(range(len(parts))))
    else:
        from attnkit.model.kernels.threads import run_parallel

        run_parallel(work, range(len(parts)))
    totals = sums.sum(axis=1).reshape(2, *shape)
    return NormGradients(dx.reshape(x.shape), *_fit_parameters(totals, params, dtype))


def norm_forward(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    eps: float = 1e-5,
    axis: int = -1,
    centred: bool = True,
) -> tuple[Array, dict[str, Array]]:
    """Return the layer norm of x, or its RMS norm if not centred, and what the adjoint needs of it.

    x (..., D), gamma, beta (D,) -> (..., D), {"normalized": x̂ (..., D), "inverse_std": (..., 1)}

    Errors are those of `layer_norm`.

    >>> y, saved = norm_forward(np.array([[1.0, 5.0]]), np.array([9.0, 9.0]), eps=1e-20)
    >>> y.tolist(), saved["normalized"].tolist(), saved["inverse_std"].tolist()
    ([[-9.0, 9.0]], [[-1.0, 1.0]], [[0.5]])
    """
    normalized = np.empty(x.shape, working(x))
    result = normalize_rows(x, gamma, beta, eps, axis, centred=centred, standardized=normalized)
    return result.y, {"normalized": normalized, "inverse_std": result.inverse_std}


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
    return norm_steps_backward(
        grad_output, x, (gamma, beta), eps=eps, over=range(x.ndim - 1), statistics=(mean, variance)
    )


@quiet
def norm_steps_backward(
    grad_output: Array,
    x: Array,
    params: tuple[Array | None, Array | None] = (None, None),
    *,
    eps: float = 1e-5,
    over: Sequence[int] = (-1,),
    centred: bool = True,
    statistics: tuple[Array | None, Array | None] = (None, None),
    hook: Hook = no_hook,
) -> NormGradients:
    """Return the gradients of any norm step by step, in float64, with those of its intermediates for a hook.

    grad_output (..., D), x (..., D), params gamma and beta (D,) -> x (..., D), gamma, beta (D,)

    over        the axes whose elements have a mean and a variance in common
    centred     whether the mean is subtracted; without it the intermediate mean_square takes the place of variance
    statistics  running mean and variance, which are constants
    hook        receives the gradients of scaled, normalized, inverse_std, variance and mean, and may replace them

    DataError where the gradient does not have the shape of x.

    >>> x, dy = np.array([[1.0, 5.0]]), np.array([[1.0, 0.0]])
    >>> norm_steps_backward(dy, x, eps=1e-20).x.round(4).tolist()  # x̂ = -1 1, s = 1/2: 1/2 (dy - 1/2 - x̂ (-1/2))
    [[0.0, 0.0]]
    """
    check_gradient(grad_output, x.shape, "the norm")
    dtype, wide, over = working(grad_output, x), x.astype(np.float64), tuple(over)
    mean, variance = statistics
    size = max(math.prod(x.shape[axis] for axis in over), 1)
    centre = wide - (wide.mean(axis=over, keepdims=True) if mean is None else mean) if centred else wide
    spread = np.square(centre).mean(axis=over, keepdims=True) if variance is None else variance
    inverse_std = 1 / np.sqrt(spread + eps)
    scaled = apply_hook(hook, "scaled", grad_output.astype(np.float64))
    normalized = apply_hook(hook, "normalized", scaled if params[0] is None else scaled * params[0])
    of_inverse = apply_hook(hook, "inverse_std", (normalized * centre).sum(axis=over, keepdims=True))
    name = "variance" if centred else "mean_square"
    of_spread = apply_hook(hook, name, of_inverse * inverse_std**3 / -2)
    dx = normalized * inverse_std
    if variance is None:
        dx = dx + of_spread * 2 * centre / size
    if centred:
        of_mean = apply_hook(hook, "mean", -dx.sum(axis=over, keepdims=True))
        dx = dx + of_mean / size if mean is None else dx
    totals = np.stack([scaled * centre * inverse_std, grad_output])
    return NormGradients(dx.astype(dtype), *_fit_parameters(totals, params, dtype))
