"""One layer of an encoder or a decoder by itself, with its parameters by sub-layer."""

from typing import Any

from attnkit.model.config import Config, StackConfig, layer_steps
from attnkit.model.context import Context, Model, Params
from attnkit.model.dtypes import Array
from attnkit.model.transformer import run


def encoder_layer(
    x: Array, params: Params, *, heads: int, mask: Array | None = None, causal: bool = False, **config: Any
) -> Array:
    """Apply self-attention, then the feed-forward network, each with a residual and a norm.

    x (..., T, D) -> (..., T, D)

    `params` holds "self" (wq wk wv wo bq bk bv bo), "ffn" (w1 b1 w2 b2, w3 when gated), "norm1" and "norm2"
    (gamma, beta). The norm follows each residual (Attention Is All You Need, section 3.1), or comes before each
    sub-layer with `norm_first`. `config` are fields of Config: norm_first, activation, eps. Errors are those of the
    sub-layers.

    >>> import numpy as np
    >>> zero = {"w1": np.zeros((2, 3)), "w2": np.zeros((3, 2))}
    >>> encoder_layer(np.array([[3.0, 5.0]]), {"ffn": zero}, heads=1, norm_first=True).round(4)
    array([[2., 6.]])
    """
    return _run_layer("encoder", x, params, Context(mask=mask), heads=heads, causal=causal, **config)


def decoder_layer(
    x: Array,
    memory: Array,
    params: Params,
    *,
    heads: int,
    mask: Array | None = None,
    memory_mask: Array | None = None,
    causal: bool = True,
    **config: Any,
) -> Array:
    """Apply causal self-attention, attention to the memory, then the feed-forward network.

    x (..., T, D), memory (..., S, D) -> (..., T, D)

    `params` is that of encoder_layer with "cross" and "norm3" besides: norm1 belongs to self, norm2 to cross,
    norm3 to ffn. `config` and errors are those of encoder_layer.

    >>> import numpy as np
    >>> zero = {"w1": np.zeros((2, 3)), "w2": np.zeros((3, 2))}
    >>> x = np.array([[3.0, 5.0]])
    >>> decoder_layer(x, 2 * x, {"ffn": zero}, heads=1, norm_first=True).round(4)
    array([[ 8., 16.]])
    """
    context = Context(mask=mask, memory=memory, memory_mask=memory_mask)
    return _run_layer("decoder", x, params, context, heads=heads, causal=causal, **config)


def _run_layer(
    name: str, x: Array, params: Params, context: Context, *, heads: int, causal: bool, **config: Any
) -> Array:
    """Run the only layer of a stack whose parameters are named by sub-layer."""
    cross = name == "decoder"
    stack = StackConfig(layers=1, heads=heads, hidden=0, kv_heads=heads, head_dim=0, causal=causal, cross=cross)
    stacks: dict[str, Any] = {name: stack}
    layer_config = Config("", x.shape[-1], **stacks, **config)
    by_layer = {f"{name}.0.{part}": weights for part, weights in params.items()}
    return run(Model(layer_config, by_layer), layer_steps(layer_config, name, 0), x, context)
