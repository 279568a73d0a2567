"""Attention from its scores on, as the formula says it: every query of a block with every key, step by step."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from attnkit.model import masks
from attnkit.model.checks import fit, shown
from attnkit.model.dtypes import Array, DType, cast, is_float, rounded
from attnkit.model.hooks import Hook, apply_hook
from attnkit.model.scores import log_sum_exp, product, softmax


def dense_attention(
    scores: Array,
    values: Array,
    allowed: Array | None,
    softmax_dtype: str | None,
    logged: bool,
    wanted: Callable[[str], bool],
    visit: Hook,
    *,
    scale: float,
    softcap: float,
    bias: Array | None,
    mask: Array | None,
) -> dict[str, Array]:
    """The heads and weights, from the raw scores, with the steps that are wanted and, if `logged`, the log-sum-exps.

    scores (..., H, T, S), values (..., G, S, V), allowed (..., 1, T, S) -> {"heads": (..., H, T, V), ...}

    The options are those of `attention`. A step that is not wanted is worked on in place, `scores` as well.
    """
    scores = apply_hook(visit, "scores", scores)
    scaled = apply_hook(visit, "scaled", np.multiply(scores, scale, out=None if wanted("scores") else scores))
    capped = scaled
    if softcap:
        capped = np.divide(scaled, softcap, out=None if wanted("scaled") else scaled)
        np.tanh(capped, out=capped)
        capped *= softcap
    capped = apply_hook(visit, "capped", capped)
    masked = apply_hook(visit, "masked", _masked(capped, bias, mask, allowed))
    weights = apply_hook(visit, "weights", _shares(masked, softmax_dtype))
    steps = {"scores": scores, "scaled": scaled, "capped": capped, "masked": masked}
    steps = {name: step for name, step in steps.items() if wanted(name)} | {"weights": weights}
    if logged:
        steps["lse"] = log_sum_exp(masked if softmax_dtype is None else rounded(masked, softmax_dtype))
    steps["heads"] = _weighted(weights, values)
    return steps


def allowed_cells(
    queries: int, keys: int, offset: int | Array, *, causal: bool, window: tuple[int, int], lengths: Array | None
) -> Array | None:
    """What lengths, causality and window let each query see, (..., 1, T, S); None when that is all."""
    rules = []
    if lengths is not None:
        rules.append(masks.padding_mask(lengths, keys))
    if causal and not (queries == 1 and isinstance(offset, int) and offset >= keys - 1):  # a last query sees all
        rules.append(masks.causal_mask(queries, keys, offset))
    if window != (-1, -1):
        rules.append(masks.window_mask(queries, keys, *window, offset))
    return np.expand_dims(reduce(np.logical_and, rules), -3) if rules else None


def query_positions(queries: slice, offset: int | Array) -> Array:
    """Where queries stand among the keys, the first of all at offset () or (B,): (1, T) or (B, 1, T).

    >>> query_positions(slice(1, 3), 4).tolist(), query_positions(slice(0, 2), np.array([0, 5])).tolist()
    ([[5, 6]], [[[0, 1]], [[5, 6]]])
    """
    return np.asarray(offset)[..., None, None] + np.arange(queries.start, queries.stop)


def broadcast_mask(
    mask: Array | None, bias: Array | None, shape: tuple[int, ...], dtype: DType
) -> tuple[Array | None, Array | None]:
    """Mask and bias broadcast to scores of that shape and dtype; the last axis of a shorter mask stays as it is.

    A mask of 0 and 1 becomes a boolean one. DataError where they do not fit.

    >>> mask, bias = broadcast_mask(np.array([[True, False]]), None, (2, 3, 4), np.dtype(float))
    >>> mask.shape, bias
    ((2, 3, 2), None)
    """
    target, keys = f"scores {shown(shape)}", shape[-1]
    if mask is not None:
        mask = mask.astype(dtype, copy=False) if is_float(mask.dtype) else masks.to_boolean(mask)
        until = mask.shape[-1] if mask.ndim and mask.shape[-1] != 1 else keys
        mask = fit(mask, (*shape[:-1], min(until, keys)), f"mask {shown(mask.shape)}", target)
    if bias is not None:
        bias = fit(bias.astype(dtype, copy=False), shape, f"bias {shown(bias.shape)}", target)
    return mask, bias


def _shares(masked: Array, softmax_dtype: str | None) -> Array:
    """The softmax of the scores, both rounded to a dtype where one is asked for."""
    if softmax_dtype is None:
        return softmax(masked)
    return rounded(softmax(rounded(masked, softmax_dtype)), softmax_dtype).astype(masked.dtype)


def _masked(scores: Array, bias: Array | None, mask: Array | None, allowed: Array | None) -> Array:
    """The scores with bias and float mask added, blocked where `mask` or `allowed` say so."""
    target = f"scores {shown(scores.shape)}"
    if bias is not None:
        scores = scores + fit(cast(bias, scores.dtype), scores.shape, f"bias {shown(bias.shape)}", target)
    if mask is not None:
        added = cast(mask, scores.dtype) if is_float(mask.dtype) else None
        seen = masks.to_boolean(mask) if added is None else ~np.isneginf(added)
        seen = fit(_lengthened(seen, scores.shape[-1]), scores.shape, f"mask {shown(mask.shape)}", target)
        allowed = seen if allowed is None else seen & allowed
        scores = scores if added is None else scores + _lengthened(added, scores.shape[-1])
    return scores if allowed is None else masks.mask_block(scores, allowed)


def _lengthened(mask: Array, keys: int) -> Array:
    """A mask shorter than the keys, with zeros (False) for the rest; one of length 1 broadcasts instead."""
    if mask.ndim == 0 or mask.shape[-1] == 1 or mask.shape[-1] >= keys:
        return mask
    rest = np.zeros((*mask.shape[:-1], keys - mask.shape[-1]), mask.dtype)
    return np.concatenate([mask, rest], axis=-1)


def _weighted(weights: Array, v: Array) -> Array:
    """The weighted sum of values, where 0 x NaN is 0: what a query may not see cannot reach it."""
    finite = np.isfinite(v)
    if finite.all():
        return product(weights, v)
    touching = (weights != 0).astype(v.dtype)
    above, below, nan = (product(touching, which.astype(v.dtype)) for which in (v == np.inf, v == -np.inf, np.isnan(v)))
    return add_infinite_values(product(weights, np.where(finite, v, 0)), above, below, nan)


def add_infinite_values(finite: Array, above: Array, below: Array, nan: Array) -> Array:
    """Averages of finite values, with those that are not wherever the weight of some is above 0; all of one shape.

    >>> add_infinite_values(*np.array([[1.0, 1.0, 1.0], [0, 0.5, 0], [0, 0, 0], [0, 0, 0.5]])).tolist()
    [1.0, inf, nan]
    """
    for weight, value in ((above, np.inf), (below, -np.inf), (nan, np.nan)):
        finite = finite + np.where(weight > 0, value, 0).astype(finite.dtype)
    return finite
