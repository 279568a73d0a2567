"""Adjoints of scaled dot-product and multi-head attention."""

from collections.abc import Mapping
from typing import Any

from attnkit.errors import UsageError
from attnkit.model.attention import (
    check_shapes,
    find_score,
    merge_heads,
    multi_head_attention,
    prepend_past,
    split_heads,
)
from attnkit.model.backward.dense_attention import dense_attention_backward
from attnkit.model.backward.linear import check_gradient, linear_backward
from attnkit.model.backward.rotary import rotate_backward
from attnkit.model.backward.scores import SCORE_ADJOINTS, Gradients
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.options import DEFAULT, MULTI_HEAD_DEFAULT, AttentionOptions, MultiHeadOptions
from attnkit.model.scores import identity


@quiet
def attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions = DEFAULT,
    *,
    lse: Array | None = None,
    output: Array | None = None,
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
    lse      the log-sum-exps of the forward pass, (..., H, T), and output its heads, (..., H, T, V)

    Source: Attention Is All You Need, section 3.2.1; Dao et al. 2022, appendix B. DataError where shapes do not
    match, UsageError for options that exclude each other.

    >>> import numpy as np
    >>> x = np.array([[[1.0], [0.0]]])  # one query that scores both keys 0: its weights are 1/2
    >>> grads = attention_backward(np.array([[[4.0]]]), np.array([[[0.0]]]), x, x)
    >>> {name: grad.ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0], 'k': [0.0, 0.0], 'v': [2.0, 2.0]}
    """
    options, dtype = options.replace(**changes), working(grad_output, q, k, v)
    score, params = find_score(options, dtype)
    check_shapes(q, k, v, trailing=3, same_width=score.project is identity)
    check_gradient(grad_output, (*q.shape[:-1], v.shape[-1]), "heads")
    grad_output, q, k, v = (cast(x, dtype) for x in (grad_output, q, k, v))
    keys, values, resolved = prepend_past(q, k, v, options, params)
    left, right = score.project(q, keys, params)
    offset = resolved.offset(q.shape[-2], keys.shape[-2])
    gradients = dense_attention_backward(grad_output, left, right, values, resolved, offset)
    dq, dk, extra = SCORE_ADJOINTS[options.score].project(gradients["q"], gradients["k"], q, keys, params)
    gradients |= {"q": dq, "k": dk, **extra}
    return gradients if options.past_key is None else _split_past(gradients, options.past_key.shape[-2])


def _split_past(gradients: Gradients, past: int) -> Gradients:
    """Return gradients with those of past keys and values apart from those of this call's."""
    k, v = gradients["k"], gradients["v"]
    parts = {"k": k[..., past:, :], "v": v[..., past:, :], "past_key": k[..., :past, :], "past_value": v[..., :past, :]}
    return gradients | parts


SAVED = ("q", "k", "v", "heads", "lse")  # the intermediates that multi_head_attention_backward takes


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
    "v": (..., G, S, V), "heads": (..., H, T, V), "lse": (..., H, T)}

    Arguments and errors are those of `multi_head_attention`; UsageError for a cache of keys.

    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> output, saved = multi_head_attention_forward(x, x, x, {"wo": 2 * np.eye(2)}, heads=2)
    >>> output.round(4).tolist(), saved["heads"].shape
    ([[1.4621, 1.0], [1.0, 1.4621]], (2, 2, 1))
    """
    options = options.replace(**changes)
    if options.kv_store is not None:
        raise UsageError("a cache of keys and values has no gradients: expected all tokens in one call")
    saved = multi_head_attention(query, key, value, params, options, keep=SAVED)
    output = saved.pop("output")
    return output, {"query": query, "key": key, "value": value, **saved}


@quiet
def multi_head_attention_backward(
    grad_output: Array,
    saved: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    options: MultiHeadOptions = MULTI_HEAD_DEFAULT,
    **changes: Any,
) -> tuple[Gradients, Gradients]:
    """Return the gradients of `multi_head_attention` with respect to its inputs, and to its parameters.

    grad_output (..., T, D), saved as `multi_head_attention_forward` returns it
    -> {"query": (..., T, D), "key": (..., S, D), "value": (..., S, D), ...}, {"wq": (D, H*K), ...}

    The first result also holds the gradients of options: see `attention_backward`. The second has the keys of `params`.
    Where one array is query, key and value, its gradient is the sum of three. DataError where shapes do not match.

    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> output, saved = multi_head_attention_forward(x, x, x, {"wo": 2 * np.eye(2)})
    >>> inputs, weights = multi_head_attention_backward(np.ones((2, 2)), saved, {"wo": 2 * np.eye(2)})
    >>> inputs["value"].round(4).tolist(), weights["wo"].round(4).tolist()
    ([[2.0, 2.0], [2.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]])
    """
    options, params = options.replace(**changes), params or {}
    if saved["query"].ndim == 4:
        gradients = attention_backward(grad_output, saved["q"], saved["k"], saved["v"], options, **_forward(saved))
        return _rename(gradients), {}
    merged = merge_heads(saved["heads"])
    dheads, weights = _linear(grad_output, merged, params, "o")
    dheads = split_heads(dheads, options.heads)
    gradients = attention_backward(dheads, saved["q"], saved["k"], saved["v"], options, **_forward(saved))
    if options.rotary is not None:
        gradients |= {name: rotate_backward(gradients[name], *options.rotary) for name in ("q", "k")}
    for name, source in (("q", "query"), ("k", "key"), ("v", "value")):
        gradients[name], parts = _linear(merge_heads(gradients[name]), saved[source], params, name)
        weights |= parts
    return _rename(gradients), {name: weights[name] for name in params}


def _forward(saved: Mapping[str, Array]) -> dict[str, Array | None]:
    """Return what attention_backward takes of the forward pass."""
    return {"lse": saved.get("lse"), "output": saved.get("heads")}


def _rename(gradients: Gradients) -> Gradients:
    """Return gradients with those of queries, keys and values under the names of the inputs."""
    names = {"q": "query", "k": "key", "v": "value"}
    return {names.get(name, name): gradient for name, gradient in gradients.items()}


def _linear(grad_output: Array, x: Array, params: Mapping[str, Array], letter: str) -> tuple[Array, Gradients]:
    """Return the gradients of a projection: of its input, and of its weight and bias by their names."""
    gradients = linear_backward(grad_output, x, params.get(f"w{letter}"), params.get(f"b{letter}"))
    parts = {f"w{letter}": gradients.weight, f"b{letter}": gradients.bias}
    return gradients.x, {name: part for name, part in parts.items() if part is not None}
