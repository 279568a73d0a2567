"""Normalization: zero mean and unit variance, then a learned scale and shift.

Statistics are taken in float64 whatever the dtype: rows of float32 around 1e6, or beyond the square root of
its range, keep their digits. Work goes by blocks of rows that fit a processor's cache, so that beside input
and output next to nothing is allocated.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.precision import Array, cast, output_dtype, quiet, working
from attnkit.model.shapes import fit, shown

BLOCK = 1 << 16  # numbers in a block of rows, of which each core has one at a time
LARGE = 1 << 18  # numbers from which on two cores are faster than one


class Normalized(NamedTuple):
    """The result of a norm, with the statistics it used; RMS norm has no mean."""

    y: Array
    mean: Array | None
    inverse_std: Array


def layer_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5, axis: int = -1
) -> Normalized:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over all axes from `axis` to the last.

    x (..., D), gamma (D,), beta (D,) -> y (..., D), mean (..., 1), inverse_std (..., 1)

    The variance is the population's (ONNX LayerNormalization-17). UsageError for eps <= 0 or an axis that x
    does not have, DataError where gamma or beta do not fit.

    >>> layer_norm(np.array([2.0, 4.0, 6.0, 8.0])).y.round(4)
    array([-1.3416, -0.4472,  0.4472,  1.3416])
    """
    return _normalize_rows(x, gamma, beta, eps, axis, centred=True)


def rms_norm(x: Array, gamma: Array | None = None, *, eps: float = 1e-5, axis: int = -1) -> Normalized:
    """x / sqrt(mean(x^2) + eps) * gamma over all axes from `axis` to the last.

    x (..., D), gamma (D,) -> y (..., D), mean None, inverse_std (..., 1)

    Source: ONNX RMSNormalization-23. Errors as in layer_norm.

    >>> rms_norm(np.array([3.0, 4.0, 5.0, 0.0]), eps=1e-9).y.round(4)
    array([0.8485, 1.1314, 1.4142, 0.    ])
    """
    return _normalize_rows(x, gamma, None, eps, axis, centred=False)


@quiet
def _normalize_rows(
    x: Array, gamma: Array | None, beta: Array | None, eps: float, axis: int, *, centred: bool
) -> Normalized:
    _check_eps(eps)
    if not x.ndim:
        raise DataError("x () is a single number: it has no axis to normalize")
    if not -x.ndim <= axis < x.ndim:
        raise UsageError(f"axis {axis} for x {shown(x.shape)} (expected {-x.ndim}..{x.ndim - 1})")
    first = axis % x.ndim
    shape = x.shape[first:]
    gamma, beta = _flat(gamma, shape, "gamma", x), _flat(beta, shape, "beta", x)
    rows = x.reshape(math.prod(x.shape[:first]), math.prod(shape))
    y = np.empty(rows.shape, output_dtype(x))
    mean, inverse_std = np.empty((len(rows), 1), working(x)), np.empty((len(rows), 1), working(x))

    @quiet
    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            block = rows[part].astype(np.float64, order="C")
            if centred:
                block -= (middle := _mean(block))
                mean[part] = middle
            block *= (spread := 1 / np.sqrt(_mean(block * block) + eps))
            inverse_std[part] = spread
            y[part] = _scaled(block, gamma, beta)

    if rows.size < LARGE:
        work(_blocks(rows))
    else:
        from attnkit.model.parallel import on_all_cores

        on_all_cores(work, _blocks(rows))
    kept = (*x.shape[:first], *[1] * len(shape))
    return Normalized(y.reshape(x.shape), mean.reshape(kept) if centred else None, inverse_std.reshape(kept))


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
    """The same formula down a column: each feature is normalized over all other axes.

    x (..., D), gamma, beta, mean, variance (D,) -> y (..., D), mean (..., D), inverse_std (..., D)

    A given mean or variance (running statistics) is used instead of the batch's own. Source: Ioffe and
    Szegedy 2015, algorithm 1. UsageError for eps <= 0, DataError where a parameter does not fit.

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
    for part in _blocks(rows):
        y[part] = _scaled((rows[part] - middle) * inverse_std, gamma, beta)
    kept = (*(1 for _ in x.shape[:-1]), *shape)
    mean, inverse_std = (part.astype(working(x)).reshape(kept) for part in (middle, inverse_std))
    return Normalized(y.reshape(x.shape), mean, inverse_std)


def _check_eps(eps: float) -> None:
    if not 0 < eps < math.inf:
        raise UsageError(f"eps {eps} (expected a positive number)")


def _flat(parameter: Array | None, shape: tuple[int, ...], name: str, x: Array) -> Array | None:
    if parameter is None:
        return None
    if parameter.shape != shape:
        target = f"the normalized axes {shown(shape)} of x {shown(x.shape)}"
        parameter = fit(parameter, shape, f"{name} {shown(parameter.shape)}", target)
    return cast(parameter, np.dtype(np.float64)).ravel()


def _blocks(rows: Array) -> Iterator[slice]:
    step = max(1, BLOCK // max(1, rows.shape[1]))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _mean(block: Array) -> Array:
    return np.add.reduce(block, axis=-1, keepdims=True) / np.float64(block.shape[-1])


def _column_sums(rows: Array, term: Callable[[Array], Array]) -> Array:
    sums = np.zeros(rows.shape[1])
    for part in _blocks(rows):
        sums += term(rows[part].astype(np.float64, order="C")).sum(axis=0)
    return sums


def _scaled(block: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        block *= gamma
    if beta is not None:
        block += beta
    return block
