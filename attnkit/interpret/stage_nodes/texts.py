"""The nodes of embed, posenc, encode, decode and loss."""

import math
from functools import reduce
from typing import Any

import numpy as np

from attnkit import model
from attnkit.checkpoints.sentence_modules import LAYER_NORM_EPS, Dense, LayerNorm, Normalize, Pooling
from attnkit.errors import UsageError
from attnkit.inputs import encoding
from attnkit.inputs.encoding import Encoding
from attnkit.inputs.layers import LayerOperands
from attnkit.inputs.output_matrix import OutputOperands
from attnkit.inputs.position_inputs import PositionOperands
from attnkit.inputs.targets import find_logits
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.networks import layer_nodes
from attnkit.interpret.stage_nodes.stage_graph import (
    MANY,
    StageGraph,
    Undo,
    add_layers,
    as_number,
    fused,
    new_graph,
    read_x,
)
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.dtypes import is_float
from attnkit.model.formulas.linear import linear_backward, sum_to_shape
from attnkit.model.formulas.loss import LossOptions, cross_entropy, cross_entropy_backward, loss_and_gradient
from attnkit.model.formulas.norms import layer_norm_vjp
from attnkit.model.formulas.pooling import l2_normalize_backward
from attnkit.model.formulas.positions import t5_bias_backward
from attnkit.model.formulas.sampling import Sampling
from attnkit.model.formulas.softmax import softmax_backward
from attnkit.model.graph.convolutions import sound_site
from attnkit.model.graph.nodes import Kind, Scope
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.intermediates import SQUARE
from attnkit.model.parameters import parameter_axes
from attnkit.model.passes.model_gradients import head_backward, pool_first_backward
from attnkit.model.passes.output_head import repeat_probe
from attnkit.model.passes.recorded_pass import run_backward, run_recorded
from attnkit.records import Record


def embed_nodes(call: StageCall) -> StageGraph:
    """The rows of a table, or the embedding of a model; one-hot vectors are constants."""
    if call.prepared is not None:
        operands: LayerOperands = call.prepared
        graph = new_graph(core=operands.core)
        where = {"flag": "image"} if call.values["image"] is not None else {}
        return layer_nodes(call, operands, graph.read("ids", operands.x, **where), graph)
    if "table" not in call.result:
        graph = new_graph()
        graph.results = {"x": ""}
        return graph
    graph = new_graph(weights={"table": call.result["table"]})
    rows = graph.add("rows", "words", graph.read("ids", call.result["ids"]))
    factor = math.sqrt(call.result["table"].shape[1]) if call.values["scale"] else 1.0
    graph.results = {"x": graph.add("scaled", "scale", rows, factor=factor)}
    graph.results["table"] = graph.add("table", "parameter", name="table")
    graph.axes = lambda name: ("vocab", "model")
    return graph


def posenc_nodes(call: StageCall) -> StageGraph:
    """Positions that are added to x, rotate it, or are a bias on scores.

    Sinusoids and angles are constants.
    """
    values = call.values
    if isinstance(call.prepared, LayerOperands):
        graph = new_graph(call.prepared.x, core=call.prepared.core)
        return layer_nodes(call, call.prepared, read_x(graph, call.before), graph)
    operands: PositionOperands = call.prepared
    kind, table = values["kind"], operands.table
    graph = new_graph(operands.x, weights=None if table is None else {"table": table})
    if kind == "t5":
        bias = graph.add("bias", "bias of buckets", operands=operands, options=values)
        graph.results = {"x" if operands.is_alone else "bias": bias}
    elif kind == "alibi" or (operands.is_alone and table is None):  # constants
        graph.results = dict.fromkeys(call.result, "")
    elif kind == "rotary":
        site = graph.add("x_rotated", "rotation", read_x(graph, call.before), operands=operands, options=values)
        graph.results = {"x": site}
    else:
        added = [] if operands.is_alone else [read_x(graph, call.before)]
        where, options = graph.read("positions", operands.positions), {"options": values, "width": operands.x.shape[-1]}
        added.append(graph.add("encoding", "sinusoids" if table is None else "words", where, **options))
        graph.axes = lambda name: ("position", "model")
        graph.results = {"x": graph.add("sum", "add", *added)}
    return graph


def _sinusoids(scope: Scope, positions: Array) -> Array:
    values = scope.option("options")
    return model.sinusoidal_positions(positions, scope.option("width"), layout=values["layout"], base=values["base"])


def _rotate(scope: Scope, x: Array, direction: int = 1) -> Array:
    values, (cos, sin) = scope.option("options"), scope.option("operands").angles
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    split = x if x.ndim == 4 else model.split_heads(x, values["heads"])
    rotated = model.rotate(split, cos, direction * sin, interleaved=values["interleaved"])
    return rotated if x.ndim == 4 else model.merge_heads(rotated)


def _buckets(scope: Scope) -> tuple[Array, Array]:
    """The table of biases (buckets, H), and the bucket of each query and key (T, S)."""
    values, operands = scope.option("options"), scope.option("operands")
    far, both, table = values["max_distance"], not values["one_way"], operands.table
    places = operands.positions, operands.keys
    return table, model.t5_buckets(*places, buckets=len(table), max_distance=far, bidirectional=both)


def _bias_of_buckets(scope: Scope) -> Array:
    table, buckets = _buckets(scope)
    return model.t5_bias(buckets, table)


def _undo_bias_of_buckets(scope: Scope, dy: Array, y: Array) -> list[Array]:
    table, buckets = _buckets(scope)
    scope.add("", {"table": t5_bias_backward(sum_to_shape(dy, y.shape), buckets, len(table))})
    return []


def encode_nodes(call: StageCall, forward: Hook = no_hook) -> StageGraph:
    """The layers of a model as one node, and what is made of their states.

    forward  reads the embeddings of the pass, and may replace them
    """
    if (call.values["patch"] and forward is no_hook) or call.values["ablate"]:
        raise call.error("no gradient with --patch or --ablate")
    encoded: Encoding = call.prepared
    if call.values["simulate"] is not None:
        raise UsageError("rounding has no derivative", "--simulate")
    core, inputs = encoded.core, encoded.inputs
    if "mask" in encoded.base and is_float(encoded.base["mask"].dtype):
        raise call.error("no gradient of a mask of floats; one of booleans has none")
    graph = new_graph(inputs, core=core)
    where: dict[str, Any] = {}
    if is_float(inputs.dtype):
        flag = "image" if core.config.patches else sound_site(core.config)
        where = {"name": "x"} if isinstance(call.item, Record) else {"flag": flag}
    source = graph.read("input", inputs, **where)
    options = {"encoded": encoded, "forward": forward, "dtype": call.values["dtype"]}
    states = graph.inside = graph.fuse("states", "layers", source, **options)
    graph.results = {"x": states, "memory": states}
    if encoded.pool != "none":
        graph.results["x"] = add_vectors(graph, encoded, states)
        if encoded.dim:
            graph.results["x"] = graph.add("cut", "first numbers", graph.results["x"], count=encoded.dim)
        if call.values["normalize"]:
            graph.results["x"] = graph.add("unit", "to length 1", graph.results["x"])
    states_shape = call.result["x"].shape if encoded.pool == "none" else inputs.shape
    tokens = inputs.shape if inputs.dtype.kind in "iu" else states_shape[:-1] or (1,)
    scores = math.prod(tokens) * tokens[-1] * core.config.stack(encoded.stack).heads
    has_many = core.config.patches is None and scores > MANY
    graph.is_kept = lambda name, is_used: is_used or not has_many or name.rpartition(".")[2] not in SQUARE
    graph.has_trace = True
    return graph


def _layers(scope: Scope, inputs: Array) -> tuple[Array, Undo]:
    encoded: Encoding = scope.option("encoded")
    context = encoding.make_context(encoded, hook=scope.option("forward"), dtype=scope.option("dtype"))
    x, tape = run_recorded(encoded.core, encoded.steps, encoded.inputs, context)

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        core, reverse = encoded.core, Reverse(hook=scope.hook)
        if any(name in scope.option("inner", ()) for name in encoding.HEAD_STEPS):
            rows = x.shape[: -1 - bool(core.config.is_head_pooled)]
            dy = dy + head_backward(core, x, np.zeros((*rows, core.params["head"]["w"].shape[1]), x.dtype), reverse)
        dx = run_backward(core, tape, dy, reverse)
        add_layers(scope, reverse.gradients)
        return [dx]

    return x, undo


def add_vectors(graph: StageGraph, encoded: Encoding, states: str) -> str:
    """Add the nodes of one vector of each text, and return the last site.

    states  the site of hidden states
    """
    site = graph.add("tokens", "tokens first", states, encoded=encoded)
    if encoded.pool == "pooler":
        return graph.fuse("vectors", "pooler of texts", site)
    if encoded.pool != "folder":
        whole = Pooling((encoded.pool,), with_prompt=True)
        return graph.add("vectors", "pooled", site, encoded=encoded, module=whole)
    for number, module in encoded.modules.modules.items():
        name = encoding.module_site(number, module)
        if isinstance(module, Pooling) and module.pools == ("probe",):
            site = graph.fuse(name, "pooled by the probe", site)
        elif isinstance(module, Pooling):
            site = graph.add(name, "pooled", site, encoded=encoded, module=module)
        elif isinstance(module, Dense):
            site = graph.add(name, "dense", site, layer="vector" * bool(graph.core.config.vector_width), module=module)
        else:
            site = graph.add(name, MODULE_KINDS[type(module)], site, module=module)
        graph.names[name] = name
    if encoded.modules.late and "counts" in encoded.base:
        site = graph.add("counted", "tokens that count", site, counts=encoded.base["counts"])
    return site


def _tokens_first(scope: Scope, x: Array) -> Array:
    return encoding.pooled_tokens(scope.option("encoded").base, x)[0]


def _undo_tokens_first(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [undo_order(dy, encoding.token_order(scope.option("encoded").base, x.shape[:-1])[1])]


def _pooled_places(scope: Scope, x: Array) -> Array:
    """Which tokens of x (..., T, D), in their order, a module pools."""
    encoded: Encoding = scope.option("encoded")
    real, order = encoding.token_order(encoded.base, x.shape[:-1])
    if encoded.pool == "folder":
        real = encoding.until_end(encoded.core.config, encoded.base, real, order)
    return encoding.pooled_places(encoded, scope.option("module"), real)


def _pooled(scope: Scope, x: Array) -> Array:
    real = _pooled_places(scope, x)
    return np.concatenate([model.POOLINGS[pool].pool(x, real) for pool in scope.option("module").pools], axis=-1)


def _undo_pooled(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    real, pools = _pooled_places(scope, x), scope.option("module").pools
    parts = zip(pools, np.split(dy, len(pools), axis=-1), strict=True)
    return [reduce(np.add, [model.POOLINGS[pool].backward(part, x, real) for pool, part in parts])]


def _pooled_by_probe(scope: Scope, x: Array) -> tuple[Array, Undo]:
    core, plan = scope.core, scope.core.config.plan("vector")
    y, tape = run_recorded(core, plan, repeat_probe(core, x), model.Context(memory=x))

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        reverse = Reverse(hook=scope.hook)
        dprobe = run_backward(core, tape, dy[..., None, :], reverse)
        reverse.add("vector", {"probe": sum_to_shape(dprobe, dprobe.shape[-1:])})
        add_layers(scope, reverse.gradients)
        return [reverse.memory]

    return y[..., 0, :], undo


def _pooler(scope: Scope, x: Array) -> tuple[Array, Undo]:
    """The vector of each text by the pooler: (..., T, D) -> (..., D)."""

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        reverse = Reverse(hook=scope.hook)
        dx = pool_first_backward(scope.core, x, dy, reverse)
        add_layers(scope, reverse.gradients)
        return [dx]

    return model.pool_first(scope.core, x), undo


def _dense(scope: Scope, x: Array) -> Array:
    module: Dense = scope.option("module")
    return module.apply(x)


def _undo_dense(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    module: Dense = scope.option("module")
    gradients = module.backward(dy, x)
    if scope.node.layer:
        scope.add(scope.node.layer, {"w": gradients.weight, "b": gradients.bias})
    return [gradients.x]


def _normed(scope: Scope, x: Array) -> Array:
    module: LayerNorm = scope.option("module")
    return module.apply(x)


def _undo_normed(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    module: LayerNorm = scope.option("module")
    return [layer_norm_vjp(x, module.gamma, module.beta, eps=LAYER_NORM_EPS)[1](dy)[0]]


def _counted(scope: Scope, x: Array) -> Array:
    chosen: Array = x[scope.option("counts")]
    return chosen


def _undo_counted(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    dx = np.zeros_like(x)
    dx[scope.option("counts")] = dy
    return [dx]


def _first_numbers(scope: Scope, x: Array) -> Array:
    return x[..., : scope.option("count")]


def _undo_first_numbers(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    dx = np.zeros_like(x)
    dx[..., : dy.shape[-1]] = dy
    return [dx]


MODULE_KINDS = {Normalize: "to length 1", LayerNorm: "layer norm of texts"}


def _to_length_1(scope: Scope, x: Array) -> Array:
    return model.l2_normalize(x)


def _undo_to_length_1(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [l2_normalize_backward(dy, x)]


def undo_order(dx: Array, order: Array | None) -> Array:
    """Gradient of states (B, T, D) before `pooled_tokens` put them in an order."""
    if order is None:
        return dx
    gradient = np.empty_like(dx)
    np.put_along_axis(gradient, np.broadcast_to(order[..., None], dx.shape), dx, axis=-2)
    return gradient


def decode_nodes(call: StageCall) -> StageGraph:
    """Logits by the head of a model or a matrix, and their probabilities."""
    values, emit, checkpoint = call.values, call.values["emit"], call.values["model_"]
    operands: OutputOperands | None = call.prepared
    if "text" in call.result.labels or not isinstance(call.item, Record):
        raise call.error("generated text has no gradient; decode --model DIR --score TEXT --grad FILE has")
    if emit in ("ids", "text"):
        raise call.error(f"--emit {emit} has no gradient: the choice of a word is no continuous function")
    if operands is None or (
        checkpoint is not None and values["layer"] is None and checkpoint.config.decoder is not None
    ):
        raise call.error("no gradient of several layers at once; name one by --layer, as --layer head")
    x, weight, bias = operands.record["x"], operands.weight, operands.bias
    given = {} if values["params"] is None or weight is None else {"w": weight} | ({} if bias is None else {"b": bias})
    graph = new_graph(x, weight, weights=given, core=operands.core)
    states = read_x(graph, operands.record)
    if operands.core is not None:
        logits = graph.inside = graph.fuse("head", "head", states, operands=operands)
    elif given:
        logits = graph.add("logits", "linear", states, names=("w", "b"))
        graph.axes = lambda name: parameter_axes("head", name)
    else:
        where = {"name": "table"} if values["table"] is None else {"flag": "table"}
        table = (call.before if values["table"] is None else values["table"])[
            "table" if values["table"] is None else "x"
        ]
        logits = graph.add("logits", "by table", states, graph.read("table", table, **where))
    graph.results = {"logits": logits, "x": logits}
    if emit != "logits":
        choice = Sampling(**{name: values[name] for name in Sampling._fields})
        graph.results["x"] = graph.add("probs", "probabilities", logits, choice=choice)
    return graph


def _head(scope: Scope, x: Array) -> tuple[Array, Undo]:
    core, record = scope.core, scope.option("operands").record

    def undo(scope: Scope, dy: Array) -> list[Array | None]:
        reverse = Reverse(hook=scope.hook)
        if core.config.is_head_pooled:
            states, real, order = encoding.pooled_tokens(record, x)
            dx = undo_order(head_backward(core, states, dy, reverse, real[..., None, :]), order)
        else:
            dx = head_backward(core, x, dy, reverse)
        add_layers(scope, reverse.gradients)
        return [dx]

    return scope.option("operands").logits, undo


def _undo_by_table(scope: Scope, dy: Array, y: Array, x: Array, table: Array) -> list[Array]:
    gradients = linear_backward(dy, x, table.T)
    assert gradients.weight is not None
    return [gradients.x, np.ascontiguousarray(gradients.weight.T)]


def loss_nodes(call: StageCall) -> StageGraph:
    """The cross-entropy of logits, reduced and by row, and target probabilities."""
    values, record = call.values, call.before
    logits, _, _ = find_logits(record)
    weight = None if values["weights"] is None else values["weights"]["x"]
    reduced = LossOptions(weight, values["ignore"], values["smoothing"], values["reduction"])
    plain, graph = LossOptions(None, values["ignore"], 0.0, "none"), new_graph(logits)
    site = graph.read("logits", as_number(logits), name="logits" if record.get("logits") is logits else "x")
    ids = call.result["target"]
    for name, options in (("x", reduced), ("loss", reduced._replace(reduction="none"))):
        graph.results[name] = graph.add(f"{name}_of_rows", "cross entropy", site, ids=ids, loss=options)
    graph.results["probability"] = graph.add("probability", "probability", site, ids=ids, loss=plain)
    return graph


def _undo_cross_entropy(scope: Scope, dy: Array, y: Array, logits: Array) -> list[Array]:
    return [cross_entropy_backward(logits, scope.option("ids"), scope.option("loss"), dy)]


def _probability(scope: Scope, logits: Array) -> Array:
    """exp(−loss) of each target, plain: (..., T, N) -> (..., T).

    Plain means that neither weights nor smoothing change the loss.
    """
    losses, _ = loss_and_gradient(logits, scope.option("ids"), scope.option("loss"))
    probability: Array = np.exp(-losses)
    return probability


def _undo_probability(scope: Scope, dy: Array, y: Array, logits: Array) -> list[Array]:
    return [cross_entropy_backward(logits, scope.option("ids"), scope.option("loss"), -np.nan_to_num(dy) * y)]


KINDS = {
    "sinusoids": Kind(value=_sinusoids, pullback=lambda scope, dy, y, positions: [None]),
    "rotation": Kind(value=_rotate, pullback=lambda scope, dy, y, x: [_rotate(scope, dy, -1)]),
    "bias of buckets": Kind(value=_bias_of_buckets, pullback=_undo_bias_of_buckets),
    "layers": fused(_layers),
    "tokens first": Kind(value=_tokens_first, pullback=_undo_tokens_first),
    "pooled": Kind(value=_pooled, pullback=_undo_pooled),
    "pooled by the probe": fused(_pooled_by_probe),
    "pooler of texts": fused(_pooler),
    "dense": Kind(value=_dense, pullback=_undo_dense),
    "to length 1": Kind(value=_to_length_1, pullback=_undo_to_length_1),
    "layer norm of texts": Kind(value=_normed, pullback=_undo_normed),
    "tokens that count": Kind(value=_counted, pullback=_undo_counted),
    "first numbers": Kind(value=_first_numbers, pullback=_undo_first_numbers),
    "head": fused(_head),
    "by table": Kind(value=lambda scope, x, table: model.logits(x, table.T, None), pullback=_undo_by_table),
    "probabilities": Kind(
        value=lambda scope, logits: model.probabilities(scope.option("choice").filter(logits)),
        pullback=lambda scope, dy, y, logits: [softmax_backward(dy, y) / scope.option("choice").tau],
    ),
    "cross entropy": Kind(
        value=lambda scope, logits: cross_entropy(logits, scope.option("ids"), scope.option("loss")),
        pullback=_undo_cross_entropy,
    ),
    "probability": Kind(value=_probability, pullback=_undo_probability),
}
