"""Adjoints of scaled dot-product and multi-head attention."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.attention import (
    SQUARE,
    attention,
    check_parameters,
    find_score,
    merge_heads,
    prepend_past,
    project_heads,
    view_heads,
    with_relative_scores,
)
from attnkit.model.backward.dense_attention import dense_attention_backward, finite
from attnkit.model.backward.linear import check_gradient, linear_backward, sum_to_shape
from attnkit.model.backward.relative import relative_scores_backward
from attnkit.model.backward.rotary import rotate_backward
from attnkit.model.backward.scores import SCORE_ADJOINTS, Gradients
from attnkit.model.checks import check_shapes
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.linear import linear
from attnkit.model.options import DEFAULT, MULTI_HEAD_DEFAULT, AttentionOptions, MultiHeadOptions
from attnkit.model.scores import SCORES, dot, identity

MANY = 1 << 14  # scores from which on blocks of them are faster than all at once
KEPT = 1 << 23  # scores up to which the forward pass keeps the weights, which is faster than computing them again


@quiet
def attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions = DEFAULT,
    *,
    saved: Mapping[str, Array] | None = None,
    hook: Hook = no_hook,
    **changes: Any,
) -> Gradients:
    """Return the gradients of `attention` with respect to its inputs, from the gradient of its heads.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), ...}

    The result also holds, each in the shape of its option, "bias", "mask" if it is a float, "past_key" and
    "past_value", and the parameters of the score by their names (wa, ua, va, or w). Gradients of what is shared or
    broadcast are summed: over the heads of a group, over the axes of a bias. A fully masked row adds nothing to any of
    them. Rounding to `softmax_dtype` is ignored, as if its derivative were 1.

    options  those of the forward pass; `changes` override single ones by name
    saved    what `attention_forward` or `attention` returned: heads, and weights or lse [computed again]
    hook     receives the gradient of any intermediate of `attention`, and may replace it

    Few scores are computed by the formula (dense_attention.py); many by blocks (kernels/fused_attention_backward.py)
    or, if they are no dot products, for some queries at a time (kernels/row_attention_backward.py): the result is the
    same within rounding, and memory grows with T + S.
    Source: Attention Is All You Need, section 3.2.1; Dao et al. 2022, appendix B. DataError where shapes do not
    match, UsageError for options that are mutually exclusive.

    >>> x = np.array([[[1.0], [0.0]]])  # one query that scores both keys 0: its weights are 1/2
    >>> grads = attention_backward(np.array([[[4.0]]]), np.array([[[0.0]]]), x, x)
    >>> {name: grad.ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0], 'k': [0.0, 0.0], 'v': [2.0, 2.0]}
    """
    options, dtype = options.replace(**changes), working(grad_output, q, k, v)
    check_gradient(grad_output, (*q.shape[:-1], v.shape[-1]), "heads")
    score, params = find_score(options, dtype)
    check_shapes(q, k, v, trailing=3, same_width=score.project is identity)
    grad_output, q, k, v = (np.asarray(x, dtype) for x in (apply_hook(hook, "heads", grad_output), q, k, v))
    keys, values, resolved = prepend_past(q, k, v, options, params)
    left, right = score.project(q, keys, params)
    gradients = _run_backward(grad_output, left, right, values, resolved, saved or {}, hook)
    project = SCORE_ADJOINTS[options.score].project
    dq, dk, extra = project(gradients["q"], gradients["k"], finite(q), finite(keys), params)
    gradients |= {"q": dq, "k": dk, **extra}
    if options.past_key is not None:
        gradients = _split_past(gradients, options.past_key.shape[-2])
    return gradients | {name: apply_hook(hook, name, gradients[name]) for name in "qkv"}


def _run_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions,
    saved: Mapping[str, Array],
    hook: Hook,
) -> Gradients:
    """Return the gradients by the fastest of the ways that can compute them, for projected queries and keys."""
    is_dot, scores = SCORES[options.score].score is dot, math.prod(q.shape[:-1]) * k.shape[-2]
    arrays = (grad_output, q, k, v)
    if (scores < MANY and "weights" not in saved) or any(hook(name) for name in SQUARE):
        grad_output, q, k, v = (cast(x, x.dtype) for x in arrays)
        return dense_attention_backward(grad_output, q, k, v, options, options.offset(q.shape[-2], k.shape[-2]), hook)
    if is_dot and scores and all(np.isfinite(x).all() for x in arrays):
        from attnkit.model.kernels.fused_attention_backward import fused_attention_backward

        if options.softmax_dtype is not None or "heads" not in saved or not {"weights", "lse"} & saved.keys():
            saved = attention_forward(q, k, v, options.replace(score="dot", score_params=None, softmax_dtype=None))
        return fused_attention_backward(grad_output, q, k, v, options, saved)
    from attnkit.model.kernels.row_attention_backward import row_attention_backward

    grad_output, q, k, v = (cast(x, x.dtype) for x in arrays)
    return row_attention_backward(grad_output, q, k, v, options)


def attention_forward(
    q: Array, k: Array, v: Array, options: AttentionOptions = DEFAULT, **changes: Any
) -> dict[str, Array]:
    """Return the heads of `attention`, and its weights or log-sum-exps, which its adjoint needs.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V)
    -> {"heads": (..., H, T, V), "weights": (..., H, T, S), or else "lse": (..., H, T)}

    The weights are returned where they are few, and computed by blocks on every core; heads equal those of `attention`
    but for the last bits. Errors are those of `attention`.

    >>> x = np.eye(2)[None]
    >>> {name: array.round(2).tolist() for name, array in attention_forward(x, x, x, causal=True).items()}
    {'heads': [[[1.0, 0.0], [0.33, 0.67]]], 'weights': [[[1.0, 0.0], [0.33, 0.67]]]}
    """
    options, dtype = options.replace(**changes), working(q, k, v)
    score, params = find_score(options, dtype)
    check_shapes(q, k, v, trailing=3, same_width=score.project is identity)
    if score.score is not dot or options.softmax_dtype is not None:
        return attention(q, k, v, options, keep=("lse",))
    from attnkit.model.kernels.fused_attention import fused_attention
    from attnkit.model.kernels.tiled_attention import tiled_attention

    result, (q, k, v) = output_dtype(q), (np.asarray(x, dtype) for x in (q, k, v))
    keys, values, resolved = prepend_past(q, k, v, options, params)
    left, right = score.project(q, keys, params)
    if 0 < math.prod(q.shape[:-1]) * keys.shape[-2] <= KEPT and np.isfinite(values).all():
        name, (heads, other) = "weights", fused_attention(left, right, values, resolved)
    else:
        name, (heads, other) = "lse", tiled_attention(left, right, values, resolved)
    return {"heads": heads.astype(result, copy=False), name: other}


def _split_past(gradients: Gradients, past: int) -> Gradients:
    """Return gradients with those of past keys and values apart from those of this call's."""
    k, v = gradients["k"], gradients["v"]
    parts = {"k": k[..., past:, :], "v": v[..., past:, :], "past_key": k[..., :past, :], "past_value": v[..., :past, :]}
    return gradients | parts


SAVED = ("q", "k", "v", "heads", "lse")  # the intermediates of `multi_head_attention` that its adjoint takes


def multi_head_attention_forward(
    query: Array,
    key: Array,
    value: Array,
    params: Mapping[str, Array] | None = None,
    options: MultiHeadOptions = MULTI_HEAD_DEFAULT,
    **changes: Any,
) -> tuple[Array, dict[str, Array]]:
    """Return multi-head attention, and what `multi_head_attention_backward` needs of it.

    query (..., T, D), key (..., S, D), value (..., S, D)
    -> (..., T, D), {"query": ..., "key": ..., "value": ..., "q": (..., H, T, K), "k": (..., G, S, K),
    "v": (..., G, S, V), "heads": (..., H, T, V), and "weights": (..., H, T, S) or "lse": (..., H, T)}

    Arguments and errors are those of `multi_head_attention`; UsageError for a cache of keys.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> output, saved = multi_head_attention_forward(x, x, x, {"wo": 2 * np.eye(2)}, heads=2)
    >>> output.round(4).tolist(), saved["heads"].shape
    ([[1.4621, 1.0], [1.0, 1.4621]], (2, 2, 1))
    """
    options, params = options.replace(**changes), params or {}
    if options.kv_store is not None:
        raise UsageError("a cache of keys and values has no gradients: expected all tokens in one call")
    check_parameters(query, params)
    inputs = {"query": query, "key": key, "value": value}
    if query.ndim == 4:
        saved = attention_forward(query, key, value, options)
        return saved["heads"], {**inputs, "q": query, "k": key, "v": value, **saved}
    dtype = working(query, key, value, *params.values())
    q, k, v, _ = project_heads(query, key, value, params, options, dtype)
    saved = attention_forward(q, k, v, with_relative_scores(options, q, k))
    output = linear(merge_heads(saved["heads"]), params.get("wo"), params.get("bo"), names=("heads", "wo", "bo"))
    return output.astype(output_dtype(query), copy=False), {**inputs, "q": q, "k": k, "v": v, **saved}


@quiet
def multi_head_attention_backward(
    grad_output: Array,
    saved: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    options: MultiHeadOptions = MULTI_HEAD_DEFAULT,
    *,
    hook: Hook = no_hook,
    **changes: Any,
) -> tuple[Gradients, Gradients]:
    """Return the gradients of `multi_head_attention` with respect to its inputs, and to its parameters.

    grad_output (..., T, D), saved as `multi_head_attention_forward` returns it
    -> {"query": (..., T, D), "key": (..., S, D), "value": (..., S, D), ...}, {"wq": (D, H*K), ...}

    The first result also holds the gradients of options: see `attention_backward`. The second has the keys of `params`.
    `hook` receives the gradient of any intermediate of `multi_head_attention`, and may replace it.
    Where one array is query, key and value, its gradient is the sum of three. DataError where shapes do not match.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> output, saved = multi_head_attention_forward(x, x, x, {"wo": 2 * np.eye(2)})
    >>> inputs, weights = multi_head_attention_backward(np.ones((2, 2)), saved, {"wo": 2 * np.eye(2)})
    >>> inputs["value"].round(4).tolist(), weights["wo"].round(4).tolist()
    ([[2.0, 2.0], [2.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]])
    """
    options, params = options.replace(**changes), params or {}
    request: Any = {"saved": saved, "hook": hook}
    if saved["query"].ndim == 4:
        return _rename(attention_backward(grad_output, saved["q"], saved["k"], saved["v"], options, **request)), {}
    grad_output = apply_hook(hook, "output", grad_output)
    merged = merge_heads(saved["heads"])
    dheads, weights = _linear(grad_output, merged, params, "o")
    dheads = view_heads(dheads, options.heads)
    backward = _relative_attention_backward if options.relative is not None else attention_backward
    gradients = backward(dheads, saved["q"], saved["k"], saved["v"], options, **request)
    if options.rotary is not None:
        gradients |= {name: rotate_backward(gradients[name], *options.rotary) for name in ("q", "k")}
    for name, source in (("q", "query"), ("k", "key"), ("v", "value")):
        gradients[name], parts = _linear(merge_heads(gradients[name]), saved[source], params, name)
        weights |= parts
    return _rename(gradients), {name: weights[name] for name in params}


def _relative_attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: MultiHeadOptions,
    *,
    saved: Mapping[str, Array],
    hook: Hook,
) -> Gradients:
    """Return the gradients of attention with relative positions; those of their parameters as "relative.table" …"""
    if options.relative is None:
        return {}
    whole = with_relative_scores(options, q, k)
    gradients = attention_backward(
        grad_output, q, k, v, whole, saved=saved, hook=lambda name: None if name in ("q", "k") else hook(name)
    )
    bias = gradients.pop("bias")
    if options.bias is not None:
        gradients["bias"] = sum_to_shape(bias, options.bias.shape)
    scores = apply_hook(hook, "relative", bias) * q.dtype.type(options.scale_for(q.shape[-1]))
    parts = relative_scores_backward(scores, q, k, options.relative)
    for name in ("q", "k"):
        gradients[name] = apply_hook(hook, name, gradients[name] + parts.pop(name))
    return gradients | {f"relative.{name}": part for name, part in parts.items()}


def _rename(gradients: Gradients) -> Gradients:
    """Return gradients with those of queries, keys and values under the names of the inputs."""
    names = {"q": "query", "k": "key", "v": "value"}
    return {names.get(name, name): gradient for name, gradient in gradients.items()}


def _linear(grad_output: Array, x: Array, params: Mapping[str, Array], letter: str) -> tuple[Array, Gradients]:
    """Return the gradients of a projection: of its input, and of its weight and bias by their names."""
    gradients = linear_backward(grad_output, x, params.get(f"w{letter}"), params.get(f"b{letter}"))
    parts = {f"w{letter}": gradients.weight, f"b{letter}": gradients.bias}
    return gradients.x, {name: part for name, part in parts.items() if part is not None}


@quiet
def merge_partial_attention_backward(
    grad_output: Array, grad_lse: Array, outputs: Sequence[Array], lses: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Return the gradients of the parts that `merge_partial_attention` merges, of the output and the lse of each.

    grad_output (..., H, T, V), grad_lse (..., H, T), outputs (..., H, T, V) and lses (..., H, T) of each part
    -> (..., H, T, V), (..., H, T) for each part

    With the share P = exp(lse of the part - lse) of a part: dO_i = P_i dO and dlse_i = P_i (dO · (O_i - O) + dlse). A
    part without keys for a query has zeros there.

    >>> outputs, lses = [np.array([[[1.0]]]), np.array([[[4.0]]])], [np.array([[0.0]]), np.log([[2.0]])]  # 1/3, 2/3
    >>> parts = merge_partial_attention_backward(np.array([[[3.0]]]), np.array([[0.0]]), outputs, lses)
    >>> [(output.round(4).item(), lse.round(4).item()) for output, lse in parts]
    [(1.0, -2.0), (2.0, 2.0)]
    """
    from attnkit.model.kernels.tiled_attention import merge_partial_attention

    dtype = working(grad_output, *outputs)
    wide = [np.asarray(output, np.float64) for output in outputs]
    merged, lse = merge_partial_attention(wide, lses)
    parts = []
    for output, part in zip(wide, lses, strict=True):
        share = np.exp(np.where(part == -np.inf, -np.inf, part - lse))
        along = (grad_output * np.where(share[..., None] == 0, 0, output - merged)).sum(axis=-1)
        gradients = share[..., None] * grad_output, share * (along + grad_lse)
        parts.append((gradients[0].astype(dtype), gradients[1]))
    return parts
