"""The adjoints of layernorm, ffn and linear."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnkit import model
from attnkit.inference import layers
from attnkit.inference.ffn_weights import find_ffn_weights
from attnkit.inference.gradients.stages import Outer, StageCall, StageGradients
from attnkit.model import Array
from attnkit.model.backward import (
    NormGradients,
    add_backward,
    batch_norm_backward,
    feed_forward_backward,
    layer_norm_backward,
    linear_backward,
    rms_norm_backward,
)
from attnkit.model.backward.linear import sum_to_shape
from attnkit.record import Tensor

FFN_INTERMEDIATES = ("hidden", "activated", "linear", "gated")


def undo_layernorm(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x, of what --add adds to it, and of gamma and beta; running statistics are constants."""
    values, x = call.values, call.before["x"]
    addend = values["add"]
    total = x if addend is None else model.add(x, addend["x"])
    dx = np.zeros_like(total, model.working(total))
    if "x" in outer:
        gradients = undo_norm(call, outer.pop("x"), total)
        dx = gradients.x
        parts = {"gamma": gradients.gamma, "beta": gradients.beta}
        if values["model_"] is not None:
            into.layers.add(layers.find_layer(values["model_"], values["layer"], "layernorm"), parts)
        for flag, part in parts.items() if values["model_"] is None else ():
            if part is not None:
                into.add_operand(flag, part)
    if "residual" in outer:
        dx = dx + outer.pop("residual")
    if "mean" in outer and values["kind"] != "batch":
        dx = dx + outer["mean"] * (outer["mean"].size / dx.size)
        outer.pop("mean")
    if addend is None:
        into.add_input("x", dx)
    else:
        first, second = add_backward(dx, x, addend["x"]) if dx.shape == x.shape else (sum_to_shape(dx, x.shape), dx)
        into.add_input("x", first)
        into.add_operand("add", second)


def undo_norm(call: StageCall, dy: Array, x: Array) -> NormGradients:
    """Return the gradients of the norm that the flags or the model choose."""
    values = call.values
    gamma, beta, mean, variance = (
        None if values[name] is None else values[name]["x"] for name in ("gamma", "beta", "mean", "variance")
    )
    kind, eps, axis = values["kind"], values["eps"], values["axis"]
    if values["model_"] is not None:
        params = values["model_"].params[layers.find_layer(values["model_"], values["layer"], "layernorm")]
        gamma, beta = params.get("gamma"), params.get("beta")
        kind, eps = values["model_"].config.norm, values["model_"].config.eps
    if kind == "batch":
        return batch_norm_backward(dy, x, gamma, beta, eps=eps, mean=mean, variance=variance)
    if kind == "rms":
        return rms_norm_backward(dy, x, gamma, eps=eps, axis=axis)
    return layer_norm_backward(dy, x, gamma, beta, eps=eps, axis=axis)


def undo_ffn(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x, of the weights and of the intermediates."""
    values, x, checkpoint = call.values, call.before["x"], call.values["model_"]
    weights, activation = find_ffn_weights(x, values)
    dy = outer.pop("x", np.zeros(call.result["x"].shape, model.working(x)))
    if values["residual"]:
        into.add_input("x", sum_to_shape(dy, x.shape))
    if values["add"] is not None:
        into.add_operand("add", sum_to_shape(dy, values["add"]["x"].shape))
    collected: dict[str, Array] = {}
    dx, gradients = feed_forward_backward(dy, x, weights, activation=activation, hook=collect_hidden(collected, outer))
    into.add_input("x", dx)
    if checkpoint is not None:
        into.layers.add(layers.find_layer(checkpoint, values["layer"], "ffn"), gradients)
    else:
        for name in weights:
            into.add_parameter(name, gradients.get(name))
    axes = (*call.before.axes_of("x")[:-1], "hidden")
    for name in [name for name in FFN_INTERMEDIATES if name in collected]:
        outer.pop(name, None)
        into.tensors[name] = Tensor(collected[name], axes, call.before.labels if axes[0] in call.before.labels else {})


def collect_hidden(collected: dict[str, Array], outer: Outer) -> Callable[[str], Any]:
    """Return a hook that keeps the gradients of the hidden layer, with what later stages add to them."""

    def hook(name: str) -> Callable[[Array], Array] | None:
        if name not in FFN_INTERMEDIATES:
            return None

        def visit(gradient: Array) -> Array:
            collected[name] = gradient + outer[name] if name in outer else gradient
            return collected[name]

        return visit

    return hook


def undo_linear(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x, w and b."""
    values, x, checkpoint = call.values, call.before["x"], call.values["model_"]
    weights = layers.linear_weights(values["params"], checkpoint, values["layer"])
    gradients = linear_backward(outer.pop("x"), x, weights["w"], weights.get("b"))
    into.add_input("x", gradients.x)
    if checkpoint is not None:
        layer = layers.find_layer(checkpoint, values["layer"], "linear")
        into.layers.add(layer, {"w": gradients.weight, "b": gradients.bias})
    else:
        into.add_parameter("w", gradients.weight, ("model", "out"))
        into.add_parameter("b", gradients.bias, ("out",))
