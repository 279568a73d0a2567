"""Mixtures of experts, with the adjoint: a router chooses networks by token."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.formulas.activations import sigmoid
from attnkit.model.formulas.feedforward import feed_forward, feed_forward_vjp
from attnkit.model.formulas.linear import linear, projection_backward
from attnkit.model.formulas.softmax import softmax, softmax_backward
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.processor.products import PLAIN, Products

Params = Mapping[str, Array]
SCORES: Mapping[str, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "chosen": lambda logits: logits,
}


@dataclass(frozen=True)
class ExpertConfig:
    """The experts of the layers of a stack, and how a router chooses among them.

    count          number of experts, of which `chosen` compute each token
    hidden         hidden width of an expert
    shared         hidden width of the network that computes every token besides; 0: there is none
    dense          numbers of the layers that have a plain feed-forward network instead
    score          what gates are of the router's logits: softmax (over all experts), sigmoid, or chosen (softmax over
                   the chosen experts alone)
    renormalizes   whether the gates of a token are divided by their sum, and eps: what is added to that sum
    scale          factor on the gates
    groups         number of groups of experts, of which the best `chosen_groups` may be chosen from; the score of a
                   group is the sum of its `group_best` best scores
    """

    count: int
    chosen: int
    hidden: int
    shared: int = 0
    dense: tuple[int, ...] = ()
    score: str = "softmax"
    renormalizes: bool = False
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    eps: float = 1e-20


class Experts(NamedTuple):
    """The parameters of a mixture of experts.

    router  router (D, E), router_bias (E,); correction (E,) added to scores for the choice alone; shared_gate (D, 1)
    expert  number -> the parameters of that expert, as of `feed_forward`
    shared  those of the network that computes every token; None: there is none
    """

    router: Params
    expert: Callable[[int], Params]
    shared: Params | None = None


class Routing(NamedTuple):
    """Choose experts for each token: numbers (T, k), best first, and gates (T, k).

    The numbers are int64.
    """

    chosen: Array
    gates: Array


@quiet
def route(logits: Array, config: ExpertConfig, correction: Array | None = None) -> Routing:
    """Choose the experts of every token by the logits of a router.

    logits (T, E), correction (E,) -> (T, k), (T, k)

    Source: Shazeer et al. 2017; DeepSeek-V2 and V3 for groups, sigmoids and the correction. Of equal scores the first
    expert's counts.

    >>> config = ExpertConfig(count=3, chosen=2, hidden=1, renormalizes=True)
    >>> routing = route(np.log([[2.0, 1.0, 6.0]]), config)
    >>> routing.chosen.tolist(), routing.gates.round(2).tolist()
    ([[2, 0]], [[0.75, 0.25]])
    """
    scores = SCORES[config.score](logits)
    choice = scores if correction is None else scores + cast(correction, scores.dtype)
    if config.groups > 1:
        choice = _exclude_groups(choice, config)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, : config.chosen]
    gates = np.take_along_axis(scores, chosen, axis=-1)
    gates = softmax(gates) if config.score == "chosen" else gates
    if config.renormalizes:
        gates = gates / (gates.sum(axis=-1, keepdims=True) + config.eps)
    return Routing(chosen, gates * np.asarray(config.scale, gates.dtype))


def _exclude_groups(choice: Array, config: ExpertConfig) -> Array:
    """Exclude the experts of all but the best groups: (T, E) -> (T, E)."""
    groups = choice.reshape(len(choice), config.groups, -1)
    best = -np.sort(-groups, axis=-1)[..., : config.group_best].sum(axis=-1)
    kept = np.argsort(-best, axis=-1, kind="stable")[:, : config.chosen_groups]
    is_kept = np.zeros(best.shape, bool)
    np.put_along_axis(is_kept, kept, True, axis=-1)
    return np.where(is_kept[..., None], groups, -np.inf).reshape(choice.shape)


def route_backward(dgates: Array, logits: Array, routing: Routing, config: ExpertConfig) -> Array:
    """Gradient of the router's logits; the choice is a constant.

    dgates (T, k), logits (T, E) -> (T, E)
    """
    chosen, scale = routing.chosen, config.scale
    scores = SCORES[config.score](logits)
    raw = np.take_along_axis(scores, chosen, axis=-1)
    raw = softmax(raw) if config.score == "chosen" else raw
    draw = dgates * scale
    if config.renormalizes:
        total = raw.sum(axis=-1, keepdims=True) + config.eps
        draw = (draw - (draw * raw / total).sum(axis=-1, keepdims=True)) / total
    if config.score == "chosen":
        draw = softmax_backward(draw, raw)
    dscores = np.zeros_like(logits)
    np.put_along_axis(dscores, chosen, draw, axis=-1)
    if config.score == "softmax":
        return softmax_backward(dscores, scores)
    return dscores * scores * (1 - scores) if config.score == "sigmoid" else dscores


@quiet
def mix_experts(
    x: Array,
    experts: Experts,
    config: ExpertConfig,
    *,
    activation: str = "silu",
    limit: float = 0.0,
    keep: Collection[str] | None = None,
    hook: Hook = no_hook,
    products: Products = PLAIN,
) -> dict[str, Array]:
    """The sum of the chosen experts of a token by their gates, and the shared one.

    x (..., D) -> {"output": (..., D), "router": (..., E), "chosen": (..., k), "gates": (..., k)}

    `activation` and `limit` are those of `feed_forward`; `keep` are the intermediates to return beside the output
    [all]; `hook` may read and replace the router's logits, the choice, the gates and the output. Errors are those of
    `feed_forward`.

    >>> one = np.array([[1.0]])
    >>> experts = Experts({"router": np.array([[0.0, 1.0]])}, lambda number: {"w1": one, "w2": one * 10 ** number})
    >>> config = ExpertConfig(count=2, chosen=1, hidden=1, renormalizes=True)
    >>> mix_experts(np.array([[2.0], [-3.0]]), experts, config, activation="identity")["output"].tolist()
    [[20.0], [-3.0]]
    """
    rows = x.reshape(-1, x.shape[-1])
    logits, routing = _route_rows(rows, x.shape[:-1], experts.router, config, hook, products)
    y = np.zeros(rows.shape, working(rows))
    options: Any = {"activation": activation, "limit": limit, "products": products, "keep": ()}
    for number, tokens, ranks in tokens_by_expert(routing.chosen):
        part = feed_forward(rows[tokens], experts.expert(number), **options)["output"]
        y[tokens] += part * routing.gates[(*tokens, ranks)][:, None]
    if experts.shared is not None:
        part, gate = feed_forward(rows, experts.shared, **options)["output"], experts.router.get("shared_gate")
        y += part if gate is None else part * sigmoid(linear(rows, gate))
    output = apply_hook(hook, "output", y.reshape(x.shape))
    lead = x.shape[:-1]
    steps = {"router": logits, "chosen": routing.chosen, "gates": routing.gates}
    kept = {name: one.reshape(*lead, -1) for name, one in steps.items() if keep is None or name in keep}
    return kept | {"output": output.astype(output_dtype(x), copy=False)}


def _route_rows(
    rows: Array, lead: tuple[int, ...], router: Params, config: ExpertConfig, hook: Hook, products: Products
) -> tuple[Array, Routing]:
    """The router's logits of rows (T, D), and the choice; hooks see tokens (..., E)."""

    def see(name: str, array: Array) -> Array:
        return apply_hook(hook, name, array.reshape(*lead, -1)).reshape(array.shape)

    names = ("x", "router", "router_bias")
    logits = see("router", linear(rows, router["router"], router.get("router_bias"), names=names, products=products))
    routing = route(logits, config, router.get("correction"))
    return logits, Routing(see("chosen", routing.chosen), see("gates", routing.gates))


def tokens_by_expert(chosen: Array) -> Iterator[tuple[int, tuple[Array, ...], Array]]:
    """Yield the number of each chosen expert, its tokens, and their ranks of it.

    chosen (..., k)

    >>> [(number, tokens[0].tolist(), ranks.tolist()) for number, tokens, ranks in tokens_by_expert(np.array([[5, 2]]))]
    [(2, [0], [1]), (5, [0], [0])]
    """
    for number in np.unique(chosen).tolist():
        *tokens, ranks = np.nonzero(chosen == number)
        yield number, tuple(tokens), ranks


Gradients = dict[str, Array]


class ExpertGradients(NamedTuple):
    """Gradients of x, router, chosen experts and shared network."""

    x: Array
    router: Gradients
    experts: dict[int, Gradients]
    shared: Gradients


def mix_experts_vjp(
    x: Array,
    experts: Experts,
    config: ExpertConfig,
    *,
    activation: str = "silu",
    limit: float = 0.0,
    hook: Hook = no_hook,
) -> tuple[Array, Callable[..., ExpertGradients]]:
    """A mixture of experts, and the function from its gradient to the others.

    x (..., D) -> (..., D), (..., D) -> ExpertGradients

    The choice of experts is a constant. `hook` reads the intermediates of `mix_experts`; the hook that is passed to the
    second function receives the gradients of router, gates and output, and may replace them.
    """
    rows, lead = cast(x.reshape(-1, x.shape[-1]), working(x)), x.shape[:-1]
    logits, routing = _route_rows(rows, lead, experts.router, config, hook, PLAIN)
    y, parts = np.zeros(rows.shape, rows.dtype), []
    for number, tokens, ranks in tokens_by_expert(routing.chosen):
        part, undo = feed_forward_vjp(rows[tokens], experts.expert(number), activation=activation, limit=limit)
        y[tokens] += part * routing.gates[(*tokens, ranks)][:, None]
        parts.append((number, tokens, ranks, part, undo))
    shared, gate = None, None
    if experts.shared is not None:
        shared = feed_forward_vjp(rows, experts.shared, activation=activation, limit=limit)
        if "shared_gate" in experts.router:
            gate = sigmoid(linear(rows, experts.router["shared_gate"]))
        y += shared[0] if gate is None else shared[0] * gate
    output = apply_hook(hook, "output", y.reshape(x.shape))

    @quiet
    def pullback(grad_output: Array, hook: Hook = no_hook) -> ExpertGradients:
        dy = apply_hook(hook, "output", grad_output).reshape(rows.shape)
        dx, dgates, of_experts = np.zeros_like(rows), np.zeros_like(routing.gates), dict[int, Gradients]()
        for number, tokens, ranks, part, undo in parts:
            dgates[(*tokens, ranks)] = (dy[tokens] * part).sum(axis=-1)
            back, of_experts[number] = undo(dy[tokens] * routing.gates[(*tokens, ranks)][:, None])
            dx[tokens] += back
        of_router, of_shared = Gradients(), Gradients()
        if shared is not None:
            value, undo = shared
            back, of_shared = undo(dy if gate is None else dy * gate)
            dx += back
            if gate is not None:
                dgate = (dy * value).sum(axis=-1, keepdims=True) * gate * (1 - gate)
                of_router["shared_gate"] = rows.T @ dgate
                dx += dgate @ experts.router["shared_gate"].T
        dgates = apply_hook(hook, "gates", dgates.reshape(*lead, -1)).reshape(dgates.shape)
        dlogits = route_backward(dgates, logits, routing, config)
        dlogits = apply_hook(hook, "router", dlogits.reshape(*lead, -1)).reshape(dlogits.shape)
        params = {"w": experts.router["router"]}
        params |= {"b": experts.router["router_bias"]} if "router_bias" in experts.router else {}
        back, of_logits = projection_backward(dlogits, rows, params, "")
        of_router |= {{"w": "router", "b": "router_bias"}[name]: one for name, one in of_logits.items()}
        return ExpertGradients((dx + back).reshape(x.shape), of_router, of_experts, of_shared)

    return output.astype(output_dtype(x), copy=False), pullback
