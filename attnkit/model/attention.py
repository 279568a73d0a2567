"""Scaled dot-product and multi-head attention, with every intermediate by name."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model import dense_attention, masks
from attnkit.model.checks import shown
from attnkit.model.dtypes import (
    ROUNDINGS,
    Array,
    DType,
    cast,
    cast_matrices,
    output_dtype,
    quiet,
    working,
)
from attnkit.model.embedding import check_ids
from attnkit.model.hooks import Hook, apply_hook, is_requested, no_hook, summary_names
from attnkit.model.linear import linear
from attnkit.model.rotary import rotate
from attnkit.model.scores import SCORES, Score, dot, identity

SQUARE = ("scores", "scaled", "capped", "masked", "weights")  # intermediates of every query with every key
MANY = 1 << 18  # scores of all heads, of one row of a batch, from which on blocks of them are faster than all at once
PARAMETERS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


def split_heads(x: Array, heads: int) -> Array:
    """The width of x cut into heads.

    x (..., T, H*K) -> (..., H, T, K)

    DataError where the width is not divisible, UsageError for heads < 1.

    >>> split_heads(np.array([[1, 2, 3, 4]]), 2).tolist()
    [[[1, 2]], [[3, 4]]]
    """
    if heads < 1:
        raise UsageError(f"heads {heads} (expected 1 or more)")
    if x.shape[-1] % heads:
        raise DataError(f"d_model {x.shape[-1]} is not divisible by heads {heads}")
    cut = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)  # (..., T, H, K)
    return np.ascontiguousarray(np.swapaxes(cut, -2, -3))


def merge_heads(x: Array) -> Array:
    """The heads of x side by side; the inverse of split_heads.

    x (..., H, T, K) -> (..., T, H*K)

    >>> merge_heads(np.array([[[1, 2]], [[3, 4]]])).tolist()
    [[1, 2, 3, 4]]
    """
    heads, _, width = x.shape[-3:]
    side = np.swapaxes(x, -2, -3)  # (..., T, H, K)
    return side.reshape(*side.shape[:-2], heads * width)


@quiet
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    align: str | None = None,
    window: tuple[int, int] = (-1, -1),
    lengths: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    score: str = "scaled-dot",
    score_params: Mapping[str, Array] | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past: int = 0,
    softmax_dtype: str | None = None,
    weights: str = "full",
    keep: Collection[str] | None = None,
    visit: Hook = no_hook,
) -> dict[str, Array]:
    """Each query's average of the values, weighted by the softmax of its scores against the keys.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> {"heads": (..., H, T, V), ...}

    The result holds, in this order: q, k, v, scores (raw), scaled, capped, masked (bias and mask added, -inf
    where blocked), weights, heads, lse (the logarithm of the sum of each query's exponentials, (..., H, T),
    float64), present_key, present_value. Query head h uses key head h // (H/G).

    mask      boolean or 0/1: True = may attend; float: added. It broadcasts to (..., H, T, S) as in NumPy;
              one whose last axis is shorter than the keys (and not 1) blocks the rest of them
    bias      added to the scores before the mask; broadcasts likewise
    causal    key j is seen iff j <= i + offset, see masks.causal_offset; window (left, right) likewise
    lengths   (B,) valid keys of each row of the batch
    scale     1/sqrt(K) for scaled-dot, else 1
    softcap   c: scores become c tanh(s/c); 0 is off
    past_*    (..., G, P, K) and (..., G, P, V): keys and values put before k and v
    past      how many of k and v belong to tokens before the first query
    softmax_dtype  rounds the scores before softmax and the weights after it
    weights   "stats", "topk:K" or "rows:I,J": what `inspection.views` says, in place of all of the weights
    keep      the intermediates to hand back beside the heads [all]; what nobody keeps or visits is not held
    visit     may look at any of them but lse and present_*, and replace it

    A query that may attend to nothing has weights and heads of zero, and a key of weight zero adds nothing,
    NaN and infinity included. Where there are many scores and nobody looks at them, they are computed block by
    block (blockwise.py) or, if they are rounded or no dot products, for some queries at a time (rowwise.py), which
    gives the same but for the last bits. Source: Attention Is All You Need, section 3.2.1; ONNX Attention-25.
    DataError where shapes do not meet, UsageError for options that exclude each other.

    >>> x = np.array([[[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]]])
    >>> attention(x, x, x)["heads"].round(4)
    array([[[0.8446, 0.5777, 0.8446, 0.5777],
            [0.5777, 0.8446, 0.5777, 0.8446],
            [0.7881, 0.7881, 0.7881, 0.7881]]])
    """
    result, dtype = output_dtype(q), working(q, k, v)
    function, params = _score(score, score_params, dtype)
    _check_operands(q, k, v, trailing=3, same_width=function.prepared is identity)
    q = apply_hook(visit, "q", cast(q, dtype))
    k, v = (apply_hook(visit, name, cast_matrices(x, dtype)) for name, x in (("k", k), ("v", v)))
    keys, values = _extended(k, past_key, "K", "past_key"), _extended(v, past_value, "V", "past_value")
    _check_options(past_key, past_value, lengths, softcap, softmax_dtype)
    past += keys.shape[-2] - k.shape[-2]
    if lengths is not None:
        lengths = _batch_lengths(lengths, q, keys.shape[-2])
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if score == "scaled-dot" else 1.0
    offset = masks.causal_offset(q.shape[-2], keys.shape[-2], align=align, past=past, lengths=lengths)
    place: dict[str, Any] = {"causal": causal, "window": window, "lengths": lengths}
    changes: dict[str, Any] = {"scale": float(scale), "softcap": float(softcap), "bias": bias, "mask": mask}
    views = summary_names(weights)
    if views and keep is not None and "weights" in keep:
        keep = {*keep, *views} - {"weights"}
    asked = partial(is_requested, keep, visit)
    viewed, whole, many = any(map(asked, views)), any(map(asked, SQUARE)), _many(q, keys)
    steps = {"q": q, "k": k, "v": v, "present_key": keys, "present_value": values}
    left, right = function.prepared(q, keys, params)
    unlogged = keep is not None and "lse" not in keep
    if many and unlogged and not (values.shape[-1] or viewed or whole):  # nothing to average
        steps["heads"] = np.zeros((*q.shape[:-1], 0), dtype)
    elif function.compared is dot and softmax_dtype is None and not whole and (viewed or many):
        from attnkit.model.kernels.tiled_attention import tiled_attention

        place |= {"align": align, "past": past}
        steps["heads"], steps["lse"] = tiled_attention(left, right, values, **place, **changes)
        if viewed:
            from attnkit.model.kernels import weight_stats

            steps |= weight_stats.summarize_weights(weights, left, right, **place, **changes)
    elif many and not whole:
        from attnkit.model.kernels.row_attention import row_attention

        how = weights if viewed else "full"
        steps |= row_attention(function, params, left, right, values, offset, softmax_dtype, how, **place, **changes)
    else:
        scores = function.compared(left, right, params)  # (..., H, T, S)
        allowed = dense_attention.allowed_cells(q.shape[-2], keys.shape[-2], offset, **place)
        logged = viewed or keep is None or "lse" in keep
        steps |= dense_attention.dense_attention(
            scores, values, allowed, softmax_dtype, logged, asked, visit, **changes
        )
        if viewed:
            from attnkit.model.kernels import weight_stats

            position = dense_attention.query_positions(slice(0, q.shape[-2]), offset)
            steps |= weight_stats.summarize_dense_weights(weights, steps.pop("weights"), steps["lse"], position)
    for name in ("heads", *views):
        if name in steps:
            steps[name] = apply_hook(visit, name, steps[name])
    order = [name for name in (*ORDER, *views) if name in steps and (name == "heads" or keep is None or name in keep)]
    return cast_intermediates(result, {name: steps[name] for name in order})


ORDER = ("q", "k", "v", *SQUARE, "heads", "lse", "present_key", "present_value")


def cast_intermediates(dtype: DType, steps: Mapping[str, Array]) -> dict[str, Array]:
    """The intermediates in the dtype of a result; what is said of weights keeps its own."""
    said = ("lse", "weights.")
    return {name: x if name.startswith(said) else x.astype(dtype, copy=False) for name, x in steps.items()}


def _many(q: Array, k: Array) -> bool:
    """Whether each row of the batch has so many scores that blocks of them pay."""
    heads, queries = q.shape[-3:-1]
    return bool(queries > 1 and heads * queries * k.shape[-2] >= MANY)


def _score(name: str, given: Mapping[str, Array] | None, dtype: DType) -> tuple[Score, dict[str, Array]]:
    if name not in SCORES:
        raise UsageError(f"score {name!r} (expected one of {', '.join(SCORES)})")
    score = SCORES[name]
    missing = [one for one in score.needs if one not in (given or {})]
    if missing:
        raise UsageError(f"score {name} needs {', '.join(missing)}")
    return score, {one: cast((given or {})[one], dtype) for one in score.needs}


def _check_operands(q: Array, k: Array, v: Array, *, trailing: int, same_width: bool) -> None:
    """DataError unless batch, heads, lengths and widths meet; the last `trailing` axes are not batch axes."""
    for name, x in (("Q", q), ("K", k), ("V", v)):
        if x.ndim not in (trailing, trailing + 1):
            raise DataError(
                f"{name} {shown(x.shape)}: rank {x.ndim} (expected {' or '.join(map(str, range(trailing, 5)))})"
            )
    for name, x, other, y in (("Q", q, "K", k), ("K", k, "V", v)):
        pair = f"{name} {shown(x.shape)} and {other} {shown(y.shape)}"
        if x.ndim != y.ndim:
            raise DataError(f"{pair}: rank {x.ndim} != {y.ndim}")
        if x.shape[:-trailing] != y.shape[:-trailing]:
            raise DataError(f"{pair}: batch {x.shape[0]} != {y.shape[0]}")
    if same_width and q.shape[-1] != k.shape[-1]:
        pair = f"Q {shown(q.shape)} and K {shown(k.shape)}"
        raise DataError(f"{pair}: last dimension {q.shape[-1]} != {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        pair = f"K {shown(k.shape)} and V {shown(v.shape)}"
        raise DataError(f"{pair}: {k.shape[-2]} keys but {v.shape[-2]} values")
    if trailing == 3:
        _check_head_counts(q, k, v)


def _check_head_counts(q: Array, k: Array, v: Array) -> None:
    heads, groups = q.shape[-3], k.shape[-3]
    if v.shape[-3] != groups:
        raise DataError(f"K {shown(k.shape)} and V {shown(v.shape)}: heads {groups} != {v.shape[-3]}")
    if heads < 1 or groups < 1 or heads % groups:
        pair = f"Q {shown(q.shape)} and K {shown(k.shape)}"
        raise DataError(f"{pair}: {heads} heads are not a multiple of {groups}")


def _extended(x: Array, past: Array | None, name: str, past_name: str) -> Array:
    if past is None:
        return x
    if past.ndim != x.ndim or past.shape[:-2] != x.shape[:-2] or past.shape[-1] != x.shape[-1]:
        pair = f"{past_name} {shown(past.shape)} and {name} {shown(x.shape)}"
        raise DataError(f"{pair}: they differ in more than length")
    return np.concatenate([cast(past, x.dtype), x], axis=-2)


def _check_options(
    past_key: Array | None,
    past_value: Array | None,
    lengths: ArrayLike | None,
    softcap: float,
    softmax_dtype: str | None,
) -> None:
    if (past_key is None) != (past_value is None):
        raise UsageError("past key and past value go together: only one was given")
    if past_key is not None and past_value is not None and past_key.shape[-2] != past_value.shape[-2]:
        pair = f"past_key {shown(past_key.shape)} and past_value {shown(past_value.shape)}"
        raise DataError(f"{pair}: {past_key.shape[-2]} keys but {past_value.shape[-2]} values")
    if past_key is not None and lengths is not None:
        raise UsageError("lengths and past keys exclude each other")
    if not 0 <= softcap < math.inf:
        raise UsageError(f"softcap {softcap} (expected a positive number, or 0 for none)")
    if softmax_dtype not in (None, *ROUNDINGS):
        raise UsageError(f"softmax dtype {softmax_dtype!r} (expected one of {', '.join(ROUNDINGS)})")


def _batch_lengths(lengths: ArrayLike, q: Array, keys: int) -> Array:
    valid, batch = check_ids(lengths, keys + 1, "length"), q.shape[:-3]
    if valid.shape != batch and not (valid.size == 1 and math.prod(batch) == 1 and valid.ndim < 2):
        raise DataError(f"lengths {shown(valid.shape)} for Q {shown(q.shape)}: expected {shown(batch)}")
    return valid.reshape(batch)


@quiet
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    params: Mapping[str, Array] | None = None,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    rotary: tuple[Array, Array] | None = None,
    remember: Callable[[Callable[[], tuple[Array, Array]]], tuple[Array, Array, int]] | None = None,
    past: int = 0,
    visit: Hook = no_hook,
    **options: Any,
) -> dict[str, Array]:
    """Attention of several heads, each with its own projection of queries, keys and values.

    query (..., T, D), key (..., S, D), value (..., S, D) -> {"output": (..., T, D), ...}

    `params` may hold wq, wk, wv, wo (in, out) and bq, bk, bv, bo; a missing projection is the identity. A
    query of rank 4 (B, H, T, K) is already split: nothing is projected, and its output keeps that rank.
    `rotary` is the cosines and sines (..., T, R/2) that queries and keys are rotated by. `remember` is called
    with what makes keys and values of this call, and gives all that there are and how many came before, as a
    Cache does. `past` and `options` are those of `attention`; the result has its entries, then the output. Source:
    Attention Is All You Need, section 3.2.2. DataError where shapes do not meet, UsageError for impossible
    head counts.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> multi_head_attention(x, x, x, {"wo": 2 * np.eye(2)}, heads=2)["output"].round(4)
    array([[1.4621, 1.    ],
           [1.    , 1.4621]])
    """
    params = params or {}
    unknown = [name for name in params if name not in PARAMETERS]
    if unknown:
        raise DataError(f"parameter {unknown[0]!r} is not one of {', '.join(PARAMETERS)}")
    if query.ndim == 4:
        if params:
            raise UsageError(f"x {shown(query.shape)} is already split into heads: no projection applies")
        steps = attention(query, key, value, past=past, visit=visit, **options)
        return steps | {"output": steps["heads"]}
    groups = heads if kv_heads is None else kv_heads
    if heads < 1 or groups < 1 or heads % groups:
        raise UsageError(f"heads {heads}, kv_heads {groups} (expected kv_heads to divide heads)")
    result, dtype = output_dtype(query), working(query, key, value, *params.values())
    same_width = heads == groups and options.get("score", "scaled-dot") in ("scaled-dot", "dot")

    def projected(x: Array, letter: str, name: str) -> Array:
        names = (name, f"w{letter}", f"b{letter}")
        return linear(cast(x, dtype), params.get(names[1]), params.get(names[2]), names=names)

    def turned(x: Array) -> Array:
        return x if rotary is None else rotate(x, *rotary)

    def pair() -> tuple[Array, Array]:
        k = projected(key, "k", "x" if key is query else "key")
        v = projected(value, "v", "x" if value is query else "value")
        _check_operands(q, k, v, trailing=2, same_width=same_width)
        return turned(split_heads(k, groups)), split_heads(v, groups)

    q = projected(query, "q", "x")
    k, v, past = remember(pair) if remember else (*pair(), past)
    steps = attention(turned(split_heads(q, heads)), k, v, past=past, visit=visit, **options)
    merged = merge_heads(steps["heads"])
    output = linear(merged, params.get("wo"), params.get("bo"), names=("heads", "wo", "bo"))
    steps["output"] = apply_hook(visit, "output", output)
    return cast_intermediates(result, steps)
