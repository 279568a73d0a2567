"""Attention masks: boolean, True = may attend, combined with &.

In every mask query i has position i + offset and key j position j.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, index
from attnkit.model.dtypes import Array
from attnkit.model.formulas.embedding import check_ids

ALIGNMENTS = ("top-left", "bottom-right")


def causal_offset(
    queries: int, keys: int, *, align: str | None = None, past: int = 0, lengths: ArrayLike | None = None
) -> int | Array:
    """Position of query 0 among the keys.

    It is `past`, or lengths - T with lengths. An alignment overrides both.

    lengths (B,) -> (B,), without lengths -> one number

    top-left is 0, bottom-right is S - T, both after the past. Source: ONNX Attention-23 to 25. UsageError for
    an unknown alignment.

    >>> causal_offset(2, 5), causal_offset(2, 5, align="bottom-right"), causal_offset(2, 5, past=3)
    (0, 3, 3)
    """
    if align not in (None, *ALIGNMENTS):
        raise UsageError(f"align {align!r} (expected {' or '.join(ALIGNMENTS)})")
    if align is None and lengths is not None:
        offsets: Array = np.asarray(lengths) - queries
        return offsets
    return keys - queries if align == "bottom-right" else past


def real_tokens(mask: Array | None, batch: int, tokens: int) -> Array | None:
    """Which tokens of a batch are no padding, (B, T); None: all.

    mask  (B, 1, S), True = a token, of a padded batch; the last T keys are the tokens

    DataError for another mask, by which states cannot be carried.

    >>> real_tokens(np.array([[[True, True, False]]]), 1, 2)
    array([[ True, False]])
    """
    if mask is None or mask.all():
        return None
    is_padding = mask.dtype == bool and mask.shape[-2:-1] == (1,) and mask.size == batch * mask.shape[-1]
    if not is_padding or mask.shape[-1] < tokens:
        expected = as_text((batch, 1, tokens))
        problem = f"{as_text(mask.shape)} for a layer that carries states (expected that of a padded batch, {expected})"
        raise DataError.about("mask", problem)
    return mask.reshape(batch, -1)[:, mask.shape[-1] - tokens :]


def _grid(queries: int, keys: int, offset: ArrayLike) -> tuple[Array, Array]:
    return np.arange(queries)[:, None] + np.asarray(offset)[..., None, None], np.arange(keys)


def causal_mask(queries: int, keys: int, offset: ArrayLike = 0) -> Array:
    """Causal mask: query i may attend to key j if j <= i + offset.

    offset () or (B,) -> (T, S) or (B, T, S)

    >>> causal_mask(2, 3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0]])
    """
    i, j = _grid(queries, keys, offset)
    allowed: Array = j <= i
    return allowed


def window_mask(queries: int, keys: int, left: int, right: int, offset: ArrayLike = 0) -> Array:
    """Sliding-window mask: `left` keys before each query, `right` after it; -1: all.

    offset () or (B,) -> (T, S) or (B, T, S)

    UsageError for a bound below -1.

    >>> window_mask(3, 3, 1, 0).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    if min(left, right) < -1:
        raise UsageError(f"window {left},{right} (expected -1 or more on each side)")
    i, j = _grid(queries, keys, offset)
    allowed: Array = ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
    return allowed


def prefix_mask(queries: int, keys: int, length: int, offset: ArrayLike = 0) -> Array:
    """Prefix mask: causal, but all may attend to the first `length` keys.

    offset () or (B,) -> (T, S) or (B, T, S)

    >>> prefix_mask(3, 3, 2).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    if length < 0:
        raise UsageError(f"prefix {length} (expected 0 or more)")
    return causal_mask(queries, keys, offset) | (np.arange(keys) < length)


def padding_mask(lengths: ArrayLike, keys: int) -> Array:
    """Padding mask: only the first `length` keys of each row are real.

    lengths (B,) -> (B, 1, S), or () -> (1, S)

    DataError for a length outside 0..S, and for lengths of more than one axis.

    >>> padding_mask([1, 2], 3).astype(int)
    array([[[1, 0, 0]],
    <BLANKLINE>
           [[1, 1, 0]]])
    """
    valid = check_ids(lengths, keys + 1, "length")
    if valid.ndim > 1:
        raise DataError.about("lengths", f"{as_text(valid.shape)}: expected one for each row of the batch, (B)")
    allowed: Array = np.arange(keys) < valid[..., None, None]
    return allowed


def segment_mask(query_ids: ArrayLike, key_ids: ArrayLike) -> Array:
    """Mask of packed documents: a query may attend to its own segment.

    query_ids (..., T), key_ids (..., S) -> (..., T, S)

    DataError for ids that are a single number.

    >>> segment_mask([0, 0, 1], [0, 0, 1]).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    queries, keys = np.asarray(query_ids), np.asarray(key_ids)
    if not (queries.ndim and keys.ndim):
        raise DataError.about("segments", "(): a single number (expected one for each token)")
    same: Array = queries[..., :, None] == keys[..., None, :]
    return same


def chunk_mask(queries: int, keys: int, size: int, offset: ArrayLike = 0) -> Array:
    """Chunked mask: a query may attend to its own chunk of `size` positions.

    offset () or (B,) -> (T, S) or (B, T, S)

    >>> chunk_mask(3, 3, 2).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    if size < 1:
        raise UsageError(f"chunk size {size} (expected 1 or more)")
    i, j = _grid(queries, keys, offset)
    allowed: Array = i // size == j // size
    return allowed


def to_boolean(mask: Array) -> Array:
    """Convert a mask of booleans, or of the integers 0 and 1, to booleans.

    mask (...) -> (...)

    DataError names the first value that is neither.

    >>> to_boolean(np.array([1, 0]))
    array([ True, False])
    """
    if mask.dtype.kind not in "iub":
        raise DataError.about("mask", f"is {mask.dtype} (expected booleans, or whole numbers 0 and 1)")
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        place = index(bad)
        where = f" at {place}" if place else ""
        raise DataError.about("mask", f"value {mask[bad][0]}{where} (expected 0 or 1, or a float mask to add)")
    return mask.astype(bool)


def mask_block(scores: Array, allowed: Array, fill: float = -np.inf, xp: Any = np) -> Array:
    """Scores where attention is allowed, and `fill` elsewhere.

    scores (...), allowed (...) -> (...); xp the module of the arrays

    >>> mask_block(np.array([1.5, 2.5]), np.array([True, False]))
    array([ 1.5, -inf])
    """
    masked: Array = xp.where(allowed, scores, np.asarray(fill).astype(scores.dtype))
    return masked


def to_additive(mask: Array, dtype: DTypeLike = np.float32, fill: float = -np.inf) -> Array:
    """Convert a mask to one that is added to scores: 0 if allowed, else `fill`.

    mask (...) -> (...)

    >>> to_additive(np.array([True, False]))
    array([  0., -inf], dtype=float32)
    """
    return mask_block(np.zeros((), dtype), to_boolean(mask), fill)


def mask_lengths(mask: Array) -> Array:
    """Lengths of a padding mask: leading keys that every query may attend to.

    mask (..., T, S) -> (...) int64

    DataError unless the mask is exactly a padding mask.

    >>> mask_lengths(padding_mask([1, 2], 3))
    array([1, 2])
    """
    if mask.ndim < 2:
        raise DataError.about("mask", f"{as_text(mask.shape)}: rank {mask.ndim}, expected 2 or more (query, key)")
    allowed = to_boolean(mask)
    lengths: Array = np.asarray(allowed.all(axis=-2).sum(axis=-1))
    different = allowed != padding_mask(lengths, mask.shape[-1])
    if different.any():
        raise DataError.about("mask", f"is not a padding mask: {index(different)} breaks a run of leading keys")
    return lengths.astype(np.int64)
