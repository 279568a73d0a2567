"""Run recurrent layers on a record: texts, states in files, intermediates by name."""

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import typer

from attnkit import formats, model, options
from attnkit.errors import DataError, UsageError, counted
from attnkit.inputs.operands import read_position, read_state_parts
from attnkit.inputs.padding import find_lengths
from attnkit.model.checks import as_text
from attnkit.model.formulas.recurrent import (
    DirectionRun,
    LayerRun,
    RecurrentLayer,
    States,
    check_sequences,
    run_long_text,
    run_stack,
)
from attnkit.model.formulas.recurrent_cells import CELLS, State, check_parameters
from attnkit.records import Array, Record, Tensor, join_names

OBJECTS = 500  # bytes that a layer takes beside its numbers, at least
# PyTorch's names, and one that it does not have -> those of the model
TORCH = {
    "weight_ih": "input",
    "weight_hh": "hidden",
    "bias_ih": "input_bias",
    "bias_hh": "hidden_bias",
    "weight_hr": "projection",
    "peephole": "peephole",
}
TORCH_NAME = re.compile(rf"((?:.*\.)?)({'|'.join(TORCH)})(?:_l([0-9]{{1,4}})(_reverse)?)?")
ONNX = ("W", "R", "B", "P")
# blocks of rows -> the cell, and its gates in the order of each layout
GATES = {1: ("an RNN without gates", "", ""), 3: ("a GRU", "r z n", "z r h"), 4: ("an LSTM", "i f g o", "i o f c")}
# blocks of rows -> the places of ONNX's blocks in PyTorch's order
FROM_ONNX = {1: (0,), 3: (1, 0, 2), 4: (0, 2, 3, 1)}
PEEPHOLES_FROM_ONNX = (0, 2, 1)  # ONNX: i o f


class RecurrentWeights(NamedTuple):
    """The layers of a recurrent network, and the layout that their file has.

    layout  torch or onnx
    prefix  of the names in a file of PyTorch's layout
    """

    layers: list[RecurrentLayer]
    layout: str = "torch"
    prefix: str = ""

    def by_name(self, layers: Sequence[RecurrentLayer]) -> dict[str, Array]:
        """Name and arrange parameters, or their gradients, as in the file."""
        if self.layout == "onnx":
            return to_onnx([one for one in layers[0] if one is not None])
        own = {name: published for published, name in TORCH.items()}
        return {
            f"{self.prefix}{own[name]}_l{number}{'_reverse' * is_reverse}": array
            for number, layer in enumerate(layers)
            for is_reverse, (_, parameters) in enumerate(layer.directions())
            for name, array in parameters.items()
        }


class RecurrentOptions(NamedTuple):
    """The cell of recurrent layers, and their weights: drawn, or of a file."""

    cell: Annotated[
        str,
        options.choice(
            CELLS,
            "what computes the next state: tanh and relu without gates; gru with the reset gate after the product, as "
            "in PyTorch and cuDNN; gru-reset-before as in Cho et al. 2014 (ONNX: linear_before_reset = 0); lstm",
        ),
    ] = "tanh"
    hidden: Annotated[int | None, typer.Option(min=1, metavar="H", help="random weights of this hidden width")] = None
    layers: Annotated[
        int, typer.Option(min=1, help="number of layers, each of which reads the results of the layer before it")
    ] = 1
    bidirectional: Annotated[
        bool, typer.Option(help="read each text in both directions, and concatenate the results")
    ] = False
    reverse: Annotated[bool, typer.Option(help="read each text from its end to its start")] = False
    projection: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="project the hidden state of an LSTM to this width")
    ] = None
    peepholes: Annotated[bool, typer.Option(help="let the gates of an LSTM read the cell state")] = False
    seed: Annotated[int, typer.Option(min=0, help="seed of the random weights")] = 0
    params: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors", "weights as PyTorch names them (weight_ih_l0, weight_hh_l0_reverse, …) or ONNX (W, R, B, P)"
        ),
    ] = None


def find_recurrent_weights(x: Array, chosen: RecurrentOptions) -> RecurrentWeights:
    """Draw weights, forward before reverse, from N(0, 1/columns), or read --params."""
    cell, hidden, layers, width = chosen.cell, chosen.hidden, chosen.layers, x.shape[-1] if x.ndim else 0
    if hidden is None:
        return fit_weights(read_recurrent_weights(chosen.params or {}, cell), cell, width, chosen.reverse)
    blocks = CELLS[cell].blocks
    for flag, is_set in (("--projection", chosen.projection), ("--peepholes", chosen.peepholes)):
        if is_set and cell != "lstm":
            raise UsageError(f"needs --cell lstm, not {cell}", flag)
    rng, dtype = np.random.default_rng(chosen.seed), model.output_dtype(x)
    output = chosen.projection or hidden
    shapes = {"input": (blocks * hidden, width), "hidden": (blocks * hidden, output)}
    shapes |= {"peephole": (3, hidden)} if chosen.peepholes else {}
    shapes |= {"projection": (output, hidden)} if chosen.projection else {}
    directions = 1 + chosen.bidirectional
    first = sum(math.prod(shape) for shape in shapes.values())
    later = first + blocks * hidden * (output * directions - width)
    size = directions * (dtype.itemsize * (first + (layers - 1) * later) + OBJECTS * layers)
    formats.check_memory(size, f"a network of {layers} × {hidden} states", "--hidden")
    drawn = []
    for _ in range(layers):
        weights: list[dict[str, Array] | None] = [
            {name: model.random_weight(rng, *shape[::-1]).T.astype(dtype) for name, shape in shapes.items()}
            for _ in range(directions)
        ]
        drawn.append(RecurrentLayer(*([None] * chosen.reverse + weights)))
        shapes["input"] = (blocks * hidden, output * directions)
    return RecurrentWeights(drawn)


def fit_weights(weights: RecurrentWeights, cell: str, width: int, reverse: bool) -> RecurrentWeights:
    """Check the weights of a file by the width of their input, and reverse them."""
    if reverse:
        if weights.layers[0].reverse is not None:
            raise UsageError("--params has both directions of each layer", "--reverse")
        weights = weights._replace(layers=[RecurrentLayer(None, layer.forward) for layer in weights.layers])
    for number, layer in enumerate(weights.layers):
        for _, parameters in layer.directions():
            try:
                check_parameters(cell, parameters, width)
            except DataError as error:
                raise DataError(f"layer {number}: {error.problem}", "--params") from None
        width = sum(parameters["hidden"].shape[1] for _, parameters in layer.directions())
    return weights


def read_recurrent_weights(params: Mapping[str, Array], cell: str) -> RecurrentWeights:
    """Read the layers of a file in PyTorch's or ONNX's layout.

    DataError names the layout and the order of gates that the file has, if the cell has others.

    >>> one = np.ones((1, 1))
    >>> read_recurrent_weights({"weight_ih_l0": one, "weight_hh_l0": one}, "tanh").layers[0].forward["input"]
    array([[1.]])
    """
    if any(TORCH_NAME.fullmatch(name) for name in params):
        weights = read_torch(params)
    elif {"W", "R"} <= set(params):
        weights = read_onnx(params)
    else:
        raise DataError(
            "neither PyTorch's layout (weight_ih_l0, weight_hh_l0, …) nor ONNX's (W, R, B, P): "
            f"it has {join_names([*params])}",
            "--params",
        )
    for number, layer in enumerate(weights.layers):
        for _, parameters in layer.directions():
            check_blocks(parameters, cell, number, weights.layout)
    return weights


def read_torch(params: Mapping[str, Array]) -> RecurrentWeights:
    """Read the layers of a state dict of torch.nn.RNN, GRU or LSTM, or of their cells."""
    prefixes: dict[str, None] = {}
    layers: dict[int, tuple[dict[str, Array], dict[str, Array]]] = {}
    for name, array in params.items():
        if match := TORCH_NAME.fullmatch(name):
            prefixes[match[1]] = None
            directions = layers.setdefault(int(match[3] or 0), ({}, {}))
            directions[match[4] is not None][TORCH[match[2]]] = array
        elif "." not in name:
            raise DataError(
                f"{name} is not a name of PyTorch's layout (weight_ih_l0, bias_hh_l0_reverse, …)", "--params"
            )
    if len(prefixes) > 1:
        raise DataError(f"recurrent layers of several modules: {join_names([*prefixes])}; save one of them", "--params")
    published = {name: one for one, name in TORCH.items()}
    is_bidirectional = any(reverse for _, reverse in layers.values())
    for number, direction in itertools.product(range(max(layers) + 1), range(1 + is_bidirectional)):
        names = layers.get(number, ({}, {}))[direction]
        if missing := [published[name] for name in ("input", "hidden") if name not in names]:
            ending = f"_l{number}{'_reverse' * direction}"
            raise DataError(f"no {' and no '.join(one + ending for one in missing)}", "--params")
    ordered = [RecurrentLayer(forward, reverse or None) for _, (forward, reverse) in sorted(layers.items())]
    return RecurrentWeights(ordered, prefix=next(iter(prefixes)))


def read_onnx(params: Mapping[str, Array]) -> RecurrentWeights:
    """Read the layer in W, R, B and P of ONNX, in PyTorch's order of gates."""
    if unknown := [name for name in params if name not in ONNX]:
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(ONNX)}", "--params")
    w, r = params["W"], params["R"]
    if w.ndim != 3 or r.ndim != 3 or len(w) not in (1, 2) or w.shape[:2] != r.shape[:2]:
        shapes = f"W {as_text(w.shape)} and R {as_text(r.shape)}"
        raise DataError(f"{shapes}: expected (directions, gates·hidden, …), 1 or 2 directions", "--params")
    rows, hidden = r.shape[1:]
    for name, shape in (("B", (len(w), 2 * rows)), ("P", (len(w), 3 * hidden))):
        if name in params and params[name].shape != shape:
            raise DataError(f"{name} {as_text(params[name].shape)}: expected {as_text(shape)}", "--params")
    blocks = rows // hidden if hidden and not rows % hidden else 0
    if blocks not in FROM_ONNX:
        raise DataError(f"R {as_text(r.shape)}: expected (directions, G·hidden, hidden) with G 1, 3 or 4", "--params")
    order, directions = FROM_ONNX[blocks], []
    for number in range(len(w)):
        own = {"input": take_blocks(w[number], order), "hidden": take_blocks(r[number], order)}
        if "B" in params:
            input_bias, hidden_bias = np.split(params["B"][number], 2)
            own |= {"input_bias": take_blocks(input_bias, order), "hidden_bias": take_blocks(hidden_bias, order)}
        if "P" in params:
            own["peephole"] = params["P"][number].reshape(3, hidden)[list(PEEPHOLES_FROM_ONNX)]
        directions.append(own)
    return RecurrentWeights([RecurrentLayer(*directions)], "onnx")


def to_onnx(directions: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The directions of a layer as ONNX's W, R, B and P; the inverse of `read_onnx`."""
    hidden = directions[0]["hidden"].shape[1]
    order = FROM_ONNX[len(directions[0]["hidden"]) // hidden]
    back = tuple(order.index(block) for block in range(len(order)))
    arrays = {
        "W": [take_blocks(one["input"], back) for one in directions],
        "R": [take_blocks(one["hidden"], back) for one in directions],
    }
    if "input_bias" in directions[0]:
        names = ("input_bias", "hidden_bias")
        arrays["B"] = [np.concatenate([take_blocks(one[name], back) for name in names]) for one in directions]
    if "peephole" in directions[0]:
        arrays["P"] = [one["peephole"][list(PEEPHOLES_FROM_ONNX)].ravel() for one in directions]
    return {name: np.stack(parts) for name, parts in arrays.items()}


def take_blocks(weight: Array, order: Sequence[int]) -> Array:
    """The blocks of rows of a weight in another order.

    >>> take_blocks(np.array([1, 2, 3]), (1, 0, 2)).tolist()
    [2, 1, 3]
    """
    return weight.reshape(len(order), -1, *weight.shape[1:])[list(order)].reshape(weight.shape)


def check_blocks(parameters: Mapping[str, Array], cell: str, layer: int, layout: str) -> None:
    """Raise DataError unless the weights have as many blocks as the cell has gates."""
    hidden, is_torch = parameters["hidden"], layout == "torch"
    name = f"weight_hh_l{layer}" if is_torch else "R"
    inner = parameters.get("projection", hidden)
    rows, width = (len(hidden), inner.shape[1]) if hidden.ndim == inner.ndim == 2 else (0, 0)
    blocks = rows // width if width and not rows % width else 0
    if blocks not in GATES:
        is_transposed = hidden.ndim == 2 and rows and not hidden.shape[1] % rows
        hint = "; it is transposed" if is_transposed else ""
        raise DataError(
            f"{name} {as_text(hidden.shape)}: expected (G·hidden, hidden) with G 1, 3 or 4{hint}", "--params"
        )
    if blocks != CELLS[cell].blocks:
        own, expected = (describe_blocks(number, is_torch) for number in (blocks, CELLS[cell].blocks))
        title = "PyTorch's" if is_torch else "ONNX's"
        raise DataError(f"{title} layout of {own}, but --cell {cell} is {expected}", "--params")


def describe_blocks(blocks: int, is_torch: bool) -> str:
    """Describe the kind of cell by its blocks of rows, and its gates in order.

    >>> describe_blocks(3, True), describe_blocks(1, False)
    ('a GRU (3 blocks of rows: r z n)', 'an RNN without gates (1 block of rows)')
    """
    kind, *orders = GATES[blocks]
    gates = orders[not is_torch]
    return f"{kind} ({counted(blocks, 'block')} of rows{': ' * bool(gates)}{gates})"


GATE_ORDER = ("input", "forget", "reset", "update", "candidate", "output")
# name of an intermediate -> the gate of the model
GATE_NAMES = {f"{gate}_gate" if gate != "candidate" else gate: gate for gate in GATE_ORDER}
INTERMEDIATES = (*GATE_NAMES, "cell", "state")
GROUPS = ("gates", "all")
NAMED = re.compile(rf"({'|'.join(INTERMEDIATES)})(_l[0-9]+)?(_reverse)?")


class Texts(NamedTuple):
    """Texts x (B, T, D), with the number of tokens of each if some are padded."""

    x: Array
    lengths: Array | None
    is_batch: bool


class RecurrentOperands(NamedTuple):
    """The texts that recurrent layers read, and their weights."""

    texts: Texts
    weights: RecurrentWeights


def find_texts(record: Record, lengths: Record | None) -> Texts:
    """Read x of a record as a batch, with the lengths of its texts."""
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


def read_state_file(
    tensors: Mapping[str, Array], cell: str, layers: Sequence[RecurrentLayer], texts: Texts
) -> tuple[list[States], int]:
    """The states of every layer in a file, and the number of tokens before them.

    hidden (L, B, P), cell (L, B, H) in the order of layers, forward before reverse; position: tokens before [0]
    """
    parameters = [one for layer in layers for _, one in layer.directions()]
    lead = (len(parameters), len(texts.x)) if texts.is_batch else (len(parameters),)
    shapes = {"hidden": (*lead, parameters[0]["hidden"].shape[1])}
    if CELLS[cell].has_cell_state:
        shapes["cell"] = (*lead, len(parameters[0]["hidden"]) // CELLS[cell].blocks)
    stated = read_state_parts(tensors, shapes)
    position = read_position(tensors)
    parts = [part if texts.is_batch else part[:, None] for part in stated.values()]
    rows = iter([State(*row) for row in zip(*parts, strict=True)])
    states: list[States] = []
    for layer in layers:
        both: list[State | None] = [None, None]
        for direction, _ in layer.directions():
            both[direction] = next(rows)
        states.append((both[0], both[1]))
    return states, position


def states_record(states: Sequence[States], texts: Texts, position: int) -> Record:
    """Make the record of a file of states, as `read_state_file` reads it."""
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
    """Expand the groups of --keep to names of intermediates; --steps requests all.

    is_state_x  whether x is the state, so that --steps does not add it too

    >>> expand_names(("gates",), "gru", False, True)
    ('reset_gate', 'update_gate', 'candidate')
    """
    gates = tuple(name for name, gate in GATE_NAMES.items() if gate in CELLS[cell].gates)
    known = (*gates, *("cell",) * CELLS[cell].has_cell_state, "state")
    groups = {"gates": gates or ("gates",), "all": known}
    names = [one for name in keep for one in groups.get(name, (name,))]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"a cell {cell} has no {' and no '.join(unknown)} (it has {', '.join(known)})", "--keep")
    names += [name for name in known if steps and not (is_state_x and name == "state")]
    return tuple(name for name in known if name in names)


def describe_runs(
    runs: Sequence[LayerRun], names: Collection[str], record: Record, formulas: Mapping[str, str]
) -> dict[str, Tensor]:
    """Describe intermediates by name, with endings as _l0_reverse for several layers."""
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
    """The names of the intermediates that an earlier rnn left in a record."""
    names = [name for name in record if NAMED.fullmatch(name)]
    return [name for name in names if (record.tensors[name].axes or ())[-1:] in (("hidden",), ("model",))]


def name_cell_formulas(cell: str, parameters: Collection[str]) -> dict[str, str]:
    """The formula of every intermediate of a cell with these parameters.

    >>> name_cell_formulas("tanh", ("input", "hidden")), name_cell_formulas("relu", ("input_bias",))
    ({'state': 'tanh(W x + U h)'}, {'state': 'relu(W x + U h + b)'})
    """
    if not CELLS[cell].gates:
        formulas = {"state": f"{cell}(W x + U h + b)"}
    elif cell == "lstm":
        peephole = " + p_{} · {}" if "peephole" in parameters else ""
        projection = "V (output_gate · tanh(cell))" if "projection" in parameters else "output_gate · tanh(cell)"
        formulas = {
            "input_gate": f"σ(W_i x + U_i h{peephole.format('i', 'c')} + b_i)",
            "forget_gate": f"σ(W_f x + U_f h{peephole.format('f', 'c')} + b_f)",
            "candidate": "tanh(W_g x + U_g h + b_g)",
            "output_gate": f"σ(W_o x + U_o h{peephole.format('o', 'cell')} + b_o)",
            "cell": "forget_gate · c + input_gate · candidate",
            "state": projection,
        }
    else:
        inner = "U_n (reset_gate · h)" if cell == "gru-reset-before" else "reset_gate · (U_n h + c_n)"
        formulas = {
            "reset_gate": "σ(W_r x + U_r h + b_r)",
            "update_gate": "σ(W_z x + U_z h + b_z)",
            "candidate": f"tanh(W_n x + {inner} + b_n)",
            "state": "(1 − update_gate) · candidate + update_gate · h",
        }
    if "input_bias" in parameters or "hidden_bias" in parameters:
        return formulas
    return {name: re.sub(r" \+ [bc](_.)?(?=\))", "", formula) for name, formula in formulas.items()}


def run_texts(
    cell: str, texts: Texts, layers: Sequence[RecurrentLayer], state_in: Mapping[str, Array] | None, has_trace: bool
) -> tuple[list[LayerRun], Array, list[States], int]:
    """Run layers on the texts of a record from the states of --state-in.

    -> the runs (none of a long text without a trace), outputs (B, T, …), final states, tokens up to there
    """
    states, offset = (None, 0) if state_in is None else read_state_file(state_in, cell, layers, texts)
    is_whole = has_trace or texts.lengths is not None or any(layer.reverse is not None for layer in layers)
    position = offset + texts.x.shape[1]
    if is_whole:
        runs = run_stack(cell, texts.x, layers, states, lengths=texts.lengths, offset=offset, has_trace=has_trace)
        return runs, runs[-1].outputs, [run.states() for run in runs], position
    outputs, after = run_long_text(cell, texts.x, layers, states, offset=offset)
    return [], outputs, after, position
