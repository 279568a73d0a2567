"""The adjoints of recurrent cells: of one step, of one direction of a layer, of layers and of stacks.

The letters and the parameters are those of recurrent_cells.py. A step is undone in two parts: the gradients of what its
gates add up, W x + b (`inputs`) and U h + c (`products`), one step at a time; then those of x and of the parameters, by
one matrix product over all steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.backward.linear import as_rows, check_gradient, sum_rows
from attnkit.model.dtypes import Array, cast, quiet
from attnkit.model.kernels.products import matrix_product
from attnkit.model.recurrent import DirectionRun, Trace, reverse_texts, reverse_trace, select_state
from attnkit.model.recurrent_cells import CELLS, Parameters, State, map_state, require_cell
from attnkit.model.recurrent_layers import LayerRun, RecurrentLayer, States

Gates = Mapping[str, Array]


class SumGradients(NamedTuple):
    """The gradients of the sums of one step, and of the state before it.

    inputs    (..., G·H), of W x + b
    products  (..., G·H), of U h + c
    state     of the state before
    """

    inputs: Array
    products: Array
    state: State


class RecurrentGradients(NamedTuple):
    """The gradients of x, of the initial state, and of each parameter by its name."""

    x: Array
    state: State
    parameters: dict[str, Array]


Undo = Callable[[State, Gates, State, State, Parameters], SumGradients]


def undo_tanh(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Return the gradients of the sums of `advance_tanh`: d a = (1 − h′²) d h′."""
    sums = grad.hidden * (1 - after.hidden * after.hidden)
    return SumGradients(sums, sums, State(sums @ parameters["hidden"]))


def undo_relu(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Return the gradients of the sums of `advance_relu`: d a = d h′ where h′ is positive."""
    sums = grad.hidden * (after.hidden > 0)
    return SumGradients(sums, sums, State(sums @ parameters["hidden"]))


def undo_gru(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Return the gradients of the sums of `advance_gru`; of the candidate's product, r times that of its sum."""
    r, z, n = gates["reset"], gates["update"], gates["candidate"]
    candidate = grad.hidden * (1 - z) * (1 - n * n)
    reset = candidate * gates["product"] * r * (1 - r)
    update = grad.hidden * (before.hidden - n) * z * (1 - z)
    products = np.concatenate([reset, update, candidate * r], -1)
    hidden = grad.hidden * z + products @ parameters["hidden"]
    return SumGradients(np.concatenate([reset, update, candidate], -1), products, State(hidden))


def undo_gru_reset_before(
    grad: State, gates: Gates, before: State, after: State, parameters: Parameters
) -> SumGradients:
    """Return the gradients of the sums of `advance_gru_reset_before`."""
    r, z, n = gates["reset"], gates["update"], gates["candidate"]
    width = r.shape[-1]
    candidate = grad.hidden * (1 - z) * (1 - n * n)
    inner = candidate @ parameters["hidden"][2 * width :]  # of r h
    reset = inner * before.hidden * r * (1 - r)
    update = grad.hidden * (before.hidden - n) * z * (1 - z)
    sums = np.concatenate([reset, update, candidate], -1)
    hidden = grad.hidden * z + inner * r + sums[..., : 2 * width] @ parameters["hidden"][: 2 * width]
    return SumGradients(sums, sums, State(hidden))


def undo_lstm(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Return the gradients of the sums of `advance_lstm`; those of peepholes reach the cell states."""
    i, f, g, o = (gates[name] for name in CELLS["lstm"].gates)
    cell, peephole = require_cell(after), parameters.get("peephole")
    activated = np.tanh(cell)
    dh = grad.hidden @ parameters["projection"] if "projection" in parameters else grad.hidden
    output = dh * activated * o * (1 - o)
    dc = dh * o * (1 - activated * activated)
    dc += require_cell(grad)
    if peephole is not None:
        dc += output * peephole[2]
    forget, inputs = dc * require_cell(before) * f * (1 - f), dc * g * i * (1 - i)
    sums = np.concatenate([inputs, forget, dc * i * (1 - g * g), output], -1)
    dc *= f
    if peephole is not None:
        dc += inputs * peephole[0] + forget * peephole[1]
    return SumGradients(sums, sums, State(sums @ parameters["hidden"], dc))


# every cell of recurrent_cells.CELLS
UNDO: dict[str, Undo] = {
    "tanh": undo_tanh,
    "relu": undo_relu,
    "gru": undo_gru,
    "gru-reset-before": undo_gru_reset_before,
    "lstm": undo_lstm,
}


def sum_parameter_gradients(
    x: Array, before: State, after: State, gates: Gates, sums: SumGradients, grad_hidden: Array, parameters: Parameters
) -> dict[str, Array]:
    """Return the gradient of each parameter, summed over all steps.

    x (..., D), states and gates of the same steps, grad_hidden (..., P) of the states after -> {parameter: its shape}
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
def step_backward(
    cell: str, grad_state: State, x: Array, before: State, after: State, gates: Gates, parameters: Parameters
) -> RecurrentGradients:
    """Return the gradients of `step`: of x, of the state before, and of each parameter summed over the batch.

    grad_state, before and after (..., P) and (..., H), x (..., D), gates as `step` returned them

    The gradient of an LSTM's cell state may be None, for zeros. DataError where shapes do not match.

    >>> one, state = np.ones((1, 1)), State(np.array([3.0]))
    >>> gradients = step_backward("relu", State(np.ones(1)), np.array([2.0]), state, State(np.array([32.0])), {},
    ...                           {"input": one, "hidden": 10 * one})
    >>> gradients.x.tolist(), gradients.state.hidden.tolist(), gradients.parameters["hidden"].tolist()
    ([1.0], [10.0], [[3.0]])
    """
    dtype = after.hidden.dtype
    weights = {name: cast(array, dtype) for name, array in parameters.items()}
    grad = prepare_gradient(grad_state, after)
    sums = UNDO[cell](grad, gates, before, after, weights)
    gradients = sum_parameter_gradients(cast(x, dtype), before, after, gates, sums, grad.hidden, weights)
    return RecurrentGradients(sums.inputs @ weights["input"], sums.state, gradients)


def prepare_gradient(grad: State | None, like: State) -> State:
    """Return the gradient of a state in its dtype, zeros for what is None; DataError where it has another shape.

    >>> prepare_gradient(State(np.ones(1)), State(np.zeros(1), np.zeros(2))).cell.tolist()
    [0.0, 0.0]
    """
    parts: list[Array | None] = []
    for name, part, one in zip(State._fields, grad or (None, None), like, strict=True):
        if one is not None and part is not None:
            check_gradient(part, one.shape, f"the {name} state")
        parts.append(None if one is None else np.zeros_like(one) if part is None else cast(part, one.dtype))
    if parts[0] is None:
        raise DataError("a state without its hidden part")
    return State(parts[0], parts[1])


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
) -> RecurrentGradients:
    """Return the gradients of `run_direction`: of x, of the initial state, and of each parameter.

    grad_outputs (B, T, P), x (B, T, D), grad_state of the final state [zeros] -> x (B, T, D), state, parameters

    `run` is what `run_direction` returned, with its trace. Outputs after the end of a text have no influence. DataError
    where shapes do not match, or the run has no trace.

    >>> from attnkit.model.recurrent import run_direction
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
    sums, grad_hidden = undo_steps(cell, dy, trace, weights, prepare_gradient(grad_state, run.state), lengths)
    before, after = shift_states(trace), State(trace.hidden, trace.cell)
    gradients = sum_parameter_gradients(tokens, before, after, trace.gates, sums, grad_hidden, weights)
    dx = matrix_product(as_rows(sums.inputs), weights["input"]).reshape(x.shape)
    return RecurrentGradients(reverse_texts(dx, lengths) if reverse else dx, sums.state, gradients)


def undo_steps(
    cell: str, grad_outputs: Array, trace: Trace, weights: Parameters, grad_state: State, lengths: Array | None
) -> tuple[SumGradients, Array]:
    """Undo the steps of a direction from the last to the first, in the order in which they ran.

    -> inputs and products (B, T, G·H) with the gradient of the initial state, and (B, T, P), that of each hidden state
    """
    before, after = shift_states(trace), State(trace.hidden, trace.cell)
    batch, tokens = trace.hidden.shape[:2]
    inputs = np.zeros((batch, tokens, len(weights["input"])), trace.hidden.dtype)
    products = np.zeros_like(inputs) if "product" in trace.gates else inputs
    hidden, now = np.zeros_like(trace.hidden), grad_state
    for t in reversed(range(tokens)):
        grad = State(now.hidden + grad_outputs[:, t], now.cell)
        gates = {name: gate[:, t] for name, gate in trace.gates.items()}
        one = UNDO[cell](grad, gates, state_at(before, t), state_at(after, t), weights)
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


def shift_states(trace: Trace) -> State:
    """Return the state before each token: hidden (B, T, P) and cell (B, T, H)."""

    def shift(first: Array, after: Array) -> Array:
        return np.concatenate([first[:, None], after], 1)[:, :-1]

    cell = None if trace.cell is None else shift(require_cell(trace.initial), trace.cell)
    return State(shift(trace.initial.hidden, trace.hidden), cell)


def state_at(states: State, t: int) -> State:
    """Return the state of one token."""
    return map_state(lambda part: part[:, t], states)


class LayerGradients(NamedTuple):
    """The gradients of x (B, T, D), and of each direction its initial state and its parameters."""

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
    """Return the gradients of `run_layer`, whose run has its traces.

    grad_outputs (B, T, P) or (B, T, 2 P), grad_states of the final states [zeros] -> x (B, T, D), states, parameters

    >>> from attnkit.model.recurrent_layers import run_layer
    >>> one = {"input": np.ones((1, 1)), "hidden": np.ones((1, 1))}
    >>> x, layer = np.array([[[1.0], [2.0]]]), RecurrentLayer(one, one)
    >>> layer_backward("relu", np.ones((1, 2, 2)), x, layer, run_layer("relu", x, layer, has_trace=True)).x.tolist()
    [[[3.0], [3.0]]]
    """
    check_gradient(grad_outputs, run.outputs.shape, "the outputs")
    directions = layer.directions()
    parts = np.split(grad_outputs, len(directions), axis=-1)
    gradients: list[RecurrentGradients | None] = [None, None]
    total: Array | None = None
    for (number, parameters), part in zip(directions, parts, strict=True):
        one = run[1 + number]
        if not isinstance(one, DirectionRun):
            raise DataError("a run without the directions of its layer")
        back = direction_backward(
            cell, part, x, parameters, one, grad_states[number], lengths=lengths, reverse=number == 1
        )
        total = back.x if total is None else total + back.x
        gradients[number] = back
    if total is None:
        raise DataError("a layer without parameters of any direction")
    forward, reverse = (None if one is None else one.state for one in gradients)
    return LayerGradients(
        total, (forward, reverse), RecurrentLayer(*(None if one is None else one.parameters for one in gradients))
    )


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
    """Return the gradients of `run_stack`: of x, and those of each layer, first to last.

    grad_outputs of the last layer, grad_states of the final states of each layer [zeros] -> x (B, T, D), layers

    >>> from attnkit.model.recurrent_layers import run_stack
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
