"""The adjoint of attend."""

import math

import numpy as np

from attnkit import model
from attnkit.inputs import intermediates
from attnkit.inputs.attention_inputs import (
    AttentionInputs,
    PreparedAttention,
    broadcast_over_heads,
    prepare_attention,
    weigh_values,
)
from attnkit.inputs.masking import AttendedTensor
from attnkit.interpret.gradients.stages import Outer, StageCall, StageGradients, collect_gradients
from attnkit.model import Array
from attnkit.model.backward.attention_backward import multi_head_attention_vjp
from attnkit.model.backward.recorded_steps import add_relative_gradients
from attnkit.model.intermediates import SQUARE
from attnkit.model.linear import linear_backward, sum_to_shape
from attnkit.model.parameters import OUTPUT_PARAMETERS
from attnkit.model.positions import t5_bias_backward
from attnkit.model.scores import product_backward
from attnkit.model.transformer import position_buckets
from attnkit.record import Record, Tensor

MANY = 1 << 22  # scores from which on the gradients of scores and weights are not kept
NAMES = ("q", "k", "v", *SQUARE, "heads")  # the intermediates that have gradients
FLAGS = ("past_key", "past_value")


def undo_attend(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of queries, keys, values, weights, bias, a float mask, and of every intermediate."""
    if call.values["weights_from"] is not None:
        undo_weights(call, outer, into)
        return
    prepared = prepare_attention(call.before, call.values)
    x, y, z = prepared.inputs.arrays()
    options, emit = prepared.options, "heads" if call.values["partial"] else call.values["emit"]
    output, pullback = multi_head_attention_vjp(x, y, z, prepared.projections, options)
    dx = outer.pop("x", np.zeros(call.result["x"].shape, output.dtype))
    if call.values["concat"]:
        dx, beside = np.split(dx, [output.shape[-1]], axis=-1)
        into.add_input("x", beside)
    if emit is None:
        undo_addends(call, dx, into)
    else:
        outer[emit] = outer[emit] + dx if emit in outer else dx
    add_present(call, outer, into)
    parts = {name: outer.pop(name) for name in OUTPUT_PARAMETERS if name in outer}  # of --partial, for merge
    if "lse" in outer:
        add_log_sum_exp(prepared, outer)
    grad_output = sum_to_shape(dx, output.shape) if emit is None else np.zeros_like(output)
    collected: dict[str, Array] = {}
    kept = list_kept(prepared, outer)
    inputs, weights = pullback(grad_output, collect_gradients(collected, outer, kept.__contains__))
    for name in collected:
        outer.pop(name, None)
    add_inputs(call, prepared, inputs, into)
    if call.values["model_"] is not None:
        add_relative_gradients(call.values["model_"].config, prepared.inputs.layer, inputs, into.layers)
    for named in (weights, parts):
        if call.values["model_"] is not None:
            into.layers.add(prepared.inputs.layer, named)
        else:
            for name, gradient in named.items():
                into.add_parameter(name, gradient)
    into.tensors |= describe_gradients(collected, prepared.inputs)


def undo_weights(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of values, of weights that are given, and of the projections of values and output."""
    computed, heads = weigh_values(call.before, call.values), call.values["heads"]
    projections = computed.projections
    dx = outer.pop("x", np.zeros(call.result["x"].shape, computed.output.dtype))
    undo_addends(call, dx, into)
    dx = sum_to_shape(dx, computed.output.shape)
    output = linear_backward(dx, model.merge_heads(computed.heads), projections.get("wo"), projections.get("bo"))
    dheads = model.split_heads(output.x, heads) + outer.pop("heads", 0)
    dweights, dv = product_backward(dheads, computed.weights, computed.v)
    dweights, dv = dweights + outer.pop("weights", 0), dv + outer.pop("v", 0)
    value = linear_backward(model.merge_heads(dv), computed.value, projections.get("wv"), projections.get("bv"))
    flag = next((name for name in ("value", "memory") if call.values[name] is not None), "")
    if flag:
        into.add_operand(flag, value.x)
    else:
        into.add_input("x", value.x)
    shape = call.values["weights_from"]["x"].shape
    aligned = (shape[0], 1, *shape[1:]) if len(shape) == 3 and computed.value.ndim == 3 else shape
    into.add_operand("weights_from", sum_to_shape(dweights, aligned).reshape(shape))
    for name, gradient in (("wv", value.weight), ("bv", value.bias), ("wo", output.weight), ("bo", output.bias)):
        into.add_parameter(name, gradient if name in projections else None)


def undo_addends(call: StageCall, dx: Array, into: StageGradients) -> None:
    """Add the gradients of what --residual and --add add to the output."""
    if call.values["residual"]:
        into.add_input("x", sum_to_shape(dx, call.before["x"].shape))
    if call.values["add"] is not None:
        into.add_operand("add", sum_to_shape(dx, call.values["add"]["x"].shape))


def add_present(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Turn the gradients of all keys and values of a cache into those of past ones and of this call's."""
    for name, present, flag in (("k", "present_key", "past_key"), ("v", "present_value", "past_value")):
        if present not in outer:
            continue
        gradient, operand = outer.pop(present), call.values[flag]
        past = 0 if operand is None else operand["x"].shape[-2]
        if past:
            into.add_operand(flag, gradient[..., :past, :])
        outer[name] = outer[name] + gradient[..., past:, :] if name in outer else gradient[..., past:, :]


def add_log_sum_exp(prepared: PreparedAttention, outer: Outer) -> None:
    """Turn the gradient of the log-sum-exp of each query into one of its masked scores: the weights times it."""
    arrays, options = prepared.inputs.arrays(), prepared.options
    weights = model.multi_head_attention(*arrays, prepared.projections, options, keep=("weights",))["weights"]
    gradient = np.where(weights == 0, 0, weights * outer.pop("lse")[..., None])
    outer["masked"] = outer["masked"] + gradient if "masked" in outer else gradient


def list_kept(prepared: PreparedAttention, outer: Outer) -> set[str]:
    """Return the intermediates whose gradients are kept: of those of every query with every key, where these are many,
    only what later stages use."""
    query, key, _ = prepared.inputs.arrays()
    heads = 1 if query.ndim == 4 else prepared.options.heads
    has_many = heads * math.prod(query.shape[:-1]) * key.shape[-2] > MANY
    return {name for name in NAMES if name not in SQUARE or not has_many or name in outer}


def add_inputs(call: StageCall, prepared: PreparedAttention, gradients: dict[str, Array], into: StageGradients) -> None:
    """Add the gradients of the operands, each to the tensor or the file that it comes from."""
    inputs, options = prepared.inputs, prepared.options
    key_flag = "key" if call.values["key"] is not None else "memory"
    value_flag = "value" if call.values["value"] is not None else key_flag
    for name, operand, flag in (
        ("query", inputs.query, "query"),
        ("key", inputs.key, key_flag),
        ("value", inputs.value, value_flag),
    ):
        add_attended(operand, flag, gradients[name], into)
    if options.mask is not None and "mask" in gradients:
        add_score_operand(call, "mask", inputs.mask, gradients["mask"], into)
    if "bias" in gradients:
        undo_bias(call, prepared, gradients["bias"], into)
    for flag in FLAGS:
        if flag in gradients:
            into.add_operand(flag, gradients[flag])
    for name in options.score_params or {}:
        into.add_parameter(name, gradients[name])


def add_attended(operand: Record, flag: str, gradient: Array, into: StageGradients) -> None:
    """Add the gradient of queries, keys or values: of a tensor of the record, or of the file of a flag."""
    if not isinstance(operand, AttendedTensor):
        into.add_input("x" if "x" in into.call.before else next(iter(into.call.before)), gradient)
    elif operand.is_given:
        into.add_input(operand.name, gradient)
    else:
        into.add_operand(flag, gradient)


def add_score_operand(
    call: StageCall, name: str, operand: Record | None, gradient: Array, into: StageGradients
) -> None:
    """Add the gradient of a float mask or a bias, of a flag or of the record, in the operand's own shape."""
    if operand is None:
        return
    gradient = gradient.reshape(operand["x"].shape)
    if call.values[name] is not None:
        into.add_operand(name, gradient)
    elif name in call.before and call.before[name].shape == gradient.shape:
        into.add_input(name, gradient)


def undo_bias(call: StageCall, prepared: PreparedAttention, gradient: Array, into: StageGradients) -> None:
    """Add the gradients of a bias on the scores: that of the record or a flag, and that of a model's positions."""
    inputs, checkpoint = prepared.inputs, call.values["model_"]
    own = broadcast_over_heads(inputs.bias)
    if own is not None:
        add_score_operand(call, "bias", inputs.bias, sum_to_shape(gradient, own.shape), into)
    if checkpoint is not None and checkpoint.config.positions.relative == "t5":
        stack = model.parse_layer_name(inputs.layer)[0]
        tokens, past = inputs.query["x"].shape[-2], prepared.options.past
        buckets = position_buckets(checkpoint.config, stack, past, tokens)
        bias = sum_to_shape(gradient, (prepared.options.heads, *buckets.shape))
        table = t5_bias_backward(bias, buckets, checkpoint.config.positions.buckets)
        into.layers.add(f"{stack}.bias", {"table": table})


def describe_gradients(collected: dict[str, Array], inputs: AttentionInputs) -> dict[str, Tensor]:
    """Return the gradients of intermediates in the order of attention, with the axes and labels of these."""
    tokens = collected["q"].shape[-2]
    labels = intermediates.attention_labels(inputs.query, inputs.key, inputs.key_axis, "full", tokens)
    lead = ("batch",)[: collected["q"].ndim - 3]
    tensors = {}
    for name in [name for name in NAMES if name in collected]:
        axes = (*lead, *intermediates.attention_axes(name, inputs.key_axis))
        fitting = {axis: names for axis, names in labels.items() if axis in axes}
        tensors[name] = Tensor(collected[name], axes, fitting)
    return tensors
