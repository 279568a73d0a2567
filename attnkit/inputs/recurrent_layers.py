"""Run recurrent layers on a record: its texts and lengths, states in files, and intermediates by name."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.inputs.masking import has_mask_for, select_mask
from attnkit.model.checks import as_text
from attnkit.model.dtypes import is_float
from attnkit.model.recurrent import DirectionRun, check_sequences
from attnkit.model.recurrent_cells import CELLS, State
from attnkit.model.recurrent_layers import LayerRun, RecurrentLayer, States, run_long_text, run_stack
from attnkit.record import Array, Record, Tensor, join_names

# name of an intermediate -> the gate of the model
GATE_NAMES = {
    "input_gate": "input",
    "forget_gate": "forget",
    "reset_gate": "reset",
    "update_gate": "update",
    "candidate": "candidate",
    "output_gate": "output",
}
INTERMEDIATES = (*GATE_NAMES, "cell", "state")
GROUPS = ("gates", "all")
NAMED = re.compile(rf"({'|'.join(INTERMEDIATES)})(_l[0-9]+)?(_reverse)?")


class Texts(NamedTuple):
    """What the layers read: x (B, T, D), and the number of tokens of each text where some are padded."""

    x: Array
    lengths: Array | None
    is_batch: bool


def find_texts(record: Record, lengths: Record | None) -> Texts:
    """Return x of a record as a batch, with lengths of a flag or of the padding in its mask."""
    x = record["x"]
    if x.ndim not in (2, 3):
        raise DataError(f"x {as_text(x.shape)}: expected (token, model) or (batch, token, model)")
    is_batch = x.ndim == 3
    texts = x if is_batch else x[None]
    if lengths is not None:
        counts = np.atleast_1d(lengths["x"])
        if counts.dtype.kind == "f" and (counts == np.floor(counts)).all():
            counts = counts.astype(np.int64)
        try:
            check_sequences(texts, counts)
        except DataError as error:
            raise DataError(error.problem.removeprefix("lengths: "), "--lengths") from None
        return Texts(texts, counts, is_batch)
    return Texts(texts, find_lengths(record, texts), is_batch)


def find_lengths(record: Record, x: Array) -> Array | None:
    """Return the number of tokens of each text by the record's mask; None where all have T.

    A token to which no token may attend is padding. DataError where padding precedes a token.

    >>> mask = np.array([[[True, False, False], [True, True, False], [True, True, False]]])
    >>> find_lengths(Record({"x": np.zeros((1, 3, 4)), "mask": mask}), np.zeros((1, 3, 4))).tolist()
    [2]
    """
    if not has_mask_for(record, "x"):
        return None
    mask = np.atleast_2d(select_mask(record, "mask", record["x"])["x"])
    may_attend = np.isfinite(mask) if mask.dtype.kind == "f" else model.to_boolean(mask)
    is_token = may_attend.any(axis=tuple(range(1, mask.ndim - 1)) if mask.ndim > 2 else 0)
    try:
        is_token = np.broadcast_to(is_token, x.shape[:2])
    except ValueError:
        raise DataError(f"mask {as_text(mask.shape)} does not broadcast to {as_text(x.shape[:2])}") from None
    counts: Array = is_token.sum(-1)
    if (is_token != (np.arange(x.shape[1]) < counts[:, None])).any():
        raise DataError("mask: padding must follow the tokens of a text")
    return None if (counts == x.shape[1]).all() else counts


def state_shapes(cell: str, layers: Sequence[RecurrentLayer], texts: Texts) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a file of states.

    hidden (L, B, P), and of an LSTM cell (L, B, H), with L layers · directions; without B for one text
    """
    parameters = [one for layer in layers for _, one in layer.directions()]
    lead = (len(parameters), len(texts.x)) if texts.is_batch else (len(parameters),)
    shapes = {"hidden": (*lead, parameters[0]["hidden"].shape[1])}
    if CELLS[cell].has_cell_state:
        shapes["cell"] = (*lead, len(parameters[0]["hidden"]) // CELLS[cell].blocks)
    return shapes


def read_state_file(
    tensors: Mapping[str, Array], cell: str, layers: Sequence[RecurrentLayer], texts: Texts
) -> tuple[list[States], int]:
    """Return the states of every layer in a file, and the number of tokens before them; DataError where they don't fit.

    hidden (L, B, P), cell (L, B, H) in the order of layers, forward before reverse; position: tokens before [0]
    """
    shapes = state_shapes(cell, layers, texts)
    for name, shape in shapes.items():
        if name not in tensors:
            raise DataError(f"no {name} (it has {join_names([*tensors])})", "--state-in")
        if tensors[name].shape != shape:
            raise DataError(f"{name} {as_text(tensors[name].shape)}: expected {as_text(shape)}", "--state-in")
        if not is_float(tensors[name].dtype):
            raise DataError(f"{name} is {tensors[name].dtype}: expected floats", "--state-in")
    if unknown := sorted(set(tensors) - {*shapes, "position"}):
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(shapes)}, position", "--state-in")
    position = tensors.get("position", np.array(0))
    if position.shape or position.dtype.kind not in "iu" or position < 0:
        raise DataError("position: expected one whole number of at least 0", "--state-in")
    parts = {name: array if texts.is_batch else array[:, None] for name, array in tensors.items() if name in shapes}
    rows = iter(range(next(iter(shapes.values()))[0]))
    states: list[States] = []
    for layer in layers:
        both: list[State | None] = [None, None]
        for direction, _ in layer.directions():
            row = next(rows)
            both[direction] = State(parts["hidden"][row], parts["cell"][row] if "cell" in parts else None)
        states.append((both[0], both[1]))
    return states, int(position)


def states_record(states: Sequence[States], texts: Texts, position: int) -> Record:
    """Return states as the record of a file: hidden, cell and position, as `read_state_file` reads them."""
    every = [state for pair in states for state in pair if state is not None]
    parts = {"hidden": [one.hidden for one in every], "cell": [one.cell for one in every if one.cell is not None]}
    lead = ("layer", "batch")[: 1 + texts.is_batch]
    tensors: dict[str, Tensor | Array] = {}
    for (name, arrays), axis in zip(parts.items(), ("model", "hidden"), strict=True):
        if arrays:
            stacked = np.stack(arrays)
            tensors[name] = Tensor(stacked if texts.is_batch else stacked[:, 0], (*lead, axis))
    return Record(tensors | {"position": Tensor(np.array(position, np.int64), ())})


def expand_names(keep: Collection[str], cell: str, steps: bool, is_state_x: bool) -> tuple[str, ...]:
    """Return the names of intermediates for those of --keep, all of them for --steps; UsageError for one not there.

    is_state_x  whether x is the state, so that --steps does not add it too

    >>> expand_names(("gates",), "gru", False, True)
    ('reset_gate', 'update_gate', 'candidate')
    """
    gates = find_gates(cell)
    known = (*gates, *("cell",) * CELLS[cell].has_cell_state, "state")
    groups = {"gates": gates or ("gates",), "all": known}
    names = [one for name in keep for one in groups.get(name, (name,))]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"a cell {cell} has no {' and no '.join(unknown)} (it has {', '.join(known)})", "--keep")
    names += [name for name in known if steps and not (is_state_x and name == "state")]
    return tuple(name for name in known if name in names)


def find_gates(cell: str) -> tuple[str, ...]:
    """Return the names of the gates of a cell.

    >>> find_gates("gru")
    ('reset_gate', 'update_gate', 'candidate')
    """
    return tuple(name for name, gate in GATE_NAMES.items() if gate in CELLS[cell].gates)


def describe_runs(
    runs: Sequence[LayerRun], names: Collection[str], record: Record, formulas: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return intermediates by name; of several layers or directions with the ending of PyTorch's names, _l0_reverse."""
    axes = record.axes_of("x")
    tensors: dict[str, Tensor] = {}
    is_batch = record["x"].ndim == 3
    is_one = len(runs) == 1 and None in runs[0][1:]
    for number, run in enumerate(runs):
        pair: list[tuple[str, DirectionRun | None]] = [("", run.forward), ("_reverse", run.reverse)]
        for direction, one in pair:
            if one is None or one.trace is None:
                continue
            ending = "" if is_one else f"_l{number}{direction}"
            arrays = {name: one.trace.gates.get(gate) for name, gate in GATE_NAMES.items()}
            arrays |= {"cell": one.trace.cell, "state": one.trace.hidden}
            for name in names:
                if (array := arrays[name]) is not None:
                    own = np.ascontiguousarray(array if is_batch else array[0]).astype(run.outputs.dtype, copy=False)
                    last = "model" if name == "state" else "hidden"
                    tensors[name + ending] = Tensor(own, (*axes[:-1], last), formula=formulas[name])
    return tensors


def earlier_gates(record: Record) -> list[str]:
    """Return the names of the intermediates that an earlier rnn left in a record, by their names and axes."""
    names = [name for name in record if NAMED.fullmatch(name)]
    return [name for name in names if (record.tensors[name].axes or ())[-1:] in (("hidden",), ("model",))]


def name_cell_formulas(cell: str, parameters: Collection[str]) -> dict[str, str]:
    """Return the formula of every intermediate of a cell with these parameters.

    >>> name_cell_formulas("tanh", ("input", "hidden")), name_cell_formulas("relu", ("input_bias",))
    ({'state': 'tanh(W x + U h)'}, {'state': 'relu(W x + U h + b)'})
    """
    formulas = cell_formulas(cell, "peephole" in parameters, "projection" in parameters)
    if "input_bias" in parameters or "hidden_bias" in parameters:
        return formulas
    return {name: re.sub(r" \+ [bc](_.)?(?=\))", "", formula) for name, formula in formulas.items()}


def cell_formulas(cell: str, has_peepholes: bool, has_projection: bool) -> dict[str, str]:
    """Return the formula of every intermediate of a cell with biases."""
    if not CELLS[cell].gates:
        return {"state": f"{cell}(W x + U h + b)"}
    if cell != "lstm":
        inner = "U_n (reset_gate · h)" if cell == "gru-reset-before" else "reset_gate · (U_n h + c_n)"
        return {
            "reset_gate": "σ(W_r x + U_r h + b_r)",
            "update_gate": "σ(W_z x + U_z h + b_z)",
            "candidate": f"tanh(W_n x + {inner} + b_n)",
            "state": "(1 − update_gate) · candidate + update_gate · h",
        }
    before, after = (f" + p_{gate} · {name}" if has_peepholes else "" for gate, name in (("", "c"), ("o", "cell")))
    formulas = {
        f"{name}_gate": f"σ(W_{name[0]} x + U_{name[0]} h{before.replace('p_', f'p_{name[0]}')} + b_{name[0]})"
        for name in ("input", "forget")
    }
    formulas |= {"candidate": "tanh(W_g x + U_g h + b_g)", "output_gate": f"σ(W_o x + U_o h{after} + b_o)"}
    formulas |= {"cell": "forget_gate · c + input_gate · candidate"}
    return formulas | {"state": "V (output_gate · tanh(cell))" if has_projection else "output_gate · tanh(cell)"}


def run_texts(
    cell: str, texts: Texts, layers: Sequence[RecurrentLayer], flags: Mapping[str, Any], has_trace: bool
) -> tuple[list[LayerRun], Array, list[States], int]:
    """Run layers on the texts of a record from the states of --state-in.

    -> the runs (none of a long text without a trace), outputs (B, T, …), final states, tokens up to there
    """
    states: list[States] | None = None
    offset = 0
    if flags["state_in"] is not None:
        states, offset = read_state_file(flags["state_in"], cell, layers, texts)
    is_whole = has_trace or texts.lengths is not None or any(layer.reverse is not None for layer in layers)
    position = offset + texts.x.shape[1]
    if is_whole:
        runs = run_stack(cell, texts.x, layers, states, lengths=texts.lengths, offset=offset, has_trace=has_trace)
        return runs, runs[-1].outputs, [run.states() for run in runs], position
    outputs, after = run_long_text(cell, texts.x, layers, states, offset=offset)
    return [], outputs, after, position
