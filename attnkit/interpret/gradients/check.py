"""Check gradients by the derivative of a pipeline along one direction."""

import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.checkpoints.unread_tensors import sort_unread
from attnkit.inputs.operands import AttendedTensor, load_attended, select_tensor
from attnkit.inputs.torch_parameters import LAYOUTS, read_torch_parameters
from attnkit.interpret.gradients.pipeline import INPUT, PipelineGradients, list_inputs, pipeline_backward
from attnkit.interpret.stage_calls import FILE, StageCall, part_prefix
from attnkit.interpret.stage_nodes.tools import NODES
from attnkit.model import Array
from attnkit.model.backward.tied import cast_parameters
from attnkit.model.dtypes import is_float
from attnkit.model.parameters import OUTPUT_PARAMETERS
from attnkit.records import Labels, Record, Tensor

CHECKED = "check"  # the name of its result in a record
STEP = 3e-6  # of the finite difference, relative to the size of each tensor
RANDOM = {
    "attend": "seed",
    "ffn": "hidden",
    "conv": "filters",
    "rnn": "hidden",
}  # the flag of random weights, in place of --params

Arrays = dict[str, Array]
Key = tuple[str, ...]  # the name of an input or a parameter of a stage; or a folder, a layer and its parameter
Point = dict[Key, Array]  # the values of everything that a pipeline depends on, in float64


class CheckResult(NamedTuple):
    """The derivative by the adjoints and by a finite difference, and the sum of |x|."""

    slope: float
    difference: float
    size: float

    @property
    def error(self) -> float:
        """The relative difference of the two, and at least of a thousandth of the size.

        >>> CheckResult(2.0, 1.0, 1.0).error, CheckResult(0.0, 1e-9, 1.0).error
        (0.5, 1e-06)
        """
        largest = max(abs(self.slope), abs(self.difference), self.size / 1000)
        return abs(self.slope - self.difference) / largest if largest else 0.0

    def line(self) -> str:
        """The result as a line of text.

        >>> CheckResult(2.0, 1.0, 1.0).line()
        'check: derivative 2 by the gradients, 1 by a finite difference: relative error 0.5'
        """
        both = f"{self.slope:.9g} by the gradients, {self.difference:.9g} by a finite difference"
        return f"check: derivative {both}: relative error {self.error:.2g}"

    def tensor(self) -> Tensor:
        """Both derivatives and the error as a tensor."""
        labels: Labels = ["gradients", "finite difference", "relative error"]
        return Tensor(np.array([self.slope, self.difference, self.error]), ("derivative",), {"derivative": labels})


class MovedLayers(ChainMap[str, dict[str, Array]]):
    """Layers of a model with other parameters, before all layers of its files."""

    unread = sort_unread((), ())  # of which the first run has warned


def check_gradients(
    calls: Sequence[StageCall], gradients: PipelineGradients, seed: int, chosen: Array | None = None
) -> CheckResult:
    """Compare gradients with a central difference along a random direction.

    The stages run again in float64, so that the error is due to the adjoints and not to rounding. Each tensor changes
    by about 3e-6 of its size. `chosen` are the elements of the last x that are summed [all].
    """
    point: Point = {(name,): find_value(calls, name).astype(np.float64) for name in gradients.parameters}
    for folder, (checkpoint, layers) in gradients.models.items():
        named = {layer: {name: checkpoint.params[layer][name] for name in parts} for layer, parts in layers.items()}
        point |= layers_point(cast_parameters(named, np.float64), folder)

    def evaluate(moved: Point) -> Array:
        x: Array = run_again(calls, moved)[-1].result["x"]
        return x if chosen is None else x[chosen]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pipeline itself has warned
        wide = pipeline_backward(run_again(calls, point), chosen)
        exact: Point = {(name,): wide.tensors[name].array for name in gradients.parameters}
        for folder, (_, layers) in wide.models.items():
            exact |= layers_point(layers, folder)
        return compare_along(point, exact, seed, evaluate)


def layers_point(layers: Mapping[str, Mapping[str, Array]], folder: str = "") -> Point:
    """The parameters of the layers of a model as a point.

    >>> layers_point({"head": {"w": 1}})
    {('', 'head', 'w'): 1}
    """
    return {(folder, layer, name): array for layer, parts in layers.items() for name, array in parts.items()}


def point_layers(point: Point, folder: str = "") -> dict[str, dict[str, Array]]:
    """The layers of a model in a point; the inverse of `layers_point`.

    >>> point_layers({("x",): 2, ("", "head", "w"): 1})
    {'head': {'w': 1}}
    """
    layers: dict[str, dict[str, Array]] = {}
    for key, array in point.items():
        if len(key) == 3 and key[0] == folder:
            layers.setdefault(key[1], {})[key[2]] = array
    return layers


def compare_along(
    point: Point, gradients: Mapping[Key, Array], seed: int, evaluate: Callable[[Point], Array]
) -> CheckResult:
    """Compare gradients of a sum with its difference along a random direction.

    The direction is drawn from normal distributions, each as wide as the root mean square of its tensor, or 1. Rows of
    zeros among others, as those of padding, stay: a ReLU has no derivative at 0. So does −∞, as in a mask that is
    added. Tied parameters, which share one memory, move together and count once.

    >>> point = {("x",): np.array([3.0, 4.0])}
    >>> result = compare_along(point, {("x",): np.array([6.0, 8.0])}, 0, lambda point: point["x",] ** 2)
    >>> round(result.size, 2), result.error < 1e-6
    (25.0, True)
    """
    rng = np.random.default_rng(seed)

    def draw(array: Array) -> Array:
        is_moved = ~np.isneginf(array)
        width = float(np.sqrt(np.square(array[is_moved]).mean())) if is_moved.any() else 1.0
        drawn = np.asarray(rng.standard_normal(array.shape) * (width or 1.0) * is_moved)
        return drawn * array.any(axis=-1, keepdims=True) if width and array.ndim > 1 else drawn

    direction = {key: draw(array) for key, array in point.items()}
    owners: dict[tuple[int, ...], Key] = {}
    slope = 0.0
    for key, array in point.items():
        owner = owners.setdefault((array.__array_interface__["data"][0], *sorted(array.shape)), key)
        if owner != key:
            is_turned = point[owner].strides != array.strides
            direction[key] = direction[owner].T if is_turned else direction[owner]
        else:
            slope += float((gradients[key] * direction[key]).sum())
    up, down = (evaluate({key: one + step * direction[key] for key, one in point.items()}) for step in (STEP, -STEP))
    return CheckResult(slope, float(up.sum() - down.sum()) / (2 * STEP), float(abs(up).sum()))


def find_value(calls: Sequence[StageCall], name: str) -> Array:
    """The value of an input or a parameter, by the name of its gradient."""
    for part, record in list_inputs(calls).items():
        start = INPUT + part_prefix(part)
        if name.startswith(start) and name.removeprefix(start) in record:
            return record[name.removeprefix(start)]
    starts = [(call, call.prefix) for call in calls] + [(call, call.shared_prefix) for call in calls]
    call, start = next((call, start) for call, start in starts if name.startswith(start))
    parameter = name.removeprefix(start)
    if call.merges:
        number, _, tensor = parameter.removeprefix("part").partition(".")
        part_of_file: Record = call.item[int(number) - 1]
        return part_of_file[tensor]
    operand = call.values.get(parameter)
    if isinstance(operand, Record):
        return operand["x"]
    return weights_of(call)[parameter]


def weights_of(call: StageCall) -> Mapping[str, Array]:
    """The parameters of a stage itself: from --params, or random ones."""
    params: Mapping[str, Array] | None = call.values.get("params")
    if params and call.tool in LAYOUTS:
        params = read_torch_parameters(params, call.tool)
    return dict(params or NODES[call.tool](call).core.params[""])


def run_again(calls: Sequence[StageCall], point: Point) -> list[StageCall]:
    """Run the stages of a pipeline again with other inputs and parameters."""
    again: list[StageCall] = []
    arrays_of = {part: read_part(point, INPUT + part_prefix(part)) for part in list_inputs(calls)}
    for call in calls:
        item = call.item
        if call.merges:
            item = move_parts(call, arrays_of, point)
        elif isinstance(item, Record):
            item = widen(replace_arrays(item, arrays_of[call.part]))
        own = {} if call.merges else {**read_part(point, call.shared_prefix), **read_part(point, call.prefix)}
        values = replace_values(call, item, own, point)
        if call.tool == "embed" and "table" in own:
            x = model.embed(call.result["ids"], own["table"])
            x = model.scale_embedding(x) if call.values["scale"] else x
            arrays = {"x": x, "table": own["table"]}
            axes = {name: one.axes for name, one in call.result.tensors.items()}
            result = call.result.with_tensors({name: Tensor(one, axes[name]) for name, one in arrays.items()})
        else:
            call = call.run_again(item, values)
            result = call.result
        again.append(replace(call, item=item, values=values, result=widen(result)))
        arrays_of[call.part] = again[-1].result.arrays()
    return again


def move_parts(call: StageCall, arrays_of: Mapping[int, Arrays], point: Point) -> list[Record]:
    """Put other arrays in merged records; W_O and b_O stay in the first."""
    parts: list[Record] = []
    for number, (part, branch) in enumerate(zip(call.item, call.branches, strict=True), start=1):
        arrays = read_part(point, f"{call.shared_prefix}part{number}.") if branch == FILE else arrays_of[branch]
        moved = widen(replace_arrays(part, arrays))
        parts.append(moved.without(OUTPUT_PARAMETERS) if parts else moved)
    return parts


def read_part(point: Point, start: str) -> Arrays:
    """The arrays whose names begin with `start`, by the rest of their names."""
    return {key[0].removeprefix(start): one for key, one in point.items() if len(key) == 1 and key[0].startswith(start)}


def widen(record: Record) -> Record:
    floats = {name: array for name, array in record.arrays().items() if is_float(array.dtype)}
    return replace_arrays(record, {name: array.astype(np.float64, copy=False) for name, array in floats.items()})


def replace_arrays(record: Record, arrays: Mapping[str, Array]) -> Record:
    """Put other arrays of floats in the tensors of a record that have their names.

    >>> replace_arrays(Record({"x": np.array([1, 2])}), {"x": np.array([1.5, 2.0])})["x"].tolist()
    [1.5, 2.0]
    """
    changed = {
        name: replace(one, array=arrays[name])
        for name, one in record.tensors.items()
        if name in arrays and is_float(arrays[name].dtype)
    }
    return replace(record, tensors={**record.tensors, **changed})


def replace_values(call: StageCall, item: Any, own: Arrays, point: Point) -> dict[str, Any]:
    """Put other operands, parameters and models in the values of a stage."""
    values = dict(call.values) | {flag: replace_operand(call, flag, item, own) for flag in call.values}
    if values.get("softmax_dtype"):
        values["softmax_dtype"] = None  # rounding has no derivative, and gradients leave it out
    weights = {name: array for name, array in own.items() if call.values.get(name) is None}
    if call.tool == "posenc" and "table" in own and call.values["seed"] is not None:
        values |= {"table": Record({"x": own["table"]}), "seed": None}
    elif weights and call.tool != "embed":
        values |= {"params": {**(weights_of(call) if call.values["params"] else {}), **weights}}
        values |= {RANDOM[call.tool]: None} if call.tool in RANDOM else {}
    if call.tool == "encode":
        values |= {"dtype": "float64", "trace": None}  # which the first run has written
    checkpoint = values.get("model_")
    if checkpoint is not None and values.get("image") is not None:
        from attnkit.inputs.image_processor import prepare_image

        cut = checkpoint.config.patches
        pixels, _ = prepare_image(values["image"], checkpoint.place, (cut.height, cut.width))
        values["image"] = pixels.astype(np.float64)  # (C, height, width)
    if checkpoint is not None and (changed := point_layers(point, checkpoint.folder)):
        values["model_"] = copy(checkpoint)
        layers = {layer: {**checkpoint.params[layer], **parts} for layer, parts in changed.items()}
        values["model_"].params, values["model_"].towers = MovedLayers(layers, checkpoint.params), {}
    return values


def replace_operand(call: StageCall, flag: str, item: Any, own: Arrays) -> Any:
    """The operand of a flag, read again; other values stay as they are."""
    value = call.values[flag]
    if flag in call.own and isinstance(value, AttendedTensor):
        return load_attended(item, call.own[flag], own=True)
    if flag in call.own:
        return select_tensor(item, call.own[flag])
    if flag in own and isinstance(value, Record):
        return replace(value, tensors={"x": replace(value.tensors["x"], array=own[flag])})
    return value
