"""The nodes of feed-forward networks and of mixtures of experts."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward
from attnkit.model.formulas.experts import ExpertConfig, Routing, route_backward, tokens_by_expert
from attnkit.model.formulas.feedforward import feed_forward_vjp
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.graph.costs import Cost, Costs, Sizes
from attnkit.model.graph.nodes import Built, Kind, Node, Place, Scope
from attnkit.model.layers.networks import expert_layer, layer_experts


def _choose(scope: Scope, logits: Array) -> Array:
    """Which experts compute each token: (B, T, E) -> (B, T, k)."""
    rows = logits.reshape(-1, logits.shape[-1])
    chosen = scope.functions.choose(rows, scope.option("mixture"), scope.parameter("correction"))
    return chosen.reshape(*logits.shape[:-1], -1)


def _count_choice(sizes: Sizes) -> Costs:
    own, read = sizes.own("correction"), sizes.read_parameters("correction")
    return [Cost(elementwise=sizes.numbers * (read > 0), read=read, parameters=own)]


def _gates(scope: Scope, logits: Array, chosen: Array) -> Array:
    """The gates of the chosen experts: (B, T, E), (B, T, k) -> (B, T, k)."""
    mixture, functions = scope.option("mixture"), scope.functions
    scores = functions.expert_scores(logits, mixture.score)
    correction = scope.parameter("correction") if scope.option("corrects_gates") else None
    gates = scope.xp.take_along_axis(scores if correction is None else scores + correction, chosen, axis=-1)
    gates = functions.softmax(gates) if mixture.score == "chosen" else gates
    gates = gates / (gates.sum(axis=-1, keepdims=True) + mixture.eps) if mixture.renormalizes else gates
    scaled: Array = gates * np.asarray(mixture.scale, gates.dtype)
    return scaled


def _undo_gates(scope: Scope, dy: Array, y: Array, logits: Array, chosen: Array) -> list[Array | None]:
    return [route_backward(dy, logits, Routing(chosen, y), scope.option("mixture")), None]


def _count_gates(sizes: Sizes) -> Costs:
    return [Cost(elementwise=3 * sizes.numbers)]  # scores of all experts: exponential, sum, division


def _experts(scope: Scope, x: Array, gates: Array, chosen: Array) -> Array:
    """The sum of the experts of each token by their gates: (B, T, D) -> (B, T, D)."""
    layer, instead = scope.node.layer, scope.option("instead", {})
    experts = layer_experts(scope.core, layer)

    def compute(number: int, rows: Array, gate: Array) -> Array:
        params = experts.expert(instead.get(number, number))
        if scope.option("gates") == "of the input":
            return _feed_forward(scope, rows * gate, params)
        return _feed_forward(scope, rows, params) * (1 if scope.option("gates") == "none" else gate)

    return scope.functions.sum_experts(compute, x, gates, chosen, scope.option("mixture").count)


def _undo_experts(scope: Scope, dy: Array, y: Array, x: Array, gates: Array, chosen: Array) -> list[Array | None]:
    """Gradients of tokens and gates; those of the chosen experts are added."""
    layer = scope.node.layer
    experts, dx, dgates = layer_experts(scope.core, layer), np.zeros_like(x), np.zeros_like(gates)
    options = {"activation": scope.option("activation"), "limit": scope.option("limit")}
    for number, tokens, ranks in tokens_by_expert(chosen):
        params = {name: scope.convert(array) for name, array in experts.expert(number).items()}
        part, undo = feed_forward_vjp(x[tokens], params, **options)
        back, gradients = undo(dy[tokens] * gates[(*tokens, ranks)][:, None])
        dgates[(*tokens, ranks)] = (dy[tokens] * part).sum(axis=-1)
        dx[tokens] += back
        scope.add(expert_layer(layer, number), gradients)
    return [dx, dgates, None]


def _count_experts(sizes: Sizes) -> Costs:
    """Products of the chosen experts, and the sum of their results by the gates.

    Tokens may choose the same experts; the parameters read are those of as many experts as a pass can choose.
    """
    block, mixture, passes = sizes.node.layer.removesuffix(".ffn"), sizes.option("mixture"), sizes.passes
    tokens = math.prod(sizes.node.shape[:-1])
    used = min(mixture.count, mixture.chosen * tokens // passes.count)
    for name, row, after in (("w1", "hidden", 1), ("w3", "linear", 1), ("w2", "output", 2)):
        names, layers = (name, f"b{name[1:]}"), [f"{block}.expert.{number}" for number in range(mixture.count)]
        one = sizes.model.shapes[layers[0]]
        if name in one:
            rows = sizes.node._replace(layer=layers[0], shape=(tokens * mixture.chosen, *one[name][1:]))
            cost = sizes._replace(node=rows, held=0).product(names, after)
            more = (used - 1) * passes.count * sizes.model.size(layers[0], *names)
            own = sum(sizes.model.own_size(layer, *names) for layer in layers)
            shape = (passes.shown_tokens * mixture.chosen, *one[name][1:])
            yield cost._replace(name=f"{block}.expert.{row}", shape=shape, read=cost.read + more, parameters=own)


def _feed_forward(scope: Scope, x: Array, params: Mapping[str, Array]) -> Array:
    """The network of an expert, which is gated if it has w3: (N, D) -> (N, D)."""
    missing, is_gated, xp = scope.option("missing", ()), "w3" in params, scope.xp
    activate = scope.functions.activations[scope.option("activation")]
    params = {name: scope.convert(xp.asarray(array)) for name, array in params.items() if name not in missing}
    product = scope.functions.product
    if not is_gated:
        return _project(product, activate(product(x, params["w1"]) + params.get("b1", 0.0)), params)
    gate, up = (
        product(x, params[f"w{digit}"]) + params.get(f"b{digit}", 0.0)
        for digit in ("31" if scope.option("exchanged") else "13")
    )
    gate, up = CUTS[scope.option("cut", "")](gate, up)
    if limit := scope.option("limit"):
        gate, up = xp.minimum(gate, limit), xp.clip(up, -limit, limit)
    return _project(product, activate(gate) * (up + scope.option("offset", 0.0)), params)


def _project(product: Callable[[Array, Array], Array], inner: Array, params: Mapping[str, Array]) -> Array:
    result: Array = product(inner, params["w2"]) + params.get("b2", 0.0)
    return result


def _add_shared(scope: Scope, experts: Array, shared: Array, gate: Array | None = None) -> Array:
    """The sum of the experts, and what all tokens share by its gate."""
    shared = shared * scope.option("factor", 1.0)
    return experts + (
        shared if gate is None else shared * scope.functions.activations[scope.option("gate", "sigmoid")](gate)
    )


def _undo_add_shared(
    scope: Scope, dy: Array, y: Array, experts: Array, shared: Array, gate: Array | None = None
) -> list[Array]:
    if gate is None:
        return [dy, dy]
    share = sum_to_shape(dy * shared, gate.shape)
    return [dy, dy * ACTIVATIONS["sigmoid"](gate), activation_backward("sigmoid", share, gate)]


def _count_shared(sizes: Sizes) -> Costs:
    """The gate, and the product with it; the sum counts to the experts."""
    if len(sizes.node.inputs) > 2:
        *rows, width = sizes.node.shape
        name = f"{sizes.node.site.removesuffix('.ffn.output')}.shared.gate"
        yield Cost(name, elementwise=math.prod(rows) * (1 + width))


def _alternate(gate: Array, up: Array) -> tuple[Array, Array]:
    """The alternating columns of gate and up, of a projection that has halves."""
    fused = np.concatenate([gate, up], axis=-1)
    return fused[..., ::2], fused[..., 1::2]


def _halve(gate: Array, up: Array) -> tuple[Array, Array]:
    """The halves taken for gate and up, of a projection with alternating columns."""
    fused = np.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], -1)
    return fused[..., : gate.shape[-1]], fused[..., gate.shape[-1] :]


# how gate and up are cut out of their fused projection, other than it is stored
CUTS: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "": lambda gate, up: (gate, up),
    "alternate": _alternate,
    "halves": _halve,
}


KINDS = {
    "choose": Kind(value=_choose, cost=_count_choice),
    "gates": Kind(value=_gates, pullback=_undo_gates, cost=_count_gates),
    "experts": Kind(value=_experts, pullback=_undo_experts, cost=_count_experts),
    "add shared": Kind(value=_add_shared, pullback=_undo_add_shared, cost=_count_shared),
}


def build_ffn(place: Place) -> Built:
    layer, config = place.step.layer, place.core.config
    if mixture := config.mixture(layer):
        yield from build_mixture(place, mixture)
    else:
        yield from build_network(place, layer, config.parameter_shape(layer, "w1")[1])


def build_network(place: Place, layer: str, hidden_width: int) -> Built:
    """The nodes of a feed-forward network with the parameters of a layer."""
    is_gated, shape = "w3" in place.core.params[layer], place.states(hidden_width)
    hidden, activated, linear, gated = (f"{layer}.{name}" for name in ("hidden", "activated", "linear", "gated"))
    yield Node(hidden, "linear", (place.x,), shape, layer, {"names": ("w1", "b1")})
    activation = {"activation": place.core.config.activation_of(layer), "is_gated": is_gated}
    if (factor := place.core.config.gate_scale) != 1:
        activation["factor"] = factor
    yield Node(activated, "activate", (hidden,), shape, options=activation)
    if is_gated:
        yield Node(linear, "linear", (place.x,), shape, layer, {"names": ("w3", "b3")})
        yield Node(gated, "multiply", (activated, linear), shape)
    inner = gated if is_gated else activated
    yield Node(f"{layer}.output", "linear", (inner,), place.states(place.width()), layer, {"names": ("w2", "b2")})


def build_mixture(place: Place, mixture: ExpertConfig) -> Built:
    """The nodes of a mixture of experts."""
    layer, config, shape = place.step.layer, place.core.config, place.states(place.width())
    router, shared = f"{layer}.router", f"{layer.removesuffix('.ffn')}.shared"
    logits = {"names": ("router", "router_bias")}
    yield Node(router, "linear", (place.x,), place.states(mixture.count), layer, logits)
    choice, ranks = f"{layer}.chosen", place.states(mixture.chosen)
    yield Node(choice, "choose", (router,), ranks, layer, {"mixture": mixture})
    yield Node(f"{layer}.gates", "gates", (router, choice), ranks, layer, {"mixture": mixture})
    reads, output = (place.x, f"{layer}.gates", f"{layer}.chosen"), f"{layer}.output"
    options = {
        "mixture": mixture,
        "activation": config.activation_of(layer),
        "limit": config.ffn_limit,
        "offset": float(config.ffn_limit > 0),
    }
    yield Node(f"{layer}.experts" if mixture.shared else output, "experts", reads, shape, layer, options)
    if mixture.shared:
        yield from build_network(place, shared, mixture.shared)
        gate = f"{layer}.shared_gate"
        has_gate = "shared_gate" in place.core.params[layer]
        if has_gate:
            yield Node(gate, "linear", (place.x,), place.states(1), layer, {"names": ("shared_gate", "")})
        both = (f"{layer}.experts", f"{shared}.output")
        yield Node(output, "add shared", (*both, *[gate] * has_gate), shape, "", {"mixture": mixture})
