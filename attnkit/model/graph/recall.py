"""The nodes of linear attention, alone and in a layer of a model.

q, k, v     (B, H, T, K) as the state reads them: projected, split into heads, with their features
beta, decay  (B, H, T, 1), or (B, H, T, K) for each row of the state; step: Δ, before them
read        what each token reads of the state, (B, H, T, V); with Σ k beside it, (B, H, T, V + 1)
heads       the same divided by Σ k, and with D v

A layer has before them q_projected, q_convolved and q_activated, and those of keys and values; after them normed, gate,
gated and output; and the states after the last token.

Options of `recall`: `corrects`, whether the delta rule applies; `gates`, the names of its inputs after q, k and v;
`divides`, whether Σ k is kept beside the state; `chunk`; `state` (B, H, K, V), before the first token; `real` (B, T),
the tokens that are no padding, which alone are written.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import sigmoid
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.formulas.norms import rms_norm_vjp
from attnkit.model.formulas.recall import (
    FEATURES,
    RULES,
    Memory,
    RecallConfig,
    RecallOptions,
    linear_attention_backward,
    retnet_decay,
    softplus,
)
from attnkit.model.graph.costs import Cost, Costs, Sizes, per_number
from attnkit.model.graph.functions import NUMPY, Functions
from attnkit.model.graph.linear import standardize
from attnkit.model.graph.nodes import LAST, Built, Kind, Node, Place, Scope

Options = Mapping[str, Any]
NO_LIMITS = (0.0, np.inf)  # of a step
NO_OPTIONS: Options = {}


def as_memory(options: Options, q: Array, k: Array, v: Array, *gates: Array, xp: Any = np) -> Memory:
    """What the state reads and writes: key heads repeated, no padding written."""
    named, times = dict(zip(options["gates"], gates, strict=True)), v.shape[1] // k.shape[1]
    q, k = (one if times == 1 else xp.repeat(one, times, axis=1) for one in (q, k))
    decay, beta = named.get("decay"), named.get("beta")
    if options["divides"]:
        v = xp.concatenate([v, xp.ones_like(v[..., :1])], axis=-1)
    if decay is not None:
        decay = fill_padding(options, decay, 1, xp)
    beta = None if beta is None else beta[..., 0]
    return Memory(q, fill_padding(options, k, 0, xp), v, decay, beta, options["corrects"])


def fill_padding(options: Options, x: Array, value: float = 0, xp: Any = np) -> Array:
    """x (B, H, T, K) with a number at padding."""
    real = options["real"]
    return x if real is None else xp.where(real[:, None, :, None], x, np.asarray(value, x.dtype))


def run_recall(
    options: Options, arrays: Sequence[Array], keep: Collection[str] = (), functions: Functions = NUMPY
) -> dict[str, Array]:
    """What is read of the state, and the last state, by the options of a node."""
    memory = as_memory(options, *arrays, xp=functions.xp)
    found = functions.read_memory(memory, options["chunk"], options["state"], keep)
    return found | {"output": fill_padding(options, found["output"], 0, functions.xp)}


def _recall(scope: Scope, *arrays: Array) -> Array:
    found, shared = run_recall(scope.node.options, arrays, functions=scope.functions), scope.option("shared")
    if shared is not None:
        shared["state"] = found["state"]
    return found["output"]


def _last_state(scope: Scope, *arrays: Array) -> Array:
    """The state after the last token, which what is read computes, too."""
    shared: dict[str, Array] = scope.option("shared") or {}
    if "state" in shared:
        return shared.pop("state")
    return run_recall(scope.node.options, arrays, functions=scope.functions)["state"]


def _undo_recall(scope: Scope, dy: Array, y: Array, *arrays: Array) -> list[Array]:
    options = scope.node.options
    found, _ = linear_attention_backward(fill_padding(options, dy), as_memory(options, *arrays), options["state"])
    lead = (*arrays[1].shape[:2], -1, *arrays[1].shape[2:])
    gradients = [one.reshape(lead).sum(axis=2) for one in (found.q, fill_padding(options, found.k))]
    gates = dict[str, Array]()
    if found.beta is not None:
        gates["beta"] = found.beta[..., None]
    if found.decay is not None:
        gates["decay"] = fill_padding(options, found.decay)
    return [*gradients, found.v[..., : arrays[2].shape[-1]], *(gates[name] for name in options["gates"])]


def _count_recall(sizes: Sizes) -> Costs:
    """Products with the state and inside chunks, for each head of each text."""
    texts, heads, tokens, value = sizes.node.shape
    key, gates = sizes.shapes[0][-1], dict(zip(sizes.option("gates"), sizes.shapes[3:], strict=True))
    decay, corrects, chunk = gates.get("decay", (0,))[-1], sizes.option("corrects"), sizes.option("chunk")
    count = _Count(key, value, decay, "beta" in gates, corrects)
    is_single = chunk is None or sizes.passes.shown_tokens == 1
    sums = count.token().times(tokens) if is_single else count.chunks(tokens, chunk)
    rows, read = texts * heads, sum(map(math.prod, sizes.shapes))
    states, written = rows * sums.states * key * value, math.prod(sizes.node.shape)
    yield Cost("", (), rows * sums.flops, rows * sums.elementwise, read + states, written + states)


class _Sums(NamedTuple):
    """FLOPs of products, those of everything else, and how often the state is read."""

    flops: int
    elementwise: int
    states: int = 1

    def times(self, count: int) -> "_Sums":
        return _Sums(*(count * one for one in self))


class _Count(NamedTuple):
    """The widths of one head: of a key, a value, and the decay (0: none)."""

    key: int
    value: int
    decay: int
    has_beta: bool
    corrects: bool

    def token(self) -> _Sums:
        """One token, by the recurrent form."""
        state = self.key * self.value
        changes = (self.corrects + self.has_beta) * self.value + bool(self.decay) * state
        return _Sums((4 + 2 * self.corrects) * state, changes)

    def chunk(self, size: int) -> _Sums:
        """A chunk: products of its tokens, their triangular system, and the state."""
        key, value, decay, has_decay = self.key, self.value, self.decay, bool(self.decay)
        state, square = key * value, size * size
        flops = 2 * square * (key + value) + 4 * size * state
        changes = size * value + state + (2 * square + size) * decay
        changes += has_decay * (2 * size * key + state)
        if not self.corrects:
            return _Sums(flops, changes + self.has_beta * size * value)
        flops += 2 * square * key + size * (size - 1) * (key + value) + 2 * size * state
        changes += square * decay + has_decay * size * key + size * value
        return _Sums(flops, changes + self.has_beta * (square + size * (key + value)))

    def chunks(self, tokens: int, size: int) -> _Sums:
        whole, rest = self.chunk(size).times(tokens // size), self.chunk(tokens % size)
        return _Sums(*(one + other for one, other in zip(whole, rest, strict=True))) if tokens % size else whole


def _features(scope: Scope, x: Array) -> Array:
    return FEATURES[scope.option("feature")].value(x)


def _undo_features(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [FEATURES[scope.option("feature")].backward(dy, x)]


def _given(scope: Scope, x: Array) -> Array:
    """A gate that is given, for every head and token."""
    return np.broadcast_to(_with_features(scope, x), scope.node.shape)


def _with_features(scope: Scope, x: Array) -> Array:
    return x if scope.option("has_features") else x[..., None]


def _undo_given(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [sum_to_shape(dy, _with_features(scope, x).shape).reshape(x.shape)]


def _step(scope: Scope, x: Array) -> Array:
    """Δ = softplus(c x + b) by heads, within limits: (B, T, H A) -> (B, H, T, A)."""
    step = scope.xp.logaddexp(_shifted(scope, x), np.zeros((), x.dtype))
    return view_heads(scope.xp.clip(step, *scope.option("limits", NO_LIMITS)), scope.node.shape[1])


def _shifted(scope: Scope, x: Array) -> Array:
    bias, factor = scope.parameter("dt_bias"), scope.option("factor", 1.0)
    x = x if factor == 1 else x * np.asarray(factor, x.dtype)
    return x if bias is None else x + bias


def _undo_step(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    shifted, (least, most) = _shifted(scope, x), scope.option("limits", NO_LIMITS)
    step = softplus(shifted)
    dx = np.where((step >= least) & (step <= most), merge_heads(dy) * sigmoid(shifted), 0)
    if (bias := scope.parameter("dt_bias")) is not None:
        scope.add(scope.node.layer, {"dt_bias": sum_to_shape(dx, bias.shape)})
    return [dx * np.asarray(scope.option("factor", 1.0), dx.dtype)]


def _count_step(sizes: Sizes) -> Costs:
    names = sizes.found("dt_bias")
    return [sizes.elementwise(1 + (sizes.option("factor", 1.0) != 1) + len(names), *names)]


def _decay(scope: Scope, step: Array) -> Array:
    """The factors of a step, e^(−Δ e^A): (B, H, T, A) -> the same."""
    rate = _log_rate(scope)
    y: Array = scope.xp.exp(-step if rate is None else -step * scope.xp.exp(rate))
    return y


def _log_rate(scope: Scope) -> Array | None:
    rate = scope.parameter("A_log")
    return rate if rate is None else rate[:, None, None]


def _undo_decay(scope: Scope, dy: Array, y: Array, step: Array) -> list[Array]:
    rate = _log_rate(scope)
    scaled = dy * -y if rate is None else dy * -y * np.exp(rate)
    if rate is not None:
        scope.add(scope.node.layer, {"A_log": sum_to_shape(scaled * step, rate.shape)[:, 0, 0]})
    return [scaled]


def _count_decay(sizes: Sizes) -> Costs:
    names = sizes.found("A_log")
    return [sizes.elementwise(2 + len(names), *names)]


def _fixed(scope: Scope) -> Array:
    factors = retnet_decay(scope.node.shape[1])[:, None, None]
    return scope.convert(np.broadcast_to(factors, scope.node.shape))


def _reshape(scope: Scope, x: Array) -> Array:
    return x.reshape(scope.node.shape)


def _by_heads(scope: Scope, x: Array) -> Array:
    return view_heads(x, scope.node.shape[1])


def _divide(scope: Scope, x: Array) -> Array:
    """What is read divided by q · Σ k beside it; 0 where that is 0."""
    total = x[..., -1:]
    return np.where(total == 0, 0, x[..., :-1] / np.where(total == 0, 1, total))


def _undo_divide(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    total = x[..., -1:]
    part = np.where(total == 0, 0, dy / np.where(total == 0, 1, total))
    return [np.concatenate([part, -(part * y).sum(axis=-1, keepdims=True)], axis=-1)]


def _skip(scope: Scope, x: Array, v: Array) -> Array:
    """What is read, and D of each head times the value of the token."""
    skip = scope.parameter("D")
    return x if skip is None else x + v * skip[:, None, None]


def _undo_skip(scope: Scope, dy: Array, y: Array, x: Array, v: Array) -> list[Array]:
    skip = scope.parameter("D")
    assert skip is not None
    scope.add(scope.node.layer, {"D": (dy * v).sum(axis=(0, 2, 3))})
    return [dy, dy * skip[:, None, None]]


def _norm_groups(scope: Scope, x: Array) -> Array:
    """RMS norm of parts of what is read side by side: (B, T, W) -> (B, T, W)."""
    parts = x.reshape(*x.shape[:-1], scope.option("groups"), -1)
    y = standardize(scope, parts, "rms", scope.option("eps")).reshape(x.shape)
    gamma = scope.parameter("gamma")
    return y if gamma is None else y * scope.xp.resize(gamma, x.shape[-1:])


def _undo_norm_groups(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    parts, gamma = x.reshape(*x.shape[:-1], scope.option("groups"), -1), scope.parameter("gamma")
    normalized, pullback = rms_norm_vjp(parts, eps=scope.option("eps"))
    if gamma is not None:
        along = (dy * normalized.reshape(x.shape)).sum(axis=(0, 1)).reshape(-1, len(gamma)).sum(axis=0)
        scope.add(scope.node.layer, {"gamma": along})
        dy = dy * np.resize(gamma, x.shape[-1:])
    return [pullback(dy.reshape(parts.shape)).x.reshape(x.shape)]


def _count_norm_groups(sizes: Sizes) -> Costs:
    names = sizes.found("gamma")
    return [sizes.elementwise(3 + len(names), *names)]


KINDS = {
    "final state": Kind(value=_last_state),
    "norm of groups": Kind(value=_norm_groups, pullback=_undo_norm_groups, cost=_count_norm_groups),
    "recall": Kind(value=_recall, pullback=_undo_recall, cost=_count_recall),
    "features": Kind(
        value=_features,
        pullback=_undo_features,
        cost=lambda sizes: [sizes.elementwise(FEATURES[sizes.option("feature")].flops)],
    ),
    "given gate": Kind(value=_given, pullback=_undo_given),
    "gate by heads": Kind(value=_by_heads, pullback=lambda scope, dy, y, x: [merge_heads(dy)]),
    "reshape": Kind(value=_reshape, pullback=lambda scope, dy, y, x: [dy.reshape(x.shape)]),
    "fixed decay": Kind(value=_fixed, pullback=lambda scope, dy, y: []),
    "step": Kind(value=_step, pullback=_undo_step, cost=_count_step),
    "decay of step": Kind(value=_decay, pullback=_undo_decay, cost=_count_decay),
    "divide": Kind(value=_divide, pullback=_undo_divide, cost=per_number(1)),
    "skip": Kind(value=_skip, pullback=_undo_skip, cost=lambda sizes: [sizes.elementwise(2, "D")]),
}


class ReadSite(NamedTuple):
    """A site of x (B, T, D), of heads or of a gate that is given, and its shape."""

    site: str
    shape: tuple[int, ...]


def build_recall(
    options: RecallOptions,
    sources: Mapping[str, ReadSite],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    layer: str = "",
    state: Array | None = None,
    real: Array | None = None,
    step: Options = NO_OPTIONS,
) -> Built:
    """The nodes of linear attention; the last one is its result.

    sources  query, key, value, and of gates that are given beta and decay; weights of others read x, by default the
             query
    shapes   of the parameters of the layer; step: options of the step Δ
    """
    rule, sites, heads = RULES[options.rule], dict[str, Node](), options.heads
    for name, count in (("query", options.key_heads or heads), ("key", options.key_heads or heads), ("value", heads)):
        for node in _project(options, name, sources[name], shapes, count, layer):
            sites[name[0]] = node
            yield node
    v, gates = sites["v"].shape, dict[str, str]()
    for node in _build_gates(options, sources, shapes, v[:-1], layer, step):
        gates[node.site.rpartition(".")[2]] = node.site
        yield node
    if rule.strength == "step":
        gates["beta"] = gates["step"]
    used = [name for name in ("beta", "decay") if name in gates]
    at = f"{layer}." if layer else ""
    own = {"corrects": rule.corrects, "gates": used, "divides": options.divide, "chunk": options.chunk, "part": "state"}
    inputs = (*(sites[letter].site for letter in "qkv"), *(gates[name] for name in used))
    last = Node(
        f"{at}read", "recall", inputs, (*v[:-1], v[-1] + options.divide), layer, own | {"state": state, "real": real}
    )
    yield last
    if options.divide:
        yield (last := Node(f"{at}divided", "divide", (last.site,), v, layer))
    if "D" in shapes:
        yield (last := Node(f"{at}skipped", "skip", (last.site, sites["v"].site), v, layer))
    if len(sources["query"].shape) == 3:
        yield (last := Node(f"{at}joined", "join", (last.site,), (v[0], v[2], v[1] * v[3]), layer))
    if "wo" in shapes:
        yield Node(f"{at}output", "linear", (last.site,), (v[0], v[2], shapes["wo"][1]), layer, {"names": ("wo", "bo")})


def _project(
    options: RecallOptions, name: str, source: ReadSite, shapes: Mapping[str, tuple[int, ...]], count: int, layer: str
) -> Iterator[Node]:
    """Yield the nodes from what is given to queries, keys or values of heads."""
    letter, (site, shape) = name[0], source
    own, at = (f"w{letter}", f"b{letter}"), f"{layer}." if layer else ""
    if own[0] in shapes:
        shape = (*shape[:-1], shapes[own[0]][1])
        yield Node(f"{at}{letter}_projected", "linear", (site,), shape, layer, {"names": own})
        site = f"{at}{letter}_projected"
    is_split = len(shape) == 4
    split = shape if is_split else (shape[0], count, shape[1], shape[2] // count)
    steps: list[tuple[str, Options]] = [("heads", {"heads": count} | ({"splits": "before"} if is_split else {}))]
    if letter != "v" and options.feature != "identity":
        steps.append(("features", {"feature": options.feature}))
    if letter == "q" and options.scale != 1:
        steps.append(("scale", {"factor": options.scale}))
    for number, (kind, choice) in enumerate(steps, start=1):
        own_site = f"{at}{letter}" if number == len(steps) else f"{at}{letter}_{kind}"
        yield Node(own_site, kind, (site,), split, layer, choice)
        site = own_site


def _build_gates(
    options: RecallOptions,
    sources: Mapping[str, ReadSite],
    shapes: Mapping[str, tuple[int, ...]],
    rows: tuple[int, ...],
    layer: str,
    step: Options,
) -> Iterator[Node]:
    """Yield beta, step and decay of a rule, each as it is given, or by weights of x.

    rows  (B, H, T)
    """
    rule, x, at = RULES[options.rule], sources.get("x", sources["query"]), f"{layer}." if layer else ""
    takes_step = rule.decay in ("given", "step") and "decay" not in sources
    for name in ("beta", "decay"):
        if name in sources:
            site, shape = sources[name]
            has_features = len(shape) == len(rows) + 1
            whole = (*rows, shape[-1] if has_features else 1)
            own = "step" if name == "beta" and rule.strength == "step" else name
            yield Node(f"{at}{own}", "given gate", (site,), whole, layer, {"has_features": has_features})
    if "wbeta" in shapes and "beta" not in sources and rule.strength == "sigmoid":
        flat = (rows[0], rows[2], shapes["wbeta"][1])
        yield Node(f"{at}beta_projected", "linear", (x.site,), flat, layer, {"names": ("wbeta", "bbeta")})
        yield Node(f"{at}beta_sigmoid", "activate", (f"{at}beta_projected",), flat, layer, {"activation": "sigmoid"})
        yield Node(f"{at}beta", "gate by heads", (f"{at}beta_sigmoid",), (*rows, 1), layer)
    is_given_step = rule.strength == "step" and "beta" in sources
    if "wdt" in shapes and not is_given_step and (takes_step or rule.strength == "step"):
        flat = (rows[0], rows[2], shapes["wdt"][1])
        yield Node(f"{at}dt_projected", "linear", (x.site,), flat, layer, {"names": ("wdt", "bdt")})
        width = flat[-1] // rows[1]
        yield Node(f"{at}step", "step", (f"{at}dt_projected",), (*rows, width), layer, step)
    if takes_step:
        width = shapes["wdt"][1] // rows[1] if "wdt" in shapes and not is_given_step else 1
        yield Node(f"{at}decay", "decay of step", (f"{at}step",), (*rows, width), layer)
    elif rule.decay == "fixed":
        yield Node(f"{at}decay", "fixed decay", (), (*rows, 1), layer)


def build_recall_layer(place: Place) -> Built:
    """The nodes of a layer of a model that keeps a state."""
    config, layer, x = place.core.config, place.step.layer, place.x
    recall = config.recall
    assert recall is not None
    begin, sources = {"state": None, "real": place.real()}, {"x": ReadSite(x, place.states(config.width))}
    windows, factors = list[Node](), dict(recall.factors)
    for name in ("query", "key", "value"):
        letter = name[0]
        site, shape = f"{layer}.{letter}_projected", place.states(recall.widths[letter])
        projected = Node(site, "linear", (x,), shape, layer, {"names": (f"w{letter}", f"b{letter}")})
        yield from (nodes := _multiply(projected, factors.get(letter, 1.0)))
        site = nodes[-1].site
        if recall.taps > 1:
            part, names = f"{letter}_window", {"names": (f"conv_{letter}", f"conv_bias_{letter}")}
            own, window = begin | {"part": part}, (place.batch, recall.taps - 1, shape[-1])
            windows.append(Node(f"{layer}.{LAST}{part}", "last window", (site,), window, layer, own))
            convolved, activated = f"{layer}.{letter}_convolved", f"{layer}.{letter}_activated"
            yield Node(convolved, "causal convolution", (site,), shape, layer, names | own)
            yield Node(activated, "activate", (convolved,), shape, options={"activation": recall.activation})
            site = activated
        sources[name] = ReadSite(site, shape)
    own_names = [name for name in ("wbeta", "wdt", *["D"] * recall.has_skip) if name != "wbeta" or _has_beta(recall)]
    shapes = {name: config.parameter_shape(layer, name) for name in own_names}
    options, states = recall.options(place.tokens), list[Node]()
    step = {"limits": recall.step_limits, "factor": factors.get("dt", 1.0)}
    for node in build_recall(options, sources, shapes, layer=layer, real=begin["real"], step=step):
        yield node
        if node.kind == "recall":
            state = (place.batch, *recall.states["state"].values())
            states.append(Node(f"{layer}.{LAST}state", "final state", node.inputs, state, layer, node.options))
    yield from [*windows, *states]
    yield from _build_read(place, recall, node.site)


def _multiply(projected: Node, factor: float) -> list[Node]:
    """A projection, and its factor unless that is 1."""
    site, options = f"{projected.site}_multiplied", {"factor": factor}
    return [projected, *[Node(site, "scale", (projected.site,), projected.shape, options=options)] * (factor != 1)]


def _has_beta(recall: RecallConfig) -> bool:
    return RULES[recall.rule].strength == "sigmoid"


def _build_read(place: Place, recall: RecallConfig, site: str) -> Built:
    """The norm and the gate of what is read, in their order, and the result."""
    config, layer, wide = place.core.config, place.step.layer, place.states(recall.widths["v"])
    steps = ["normed"] * bool(recall.norm_groups) + ["gated"] * bool(recall.gate)
    nodes = [Node(f"{layer}.gate", "linear", (place.x,), wide, layer, {"names": ("wg", "bg")})] * bool(recall.gate)
    nodes = _multiply(nodes[0], dict(recall.factors).get("g", 1.0)) if nodes else nodes
    yield from nodes
    for name in reversed(steps) if recall.gates_first else steps:
        if name == "normed":
            norm = {"groups": recall.norm_groups, "eps": config.eps, "names": ("gamma", "")}
            yield Node(f"{layer}.normed", "norm of groups", (site,), wide, layer, norm)
        else:
            gate = {"activation": recall.gate}
            yield Node(f"{layer}.gated", "gated", (site, nodes[-1].site), wide, options=gate)
        site = f"{layer}.{name}"
    yield Node(f"{layer}.output", "linear", (site,), place.states(config.width), layer, {"names": ("wo", "bo")})
