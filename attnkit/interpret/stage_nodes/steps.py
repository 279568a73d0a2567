"""The nodes of some tools with every step, as a worksheet has them.

Gradients read attention as one node, and a mask as a constant.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.inputs.attention_inputs import PreparedAttention
from attnkit.inputs.layers import LayerOperands
from attnkit.inputs.mask_rules import CombinedRules
from attnkit.inputs.operands import broadcast_over_heads
from attnkit.inputs.position_inputs import PositionOperands
from attnkit.inputs.softmax_stage import SoftmaxSteps
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.attention import attend_nodes, read_attended
from attnkit.interpret.stage_nodes.stage_graph import StageGraph, add_up, new_graph, read_addends, read_x
from attnkit.interpret.stage_nodes.texts import embed_nodes, posenc_nodes
from attnkit.model import Array
from attnkit.model.dtypes import is_float
from attnkit.model.formulas.dense_attention import allowed_cells, pad_mask
from attnkit.model.graph.nodes import Kind, Scope
from attnkit.model.intermediates import STEPS
from attnkit.records import Record

# options of attention whose steps are not among these nodes
OTHER_STEPS = ("sinks", "softmax_dtype", "past_key", "norm", "latent", "rotary", "relative", "kv_store")


class KeySpan(NamedTuple):
    """Keys around a query that it may attend to, by position.

    left, right  how many before and after it; -1: all
    start        the position of the first query among the keys
    """

    left: int
    right: int
    start: int = 0


def embed_step_nodes(call: StageCall) -> StageGraph:
    """The rows of a table, or one-hot vectors of ids."""
    graph, record = embed_nodes(call), call.result
    if call.prepared is None and "table" not in record and "ids" in record:
        ids = graph.read("ids", record["ids"])
        graph.results["x"] = graph.add("one_hot", "one hot", ids, width=record["x"].shape[-1])
    return graph


def posenc_step_nodes(call: StageCall) -> StageGraph:
    """Positions that are added to x, or sinusoids alone."""
    graph, values = posenc_nodes(call), call.values
    operands: PositionOperands | LayerOperands = call.prepared
    if isinstance(operands, PositionOperands) and operands.is_alone and values["kind"] == "sinusoidal":
        where, width = graph.read("positions", operands.positions), call.result["x"].shape[-1]
        graph.results["x"] = graph.add("encoding", "sinusoids", where, options=values, width=width)
    return graph


def attend_step_nodes(call: StageCall) -> StageGraph:
    """Attention node by node, and what is added to it.

    Attention with another score or with steps of some models is one node.
    """
    prepared, values = call.prepared, call.values
    if not isinstance(prepared, PreparedAttention):
        return attend_nodes(call)
    inputs, options = prepared.inputs, prepared.options
    query, key, value = inputs.arrays()
    has_others = options.clip or any(getattr(options, name) is not None for name in OTHER_STEPS)
    if has_others or options.score not in ("dot", "scaled-dot") or query.ndim > 3 or "partial" in call.result:
        return attend_nodes(call)
    graph = new_graph(query, key, value, weights=prepared.parameters())
    before = [read_x(graph, call.before)] if values["concat"] else read_addends(graph, call.before, values)
    groups = options.heads if options.kv_heads is None else options.kv_heads
    for letter, name, count in (("q", "query", options.heads), ("k", "key", groups), ("v", "value", groups)):
        site = read_attended(graph, call, inputs, name)
        if f"w{letter}" in prepared.projections or f"b{letter}" in prepared.projections:
            site = graph.add(f"{letter}_projected", "linear", site, names=(f"w{letter}", f"b{letter}"))
        graph.add(letter, "heads", site, heads=count)
    width = prepared.projections.get("wq", query).shape[-1] // options.heads
    graph.add("scores", "scores", "q", "k")
    graph.add("scaled", "scale", "scores", factor=options.scale_for(width))
    last = "scaled"
    if options.softcap:
        last = graph.add("capped", "cap", last, softcap=options.softcap)
    if masks := read_mask_sites(graph, call, prepared, (query.shape[-2], key.shape[-2])):
        last = graph.add("masked", "blocked", last, *masks, adds=tuple(masks.values()))
    graph.add("weights", "softmax", last)
    graph.add("heads", "mix", "weights", "v")
    heads = "heads"
    if "wg" in prepared.projections:
        gate = graph.add("gate_projected", "linear", read_attended(graph, call, inputs, "query"), names=("wg", "bg"))
        gate = graph.add("gate", "heads", gate, heads=options.heads)
        heads = graph.add("gated_heads", "gated", "heads", gate, activation="sigmoid")
    output = graph.add("joined", "join", heads)
    if {"wo", "bo"} & {*prepared.projections}:
        output = graph.add("output", "linear", output, names=("wo", "bo"))
    result = (
        graph.add("beside", "concat", output, *before) if values["concat"] else add_up(graph, output, before, values)
    )
    graph.results = {name: name for name in STEPS if name in graph.nodes}
    graph.results["x"] = values["emit"] if values["emit"] in graph.nodes else result
    return graph


def read_mask_sites(
    graph: StageGraph, call: StageCall, prepared: PreparedAttention, size: tuple[int, int]
) -> dict[str, bool]:
    """The sites of the masks and the bias of attention, and whether each is added.

    size  the number of queries and of keys
    """
    options, sites = prepared.options, dict[str, bool]()
    for name, heads in (("bias", options.heads), ("mask", 0)):
        operand: Record | None = getattr(prepared.inputs, name)
        if operand is None:
            continue
        array = np.asarray(broadcast_over_heads(operand, prepared.inputs.batch, heads))
        array = pad_mask(array, size[1]) if name == "mask" else array
        is_own = name in call.before and call.before[name].shape == operand["x"].shape
        where = {"flag": name} if call.values[name] is not None else {"name": name if is_own else ""}
        sites[graph.read(name, array, **where)] = is_float(array.dtype)
    offset = options.offset(*size)
    spans = {"causal": KeySpan(-1, 0)} if options.causal else {}
    spans |= {"window": KeySpan(*options.window)} if options.window != (-1, -1) else {}
    if options.lengths is not None or not isinstance(offset, int):
        allowed = allowed_cells(*size, offset, options)
        return sites if allowed is None else sites | {graph.read("allowed", allowed): False}
    for name, span in spans.items():
        sites[graph.add(name, "allowed", span=span._replace(start=offset), size=size)] = False
    return sites


def softmax_step_nodes(call: StageCall) -> StageGraph:
    """The softmax of scores that are scaled and masked."""
    computed: SoftmaxSteps = call.prepared
    graph, temperature = new_graph(call.before["x"]), call.values["temperature"]
    last = graph.add("scaled", "scale", read_x(graph, call.before), factor=1 / temperature)
    if computed.cells is not None:
        where = {"flag": "mask"} if call.values["mask"] is not None else {"name": "mask"}
        mask = graph.read("mask", pad_mask(computed.cells, call.before["x"].shape[-1]), **where)
        last = graph.add("masked", "blocked", last, mask, adds=(is_float(computed.cells.dtype),))
    axis = computed.axis - call.before["x"].ndim
    graph.results = {name: name for name in ("scaled", "masked") if name in graph.nodes}
    graph.results["x"] = graph.add("weights", "softmax", last, axis=axis)
    return graph


def mask_nodes(call: StageCall) -> StageGraph:
    """The mask of each rule, and their combination."""
    combined: CombinedRules = call.prepared
    graph, values = new_graph(), call.values
    sites = []
    for rule in combined.rules:
        span = {"causal": KeySpan(-1, 0), "window": KeySpan(*(values["window"] or (-1, -1)))}.get(rule.name)
        if span is not None:
            sites.append(
                graph.add(
                    f"mask.{rule.name}", "allowed", span=span._replace(start=combined.start), size=rule.cells.shape
                )
            )
        else:
            sites.append(graph.read(f"mask.{rule.name}", rule.cells, name="mask" if rule.name == "record" else ""))
    if values["as_"] in ("bool", "01"):
        cells = graph.add(
            "combined", "combined", *sites, union=combined.union, invert=combined.invert, shape=combined.shape
        )
        name = "x" if call.item is None else "memory_mask" if values["cross"] else "mask"
        graph.results = {name: cells}
    return graph


def _one_hot(scope: Scope, ids: Array) -> Array:
    rows: Array = (ids[..., None] == np.arange(scope.option("width"))).astype(float)
    return rows


def _allow(scope: Scope) -> Array:
    span: KeySpan = scope.option("span")
    queries, keys = scope.option("size")
    return model.window_mask(queries, keys, span.left, span.right, span.start).astype(float)


def _combine(scope: Scope, *masks: Array) -> Array:
    """Masks of 0 and 1: all of them, or one, must allow a cell."""
    allowed = reduce(np.logical_or if scope.option("union") else np.logical_and, [one != 0 for one in masks])
    return np.broadcast_to(allowed != scope.option("invert"), scope.option("shape")).astype(float)


def _block(scope: Scope, x: Array, *others: Array) -> Array:
    """Scores plus what is added to them, and -inf where a mask does not allow them."""
    for other, is_added in zip(others, scope.option("adds"), strict=True):
        x = x + other if is_added else np.where(other != 0, x, -np.inf)
    return x


KINDS = {
    "one hot": Kind(value=_one_hot),
    "allowed": Kind(value=_allow),
    "combined": Kind(value=_combine),
    "blocked": Kind(value=_block),
}

NODES: dict[str, Callable[[StageCall], StageGraph]] = {
    "embed": embed_step_nodes,
    "posenc": posenc_step_nodes,
    "mask": mask_nodes,
    "attend": attend_step_nodes,
    "softmax": softmax_step_nodes,
}
