"""The weights of recurrent layers: of a file in PyTorch's or ONNX's layout, or random ones."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import formats, model
from attnkit.errors import DataError, UsageError, counted
from attnkit.model.checks import as_text
from attnkit.model.recurrent_cells import CELLS, check_parameters
from attnkit.model.recurrent_layers import RecurrentLayer
from attnkit.record import Array, join_names

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
        """Return parameters of these layers, or their gradients, as the file names and arranges them."""
        if self.layout == "onnx":
            return to_onnx([one for one in layers[0] if one is not None])
        own = {name: published for published, name in TORCH.items()}
        return {
            f"{self.prefix}{own[name]}_l{number}{'_reverse' * is_reverse}": array
            for number, layer in enumerate(layers)
            for is_reverse, parameters in enumerate_directions(layer)
            for name, array in parameters.items()
        }


def enumerate_directions(layer: RecurrentLayer) -> list[tuple[bool, Mapping[str, Array]]]:
    """Return whether a direction is named as a reverse one, and its parameters; one alone is named as forward.

    >>> enumerate_directions(RecurrentLayer(None, {}))
    [(False, {})]
    """
    return [(place == 1, parameters) for place, (_, parameters) in enumerate(layer.directions())]


def find_recurrent_weights(x: Array, flags: Mapping[str, Any]) -> RecurrentWeights:
    """Return the weights of rnn for the values of its flags, checked against the width of x."""
    cell, is_reverse = flags["cell"], flags["reverse"]
    if flags["hidden"] is not None:
        return random_recurrent_weights(x, flags)
    weights = read_recurrent_weights(flags["params"] or {}, cell)
    if is_reverse:
        if weights.layers[0].reverse is not None:
            raise UsageError("--params has both directions of each layer", "--reverse")
        weights = weights._replace(layers=[RecurrentLayer(None, layer.forward) for layer in weights.layers])
    width = x.shape[-1] if x.ndim else 0
    for number, layer in enumerate(weights.layers):
        for _, parameters in layer.directions():
            try:
                check_parameters(cell, parameters, width)
            except DataError as error:
                raise DataError(f"layer {number}: {error.problem}", "--params") from None
        width = sum(parameters["hidden"].shape[1] for _, parameters in layer.directions())
    return weights


def random_recurrent_weights(x: Array, flags: Mapping[str, Any]) -> RecurrentWeights:
    """Draw the weights of every layer, forward before reverse, from N(0, 1/columns), without biases."""
    cell, hidden, projection = flags["cell"], flags["hidden"], flags["projection"]
    blocks = CELLS[cell].blocks
    for name in ("projection", "peepholes"):
        if flags[name] and cell != "lstm":
            raise UsageError(f"needs --cell lstm, not {cell}", f"--{name}")
    rng, dtype = np.random.default_rng(flags["seed"]), model.output_dtype(x)
    width, output = x.shape[-1] if x.ndim else 0, projection or hidden
    shapes = {"input": (blocks * hidden, width), "hidden": (blocks * hidden, output)}
    shapes |= {"peephole": (3, hidden)} if flags["peepholes"] else {}
    shapes |= {"projection": (output, hidden)} if projection else {}
    check_network_size(shapes, flags, dtype.itemsize)
    layers = []
    for _ in range(flags["layers"]):
        directions: list[dict[str, Array] | None] = [
            {name: model.random_weight(rng, *shape[::-1]).T.astype(dtype) for name, shape in shapes.items()}
            for _ in range(1 + flags["bidirectional"])
        ]
        layers.append(RecurrentLayer(*([None] * flags["reverse"] + directions)))
        shapes["input"] = (blocks * hidden, output * len(directions))
    return RecurrentWeights(layers)


def check_network_size(shapes: Mapping[str, tuple[int, int]], flags: Mapping[str, Any], itemsize: int) -> None:
    """Raise DataError where layers whose first has these shapes need more memory than there is."""
    first = sum(math.prod(shape) for shape in shapes.values())
    directions = 1 + flags["bidirectional"]
    wider = math.prod((shapes["input"][0], shapes["hidden"][1] * directions))
    later = first - math.prod(shapes["input"]) + wider
    count = directions * (itemsize * (first + (flags["layers"] - 1) * later) + OBJECTS * flags["layers"])
    formats.check_memory(count, f"a network of {flags['layers']} × {flags['hidden']} states", "--hidden")


def read_recurrent_weights(params: Mapping[str, Array], cell: str) -> RecurrentWeights:
    """Return the layers in a file of PyTorch's or ONNX's layout, which the names of its tensors tell.

    DataError names the layout and the order of gates that the file has, where they are not those of the cell.

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
    """Return the layers in a state dict of torch.nn.RNN, GRU or LSTM, or of one of their cells."""
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
    check_complete(layers)
    ordered = [layers[number] for number in range(len(layers))]
    return RecurrentWeights(
        [RecurrentLayer(forward, reverse or None) for forward, reverse in ordered], prefix=next(iter(prefixes))
    )


def check_complete(layers: Mapping[int, tuple[Mapping[str, Array], Mapping[str, Array]]]) -> None:
    """Raise DataError unless every layer up to the last has both weights of each direction."""
    published = {name: one for one, name in TORCH.items()}
    is_bidirectional = any(reverse for _, reverse in layers.values())
    for number in range(max(layers) + 1):
        for direction in range(1 + is_bidirectional):
            names = layers.get(number, ({}, {}))[direction]
            if missing := [published[name] for name in ("input", "hidden") if name not in names]:
                ending = f"_l{number}{'_reverse' * direction}"
                raise DataError(f"no {' and no '.join(one + ending for one in missing)}", "--params")


def read_onnx(params: Mapping[str, Array]) -> RecurrentWeights:
    """Return the one layer in the inputs W, R, B and P of ONNX's RNN, GRU or LSTM, in PyTorch's order of gates."""
    check_onnx(params)
    w, r = params["W"], params["R"]
    hidden = r.shape[2]
    order, directions = FROM_ONNX[r.shape[1] // hidden], []
    for number in range(len(w)):
        own = {"input": take_blocks(w[number], order), "hidden": take_blocks(r[number], order)}
        if "B" in params:
            input_bias, hidden_bias = np.split(params["B"][number], 2)
            own |= {"input_bias": take_blocks(input_bias, order), "hidden_bias": take_blocks(hidden_bias, order)}
        if "P" in params:
            own["peephole"] = params["P"][number].reshape(3, hidden)[list(PEEPHOLES_FROM_ONNX)]
        directions.append(own)
    return RecurrentWeights([RecurrentLayer(*directions)], "onnx")


def check_onnx(params: Mapping[str, Array]) -> None:
    """Raise DataError unless W, R, B and P have the shapes of one layer."""
    if unknown := [name for name in params if name not in ONNX]:
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(ONNX)}", "--params")
    w, r = params["W"], params["R"]
    if w.ndim != 3 or r.ndim != 3 or len(w) not in (1, 2) or w.shape[:2] != r.shape[:2]:
        shapes = f"W {as_text(w.shape)} and R {as_text(r.shape)}"
        raise DataError(f"{shapes}: expected (directions, gates·hidden, …), 1 or 2 directions", "--params")
    rows, hidden = r.shape[1:]
    sizes = {"B": (len(w), 2 * rows), "P": (len(w), 3 * hidden)}
    for name, shape in sizes.items():
        if name in params and params[name].shape != shape:
            raise DataError(f"{name} {as_text(params[name].shape)}: expected {as_text(shape)}", "--params")
    blocks = rows // hidden if hidden and not rows % hidden else 0
    if blocks not in FROM_ONNX:
        raise DataError(f"R {as_text(r.shape)}: expected (directions, G·hidden, hidden) with G 1, 3 or 4", "--params")


def to_onnx(directions: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the directions of a layer as ONNX's W, R, B and P; the inverse of `read_onnx`."""
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
    """Return the blocks of rows of a weight in another order.

    >>> take_blocks(np.array([1, 2, 3]), (1, 0, 2)).tolist()
    [2, 1, 3]
    """
    return weight.reshape(len(order), -1, *weight.shape[1:])[list(order)].reshape(weight.shape)


def check_blocks(parameters: Mapping[str, Array], cell: str, layer: int, layout: str) -> None:
    """Raise DataError unless the weights have as many blocks of rows as the cell has gates."""
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
        raise DataError(
            f"{title} layout of {own}, but --cell {cell} is {expected}",
            "--params",
        )


def describe_blocks(blocks: int, is_torch: bool) -> str:
    """Return the kind of cell that has as many blocks of rows, and its gates in the order of a layout.

    >>> describe_blocks(3, True), describe_blocks(1, False)
    ('a GRU (3 blocks of rows: r z n)', 'an RNN without gates (1 block of rows)')
    """
    kind, *orders = GATES[blocks]
    gates = orders[not is_torch]
    return f"{kind} ({counted(blocks, 'block')} of rows{': ' * bool(gates)}{gates})"
