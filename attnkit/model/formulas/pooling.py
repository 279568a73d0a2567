"""Pooling: one vector of the hidden states of a text."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, quiet
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward
from attnkit.model.formulas.linear import LinearGradients, linear, linear_backward


def first_token(x: Array) -> Array:
    """Hidden state of the first token, which represents the whole text.

    x (..., T, D) -> (..., D)

    DataError for a text without tokens.

    >>> first_token(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([1., 2.])
    """
    if x.shape[-2] == 0:
        raise DataError(f"x {as_text(x.shape)} has no tokens, so there is no first one")
    return np.ascontiguousarray(x[..., 0, :])


def first_token_backward(grad_output: Array, shape: tuple[int, ...]) -> Array:
    """Gradient of hidden states whose first token alone was used.

    grad_output (..., D), shape (..., T, D) -> (..., T, D)

    >>> first_token_backward(np.array([1.0, 2.0]), (2, 2)).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    gradient = np.zeros(shape, grad_output.dtype)
    gradient[..., 0, :] = grad_output
    return gradient


def mean_pool(x: Array, real: Array) -> Array:
    """Mean of the hidden states of real tokens.

    x (..., T, D), real (..., T), True = a token, not padding -> (..., D)

    >>> mean_pool(np.array([[1.0], [3.0], [9.0]]), np.array([True, True, False]))
    array([2.])
    """
    weights = real[..., None].astype(x.dtype)
    mean: Array = (x * weights).sum(axis=-2) / weights.sum(axis=-2).clip(1)
    return mean


def mean_pool_backward(grad_output: Array, real: Array) -> Array:
    """Gradient of hidden states whose mean over the real tokens was taken.

    grad_output (..., D), real (..., T), True = a token, not padding -> (..., T, D)

    >>> mean_pool_backward(np.array([6.0]), np.array([True, True, False])).tolist()
    [[3.0], [3.0], [0.0]]
    """
    weights = real[..., None].astype(grad_output.dtype)
    gradient: Array = grad_output[..., None, :] * weights / np.maximum(weights.sum(axis=-2, keepdims=True), 1)
    return gradient


def patch_pool(x: Array, before: int) -> Array:
    """Hidden state of the first token, and the mean of those of patches, side by side.

    x (..., T, D), before: number of tokens before the patches -> (..., 2D)

    >>> patch_pool(np.array([[1.0], [9.0], [3.0], [5.0]]), 2)
    array([1., 4.])
    """
    return np.concatenate([first_token(x), x[..., before:, :].mean(axis=-2)], axis=-1)


def patch_pool_backward(grad_output: Array, shape: tuple[int, ...], before: int) -> Array:
    """Gradient before `patch_pool`.

    grad_output (..., 2D), shape (..., T, D) -> (..., T, D)

    >>> patch_pool_backward(np.array([1.0, 4.0]), (4, 1), 2).ravel()
    array([1., 0., 2., 2.])
    """
    first, mean = np.split(grad_output, 2, axis=-1)
    gradient = first_token_backward(first, shape)
    gradient[..., before:, :] += mean[..., None, :] / (shape[-2] - before)
    return gradient


def concat_pool(x: Array, real: Array) -> Array:
    """Last hidden state, maximum and mean of the tokens, side by side.

    x (..., T, D), real (..., T), True = a token, not padding -> (..., 3 D)

    Source: Howard and Ruder 2018, section 3.3. DataError for a text without tokens.

    >>> concat_pool(np.array([[1.0], [5.0], [3.0], [9.0]]), np.array([True, True, True, False])).tolist()
    [3.0, 5.0, 3.0]
    """
    require_last_tokens(x, real)
    return np.concatenate([last_token(x, real), max_pool(x, real), mean_pool(x, real)], axis=-1)


def concat_pool_backward(grad_output: Array, x: Array, real: Array) -> Array:
    """Gradient before `concat_pool`; the maximum's goes to the first of equal ones.

    grad_output (..., 3 D), x (..., T, D), real (..., T) -> (..., T, D)

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


def find_marked_tokens(ids: Array, real: Array | None, end: int | None) -> Array:
    """The first token that is an end token, or has the largest id: (..., T) -> (...).

    end   the id of an end token; None: the largest id of real (..., T) tokens counts. Without an end token it is the
          first token, as in transformers.

    >>> ids = np.array([[3, 9, 5, 9]])
    >>> find_marked_tokens(ids, None, 5).tolist(), find_marked_tokens(ids, None, None).tolist()
    ([2], [1])
    """
    marks = ids == end if end is not None else ids if real is None else np.where(real, ids, -1)
    places: Array = marks.argmax(axis=-1)
    return places


def require_last_tokens(x: Array, real: Array) -> None:
    """Raise DataError for a text without tokens, x (..., T, D), real (..., T)."""
    if not real.any(axis=-1).all():
        raise DataError(f"x {as_text(x.shape)} has a text without tokens, so there is no last one")


def last_tokens(real: Array) -> Array:
    """Index of the last real token of each text: (..., T) -> (...).

    >>> last_tokens(np.array([[True, True, False], [False, True, True]])).tolist()
    [1, 2]
    """
    places: Array = real.shape[-1] - 1 - real[..., ::-1].argmax(axis=-1)
    return places


def mean_sqrt_pool(x: Array, real: Array) -> Array:
    """Sum of the hidden states of real tokens over the root of their number.

    x (..., T, D), real (..., T) -> (..., D)

    >>> mean_sqrt_pool(np.array([[1.0], [3.0], [4.0], [0.0]]), np.ones(4, bool))
    array([4.])
    """
    weights = real[..., None].astype(x.dtype)
    mean: Array = (x * weights).sum(axis=-2) / np.sqrt(np.maximum(weights.sum(axis=-2), 1))
    return mean


def mean_sqrt_pool_backward(grad_output: Array, real: Array) -> Array:
    """Gradient before `mean_sqrt_pool`.

    grad_output (..., D), real (..., T) -> (..., T, D)

    >>> mean_sqrt_pool_backward(np.array([4.0]), np.array([True, True, True, True, False])).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0, 0.0]
    """
    weights = real[..., None].astype(grad_output.dtype)
    gradient: Array = grad_output[..., None, :] * weights / np.sqrt(np.maximum(weights.sum(axis=-2, keepdims=True), 1))
    return gradient


def weighted_mean_pool(x: Array, real: Array) -> Array:
    """Mean of the hidden states of real tokens, weighted by positions from 1.

    x (..., T, D), real (..., T) -> (..., D)

    >>> weighted_mean_pool(np.array([[6.0], [3.0], [9.0]]), np.array([True, True, False]))
    array([4.])
    """
    weights = (real * np.arange(1, x.shape[-2] + 1))[..., None].astype(x.dtype)
    mean: Array = (x * weights).sum(axis=-2) / np.maximum(weights.sum(axis=-2), 1)
    return mean


def weighted_mean_pool_backward(grad_output: Array, real: Array) -> Array:
    """Gradient before `weighted_mean_pool`.

    grad_output (..., D), real (..., T) -> (..., T, D)

    >>> weighted_mean_pool_backward(np.array([6.0]), np.array([True, True, False])).ravel().tolist()
    [2.0, 4.0, 0.0]
    """
    weights = (real * np.arange(1, real.shape[-1] + 1))[..., None].astype(grad_output.dtype)
    gradient: Array = grad_output[..., None, :] * weights / np.maximum(weights.sum(axis=-2, keepdims=True), 1)
    return gradient


def max_pool(x: Array, real: Array) -> Array:
    """Largest value of each column of the hidden states of real tokens.

    x (..., T, D), real (..., T) -> (..., D)

    >>> max_pool(np.array([[1.0, 5.0], [3.0, 2.0], [9.0, 9.0]]), np.array([True, True, False]))
    array([3., 5.])
    """
    largest: Array = np.where(real[..., None], x, -np.inf).max(axis=-2, initial=-np.inf).astype(x.dtype, copy=False)
    return largest


def max_pool_backward(grad_output: Array, x: Array, real: Array) -> Array:
    """Gradient before `max_pool`; that of equal values goes to the first of them.

    grad_output (..., D), x (..., T, D), real (..., T) -> (..., T, D)

    >>> max_pool_backward(np.array([7.0]), np.array([[3.0], [5.0], [5.0], [9.0]]), np.array([True] * 3 + [False])).T
    array([[0., 7., 0., 0.]])
    """
    places = np.where(real[..., None], x, -np.inf).argmax(axis=-2)[..., None, :]
    gradient = np.zeros(x.shape, grad_output.dtype)
    np.put_along_axis(gradient, places, grad_output[..., None, :], axis=-2)
    return gradient


def first_real_token(x: Array, real: Array) -> Array:
    """Hidden state of the first real token: (..., T, D), (..., T) -> (..., D).

    DataError for a text without tokens.

    >>> first_real_token(np.array([[1.0], [3.0]]), np.array([False, True]))
    array([3.])
    """
    require_tokens(x)
    return _token_at(x, real.argmax(axis=-1))


def first_real_token_backward(grad_output: Array, real: Array) -> Array:
    """Gradient of hidden states whose first real token alone was used.

    grad_output (..., D), real (..., T) -> (..., T, D)

    >>> first_real_token_backward(np.array([2.0]), np.array([False, True, True])).ravel().tolist()
    [0.0, 2.0, 0.0]
    """
    return _token_backward(grad_output, real.argmax(axis=-1), real.shape[-1])


def last_token(x: Array, real: Array) -> Array:
    """Hidden state of the last real token: (..., T, D), (..., T) -> (..., D).

    DataError for a text without tokens.

    >>> last_token(np.array([[1.0], [3.0], [9.0]]), np.array([True, True, False]))
    array([3.])
    """
    require_tokens(x)
    return _token_at(x, last_tokens(real))


def last_token_backward(grad_output: Array, real: Array) -> Array:
    """Gradient of hidden states whose last real token alone was used.

    grad_output (..., D), real (..., T) -> (..., T, D)

    >>> last_token_backward(np.array([2.0]), np.array([True, True, False])).tolist()
    [[0.0], [2.0], [0.0]]
    """
    return _token_backward(grad_output, last_tokens(real), real.shape[-1])


def require_tokens(x: Array) -> None:
    """Raise DataError for a text without tokens, x (..., T, D)."""
    if x.shape[-2] == 0:
        raise DataError(f"x {as_text(x.shape)} has no tokens")


def _token_at(x: Array, at: Array) -> Array:
    return np.take_along_axis(x, np.asarray(at)[..., None, None], axis=-2)[..., 0, :]


def _token_backward(grad_output: Array, at: Array, tokens: int) -> Array:
    is_used = np.arange(tokens) == np.asarray(at)[..., None]
    gradient: Array = np.where(is_used[..., None], grad_output[..., None, :], grad_output.dtype.type(0))
    return gradient


class TokenPooling(NamedTuple):
    """One vector of the tokens of a text, of x (..., T, D), and its adjoint.

    pool      (x, real tokens (..., T)) -> (..., D)
    backward  (gradient of the vector, x, real tokens) -> (..., T, D)
    """

    pool: Callable[[Array, Array], Array]
    backward: Callable[[Array, Array, Array], Array]


POOLINGS = {
    "cls": TokenPooling(first_real_token, lambda dy, x, real: first_real_token_backward(dy, real)),
    "mean": TokenPooling(mean_pool, lambda dy, x, real: mean_pool_backward(dy, real)),
    "max": TokenPooling(max_pool, max_pool_backward),
    "mean-sqrt": TokenPooling(mean_sqrt_pool, lambda dy, x, real: mean_sqrt_pool_backward(dy, real)),
    "weighted-mean": TokenPooling(weighted_mean_pool, lambda dy, x, real: weighted_mean_pool_backward(dy, real)),
    "last": TokenPooling(last_token, lambda dy, x, real: last_token_backward(dy, real)),
}


class HeadPooling(NamedTuple):
    """The vector that a head reads, of x (..., T, D), and its adjoint.

    pool      (x, real tokens (..., T), number of tokens before the patches) -> (..., P)
    backward  (gradient of the vector, x, real tokens, number of tokens before the patches) -> (..., T, D)
    """

    pool: Callable[[Array, Array, int], Array]
    backward: Callable[[Array, Array, Array, int], Array]


# Config.pooling -> the vector that the head reads; "pooler" is a layer
HEAD_POOLINGS = {
    "first": HeadPooling(
        lambda x, real, before: first_token(x), lambda dy, x, real, before: first_token_backward(dy, x.shape)
    ),
    "patches": HeadPooling(
        lambda x, real, before: patch_pool(x, before),
        lambda dy, x, real, before: patch_pool_backward(dy, x.shape, before),
    ),
    "mean": HeadPooling(
        lambda x, real, before: mean_pool(x, real), lambda dy, x, real, before: mean_pool_backward(dy, real)
    ),
    "late": HeadPooling(
        lambda x, real, before: mean_pool(x, real), lambda dy, x, real, before: mean_pool_backward(dy, real)
    ),
    "last": HeadPooling(
        lambda x, real, before: last_token(x, real), lambda dy, x, real, before: last_token_backward(dy, real)
    ),
    "concat": HeadPooling(
        lambda x, real, before: concat_pool(x, real), lambda dy, x, real, before: concat_pool_backward(dy, x, real)
    ),
}


@quiet
def l2_normalize(x: Array) -> Array:
    """x divided by its Euclidean norm; a row of zeros is unchanged.

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
def l2_normalize_backward(grad_output: Array, x: Array) -> Array:
    """Gradient before `l2_normalize`: dx = (dy - y (y · dy)) / |x|.

    For a row of zeros it is dy.

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


@quiet
def dense(x: Array, weight: Array, bias: Array | None, activation: str) -> Array:
    """Linear layer and activation of each vector; other vectors change no bits.

    x (..., D), weight (D, E), bias (E,) -> (..., E)

    >>> dense(np.array([1.0, 2.0]), np.eye(2), np.array([0.0, -3.0]), "relu")
    array([1., 0.])
    """
    y = linear(x[..., None, :], weight, bias)[..., 0, :]
    return ACTIVATIONS[activation](y)


@quiet
def dense_backward(grad_output: Array, x: Array, weight: Array, bias: Array | None, activation: str) -> LinearGradients:
    """Gradients of `dense`.

    grad_output (..., E), x (..., D), weight (D, E), bias (E,) -> x (..., D), weight (D, E), bias (E,)

    >>> dense_backward(np.array([5.0, 7.0]), np.array([1.0, 2.0]), np.eye(2), np.array([0.0, -3.0]), "relu").x
    array([5., 0.])
    """
    dy = activation_backward(activation, grad_output, linear(x[..., None, :], weight, bias)[..., 0, :])
    return linear_backward(dy, x, weight, bias)
