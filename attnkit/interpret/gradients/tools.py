"""The adjoint of each tool: from gradients of its results to those of its inputs.

An adjoint reads the stage that ran and `outer`, the gradients of the tensors that it computed. It removes from `outer`
what it uses, and adds to `into` the gradients of what the stage read. The arithmetic is in attnkit.model.
"""

import math
from collections.abc import Mapping

import numpy as np

from attnkit import model
from attnkit.inputs import (
    convolution_stage,
    encoding,
    intermediates,
    layers,
    padding,
    softmax_stage,
    source_states,
    text_inputs,
)
from attnkit.inputs.attention_inputs import PreparedAttention, prepare_attention, weigh_values
from attnkit.inputs.convolution_stage import find_convolution, undo_convolution
from attnkit.inputs.encoding import Encoding
from attnkit.inputs.layers import find_ffn_weights
from attnkit.inputs.operands import AttendedTensor, broadcast_over_heads
from attnkit.inputs.output_matrix import find_output_matrix
from attnkit.inputs.position_inputs import (
    BIASES,
    check_table,
    empty_record,
    find_positions,
    number_tokens,
    token_angles,
)
from attnkit.inputs.recurrent_layers import find_recurrent_weights, find_texts, read_state_file
from attnkit.inputs.targets import find_logits
from attnkit.interpret.gradients.stages import Adjoint, Outer, StageGradients, collect_gradients
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.tracer import Tracer
from attnkit.model import Array
from attnkit.model.backward.attention_backward import merge_partial_attention_backward, multi_head_attention_vjp
from attnkit.model.backward.recorded_steps import add_relative_gradients, run_backward, run_recorded
from attnkit.model.backward.recurrent_backward import stack_backward
from attnkit.model.backward.tape import Reverse
from attnkit.model.backward.whole_models import head_backward, pool_first_backward
from attnkit.model.config import Step
from attnkit.model.dtypes import is_float
from attnkit.model.embedding import embed_backward
from attnkit.model.feedforward import feed_forward_vjp
from attnkit.model.graph.convolutions import sound_site
from attnkit.model.groups import GROUPS
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.intermediates import SQUARE, STEPS, step_names
from attnkit.model.kernels.tiled_attention import merge_partial_attention
from attnkit.model.linear import add_backward, linear_backward, projection_backward, sum_to_shape
from attnkit.model.loss import LossOptions, cross_entropy_backward, loss_and_gradient
from attnkit.model.norms import layer_norm_vjp, norm_steps_backward, rms_norm_vjp
from attnkit.model.parameters import OUTPUT_PARAMETERS
from attnkit.model.pooling import first_token_backward, l2_normalize_backward, mean_pool_backward
from attnkit.model.positions import add_positions_backward, t5_bias_backward
from attnkit.model.recurrent import run_stack
from attnkit.model.sampling import Sampling
from attnkit.model.scores import product_backward
from attnkit.model.softmax import softmax_backward
from attnkit.model.transformer import position_buckets
from attnkit.records import Labels, Record, Tensor

MANY = 1 << 22  # scores from which on the gradients of scores and weights are not kept
NORM_STEPS, FFN_STEPS = step_names("layernorm"), step_names("ffn")
KERNEL_AXES = ("filter", "channel", "row", "column")
INPUT_AXES = {"image": ("channel", "row", "column"), "spectrogram": ("frame", "mel"), "samples": ("sample",)}


def undo_embed(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo embed: the gradient of the table, or of the image."""
    values, dx = call.values, outer.pop("x", None)
    if values["model_"] is not None:
        if dx is not None:
            layer = layers.find_layer(values["model_"], values["layer"], "embed")
            given = {name: values[name] for name in ("pair", "ids", "image", "tokenizer", "batch")}
            given["language"] = values["source_language"] or values["target_language"]
            source = text_inputs.ModelInput(call.item, **given)
            inputs, base = text_inputs.model_inputs(values["model_"], model.parse_layer_name(layer)[0], source)
            dx = undo_step(call, Step("embed", layer), inputs, dx, base, into)
            if values["image"] is not None:
                into.tensors["image"] = Tensor(dx, INPUT_AXES["image"])
    elif "table" in call.result:  # one-hot vectors are constants
        table = call.result["table"]
        total = outer.pop("table", np.zeros((), table.dtype))
        if dx is not None:
            dx = model.scale_embedding(dx) if values["scale"] else dx
            total = embed_backward(dx, call.result["ids"], len(table)) + total
        labels: dict[str, Labels] = {"vocab": call.result.labels["vocab"]} if "vocab" in call.result.labels else {}
        into.add_parameter("table", total, ("vocab", "model"), labels)


def undo_step(call: StageCall, step: Step, x: Array, dy: Array, base: Record, into: StageGradients) -> Array:
    """Undo a step of a model: the gradient of its input; parameters are added.

    base  the record with the mask, segments and grid of the run
    """
    core, context = layers.core_model(call.values["model_"]), layers.context_from(base)
    return GROUPS[step.op].vjp(core, step, x, context)[1](dy, into.layers)


def undo_posenc(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo posenc: x and a table of positions; angles and sinusoids are constants."""
    values = call.values
    is_alone = values["alone"] or values["size"] is not None
    if values["model_"] is not None:
        step = Step("posenc", layers.find_layer(values["model_"], values["layer"], "posenc"))
        if values["positions"] is not None or values["offset"]:
            raise call.error("no gradient of --model with --positions or --offset; posenc --table FILE has one")
        into.add_input("x", undo_step(call, step, call.before["x"], outer.pop("x"), call.before, into))
    elif values["kind"] in BIASES:
        bias = outer.pop("bias", outer.pop("x", None) if is_alone else None)
        if bias is not None and values["kind"] == "t5":
            into.add_operand("table", undo_relative_bias(call, bias))
    elif values["kind"] == "rotary":
        if is_alone:
            outer.clear()
        else:
            into.add_input("x", undo_rotary(call, outer.pop("x")))
    elif "x" in outer:
        dx = outer.pop("x")
        if not is_alone:
            into.add_input("x", dx)
        if values["kind"] == "learned":
            where, table = call.apply(find_positions, input_of(call))
            encoding = dx if is_alone else add_positions_backward(dx, (*where.shape, dx.shape[-1]))
            gradient = embed_backward(encoding, where, len(table), "position")
            if values["seed"] is None:
                into.add_operand("table", gradient)
            else:
                into.add_parameter("table", gradient, ("position", "model"))


def input_of(call: StageCall) -> Array:
    """The x that posenc read; with --size the x that it makes itself."""
    values = call.values
    if call.item is not None:
        return call.before["x"]
    return empty_record(values["kind"], values["size"] or (0,), values["dim"], values["table"])["x"]


def undo_rotary(call: StageCall, dx: Array) -> Array:
    """Rotate the gradient of rotated features back."""
    values, x = call.values, call.before["x"]
    positions = number_tokens(x, values["offset"], values["positions"])
    options = {name: values[name] for name in ("rotary_dim", "base", "cos", "sin")}
    cos, sin = token_angles(x, positions, values["heads"], **options)
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    split = dx if x.ndim == 4 else model.split_heads(dx, values["heads"])
    rotated = model.rotate(split, cos, -sin, interleaved=values["interleaved"])
    return rotated if x.ndim == 4 else model.merge_heads(rotated)


def undo_relative_bias(call: StageCall, bias: Array) -> Array:
    """Gradient of the table of T5's bias: bias (H, T, S) -> (buckets, H)."""
    values, table = call.values, check_table(call.values["table"])
    x, size = input_of(call), values["size"]
    queries = number_tokens(x, values["offset"], values["positions"])
    keys = np.arange(size[-1] if size else values["offset"] + x.shape[-2]) if values["positions"] is None else queries
    far, both = values["max_distance"], not values["one_way"]
    buckets = model.t5_buckets(queries, keys, buckets=len(table), max_distance=far, bidirectional=both)
    return t5_bias_backward(sum_to_shape(bias, (table.shape[1], *buckets.shape)), buckets, len(table))


def undo_attend(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo attend: every operand, parameter and intermediate."""
    if call.values["weights_from"] is not None:
        undo_weights(call, outer, into)
        return
    prepared = call.apply(prepare_attention, call.before)
    inputs, options, checkpoint = prepared.inputs, prepared.options, call.values["model_"]
    output, pullback = multi_head_attention_vjp(*inputs.arrays(), prepared.projections, options)
    dx, emit = outer.pop("x", np.zeros(call.result["x"].shape, output.dtype)), call.values["emit"]
    emit = "heads" if call.values["partial"] else emit
    if call.values["concat"]:
        dx, beside = np.split(dx, [output.shape[-1]], axis=-1)
        into.add_input("x", beside)
    if emit is None:
        dx = undo_addends(call, dx, into)
    else:
        outer[emit] = outer[emit] + dx if emit in outer else dx
    split_present(call, outer, into)
    parts = {name: outer.pop(name) for name in OUTPUT_PARAMETERS if name in outer}  # of --partial, for merge
    if "lse" in outer:
        steps = model.multi_head_attention(*inputs.arrays(), prepared.projections, options, keep=("weights",))
        masked = np.where(steps["weights"] == 0, 0, steps["weights"] * outer.pop("lse")[..., None])
        outer["masked"] = outer["masked"] + masked if "masked" in outer else masked
    query, key, _ = inputs.arrays()
    scores = (1 if query.ndim == 4 else options.heads) * math.prod(query.shape[:-1]) * key.shape[-2]
    kept = {name for name in STEPS if name not in SQUARE or scores <= MANY or name in outer}
    collected: dict[str, Array] = {}
    hook = collect_gradients(collected, outer, kept.__contains__)
    grad_output = sum_to_shape(dx, output.shape) if emit is None else np.zeros_like(output)
    gradients, weights = pullback(grad_output, hook)
    for name in collected:
        outer.pop(name, None)
    if "residual" in outer:
        into.add_input("x", outer.pop("residual"))
    add_operands(call, prepared, gradients, into)
    if checkpoint is not None:
        add_relative_gradients(checkpoint.config, inputs.layer, gradients, into.layers)
    into.add_weights(weights)
    into.add_weights(parts)
    labels = intermediates.attention_labels(inputs.query, inputs.key, inputs.key_axis, "full", output.shape[-2])
    for name in [name for name in STEPS if name in collected]:
        axes = intermediates.attention_axes(name, inputs.key_axis)
        axes = (*("batch",)[: collected[name].ndim - 3], *axes)
        into.tensors[name] = Tensor(collected[name], axes, {axis: labels[axis] for axis in axes if axis in labels})


def undo_weights(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo attend --weights-from: the values, the weights and the projections."""
    computed, heads = call.apply(weigh_values, call.before), call.values["heads"]
    projections = computed.projections
    dx = outer.pop("x", np.zeros(call.result["x"].shape, computed.output.dtype))
    dx = undo_addends(call, dx, into)
    dx = sum_to_shape(dx, computed.output.shape)
    dheads, of_output = projection_backward(dx, model.merge_heads(computed.heads), projections, "o")
    dheads = model.split_heads(dheads, heads) + outer.pop("heads", 0)
    dweights, dv = product_backward(dheads, computed.weights, computed.v)
    dweights, dv = dweights + outer.pop("weights", 0), dv + outer.pop("v", 0)
    dvalue, of_value = projection_backward(model.merge_heads(dv), computed.value, projections, "v")
    flag = next((name for name in ("value", "memory") if call.values[name] is not None), "")
    if flag:
        into.add_operand(flag, dvalue)
    else:
        into.add_input("x", dvalue)
    shape = call.values["weights_from"]["x"].shape
    aligned = (shape[0], 1, *shape[1:]) if len(shape) == 3 and computed.value.ndim == 3 else shape
    into.add_operand("weights_from", sum_to_shape(dweights, aligned).reshape(shape))
    into.add_weights(of_value | of_output)


def undo_addends(call: StageCall, dx: Array, into: StageGradients) -> Array:
    """Add the gradients of what is added to a result; the gradient of the result itself."""
    if call.values["residual"]:
        into.add_input("x", sum_to_shape(dx, call.before["x"].shape))
    if call.values["add"] is not None:
        into.add_operand("add", sum_to_shape(dx, call.values["add"]["x"].shape))
    is_added = call.values["residual"] or call.values["add"] is not None
    return model.scaled(dx, layers.residual_scale(call.values.get("model_"))) if is_added else dx


def split_present(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Split the gradients of all keys and values of a cache into past and new ones."""
    for name, present, flag in (("k", "present_key", "past_key"), ("v", "present_value", "past_value")):
        if present not in outer:
            continue
        gradient, operand = outer.pop(present), call.values[flag]
        past = 0 if operand is None else operand["x"].shape[-2]
        if past:
            into.add_operand(flag, gradient[..., :past, :])
        outer[name] = outer[name] + gradient[..., past:, :] if name in outer else gradient[..., past:, :]


def add_operands(
    call: StageCall, prepared: PreparedAttention, gradients: Mapping[str, Array], into: StageGradients
) -> None:
    """Add the gradients of the operands of attention to the tensors or files of each."""
    inputs, options, values = prepared.inputs, prepared.options, call.values
    key_flag = "key" if values["key"] is not None else "memory"
    value_flag = "value" if values["value"] is not None else key_flag
    for name, flag in (("query", "query"), ("key", key_flag), ("value", value_flag)):
        operand: Record = getattr(inputs, name)
        if not isinstance(operand, AttendedTensor):
            into.add_input("x" if "x" in call.before else next(iter(call.before)), gradients[name])
        elif operand.is_given:
            into.add_input(operand.name, gradients[name])
        else:
            into.add_operand(flag, gradients[name])
    if options.mask is not None and "mask" in gradients:
        add_score_operand(call, "mask", inputs.mask, gradients["mask"], into)
    own, checkpoint = broadcast_over_heads(inputs.bias, inputs.batch, options.heads), values["model_"]
    if "bias" in gradients and own is not None:
        add_score_operand(call, "bias", inputs.bias, sum_to_shape(gradients["bias"], own.shape), into)
    if "bias" in gradients and checkpoint is not None and checkpoint.config.positions.relative == "t5":
        stack = model.parse_layer_name(inputs.layer)[0]
        buckets = position_buckets(checkpoint.config, stack, options.past, inputs.query["x"].shape[-2])
        bias = sum_to_shape(gradients["bias"], (options.heads, *buckets.shape))
        table = t5_bias_backward(bias, buckets, checkpoint.config.positions.buckets)
        into.layers.add(f"{stack}.bias", {"table": table})
    for flag in ("past_key", "past_value", "sinks"):
        if flag in gradients:
            into.add_operand(flag, gradients[flag])
    for name in options.score_params or {}:
        into.add_parameter(name, gradients[name])


def add_score_operand(
    call: StageCall, name: str, operand: Record | None, gradient: Array, into: StageGradients
) -> None:
    """Add the gradient of a float mask or a bias in the operand's own shape."""
    if operand is None:
        return
    gradient = gradient.reshape(operand["x"].shape)
    if call.values[name] is not None:
        into.add_operand(name, gradient)
    elif name in call.before and call.before[name].shape == gradient.shape:
        into.add_input(name, gradient)


def undo_softmax(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo softmax: the scores, and a float mask that is added to them."""
    computed = call.apply(softmax_stage.compute_softmax, call.before)
    if steps := sorted({*outer} & {*softmax_stage.STEPS}):
        raise call.error(f"{steps[0]} is a step of it, which has no gradient of its own")
    weights = np.moveaxis(model.softmax(computed.masked, computed.axis), computed.axis, -1)
    gradient = softmax_backward(np.moveaxis(outer.pop("x"), computed.axis, -1), weights)
    gradient = np.moveaxis(gradient, -1, computed.axis)
    into.add_input("x", gradient / call.values["temperature"])
    mask = call.values["mask"]
    if mask is not None and is_float(mask["x"].dtype):
        cells = np.asarray(softmax_stage.find_cells(call.before, mask))
        into.add_operand("mask", sum_to_shape(gradient, cells.shape).reshape(mask["x"].shape))


def undo_merge(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo merge: heads and log-sum-exp of each part; with --join W_O and b_O."""
    outputs, lses = [part["x"] for part in call.item], [part["lse"] for part in call.item]
    dlse = outer.pop("lse", np.zeros(lses[0].shape))
    dx = outer.pop("x", np.zeros(call.result["x"].shape, model.working(outputs[0])))
    if call.values["join"]:
        heads = merge_partial_attention(outputs, lses)[0]
        wo, bo = (call.before.get(name) for name in OUTPUT_PARAMETERS)
        dx, *weights = linear_backward(dx, model.merge_heads(heads), wo, bo)
        for name, gradient in zip(OUTPUT_PARAMETERS, weights, strict=True):
            if gradient is not None:
                into.add_input(name, gradient)
        dx = model.split_heads(dx, heads.shape[-3])
    first, *rest = merge_partial_attention_backward(dx, dlse, outputs, lses)
    for name, gradient in zip(("x", "lse"), first, strict=True):
        into.add_input(name, gradient)
    into.others = [{"x": output, "lse": lse} for output, lse in rest]


def undo_layernorm(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo layernorm: x, the addend, gamma, beta and the steps.

    Running statistics are constants.
    """
    addend, after, branch = (call.values[name] for name in ("add", "add_after", "branch"))
    x = (call.before if branch is None else branch)["x"]
    if after is not None and "x" in outer:
        into.add_operand("add_after", sum_to_shape(outer["x"], after["x"].shape))
        outer["x"] = model.scaled(outer["x"], layers.residual_scale(call.values["model_"]))
    total = x if addend is None else model.add(x, addend["x"])
    dx = np.zeros_like(total, model.working(total))
    if outer.keys() & {"x", *NORM_STEPS}:
        dx = undo_norm(call, total, outer, into)
    if branch is not None:
        into.add_operand("branch", dx)
        into.add_input("x", outer.pop("residual", np.zeros_like(call.before["x"], dx.dtype)))
        return
    if "residual" in outer:
        dx = dx + outer.pop("residual")
    if addend is None:
        into.add_input("x", dx)
    else:
        first, second = add_backward(dx, x, addend["x"]) if dx.shape == x.shape else (sum_to_shape(dx, x.shape), dx)
        into.add_input("x", first)
        into.add_operand("add", second)


def undo_norm(call: StageCall, x: Array, outer: Outer, into: StageGradients) -> Array:
    """Undo the norm of flags or a model: the gradient of its input."""
    values, checkpoint = call.values, call.values["model_"]
    kind, eps, axis = values["kind"], values["eps"], values["axis"]
    mean = variance = None
    if checkpoint is not None:
        kind, eps = checkpoint.config.norm, checkpoint.config.eps
        params = checkpoint.params[layers.find_layer(checkpoint, values["layer"], "layernorm")]
        gamma, beta = params.get("gamma"), params.get("beta")
    else:
        names = ("gamma", "beta", "mean", "variance")
        gamma, beta, mean, variance = (None if values[name] is None else values[name]["x"] for name in names)
    over = range(x.ndim - 1) if kind == "batch" else range(axis % x.ndim, x.ndim)
    dy, has_steps = outer.pop("x", np.zeros(x.shape, model.working(x))), bool(outer.keys() & {*NORM_STEPS})
    collected: dict[str, Array] = {}
    gradients = norm_steps_backward(
        dy, x, (gamma, beta), eps=eps, over=over, centred=kind != "rms", statistics=(mean, variance),
        hook=collect_gradients(collected, outer),
    )  # fmt: skip
    if not has_steps and kind != "batch":  # exact also for rows whose squares leave the range of float64
        params = {"gamma": gamma} if kind == "rms" else {"gamma": gamma, "beta": beta}
        gradients = (rms_norm_vjp if kind == "rms" else layer_norm_vjp)(x, **params, eps=eps, axis=axis)[1](dy)
    into.add_weights({"gamma": gradients.gamma, "beta": gradients.beta})
    axes = call.before.axes_of("x") if call.before["x"].ndim == x.ndim else None
    is_step = {"normalized": gamma is not None or beta is not None, "scaled": gamma is not None and beta is not None}
    for name in NORM_STEPS:
        gradient = collected.get(name)
        outer.pop(name, None)
        if gradient is not None and is_step.get(name, True):
            over_axes = axes and intermediates.statistic_axes(axes, gradient.shape, x.shape)
            labels = call.before.labels if over_axes else {}
            into.tensors[name] = Tensor(gradient.astype(dy.dtype), over_axes, labels)
    return gradients.x


def undo_ffn(call: StageCall, outer: Outer, into: StageGradients) -> None:
    x = call.before["x"]
    if call.values["experts"] is not None:
        raise call.error("experts have no gradients in a pipeline; decode --grad has those of a model")
    weights, activation = call.apply(find_ffn_weights, x)
    checkpoint = call.values["model_"]
    if "router" in weights or (checkpoint is not None and checkpoint.config.ffn_limit):
        raise call.error("experts have no gradients in a pipeline; decode --grad has those of a model")
    dy = outer.pop("x", np.zeros(call.result["x"].shape, model.working(x)))
    dy = undo_addends(call, dy, into)
    if "residual" in outer:
        into.add_input("x", outer.pop("residual"))
    collected: dict[str, Array] = {}
    hook = collect_gradients(collected, outer, FFN_STEPS.__contains__)
    dx, gradients = feed_forward_vjp(x, weights, activation=activation)[1](dy, hook)
    into.add_input("x", dx)
    into.add_weights({name: gradients.get(name) for name in weights})
    axes = (*call.before.axes_of("x")[:-1], "hidden")
    for name in [name for name in FFN_STEPS if name in collected]:
        outer.pop(name, None)
        into.tensors[name] = Tensor(collected[name], axes, call.before.labels if axes[0] in call.before.labels else {})


def undo_linear(call: StageCall, outer: Outer, into: StageGradients) -> None:
    values, x = call.values, call.before["x"]
    weights = layers.linear_weights(values["params"], values["model_"], values["layer"])
    dy = outer.pop("x")
    if values["add"] is not None:
        into.add_operand("add", sum_to_shape(dy, values["add"]["x"].shape))
    dx, gradients = projection_backward(dy, x, weights)
    into.add_input("x", dx)
    into.add_weights(gradients)


def undo_conv(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo conv: x, the kernel and the bias; its steps have no gradients of their own."""
    if steps := sorted({*outer} & {*convolution_stage.STEPS}):
        raise call.error(f"{steps[0]} is a step of it, which has no gradient of its own")
    x = call.before["x"]
    dx, weights = undo_convolution(x, outer.pop("x"), call.apply(find_convolution, x))
    into.add_input("x", dx)
    if call.values["model_"] is not None:
        weights["w"] = weights["w"].reshape(len(weights["w"]), -1).T
        into.add_weights(weights)
        return
    for name, gradient in weights.items():
        into.add_parameter(name, gradient, KERNEL_AXES[: gradient.ndim])


def undo_rnn(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo rnn: x and the weights; states of --state-in are constants."""
    if "x" not in outer:
        return
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        undo_layer(call, outer.pop("x"), into)
        return
    cell, texts = values["cell"], find_texts(call.before, values["lengths"])
    weights = call.apply(find_recurrent_weights, x)
    state_in = values["state_in"]
    states, offset = (None, 0) if state_in is None else read_state_file(state_in, cell, weights.layers, texts)
    runs = run_stack(cell, texts.x, weights.layers, states, lengths=texts.lengths, offset=offset, has_trace=True)
    dy = outer.pop("x")
    grad = np.ascontiguousarray(dy if texts.is_batch else dy[None])
    dx, gradients = stack_backward(cell, grad, texts.x, weights.layers, runs, lengths=texts.lengths)
    into.add_input("x", dx if texts.is_batch else dx[0])
    into.add_weights(weights.by_name([one.parameters for one in gradients]))


def undo_layer(call: StageCall, dy: Array, into: StageGradients) -> None:
    """Undo rnn of a model: x, its weights and the memory; the states of its encoder are constants."""
    checkpoint, memory = call.values["model_"], call.values["memory"]
    layer = layers.find_layer(checkpoint, call.values["layer"], "rnn")
    record, config = padding.with_padding_mask(call.before), layers.require_recurrent(checkpoint)
    context = layers.context_from(record, **source_states.memory_fields(memory, config, record["x"]))
    undo = GROUPS["rnn"].vjp(layers.core_model(checkpoint), Step("rnn", layer), record["x"], context)[1]
    into.add_input("x", undo(dy, into.layers))
    if into.layers.memory is not None:
        into.add_operand("memory", into.layers.memory)


def undo_encode(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo encode: parameters, intermediates, and hidden states or an image."""
    if call.values["patch"] or call.values["ablate"]:
        raise call.error("no gradient with --patch or --ablate")
    undo_encoding(call, outer, into)


def undo_encoding(call: StageCall, outer: Outer, into: StageGradients, forward: Hook = no_hook) -> None:
    """Undo a run of encode; `forward` reads, and may replace, its embeddings."""
    encoded = call.apply(encoding.prepare_encoding, call.item)
    core, inputs, base = encoded.core, encoded.inputs, encoded.base
    if "mask" in base and is_float(base["mask"].dtype):
        raise call.error("no gradient of a mask of floats; one of booleans has none")
    context = encoding.make_context(encoded, hook=forward, dtype=call.values["dtype"])
    x, tape = run_recorded(core, encoded.steps, inputs, context)
    collected: dict[str, Array] = {}
    scores = math.prod(x.shape[:-1]) * x.shape[-2] * core.config.stack(encoded.stack).heads
    used, has_many = set(outer), core.config.patches is None and scores > MANY

    def is_kept(name: str) -> bool:
        return name in used or not has_many or name.rpartition(".")[2] not in SQUARE

    into.layers.hook = collect_gradients(collected, outer, is_kept)
    dx = run_backward(core, tape, undo_outputs(call, encoded, x, outer, into.layers), into.layers)
    for name in collected:
        outer.pop(name, None)
    if is_float(inputs.dtype) and isinstance(call.item, Record):
        into.add_input("x", dx)
    elif is_float(inputs.dtype):
        name = "image" if core.config.patches else sound_site(core.config)
        into.tensors[name] = Tensor(dx, INPUT_AXES[name])
    into.traced = describe_trace(collected, base.labels.get("token"))


def undo_outputs(call: StageCall, encoded: Encoding, x: Array, outer: Outer, reverse: Reverse) -> Array:
    """Gradient of the last hidden states, by x, the memory and the head."""
    dx = np.zeros_like(x)
    if "x" in outer:
        dx = outer.pop("x") if encoded.pool == "none" else undo_pooling(call, encoded, x, outer, reverse)
    if "memory" in outer:
        dx = dx + outer.pop("memory")
    if any(name in outer for name in encoding.HEAD_STEPS):
        logits = (*x.shape[: -1 - bool(encoded.core.config.is_head_pooled)], encoded.core.params["head"]["w"].shape[1])
        dx = dx + head_backward(encoded.core, x, np.zeros(logits, x.dtype), reverse)
    return dx


def undo_pooling(call: StageCall, encoded: Encoding, x: Array, outer: Outer, reverse: Reverse) -> Array:
    """Gradient of hidden states (B, T, D), by one vector of each text (B, D)."""
    dy, pool = outer.pop("x"), encoded.pool
    if pool not in ("cls", "mean", "pooler"):
        raise call.error(f"no gradient of --pool {pool} (use cls, mean or pooler)")
    states, real, order = encoding.pooled_tokens(encoded.base, x)
    if call.values["normalize"]:
        dy = l2_normalize_backward(dy, encoding.pool_states(encoded.core, states, real, pool)[0])
    if pool == "mean":
        dx = mean_pool_backward(dy, real)
    elif pool == "pooler":
        dx = pool_first_backward(encoded.core, states, dy, reverse)
    else:
        dx = first_token_backward(dy, states.shape)
    return undo_order(dx, order)


def undo_order(dx: Array, order: Array | None) -> Array:
    """Gradient of states (B, T, D) before `pooled_tokens` put them in an order."""
    if order is None:
        return dx
    gradient = np.empty_like(dx)
    np.put_along_axis(gradient, np.broadcast_to(order[..., None], dx.shape), dx, axis=-2)
    return gradient


def describe_trace(
    collected: Mapping[str, Array], tokens: Labels | None, source: Labels | None = None
) -> dict[str, Tensor]:
    """Describe gradients, from the last to the first, as a trace does."""
    tracer = Tracer({"--trace-only": ("*",)})
    tracer.saved = {name: collected[name] for name in reversed(list(collected))}
    traced = tracer.record(tokens, source)
    return {name: traced.tensor(name) for name in traced}


def undo_decode(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo decode: hidden states and the output matrix."""
    values, emit, checkpoint = call.values, call.values["emit"], call.values["model_"]
    if "text" in call.result.labels or not isinstance(call.item, Record):
        raise call.error("generated text has no gradient; decode --model DIR --score TEXT --grad FILE has")
    if emit in ("ids", "text"):
        raise call.error(f"--emit {emit} has no gradient: the choice of a word is no continuous function")
    x = call.before["x"]
    if checkpoint is not None:
        if values["layer"] is None and checkpoint.config.decoder is not None:
            raise call.error("no gradient of several layers at once; name one by --layer, as --layer head")
        core = layers.core_model(checkpoint)
        dlogits = logits_gradient(call, outer, encoding.compute_logits(core, call.before, x, no_hook))
        if not core.config.is_head_pooled:
            into.add_input("x", head_backward(core, x, dlogits, into.layers))
            return
        states, real, order = encoding.pooled_tokens(call.before, x)
        dx = head_backward(core, states, dlogits, into.layers, real[..., None, :])
        into.add_input("x", undo_order(dx, order))
        return
    matrix, bias, _, _ = find_output_matrix(call.before, values["table"], values["params"])
    gradients = linear_backward(logits_gradient(call, outer, model.logits(x, matrix, bias)), x, matrix, bias)
    into.add_input("x", gradients.x)
    if values["params"] is not None:
        into.add_weights({"w": gradients.weight, "b": gradients.bias}, "head")
    elif gradients.weight is not None:
        table = np.ascontiguousarray(gradients.weight.T)
        if values["table"] is not None:
            into.add_operand("table", table)
        else:
            into.add_input("table", table)


def logits_gradient(call: StageCall, outer: Outer, logits: Array) -> Array:
    """Gradient of the logits, also through softmax(logits / τ) and the filters."""
    gradient = np.zeros_like(logits)
    if "x" in outer:
        dx = outer.pop("x")
        if call.values["emit"] != "logits":
            choice = Sampling(**{name: call.values[name] for name in Sampling._fields})
            dx = softmax_backward(dx, model.probabilities(choice.filter(logits))) / choice.tau
        gradient = gradient + dx
    return gradient + outer.pop("logits") if "logits" in outer else gradient


def undo_loss(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Undo loss: the logits, by the reduced loss and the loss of each token."""
    values, record, ids = call.values, call.before, call.result["target"]
    logits, _, _ = find_logits(record)
    name = "logits" if record.get("logits") is logits else "x"
    weight = None if values["weights"] is None else values["weights"]["x"]
    reduced = LossOptions(weight, values["ignore"], values["smoothing"], values["reduction"])
    plain = LossOptions(None, values["ignore"], 0.0, "none")
    if "x" in outer:
        into.add_input(name, cross_entropy_backward(logits, ids, reduced, outer.pop("x")))
    if "loss" in outer:
        each = reduced._replace(reduction="none")
        into.add_input(name, cross_entropy_backward(logits, ids, each, outer.pop("loss")))
    if "probability" in outer:  # exp(−loss) without weights and smoothing
        losses, _ = loss_and_gradient(logits, ids, plain)
        slope = -np.nan_to_num(outer.pop("probability")) * np.exp(-losses)
        into.add_input(name, cross_entropy_backward(logits, ids, plain, slope))


ADJOINTS: dict[str, Adjoint] = {
    "embed": undo_embed,
    "posenc": undo_posenc,
    "attend": undo_attend,
    "softmax": undo_softmax,
    "merge": undo_merge,
    "layernorm": undo_layernorm,
    "ffn": undo_ffn,
    "linear": undo_linear,
    "conv": undo_conv,
    "encode": undo_encode,
    "rnn": undo_rnn,
    "decode": undo_decode,
    "loss": undo_loss,
}
