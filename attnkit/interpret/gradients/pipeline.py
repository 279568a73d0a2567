"""The gradients of a pipeline: the chain rule over its stages, from the last to the first, and their names."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnkit.errors import UsageError, suggest
from attnkit.interpret.gradients.attention import undo_attend
from attnkit.interpret.gradients.embedding import undo_embed, undo_posenc
from attnkit.interpret.gradients.encoding import undo_encode
from attnkit.interpret.gradients.layers import undo_ffn, undo_layernorm, undo_linear, undo_rnn, undo_softmax
from attnkit.interpret.gradients.merging import FILE, undo_merge
from attnkit.interpret.gradients.output import undo_decode, undo_loss
from attnkit.interpret.gradients.stages import Adjoint, Outer, StageCall, StageGradients, part_prefix
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.backward.tied import sum_tied
from attnkit.model.dtypes import is_float
from attnkit.model.parameters import parameter_axes
from attnkit.record import Labels, Record, Tensor

INPUT = "0.input."  # the start of the names of what the first stage read
Nested = Mapping[str, Mapping[str, Array]]

ADJOINTS_OF_TOOLS: dict[str, Adjoint] = {
    "embed": undo_embed,
    "posenc": undo_posenc,
    "attend": undo_attend,
    "softmax": undo_softmax,
    "merge": undo_merge,
    "layernorm": undo_layernorm,
    "ffn": undo_ffn,
    "linear": undo_linear,
    "encode": undo_encode,
    "rnn": undo_rnn,
    "decode": undo_decode,
    "loss": undo_loss,
}


@dataclass
class PipelineGradients:
    """The gradients of a pipeline.

    tensors     name -> gradient, in the order of the pipeline: 0.input.x, 1.embed.table, 2.attend.x …
    parameters  the names among `tensors` of what the pipeline depends on; the others are intermediates
    models      folder -> (checkpoint, gradients of its layers)
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    models: dict[str, tuple[Any, Nested]] = field(default_factory=dict)

    def record(self, result: Record) -> Record:
        """Return x of the result, and all gradients; those of a model under its own names, as decoder.0.self.wq."""
        named = ({"x": result.tensor("x")} if "x" in result else {}) | self.tensors
        for folder, (checkpoint, parameters) in self.models.items():
            prefix = f"{folder}:" if len(self.models) > 1 else ""
            for layer in [layer for layer in checkpoint.params if layer in parameters]:
                for name, array in parameters[layer].items():
                    named[f"{prefix}{layer}.{name}"] = Tensor(array, layer_axes(layer, name, array.ndim))
        return gather_tensors(named)


def layer_axes(layer: str, name: str, rank: int) -> tuple[str, ...] | None:
    """Return the axes of a parameter of a model's layer; None, the default ones, where it has others.

    >>> layer_axes("decoder.0.self", "wq", 2), layer_axes("decoder.positions", "table", 2)
    (('model', 'heads'), ('position', 'model'))
    """
    axes = parameter_axes(layer.rpartition(".")[2], name)
    return axes if len(axes) == rank else None


def gather_tensors(named: Mapping[str, Tensor]) -> Record:
    """Return tensors as one record; an axis that has other labels or another size in a second one stays unlabelled.

    >>> token = Tensor(np.zeros(2), ("token",), {"token": ["a", "b"]})
    >>> gather_tensors({"x": token, "y": token}).labels, gather_tensors({"x": token, "y": np.zeros((1, 2))}).labels
    ({'token': ['a', 'b']}, {})
    """
    tensors = {name: one if isinstance(one, Tensor) else Tensor(one) for name, one in named.items()}
    labels: dict[str, Labels] = {}
    unclear = set()
    for one in tensors.values():
        for axis in set(one.labels) & set(one.axis_names()):
            if labels.setdefault(axis, one.labels[axis]) != one.labels[axis]:
                unclear.add(axis)
    for one in tensors.values():
        unclear |= {
            axis for axis, size in zip(one.axis_names(), one.shape, strict=True) if not fits(labels, axis, size)
        }
    bare = {name: Tensor(one.array, one.axes) for name, one in tensors.items()}
    return Record(bare, {axis: names for axis, names in labels.items() if axis not in unclear})


def fits(labels: Mapping[str, Labels], axis: str, size: int) -> bool:
    """Return whether an axis of this size has as many labels, or none."""
    names = labels.get(axis, [])
    row = names[0] if names and isinstance(names[0], list) else names
    return not names or len(row) == size


@dataclass
class ModelLayers:
    """The gradients of the parameters of models, by their folders: checkpoint and sums over all stages."""

    models: dict[str, tuple[Any, Reverse]] = field(default_factory=dict)

    def add(self, call: StageCall, layers: Reverse) -> None:
        """Add the gradients of a stage with a model to those of other stages with the same."""
        if layers.gradients:
            checkpoint = call.values["model_"]
            _, reverse = self.models.setdefault(checkpoint.folder, (checkpoint, Reverse()))
            for layer, parts in layers.gradients.items():
                reverse.add(layer, parts)

    def sum(self) -> dict[str, tuple[Any, Nested]]:
        """Return the checkpoint and the gradients of each model, where those of tied parameters are their sum."""
        return {
            folder: (checkpoint, sum_tied(reverse.gradients, checkpoint.params))
            for folder, (checkpoint, reverse) in self.models.items()
        }


def pipeline_backward(calls: Sequence[StageCall], chosen: Array | None = None) -> PipelineGradients:
    """Return the gradients of the sum of the last x with respect to every tensor and parameter of a pipeline.

    calls   its stages as they ran, first to last
    chosen  which elements of x the sum is of, booleans in its shape; None for all

    UsageError names the first stage, from the end, that has no gradient.
    """
    check_last(calls[-1])
    x = calls[-1].result["x"]
    ones = np.ones(x.shape, x.dtype if x.dtype.itemsize > 2 else np.float32)
    waiting = {calls[-1].part: {"x": ones if chosen is None else ones * chosen}}
    groups: list[dict[str, Tensor]] = []
    traced: dict[str, str] = {}  # the names of intermediates of whole models in their stage -> in a trace
    total, models = PipelineGradients(), ModelLayers()
    for call in reversed(calls):
        outer = waiting.pop(call.part, {})
        own = {name: gradient for name, gradient in outer.items() if name not in call.passed()}
        tensors = {name: describe_gradient(call.result, name, gradient) for name, gradient in own.items()}
        into = undo_stage(call, own)
        for name in outer.keys() & call.passed():
            into.add_input(name, outer[name])
        waiting |= hand_back(call, into)
        parameters = {name: call.parameter_name(name) for name in into.parameters}
        named = {**tensors, **into.traced, **into.tensors}
        order = [*into.traced, *into.tensors, *(name for name in tensors if name not in into.tensors)]
        add_group(groups, {parameters.get(name, call.prefix + name): named[name] for name in dict.fromkeys(order)})
        traced |= {call.prefix + name: name for name in into.traced}
        total.parameters = list(dict.fromkeys([*parameters.values(), *total.parameters]))
        models.add(call, into.layers)
    before = {
        f"{INPUT}{part_prefix(part)}{name}": describe_gradient(record, name, waiting[part][name])
        for part, record in list_inputs(calls).items()
        for name in waiting.get(part, {})
    }
    total.parameters[:0] = list(before)
    total.tensors = shorten_names([before, *reversed(groups)], traced)
    total.models = models.sum()
    return total


def shorten_names(groups: Sequence[Mapping[str, Tensor]], traced: Mapping[str, str]) -> dict[str, Tensor]:
    """Return all gradients, those of a whole model's intermediates by the names of a trace where one stage has them.

    traced  name in its stage -> name in a trace

    >>> [*shorten_names([{"1.encode.a": 0, "1.encode.b": 0, "2.encode.b": 0}], {"1.encode.a": "a", "1.encode.b": "b"})]
    ['a', 'b', '2.encode.b']
    >>> [*shorten_names([{"1.encode.b": 0, "2.encode.b": 0}], {"1.encode.b": "b", "2.encode.b": "b"})]
    ['1.encode.b', '2.encode.b']
    """
    counts = Counter(traced.values())
    short = {name: own for name, own in traced.items() if counts[own] == 1}
    return {short.get(name, name): one for tensors in groups for name, one in tensors.items()}


def add_group(groups: list[dict[str, Tensor]], named: dict[str, Tensor]) -> None:
    """Add the gradients of a stage to those of later ones; what records share has the sum of their gradients."""
    for tensors in groups:
        for name in tensors.keys() & named.keys():
            named[name] = replace(named[name], array=named[name].array + tensors.pop(name).array)
    groups.append(named)


def hand_back(call: StageCall, into: StageGradients) -> dict[int, Outer]:
    """Return the gradients of the records that a stage read, by their parts; of its own files they are parameters."""
    if not call.merges:
        return {call.part: into.inputs}
    gradients = dict(enumerate([into.inputs, *into.others], start=1))
    for number, branch in enumerate(call.branches, start=1):
        for name, gradient in gradients[number].items() if branch == FILE else ():
            part = call.item[number - 1]
            described = describe_gradient(part, name, gradient)
            into.add_parameter(f"{part_prefix(number)}{name}", gradient, described.axes, described.labels)
    return {branch: gradients[number] for number, branch in enumerate(call.branches, start=1) if branch != FILE}


def list_inputs(calls: Sequence[StageCall]) -> dict[int, Record]:
    """Return the records that the first stage read, by their parts."""
    if calls[0].merges:
        return dict(zip(calls[0].branches, calls[0].item, strict=True))
    return {call.part: call.before for call in calls if call.number == 1}


def check_last(call: StageCall) -> None:
    """Raise UsageError unless the last stage computes an x of floats."""
    if not isinstance(call.result, Record):
        raise call.error("text has no gradient")
    if "x" not in call.result:
        raise call.error("it returns no x, of which there would be gradients")
    if not is_float(call.result["x"].dtype):
        raise call.error(f"its x is {call.result['x'].dtype}: only floats have a gradient")


def undo_stage(call: StageCall, outer: Outer) -> StageGradients:
    """Return what the adjoint of one stage gives; UsageError where its tool has none, or none of a tensor it needs.

    outer  gradients of the tensors that the stage computed; those that are used are removed
    """
    into = StageGradients(call)
    if not outer or call.tool == "mask":  # masks are constants
        return into
    if call.tool not in ADJOINTS_OF_TOOLS:
        raise call.error(f"no gradient of this tool (there is one of {', '.join(ADJOINTS_OF_TOOLS)})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pipeline itself has warned
        ADJOINTS_OF_TOOLS[call.tool](call, outer, into)
    if outer:
        raise call.error(f"no gradient through its {', '.join(outer)}")
    return into


def describe_gradient(record: Record, name: str, gradient: Array) -> Tensor:
    """Return a gradient with the axes and labels of its tensor."""
    tensor = record.tensor(name)
    has_axes = tensor.axes is not None and len(tensor.axes) == gradient.ndim
    return Tensor(gradient, tensor.axes if has_axes else None, tensor.labels if has_axes or name == "x" else {})


def select_names(record: Record, patterns: Sequence[str]) -> Record:
    """Return the gradients whose names match one of shell patterns; UsageError for a pattern that matches none.

    >>> list(select_names(Record({"1.embed.x": np.zeros(1), "x": np.zeros(1)}), ["*.x"]))
    ['1.embed.x']
    """
    import fnmatch

    for pattern in patterns:
        if not fnmatch.filter([*record], pattern):
            raise UsageError(f"{pattern!r} fits no gradient{suggest(pattern, [*record])}", "--grad-only")
    names = [name for name in record if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    return record.select(names)
