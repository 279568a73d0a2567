"""The recurrent layers of a model: recorded in a forward pass, and their adjoints."""

from typing import Any

import numpy as np

from attnkit.model.backward.linear import linear_backward
from attnkit.model.backward.recurrent import layer_backward
from attnkit.model.backward.tape import RecordedStep, Reverse
from attnkit.model.config import parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.hooks import apply_hook
from attnkit.model.recurrent_cells import State
from attnkit.model.recurrent_config import DIRECTIONS
from attnkit.model.recurrent_layers import States
from attnkit.model.recurrent_model import bridge, config_of, layer_parameters, run_recurrent_layer, stack_of


def record_recurrence(model: Model, layer: str, x: Array, context: Context) -> tuple[Array, dict[str, Any]]:
    """Return the outputs of a recurrent layer, and its run, which the adjoint needs."""
    outputs, run, tokens = run_recurrent_layer(model, layer, x, context, has_trace=True)
    return outputs, {"run": run, "tokens": tokens}


def recurrence_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    """Return the gradient of the input of a recurrent layer; add those of its parameters and of its first state.

    dy (..., T, P) or (..., T, 2 P), x (..., T, D) -> (..., T, D)
    """
    layer, tokens, run = recorded.step.layer, recorded.saved["tokens"], recorded.saved["run"]
    dy = apply_hook(reverse.hook, f"{layer}.state", dy)
    outputs = tokens.arrange(dy if dy.ndim == 3 else dy[None])
    parameters = layer_parameters(model.params[layer])
    last = split_directions(reverse.states.pop(layer, None), len(parameters.directions()))
    back = layer_backward(
        stack_of(model, layer).cell, outputs, tokens.x, parameters, run, last, lengths=tokens.lengths
    )  # fmt: skip
    for suffix, one in zip(DIRECTIONS, back.parameters, strict=True):
        reverse.add(layer, {f"{name}{suffix}": gradient for name, gradient in (one or {}).items()})
    first = back.states[0]
    if first is not None and parse_layer_name(layer)[0] == "decoder":
        first_state_backward(model, layer, first, context, reverse)
    dx: Array = tokens.restore(back.x).reshape(recorded.x.shape)
    return dx


def split_directions(state: State | None, directions: int) -> States:
    """Return the parts of a state (B, 2 P) that belong to each direction; of one direction it is that of the first.

    >>> split_directions(State(np.array([[1.0, 2.0]])), 2)[1].hidden.tolist()
    [[2.0]]
    """
    if state is None or directions == 1:
        return state, None
    parts = [None if part is None else np.split(part, 2, axis=-1) for part in state]
    forward, reverse = (State(*(None if part is None else part[at] for part in parts)) for at in (0, 1))  # type: ignore[arg-type]
    return forward, reverse


def first_state_backward(model: Model, layer: str, grad: State, context: Context, reverse: Reverse) -> None:
    """Add the gradient of the first state of a layer of the decoder to that of the state that it is made of.

    grad (B, P) -> of the last state of the encoder's layer (B, S), through the bridge
    """
    number = parse_layer_name(layer)[1] or 0
    if config_of(model).decoding.bridge == "none" or context.source_states is None:
        return
    source = context.source_states[number]
    if config_of(model).decoding.bridge == "tanh":
        grad = bridge_backward(model, number, grad, source, reverse)
    known = reverse.states.get(f"encoder.{number}.rnn")
    reverse.states[f"encoder.{number}.rnn"] = grad if known is None else add_states(known, grad)


def bridge_backward(model: Model, number: int, grad: State, source: State, reverse: Reverse) -> State:
    """Return the gradient of the state that tanh(source w1 + b1) is made of, and add those of w1 and b1."""
    after = bridge(model, number, source)
    parts: list[Array | None] = []
    for name, slope, output, part in zip(("bridge", "bridge_cell"), grad, after, source, strict=True):
        layer = f"decoder.{number}.{name}"
        if slope is None or output is None or part is None:
            parts.append(None)
            continue
        params, slope = model.params[layer], apply_hook(reverse.hook, layer, slope)
        back = linear_backward(slope * (1 - output * output), part, params["w1"], params.get("b1"))
        reverse.add(layer, {"w1": back.weight, "b1": back.bias})
        parts.append(back.x)
    return State(*parts)  # type: ignore[arg-type]


def add_states(one: State, other: State) -> State:
    """Return the sum of two states.

    >>> add_states(State(np.ones(1)), State(np.ones(1))).hidden.tolist()
    [2.0]
    """
    cell = None if one.cell is None or other.cell is None else one.cell + other.cell
    return State(one.hidden + other.hidden, cell)
