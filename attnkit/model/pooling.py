"""Pooling: one vector of the hidden states of a text."""

from collections.abc import Callable

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, quiet
from attnkit.model.feedforward import ACTIVATIONS
from attnkit.model.linear import linear


def first_token(x: Array) -> Array:
    """Return the hidden state of the first token, which represents the whole text.

    x (..., T, D) -> (..., D)

    DataError for a text without tokens.

    >>> first_token(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([1., 2.])
    """
    if x.shape[-2] == 0:
        raise DataError(f"x {as_text(x.shape)} has no tokens, so there is no first one")
    return np.ascontiguousarray(x[..., 0, :])


def mean_pool(x: Array, real: Array) -> Array:
    """Return the mean of the hidden states of real tokens.

    x (..., T, D), real (..., T), True = a token, not padding -> (..., D)

    >>> mean_pool(np.array([[1.0], [3.0], [9.0]]), np.array([True, True, False]))
    array([2.])
    """
    weights = real[..., None].astype(x.dtype)
    mean: Array = (x * weights).sum(axis=-2) / np.maximum(weights.sum(axis=-2), 1)
    return mean


def concat_pool(x: Array, real: Array) -> Array:
    """Return the hidden state of the last token, the maximum over the tokens, and their mean, side by side.

    x (..., T, D), real (..., T), True = a token, not padding -> (..., 3 D)

    Source: Howard and Ruder 2018, section 3.3. DataError for a text without tokens.

    >>> concat_pool(np.array([[1.0], [5.0], [3.0], [9.0]]), np.array([True, True, True, False])).tolist()
    [3.0, 5.0, 3.0]
    """
    require_last_tokens(x, real)
    return np.concatenate([last_token(x, real), max_pool(x, real), mean_pool(x, real)], axis=-1)


def require_last_tokens(x: Array, real: Array) -> None:
    """Raise DataError for a text without tokens, x (..., T, D), real (..., T)."""
    if not real.any(axis=-1).all():
        raise DataError(f"x {as_text(x.shape)} has a text without tokens, so there is no last one")


def last_tokens(real: Array) -> Array:
    """Return the index of the last token of each text that is no padding: (..., T) -> (...).

    >>> last_tokens(np.array([[True, True, False], [False, True, True]])).tolist()
    [1, 2]
    """
    places: Array = real.shape[-1] - 1 - real[..., ::-1].argmax(axis=-1)
    return places


def mean_sqrt_pool(x: Array, real: Array) -> Array:
    """Return the sum of the hidden states of real tokens, divided by the square root of their number.

    x (..., T, D), real (..., T) -> (..., D)

    >>> mean_sqrt_pool(np.array([[1.0], [3.0], [4.0], [0.0]]), np.ones(4, bool))
    array([4.])
    """
    weights = real[..., None].astype(x.dtype)
    mean: Array = (x * weights).sum(axis=-2) / np.sqrt(np.maximum(weights.sum(axis=-2), 1))
    return mean


def weighted_mean_pool(x: Array, real: Array) -> Array:
    """Return the mean of the hidden states of real tokens, weighted by their positions from 1.

    x (..., T, D), real (..., T) -> (..., D)

    >>> weighted_mean_pool(np.array([[6.0], [3.0], [9.0]]), np.array([True, True, False]))
    array([4.])
    """
    weights = (real * np.arange(1, x.shape[-2] + 1))[..., None].astype(x.dtype)
    mean: Array = (x * weights).sum(axis=-2) / np.maximum(weights.sum(axis=-2), 1)
    return mean


def max_pool(x: Array, real: Array) -> Array:
    """Return the largest value of each column of the hidden states of real tokens.

    x (..., T, D), real (..., T) -> (..., D)

    >>> max_pool(np.array([[1.0, 5.0], [3.0, 2.0], [9.0, 9.0]]), np.array([True, True, False]))
    array([3., 5.])
    """
    largest: Array = np.where(real[..., None], x, -np.inf).max(axis=-2, initial=-np.inf).astype(x.dtype, copy=False)
    return largest


def first_real_token(x: Array, real: Array) -> Array:
    """Return the hidden state of the first real token, x (..., T, D), real (..., T) -> (..., D).

    DataError for a text without tokens.

    >>> first_real_token(np.array([[1.0], [3.0]]), np.array([False, True]))
    array([3.])
    """
    require_tokens(x)
    return _token_at(x, real.argmax(axis=-1))


def last_token(x: Array, real: Array) -> Array:
    """Return the hidden state of the last real token, x (..., T, D), real (..., T) -> (..., D).

    DataError for a text without tokens.

    >>> last_token(np.array([[1.0], [3.0], [9.0]]), np.array([True, True, False]))
    array([3.])
    """
    require_tokens(x)
    return _token_at(x, last_tokens(real))


def require_tokens(x: Array) -> None:
    """Raise DataError for a text without tokens, x (..., T, D)."""
    if x.shape[-2] == 0:
        raise DataError(f"x {as_text(x.shape)} has no tokens")


def _token_at(x: Array, at: Array) -> Array:
    return np.take_along_axis(x, np.asarray(at)[..., None, None], axis=-2)[..., 0, :]


# kind of pooling -> its function of x (..., T, D) and the real tokens (..., T)
POOLINGS: dict[str, Callable[[Array, Array], Array]] = {
    "cls": first_real_token,
    "mean": mean_pool,
    "max": max_pool,
    "mean-sqrt": mean_sqrt_pool,
    "weighted-mean": weighted_mean_pool,
    "last": last_token,
}


@quiet
def l2_normalize(x: Array) -> Array:
    """Return x divided by its Euclidean norm; a row of zeros is unchanged.

    x (..., D) -> (..., D)

    Rows are scaled by a power of two first, which is exact, so that no square leaves the range of the dtype.

    >>> l2_normalize(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """
    near = np.ldexp(x, -np.frexp(np.abs(x).max(axis=-1, keepdims=True, initial=0))[1])
    length = np.sqrt(np.square(near).sum(axis=-1, keepdims=True))
    scaled: Array = near / np.where(length == 0, 1, length).astype(x.dtype)
    return scaled


@quiet
def dense(x: Array, weight: Array, bias: Array | None, activation: str) -> Array:
    """Return a linear layer and its activation, of each vector by itself: its bits do not depend on other vectors.

    x (..., D), weight (D, E), bias (E,) -> (..., E)

    >>> dense(np.array([1.0, 2.0]), np.eye(2), np.array([0.0, -3.0]), "relu")
    array([1., 0.])
    """
    y = linear(x[..., None, :], weight, bias)[..., 0, :]
    return ACTIVATIONS[activation](y)
