"""Whole layers of encoder and decoder: sub-layers, residuals and norms, as calls."""

from collections.abc import Callable, Mapping
from typing import Any

from attnkit.model.attention import multi_head_attention
from attnkit.model.feedforward import feed_forward
from attnkit.model.norms import layer_norm
from attnkit.model.precision import Array

Params = Mapping[str, Mapping[str, Array]]


def encoder_layer(
    x: Array,
    params: Params,
    *,
    heads: int,
    norm_first: bool = False,
    activation: str = "relu",
    eps: float = 1e-5,
    mask: Array | None = None,
    causal: bool = False,
) -> Array:
    """Self-attention, then the feed-forward network, each with a residual and a norm.

    x (..., T, D) -> (..., T, D)

    `params` holds "self" (wq wk wv wo bq bk bv bo), "ffn" (w1 b1 w2 b2, w3 when gated), "norm1" and "norm2"
    (gamma, beta). The norm follows each residual (Attention Is All You Need, section 3.1), or comes
    before each sub-layer with `norm_first`. Errors are those of the sub-layers.

    >>> import numpy as np
    >>> zero = {"w1": np.zeros((2, 3)), "w2": np.zeros((3, 2))}
    >>> encoder_layer(np.array([[3.0, 5.0]]), {"ffn": zero}, heads=1, norm_first=True).round(4)
    array([[2., 6.]])
    """

    def attend(y: Array) -> Array:
        steps = multi_head_attention(y, y, y, params.get("self"), heads=heads, mask=mask, causal=causal)
        return steps["output"]

    x = _sublayer(x, attend, params.get("norm1", {}), eps, norm_first)
    return _sublayer(x, _ffn(params, activation), params.get("norm2", {}), eps, norm_first)


def decoder_layer(
    x: Array,
    memory: Array,
    params: Params,
    *,
    heads: int,
    norm_first: bool = False,
    activation: str = "relu",
    eps: float = 1e-5,
    mask: Array | None = None,
    memory_mask: Array | None = None,
    causal: bool = True,
) -> Array:
    """Causal self-attention, attention over the memory, then the feed-forward network.

    x (..., T, D), memory (..., S, D) -> (..., T, D)

    `params` is that of encoder_layer with "cross" and "norm3" besides: norm1 belongs to self, norm2 to cross,
    norm3 to ffn. Errors are those of the sub-layers.

    >>> import numpy as np
    >>> zero = {"w1": np.zeros((2, 3)), "w2": np.zeros((3, 2))}
    >>> x = np.array([[3.0, 5.0]])
    >>> decoder_layer(x, 2 * x, {"ffn": zero}, heads=1, norm_first=True).round(4)
    array([[ 8., 16.]])
    """

    def attend(y: Array) -> Array:
        steps = multi_head_attention(y, y, y, params.get("self"), heads=heads, mask=mask, causal=causal)
        return steps["output"]

    def look_up(y: Array) -> Array:
        steps = multi_head_attention(y, memory, memory, params.get("cross"), heads=heads, mask=memory_mask)
        return steps["output"]

    x = _sublayer(x, attend, params.get("norm1", {}), eps, norm_first)
    x = _sublayer(x, look_up, params.get("norm2", {}), eps, norm_first)
    return _sublayer(x, _ffn(params, activation), params.get("norm3", {}), eps, norm_first)


def _sublayer(
    x: Array, function: Callable[[Array], Array], norm: Mapping[str, Any], eps: float, norm_first: bool
) -> Array:
    if norm_first:
        return x + function(layer_norm(x, **norm, eps=eps).y)
    return layer_norm(x + function(x), **norm, eps=eps).y


def _ffn(params: Params, activation: str) -> Callable[[Array], Array]:
    parameters: Mapping[str, Any] = params["ffn"]
    return lambda x: feed_forward(x, **parameters, activation=activation)["output"]
