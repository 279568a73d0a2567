"""Slips of layers that keep a state, and of gates of heads.

The rows of SLIPS and KINDS here are those of the kinds of model/graph/recall.py. Those of the convolution before a
state are in slips.py.
"""

from collections.abc import Callable, Iterator

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.formulas.head_views import view_heads
from attnkit.model.formulas.recall import EPS, first_state, read_state
from attnkit.model.graph.attention import norm_heads
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.linear import standardize
from attnkit.model.graph.nodes import Kind, Node, Scope
from attnkit.model.graph.recall import NO_LIMITS, as_memory, fill_padding, run_recall

Change = tuple[str, Node]  # the sentence of a slip, and the node as it has it

PADDING = "padding is written to the state"
READ_FIRST = "the state is read before it is written: no token reads itself"
DELTA = {
    "read first": READ_FIRST,
    "undecayed": "the error of the delta rule is against the state before its decay, not after it",
    "decayed late": "the state decays after it is written, not before",
}
HALVES = "queries and gates are the halves of their projection (it has those of each head by turns)"
GROUPS = {
    "in turn": "key heads are repeated in turn, not in blocks",
    "first": "all heads read the queries and keys of the first group",
}


def has_parameter(graph: Graph, node: Node, name: str) -> bool:
    return name in graph.core.params.get(node.layer, {})


def slip_step(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the step Δ."""
    yield "the step Δ is not softplus of its projection", node._replace(kind="mistaken step")
    if has_parameter(graph, node, "dt_bias"):
        yield "the bias dt_bias of the step Δ is missing", node.change(missing=("dt_bias",))
    least, most = node.options.get("limits", NO_LIMITS)
    if (least, most) != NO_LIMITS:
        yield f"the step Δ is not limited to {least:g} … {most:g}", node.change(limits=NO_LIMITS)
    if (factor := node.options.get("factor", 1.0)) != 1:
        yield f"the factor {factor:g} of the projection of the step Δ is missing", node.change(factor=1.0)


def slip_decay(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the rate A = −e^A_log."""
    yield "the state grows: the sign of the rate A is wrong", node._replace(kind="mistaken decay").change(rate="sign")
    if has_parameter(graph, node, "A_log"):
        yield "A_log is taken for the rate A = −e^A_log", node._replace(kind="mistaken decay").change(rate="log")
        yield "the rate A is missing", node.change(missing=("A_log",))


def slip_recall(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the strength, the decay, the delta rule, heads, and padding."""
    words = {"decay": "the state does not decay", "beta": "what is written is not multiplied by its strength, β or Δ"}
    for name in node.options["gates"]:
        others = [one for one in node.options["gates"] if one != name]
        inputs = [site for one, site in zip(node.options["gates"], node.inputs[3:], strict=True) if one != name]
        yield words[name], node._replace(inputs=(*node.inputs[:3], *inputs)).change(gates=others)
    if node.options["corrects"]:
        yield "what is written is v, not what the state lacks of it (the delta rule)", node.change(corrects=False)
        for mistake, sentence in DELTA.items():
            yield sentence, node._replace(kind="mistaken delta").change(mistake=mistake)
    else:
        yield READ_FIRST, node._replace(kind="mistaken delta").change(mistake="read first")
    if graph.nodes[node.inputs[0]].shape[1] != node.shape[1]:
        for mistake, sentence in GROUPS.items():
            yield sentence, node._replace(kind="mistaken recall").change(mistake=mistake)
    if node.options.get("real") is not None:
        yield PADDING, node.change(real=None)


def slip_padding(graph: Graph, node: Node) -> Iterator[Change]:
    """Padding in the convolution before a state, which writes it."""
    if node.site.rpartition(".")[0].endswith(".recall") and node.options["real"] is not None:
        yield PADDING, node.change(real=None)


def slip_skip(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of D times the values."""
    yield "D times the values is missing", node._replace(kind="scale", inputs=node.inputs[:1], options={})
    if (step := f"{node.layer}.step") in graph.nodes:
        changed = node._replace(kind="mistaken skip", inputs=(*node.inputs, step))
        yield "D is multiplied by the values times Δ", changed


def slip_norm_groups(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the norm of what is read: its groups, its weights, and its place."""
    recall, groups = graph.core.config.recall, node.options["groups"]
    if groups > 1:
        yield f"the norm is of all features, not of each of {groups} groups", node.change(groups=1)
    if recall and recall.heads != groups:
        yield f"the norm is of each head, not of {groups} groups", node.change(groups=recall.heads)
    yield "the norm of what is read is missing", node._replace(kind="scale", options={})
    yield "the weights of the norm of what is read are missing", node.change(missing=("gamma",))
    yield "the norm multiplies by 1 + weight, not by weight", node._replace(kind="norm by one more")
    before = graph.nodes[node.inputs[0]]
    if before.kind == "gated":
        changed = node._replace(kind="norm and gate", inputs=before.inputs)
        yield "the norm precedes the gate, it does not follow it", changed.change(**before.options)


def slip_features(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the length of queries and keys of a state."""
    if node.options["feature"] == "unit":
        yield "queries and keys are not normalized to length 1", node.change(feature="identity")
        yield (
            "queries and keys are divided by √(mean x² + eps), not by √(Σ x² + eps)",
            node._replace(kind="mean length"),
        )


def slip_halves(graph: Graph, node: Node) -> Iterator[Change]:
    """Queries and gates of one projection cut at its middle, not within each head."""
    layer, _, part = node.site.rpartition(".")
    gates = f"{layer}.gate_projected"
    if gates in graph.nodes and part in ("q_normed", "gate"):
        both = (f"{layer}.q_projected", gates)
        yield HALVES, node._replace(kind="cut in halves", inputs=both).change(place=("q_normed", "gate").index(part))


def slip_gated(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the gate of what is read."""
    yield "the gate is not applied", node._replace(kind="scale", inputs=node.inputs[:1], options={})
    for name in ("sigmoid", "silu", "identity"):
        if name != node.options["activation"]:
            yield f"the gate is {name} (expected {node.options['activation']})", node.change(activation=name)
    before = graph.nodes[node.inputs[0]]
    if before.kind == "norm of groups":
        changed = node._replace(kind="gate and norm", inputs=(before.inputs[0], node.inputs[1]), layer=before.layer)
        yield "the norm follows the gate, it does not precede it", changed.change(**before.options)


def _step(scope: Scope, x: Array) -> Array:
    bias, factor = scope.parameter("dt_bias"), scope.option("factor", 1.0)
    step = x * factor if bias is None else x * factor + bias
    return view_heads(np.clip(step, *scope.option("limits", NO_LIMITS)), scope.node.shape[1])


def _decay(scope: Scope, step: Array) -> Array:
    rate = scope.parameter("A_log")
    logarithm = np.zeros(step.shape[1]) if rate is None else rate
    shown = {"sign": np.exp(logarithm), "log": logarithm}[scope.option("rate")]
    with np.errstate(over="ignore"):
        y: Array = np.exp(step * shown[:, None, None].astype(step.dtype))
    return y


def _recall(scope: Scope, q: Array, k: Array, v: Array, *gates: Array) -> Array:
    heads = v.shape[1]
    order = {"in turn": np.arange(heads) % k.shape[1], "first": np.zeros(heads, int)}[scope.option("mistake")]
    return run_recall(scope.node.options, (q[:, order], k[:, order], v, *gates))["output"]


def _delta(scope: Scope, q: Array, k: Array, v: Array, *gates: Array) -> Array:
    """What is read token by token, with a mistake in the order of its steps."""
    memory, mistake = as_memory(scope.node.options, q, k, v, *gates), scope.option("mistake")
    now, y = first_state(memory, None), np.empty_like(memory.v)
    for t in range(v.shape[2]):
        before, at = now, memory.k[:, :, t]
        factor = None if memory.decay is None else memory.decay[:, :, t, :, None]
        now = now if factor is None or mistake == "decayed late" else now * factor
        written = memory.v[:, :, t]
        if memory.corrects:
            written = written - read_state(at, before if mistake == "undecayed" else now)
        written = written if memory.beta is None else written * memory.beta[:, :, t, None]
        now = now + at[..., None] * written[..., None, :]
        y[:, :, t] = read_state(memory.q[:, :, t], before if mistake == "read first" else now)
        if mistake == "decayed late" and factor is not None:
            now = now * factor
    return fill_padding(scope.node.options, y)


def _mean_length(scope: Scope, x: Array) -> Array:
    return standardize(scope, x, "rms", EPS)


def _norm_by_one_more(scope: Scope, x: Array) -> Array:
    gamma = scope.parameter("gamma")
    assert gamma is not None
    parts = x.reshape(*x.shape[:-1], scope.option("groups"), -1)
    y: Array = standardize(scope, parts, "rms", scope.option("eps")).reshape(x.shape) * (
        1 + np.resize(gamma, x.shape[-1:])
    )
    return y


def _halves(scope: Scope, q: Array, gate: Array) -> Array:
    """One half of the projection that has queries and gates of each head by turns."""
    heads = scope.option("heads")
    both = [one.reshape(*one.shape[:-1], heads, -1) for one in (q, gate)]
    whole = np.concatenate(both, axis=-1).reshape(*q.shape[:-1], -1)
    half = np.split(whole, 2, axis=-1)[scope.option("place")]
    return view_heads(half, heads) if scope.option("place") else norm_heads(scope, half)


def _skip(scope: Scope, x: Array, v: Array, step: Array) -> Array:
    skip = scope.parameter("D")
    assert skip is not None
    y: Array = x + step * v * skip[:, None, None]
    return y


def _norm(scope: Scope, x: Array) -> Array:
    parts = x.reshape(*x.shape[:-1], scope.option("groups"), -1)
    y, gamma = standardize(scope, parts, "rms", scope.option("eps")).reshape(x.shape), scope.parameter("gamma")
    return y if gamma is None else y * np.resize(gamma, x.shape[-1:])


def _gate(scope: Scope, x: Array, gate: Array) -> Array:
    y: Array = x * ACTIVATIONS[scope.option("activation")](gate)
    return y


Slips = Callable[[Graph, Node], Iterator[Change]]
SLIPS: dict[str, Slips] = {
    "step": slip_step,
    "decay of step": slip_decay,
    "recall": slip_recall,
    "skip": slip_skip,
    "norm of groups": slip_norm_groups,
    "causal convolution": slip_padding,
    "features": slip_features,
    "gated": slip_gated,
    "norm of heads": slip_halves,
    "heads": slip_halves,
}
KINDS = {
    "mistaken step": Kind(value=_step),
    "mistaken decay": Kind(value=_decay),
    "mistaken recall": Kind(value=_recall),
    "mistaken delta": Kind(value=_delta),
    "mean length": Kind(value=_mean_length),
    "norm by one more": Kind(value=_norm_by_one_more),
    "cut in halves": Kind(value=_halves),
    "mistaken skip": Kind(value=_skip),
    "norm and gate": Kind(value=lambda scope, x, gate: _gate(scope, _norm(scope, x), gate)),
    "gate and norm": Kind(value=lambda scope, x, gate: _norm(scope, _gate(scope, x, gate))),
}
