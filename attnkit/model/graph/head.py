"""The last nodes of a model: the vector of a whole text or image, and logits."""

import numpy as np

from attnkit.model.config import Config
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.pooling import HEAD_POOLINGS, find_marked_tokens, first_token_backward
from attnkit.model.graph.attention import cap, cap_backward
from attnkit.model.graph.costs import Cost, Costs, Sizes
from attnkit.model.graph.linear import norm_node
from attnkit.model.graph.nodes import Built, Inputs, Kind, Node, Scope, stack_sizes


def _pool(scope: Scope, x: Array) -> Array:
    """The vector that a head of whole texts reads: (..., T, D) -> (..., 1, P)."""
    return scope.functions.pool(scope.option("kind"), x, *_places(scope, x))[..., None, :]


def _places(scope: Scope, x: Array) -> tuple[Array, int]:
    """The real tokens of x (..., T, D), and the number of those before patches."""
    real, cut = scope.option("real"), scope.config.patches
    return np.ones(x.shape[:-1], bool) if real is None else real, cut.before if cut else 0


def _undo_pool(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [HEAD_POOLINGS[scope.option("kind")].backward(dy[:, 0], x, *_places(scope, x))]


def _pooler(scope: Scope, x: Array) -> Array:
    pooled: Array = scope.xp.tanh(scope.linear(x[..., 0, :], "w", "b"))
    return pooled


def _undo_pooler(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [first_token_backward(scope.linear_backward(dy * (1 - y * y), x[:, 0], "w", "b"), x.shape)]


def _logits(scope: Scope, x: Array) -> Array:
    """Logits of states (..., T, D), or of one vector of each text."""
    y = cap(scope, scope.linear(_scaled_states(scope, x), *scope.option("names")))
    return y[..., 0, :] if scope.option("is_pooled") else y


def _scaled_states(scope: Scope, x: Array) -> Array:
    scaled: Array = x * np.asarray(scope.option("factor", 1.0), x.dtype)
    return scaled


def _undo_logits(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    [dy] = cap_backward(scope, dy, y, x)
    dy = dy[:, None] if scope.option("is_pooled") else dy
    return [_scaled_states(scope, scope.linear_backward(dy, _scaled_states(scope, x), *scope.option("names")))]


def _count_logits(sizes: Sizes) -> Costs:
    after = (sizes.option("factor", 1) != 1) + 3 * bool(sizes.option("softcap"))
    return [sizes.product(sizes.option("names"), after)]


def _probe(scope: Scope, x: Array) -> Array:
    """The learned query of each text or image: (B, T, D) -> (B, 1, D)."""
    query: Array = scope.xp.broadcast_to(scope.convert(scope.stored("probe")), (len(x), 1, x.shape[-1]))
    return query


def _undo_probe(scope: Scope, dy: Array, y: Array, x: Array) -> list[None]:
    scope.add(scope.node.layer, {"probe": dy.sum(axis=(0, 1))})
    return [None]


def _count_probe(sizes: Sizes) -> Costs:
    return [Cost(parameters=sizes.own("probe"))]


def _state(scope: Scope, x: Array) -> Array:
    """The state of one token of each text: (B, T, D) -> (B, D)."""
    state: Array = x[np.arange(len(x)), scope.option("at")]
    return state


def _undo_state(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    dx = np.zeros_like(x)
    dx[np.arange(len(x)), scope.option("at")] = dy
    return [dx]


KINDS = {
    "pool": Kind(value=_pool, pullback=_undo_pool),
    "pooler": Kind(value=_pooler, pullback=_undo_pooler, cost=lambda sizes: [sizes.product(("w", "b"), after=1)]),
    "one row": Kind(value=lambda scope, x: x[..., None, :], pullback=lambda scope, dy, y, x: [dy[:, 0]]),
    "logits": Kind(value=_logits, pullback=_undo_logits, cost=_count_logits),
    "probe": Kind(value=_probe, pullback=_undo_probe, cost=_count_probe),
    "state": Kind(value=_state, pullback=_undo_state),
}


def vector_places(config: Config, inputs: Inputs, which: str, batch: int) -> Array:
    """The token of each text whose state is its vector: (B,).

    which  a value of `vector_pooling`
    """
    if which not in ("end", "largest") or inputs.ids is None:
        return np.full(batch, -1 if which == "last" else 0)
    return find_marked_tokens(inputs.ids, inputs.mask, config.special.eos[0] if which == "end" else None)


def build_head(core: Model, inputs: Inputs, x: str) -> Built:
    config = core.config
    batch, tokens = stack_sizes(core, inputs, config.stacks[-1])
    if config.pooler:
        yield Node("pooler", "pooler", (x,), (batch, config.width), "pooler")
    if not config.head:
        return
    rows: tuple[int, ...] = (batch, tokens)
    if config.is_head_pooled and not config.pools_late:
        rows = (batch, 1)
        if config.pooling == "pooler":
            yield Node("head.pooled", "one row", ("pooler",), (*rows, config.pooled_width))
        else:
            yield _pool_node(core, inputs, x, (*rows, config.pooled_width))
        x = "head.pooled"
    inner, outer = config.parameter_shape("head", "w")
    if config.transform:
        activation = {"activation": config.head_activation or config.activation}
        yield Node("head.hidden", "linear", (x,), (*rows, inner), "head.dense", {"names": ("w", "b")})
        yield Node("head.dense", "activate", ("head.hidden",), (*rows, inner), options=activation)
        x = "head.dense"
        if config.head_norm:
            yield norm_node(config, "head.norm", x, (*rows, inner))
            x = "head.norm"
    if config.pools_late:
        rows = (batch, 1)
        yield _pool_node(core, inputs, x, (*rows, inner))
        x = "head.pooled"
    options = {"names": ("w", "b"), "factor": config.logit_scale, "is_pooled": config.is_head_pooled}
    options |= {"softcap": config.logit_softcap}
    yield Node("logits", "logits", (x,), (batch, outer) if config.is_head_pooled else (*rows, outer), "head", options)


def _pool_node(core: Model, inputs: Inputs, x: str, shape: tuple[int, ...]) -> Node:
    config = core.config
    real = inputs.of(config.stacks[-1], config)[1]
    return Node("head.pooled", "pool", (x,), shape, options={"kind": config.pooling, "real": real})
