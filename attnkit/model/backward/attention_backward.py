"""Adjoints of scaled dot-product attention, dense or blocked, and multi-head."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.attention import (
    attention,
    check_parameters,
    find_score,
    gate_heads,
    multi_head_attention,
    normalize_heads,
    prepend_past,
    project_heads,
    with_relative_scores,
    with_sinks,
)
from attnkit.model.checks import check_gradient, check_shapes
from attnkit.model.dtypes import Array, cast, is_float, output_dtype, quiet, working
from attnkit.model.formulas import dense_attention
from attnkit.model.formulas.activations import activation_backward, sigmoid
from attnkit.model.formulas.dense_attention import DEFAULT, MULTI_HEAD_DEFAULT, AttentionOptions, MultiHeadOptions
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.latent import latent_backward
from attnkit.model.formulas.linear import linear, projection_backward, scaled, sum_to_shape
from attnkit.model.formulas.norms import QueryKeyNorm, layer_norm_vjp, rms_norm_vjp
from attnkit.model.formulas.relative import relative_scores_backward
from attnkit.model.formulas.rotary import rotate
from attnkit.model.formulas.scores import SCORES, Gradients, dot, identity, product_backward
from attnkit.model.formulas.softmax import softmax_backward
from attnkit.model.hooks import Hook, Requested, apply_hook, no_hook
from attnkit.model.intermediates import SQUARE
from attnkit.model.processor.threads import split_range

MANY = 1 << 14  # scores from which on blocks of them are faster than all at once
KEPT = 1 << 23  # scores up to which the forward pass keeps the weights, which is faster than computing them again
PART = 1 << 21  # approximate number of scores (or of terms in them) of the queries of `row_attention_backward`
SAVED = ("q", "k", "v", "heads", "lse", "gate", "gated_heads")  # of `multi_head_attention`, which its adjoint reads


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
    """Gradients of the inputs of `attention` from the gradient of its heads.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), ...}

    The result also contains, each in the shape of its option, "bias", "mask" if it is a float, "past_key" and
    "past_value", and the parameters of the score by their names (wa, ua, va, or w). Gradients of what is shared or
    broadcast are summed: over the heads of a group, over the axes of a bias. A fully masked row adds nothing to any of
    them. Rounding to `softmax_dtype` is ignored, as if its derivative were 1.

    options  the options of the forward pass; `changes` override single ones by name
    saved    the result of `attention_forward` or `attention`: heads, and weights or lse [computed again]
    hook     receives the gradient of any intermediate of `attention`, and may replace it

    Few scores are computed by the formula (`dense_attention_backward`). Many are computed by blocks
    (kernels/fused_attention.py) or, if they are not dot products, for some queries at a time
    (`row_attention_backward`): the result is the same within rounding, and memory grows with T + S.
    Source: Attention Is All You Need, section 3.2.1; Dao et al. 2022, appendix B. DataError if shapes do not
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
    dq, dk, extra = score.project_backward(gradients["q"], gradients["k"], finite(q), finite(keys), params)
    gradients |= {"q": dq, "k": dk, **extra}
    if options.past_key is not None:
        past = options.past_key.shape[-2]
        for name in "kv":
            long = "past_key" if name == "k" else "past_value"
            gradients[long], gradients[name] = gradients[name][..., :past, :], gradients[name][..., past:, :]
    return gradients | {name: apply_hook(hook, name, gradients[name]) for name in "vkq"}  # the opposite of forward


def _run_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions,
    saved: Mapping[str, Array],
    hook: Hook,
) -> Gradients:
    is_dot, scores = SCORES[options.score].score is dot, math.prod(q.shape[:-1]) * k.shape[-2]
    arrays = (grad_output, q, k, v)
    if (scores < MANY and "weights" not in saved) or any(hook(name) for name in SQUARE):
        grad_output, q, k, v = (cast(x, x.dtype) for x in arrays)
        return dense_attention_backward(grad_output, q, k, v, options, options.offset(q.shape[-2], k.shape[-2]), hook)
    if is_dot and scores and all(np.isfinite(x).all() for x in arrays):
        from attnkit.model.kernels.fused_attention import fused_attention_backward

        if options.softmax_dtype is not None or "heads" not in saved or not {"weights", "lse"} & saved.keys():
            saved = attention_forward(q, k, v, options.replace(score="dot", score_params=None, softmax_dtype=None))
        return fused_attention_backward(grad_output, q, k, v, options, saved)
    grad_output, q, k, v = (cast(x, x.dtype) for x in arrays)
    return row_attention_backward(grad_output, q, k, v, options)


def attention_forward(
    q: Array, k: Array, v: Array, options: AttentionOptions = DEFAULT, **changes: Any
) -> dict[str, Array]:
    """Heads of `attention`, and the weights or log-sum-exps for its adjoint.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V)
    -> {"heads": (..., H, T, V), "weights": (..., H, T, S), or else "lse": (..., H, T)}

    The weights are returned if they are few. Both are computed by blocks on every core; heads equal the result of
    `attention` but for the last bits, and the errors are the same.

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
    is_small = 0 < math.prod(q.shape[:-1]) * keys.shape[-2] <= KEPT
    if is_small and resolved.sinks is None and np.isfinite(values).all():
        name, (heads, other) = "weights", fused_attention(left, right, values, resolved)
    else:
        name, (heads, other) = "lse", tiled_attention(left, right, values, resolved)
    if resolved.sinks is not None:
        share, other = dense_attention.add_sinks(other, resolved.sinks)
        heads = heads * share[..., None].astype(heads.dtype)
    return {"heads": heads.astype(result, copy=False), name: other}


def dense_attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions,
    offset: int | Array,
    hook: Hook = no_hook,
) -> Gradients:
    """Gradients of projected queries and keys, values, bias and float mask.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V), offset () or (B,)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), "bias", "mask" if it is a float, "va"}

    With O = P V, P = softmax(M), M = cap(scale S) + bias + mask and S = scores(q, k):

        dV = P^T dO    dP = dO V^T    dM = P (dP - rowsum(P dP))    dS = scale (1 - tanh^2) dM

    The scores are computed again. `offset` is the position of the first query among the keys; `hook` receives the
    gradients of weights, masked, capped, scaled and scores, and may replace them.
    Source: Dao et al. 2022, appendix B.2.

    >>> x = np.array([[[1.0], [0.0]]])  # one query sees both keys, with weights of 1/2
    >>> options = AttentionOptions(scale=1.0)
    >>> grads = dense_attention_backward(np.array([[[4.0]]]), np.array([[[0.0]]]), x, x, options, 0)
    >>> {name: grad.ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0], 'k': [0.0, 0.0], 'v': [2.0, 2.0]}
    """
    score, params = SCORES[options.score], options.score_params or {}
    allowed = dense_attention.allowed_cells(q.shape[-2], k.shape[-2], offset, options)
    requested, plain = Requested(keep=("capped", "weights")), options.replace(softmax_dtype=None)
    steps = dense_attention.dense_attention(score.score(q, k, params), v[..., :0], allowed, plain, requested)
    capped, weights = steps["capped"], steps["weights"]
    dweights, dv = product_backward(grad_output, weights, v)
    dmasked = apply_hook(hook, "masked", softmax_backward(apply_hook(hook, "weights", dweights), weights))
    gradients = added_backward(dmasked, options)
    dcapped = apply_hook(hook, "capped", dmasked)
    slope = 1 - np.square(capped / options.softcap) if options.softcap else 1
    dscaled = np.where(dcapped == 0, 0, dcapped * slope)  # zero where the score is blocked, even if it is NaN
    dscores = apply_hook(hook, "scores", options.scale_for(1) * apply_hook(hook, "scaled", dscaled))
    dq, dk, parts = score.score_backward(dscores, finite(q), finite(k), params)
    return {"q": dq, "k": dk, "v": dv} | gradients | parts


def added_backward(dmasked: Array, options: AttentionOptions) -> Gradients:
    """Gradients of bias and float mask, summed over broadcast axes.

    dmasked (..., H, T, S) -> {"bias": like the bias, "mask": like a float mask}

    >>> added_backward(np.array([[[1.0, 2.0, 3.0]]]), AttentionOptions(bias=np.zeros(1), mask=np.zeros(2)))
    {'bias': array([6.]), 'mask': array([1., 2.])}
    """
    gradients = {}
    if options.bias is not None:
        gradients["bias"] = sum_to_shape(dmasked, options.bias.shape)
    mask = options.mask
    if mask is not None and is_float(mask.dtype):
        keys = dmasked.shape[-1] if mask.ndim == 0 or mask.shape[-1] == 1 else mask.shape[-1]
        gradients["mask"] = sum_to_shape(dmasked[..., :keys], mask.shape)
    return gradients


def finite(x: Array) -> Array:
    """Replace NaN and infinity by zeros; weights that depend on them are NaN anyway.

    >>> finite(np.array([1.0, np.inf])).tolist()
    [1.0, 0.0]
    """
    return x if np.isfinite(x).all() else np.where(np.isfinite(x), x, 0)


def row_attention_backward(
    grad_output: Array, q: Array, k: Array, v: Array, options: AttentionOptions
) -> dict[str, Array]:
    """Gradients of `dense_attention_backward`, some queries at a time.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), "bias", "mask" if it is a float, "va"}

    >>> q, x = np.array([[[0.0], [0.0]]]), np.array([[[1.0], [0.0]]])
    >>> grads = row_attention_backward(np.array([[[4.0], [4.0]]]), q, x, x, AttentionOptions(bias=np.zeros(2)))
    >>> {name: grad.ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0, 1.0], 'k': [0.0, 0.0], 'v': [4.0, 4.0], 'bias': [2.0, -2.0]}
    """
    queries, keys = q.shape[-2], k.shape[-2]
    offset = options.offset(queries, keys)
    each = math.prod(q.shape[:-2]) * keys * (1 if SCORES[options.score].score is dot else q.shape[-1])
    total: dict[str, Array] = {"q": np.empty(q.shape, grad_output.dtype)}
    for rows in split_range(0, queries, max(1, PART // max(each, 1))):
        here = options.replace(bias=_rows(options.bias, rows), mask=_rows(options.mask, rows))
        part = dense_attention_backward(grad_output[..., rows, :], q[..., rows, :], k, v, here, offset + rows.start)
        total["q"][..., rows, :] = part.pop("q")
        for name, gradient in part.items():
            source = {"bias": options.bias, "mask": options.mask}.get(name)
            shape = gradient.shape if source is None else source.shape
            into = total.setdefault(name, np.zeros(shape, gradient.dtype))
            rows_of = _rows(into, rows) if source is not None else into
            rows_of += gradient
    return total


def _rows(x: Array | None, rows: slice) -> Array | None:
    """The part of a mask or bias (..., T, S) for some queries."""
    return x if x is None or x.ndim < 2 or x.shape[-2] == 1 else x[..., rows, :]


LETTERS = {"q": "query", "k": "key", "v": "value"}
MultiHeadPullback = Callable[..., tuple[Gradients, Gradients]]


def multi_head_attention_vjp(
    query: Array,
    key: Array,
    value: Array,
    params: Mapping[str, Array] | None = None,
    options: MultiHeadOptions = MULTI_HEAD_DEFAULT,
    *,
    summary: str = "full",
    hook: Hook = no_hook,
    **changes: Any,
) -> tuple[Array, MultiHeadPullback]:
    """Multi-head attention, and the function from its gradient to the others.

    query (..., T, D), key (..., S, D), value (..., S, D)
    -> (..., T, D), (..., T, D) -> ({"query": (..., T, D), "key": (..., S, D), "value": (..., S, D), ...}, {"wq": ...})

    The gradients of inputs include the gradients of options, as in `attention_backward`; those of parameters have the
    keys of `params`. If one array is query, key and value, its gradient is the sum of three. `hook` reads
    intermediates; the hook that is passed to the second function receives their gradients, and may replace them.
    Other arguments and errors are as in `multi_head_attention`; UsageError for a cache of keys.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> output, pullback = multi_head_attention_vjp(x, x, x, {"wo": 2 * np.eye(2)})
    >>> inputs, weights = pullback(np.ones((2, 2)))
    >>> inputs["value"].round(4).tolist(), weights["wo"].round(4).tolist()
    ([[2.0, 2.0], [2.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]])
    """
    options, params = options.replace(**changes), params or {}
    if options.kv_store is not None:
        raise UsageError("a cache of keys and values has no gradients: expected all tokens in one call")
    if hook is not no_hook:
        request: Any = {"summary": summary, "keep": SAVED, "hook": hook}
        saved = multi_head_attention(query, key, value, params, options, **request)
        output = saved["output"]
    else:
        check_parameters(query, params)
        q, k, v = query, key, value
        if query.ndim < 4:
            dtype = working(query, key, value, *params.values())
            q, k, v, _ = project_heads(query, key, value, params, options, dtype)
        whole = with_relative_scores(with_sinks(options, params), q, k)
        saved = {"q": q, "k": k, "v": v, **attention_forward(q, k, v, whole)}
        output = saved["heads"]
        if query.ndim < 4:
            output = merge_heads(gate_heads(query, output, params, saved))
            output = linear(output, params.get("wo"), params.get("bo"), names=("heads", "wo", "bo"))
            output = output.astype(output_dtype(query), copy=False)

    @quiet
    def pullback(grad_output: Array, hook: Hook = no_hook) -> tuple[Gradients, Gradients]:
        weights: Gradients = {}
        dheads = grad_output
        if query.ndim < 4:
            dy, heads = apply_hook(hook, "output", grad_output), merge_heads(saved.get("gated_heads", saved["heads"]))
            dheads, weights = projection_backward(dy, heads, params, "o")
            dheads = view_heads(dheads, options.heads)
            dheads, of_gate, more = _undo_gate(dheads, query, params, saved, hook)
            weights |= more
        backward = attention_backward if options.relative is None else _relative_attention_backward
        joined = with_sinks(options, params)
        gradients = backward(dheads, saved["q"], saved["k"], saved["v"], joined, saved=saved, hook=hook)
        if joined.sinks is not None:
            (weights if "sinks" in params else gradients)["sinks"] = sinks_backward(dheads, joined.sinks, saved)
        if query.ndim < 4:
            weights |= _undo_projections(gradients, (query, key, value), params, options, hook)
            if of_gate is not None:
                gradients["query"] = gradients["query"] + of_gate
        else:
            gradients |= {name: gradients.pop(letter) for letter, name in LETTERS.items()}
        return gradients, {name: weights[name] for name in params}

    return output, pullback


def _undo_gate(
    dgated: Array, query: Array, params: Mapping[str, Array], saved: Mapping[str, Array], hook: Hook
) -> tuple[Array, Array | None, Gradients]:
    """Undo the gate of heads, with the gradients of queries and of its parameters.

    dgated (..., H, T, V), query (..., T, D) -> (..., H, T, V), (..., T, D), {"wg": …}
    """
    if "wg" not in params:
        return dgated, None, {}
    dgated, gate = apply_hook(hook, "gated_heads", dgated), saved["gate"]
    dgate = apply_hook(hook, "gate", activation_backward("sigmoid", dgated * saved["heads"], gate))
    dx, weights = projection_backward(merge_heads(dgate), query, params, "g")
    return dgated * sigmoid(gate), dx, weights


def _undo_projections(
    gradients: Gradients,
    inputs: tuple[Array, Array, Array],
    params: Mapping[str, Array],
    options: MultiHeadOptions,
    hook: Hook,
) -> Gradients:
    """Turn the gradients of q, k and v into those of inputs and parameters.

    The former are replaced, the latter returned.
    """
    weights: Gradients = {}
    if options.latent is not None:
        dx, weights = latent_backward(gradients, inputs[0], params, options, hook)
        gradients |= {"query": dx, "key": np.zeros_like(dx), "value": np.zeros_like(dx)}
        for letter in LETTERS:
            del gradients[letter]
        return weights
    for (letter, name), x in zip(LETTERS.items(), inputs, strict=True):
        gradient = gradients.pop(letter)
        if options.rotary is not None and letter != "v":
            cos, sin = options.rotary
            gradient = rotate(gradient, cos, -sin, interleaved=options.interleaved)
        gradient = scaled(gradient, options.key_scale if letter == "k" else 1)
        if options.norm or options.clip:
            gradient, parts = _undo_norm(gradient, x, params, letter, options, hook)
            weights |= parts
        gradients[name], parts = projection_backward(merge_heads(gradient), x, params, letter)
        weights |= parts
    return weights


def _undo_norm(
    grad_output: Array, x: Array, params: Mapping[str, Array], letter: str, options: MultiHeadOptions, hook: Hook
) -> tuple[Array, Gradients]:
    """Undo the bound and the norm of queries, keys or values.

    Their projection is computed again.

    grad_output (..., H, T, K), x (..., T, D) -> (..., H, T, K), {"gamma_q": …}
    """
    heads = grad_output.shape[-3]
    projected = linear(cast(x, grad_output.dtype), params.get(f"w{letter}"), params.get(f"b{letter}"))
    if options.norm is None or letter == "v":
        return undo_clip(grad_output, view_heads(projected, heads), options.clip), {}
    names = (f"gamma_{letter}", f"beta_{letter}")
    y, pullback = normalize_heads_vjp(projected, params.get(names[0]), params.get(names[1]), heads, options.norm)
    gradient = apply_hook(hook, f"{letter}_normed", undo_clip(grad_output, y, options.clip))
    dx, *parts = pullback(gradient)
    return view_heads(dx, heads), {name: part for name, part in zip(names, parts, strict=True) if part is not None}


def undo_clip(grad_output: Array, x: Array, clip: float) -> Array:
    """Gradient of x from that of x clipped to -clip … clip; 0: it is not clipped.

    >>> undo_clip(np.array([5.0, 7.0]), np.array([1.0, 3.0]), 2.0).tolist()
    [5.0, 0.0]
    """
    return np.where(np.abs(x) <= clip, grad_output, 0) if clip else grad_output


def normalize_heads_vjp(
    x: Array, gamma: Array | None, beta: Array | None, heads: int, norm: QueryKeyNorm
) -> tuple[Array, Callable[[Array], tuple[Array, Array | None, Array | None]]]:
    """A norm of queries or keys, and the function from its gradient to the others.

    x (..., T, H*K), gamma and beta (K,) or (H*K,) -> (..., H, T, K), and (..., H, T, K) -> (..., T, H*K), gamma, beta

    >>> x, norm = np.array([[1.0, 7.0]]), QueryKeyNorm("rms", 1e-5, "head")
    >>> dx, dgamma, _ = normalize_heads_vjp(x, np.ones(2), None, 1, norm)[1](np.array([[[1.0, 0.0]]]))
    >>> dx.round(4).tolist(), dgamma.round(4).tolist()  # as rms_norm_vjp
    ([[0.196, -0.028]], [0.2, 0.0])
    """
    rows = x if norm.scope == "projection" else x.reshape(*x.shape[:-1], heads, -1)
    normalized, pullback = (rms_norm_vjp if norm.kind == "rms" else layer_norm_vjp)(rows, eps=norm.eps)
    scale = None if gamma is None else cast(gamma, rows.dtype).reshape(-1, rows.shape[-1])

    def undo(grad_output: Array) -> tuple[Array, Array | None, Array | None]:
        dy = merge_heads(grad_output).reshape(rows.shape)
        one = (1, rows.shape[-1]) if norm.scope != "heads" else (heads, rows.shape[-1])
        dgamma = None if gamma is None else sum_to_shape(dy * normalized, one).reshape(gamma.shape)
        dbeta = None if beta is None else sum_to_shape(dy, one).reshape(beta.shape)
        dx = pullback(dy if scale is None else dy * scale).x
        return dx.reshape(x.shape), dgamma, dbeta

    return normalize_heads(x, gamma, beta, heads, norm), undo


def sinks_backward(grad_output: Array, sinks: Array, saved: Mapping[str, Array]) -> Array:
    """Gradient of sinks: minus the weight of each times dO · O, over all queries.

    grad_output (..., H, T, V), sinks (H,), saved heads (..., H, T, V) and lse (..., H, T) -> (H,)

    >>> saved = {"heads": np.array([[[3.0]]]), "lse": np.array([[np.log(4.0)]])}
    >>> sinks_backward(np.array([[[2.0]]]), np.zeros(1), saved).round(4).tolist()  # a weight of 1/4
    [-1.5]
    """
    weights = np.exp(sinks[:, None] - saved["lse"])
    along = (grad_output * saved["heads"]).sum(axis=-1)
    gradient: Array = -(weights * along).sum(axis=-1)
    return sum_to_shape(gradient, sinks.shape).astype(sinks.dtype)


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
    """Undo attention with relative positions: also relative.table, …"""
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
    for name in ("k", "q"):
        gradients[name] = apply_hook(hook, name, gradients[name] + parts.pop(name))
    return gradients | {f"relative.{name}": part for name, part in parts.items()}


@quiet
def merge_partial_attention_backward(
    grad_output: Array, grad_lse: Array, outputs: Sequence[Array], lses: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Gradients of the outputs and log-sum-exps that `merge_partial_attention` merges.

    grad_output (..., H, T, V), grad_lse (..., H, T), outputs (..., H, T, V) and lses (..., H, T) of each part
    -> (..., H, T, V), (..., H, T) for each part

    With the share P = exp(lse of the part - lse) of a part: dO_i = P_i dO and dlse_i = P_i (dO · (O_i - O) + dlse). A
    part without keys for a query has gradients of zero.

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
