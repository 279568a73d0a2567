"""Recurrent networks: a token of a cell, a direction of a layer, layers, stacks.

The letters and the parameters are those of recurrent_cells.py.

`run_direction_in_blocks` is the fast path of `run_direction`. It keeps states as (P, B), so that the gates of a token
are (G·H, B) with each gate contiguous, and one product with the hidden weight computes them all. The products of the
input are computed for a block of tokens at once. A block has a fixed number of tokens and begins at a multiple of it,
counted from the start of the text, so a token has the same place in a product of the same shape wherever the text is
cut. The sigmoid is ½ tanh(½ x) + ½, with the first ½ in the weights, so that one tanh computes all gates of a token.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, output_dtype, quiet
from attnkit.model.formulas.recurrent_cells import (
    CELLS,
    Parameters,
    State,
    cell_dtype,
    check_parameters,
    map_state,
    multiply_input,
    prepare_state,
    recurrent_cell,
    require_cell,
)

ROWS = 128  # in the product of the input with its weight: enough for its full speed, few for a short text
Advance = Callable[[Array, Array, Array], None]


@quiet
def run_token(cell: str, x: Array, state: State | None, parameters: Parameters) -> tuple[State, dict[str, Array]]:
    """Advance a cell by one input: its next state, and the gates by name.

    x (..., D), state (..., P) and (..., H) [zeros] -> the same, {gate: (..., H)}

    Computed and returned in the dtype of `cell_dtype`. UsageError for an unknown cell; DataError if shapes do not
    match.

    >>> one = np.ones((1, 1))
    >>> state, gates = run_token("relu", np.array([2.0]), State(np.array([3.0])), {"input": one, "hidden": 10 * one})
    >>> state.hidden.tolist()
    [32.0]
    """
    kind = recurrent_cell(cell)
    check_parameters(cell, parameters, x.shape[-1] if x.ndim else 0)
    dtype = cell_dtype(x, parameters, state)
    weights = {name: cast(array, dtype) for name, array in parameters.items()}
    before = prepare_state(cell, state, weights, x.shape[:-1], dtype)
    return kind.advance(multiply_input(cast(x, dtype), weights), before, weights)


class Trace(NamedTuple):
    """What a direction computed at every token; 0 after the end of a text.

    gates    name -> (B, T, H), as `run_token` returns them
    hidden   (B, T, P), the outputs
    cell     (B, T, H), of an LSTM
    initial  the state before the first token
    """

    gates: dict[str, Array]
    hidden: Array
    cell: Array | None
    initial: State


class DirectionRun(NamedTuple):
    """Outputs (B, T, P) of a direction, the last state of each text, and the trace."""

    outputs: Array
    state: State
    trace: Trace | None = None


@quiet
def run_direction(
    cell: str,
    x: Array,
    parameters: Parameters,
    state: State | None = None,
    *,
    lengths: Array | None = None,
    reverse: bool = False,
) -> DirectionRun:
    """Hidden state of one direction at every token, one `run_token` after the other.

    x (B, T, D), state (B, P) and (B, H) [zeros], lengths (B,) [T] -> outputs (B, T, P), state, trace

    The first `lengths` tokens of each text are run; outputs after them are 0, and the final state is that of the last
    of them. A reverse direction begins at the last of them. The trace is always returned. Errors: see `run_token`,
    and DataError for lengths outside 0 to T.

    >>> one = np.ones((1, 1))
    >>> x = np.array([[[1.0], [2.0], [3.0]]])
    >>> run_direction("relu", x, {"input": one, "hidden": one}).outputs.ravel().tolist()
    [1.0, 3.0, 6.0]
    >>> run = run_direction("relu", x, {"input": one, "hidden": one}, lengths=np.array([2]), reverse=True)
    >>> run.outputs.ravel().tolist(), run.state.hidden.tolist()
    ([3.0, 2.0, 0.0], [[3.0]])
    """
    check_sequences(x, lengths)
    check_parameters(cell, parameters, x.shape[-1])
    dtype = cell_dtype(x, parameters, state)
    weights = {name: cast(array, dtype) for name, array in parameters.items()}
    initial = now = prepare_state(cell, state, weights, x.shape[:1], dtype)
    tokens = reverse_texts(x, lengths) if reverse else x
    found: list[tuple[State, dict[str, Array]]] = []
    for t in range(x.shape[1]):
        new, gates = run_token(cell, tokens[:, t], now, weights)
        is_token = np.full((len(x), 1), True) if lengths is None else (t < lengths)[:, None]
        found.append((mask_state(new, is_token), {name: np.where(is_token, gate, 0) for name, gate in gates.items()}))
        now = select_state(is_token, new, now)
    trace = stack_tokens(cell, found, initial)
    trace = reverse_trace(trace, lengths) if reverse else trace
    return DirectionRun(trace.hidden.astype(output_dtype(x), copy=False), now, trace)


def stack_tokens(cell: str, found: list[tuple[State, dict[str, Array]]], initial: State) -> Trace:
    """Stack states and gates (B, ...) of every token into arrays (B, T, ...)."""

    def stack(arrays: list[Array], like: Array) -> Array:
        return np.stack(arrays, 1) if arrays else np.empty((len(like), 0, like.shape[1]), like.dtype)

    names = found[0][1] if found else CELLS[cell].gates
    width = initial.hidden if initial.cell is None else initial.cell
    gates = {name: stack([gates[name] for _, gates in found], width) for name in names}
    cells = None if initial.cell is None else stack([require_cell(state) for state, _ in found], initial.cell)
    return Trace(gates, stack([state.hidden for state, _ in found], initial.hidden), cells, initial)


def select_state(is_new: Array, new: State, old: State) -> State:
    """The new state if `is_new` (B, 1) is True, else the old one.

    >>> select_state(np.array([[True], [False]]), State(np.ones((2, 1))), State(np.zeros((2, 1)))).hidden.tolist()
    [[1.0], [0.0]]
    """
    cell = None if new.cell is None else np.where(is_new, new.cell, require_cell(old))
    return State(np.where(is_new, new.hidden, old.hidden), cell)


def mask_state(state: State, is_token: Array) -> State:
    """The state, and 0 if `is_token` (B, 1) is False."""
    return map_state(lambda part: np.where(is_token, part, 0), state)


def reverse_texts(x: Array, lengths: Array | None) -> Array:
    """Reverse each text from its own end; what follows a text stays in place.

    x (B, T, ...), lengths (B,) [T] -> (B, T, ...)

    >>> reverse_texts(np.array([[[1], [2], [3], [4]]]), np.array([2])).ravel().tolist()
    [2, 1, 3, 4]
    """
    if lengths is None:
        return x[:, ::-1]
    t = np.arange(x.shape[1])
    order = np.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x[np.arange(len(x))[:, None], order]


def reverse_trace(trace: Trace, lengths: Array | None) -> Trace:
    """Reverse the tokens of each text of a trace; its own inverse."""
    gates = {name: reverse_texts(gate, lengths) for name, gate in trace.gates.items()}
    cell = None if trace.cell is None else reverse_texts(trace.cell, lengths)
    return Trace(gates, reverse_texts(trace.hidden, lengths), cell, trace.initial)


def check_sequences(x: Array, lengths: Array | None) -> None:
    """Raise DataError unless x is (B, T, D) and lengths (B,) are 0 to T."""
    if x.ndim != 3:
        raise DataError(f"x {as_text(x.shape)}: expected (batch, token, model)")
    if lengths is None:
        return
    if lengths.shape != x.shape[:1] or lengths.dtype.kind not in "iu":
        raise DataError.about("lengths", f"{as_text(lengths.shape)} {lengths.dtype}: expected {len(x)} whole numbers")
    if len(lengths) and not (lengths.min() >= 0 and lengths.max() <= x.shape[1]):
        worst = next(int(one) for one in lengths if not 0 <= one <= x.shape[1])
        raise DataError(f"lengths: {worst} is not between 0 and {x.shape[1]}, the number of tokens")


class TokenRunner(NamedTuple):
    """What runs one token in buffers.

    weight   (G·H, D + 1), of the input and its bias, in the order and scale of the token's sums
    advance  (sums of the input (G·H, B), hidden state (P, B), the next one to be written)
    gates    name -> (H, B), which `advance` writes
    cell     (H, B), which `advance` updates
    """

    weight: Array
    advance: Advance
    gates: dict[str, Array]
    cell: Array | None = None


def joined_input(parameters: Parameters, with_hidden_bias: bool = True) -> Array:
    """Input weight with its bias, or the sum of both biases, as its last column."""
    weight = parameters["input"]
    bias = np.zeros(len(weight), weight.dtype)
    for name in ("input_bias", "hidden_bias")[: 1 + with_hidden_bias]:
        bias = bias + parameters.get(name, 0)
    return np.column_stack([weight, bias])


def arrange(weight: Array, order: tuple[int, ...], scales: tuple[float, ...]) -> Array:
    """Reorder the blocks of rows of a weight, each times its scale.

    >>> arrange(np.array([[1.0], [2.0]]), (1, 0), (0.5, 1)).ravel().tolist()
    [1.0, 1.0]
    """
    blocks = np.split(weight, len(order))
    return np.concatenate(
        [blocks[block] * weight.dtype.type(scale) for block, scale in zip(order, scales, strict=True)]
    )


def prepare_ungated(activation: Callable[[Array, Array], Array]) -> "Callable[[Parameters, State], TokenRunner]":
    """Build the runner of h′ = activation(W x + U h + b)."""

    def prepare(parameters: Parameters, state: State) -> TokenRunner:
        hidden = parameters["hidden"]
        sums = np.empty((len(hidden), state.hidden.shape[0]), hidden.dtype)

        def advance(inputs: Array, before: Array, after: Array) -> None:
            np.dot(hidden, before, sums)
            np.add(sums, inputs, sums)
            activation(sums, after)

        return TokenRunner(joined_input(parameters), advance, {})

    return prepare


def rectify(x: Array, out: Array) -> Array:
    """Write the larger of x and 0 to `out`."""
    y: Array = np.maximum(x, 0, out=out)
    return y


def prepare_gru(parameters: Parameters, state: State) -> TokenRunner:
    """Prepare `advance_gru`: the sums of r and z together, then the candidate."""
    hidden, scales = parameters["hidden"], (0.5, 0.5, 1)
    width, batch = len(hidden) // 3, state.hidden.shape[0]
    weight = arrange(hidden, (0, 1, 2), scales)
    inner = arrange(joined_input(parameters), (0, 1, 2), scales)
    bias = np.zeros((width, batch), hidden.dtype)
    if "hidden_bias" in parameters:
        bias += parameters["hidden_bias"][2 * width :, None]
        inner[2 * width :] = joined_input(parameters, with_hidden_bias=False)[2 * width :]
    sums, candidate = np.empty((3 * width, batch), hidden.dtype), np.empty((width, batch), hidden.dtype)
    both, product, half = sums[: 2 * width], sums[2 * width :], hidden.dtype.type(0.5)
    reset, update = both[:width], both[width:]

    def advance(inputs: Array, before: Array, after: Array) -> None:
        np.dot(weight, before, sums)
        np.add(both, inputs[: 2 * width], both)
        np.tanh(both, both)
        np.multiply(both, half, both)
        np.add(both, half, both)
        np.add(product, bias, product)
        np.multiply(reset, product, candidate)
        np.add(candidate, inputs[2 * width :], candidate)
        np.tanh(candidate, candidate)
        np.subtract(before, candidate, after)
        np.multiply(after, update, after)
        np.add(after, candidate, after)

    return TokenRunner(inner, advance, {"reset": reset, "update": update, "candidate": candidate, "product": product})


def prepare_by_formula(cell: str) -> "Callable[[Parameters, State], TokenRunner]":
    """Build the runner of a cell without a faster path here."""

    def prepare(parameters: Parameters, state: State) -> TokenRunner:
        kind, batch = CELLS[cell], state.hidden.shape[0]
        width = len(parameters["hidden"]) // kind.blocks
        gates = {name: np.empty((width, batch), state.hidden.dtype) for name in kind.gates}
        now = None if state.cell is None else np.array(state.cell.T, order="C")
        weights = {name: array for name, array in parameters.items() if name != "hidden_bias"}  # with that of the input

        def advance(inputs: Array, before: Array, after: Array) -> None:
            cells = None if now is None else now.T
            new, values = kind.advance(inputs.T, State(before.T, cells), weights)
            after[...] = new.hidden.T
            if now is not None:
                now[...] = require_cell(new).T
            for name, gate in gates.items():
                gate[...] = values[name].T

        return TokenRunner(joined_input(parameters), advance, gates, now)

    return prepare


def prepare_lstm(parameters: Parameters, state: State) -> TokenRunner:
    """Prepare the LSTM; i, f, o, g and the cell state share one buffer.

    So i g and f c are one product.
    """
    order, scales = (0, 1, 3, 2), (0.5, 0.5, 0.5, 1)
    weight = arrange(parameters["hidden"], order, scales)
    batch, width = require_cell(state).shape
    projection = parameters.get("projection")
    buffer = np.empty((5 * width, batch), weight.dtype)
    sums, gates, half = buffer[: 4 * width], buffer[: 3 * width], weight.dtype.type(0.5)
    pair, other, cell = buffer[: 2 * width], buffer[3 * width :], buffer[4 * width :]
    output, products = buffer[2 * width : 3 * width], np.empty((2 * width, batch), weight.dtype)
    first, second = products[:width], products[width:]
    cell[...] = require_cell(state).T

    def advance(inputs: Array, before: Array, after: Array) -> None:
        np.dot(weight, before, sums)
        np.add(sums, inputs, sums)
        np.tanh(sums, sums)
        np.multiply(gates, half, gates)
        np.add(gates, half, gates)
        np.multiply(pair, other, products)
        np.add(first, second, cell)
        np.tanh(cell, first)
        np.multiply(output, first, after if projection is None else second)
        if projection is not None:
            np.dot(projection, second, after)

    names = {"input": buffer[:width], "forget": pair[width:], "candidate": other[:width], "output": output}
    return TokenRunner(arrange(joined_input(parameters), order, scales), advance, names, cell)


RUNNERS = {
    "tanh": prepare_ungated(np.tanh),
    "relu": prepare_ungated(rectify),
    "gru": prepare_gru,
    "gru-reset-before": prepare_by_formula("gru-reset-before"),
    "lstm": prepare_lstm,
}


@quiet
def run_direction_in_blocks(
    cell: str,
    x: Array,
    parameters: Parameters,
    state: State | None = None,
    *,
    lengths: Array | None = None,
    reverse: bool = False,
    offset: int = 0,
    has_trace: bool = False,
) -> DirectionRun:
    """Run a direction as `run_direction` does; the trace only with `has_trace`.

    `offset` is the number of tokens before x, which decides where its blocks begin. Errors: see
    `run_direction`.

    >>> one = np.ones((1, 1))
    >>> x = np.array([[[1.0], [2.0], [3.0]]])
    >>> run_direction_in_blocks("relu", x, {"input": one, "hidden": one}).outputs.ravel().tolist()
    [1.0, 3.0, 6.0]
    """
    check_sequences(x, lengths)
    check_parameters(cell, parameters, x.shape[-1])
    dtype = cell_dtype(x, parameters, state)
    weights = {name: cast(array, dtype) for name, array in parameters.items()}
    initial = prepare_state(cell, state, weights, x.shape[:1], dtype)
    prepare = prepare_by_formula(cell) if "peephole" in parameters else RUNNERS[cell]
    runner = prepare(weights, initial)
    texts = reverse_texts(x, lengths) if reverse else x
    outputs = np.empty((*x.shape[:2], initial.hidden.shape[1]), output_dtype(x))
    written = outputs[:, ::-1] if reverse and lengths is None else outputs
    recorder = Recorder(runner, x.shape[1], initial) if has_trace else None
    hidden = run_blocks(runner, texts, initial.hidden, written, lengths, offset, recorder)
    if lengths is not None:
        written[np.arange(x.shape[1]) >= lengths[:, None]] = 0
        outputs = reverse_texts(written, lengths) if reverse else written
    final = State(hidden, None if runner.cell is None else np.array(runner.cell.T, order="C"))
    if recorder is None:
        return DirectionRun(outputs, final)
    trace = recorder.trace(lengths)
    return DirectionRun(outputs, final, reverse_trace(trace, lengths) if reverse else trace)


def run_blocks(
    runner: TokenRunner,
    x: Array,
    hidden: Array,
    outputs: Array,
    lengths: Array | None,
    offset: int,
    recorder: "Recorder | None",
) -> Array:
    """Run tokens x (B, T, D), write outputs (B, T, P), return the last state (B, P)."""
    block = InputBlock(runner.weight, len(x))
    states = np.empty((block.size + 1, *hidden.shape[::-1]), runner.weight.dtype)
    views, now = list(states), hidden.T
    shortest = x.shape[1] if lengths is None or not len(lengths) else int(lengths.min())
    for tokens, first in split_blocks(x.shape[1], block.size, offset):
        block.multiply(x[:, tokens], first)
        states[first] = now
        for t, place in zip(range(tokens.start, tokens.stop), range(first, block.size), strict=False):
            before, after = views[place], views[place + 1]
            if lengths is None or t < shortest:
                runner.advance(block.sums[place], before, after)
            else:
                advance_unfinished(runner, block.sums[place], before, after, t >= lengths)
            if recorder is not None:
                recorder.add(t, after)
        stop = first + tokens.stop - tokens.start
        outputs[:, tokens] = states[first + 1 : stop + 1].transpose(2, 0, 1)
        now = states[stop].copy()
    return np.array(now.T, order="C")


def advance_unfinished(runner: TokenRunner, sums: Array, before: Array, after: Array, is_finished: Array) -> None:
    """Run one token of the texts that have not ended; the states of the others remain."""
    cell = None if runner.cell is None else runner.cell[:, is_finished]
    runner.advance(sums, before, after)
    after[:, is_finished] = before[:, is_finished]
    if runner.cell is not None and cell is not None:
        runner.cell[:, is_finished] = cell


def split_blocks(tokens: int, size: int, offset: int) -> Iterator[tuple[slice, int]]:
    """Yield slices of tokens, each within a block, and their places in the block.

    >>> list(split_blocks(5, 4, 6))
    [(slice(0, 2, None), 2), (slice(2, 5, None), 0)]
    """
    start = 0
    while start < tokens:
        place = (offset + start) % size
        stop = min(start + size - place, tokens)
        yield slice(start, stop), place
        start = stop


class InputBlock:
    """The sums W x + b of a block of tokens.

    size  tokens in a block
    sums  of each token of it, (G·H, B)
    """

    def __init__(self, weight: Array, batch: int) -> None:
        """Allocate the buffers of texts of a batch for a weight (G·H, D + 1)."""
        self.weight, self.size = weight, max(1, ROWS // max(batch, 1))
        self.rows = np.zeros((self.size, batch, weight.shape[1]), weight.dtype)
        self.rows[..., -1] = 1
        self.matrix = self.rows.reshape(self.size * batch, weight.shape[1])
        if batch == 1:  # a row of sums for each token is contiguous
            self.product = np.empty((self.size, len(weight)), weight.dtype)
            self.sums = [row[:, None] for row in self.product]
        else:
            self.product = np.empty((len(weight), self.size * batch), weight.dtype)
            self.sums = [self.product[:, place * batch : (place + 1) * batch] for place in range(self.size)]

    def multiply(self, x: Array, first: int) -> None:
        """Compute the sums of tokens x (B, n, D), the first at a place of the block."""
        self.rows[first : first + x.shape[1], :, :-1] = x.swapaxes(0, 1)
        if len(x) == 1:
            np.matmul(self.matrix, self.weight.T, out=self.product)
        else:
            np.matmul(self.weight, self.matrix.T, out=self.product)


class Recorder:
    """What the tokens computed, for the trace."""

    def __init__(self, runner: TokenRunner, tokens: int, initial: State) -> None:
        """Allocate arrays for all tokens."""

        def room(like: Array) -> Array:
            return np.empty((tokens, *like.shape), like.dtype)

        self.runner, self.initial = runner, initial
        self.gates = {name: room(gate) for name, gate in runner.gates.items()}
        self.hidden, self.cell = room(initial.hidden.T), None if runner.cell is None else room(runner.cell)

    def add(self, t: int, hidden: Array) -> None:
        """Copy what one token computed."""
        for name, gate in self.runner.gates.items():
            self.gates[name][t] = gate
        self.hidden[t] = hidden
        if self.cell is not None:
            self.cell[t] = self.runner.cell

    def trace(self, lengths: Array | None) -> Trace:
        """The trace, with 0 after the end of a text."""
        is_ended = None if lengths is None else np.arange(len(self.hidden))[:, None] >= lengths

        def texts(array: Array) -> Array:
            if is_ended is not None:
                array.swapaxes(1, 2)[is_ended] = 0
            return array.transpose(2, 0, 1)

        gates = {name: texts(gate) for name, gate in self.gates.items()}
        return Trace(gates, texts(self.hidden), None if self.cell is None else texts(self.cell), self.initial)


PART = 1 << 12  # tokens of a long text that run through all layers before the next
States = tuple[State | None, State | None]  # of the forward and of the reverse direction


class RecurrentLayer(NamedTuple):
    """Parameters of the forward direction of a layer, of its reverse, or of both."""

    forward: Parameters | None = None
    reverse: Parameters | None = None

    def directions(self) -> list[tuple[int, Parameters]]:
        """Number and parameters of each direction; 0 is forward, 1 reverse."""
        return [(number, one) for number, one in enumerate(self) if one is not None]


class LayerRun(NamedTuple):
    """Outputs (B, T, P) of a layer, or (B, T, 2 P), and the run of each direction."""

    outputs: Array
    forward: DirectionRun | None
    reverse: DirectionRun | None

    def states(self) -> States:
        """Final state of each direction."""
        return (
            None if self.forward is None else self.forward.state,
            None if self.reverse is None else self.reverse.state,
        )


def run_layer(
    cell: str,
    x: Array,
    layer: RecurrentLayer,
    states: States = (None, None),
    *,
    lengths: Array | None = None,
    offset: int = 0,
    has_trace: bool = False,
) -> LayerRun:
    """Outputs of a layer at every token, both directions side by side.

    x (B, T, D), states (B, P) and (B, H) [zeros], lengths (B,) [T] -> outputs (B, T, P) or (B, T, 2 P)

    A reverse direction reads each text from its own last token. With `has_trace` the runs have what the adjoint needs.
    `offset` is the number of tokens before x: a text that is cut anywhere, whose parts begin with the states and the
    number of tokens before them, has the same bits as the whole. Errors: see
    `run_direction`, which this equals up to rounding.

    >>> one = {"input": np.ones((1, 1)), "hidden": np.ones((1, 1))}
    >>> run_layer("relu", np.array([[[1.0], [2.0]]]), RecurrentLayer(one, one)).outputs.tolist()
    [[[1.0, 3.0], [3.0, 2.0]]]
    """
    if not layer.directions():
        raise DataError("a layer without parameters of any direction")
    runs: list[DirectionRun | None] = [None, None]
    for number, parameters in layer.directions():
        runs[number] = run_direction_in_blocks(
            cell, x, parameters, states[number],
            lengths=lengths, reverse=number == 1, offset=offset, has_trace=has_trace,
        )  # fmt: skip
    outputs = [run.outputs for run in runs if run is not None]
    return LayerRun(outputs[0] if len(outputs) == 1 else np.concatenate(outputs, -1), *runs)


def run_stack(
    cell: str,
    x: Array,
    layers: Sequence[RecurrentLayer],
    states: Sequence[States] | None = None,
    *,
    lengths: Array | None = None,
    offset: int = 0,
    has_trace: bool = False,
) -> list[LayerRun]:
    """Runs of layers, each of which reads the outputs of the one before.

    x (B, T, D) -> one run for each layer

    Arguments and errors: see `run_layer`.

    >>> layer = RecurrentLayer({"input": np.ones((1, 1)), "hidden": np.ones((1, 1))})
    >>> run_stack("relu", np.array([[[1.0], [2.0]]]), [layer, layer])[-1].outputs.ravel().tolist()
    [1.0, 4.0]
    """
    runs: list[LayerRun] = []
    for number, layer in enumerate(layers):
        before = (None, None) if states is None else states[number]
        runs.append(run_layer(cell, x, layer, before, lengths=lengths, offset=offset, has_trace=has_trace))
        x = runs[-1].outputs
    return runs


def run_long_text(
    cell: str, x: Array, layers: Sequence[RecurrentLayer], states: Sequence[States] | None = None, *, offset: int = 0
) -> tuple[Array, list[States]]:
    """Outputs and final states of forward layers, in less memory.

    x (B, T, D), states (B, P) and (B, H) [zeros] -> outputs (B, T, P), states of each layer

    They are those of `run_stack`, to the bit. A part of the tokens runs through all layers before the next, so that the
    outputs of inner layers are not held. Errors: see `run_layer`.

    >>> layer = RecurrentLayer({"input": np.ones((1, 1)), "hidden": np.ones((1, 1))})
    >>> outputs, states = run_long_text("relu", np.array([[[1.0], [2.0]]]), [layer, layer])
    >>> outputs.ravel().tolist(), states[1][0].hidden.tolist()
    ([1.0, 4.0], [[4.0]])
    """
    outputs: Array | None = None
    for start in range(0, max(x.shape[1], 1), PART):
        runs = run_stack(cell, x[:, start : start + PART], layers, states, offset=offset + start)
        states, part = [run.states() for run in runs], runs[-1].outputs
        if outputs is None:
            if x.shape[1] <= PART:
                return part, states
            outputs = np.empty((*x.shape[:2], part.shape[-1]), part.dtype)
        outputs[:, start : start + PART] = part
    if outputs is None or states is None:
        raise DataError("no layers")
    return outputs, list(states)
