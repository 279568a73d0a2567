"""The nodes of attend, softmax and merge."""

import math

import numpy as np

from attnkit import model
from attnkit.inputs import intermediates, layers
from attnkit.inputs.attention_inputs import WEIGHTED, AttentionInputs, PreparedAttention, WeightedValues
from attnkit.inputs.operands import AttendedTensor, broadcast_over_heads
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.stage_graph import (
    MANY,
    StageGraph,
    Undo,
    add_layers,
    add_to,
    add_up,
    as_number,
    fused,
    new_graph,
    read_addends,
    read_x,
)
from attnkit.model import Array
from attnkit.model.backward.attention_backward import merge_partial_attention_backward, multi_head_attention_vjp
from attnkit.model.backward.layer_vjps import add_relative_gradients
from attnkit.model.backward.tape import Reverse
from attnkit.model.dtypes import is_float
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.formulas.positions import t5_bias_backward
from attnkit.model.formulas.softmax import log_softmax_backward, softmax_backward
from attnkit.model.graph.nodes import Kind, Scope
from attnkit.model.hooks import apply_hook
from attnkit.model.intermediates import SQUARE, STEPS
from attnkit.model.kernels.tiled_attention import merge_partial_attention
from attnkit.model.layers.attention import position_buckets
from attnkit.model.parameters import OUTPUT_PARAMETERS
from attnkit.records import Record, Tensor

PRESENT = {"k": ("present_key", "past_key"), "v": ("present_value", "past_value")}


def attend_nodes(call: StageCall) -> StageGraph:
    """Attention as one node, which its kernel computes, and what is added to it."""
    prepared, values = call.prepared, call.values
    if isinstance(prepared, WeightedValues):
        return weighted_nodes(call, prepared)
    inputs, options, checkpoint = prepared.inputs, prepared.options, values["model_"]
    query, key, value = inputs.arrays()
    core = None if checkpoint is None else layers.core_model(checkpoint)
    graph = new_graph(query, key, value, weights=prepared.parameters(), core=core)
    before = [read_x(graph, call.before)] if values["concat"] else read_addends(graph, call.before, values)
    operands = [read_attended(graph, call, inputs, name) for name in ("query", "key", "value")]
    others = {name: site for name in ("mask", "bias") if (site := read_scores(graph, call, prepared, name))}
    given = [flag for flag in ("past_key", "past_value", "sinks") if values[flag] is not None]
    others |= {flag: graph.read(flag, values[flag]["x"], flag=flag) for flag in given}
    shapes = {name: call.result[name].shape for name in call.result} | {values["emit"]: call.result["x"].shape}
    output = graph.inside = graph.fuse(
        "attention", "attention", *operands, *others.values(), layer=inputs.layer, prepared=prepared,
        names=[*others], shapes=shapes,
    )  # fmt: skip
    if values["concat"]:
        result = graph.add("beside", "concat", output, *before)
    else:
        result = add_up(graph, output, before, values)
    graph.results = {"x": "heads" if values["partial"] else values["emit"] or result}
    if "residual" in values["keep"]:
        graph.results["residual"] = read_x(graph, call.before)
    for name in OUTPUT_PARAMETERS:  # of --partial, for merge
        if name in call.result and name in prepared.projections:
            graph.results[name] = graph.add(name, "parameter", layer=inputs.layer, name=name)
    heads = 1 if query.ndim == 4 else options.heads
    scores = heads * math.prod(query.shape[:-1]) * key.shape[-2]
    graph.is_kept = lambda name, is_used: name in STEPS and (is_used or name not in SQUARE or scores <= MANY)
    labels = intermediates.attention_labels(inputs.query, inputs.key, inputs.key_axis, "full", query.shape[-2])

    def describe(name: str, gradient: Array) -> Tensor:
        axes = intermediates.attention_axes(name, inputs.key_axis)
        axes = (*("batch",)[: gradient.ndim - len(axes)], *axes)
        return Tensor(gradient, axes, {axis: labels[axis] for axis in axes if axis in labels})

    graph.describe = describe
    return graph


def read_attended(graph: StageGraph, call: StageCall, inputs: AttentionInputs, name: str) -> str:
    """The site of queries, keys or values: of a tensor of the record, or of a file."""
    operand, array = getattr(inputs, name), as_number(getattr(inputs, name)["x"])
    if not isinstance(operand, AttendedTensor):
        return graph.read(name, array, name="x" if "x" in call.before else next(iter(call.before)))
    if operand.is_given:
        return graph.read(name, array, name=operand.name)
    flags = {"query": ("query",), "key": ("key", "memory"), "value": ("value", "key", "memory")}[name]
    return graph.read(name, array, flag=next(flag for flag in flags if call.values[flag] is not None))


def read_scores(graph: StageGraph, call: StageCall, prepared: PreparedAttention, name: str) -> str:
    """The site of a mask of floats or of a bias, or "" if attention adds neither.

    An option or the record may name either.
    """
    inputs, heads = prepared.inputs, prepared.options.heads if name == "bias" else 0
    operand: Record | None = getattr(inputs, name)
    if operand is None or not is_float(operand["x"].dtype):
        return ""
    is_own = name in call.before and call.before[name].shape == operand["x"].shape
    where = {"flag": name} if call.values[name] is not None else {"name": name if is_own else ""}
    return graph.read(name, np.asarray(broadcast_over_heads(operand, inputs.batch, heads)), **where)


def _attention(scope: Scope, query: Array, key: Array, value: Array, *others: Array) -> tuple[Array, Undo]:
    prepared: PreparedAttention = scope.option("prepared")
    options, parameters = prepared.options, prepared.projections
    output, pullback = multi_head_attention_vjp(query, key, value, parameters, options)

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        more, past = dict[str, Array](), dict[str, Array]()
        if (visit := scope.hook("lse")) is not None:
            weights = model.multi_head_attention(query, key, value, parameters, options, keep=("weights",))["weights"]
            more["masked"] = np.where(weights == 0, 0, weights * visit(np.zeros(weights.shape[:-1]))[..., None])
        for name, (present, flag) in PRESENT.items():
            if (visit := scope.hook(present)) is not None:
                cache = options.past_key if name == "k" else options.past_value
                count = 0 if cache is None else cache.shape[-2]
                gradient = visit(np.zeros(scope.option("shapes")[present]))
                more[name], past[flag] = gradient[..., count:, :], gradient[..., :count, :]
        gradients, of_weights = pullback(sum_to_shape(dy, output.shape), add_to(scope.hook, more))
        for name in gradients.keys() & past.keys():
            gradients[name] = gradients[name] + past[name]
        scope.add(scope.node.layer, {name: gradients[name] for name in options.score_params or {}} | of_weights)
        undo_inner_positions(scope, prepared, gradients)
        added = [
            sum_to_shape(gradients[name], one.shape) for name, one in zip(scope.option("names"), others, strict=True)
        ]
        return [gradients["query"], gradients["key"], gradients["value"], *added]

    return output, undo


def undo_inner_positions(scope: Scope, prepared: PreparedAttention, gradients: dict[str, Array]) -> None:
    """Add the gradients of the positions of a model inside attention."""
    config, layer, options = scope.core.config, scope.node.layer, prepared.options
    if not layer:
        return
    reverse = Reverse()
    add_relative_gradients(config, layer, gradients, reverse)
    if "bias" in gradients and config.positions.relative == "t5":
        stack = model.parse_layer_name(layer)[0]
        buckets = position_buckets(config, stack, options.past, prepared.inputs.query["x"].shape[-2])
        bias = sum_to_shape(gradients["bias"], (options.heads, *buckets.shape))
        reverse.add(f"{stack}.bias", {"table": t5_bias_backward(bias, buckets, config.positions.buckets)})
    add_layers(scope, reverse.gradients)


def weighted_nodes(call: StageCall, computed: WeightedValues) -> StageGraph:
    """The sums of values by given weights, and the projections on both sides of them."""
    values, given = call.values, call.values["weights_from"]["x"]
    graph = new_graph(computed.value, given, weights=computed.projections)
    before = read_addends(graph, call.before, values)
    flag = next((name for name in ("value", "memory") if values[name] is not None), "")
    value = graph.read("value", computed.value, flag=flag) if flag else read_x(graph, call.before)
    is_of_texts = given.ndim == 3 and computed.value.ndim == 3
    aligned = graph.read("weights_from", given[:, None] if is_of_texts else given, flag="weights_from")
    graph.add("weights", "spread", aligned, shape=computed.weights.shape)
    projected = graph.add("v_projected", "linear", value, names=("wv", "bv"))
    graph.add("v", "heads", projected, heads=values["heads"])
    joined = graph.add("joined", "join", graph.add("heads", "mix", "weights", "v"))
    output = graph.add("output", "linear", joined, names=("wo", "bo"))
    graph.results = {name: name for name in WEIGHTED} | {"x": add_up(graph, output, before, values)}
    return graph


def softmax_nodes(call: StageCall) -> StageGraph:
    """The softmax of scores, to which a mask of floats may be added."""
    graph, mask = new_graph(call.before["x"]), call.values["mask"]
    site = graph.add("scaled", "scale", read_x(graph, call.before), factor=1 / call.values["temperature"])
    sites = [site]
    if mask is not None and is_float(mask["x"].dtype):
        sites.append(graph.read("mask", call.prepared.cells, flag="mask"))
    kind = "log-softmax along" if call.values["log"] else "softmax along"
    graph.results = {"x": graph.add("weights", kind, *sites, computed=call.prepared)}
    return graph


def _softmax_along(scope: Scope, scaled: Array, *mask: Array) -> Array:
    computed = scope.option("computed")
    weights: Array = model.softmax(computed.masked, computed.axis)
    return weights


def _undo_softmax_along(scope: Scope, dy: Array, y: Array, scaled: Array, *mask: Array) -> list[Array]:
    axis = scope.option("computed").axis
    gradient = np.moveaxis(softmax_backward(np.moveaxis(dy, axis, -1), np.moveaxis(y, axis, -1)), -1, axis)
    return [gradient, *(sum_to_shape(gradient, one.shape) for one in mask)]


def _log_softmax_along(scope: Scope, scaled: Array, *mask: Array) -> Array:
    computed = scope.option("computed")
    logs: Array = model.log_softmax(computed.masked, computed.axis)
    return logs


def _undo_log_softmax_along(scope: Scope, dy: Array, y: Array, scaled: Array, *mask: Array) -> list[Array]:
    gradient = log_softmax_backward(dy, y, scope.option("computed").axis)
    return [gradient, *(sum_to_shape(gradient, one.shape) for one in mask)]


def merge_nodes(call: StageCall) -> StageGraph:
    """Parts of attention that are merged; with --join their output projection."""
    parts = call.item
    weights = {name: call.before[name] for name in OUTPUT_PARAMETERS if name in call.before and call.values["join"]}
    graph = new_graph(parts[0]["x"], weights=weights)
    sites = [
        graph.read(f"{name}{number}", part[name], name=name, part=number)
        for number, part in enumerate(parts, start=1)
        for name in ("x", "lse")
    ]
    merged = graph.fuse("merged", "merge", *sites)
    graph.inside, graph.results = merged, {"x": merged}
    if call.values["join"]:
        graph.results["x"] = graph.add("output", "linear", graph.add("joined", "join", merged), names=OUTPUT_PARAMETERS)
    return graph


def _merge(scope: Scope, *parts: Array) -> tuple[Array, Undo]:
    outputs, lses = parts[::2], parts[1::2]
    output = merge_partial_attention(outputs, lses)[0]

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        dlse = apply_hook(scope.hook, "lse", np.zeros(lses[0].shape))
        return [one for pair in merge_partial_attention_backward(dy, dlse, outputs, lses) for one in pair]

    return output, undo


KINDS = {
    "attention": fused(_attention),
    "spread": Kind(
        value=lambda scope, x: np.broadcast_to(x, scope.option("shape")),
        pullback=lambda scope, dy, y, x: [sum_to_shape(dy, x.shape)],
    ),
    "softmax along": Kind(value=_softmax_along, pullback=_undo_softmax_along),
    "log-softmax along": Kind(value=_log_softmax_along, pullback=_undo_log_softmax_along),
    "merge": fused(_merge),
}
