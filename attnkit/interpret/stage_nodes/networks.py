"""The nodes of layernorm, ffn, linear, conv, rnn, recall and a layer of a model."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit import model
from attnkit.inputs import intermediates, layers
from attnkit.inputs.convolution_stage import ConvolutionStage
from attnkit.inputs.layers import LayerOperands, NetworkOperands, NormOperands
from attnkit.inputs.operands import LAST_STATES
from attnkit.inputs.recall_stage import OWN_AXES, RecallStage
from attnkit.inputs.recurrent_layers import RecurrentOperands, read_state_file
from attnkit.inputs.source_states import source_states_record
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.stage_graph import (
    StageGraph,
    Undo,
    add_layers,
    add_up,
    as_number,
    fused,
    new_graph,
    read_addends,
    read_x,
)
from attnkit.model import Array, Config, Model, State, Step, working
from attnkit.model.backward.recurrent_backward import stack_backward
from attnkit.model.backward.tape import ModelGradients, Reverse
from attnkit.model.config import parse_layer_name
from attnkit.model.formulas.convolution import convolve, convolve_backward
from attnkit.model.formulas.norms import layer_norm_vjp, norm_steps_backward, rms_norm_vjp
from attnkit.model.formulas.recurrent import run_stack
from attnkit.model.graph.networks import build_mixture, build_network
from attnkit.model.graph.nodes import Inputs, Kind, Node, Place, Scope
from attnkit.model.groups import GROUPS
from attnkit.model.intermediates import INTERMEDIATES, step_names
from attnkit.model.parameters import parameter_axes
from attnkit.records import Tensor

NORM_STEPS, FFN = step_names("layernorm"), INTERMEDIATES["ffn"]
ROUTER = ("router", "router_bias")
KERNEL_AXES = ("filter", "channel", "row", "column")


def layer_nodes(call: StageCall, operands: LayerOperands, x: str, graph: StageGraph) -> StageGraph:
    """A layer of a model as one node, which reads the site x.

    The node also reads the states of --memory, or of the layers below.
    """
    memory, before, sites = call.values.get("memory"), call.before, dict[str, str]()
    if memory is not None:
        own = {"x": memory["x"]} | {name: memory.companions[name] for name in LAST_STATES if name in memory.companions}
        for name, array in own.items():
            place = memory.name if name == "x" else name
            where = {"name": place} if memory.is_given else {"flag": "memory"} if name == "x" else {}
            sites["memory" if name == "x" else name] = graph.read(f"memory.{name}", array, **where)
    elif operands.step.op == "rnn":
        sites = {name: graph.read(name, before[name], name=name) for name in LAST_STATES if name in before}
    shapes = {name: call.result[name].shape for name in LAST_STATES if name in call.result}
    options: dict[str, Any] = {"step": operands.step, "x": operands.x, "context": operands.context, "shapes": shapes}
    node = graph.fuse("layer", "layer", x, *sites.values(), layer=operands.step.layer, names=[*sites], **options)
    graph.inside, graph.results = node, {"x": node}
    return graph


def _layer(scope: Scope, *arrays: Array) -> tuple[Array, Undo]:
    step, x, context, names = (scope.option(name) for name in ("step", "x", "context", "names"))
    y, pullback = GROUPS[step.op].vjp(scope.core, step, x, context)

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        reverse = Reverse(hook=lambda name: scope.hook(name.removeprefix(f"{step.layer}.")))
        found = undo_last_states(scope, reverse, step.layer, dict(zip(names, arrays[1:], strict=True)))
        dx = pullback(dy, reverse)
        add_layers(scope, reverse.gradients)
        if reverse.memory is not None:
            found["memory"] = reverse.memory
        if states := tuple(reverse.states[layer] for layer in sorted(reverse.states)):  # of the encoder of a memory
            found |= source_states_record(states, is_batch=x.ndim == 3).arrays()
        read = zip(map(found.get, names), arrays[1:], strict=True)
        return [dx, *(one if one is None else one.reshape(array.shape) for one, array in read)]

    return y, undo


def undo_last_states(scope: Scope, reverse: Reverse, layer: str, before: Mapping[str, Array]) -> dict[str, Array]:
    """Begin with the gradient of the last state of an encoder's layer.

    The record keeps that state for a decoder.

    before  the last states of the layers below it in the record, whose gradients are returned
    """
    state = scope.option("context").final_states.get(layer)
    rest, parts = dict[str, Array](), list[Array | None]()
    number = parse_layer_name(layer)[1] or 0
    for name, part in zip(LAST_STATES, state or (), strict=False):
        if part is None or (visit := scope.hook(name)) is None:
            parts.append(None if part is None else np.zeros_like(part))
            continue
        gradient = visit(np.zeros(scope.option("shapes")[name]))
        parts.append(gradient[..., number, :].reshape(part.shape))
        if name in before:
            rest[name] = np.zeros_like(before[name])
            rest[name][..., :number, :] = gradient[..., :number, :]
    if parts:
        reverse.states[layer] = State(*parts)  # type: ignore[arg-type]
    return rest


def layernorm_nodes(call: StageCall) -> StageGraph:
    """A norm as one node, of a sum or a branch, to which something may be added."""
    operands: NormOperands = call.prepared
    values, before = call.values, call.before
    weights = {name: one for name in ("gamma", "beta") if (one := getattr(operands, name)) is not None}
    checkpoint, add, after, branch = (values[name] for name in ("model_", "add", "add_after", "branch"))
    x = (before if branch is None else branch)["x"]
    core = None if checkpoint is None else layers.core_model(checkpoint)
    graph = new_graph(x, weights=None if core else weights, core=core)
    layer = "" if checkpoint is None else layers.find_layer(checkpoint, values["layer"], "layernorm")
    later = [] if after is None else [graph.read("add_after", after["x"], flag="add_after")]
    first = read_x(graph, before) if branch is None else graph.read("branch", x, flag="branch")
    total = first
    if add is not None:
        total = graph.add("residual", "add", first, graph.read("add", add["x"], flag="add"))
    graph.late = tuple(site for site in ("branch", "add") if site in graph.origins)
    node = graph.fuse("norm", "norm along", total, layer=layer, operands=operands)
    graph.inside, graph.results = node, {"x": add_up(graph, node, later, values)}
    if branch is not None or {"residual", "all"} & {*values["keep"]}:
        graph.results["residual"] = total if branch is None else read_x(graph, before)
    has_gamma, has_beta = operands.gamma is not None, operands.beta is not None
    is_step = {"normalized": has_gamma or has_beta, "scaled": has_gamma and has_beta}
    graph.is_kept = lambda name, is_used: name in NORM_STEPS and is_step.get(name, True)
    axes = before.axes_of("x") if before["x"].ndim == x.ndim else None

    def describe(name: str, gradient: Array) -> Tensor:
        over = axes and intermediates.statistic_axes(axes, gradient.shape, x.shape)
        return Tensor(gradient.astype(working(x)), over, before.labels if over else {})

    graph.describe = describe
    return graph


def _norm_along(scope: Scope, x: Array) -> tuple[Array, Undo]:
    operands: NormOperands = scope.option("operands")
    kind, eps, axis, gamma, beta, mean, variance = operands
    over = range(x.ndim - 1) if kind == "batch" else range(axis % x.ndim, x.ndim)
    if kind == "batch":
        normalized = model.batch_norm(x, gamma, beta, eps=eps, mean=mean, variance=variance)
    elif kind == "rms":
        normalized = model.rms_norm(x, gamma, eps=eps, axis=axis)
    else:
        normalized = model.layer_norm(x, gamma, beta, eps=eps, axis=axis)

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        is_exact = kind != "batch" and not any(name in scope.option("inner", ()) for name in NORM_STEPS)
        gradients = norm_steps_backward(
            dy, x, (gamma, beta), eps=eps, over=over, centred=kind != "rms", statistics=(mean, variance),
            hook=scope.hook,
        )  # fmt: skip
        if is_exact:  # also for rows whose squares leave the range of float64
            params = {"gamma": gamma} if kind == "rms" else {"gamma": gamma, "beta": beta}
            gradients = (rms_norm_vjp if kind == "rms" else layer_norm_vjp)(x, **params, eps=eps, axis=axis)[1](dy)
        scope.add(scope.node.layer, {"gamma": gradients.gamma, "beta": gradients.beta})
        return [gradients.x]

    return normalized.y, undo


def network_nodes(call: StageCall) -> tuple[Model, str, list[Node]]:
    """The model, the layer and the nodes of a network or a mixture of experts of x."""
    operands: NetworkOperands = call.prepared
    weights, mixture, x, checkpoint = operands.weights, operands.mixture, call.before["x"], call.values["model_"]
    config, layer = Config("", x.shape[-1], activation=operands.activation), "" if mixture is None else "stage.ffn"
    if checkpoint is not None:
        core, layer = layers.core_model(checkpoint), layers.find_layer(checkpoint, call.values["layer"], "ffn")
    else:
        core = Model(config, {"": weights} if mixture is None else layers.split_experts(weights, layer))
    texts, tokens = math.prod(x.shape[:-2]), x.shape[-2] if x.ndim > 1 else 1
    place = Place(core, Inputs(), Step("ffn", layer), "x", "", texts, tokens)
    built = build_network(place, layer, weights["w1"].shape[-1]) if mixture is None else build_mixture(place, mixture)
    return core, layer, [*built]


def ffn_nodes(call: StageCall) -> StageGraph:
    """A feed-forward network or experts node by node, and what is added to it."""
    operands: NetworkOperands = call.prepared
    weights, values = operands.weights, call.values
    core, layer, built = network_nodes(call)
    graph = new_graph(call.before["x"], weights=weights, core=core)
    before = read_addends(graph, call.before, values)
    read_x(graph, call.before)
    graph.nodes |= {node.site: node for node in built}
    graph.names = {site: site.removeprefix(f"{layer}.").lstrip(".") for site in graph.nodes if is_step_of(site, layer)}
    graph.results = {own: site for site, own in graph.names.items()}
    graph.results["x"] = add_up(graph, built[-1].site, before, values)
    if "residual" in values["keep"]:
        graph.results["residual"] = read_x(graph, call.before)
    graph.is_kept = lambda name, is_used: name in graph.names
    lead, labels = call.before.axes_of("x")[:-1], call.before.labels

    def describe(name: str, gradient: Array) -> Tensor:
        return Tensor(gradient, (*lead, (FFN[name].axes or ("hidden",))[-1]), labels if {*lead[:1]} & {*labels} else {})

    graph.describe = describe
    if values["model_"] is None and operands.mixture is not None:
        graph.weights = lambda params: stack_experts(params, weights)
        graph.axes = lambda name: None if name in ROUTER else ("expert", *parameter_axes("", name))
    return graph


def is_step_of(site: str, layer: str) -> bool:
    """Whether a site is an intermediate of a layer that has a name in its tool.

    >>> is_step_of("decoder.0.ffn.gates", "decoder.0.ffn"), is_step_of("decoder.0.shared.hidden", "decoder.0.ffn")
    (True, False)
    """
    return site.startswith(f"{layer}.") and site.removeprefix(f"{layer}.") in FFN


def stack_experts(params: ModelGradients, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The gradients of the experts of a file, stacked as their weights are.

    An expert that no token chose has zeros.
    """
    stacked = dict(params.get("stage.ffn", {}))
    for layer, parts in params.items():
        number = layer.rpartition(".")[2]
        for name, part in parts.items() if number.isdecimal() else ():
            total = stacked.setdefault(name, np.zeros(weights[name].shape, part.dtype))
            total[int(number)] += part
    return stacked


def linear_nodes(call: StageCall) -> StageGraph:
    """A linear layer, its activation, and what is added to it."""
    values, x, checkpoint = call.values, call.before["x"], call.values["model_"]
    core = None if checkpoint is None else layers.core_model(checkpoint)
    layer = "" if checkpoint is None else layers.find_layer(checkpoint, values["layer"], "linear")
    graph = new_graph(x, weights=call.prepared, core=core)
    before = read_addends(graph, call.before, values)
    output = read_x(graph, call.before)
    if call.prepared:
        output = graph.add("output", "linear", output, layer=layer, names=("w", "b"))
    if values["activation"] != "identity":
        output = graph.add("activated", "activate", output, activation=values["activation"])
    graph.results = {"x": add_up(graph, output, before, values)}
    return graph


def conv_nodes(call: StageCall) -> StageGraph:
    """A convolution, its activation, and x that may be added to it."""
    x, checkpoint = call.before["x"], call.values["model_"]
    if isinstance(call.prepared, LayerOperands):
        graph = new_graph(x, core=call.prepared.core)
        before = read_addends(graph, call.before, call.values)
        graph = layer_nodes(call, call.prepared, read_x(graph, call.before), graph)
        graph.results = {"x": add_up(graph, graph.results["x"], before, call.values)}
        return graph
    stage: ConvolutionStage = call.prepared
    if checkpoint is not None:
        core, layer = layers.core_model(checkpoint), layers.find_layer(checkpoint, call.values["layer"], "conv")
        graph = new_graph(x, core=core)
        operands = LayerOperands(core, Step("conv", layer), as_number(x), layers.new_context())
        graph = layer_nodes(call, operands, read_x(graph, call.before), graph)
        if stage.residual:
            graph.results["x"] = graph.add("sum", "add", graph.results["x"], read_x(graph, call.before))
        return graph
    graph = new_graph(x, weights=stage.weights)
    x_site = read_x(graph, call.before)
    site = graph.add("convolved", "convolution", x_site, stage=stage)
    if stage.activation != "identity":
        site = graph.add("activated", "activate", site, activation=stage.activation)
    graph.results = {"x": graph.add("sum", "add", site, x_site) if stage.residual else site}
    graph.axes = lambda name: KERNEL_AXES[: stage.weights[name].ndim]
    return graph


def _convolution(scope: Scope, x: Array) -> Array:
    stage: ConvolutionStage = scope.option("stage")
    whole, options = stage.continued(stage.channels_last(x))
    y = convolve(whole, stage.weights["w"], stage.weights.get("b"), options)["output"]
    return stage.channels_back(y)


def _undo_convolution(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    stage: ConvolutionStage = scope.option("stage")
    whole, options = stage.continued(stage.channels_last(x))
    dx, dw, db = convolve_backward(stage.channels_last(dy), whole, stage.weights["w"], options)
    scope.add("", {"w": dw} | ({"b": db} if "b" in stage.weights else {}))
    return [stage.channels_back(dx if stage.before is None else dx[..., stage.before.shape[-2] :, :])]


def rnn_nodes(call: StageCall) -> StageGraph:
    """Recurrent layers as one node; states of --state-in are constants."""
    values, x = call.values, call.before["x"]
    if isinstance(call.prepared, LayerOperands):
        graph = new_graph(x, core=call.prepared.core)
        return layer_nodes(call, call.prepared, read_x(graph, call.before), graph)
    operands: RecurrentOperands = call.prepared
    graph = new_graph(x, weights=operands.weights.by_name(operands.weights.layers))
    options = {"operands": operands, "cell": values["cell"], "state_in": values["state_in"]}
    graph.results = {"x": graph.fuse("layers", "recurrence", read_x(graph, call.before), **options)}
    return graph


def recall_nodes(call: StageCall) -> StageGraph:
    """Linear attention node by node; a state of --state-in is a constant."""
    stage: RecallStage = call.prepared
    graph = new_graph(*stage.arrays.values(), *stage.params.values(), core=stage.core)
    for site, array in stage.arrays.items():
        graph.read(site, array, **stage.origins[site])
    graph.nodes |= {node.site: node for node in stage.nodes}
    addends = read_addends(graph, call.before, call.values)
    graph.results = {"x": add_up(graph, stage.nodes[-1].site, addends, call.values)}
    graph.axes = OWN_AXES.get
    return graph


def _recurrence(scope: Scope, x: Array) -> tuple[Array, Undo]:
    texts, weights = scope.option("operands")
    cell, state_in, (states, offset) = scope.option("cell"), scope.option("state_in"), (None, 0)
    if state_in is not None:
        states, offset = read_state_file(state_in, cell, weights.layers, texts)
    batch = x if texts.is_batch else x[None]
    runs = run_stack(cell, batch, weights.layers, states, lengths=texts.lengths, offset=offset, has_trace=True)

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        grad = np.ascontiguousarray(dy if texts.is_batch else dy[None])
        dx, gradients = stack_backward(cell, grad, batch, weights.layers, runs, lengths=texts.lengths)
        scope.add("", weights.by_name([one.parameters for one in gradients]))
        return [dx if texts.is_batch else dx[0]]

    return runs[-1].outputs.reshape(*x.shape[:-1], -1), undo


KINDS = {
    "layer": fused(_layer),
    "norm along": fused(_norm_along),
    "convolution": Kind(value=_convolution, pullback=_undo_convolution),
    "recurrence": fused(_recurrence),
}
