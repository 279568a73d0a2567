"""The adjoints of embed and posenc."""

from typing import Any

import numpy as np

from attnkit import model
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.position_inputs import (
    BIASES,
    check_table,
    empty_record,
    find_positions,
    number_tokens,
    token_angles,
)
from attnkit.interpret.gradients.stages import IMAGE_AXES, Outer, StageCall, StageGradients
from attnkit.model import Array
from attnkit.model.backward.recorded_steps import STEP_VJPS
from attnkit.model.config import Step
from attnkit.model.embedding import embed_backward
from attnkit.model.linear import sum_to_shape
from attnkit.model.positions import add_positions_backward, t5_bias_backward
from attnkit.record import Labels, Tensor


def undo_embed(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradient of the table: of the rows at the ids, and of its other uses, as the output of decode."""
    values, dx = call.values, outer.pop("x", None)
    if values["model_"] is not None:
        if dx is not None:
            undo_model_embedding(call, dx, into)
        return
    if "table" not in call.result:
        return  # one-hot vectors are constants
    table = call.result["table"]
    if dx is not None:
        dx = model.scale_embedding(dx) if values["scale"] else dx
        total = embed_backward(dx, call.result["ids"], len(table))
        total = total + outer.pop("table") if "table" in outer else total
    else:
        total = outer.pop("table")
    labels: dict[str, Labels] = {"vocab": call.result.labels["vocab"]} if "vocab" in call.result.labels else {}
    into.add_parameter("table", total, ("vocab", "model"), labels)


def undo_model_embedding(call: StageCall, dx: Array, into: StageGradients) -> None:
    """Add the gradients of the embedding layer of a model."""
    values = call.values
    layer = layers.find_layer(values["model_"], values["layer"], "embed")
    names = ("pair", "ids", "image", "tokenizer", "batch")
    source = text_inputs.ModelInput(call.item, *(values[name] for name in names))
    inputs, base = text_inputs.model_inputs(values["model_"], model.parse_layer_name(layer)[0], source)
    gradient = undo_step(call, Step("embed", layer), inputs, dx, into, layers.context_from(base))
    if values["image"] is not None:
        into.tensors["image"] = Tensor(gradient, IMAGE_AXES)


def undo_step(call: StageCall, step: Step, x: Array, dy: Array, into: StageGradients, context: model.Context) -> Array:
    """Return the gradient of the input of a step of a model, and add those of its parameters."""
    core = layers.core_model(call.values["model_"])
    return STEP_VJPS[step.op](core, step, x, context)[1](dy, into.layers)


def undo_posenc(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x and of a table of positions; angles and sinusoids are constants."""
    values = call.values
    if values["model_"] is not None:
        context, x = layers.context_from(call.before), call.before["x"]
        step = Step("posenc", layers.find_layer(values["model_"], values["layer"], "posenc"))
        if values["positions"] is not None or values["offset"]:
            raise call.error("no gradient of --model with --positions or --offset; posenc --table FILE has one")
        into.add_input("x", undo_step(call, step, x, outer.pop("x"), into, context))
    elif values["kind"] in BIASES:
        bias = outer.pop("bias", outer.pop("x", None) if values["alone"] or values["size"] else None)
        if bias is not None and values["kind"] == "t5":
            into.add_operand("table", undo_relative_bias(call, bias))
    elif values["kind"] == "rotary":
        undo_rotary(call, outer, into)
    elif "x" in outer:
        undo_added_positions(call, outer.pop("x"), into)


def undo_added_positions(call: StageCall, dx: Array, into: StageGradients) -> None:
    """Add the gradients of x plus a row of a table, or a sinusoid, at every position."""
    values, is_alone = call.values, call.values["alone"] or call.values["size"] is not None
    if not is_alone:
        into.add_input("x", dx)
    if values["kind"] == "learned":
        where, table = find_positions(input_of(call), values)
        encoding = dx if is_alone else add_positions_backward(dx, (*where.shape, dx.shape[-1]))
        gradient = embed_backward(encoding, where, len(table), "position")
        if values["seed"] is None:
            into.add_operand("table", gradient)
        else:
            into.add_parameter("table", gradient, ("position", "model"))


def input_of(call: StageCall) -> Array:
    """Return the x that posenc read; with --size, that of the record it makes itself."""
    values = call.values
    if call.item is not None:
        return call.before["x"]
    return empty_record(values["kind"], values["size"] or (0,), values["dim"], values["table"])["x"]


def undo_rotary(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradient of x, rotated back; that of the angles alone is that of constants."""
    values = call.values
    if values["alone"] or values["size"] is not None:
        outer.clear()
        return
    x, dx, heads = call.before["x"], outer.pop("x"), values["heads"]
    options: dict[str, Any] = {name: values[name] for name in ("rotary_dim", "base", "cos", "sin")}
    cos, sin = token_angles(x, number_tokens(x, values["offset"], values["positions"]), heads, **options)
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    split = dx if x.ndim == 4 else model.split_heads(dx, heads)
    rotated = model.rotate(split, cos, -sin, interleaved=values["interleaved"])
    into.add_input("x", rotated if x.ndim == 4 else model.merge_heads(rotated))


def undo_relative_bias(call: StageCall, bias: Array) -> Array:
    """Return the gradient of the table of T5's bias: bias (H, T, S) -> (buckets, H)."""
    values, table = call.values, check_table(call.values["table"])
    x, size = input_of(call), values["size"]
    queries = number_tokens(x, values["offset"], values["positions"])
    keys = np.arange(size[-1] if size else values["offset"] + x.shape[-2]) if values["positions"] is None else queries
    options: Any = {"buckets": len(table), "max_distance": values["max_distance"]}
    buckets = model.t5_buckets(queries, keys, **options, bidirectional=not values["one_way"])
    return t5_bias_backward(sum_to_shape(bias, (table.shape[1], *buckets.shape)), buckets, len(table))
