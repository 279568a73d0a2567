"""Pooling: one vector of the hidden states of a text."""

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, quiet


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
    if not real.any(axis=-1).all():
        raise DataError(f"x {as_text(x.shape)} has a text without tokens, so there is no last one")
    last = np.take_along_axis(x, last_tokens(real)[..., None, None], axis=-2)[..., 0, :]
    highest = np.where(real[..., None], x, -np.inf).max(axis=-2).astype(x.dtype, copy=False)
    return np.concatenate([last, highest, mean_pool(x, real)], axis=-1)


def last_tokens(real: Array) -> Array:
    """Return the index of the last token of each text that is no padding: (..., T) -> (...).

    >>> last_tokens(np.array([[True, True, False], [False, True, True]])).tolist()
    [1, 2]
    """
    places: Array = real.shape[-1] - 1 - real[..., ::-1].argmax(axis=-1)
    return places


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
