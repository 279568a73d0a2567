"""Scaled dot-product and multi-head attention, with every intermediate by name."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, check_shapes, fit
from attnkit.model.dtypes import (
    Array,
    DType,
    cast,
    cast_matrices,
    output_dtype,
    quiet,
    working,
)
from attnkit.model.formulas import dense_attention
from attnkit.model.formulas.activations import sigmoid
from attnkit.model.formulas.dense_attention import DEFAULT, MULTI_HEAD_DEFAULT, AttentionOptions, MultiHeadOptions
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.latent import compute_latents, expand_keys, expand_queries
from attnkit.model.formulas.linear import linear, scaled
from attnkit.model.formulas.norms import Normalized, QueryKeyNorm, layer_norm, rms_norm
from attnkit.model.formulas.relative import add_relative_scores
from attnkit.model.formulas.rotary import rotate
from attnkit.model.formulas.scores import SCORES, Score, dot, identity
from attnkit.model.hooks import Hook, Requested, apply_hook, no_hook, request_intermediates
from attnkit.model.intermediates import ORDER, SQUARE
from attnkit.model.parameters import ATTENTION as PARAMETERS
from attnkit.model.parameters import LATENT
from attnkit.model.processor.products import PLAIN, Products

OptionsT = TypeVar("OptionsT", bound=AttentionOptions)
MANY = 1 << 18  # scores of all heads, of one row of a batch, from which on blocks of them are faster than all at once


@quiet
def attention(
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions = DEFAULT,
    *,
    summary: str = "full",
    keep: Collection[str] | None = None,
    aside: Collection[str] = (),
    hook: Hook = no_hook,
    **changes: Any,
) -> dict[str, Array]:
    """Average the values for each query, weighted by the softmax of its scores.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> {"heads": (..., H, T, V), ...}

    The result holds, in this order: q, k, v, scores (raw), scaled, capped, masked (bias and mask added, -inf
    where blocked), weights, heads, lse (log-sum-exp of each query's scores, sink included, (..., H, T), float64),
    present_key, present_value. Query head h uses key head h // (H/G).

    options   see AttentionOptions; `changes` override single ones by name: attention(q, k, v, causal=True)
    summary   "stats", "topk:K" or "rows:I,J": summaries of the weights in their place, see `weight_stats`,
              `weight_topk` and `weight_rows`
    keep      the intermediates to return beside the heads [all]; others are not held in memory
    aside     more of them, which leave the heads bit for bit as `keep` alone has them
    hook      may read and replace any of them but lse and present_*

    A query that may not attend to any key has weights and heads of zero, and a key of weight zero adds nothing,
    NaN and infinity included. Where there are many scores and neither `keep` nor `hook` needs them, they are
    computed in tiles (kernels/tiled_attention.py) or, if they are rounded or no dot products, for some queries at a
    time (kernels/row_attention.py), with the same result but for the last bits. Source: Attention Is All You Need,
    section 3.2.1; ONNX Attention-25. DataError if shapes do not match, UsageError for options that are mutually
    exclusive.

    >>> x = np.array([[[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]]])
    >>> attention(x, x, x)["heads"].round(4)
    array([[[0.8446, 0.5777, 0.8446, 0.5777],
            [0.5777, 0.8446, 0.5777, 0.8446],
            [0.7881, 0.7881, 0.7881, 0.7881]]])
    """
    options, result, dtype = options.replace(**changes), output_dtype(q), working(q, k, v)
    score, params = find_score(options, dtype)
    check_shapes(q, k, v, trailing=3, same_width=score.project is identity)
    if q.ndim > 4:
        return attend_in_one_batch(attention, (q, k, v), 3, options, hook, summary=summary, keep=keep, aside=aside)
    q = apply_hook(hook, "q", cast(q, dtype))
    k, v = (apply_hook(hook, name, cast_matrices(x, dtype)) for name, x in (("k", k), ("v", v)))
    keys, values, options = prepend_past(q, k, v, options, params)
    requested = request_intermediates(keep, hook, summary)
    left, right = score.project(q, keys, params)
    kernel = _choose_kernel(left, right, values, options, requested)
    more = requested
    if aside and requested.keep is not None:
        more = replace(requested, keep={*requested.keep, *aside})
    steps = {"q": q, "k": k, "v": v, "present_key": keys, "present_value": values}
    steps |= kernel(left, right, values, options, more if kernel is _run_dense else requested)
    if kernel is not _run_dense and aside:
        steps = _run_dense(left, right, values, options, more) | steps
    for name in ("heads", *requested.summaries):
        if name in steps:
            steps[name] = apply_hook(hook, name, steps[name])
    order = [name for name in (*ORDER, *requested.summaries) if name in steps and more.is_returned(name)]
    return cast_intermediates(result, {name: steps[name] for name in order})


def cast_intermediates(dtype: DType, steps: Mapping[str, Array]) -> dict[str, Array]:
    """Cast intermediates to a dtype, except lse and summaries of the weights."""
    exempt = ("lse", "weights.")
    return {name: x if name.startswith(exempt) else x.astype(dtype, copy=False) for name, x in steps.items()}


Kernel = Callable[[Array, Array, Array, AttentionOptions, Requested], dict[str, Array]]


def _choose_kernel(q: Array, k: Array, v: Array, options: AttentionOptions, requested: Requested) -> Kernel:
    """Choose the fastest kernel that computes what is requested."""
    has_many = _has_many_scores(q, k)
    if any(name in requested for name in SQUARE):
        return _run_dense
    if not requested.has_summary and options.products.is_fixed and text_lengths(q, k, options) is not None:
        return _run_padded
    if has_many and not (v.shape[-1] or requested.has_summary or requested.is_returned("lse")):
        return _empty_heads
    is_summed = requested.has_summary and options.sinks is not None
    if SCORES[options.score].score is dot and options.softmax_dtype is None and not is_summed:
        return _run_tiled if has_many or requested.has_summary else _run_dense
    return _run_rows if has_many else _run_dense


def text_lengths(q: Array, k: Array, options: AttentionOptions) -> Array | None:
    """Tokens of each text of a batch that is padded after its end, (B,).

    q (B, H, T, K), k (B, G, T, K), mask (B, 1, 1, T); None for any other mask.

    >>> x, mask = np.ones((2, 1, 3, 4)), np.array([[True, True, False], [True, True, True]])
    >>> text_lengths(x, x, AttentionOptions(mask=mask[:, None, None])).tolist()
    [2, 3]
    """
    mask, past = options.mask, options.past
    if mask is None or mask.dtype != bool or past or q.ndim != 4 or q.shape[-2] != k.shape[-2] or q.shape[-2] < 2:
        return None
    if mask.shape != (len(q), 1, 1, k.shape[-2]) or options.lengths is not None or options.align is not None:
        return None
    real = mask[:, 0, 0]
    lengths: Array = real.sum(axis=-1)
    return lengths if (real == (np.arange(real.shape[-1]) < lengths[:, None])).all() else None


def _run_padded(q: Array, k: Array, v: Array, options: AttentionOptions, requested: Requested) -> dict[str, Array]:
    """Attend within texts of one length at a time, so that each has its own bits.

    q (B, H, T, K), k (B, G, T, K), v (B, G, T, V)

    The queries of padding attend to the keys of their text, as a mask has them do.
    """
    result: dict[str, Array] = {}
    lengths = np.asarray(text_lengths(q, k, options))
    _, bias = dense_attention.broadcast_mask(None, options.bias, (*q.shape[:-1], k.shape[-2]), q.dtype)
    for length in np.unique(lengths).tolist():
        (rows,) = np.nonzero(lengths == length)
        together = max(1, MANY // max(1, q.shape[1] * length * length))
        for some in np.split(rows, range(together, len(rows), together)):
            keys, values = k[some, :, :length], v[some, :, :length]
            for part, past in ((slice(0, length), 0), (slice(length, None), length)):
                own = None if bias is None else bias[some, :, part, :length]
                alone = q[some, :, part], keys, values, options.replace(mask=None, past=past, bias=own), requested
                steps = _choose_kernel(*alone)(*alone)
                for name, x in ((name, steps[name]) for name in ("heads", "lse") if name in steps):
                    whole = result.setdefault(name, np.empty((*q.shape[:-1], *x.shape[3:]), x.dtype))
                    whole[some, :, part] = x
    return result


def _has_many_scores(q: Array, k: Array) -> bool:
    heads, queries = q.shape[-3:-1]
    return bool(queries > 1 and heads * queries * k.shape[-2] >= MANY)


def _empty_heads(q: Array, k: Array, v: Array, options: AttentionOptions, requested: Requested) -> dict[str, Array]:
    return {"heads": np.zeros((*q.shape[:-1], 0), q.dtype)}


def _run_tiled(q: Array, k: Array, v: Array, options: AttentionOptions, requested: Requested) -> dict[str, Array]:
    from attnkit.model.kernels.tiled_attention import tiled_attention

    heads, lse = tiled_attention(q, k, v, options)
    if options.sinks is not None:
        share, lse = dense_attention.add_sinks(lse, options.sinks)
        heads = heads * share[..., None].astype(heads.dtype)
    if not requested.has_summary:
        return {"heads": heads, "lse": lse}
    from attnkit.model.kernels.weight_stats import summarize_weights

    return {"heads": heads, "lse": lse} | summarize_weights(requested.summary, q, k, options)


def _run_rows(q: Array, k: Array, v: Array, options: AttentionOptions, requested: Requested) -> dict[str, Array]:
    from attnkit.model.kernels.row_attention import row_attention

    return row_attention(q, k, v, options, summary=requested.summary if requested.has_summary else "full")


def _run_dense(q: Array, k: Array, v: Array, options: AttentionOptions, requested: Requested) -> dict[str, Array]:
    queries, keys = q.shape[-2], k.shape[-2]
    scores = SCORES[options.score].score(q, k, options.score_params or {}, options.products.stacked)  # (..., H, T, S)
    offset = options.offset(queries, keys)
    allowed = dense_attention.allowed_cells(queries, keys, offset, options)
    steps = dense_attention.dense_attention(scores, v, allowed, options, requested)
    if not requested.has_summary:
        return steps
    from attnkit.model.kernels.weight_stats import summarize_dense_weights

    position = dense_attention.query_positions(slice(0, queries), offset)
    return steps | summarize_dense_weights(requested.summary, steps.pop("weights"), steps["lse"], position)


def find_score(options: AttentionOptions, dtype: DType) -> tuple[Score, dict[str, Array]]:
    """Look up a score function and cast its parameters; UsageError for a wrong name.

    >>> find_score(AttentionOptions(score="general", score_params={"w": np.ones((1, 1))}), np.dtype("float32"))[1]
    {'w': array([[1.]], dtype=float32)}
    """
    if options.score not in SCORES:
        raise UsageError(f"score {options.score!r} (expected one of {', '.join(SCORES)})")
    score, params = SCORES[options.score], options.score_params or {}
    missing = [name for name in score.parameters if name not in params]
    if missing:
        raise UsageError(f"score {options.score} needs {', '.join(missing)}")
    return score, {name: cast(params[name], dtype) for name in score.parameters}


def prepend_past(
    q: Array, k: Array, v: Array, options: AttentionOptions, params: Mapping[str, Array]
) -> tuple[Array, Array, AttentionOptions]:
    """Prepend earlier keys and values, and check and resolve the options.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> (..., G, P + S, K), (..., G, P + S, V), options

    DataError if the shapes or lengths do not match, UsageError for options that are mutually exclusive.

    >>> x, past = np.ones((1, 1, 2)), np.zeros((1, 3, 2))
    >>> keys, values, options = prepend_past(x, x, x, AttentionOptions(past_key=past, past_value=past), {})
    >>> keys.shape, options.past
    ((1, 4, 2), 3)
    """
    keys, values = _prepend(options.past_key, k, "past_key", "K"), _prepend(options.past_value, v, "past_value", "V")
    options.check_ranges()
    past_key, past_value = options.past_key, options.past_value
    if past_key is not None and past_value is not None and past_key.shape[-2] != past_value.shape[-2]:
        pair = f"{as_text(past_key.shape)} and past_value {as_text(past_value.shape)}"
        raise DataError.about("past_key", f"{pair}: {past_key.shape[-2]} keys but {past_value.shape[-2]} values")
    lengths = None if options.lengths is None else _batch_lengths(options.lengths, q, keys.shape[-2])
    past = options.past + keys.shape[-2] - k.shape[-2]
    resolved = {"scale": options.scale_for(q.shape[-1]), "lengths": lengths, "past": past}
    options = options.replace(past_key=None, past_value=None, score_params=params, **resolved)
    if options.sinks is not None and options.sinks.shape != q.shape[-3:-2]:
        raise DataError.about("sinks", f"{as_text(options.sinks.shape)}: expected ({q.shape[-3]},), one for each head")
    options.offset(q.shape[-2], keys.shape[-2])  # UsageError for an unknown alignment
    return keys, values, options


def _prepend(past: Array | None, x: Array, past_name: str, name: str) -> Array:
    """Prepend past keys or values: (..., P, K), (..., S, K) -> (..., P + S, K)."""
    if past is None:
        return x
    if past.ndim != x.ndim or past.shape[:-2] != x.shape[:-2] or past.shape[-1] != x.shape[-1]:
        pair = f"{as_text(past.shape)} and {name} {as_text(x.shape)}"
        raise DataError.about(past_name, f"{pair}: they differ in more than length")
    return np.concatenate([cast(past, x.dtype), x], axis=-2)


def _batch_lengths(lengths: ArrayLike, q: Array, keys: int) -> Array:
    valid, batch = check_ids(lengths, keys + 1, "length"), q.shape[:-3]
    if valid.shape != batch and not (valid.size == 1 and math.prod(batch) == 1 and valid.ndim < 2):
        raise DataError.about("lengths", f"{as_text(valid.shape)} for Q {as_text(q.shape)}: expected {as_text(batch)}")
    return valid.reshape(batch)


@quiet
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    params: Mapping[str, Array] | None = None,
    options: MultiHeadOptions = MULTI_HEAD_DEFAULT,
    *,
    summary: str = "full",
    keep: Collection[str] | None = None,
    aside: Collection[str] = (),
    hook: Hook = no_hook,
    **changes: Any,
) -> dict[str, Array]:
    """Attention of several heads, each with its own projections.

    query (..., T, D), key (..., S, D), value (..., S, D) -> {"output": (..., T, D), ...}

    `params` may hold wq, wk, wv, wo (in, out) and bq, bk, bv, bo; a missing projection is the identity. With a norm of
    queries and keys it may hold gamma_q, gamma_k, beta_q and beta_k; `sinks` (H,) are those of the options. wg and bg
    gate the heads before wo. A query of
    rank 4 (B, H, T, K) is already split: nothing is projected, and its output keeps that rank. With a query (B, T, D),
    a mask (B, T, S) is one of each text, for all its heads; one of each head is (1, H, T, S). The result has the
    entries of `attention`, then the output; `summary`, `keep`, `aside`, `hook` and `changes`: see `attention`. The hook
    also receives q_normed and k_normed, which the result contains too.
    Source: Attention Is All You Need, section 3.2.2. DataError if shapes do not match, UsageError for impossible
    head counts.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> multi_head_attention(x, x, x, {"wo": 2 * np.eye(2)}, heads=2)["output"].round(4)
    array([[1.4621, 1.    ],
           [1.    , 1.4621]])
    """
    options, params = options.replace(**changes), params or {}
    request: Any = {"summary": summary, "keep": keep, "aside": aside, "hook": hook}
    check_parameters(query, params)
    if query.ndim > 4:
        check_shapes(query, key, value, trailing=2, same_width=False)
        attend = partial(multi_head_attention, params=params)
        return attend_in_one_batch(attend, (query, key, value), 2, options, **request)
    if options.mask is not None and query.ndim == options.mask.ndim == 3 and len(options.mask) == len(query):
        options = options.replace(mask=options.mask[:, None])
    if query.ndim == 4:
        steps = attention(query, key, value, options, **request)
        return steps | {"output": steps["heads"]}
    result, dtype = output_dtype(query), working(query, key, value, *params.values())
    normed: dict[str, Array] = {}
    q, k, v, past = project_heads(query, key, value, params, options, dtype, hook, normed)
    options = with_relative_scores(with_sinks(options, params), q, k, hook)
    steps = {name: x for name, x in normed.items() if keep is None or name in keep or name in aside}
    steps |= attention(q, k, v, options, past=past, **request)
    gates: dict[str, Array] = {}
    names, merged = (
        ("heads", "wo", "bo"),
        merge_heads(gate_heads(query, steps["heads"], params, gates, options.products, hook)),
    )
    steps |= {name: x for name, x in gates.items() if keep is None or name in keep or name in aside}
    output = linear(merged, params.get("wo"), params.get("bo"), names=names, products=options.products)
    steps["output"] = apply_hook(hook, "output", output)
    return cast_intermediates(result, steps)


def attend_in_one_batch(
    attend: Callable[..., dict[str, Array]],
    operands: tuple[Array, Array, Array],
    own: int,
    options: OptionsT,
    hook: Hook,
    **request: Any,
) -> dict[str, Array]:
    """Attend with several batch axes as one, and restore them in the results.

    operands  q, k, v of the same batch axes; own: their last axes, which are none of the batch
    """
    lead = operands[0].shape[:-own]
    size = math.prod(lead)

    def fold(name: str) -> Array | None:
        """Fold the batch axes of an option that broadcasts to (*lead, H, T, S)."""
        x: Array | None = getattr(options, name)
        if x is None or x.ndim <= 3:
            return x
        target = f"the batch {as_text(lead)}"
        return fit(x, (*lead, *x.shape[-3:]), name, target).reshape(size, *x.shape[-3:])

    def restore(x: Array) -> Array:
        return x.reshape(*lead, *x.shape[1:])

    def hook_in_one_batch(name: str) -> Callable[[Array], Array] | None:
        function = hook(name)
        return None if function is None else lambda x: function(restore(x)).reshape(x.shape)

    folded: dict[str, Any] = {name: fold(name) for name in ("mask", "bias", "past_key", "past_value")}
    if options.lengths is not None and np.shape(options.lengths) == lead:
        folded["lengths"] = np.ravel(options.lengths)
    q, k, v = (x.reshape(size, *x.shape[-own:]) for x in operands)
    options = options.replace(**folded)
    hooked = no_hook if hook is no_hook else hook_in_one_batch
    return {name: restore(x) for name, x in attend(q, k, v, options=options, hook=hooked, **request).items()}


def with_sinks(options: MultiHeadOptions, params: Mapping[str, Array]) -> MultiHeadOptions:
    """Add the sinks among the parameters to the options."""
    return options.replace(sinks=params["sinks"]) if "sinks" in params else options


def with_relative_scores(options: MultiHeadOptions, q: Array, k: Array, hook: Hook = no_hook) -> MultiHeadOptions:
    """Add the scores of relative positions, if there are any, to the bias."""
    if options.relative is None:
        return options
    scale = options.scale_for(q.shape[-1])
    return options.replace(
        bias=add_relative_scores(options.bias, q, k, options.relative, scale, hook, options.products)
    )


def gate_heads(
    query: Array,
    heads: Array,
    params: Mapping[str, Array],
    gates: dict[str, Array],
    products: Products = PLAIN,
    hook: Hook = no_hook,
) -> Array:
    """Multiply heads by a gate of each query, σ(x W_G + b_G), if there is one.

    query (..., T, D), heads (..., H, T, V) -> (..., H, T, V); `gates` receives gate and gated_heads

    Source: Qiu et al. 2025, Gated Attention for Large Language Models.

    >>> one = np.ones((1, 1))
    >>> gate_heads(np.zeros((1, 1)), 4 * one[None], {"wg": one}, {}).tolist()
    [[[2.0]]]
    """
    if "wg" not in params:
        return heads
    flat = linear(query, params["wg"], params.get("bg"), names=("x", "wg", "bg"), products=products)
    gates["gate"] = gate = apply_hook(hook, "gate", view_heads(flat.astype(heads.dtype, copy=False), heads.shape[-3]))
    gates["gated_heads"] = gated = apply_hook(hook, "gated_heads", heads * sigmoid(gate))
    return gated


def check_parameters(query: Array, params: Mapping[str, Array]) -> None:
    """Raise DataError for an unknown parameter, UsageError for any with split heads.

    >>> check_parameters(np.ones((3, 2)), {"wq": np.eye(2)})
    """
    unknown = [name for name in params if name not in PARAMETERS and name not in LATENT]
    if unknown:
        raise DataError.about("parameter", f"{unknown[0]!r} is not one of {', '.join(PARAMETERS)}")
    if query.ndim == 4 and params:
        raise UsageError(f"x {as_text(query.shape)} is already split into heads: no projection applies")


def project_heads(
    query: Array,
    key: Array,
    value: Array,
    params: Mapping[str, Array],
    options: MultiHeadOptions,
    dtype: DType,
    hook: Hook = no_hook,
    normed: dict[str, Array] | None = None,
) -> tuple[Array, Array, Array, int]:
    """Project queries, keys and values, norm them, split heads, and rotate.

    query (..., T, D), key (..., S, D), value (..., S, D) -> (..., H, T, K), (..., G, S, K), (..., G, S, V), one number

    `normed` receives q_normed and k_normed, if there is a norm of queries and keys. DataError if shapes do not match,
    UsageError for impossible head counts.

    >>> x = np.ones((3, 4))
    >>> q, k, v, past = project_heads(x, x, x, {}, MultiHeadOptions(heads=2, past=1), x.dtype)
    >>> q.shape, past
    ((2, 3, 2), 1)
    """
    if options.latent is not None:
        return project_latent(query, params, options, dtype, hook, {} if normed is None else normed)
    heads, rotary = options.heads, options.rotary
    groups = heads if options.kv_heads is None else options.kv_heads
    if heads < 1 or groups < 1 or heads % groups:
        raise UsageError(f"heads {heads}, kv_heads {groups} (expected kv_heads to divide heads)")

    def project(x: Array, letter: str, name: str) -> Array:
        names = (name, f"w{letter}", f"b{letter}")
        return linear(
            cast(x, dtype), params.get(names[1]), params.get(names[2]), names=names, products=options.products
        )

    def clip(x: Array) -> Array:
        return np.clip(x, -options.clip, options.clip) if options.clip else x

    def split_and_rotate(x: Array, count: int, letter: str) -> Array:
        if options.norm is None:
            split = view_heads(x, count)
        else:
            split = normalize_heads(x, params.get(f"gamma_{letter}"), params.get(f"beta_{letter}"), count, options.norm)
            split = apply_hook(hook, f"{letter}_normed", split)
            if normed is not None:
                normed[f"{letter}_normed"] = split
        split = scaled(clip(split), options.key_scale if letter == "k" else 1)
        return split if rotary is None else rotate(split, *rotary, interleaved=options.interleaved)

    def compute_pair() -> tuple[Array, Array]:
        k = project(key, "k", "x" if key is query else "key")
        v = project(value, "v", "x" if value is query else "value")
        is_dot = options.score in ("scaled-dot", "dot")
        check_shapes(q, k, v, trailing=2, same_width=heads == groups and is_dot)
        if is_dot and q.shape[-1] * groups != k.shape[-1] * heads:
            parts = f"{as_text(q.shape)} in {heads} heads and K {as_text(k.shape)} in {groups}"
            raise DataError.about(
                "Q", f"{parts}: {q.shape[-1] / heads:g} and {k.shape[-1] / groups:g} dimensions per head"
            )
        return split_and_rotate(k, groups, "k"), clip(view_heads(v, groups))

    q = project(query, "q", "x")
    k, v, past = options.kv_store(compute_pair) if options.kv_store else (*compute_pair(), options.past)
    return split_and_rotate(q, heads, "q"), k, v, past


def project_latent(
    x: Array,
    params: Mapping[str, Array],
    options: MultiHeadOptions,
    dtype: DType,
    hook: Hook,
    latents: dict[str, Array],
) -> tuple[Array, Array, Array, int]:
    """Queries, keys and values of latent attention, as `project_heads` returns them.

    x (..., T, D); `latents` receives q_latent, kv_latent and k_rotary. Source: DeepSeek-V2, section 2.1.
    """

    def see(name: str, array: Array) -> Array:
        latents[name] = apply_hook(hook, name, array)
        return latents[name]

    config = options.latent
    assert config is not None
    q_source, kv_latent, k_rotary = compute_latents(cast(x, dtype), params, config, see, options.products)

    def compute_pair() -> tuple[Array, Array]:
        return expand_keys(kv_latent, k_rotary, params, options)

    q = expand_queries(q_source, params, options)
    k, v, past = options.kv_store(compute_pair) if options.kv_store else (*compute_pair(), options.past)
    return q, k, v, past


def normalize_heads(x: Array, gamma: Array | None, beta: Array | None, heads: int, norm: QueryKeyNorm) -> Array:
    """Normalize projected queries or keys, and split them into heads.

    x (..., T, H*K), gamma and beta (K,) or (H*K,) -> (..., H, T, K)

    Source: Henry et al. 2020 for norms of queries and keys. DataError if gamma or beta do not fit.

    >>> x = np.array([[3.0, 4.0, 0.0, 5.0]])
    >>> normalize_heads(x, np.array([1.0, 2.0]), None, 2, QueryKeyNorm("rms", 1e-12, "head")).round(2).tolist()
    [[[0.85, 2.26]], [[0.0, 2.83]]]
    """
    rows = x if norm.scope == "projection" else x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
    compute: Callable[..., Normalized] = rms_norm if norm.kind == "rms" else layer_norm
    y = compute(rows, eps=norm.eps).y
    size = rows.shape[-1] * (heads if norm.scope == "heads" else 1)
    for name, part in (("gamma", gamma), ("beta", beta)):
        if part is None:
            continue
        if part.shape != (size,):
            raise DataError.about(name, f"{as_text(part.shape)} of queries or keys: expected ({size},)")
        part = cast(part, y.dtype).reshape(-1, rows.shape[-1])
        y = y * part if name == "gamma" else y + part
    return view_heads(y.reshape(x.shape), heads)
