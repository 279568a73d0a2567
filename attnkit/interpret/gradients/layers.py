"""The adjoints of layernorm, ffn, linear and softmax."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import UsageError
from attnkit.inputs import intermediates, layers
from attnkit.inputs.ffn_weights import find_ffn_weights
from attnkit.inputs.recurrent_layers import find_texts, read_state_file
from attnkit.inputs.recurrent_weights import find_recurrent_weights
from attnkit.inputs.softmax_stage import STEPS, compute_softmax
from attnkit.interpret.gradients.stages import Outer, StageCall, StageGradients, collect_gradients
from attnkit.model import Array
from attnkit.model.backward.recurrent_backward import stack_backward
from attnkit.model.dtypes import is_float
from attnkit.model.feedforward import feed_forward_vjp
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.linear import add_backward, linear_backward, sum_to_shape
from attnkit.model.norms import NormGradients, layer_norm_vjp, norm_steps_backward, rms_norm_vjp
from attnkit.model.recurrent_layers import run_stack
from attnkit.model.softmax import softmax_backward
from attnkit.record import Tensor

FFN_INTERMEDIATES = ("hidden", "activated", "linear", "gated")
NORM_INTERMEDIATES = ("mean", "variance", "mean_square", "inverse_std", "normalized", "scaled")


def undo_layernorm(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x, of what --add adds to it, of gamma and beta, and of the statistics and steps.

    Running statistics are constants.
    """
    values, x = call.values, call.before["x"]
    addend = values["add"]
    total = x if addend is None else model.add(x, addend["x"])
    norm = find_norm(call, total)
    dx = np.zeros_like(total, model.working(total))
    if outer.keys() & {"x", *NORM_INTERMEDIATES}:
        dx = undo_norm(norm, total, outer, into)
    if "residual" in outer:
        dx = dx + outer.pop("residual")
    if addend is None:
        into.add_input("x", dx)
    else:
        first, second = add_backward(dx, x, addend["x"]) if dx.shape == x.shape else (sum_to_shape(dx, x.shape), dx)
        into.add_input("x", first)
        into.add_operand("add", second)


class Norm(NamedTuple):
    """The norm that the flags or the model choose: its kind, its parameters and its running statistics, if any."""

    kind: str
    eps: float
    axis: int
    gamma: Array | None
    beta: Array | None
    statistics: tuple[Array | None, Array | None]

    def undo(self, dy: Array, x: Array) -> NormGradients:
        """Return the gradients, also of rows whose squares leave the range of float64."""
        if self.kind == "batch":
            return self.undo_steps(dy, x, no_hook)
        if self.kind == "rms":
            return rms_norm_vjp(x, self.gamma, eps=self.eps, axis=self.axis)[1](dy)
        return layer_norm_vjp(x, self.gamma, self.beta, eps=self.eps, axis=self.axis)[1](dy)

    def undo_steps(self, dy: Array, x: Array, hook: Hook) -> NormGradients:
        """Return the gradients step by step, with those of the intermediates for a hook."""
        over = range(x.ndim - 1) if self.kind == "batch" else range(self.axis % x.ndim, x.ndim)
        is_centred, parameters = self.kind != "rms", (self.gamma, self.beta)
        return norm_steps_backward(
            dy, x, parameters, eps=self.eps, over=over, centred=is_centred, statistics=self.statistics, hook=hook
        )


def find_norm(call: StageCall, x: Array) -> Norm:
    """Return the norm of a stage."""
    values = call.values
    gamma, beta, mean, variance = (
        None if values[name] is None else values[name]["x"] for name in ("gamma", "beta", "mean", "variance")
    )
    if values["model_"] is None:
        return Norm(values["kind"], values["eps"], values["axis"], gamma, beta, (mean, variance))
    config = values["model_"].config
    params = values["model_"].params[layers.find_layer(values["model_"], values["layer"], "layernorm")]
    return Norm(config.norm, config.eps, values["axis"], params.get("gamma"), params.get("beta"), (None, None))


def undo_norm(norm: Norm, x: Array, outer: Outer, into: StageGradients) -> Array:
    """Return the gradient of the input of a norm, and add those of its parameters and intermediates."""
    dy, has_more = outer.pop("x", np.zeros(x.shape, model.working(x))), outer.keys() & {*NORM_INTERMEDIATES}
    collected: dict[str, Array] = {}
    gradients = norm.undo_steps(dy, x, collect_gradients(collected, outer))
    gradients = gradients if has_more else norm.undo(dy, x)
    add_norm_parameters({"gamma": gradients.gamma, "beta": gradients.beta}, into)
    axes = into.call.before.axes_of("x") if into.call.before["x"].ndim == x.ndim else None
    is_step = {"normalized": norm.gamma is not None or norm.beta is not None}
    is_step |= {"scaled": norm.gamma is not None and norm.beta is not None}
    for name in NORM_INTERMEDIATES:
        gradient = collected.get(name)
        outer.pop(name, None)
        if gradient is not None and is_step.get(name, True):
            over = axes and intermediates.statistic_axes(axes, gradient.shape, x.shape)
            into.tensors[name] = Tensor(gradient.astype(dy.dtype), over, into.call.before.labels if over else {})
    return gradients.x


def add_norm_parameters(parts: Mapping[str, Array | None], into: StageGradients) -> None:
    """Add the gradients of gamma and beta: of a model's layer, or of files."""
    values = into.call.values
    if values["model_"] is not None:
        into.layers.add(layers.find_layer(values["model_"], values["layer"], "layernorm"), parts)
        return
    for flag, part in parts.items():
        if part is not None:
            into.add_operand(flag, part)


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
    hook = collect_gradients(collected, outer, lambda name: name in FFN_INTERMEDIATES)
    dx, gradients = feed_forward_vjp(x, weights, activation=activation)[1](dy, hook)
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


def undo_softmax(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of the scores, and of a float mask that is added to them."""
    computed = compute_softmax(call.before, call.values)
    if steps := sorted({*outer} & {*STEPS}):
        raise call.error(f"{steps[0]} is a step of it, which has no gradient of its own")
    weights = np.moveaxis(model.softmax(computed.masked, computed.axis), computed.axis, -1)
    gradient = softmax_backward(np.moveaxis(outer.pop("x"), computed.axis, -1), weights)
    gradient = np.moveaxis(gradient, -1, computed.axis)
    into.add_input("x", gradient / call.values["temperature"])
    mask = call.values["mask"]
    if mask is not None and is_float(mask["x"].dtype):
        into.add_operand("mask", sum_to_shape(gradient, mask["x"].shape))


def undo_rnn(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x and of the weights, as their file names them; states of --state-in are constants."""
    if "x" not in outer:
        return
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        raise UsageError("the gradients of a pipeline take rnn with --params or --hidden", "--model")
    cell, texts, weights = values["cell"], find_texts(call.before, values["lengths"]), find_recurrent_weights(x, values)
    states, offset = None, 0
    if values["state_in"] is not None:
        states, offset = read_state_file(values["state_in"], cell, weights.layers, texts)
    runs = run_stack(cell, texts.x, weights.layers, states, lengths=texts.lengths, offset=offset, has_trace=True)
    dy = outer.pop("x")
    grad = dy if texts.is_batch else dy[None]
    dx, layers = stack_backward(cell, np.ascontiguousarray(grad), texts.x, weights.layers, runs, lengths=texts.lengths)
    into.add_input("x", dx if texts.is_batch else dx[0])
    for name, gradient in weights.by_name([one.parameters for one in layers]).items():
        into.add_parameter(name, gradient)
