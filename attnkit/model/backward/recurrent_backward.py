"""The adjoints of recurrent layers: a direction, layers, stacks, models.

Letters and parameters are as in recurrent_cells.py. A token is undone in two parts: the gradients of what its
gates add up, W x + b (`inputs`) and U h + c (`products`), one token at a time; then the gradients of x and of the
parameters, by one matrix product over all tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.backward.tape import Reverse, Undo, undo_projection
from attnkit.model.checks import check_gradient
from attnkit.model.config import parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, quiet
from attnkit.model.formulas.linear import as_rows, sum_rows
from attnkit.model.formulas.recurrent import (
    DirectionRun,
    LayerRun,
    RecurrentLayer,
    States,
    Trace,
    reverse_texts,
    reverse_trace,
    select_state,
)
from attnkit.model.formulas.recurrent_cells import (
    CELLS,
    Gates,
    Parameters,
    State,
    SumGradients,
    map_state,
    require_cell,
)
from attnkit.model.hooks import apply_hook
from attnkit.model.layers.recurrent_layers import bridge, layer_parameters, run_recurrent_layer, stack_of
from attnkit.model.processor.products import matrix_product
from attnkit.model.recurrent_config import DIRECTIONS, as_recurrent


class DirectionGradients(NamedTuple):
    """The gradients of x, of the initial state, and of each parameter by its name."""

    x: Array
    state: State
    parameters: dict[str, Array]


def sum_parameter_gradients(
    x: Array, before: State, after: State, gates: Gates, sums: SumGradients, grad_hidden: Array, parameters: Parameters
) -> dict[str, Array]:
    """Gradient of each parameter, summed over all tokens.

    x (..., D), states and gates of the same tokens, grad_hidden (..., P) of the states after -> {parameter: its shape}
    """
    inputs, products, hidden = as_rows(sums.inputs), as_rows(sums.products), as_rows(before.hidden)
    gradients = {"input": matrix_product(inputs.T, as_rows(x)), "hidden": matrix_product(products.T, hidden)}
    if "reset" in gates and "product" not in gates:  # its product is of r h
        width = gates["reset"].shape[-1]
        inner = as_rows(gates["reset"]) * hidden
        gradients["hidden"][2 * width :] = matrix_product(products[:, 2 * width :].T, inner)
    gradients |= {"input_bias": sum_rows(inputs)} if "input_bias" in parameters else {}
    gradients |= {"hidden_bias": sum_rows(products)} if "hidden_bias" in parameters else {}
    if "peephole" in parameters:
        i, f, _, o = np.split(inputs, 4, axis=-1)
        old, new = as_rows(require_cell(before)), as_rows(require_cell(after))
        gradients["peephole"] = np.stack([(i * old).sum(0), (f * old).sum(0), (o * new).sum(0)])
    if "projection" in parameters:
        output = as_rows(gates["output"]) * np.tanh(as_rows(require_cell(after)))
        gradients["projection"] = matrix_product(as_rows(grad_hidden).T, output)
    return gradients


@quiet
def direction_backward(
    cell: str,
    grad_outputs: Array,
    x: Array,
    parameters: Parameters,
    run: DirectionRun,
    grad_state: State | None = None,
    *,
    lengths: Array | None = None,
    reverse: bool = False,
) -> DirectionGradients:
    """Undo `run_direction`: gradients of x, the initial state and each parameter.

    grad_outputs (B, T, P), x (B, T, D), grad_state of the final state [zeros] -> x (B, T, D), state, parameters

    `run` is the result of `run_direction`, with its trace. Outputs after the end of a text have no influence. The
    gradient of an LSTM's final cell state may be None, for zeros. DataError if shapes do not match, or without a trace.

    >>> from attnkit.model.formulas.recurrent import run_direction
    >>> x, parameters = np.array([[[1.0], [2.0]]]), {"input": np.ones((1, 1)), "hidden": 10 * np.ones((1, 1))}
    >>> run = run_direction("relu", x, parameters)
    >>> gradients = direction_backward("relu", np.ones((1, 2, 1)), x, parameters, run)
    >>> gradients.x.tolist(), gradients.parameters["hidden"].tolist()
    ([[[11.0], [1.0]]], [[1.0]])
    """
    if run.trace is None:
        raise DataError("a run without its trace has no gradients")
    check_gradient(grad_outputs, run.outputs.shape, "the outputs")
    dtype = run.trace.hidden.dtype
    weights = {name: cast(array, dtype) for name, array in parameters.items()}
    trace, tokens, dy = run.trace, cast(x, dtype), cast(grad_outputs, dtype)
    if reverse:
        trace, tokens, dy = reverse_trace(trace, lengths), reverse_texts(tokens, lengths), reverse_texts(dy, lengths)
    if lengths is not None:
        is_token = (np.arange(x.shape[1]) < lengths[:, None])[..., None]
        tokens, dy = np.where(is_token, tokens, 0), np.where(is_token, dy, 0)
    before, after = _states_before(trace), State(trace.hidden, trace.cell)
    last = _fill_gradient(grad_state, run.state)
    sums, grad_hidden = undo_tokens(cell, dy, before, after, trace.gates, weights, last, lengths)
    gradients = sum_parameter_gradients(tokens, before, after, trace.gates, sums, grad_hidden, weights)
    dx = matrix_product(as_rows(sums.inputs), weights["input"]).reshape(x.shape)
    return DirectionGradients(reverse_texts(dx, lengths) if reverse else dx, sums.state, gradients)


def _fill_gradient(grad: State | None, like: State) -> State:
    """Cast the gradient of a state to its dtype; zeros for a part that is None."""
    parts: list[Array | None] = []
    for name, part, one in zip(State._fields, grad or (None, None), like, strict=True):
        if one is not None and part is not None:
            check_gradient(part, one.shape, f"the {name} state")
        parts.append(None if one is None else np.zeros_like(one) if part is None else cast(part, one.dtype))
    return State(*parts)  # type: ignore[arg-type]


def _states_before(trace: Trace) -> State:
    """The state before each token: hidden (B, T, P) and cell (B, T, H)."""

    def shift(first: Array, after: Array) -> Array:
        return np.concatenate([first[:, None], after], 1)[:, :-1]

    cell = None if trace.cell is None else shift(require_cell(trace.initial), trace.cell)
    return State(shift(trace.initial.hidden, trace.hidden), cell)


def undo_tokens(
    cell: str,
    grad_outputs: Array,
    before: State,
    after: State,
    gates: Gates,
    weights: Parameters,
    grad_state: State,
    lengths: Array | None,
) -> tuple[SumGradients, Array]:
    """Undo the tokens of a direction, from the last to the first.

    grad_outputs (B, T, P), states and gates (B, T, ...)
    -> inputs and products (B, T, G·H) with the gradient of the initial state, and (B, T, P), of each hidden state
    """
    batch, tokens = after.hidden.shape[:2]
    inputs = np.zeros((batch, tokens, len(weights["input"])), after.hidden.dtype)
    products = np.zeros_like(inputs) if "product" in gates else inputs
    hidden, now, undo = np.zeros_like(after.hidden), grad_state, CELLS[cell].undo
    for t in reversed(range(tokens)):
        grad = State(now.hidden + grad_outputs[:, t], now.cell)
        own = {name: gate[:, t] for name, gate in gates.items()}
        one = undo(grad, own, _state_at(before, t), _state_at(after, t), weights)
        if lengths is None or (t < lengths).all():
            inputs[:, t], hidden[:, t], now = one.inputs, grad.hidden, one.state
            if products is not inputs:
                products[:, t] = one.products
            continue
        is_token = (t < lengths)[:, None]
        inputs[:, t], hidden[:, t] = np.where(is_token, one.inputs, 0), np.where(is_token, grad.hidden, 0)
        if products is not inputs:
            products[:, t] = np.where(is_token, one.products, 0)
        now = select_state(is_token, one.state, now)
    return SumGradients(inputs, products, now), hidden


def _state_at(states: State, t: int) -> State:
    return map_state(lambda part: part[:, t], states)


class LayerGradients(NamedTuple):
    """Gradients of x (B, T, D), and of state and parameters of each direction."""

    x: Array
    states: States
    parameters: RecurrentLayer


def layer_backward(
    cell: str,
    grad_outputs: Array,
    x: Array,
    layer: RecurrentLayer,
    run: LayerRun,
    grad_states: States = (None, None),
    *,
    lengths: Array | None = None,
) -> LayerGradients:
    """Undo `run_layer`; its run contains the traces.

    grad_outputs (B, T, P) or (B, T, 2 P), grad_states of the final states [zeros] -> x (B, T, D), states, parameters

    >>> from attnkit.model.formulas.recurrent import run_layer
    >>> one = {"input": np.ones((1, 1)), "hidden": np.ones((1, 1))}
    >>> x, layer = np.array([[[1.0], [2.0]]]), RecurrentLayer(one, one)
    >>> layer_backward("relu", np.ones((1, 2, 2)), x, layer, run_layer("relu", x, layer, has_trace=True)).x.tolist()
    [[[3.0], [3.0]]]
    """
    check_gradient(grad_outputs, run.outputs.shape, "the outputs")
    directions = layer.directions()
    gradients: dict[int, DirectionGradients] = {}
    for (number, parameters), part in zip(directions, np.split(grad_outputs, len(directions), axis=-1), strict=True):
        one = run[1 + number]
        if not isinstance(one, DirectionRun):
            raise DataError("a run without the directions of its layer")
        gradients[number] = direction_backward(
            cell, part, x, parameters, one, grad_states[number], lengths=lengths, reverse=number == 1
        )
    both = gradients.get(0), gradients.get(1)
    forward, reverse = (None if one is None else one.state for one in both)
    parameters_of = RecurrentLayer(*(None if one is None else one.parameters for one in both))
    first, *second = (one.x for one in gradients.values())
    return LayerGradients(sum(second, first), (forward, reverse), parameters_of)


def stack_backward(
    cell: str,
    grad_outputs: Array,
    x: Array,
    layers: Sequence[RecurrentLayer],
    runs: Sequence[LayerRun],
    grad_states: Sequence[States] | None = None,
    *,
    lengths: Array | None = None,
) -> tuple[Array, list[LayerGradients]]:
    """Undo `run_stack`: gradients of x and of each layer, first to last.

    grad_outputs of the last layer, grad_states of the final states of each layer [zeros] -> x (B, T, D), layers

    >>> from attnkit.model.formulas.recurrent import run_stack
    >>> layer = RecurrentLayer({"input": np.ones((1, 1)), "hidden": np.ones((1, 1))})
    >>> x = np.array([[[1.0], [2.0]]])
    >>> runs = run_stack("relu", x, [layer, layer], has_trace=True)
    >>> stack_backward("relu", np.ones((1, 2, 1)), x, [layer, layer], runs)[0].tolist()
    [[[3.0], [1.0]]]
    """
    gradients: list[LayerGradients] = []
    for number in reversed(range(len(layers))):
        inputs = runs[number - 1].outputs if number else x
        after = (None, None) if grad_states is None else grad_states[number]
        one = layer_backward(cell, grad_outputs, inputs, layers[number], runs[number], after, lengths=lengths)
        gradients.insert(0, one)
        grad_outputs = one.x
    return grad_outputs, gradients


def recurrence_vjp(model: Model, layer: str, x: Array, context: Context) -> tuple[Array, Undo]:
    """Run a recurrent layer as `recur` does: (..., T, D) -> (..., T, P or 2 P)."""
    outputs, run, tokens = run_recurrent_layer(model, layer, x, context, has_trace=True)

    def undo(dy: Array, reverse: Reverse) -> Array:
        dy = apply_hook(reverse.hook, f"{layer}.state", dy)
        parameters = layer_parameters(model.params[layer])
        last = split_directions(reverse.states.pop(layer, None), len(parameters.directions()))
        outputs, cell = tokens.arrange(dy if dy.ndim == 3 else dy[None]), stack_of(model, layer).cell
        back = layer_backward(cell, outputs, tokens.x, parameters, run, last, lengths=tokens.lengths)
        for suffix, one in zip(DIRECTIONS, back.parameters, strict=True):
            reverse.add(layer, {f"{name}{suffix}": gradient for name, gradient in (one or {}).items()})
        first = back.states[0]
        if first is not None and parse_layer_name(layer)[0] == "decoder":
            first_state_backward(model, layer, first, context, reverse)
        return tokens.restore(back.x).reshape(x.shape)

    return outputs, undo


def split_directions(state: State | None, directions: int) -> States:
    """Split a state (B, 2 P) by direction; the state of one direction is the first.

    >>> split_directions(State(np.array([[1.0, 2.0]])), 2)[1].hidden.tolist()
    [[2.0]]
    """
    if state is None or directions == 1:
        return state, None
    parts = [None if part is None else np.split(part, 2, axis=-1) for part in state]
    forward, reverse = (State(*(None if part is None else part[at] for part in parts)) for at in (0, 1))  # type: ignore[arg-type]
    return forward, reverse


def first_state_backward(model: Model, layer: str, grad: State, context: Context, reverse: Reverse) -> None:
    """Add the gradient of a decoder layer's first state to that of its source.

    grad (B, P) -> of the last state of the encoder's layer (B, S), through the bridge
    """
    number, bridging = parse_layer_name(layer)[1] or 0, as_recurrent(model.config).decoding.bridge
    if bridging == "none" or context.source_states is None:
        return
    if bridging == "tanh":
        grad = bridge_backward(model, number, grad, context.source_states[number], reverse)
    known = reverse.states.get(f"encoder.{number}.rnn")
    if known is not None:
        cell = None if known.cell is None or grad.cell is None else known.cell + grad.cell
        grad = State(known.hidden + grad.hidden, cell)
    reverse.states[f"encoder.{number}.rnn"] = grad


def bridge_backward(model: Model, number: int, grad: State, source: State, reverse: Reverse) -> State:
    """Undo tanh(source w1 + b1) and add the gradients of w1 and b1."""
    after = bridge(model, number, source)
    parts: list[Array | None] = []
    for name, slope, output, part in zip(("bridge", "bridge_cell"), grad, after, source, strict=True):
        if slope is None or output is None or part is None:
            parts.append(None)
            continue
        layer = f"decoder.{number}.{name}"
        slope = apply_hook(reverse.hook, layer, slope) * (1 - output * output)
        parts.append(undo_projection(model, layer, slope, part, reverse, "1"))
    return State(*parts)  # type: ignore[arg-type]
