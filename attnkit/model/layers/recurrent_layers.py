"""The recurrent layers of a model: one step of its plan each.

From their first states to their last.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.config import parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.feedforward import feed_forward
from attnkit.model.formulas.masks import real_tokens
from attnkit.model.formulas.recurrent import LayerRun, RecurrentLayer, Trace, run_layer
from attnkit.model.formulas.recurrent_cells import Parameters, State, gate_name, map_state
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.recurrent_config import DIRECTIONS, RecurrentStack, as_recurrent


def recur(model: Model, layer: str, x: Array, context: Context) -> Array:
    """Run a recurrent layer over the tokens.

    x (..., T, D) -> (..., T, P), or (..., T, 2 P) with both directions

    It begins with the states of the cache, those of the encoder through the bridge, or zeros. Padding is skipped: its
    outputs are 0. DataError for a mask of anything but a padded batch.
    """
    return run_recurrent_layer(model, layer, x, context, has_trace=context.hook is not no_hook)[0]


class OrderedTokens(NamedTuple):
    """A batch of texts whose padding follows their tokens.

    x        (B, T, D)
    order    (B, T) the place of each token in the batch that it was made of; None: its own
    lengths  (B,) tokens of each text; None: T
    """

    x: Array
    order: Array | None
    lengths: Array | None

    def arrange(self, batch: Array) -> Array:
        """Put other values of the tokens into this order: (B, T, W) -> (B, T, W)."""
        return batch if self.order is None else np.take_along_axis(batch, self.order[..., None], axis=1)

    def restore(self, values: Array) -> Array:
        """Put values back into the order of the batch; the inverse of `arrange`."""
        if self.order is None:
            return values
        return np.take_along_axis(values, np.argsort(self.order, axis=1)[..., None], axis=1)


def run_recurrent_layer(
    model: Model, layer: str, x: Array, context: Context, *, has_trace: bool
) -> tuple[Array, LayerRun, OrderedTokens]:
    """Run a layer as `recur` does; return the run and the tokens, too.

    A hook needs the trace.
    """
    batch = x if x.ndim == 3 else x[None]
    tokens = OrderedTokens(batch, *order_tokens(context.mask, batch.shape[:2]))
    tokens = tokens._replace(x=tokens.arrange(batch))
    run = run_layer(
        stack_of(model, layer).cell,
        tokens.x,
        layer_parameters(model.params[layer]),
        (first_state(model, layer, len(batch), context), None),
        lengths=tokens.lengths,
        offset=context.past,
        has_trace=has_trace,
    )
    keep_state(context, layer, last_state(run), batch.shape[1])
    if context.hook is not no_hook:
        show_gates(context.hook, layer, run, tokens.order, x.ndim)
    outputs = tokens.restore(run.outputs).reshape(*x.shape[:-1], run.outputs.shape[-1])
    return apply_hook(context.hook, f"{layer}.state", outputs), run, tokens


def stack_of(model: Model, layer: str) -> RecurrentStack:
    """Stack of a layer of a recurrent model."""
    return as_recurrent(model.config).recurrent_stack(parse_layer_name(layer)[0])


def layer_parameters(params: Mapping[str, Array]) -> RecurrentLayer:
    """Parameters of a layer by direction.

    >>> layer = layer_parameters({"input": np.zeros(1), "input_reverse": np.ones(1)})
    >>> layer.reverse
    {'input': array([1.])}
    """
    directions: list[Parameters | None] = []
    for suffix in DIRECTIONS:
        own = {
            name.removesuffix("_reverse"): one
            for name, one in params.items()
            if name.endswith("_reverse") == bool(suffix)
        }
        directions.append(own or None)
    return RecurrentLayer(*directions)


def first_state(model: Model, layer: str, rows: int, context: Context) -> State | None:
    """First state of a layer for a number of texts; None for zeros."""
    cached, (stack, number, _) = cached_state(context, layer), parse_layer_name(layer)
    if cached is not None:
        return cached
    if stack != "decoder" or as_recurrent(model.config).decoding.bridge == "none":
        return None
    if context.source_states is None:
        raise DataError.about(layer, "begins with the last states of the encoder, but none are given")
    state = bridge(model, number or 0, context.source_states[number or 0], context.hook)
    return map_state(lambda part: np.repeat(part, rows // len(part), axis=0), state)


def cached_state(context: Context, layer: str) -> State | None:
    """State of a layer after the tokens of the cache; None without any."""
    return None if context.cache is None else cast(State | None, context.cache.states.get(layer))


def bridge(model: Model, number: int, source: State, hook: Hook = no_hook) -> State:
    """First state of a decoder layer, from the last state of the encoder layer.

    source (B, S) -> (B, P): the state itself, or tanh(source w1 + b1)
    """
    if as_recurrent(model.config).decoding.bridge == "identity":
        return source
    parts: list[Array | None] = []
    for name, part in zip(("bridge", "bridge_cell"), source, strict=True):
        layer = f"decoder.{number}.{name}"
        parts.append(
            None
            if part is None
            else apply_hook(hook, layer, feed_forward(part, model.params[layer], activation="tanh", keep=())["output"])
        )
    return State(*parts)  # type: ignore[arg-type]


def last_state(run: LayerRun) -> State:
    """Last states of the directions of a layer, side by side: (B, P) or (B, 2 P)."""
    states = [state for state in run.states() if state is not None]
    cells = [state.cell for state in states if state.cell is not None]
    return State(
        np.concatenate([state.hidden for state in states], axis=-1), np.concatenate(cells, axis=-1) if cells else None
    )


def keep_state(context: Context, layer: str, state: State, tokens: int) -> None:
    """Keep the state of a layer after some more tokens, in context and cache."""
    context.final_states[layer] = state
    if context.cache is not None:
        context.cache.advance(layer, state, tokens)


def order_tokens(mask: Array | None, shape: tuple[int, int]) -> tuple[Array | None, Array | None]:
    """Order that puts tokens before the padding of each text, and their numbers.

    The order is None if they are already there.

    mask (B, 1, T), True = a token, shape (B, T) -> (B, T), (B,)

    >>> order_tokens(np.array([[[False, True, True]]]), (1, 3))
    (array([[1, 2, 0]]), array([2]))
    """
    real = real_tokens(mask, *shape)
    if real is None:
        return None, None
    order = np.argsort(~real, axis=-1, kind="stable")
    lengths = real.sum(axis=-1)
    return None if (order == np.arange(shape[1])).all() else order, lengths


def show_gates(hook: Hook, layer: str, run: LayerRun, order: Array | None, rank: int) -> None:
    """Pass gates and cell states of a layer to a hook; UsageError if it edits them."""
    directions = [name_gates(one.trace) for one in (run.forward, run.reverse) if one is not None and one.trace]
    for name in directions[0] if directions else ():
        function = hook(f"{layer}.{name}")
        if function is None:
            continue
        array = np.concatenate([gates[name] for gates in directions], axis=-1)
        if order is not None:
            array = np.take_along_axis(array, np.argsort(order, axis=1)[..., None], axis=1)
        gate = array if rank == 3 else array[0]
        require_same(function(gate), gate, f"{layer}.{name}")


def require_same(changed: Array, array: Array, name: str) -> None:
    """Raise UsageError if a hook replaces an intermediate that it may only read."""
    if changed is not array:
        raise UsageError(f"{name} is computed inside the layer: it can be read, not replaced", "--patch")


def name_gates(trace: Trace) -> dict[str, Array]:
    """Gates (B, T, H) of a direction by name, such as reset_gate, and `cell`."""
    gates = {gate_name(gate): values for gate, values in trace.gates.items() if gate != "product"}
    return gates if trace.cell is None else gates | {"cell": trace.cell}
