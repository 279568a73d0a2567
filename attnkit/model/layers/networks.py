"""Steps of each token by itself: norms, projections, networks and experts."""

from collections.abc import Callable, Mapping
from typing import Any

from attnkit.model.context import Context, Model, layer_products
from attnkit.model.dtypes import Array
from attnkit.model.formulas.experts import Experts, mix_experts
from attnkit.model.formulas.feedforward import feed_forward
from attnkit.model.formulas.linear import linear
from attnkit.model.formulas.norms import Normalized, layer_norm, rms_norm
from attnkit.model.hooks import apply_hook, scoped


def normalize(model: Model, layer: str, x: Array) -> Normalized:
    """Apply the model's norm to x, and return its statistics with the result.

    x (..., T, D) -> y (..., T, D)
    """
    params: Mapping[str, Any] = model.params.get(layer, {})
    norm: Callable[..., Normalized] = rms_norm if model.config.norm == "rms" else layer_norm
    return norm(x, **params, eps=model.config.eps)


def apply_norm(model: Model, layer: str, x: Array, context: Context) -> Array:
    return apply_hook(context.hook, layer, normalize(model, layer, x).y)


def project_states(model: Model, layer: str, x: Array, context: Context) -> Array:
    params = model.params[layer]
    y = linear(x, params["w"], params.get("b"), products=layer_products(model, layer, context), can_scale=True)
    return apply_hook(context.hook, layer, y)


def apply_network(model: Model, layer: str, x: Array, context: Context) -> Array:
    params: Mapping[str, Any] = model.params[layer]
    hook = scoped(context.hook, layer)
    products = layer_products(model, layer, context)
    options: dict[str, Any] = {"keep": (), "hook": hook, "products": products, **model.config.network_options(layer)}
    if mixture := model.config.mixture(layer):
        return mix_experts(x, layer_experts(model, layer), mixture, **options)["output"]
    return feed_forward(x, params, **options)["output"]


def layer_experts(model: Model, layer: str) -> Experts:
    """The router and the networks of a layer that is a mixture of experts."""
    name, params = layer.removesuffix(".ffn"), model.params
    return Experts(params[layer], lambda number: params[expert_layer(layer, number)], params.get(f"{name}.shared"))


def expert_layer(layer: str, number: int) -> str:
    """The layer that holds the parameters of an expert.

    >>> expert_layer("decoder.0.ffn", 3)
    'decoder.0.expert.3'
    """
    return f"{layer.removesuffix('.ffn')}.expert.{number}"
