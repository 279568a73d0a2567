"""Heads as an axis of their own: split, merged, and as views without a copy."""

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.dtypes import Array


def split_heads(x: Array, heads: int) -> Array:
    """Split the width of x into heads.

    x (..., T, H*K) -> (..., H, T, K)

    DataError if the width is not divisible, UsageError for heads < 1.

    >>> split_heads(np.array([[1, 2, 3, 4]]), 2).tolist()
    [[[1, 2]], [[3, 4]]]
    """
    return np.ascontiguousarray(view_heads(x, heads))


def view_heads(x: Array, heads: int) -> Array:
    """Split the width of x into heads, as a view of x if possible.

    x (..., T, H*K) -> (..., H, T, K)

    >>> x = np.array([[1, 2, 3, 4]])
    >>> np.shares_memory(view_heads(x, 2), x)
    True
    """
    if heads < 1:
        raise UsageError(f"heads {heads} (expected 1 or more)")
    if x.shape[-1] % heads:
        raise DataError(f"d_model {x.shape[-1]} is not divisible by heads {heads}")
    cut = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)  # (..., T, H, K)
    return np.swapaxes(cut, -2, -3)


def merge_heads(x: Array) -> Array:
    """Concatenate the heads of x; the inverse of split_heads.

    x (..., H, T, K) -> (..., T, H*K)

    >>> merge_heads(np.array([[[1, 2]], [[3, 4]]])).tolist()
    [[1, 2, 3, 4]]
    """
    heads, _, width = x.shape[-3:]
    side = np.swapaxes(x, -2, -3)  # (..., T, H, K)
    return side.reshape(*side.shape[:-2], heads * width)
