"""Recurrent cells: kinds, states and parameters, formula and adjoint of each.

    B  batch     D  width of the input      G  blocks of rows in the weights, one for each gate
    T  tokens    H  width of the gates      P  width of the hidden state: H, or that of an LSTM's projection

Parameters of one direction of a layer are a mapping: input (G·H, D), hidden (G·H, P), input_bias (G·H,),
hidden_bias (G·H,), and of an LSTM peephole (3, H) for the input, forget and output gate, projection (P, H). Only the
first two are required. The blocks are in the order of the gates in CELLS, as in PyTorch.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, working
from attnkit.model.formulas.activations import relu, sigmoid

Parameters = Mapping[str, Array]


class State(NamedTuple):
    """The state of a cell: hidden (..., P), and of an LSTM cell (..., H)."""

    hidden: Array
    cell: Array | None = None


class Functions(NamedTuple):
    """Functions of NumPy, or of another library of arrays, that cells use."""

    tanh: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    split: Callable[..., Any]


NUMPY = Functions(np.tanh, sigmoid, relu, np.split)
Gates = Mapping[str, Array]


class SumGradients(NamedTuple):
    """The gradients of the sums of one token, and of the state before it.

    inputs    (..., G·H), of W x + b
    products  (..., G·H), of U h + c
    state     of the state before
    """

    inputs: Array
    products: Array
    state: State


Advance = Callable[..., tuple[State, dict[str, Array]]]
Undo = Callable[[State, Gates, State, State, Parameters], SumGradients]


class Cell(NamedTuple):
    """A kind of cell.

    gates    names of its gates, in the order of the blocks in its weights
    advance  (input products (..., G·H), state, parameters, functions [NumPy's]) -> the next state and the gates
    undo     (gradient of the next state, gates, state before, state after, parameters) -> gradients of the sums
    """

    gates: tuple[str, ...]
    advance: Advance
    undo: Undo

    @property
    def blocks(self) -> int:
        """G, the number of blocks in the weights."""
        return max(1, len(self.gates))

    @property
    def has_cell_state(self) -> bool:
        """Whether its state has two parts."""
        return "output" in self.gates


def map_state(function: Callable[[Array], Array], state: State) -> State:
    """Apply a function to each part of a state.

    >>> map_state(lambda part: part + 1, State(1.0)).hidden
    2.0
    """
    return State(function(state.hidden), None if state.cell is None else function(state.cell))


def advance_tanh(
    inputs: Array, state: State, parameters: Parameters, functions: Functions = NUMPY
) -> tuple[State, dict[str, Array]]:
    """h′ = tanh(W x + U h + b) (Elman 1990).

    inputs (..., H), state (..., H) -> state (..., H)
    """
    return State(functions.tanh(inputs + multiply_hidden(state.hidden, parameters))), {}


def undo_tanh(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Gradients of the sums of `advance_tanh`: d a = (1 − h′²) d h′."""
    sums = grad.hidden * (1 - after.hidden * after.hidden)
    return SumGradients(sums, sums, State(sums @ parameters["hidden"]))


def advance_relu(
    inputs: Array, state: State, parameters: Parameters, functions: Functions = NUMPY
) -> tuple[State, dict[str, Array]]:
    """h′ = relu(W x + U h + b) (Le, Jaitly and Hinton 2015).

    inputs (..., H), state (..., H) -> state (..., H)
    """
    return State(functions.relu(inputs + multiply_hidden(state.hidden, parameters))), {}


def undo_relu(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Gradients of the sums of `advance_relu`: d a = d h′ if h′ is positive."""
    sums = grad.hidden * (after.hidden > 0)
    return SumGradients(sums, sums, State(sums @ parameters["hidden"]))


def advance_gru(
    inputs: Array, state: State, parameters: Parameters, functions: Functions = NUMPY
) -> tuple[State, dict[str, Array]]:
    """h′ = (1 − z) n + z h, with the reset gate after the product.

    n = tanh(W x + b + r (U h + c))

    inputs (..., 3 H), state (..., H) -> state (..., H), {"reset", "update", "candidate", "product": (..., H)}

    r and z are the sigmoids of W x + U h + b. `product` is U h + c of the candidate n, which the adjoint needs. Source:
    Cho et al. 2014 in the form of cuDNN and PyTorch (Keras: reset_after; ONNX: linear_before_reset = 1).
    """
    products = multiply_hidden(state.hidden, parameters)
    reset, update, candidate = functions.split(inputs, 3, axis=-1)
    reset_product, update_product, product = functions.split(products, 3, axis=-1)
    r, z = functions.sigmoid(reset + reset_product), functions.sigmoid(update + update_product)
    n = functions.tanh(candidate + r * product)
    return State((1 - z) * n + z * state.hidden), {"reset": r, "update": z, "candidate": n, "product": product}


def undo_gru(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Gradients of the sums of `advance_gru`.

    The candidate's product has r times the gradient of its sum.
    """
    r, z, n = gates["reset"], gates["update"], gates["candidate"]
    candidate = grad.hidden * (1 - z) * (1 - n * n)
    reset = candidate * gates["product"] * r * (1 - r)
    update = grad.hidden * (before.hidden - n) * z * (1 - z)
    products = np.concatenate([reset, update, candidate * r], -1)
    hidden = grad.hidden * z + products @ parameters["hidden"]
    return SumGradients(np.concatenate([reset, update, candidate], -1), products, State(hidden))


def advance_gru_reset_before(
    inputs: Array, state: State, parameters: Parameters, functions: Functions = NUMPY
) -> tuple[State, dict[str, Array]]:
    """h′ = (1 − z) n + z h, with the reset gate before the product.

    n = tanh(W x + b + U (r h))

    inputs (..., 3 H), state (..., H) -> state (..., H), {"reset", "update", "candidate": (..., H)}

    Source: Cho et al. 2014 (Keras: reset_after=False; ONNX: linear_before_reset = 0).
    """
    reset, update, candidate = functions.split(inputs, 3, axis=-1)
    reset_product, update_product = functions.split(multiply_hidden(state.hidden, parameters, slice(0, 2)), 2, axis=-1)
    r, z = functions.sigmoid(reset + reset_product), functions.sigmoid(update + update_product)
    n = functions.tanh(candidate + multiply_hidden(r * state.hidden, parameters, slice(2, 3)))
    return State((1 - z) * n + z * state.hidden), {"reset": r, "update": z, "candidate": n}


def undo_gru_reset_before(
    grad: State, gates: Gates, before: State, after: State, parameters: Parameters
) -> SumGradients:
    """Gradients of the sums of `advance_gru_reset_before`."""
    r, z, n = gates["reset"], gates["update"], gates["candidate"]
    width = r.shape[-1]
    candidate = grad.hidden * (1 - z) * (1 - n * n)
    inner = candidate @ parameters["hidden"][2 * width :]  # of r h
    reset = inner * before.hidden * r * (1 - r)
    update = grad.hidden * (before.hidden - n) * z * (1 - z)
    sums = np.concatenate([reset, update, candidate], -1)
    hidden = grad.hidden * z + inner * r + sums[..., : 2 * width] @ parameters["hidden"][: 2 * width]
    return SumGradients(sums, sums, State(hidden))


def advance_lstm(
    inputs: Array, state: State, parameters: Parameters, functions: Functions = NUMPY
) -> tuple[State, dict[str, Array]]:
    """c′ = f c + i g and h′ = o tanh(c′), or V (o tanh(c′)) with a projection V.

    inputs (..., 4 H), state (..., P) and (..., H) -> the same, {"input", "forget", "candidate", "output": (..., H)}

    i, f, o are the sigmoids of W x + U h + b, with peepholes + p c for i and f, + p c′ for o; g is the tanh of
    W x + U h + b. Source: Hochreiter and Schmidhuber 1997; Gers and Schmidhuber 2000 for peepholes; Sak et al. 2014
    for the projection.
    """
    cell, peephole = require_cell(state), parameters.get("peephole")
    a = inputs + multiply_hidden(state.hidden, parameters)
    i, f, g, o = functions.split(a, 4, axis=-1)
    if peephole is not None:
        i, f = i + peephole[0] * cell, f + peephole[1] * cell
    i, f, g = functions.sigmoid(i), functions.sigmoid(f), functions.tanh(g)
    cell = f * cell + i * g
    o = functions.sigmoid(o if peephole is None else o + peephole[2] * cell)
    hidden = o * functions.tanh(cell)
    if "projection" in parameters:
        hidden = hidden @ parameters["projection"].T
    return State(hidden, cell), {"input": i, "forget": f, "candidate": g, "output": o}


def undo_lstm(grad: State, gates: Gates, before: State, after: State, parameters: Parameters) -> SumGradients:
    """Gradients of the sums of `advance_lstm`, through the peepholes."""
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


CELLS = {
    "tanh": Cell((), advance_tanh, undo_tanh),
    "relu": Cell((), advance_relu, undo_relu),
    "gru": Cell(("reset", "update", "candidate"), advance_gru, undo_gru),
    "gru-reset-before": Cell(("reset", "update", "candidate"), advance_gru_reset_before, undo_gru_reset_before),
    "lstm": Cell(("input", "forget", "candidate", "output"), advance_lstm, undo_lstm),
}


def recurrent_cell(name: str) -> Cell:
    """Cell of a name of CELLS; UsageError for another name.

    >>> recurrent_cell("gru").gates
    ('reset', 'update', 'candidate')
    """
    if name not in CELLS:
        raise UsageError(f"cell {name!r} (expected one of {', '.join(CELLS)})")
    return CELLS[name]


def gate_name(gate: str) -> str:
    """Name of a gate among intermediates.

    >>> gate_name("reset"), gate_name("candidate")
    ('reset_gate', 'candidate')
    """
    return gate if gate == "candidate" else f"{gate}_gate"


def multiply_hidden(hidden: Array, parameters: Parameters, blocks: slice | None = None) -> Array:
    """U h + b of some blocks of the hidden weight U [all]; without a bias U h.

    hidden (..., P) -> (..., G·H)
    """
    weight, bias = parameters["hidden"], parameters.get("hidden_bias")
    if blocks is not None:  # of the three of a GRU
        width = len(weight) // 3
        rows = slice(blocks.start * width, blocks.stop * width)
        weight, bias = weight[rows], None if bias is None else bias[rows]
    product: Array = hidden @ weight.T
    return product if bias is None else product + bias


def multiply_input(x: Array, parameters: Parameters) -> Array:
    """W x + b, without a bias W x: x (..., D) -> (..., G·H)."""
    product: Array = x @ parameters["input"].T
    return product + parameters["input_bias"] if "input_bias" in parameters else product


def require_cell(state: State) -> Array:
    """Cell state of an LSTM; DataError without one."""
    if state.cell is None:
        raise DataError("state: an LSTM needs a cell state too")
    return state.cell


def cell_dtype(x: Array, parameters: Parameters, state: State | None) -> np.dtype[np.generic]:
    """The dtype to compute in, for the input, the parameters and the state.

    >>> cell_dtype(np.zeros(2, np.float16), {}, None)
    dtype('float32')
    """
    return working(x, *parameters.values(), *(part for part in state or () if part is not None))


def prepare_state(
    cell: str, state: State | None, parameters: Parameters, lead: tuple[int, ...], dtype: np.dtype[np.generic]
) -> State:
    """Cast a state, or build zeros; DataError for another shape or kind.

    -> hidden (*lead, P), cell (*lead, H)

    >>> prepare_state("lstm", None, {"input": np.zeros((8, 3)), "hidden": np.zeros((8, 2))}, (1,), np.dtype(float)).cell
    array([[0., 0.]])
    """
    shapes = [(*lead, parameters["hidden"].shape[1])]
    if CELLS[cell].has_cell_state:
        shapes.append((*lead, len(parameters["hidden"]) // 4))
    if state is None:
        return State(*(np.zeros(shape, dtype) for shape in shapes))
    parts = [part for part in state if part is not None]
    if len(parts) != len(shapes):
        expected = "hidden and cell" if len(shapes) == 2 else "hidden alone"
        raise DataError(f"state with {len(parts)} of hidden and cell: a cell {cell} needs {expected}")
    for name, part, shape in zip(State._fields, parts, shapes, strict=False):
        if part.shape != shape:
            raise DataError.about(name, f"state {as_text(part.shape)}: expected {as_text(shape)}")
    return State(*(cast(part, dtype) for part in parts))


def check_parameters(cell: str, parameters: Parameters, width: int) -> None:
    """Raise DataError unless the parameters fit a cell with inputs of width D.

    >>> check_parameters("tanh", {"input": np.zeros((4, 3)), "hidden": np.zeros((4, 4))}, 3)
    """
    blocks = recurrent_cell(cell).blocks
    if missing := [name for name in ("input", "hidden") if name not in parameters]:
        raise DataError(f"no {' and no '.join(missing)} weight (it has {', '.join(parameters) or 'nothing'})")
    weight = parameters["input"]
    if weight.ndim != 2 or len(weight) % blocks or not len(weight):
        raise DataError(f"input weight {as_text(weight.shape)}: expected ({blocks}·hidden, {width}) for a cell {cell}")
    if weight.shape[1] != width:
        raise DataError(
            f"input weight {as_text(weight.shape)}: it takes a width of {weight.shape[1]}, but x has {width}"
        )
    rows, hidden = len(weight), len(weight) // blocks
    has_projection = "projection" in parameters
    output = len(parameters["projection"]) if has_projection and parameters["projection"].ndim else hidden
    shapes: dict[str, tuple[int, ...]] = {"input": (rows, width), "hidden": (rows, output)}
    shapes |= dict.fromkeys(("input_bias", "hidden_bias"), (rows,))
    shapes |= {"peephole": (3, hidden), "projection": (output, hidden)} if cell == "lstm" else {}
    for name, array in parameters.items():
        if name not in shapes:
            raise DataError(f"a cell {cell} has no {name} (it has {', '.join(shapes)})")
        if array.shape != shapes[name]:
            raise DataError.about(
                name, f"{as_text(array.shape)}: expected {as_text(shapes[name])}, as input is {as_text(weight.shape)}"
            )
