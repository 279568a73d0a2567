"""Layer norm, RMS norm and batch norm, with a learned scale and shift.

Statistics are computed in float64 for every dtype, so that float32 rows around 1e6, or beyond the square root of
its range, stay exact. Rows of float64 whose squares leave its range are scaled by a power of two first, which is
exact. Rows are processed in blocks that fit a processor's cache, which saves memory.

All adjoints have one form. With x̂ the normalized x, s its inverse standard deviation and g = dy γ the gradient of x̂:

    dx = s (g − mean(g) − x̂ mean(g x̂))        dγ = Σ dy x̂        dβ = Σ dy

where mean(g) is absent if no mean is subtracted (RMS), and a statistic that was passed is a constant. The means are
over the axes that are normalized, the sums over all others, in float64. Source: Ioffe and Szegedy 2015, section 3, for
batches; Ba et al. 2016 and Zhang and Sennrich 2019 have the other two.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, check_gradient, fit
from attnkit.model.dtypes import Array, DType, cast, output_dtype, quiet, working
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.hooks import Hook, apply_hook, no_hook

BLOCK = 1 << 16  # elements in a block of rows
LARGE = 1 << 18  # number of elements from which two cores are faster than one
LEAST = 1e-280  # variance plus eps below which squares have lost precision
NONE = -1100  # exponent of a row of zeros, below that of every float64


class Normalized(NamedTuple):
    """The result of a norm and its statistics; RMS norm has no mean."""

    y: Array
    mean: Array | None
    inverse_std: Array


class NormGradients(NamedTuple):
    """Gradients of x, gamma and beta; None for a missing parameter."""

    x: Array
    gamma: Array | None
    beta: Array | None


Pullback = Callable[[Array], NormGradients]


class QueryKeyNorm(NamedTuple):
    """A norm of queries and keys, after their projection and before their rotation.

    kind   layer or rms, with eps
    scope  what is normalized, and which gamma belongs to it: head, with one gamma (K,) for all heads; heads, with a
           gamma for each head, (H*K,); or projection, all heads as one vector (H*K,)
    """

    kind: str
    eps: float
    scope: str


def layer_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5, axis: int = -1
) -> Normalized:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over axes from `axis` on.

    x (..., D), gamma (D,), beta (D,) -> y (..., D), mean (..., 1), inverse_std (..., 1)

    The variance is the population's (ONNX LayerNormalization-17). UsageError for eps <= 0 or an axis that x
    does not have, DataError if gamma or beta do not broadcast.

    >>> layer_norm(np.array([2.0, 4.0, 6.0, 8.0])).y.round(4)
    array([-1.3416, -0.4472,  0.4472,  1.3416])
    """
    return normalize_rows(x, gamma, beta, eps, axis, centred=True)


def channel_norm(x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5) -> Array:
    """Norm each channel over all positions, times gamma, plus beta.

    x (..., L, C), gamma (C,), beta (C,) -> (..., L, C)

    Source: GroupNormalization-21 of ONNX, with a group for each channel.

    >>> channel_norm(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([2.0, 1.0]), np.array([0.0, 7.0])).round(4).tolist()
    [[-2.0, 7.0], [2.0, 7.0]]
    """
    y = np.swapaxes(layer_norm(np.swapaxes(x, -1, -2), eps=eps).y, -1, -2)
    y = y if gamma is None else y * gamma
    return np.ascontiguousarray(y if beta is None else y + beta)


def channel_norm_vjp(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5
) -> tuple[Array, Pullback]:
    """`channel_norm`, and the function from its gradient to the others.

    x (..., L, C), gamma (C,), beta (C,) -> (..., L, C), and (..., L, C) -> x (..., L, C), gamma, beta (C,)

    >>> x, dy = np.array([[1.0], [1.0], [5.0], [5.0]]), np.array([[4.0], [0.0], [0.0], [0.0]])
    >>> gradients = channel_norm_vjp(x, np.ones(1), eps=1e-12)[1](dy)  # as layer_norm_vjp, down a column
    >>> (gradients.x.round(4) + 0).ravel().tolist(), gradients.gamma.round(4).tolist()
    ([1.0, -1.0, 0.0, 0.0], [-4.0])
    """
    normalized, pullback = layer_norm_vjp(np.swapaxes(x, -1, -2), eps=eps)

    def undo(grad_output: Array) -> NormGradients:
        dy = grad_output if gamma is None else grad_output * gamma
        dx = np.swapaxes(pullback(np.swapaxes(dy, -1, -2)).x, -1, -2)
        totals = np.stack([grad_output * np.swapaxes(normalized, -1, -2), grad_output])
        return NormGradients(dx, *_fit_parameters(totals, (gamma, beta), dx.dtype))

    return channel_norm(x, gamma, beta, eps=eps), undo


def group_norm(x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5) -> Array:
    """Norm all channels and positions together, times gamma, plus beta.

    x (..., L, C), gamma (C,), beta (C,) -> (..., L, C)

    Source: GroupNormalization-21 of ONNX, with one group.

    >>> group_norm(np.array([[1.0, 1.0], [5.0, 5.0]]), np.array([2.0, 1.0]), np.array([0.0, 7.0])).round(4).tolist()
    [[-2.0, 6.0], [2.0, 8.0]]
    """
    y = layer_norm(x.reshape(*x.shape[:-2], -1), eps=eps).y.reshape(x.shape)
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def group_norm_vjp(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5
) -> tuple[Array, Pullback]:
    """`group_norm`, and the function from its gradient to the others.

    x (..., L, C), gamma (C,), beta (C,) -> (..., L, C), and (..., L, C) -> x (..., L, C), gamma, beta (C,)

    >>> x, dy = np.array([[1.0, 1.0], [5.0, 5.0]]), np.array([[4.0, 0.0], [0.0, 0.0]])
    >>> gradients = group_norm_vjp(x, np.ones(2), eps=1e-12)[1](dy)  # as layer_norm_vjp, of all numbers
    >>> (gradients.x.round(4) + 0).tolist(), gradients.gamma.round(4).tolist()
    ([[1.0, -1.0], [0.0, 0.0]], [-4.0, 0.0])
    """
    normalized, pullback = layer_norm_vjp(x.reshape(*x.shape[:-2], -1), eps=eps)

    def undo(grad_output: Array) -> NormGradients:
        dy = grad_output if gamma is None else grad_output * gamma
        dx = pullback(dy.reshape(*dy.shape[:-2], -1)).x.reshape(dy.shape)
        totals = np.stack([grad_output * normalized.reshape(dy.shape), grad_output])
        return NormGradients(dx, *_fit_parameters(totals, (gamma, beta), dx.dtype))

    return group_norm(x, gamma, beta, eps=eps), undo


def layer_norm_vjp(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5, axis: int = -1
) -> tuple[Array, Pullback]:
    """Layer norm, and the function from its gradient to the others.

    x (..., D), gamma (D,), beta (D,) -> y (..., D), (..., D) -> x (..., D), gamma, beta (D,)

    Errors as in layer_norm; DataError for a gradient of another shape.

    >>> x, dy = np.array([[1.0, 1.0, 5.0, 5.0]]), np.array([[4.0, 0.0, 0.0, 0.0]])
    >>> y, pullback = layer_norm_vjp(x, np.ones(4), eps=1e-12)
    >>> dx, dgamma, _ = pullback(dy)
    >>> dx.round(4) + 0  # x̂ = -1 -1 1 1, s = 1/2, mean(g) = 1, mean(g x̂) = -1
    array([[ 1., -1.,  0.,  0.]])
    >>> dgamma.round(4).tolist()
    [-4.0, 0.0, 0.0, 0.0]
    """
    return _norm_vjp(x, gamma, beta, eps, axis, centred=True)


def rms_norm(x: Array, gamma: Array | None = None, *, eps: float = 1e-5, axis: int = -1) -> Normalized:
    """x / sqrt(mean(x^2) + eps) * gamma over all axes from `axis` to the last.

    x (..., D), gamma (D,) -> y (..., D), mean None, inverse_std (..., 1)

    Source: ONNX RMSNormalization-23. Errors as in layer_norm.

    >>> rms_norm(np.array([3.0, 4.0, 5.0, 0.0]), eps=1e-9).y.round(4)
    array([0.8485, 1.1314, 1.4142, 0.    ])
    """
    return normalize_rows(x, gamma, None, eps, axis, centred=False)


def rms_norm_vjp(x: Array, gamma: Array | None = None, *, eps: float = 1e-5, axis: int = -1) -> tuple[Array, Pullback]:
    """RMS norm, and the function from its gradient to the others.

    x (..., D), gamma (D,) -> y (..., D), (..., D) -> x (..., D), gamma (D,), None

    Errors as in layer_norm_vjp.

    >>> gradients = rms_norm_vjp(np.array([[1.0, 7.0]]), np.ones(2))[1](np.array([[1.0, 0.0]]))
    >>> [gradient.round(4).tolist() for gradient in gradients[:2]]  # x̂ = x / 5, mean(g x̂) = 0.1: g - x̂ / 10 over 5
    [[[0.196, -0.028]], [0.2, 0.0]]
    """
    return _norm_vjp(x, gamma, None, eps, axis, centred=False)


def _norm_vjp(
    x: Array, gamma: Array | None, beta: Array | None, eps: float, axis: int, *, centred: bool
) -> tuple[Array, Pullback]:
    normalized = np.empty(x.shape, working(x))
    y, _, inverse_std = normalize_rows(x, gamma, beta, eps, axis, centred=centred, standardized=normalized)

    @quiet
    def pullback(grad_output: Array) -> NormGradients:
        check_gradient(grad_output, x.shape, "the norm")
        shape, dtype = x.shape[axis % x.ndim :], working(grad_output, normalized)
        size = math.prod(shape)
        rows, dy = (one.reshape(math.prod(x.shape[: axis % x.ndim]), size) for one in (normalized, grad_output))
        deviation = inverse_std.reshape(-1, 1)
        scale = 1 if gamma is None else np.broadcast_to(gamma, shape).astype(dtype).ravel()
        parts = list(row_blocks(rows))
        dx, sums = np.empty(rows.shape, dtype), np.zeros((2, len(parts), size))

        @quiet
        def work(numbers: Iterator[int]) -> None:
            for number in numbers:
                part = parts[number]
                row, gradient = rows[part], dy[part]
                sums[0, number] = np.einsum("ij,ij->j", gradient, row)
                sums[1, number] = gradient.sum(axis=0)
                block = np.multiply(gradient, scale, dtype=dtype, out=dx[part])
                along = np.einsum("ij,ij->i", block, row)[:, None] / size
                if centred:
                    block -= block.mean(axis=-1, keepdims=True)
                block -= row * along
                block *= deviation[part]

        if rows.size < LARGE:
            work(iter(range(len(parts))))
        else:
            from attnkit.model.processor.threads import run_parallel

            run_parallel(work, range(len(parts)))
        totals = sums.sum(axis=1).reshape(2, *shape)
        return NormGradients(dx.reshape(x.shape), *_fit_parameters(totals, (gamma, beta), dtype))

    return y, pullback


def _fit_parameters(
    totals: Array, params: tuple[Array | None, Array | None], dtype: DType
) -> tuple[Array | None, Array | None]:
    """Sum gradients of every element to the shapes of gamma and beta."""
    gamma, beta = (
        None if param is None else sum_to_shape(total, param.shape).astype(dtype)
        for total, param in zip(totals, params, strict=True)
    )
    return gamma, beta


@quiet
def square_mean(x: Array, mean: Array | None = None, *, axis: int = -1, by_column: bool = False) -> Array:
    """Mean of (x - mean)^2, the variance of a norm before eps.

    Without a mean it is the mean square of RMS norm.

    x (..., D), mean broadcastable to it -> (..., 1); by_column, as in batch norm, (1, ..., D)

    >>> square_mean(np.array([2.0, 4.0, 6.0, 8.0]), np.array([5.0])), square_mean(np.array([3.0, 5.0]))
    (array([5.]), array([17.]))
    """
    over = tuple(range(x.ndim - 1)) if by_column else tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(np.float64)
    squares: Array = np.square(wide if mean is None else wide - mean)
    means: Array = squares.mean(axis=over, keepdims=True).astype(working(x))
    return means


@quiet
def normalize_rows(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    axis: int,
    *,
    centred: bool,
    standardized: Array | None = None,
) -> Normalized:
    """Layer norm of x, or its RMS norm if not centred.

    An array like x that is passed as `standardized` receives the result before gamma and beta.

    >>> rows = np.empty((1, 2))
    >>> normalize_rows(np.array([[1.0, 5.0]]), np.array([9.0, 9.0]), None, 1e-20, -1, centred=True, standardized=rows).y
    array([[-9.,  9.]])
    >>> rows
    array([[-1.,  1.]])
    """
    _check_eps(eps)
    if not x.ndim:
        raise DataError("x () is a single number: it has no axis to normalize")
    if not -x.ndim <= axis < x.ndim:
        raise UsageError(f"axis {axis} for x {as_text(x.shape)} (expected {-x.ndim}..{x.ndim - 1})")
    first = axis % x.ndim
    shape = x.shape[first:]
    gamma, beta = _flat(gamma, shape, "gamma", x), _flat(beta, shape, "beta", x)
    rows = x.reshape(math.prod(x.shape[:first]), math.prod(shape))
    y = np.empty(rows.shape, output_dtype(x))
    mean, inverse_std = np.empty((len(rows), 1), working(x)), np.empty((len(rows), 1), working(x))

    @quiet
    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            block, mean[part], inverse_std[part] = standardize_rows(rows[part], eps, centred=centred)
            if standardized is not None:
                standardized.reshape(rows.shape)[part] = block
            y[part] = _scaled(block, gamma, beta)

    if rows.size < LARGE:
        work(row_blocks(rows))
    else:
        from attnkit.model.processor.threads import run_parallel

        run_parallel(work, row_blocks(rows))
    ones = (*x.shape[:first], *[1] * len(shape))
    return Normalized(y.reshape(x.shape), mean.reshape(ones) if centred else None, inverse_std.reshape(ones))


def standardize_rows(rows: Array, eps: float, *, centred: bool) -> tuple[Array, Array, Array]:
    """Rows divided by their standard deviation, with mean and inverse deviation.

    rows (T, D) -> (T, D), (T, 1), (T, 1), all float64; the mean is 0 if it is not subtracted

    >>> [part.tolist() for part in standardize_rows(np.array([[1.0, 5.0]]), 1e-20, centred=True)]
    [[[-1.0, 1.0]], [[3.0]], [[0.5]]]
    """
    block = rows.astype(np.float64, order="C")
    middle = _mean(block) if centred else np.zeros((len(rows), 1))
    if centred:
        block -= middle
    total = _mean(block * block) + eps
    block *= (spread := 1 / np.sqrt(total))
    if rows.dtype == np.float64 and _doubtful(total, eps) and (far := _far(rows, total)).any():
        block[far], middle[far], spread[far] = _normalize_far(rows[far], eps, centred)
    return block, middle, spread


def _doubtful(total: Array, eps: float) -> bool:
    """Whether a variance plus eps may leave the range of float64, by one product.

    total (T, 1)
    """
    return eps < LEAST or not math.isfinite(np.vdot(total, total))


def _far(rows: Array, total: Array) -> Array:
    """Finite rows whose variance plus eps is near or outside the range of float64.

    rows (T, D), total (T, 1) -> (T,)
    """
    far: Array = ~((total > LEAST) & (total < np.inf))[:, 0]
    far[far] = np.isfinite(rows[far]).all(axis=-1)
    return far


def _normalize_far(rows: Array, eps: float, centred: bool, middle: Array | None = None) -> tuple[Array, Array, Array]:
    """Normalize rows without squares outside the range of float64.

    rows (T, D), middle (T, 1), a mean to use in place of the rows' own -> (T, D), (T, 1), (T, 1)

    >>> _normalize_far(np.array([[3e200, 4e200, 5e200, 0.0]]), 1e-5, False)[0].round(4)
    array([[0.8485, 1.1314, 1.4142, 0.    ]])
    """
    first = _exponent(rows) if middle is None else np.maximum(_exponent(rows), _exponent(middle))
    scaled, mean = np.ldexp(rows, -first), np.zeros((len(rows), 1))
    if centred:
        mean = _mean(scaled) if middle is None else np.ldexp(middle, -first)
        scaled -= mean
    second = np.maximum(_exponent(scaled), math.frexp(math.sqrt(eps))[1] - first)
    scaled = np.ldexp(scaled, -second)
    spread = 1 / np.sqrt(_mean(scaled * scaled) + np.ldexp(eps, -2 * (first + second)))
    return scaled * spread, np.ldexp(mean, first), np.ldexp(spread, -(first + second))


def _exponent(rows: Array) -> Array:
    """Exponent above the largest magnitude of each row: rows (T, D) -> (T, 1)."""
    largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0)
    return np.where(largest > 0, np.frexp(largest)[1], NONE)


@quiet
def batch_norm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    eps: float = 1e-5,
    mean: Array | None = None,
    variance: Array | None = None,
) -> Normalized:
    """Normalize each feature over all other axes.

    x (..., D), gamma, beta, mean, variance (D,) -> y (..., D), mean (..., D), inverse_std (..., D)

    A mean or variance that is passed (running statistics) replaces that of the batch. Source: Ioffe and
    Szegedy 2015, algorithm 1. UsageError for eps <= 0, DataError if a parameter does not broadcast.

    >>> batch_norm(np.array([[1200.0, 2.0], [1500.0, 3.0]]), eps=1e-12).y.round(4)
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    _check_eps(eps)
    if x.ndim == 0:
        raise DataError("x (): a single number has no features to normalize")
    shape = x.shape[-1:]
    gamma, beta = _flat(gamma, shape, "gamma", x), _flat(beta, shape, "beta", x)
    rows = x.reshape(math.prod(x.shape[:-1]), *shape)
    middle, spread = _flat(mean, shape, "mean", x), _flat(variance, shape, "variance", x)
    if middle is None:
        middle = _column_sums(rows, lambda block: block) / len(rows)
    if spread is None:
        spread = _column_sums(rows, lambda block: np.square(block - middle)) / len(rows)
    inverse_std = 1 / np.sqrt(spread + eps)
    y = np.empty(rows.shape, output_dtype(x))
    for part in row_blocks(rows):
        y[part] = _scaled((rows[part] - middle) * inverse_std, gamma, beta)
    total = (spread + eps)[:, None]
    own = variance is None and rows.dtype == np.float64 and len(rows) > 0
    if own and _doubtful(total, eps) and (far := _far(rows.T, total)).any():
        running = None if mean is None else middle[far, None]
        columns, middles, spreads = _normalize_far(rows[:, far].T, eps, True, running)
        y[:, far] = _scaled(columns.T.copy(), *(None if param is None else param[far] for param in (gamma, beta)))
        middle[far], inverse_std[far] = middles[:, 0], spreads[:, 0]
    statistics = (*(1 for _ in x.shape[:-1]), *shape)
    mean, inverse_std = (part.astype(working(x)).reshape(statistics) for part in (middle, inverse_std))
    return Normalized(y.reshape(x.shape), mean, inverse_std)


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
    """Gradients of any norm step by step, in float64, with a hook for each step.

    grad_output (..., D), x (..., D), params gamma and beta (D,) -> x (..., D), gamma, beta (D,)

    over        the axes whose elements have a mean and a variance in common; of batch norm all but the last
    centred     whether the mean is subtracted; without it the intermediate mean_square takes the place of variance
    statistics  running mean and variance, which are constants
    hook        receives the gradients of scaled, normalized, inverse_std, variance and mean, and may replace them

    DataError if the gradient does not have the shape of x.

    >>> x, dy = np.array([[1.0, 5.0]]), np.array([[1.0, 0.0]])
    >>> norm_steps_backward(dy, x, eps=1e-20).x.round(4).tolist()  # x̂ = -1 1, s = 1/2: 1/2 (dy - 1/2 - x̂ (-1/2))
    [[0.0, 0.0]]
    >>> x, dy, running = np.array([[1.0], [5.0]]), np.array([[1.0], [0.0]]), (np.array([3.0]), np.array([4.0]))
    >>> norm_steps_backward(dy, x, (4 * np.ones(1), None), over=(0,), statistics=running).x.round(4).tolist()
    [[2.0], [0.0]]
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


def _check_eps(eps: float) -> None:
    if not 0 < eps < math.inf:
        raise UsageError(f"eps {eps} (expected a positive number)")


def _flat(parameter: Array | None, shape: tuple[int, ...], name: str, x: Array) -> Array | None:
    if parameter is None:
        return None
    if parameter.shape != shape:
        target = f"the normalized axes {as_text(shape)} of x {as_text(x.shape)}"
        parameter = fit(parameter, shape, name, target)
    return cast(parameter, np.dtype(np.float64)).ravel()


def row_blocks(rows: Array) -> Iterator[slice]:
    """Split the rows of a matrix into blocks that fit a processor's cache.

    >>> [(part.start, part.stop) for part in row_blocks(np.empty((3, BLOCK // 2)))]
    [(0, 2), (2, 4)]
    """
    step = max(1, BLOCK // max(1, rows.shape[1]))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _mean(block: Array) -> Array:
    return np.add.reduce(block, axis=-1, keepdims=True) / np.float64(block.shape[-1])


def _column_sums(rows: Array, term: Callable[[Array], Array]) -> Array:
    sums = np.zeros(rows.shape[1])
    for part in row_blocks(rows):
        sums += term(rows[part].astype(np.float64, order="C")).sum(axis=0)
    return sums


def _scaled(block: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        block *= gamma
    if beta is not None:
        block += beta
    return block
