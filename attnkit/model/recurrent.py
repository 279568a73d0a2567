"""Recurrent networks: one step of a cell, and one direction of a layer over the tokens of each text.

The letters and the parameters are those of recurrent_cells.py. kernels/recurrent.py computes the same faster, and
recurrent_layers.py runs layers of one or both directions.
"""

from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, output_dtype, quiet
from attnkit.model.recurrent_cells import (
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


@quiet
def step(cell: str, x: Array, state: State | None, parameters: Parameters) -> tuple[State, dict[str, Array]]:
    """Return the state of a cell after one more input, and the gates by name.

    x (..., D), state (..., P) and (..., H) [zeros] -> the same, {gate: (..., H)}

    Computed and returned in the dtype of `cell_dtype`. UsageError for an unknown cell; DataError where shapes do not
    match.

    >>> one = np.ones((1, 1))
    >>> state, gates = step("relu", np.array([2.0]), State(np.array([3.0])), {"input": one, "hidden": 10 * one})
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
    """What a direction computed at every token, which its adjoint needs; where a text has ended, all values are 0.

    gates    name -> (B, T, H), as `step` returns them
    hidden   (B, T, P), the outputs
    cell     (B, T, H), of an LSTM
    initial  the state before the first token
    """

    gates: dict[str, Array]
    hidden: Array
    cell: Array | None
    initial: State


class DirectionRun(NamedTuple):
    """The result of a direction: outputs (B, T, P), the state after the last token of each text, and the trace."""

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
    """Return the hidden state of one direction of a layer at every token, one `step` after the other.

    x (B, T, D), state (B, P) and (B, H) [zeros], lengths (B,) [T] -> outputs (B, T, P), state, trace

    The first `lengths` tokens of each text are run; outputs after them are 0, and the final state is that of the last
    of them. A reverse direction begins at the last of them. The trace is always returned. Errors are those of `step`,
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
    steps: list[tuple[State, dict[str, Array]]] = []
    for t in range(x.shape[1]):
        new, gates = step(cell, tokens[:, t], now, weights)
        is_token = np.full((len(x), 1), True) if lengths is None else (t < lengths)[:, None]
        steps.append((mask_state(new, is_token), {name: np.where(is_token, gate, 0) for name, gate in gates.items()}))
        now = select_state(is_token, new, now)
    trace = stack_steps(cell, steps, initial)
    trace = reverse_trace(trace, lengths) if reverse else trace
    return DirectionRun(trace.hidden.astype(output_dtype(x), copy=False), now, trace)


def stack_steps(cell: str, steps: list[tuple[State, dict[str, Array]]], initial: State) -> Trace:
    """Return states and gates (B, ...) of every token as arrays (B, T, ...)."""

    def stack(arrays: list[Array], like: Array) -> Array:
        return np.stack(arrays, 1) if arrays else np.empty((len(like), 0, like.shape[1]), like.dtype)

    names = steps[0][1] if steps else CELLS[cell].gates
    width = initial.hidden if initial.cell is None else initial.cell
    gates = {name: stack([gates[name] for _, gates in steps], width) for name in names}
    cells = None if initial.cell is None else stack([require_cell(state) for state, _ in steps], initial.cell)
    return Trace(gates, stack([state.hidden for state, _ in steps], initial.hidden), cells, initial)


def select_state(is_new: Array, new: State, old: State) -> State:
    """Return the new state where `is_new` (B, 1) is True, else the old one.

    >>> select_state(np.array([[True], [False]]), State(np.ones((2, 1))), State(np.zeros((2, 1)))).hidden.tolist()
    [[1.0], [0.0]]
    """
    cell = None if new.cell is None else np.where(is_new, new.cell, require_cell(old))
    return State(np.where(is_new, new.hidden, old.hidden), cell)


def mask_state(state: State, is_token: Array) -> State:
    """Return the state, and 0 where `is_token` (B, 1) is False."""
    return map_state(lambda part: np.where(is_token, part, 0), state)


def reverse_texts(x: Array, lengths: Array | None) -> Array:
    """Return each text from its own end to its start; what follows a text stays in its place.

    x (B, T, ...), lengths (B,) [T] -> (B, T, ...)

    >>> reverse_texts(np.array([[[1], [2], [3]]]), np.array([2])).ravel().tolist()
    [2, 1, 3]
    """
    if lengths is None:
        return x[:, ::-1]
    t = np.arange(x.shape[1])
    order = np.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x[np.arange(len(x))[:, None], order]


def reverse_trace(trace: Trace, lengths: Array | None) -> Trace:
    """Return a trace with the tokens of each text in the opposite order; its own inverse."""
    gates = {name: reverse_texts(gate, lengths) for name, gate in trace.gates.items()}
    cell = None if trace.cell is None else reverse_texts(trace.cell, lengths)
    return Trace(gates, reverse_texts(trace.hidden, lengths), cell, trace.initial)


def check_sequences(x: Array, lengths: Array | None) -> None:
    """Raise DataError unless x is (B, T, D), and lengths (B,) whole numbers from 0 to T."""
    if x.ndim != 3:
        raise DataError(f"x {as_text(x.shape)}: expected (batch, token, model)")
    if lengths is None:
        return
    if lengths.shape != x.shape[:1] or lengths.dtype.kind not in "iu":
        raise DataError(f"lengths {as_text(lengths.shape)} {lengths.dtype}: expected {len(x)} whole numbers")
    if len(lengths) and not (lengths.min() >= 0 and lengths.max() <= x.shape[1]):
        worst = next(int(one) for one in lengths if not 0 <= one <= x.shape[1])
        raise DataError(f"lengths: {worst} is not between 0 and {x.shape[1]}, the number of tokens")
