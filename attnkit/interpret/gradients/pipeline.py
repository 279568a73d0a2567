"""The gradients of a pipeline: the chain rule over its stages, and their names."""

import fnmatch
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnkit.errors import UsageError, suggest
from attnkit.interpret.gradients.stages import Outer, StageGradients
from attnkit.interpret.stage_calls import FILE, StageCall, part_prefix
from attnkit.interpret.stage_nodes.stage_graph import StageGraph
from attnkit.interpret.stage_nodes.tools import KINDS, NODES
from attnkit.interpret.tracer import Tracer
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.backward.tied import sum_tied
from attnkit.model.dtypes import is_float
from attnkit.model.parameters import parameter_axes
from attnkit.records import Labels, Record, Tensor

NodesOf = Callable[[StageCall], StageGraph]
INPUT = "0.input."  # the start of the names of what the first stage read


@dataclass
class PipelineGradients:
    """The gradients of a pipeline.

    tensors     name -> gradient, in the order of the pipeline: 0.input.x, 1.embed.table, 2.attend.x …
    parameters  the names among `tensors` of what the pipeline depends on; the others are intermediates
    models      folder -> (checkpoint, gradients of its layers)
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    models: dict[str, tuple[Any, Mapping[str, Mapping[str, Array]]]] = field(default_factory=dict)

    def record(self, result: Record) -> Record:
        """The record of x and all gradients, a model's as decoder.0.self.wq."""
        named = ({"x": result.tensor("x")} if "x" in result else {}) | self.tensors
        for folder, (checkpoint, parameters) in self.models.items():
            prefix = f"{folder}:" if len(self.models) > 1 else ""
            for layer in [layer for layer in checkpoint.params if layer in parameters]:
                for name, array in parameters[layer].items():
                    named[f"{prefix}{layer}.{name}"] = Tensor(array, layer_axes(layer, name, array.ndim))
        return gather_tensors(named)


def pipeline_backward(calls: Sequence[StageCall], chosen: Array | None = None) -> PipelineGradients:
    """Gradients of the sum of the last x by every tensor and parameter.

    calls   its stages as they ran, first to last
    chosen  the elements of x that are summed, booleans in its shape [all]

    UsageError names the first stage, from the end, that has no gradient.
    """
    last = calls[-1]
    if not isinstance(last.result, Record):
        raise last.error("text has no gradient")
    if "x" not in last.result:
        raise last.error("it returns no x to differentiate")
    x = last.result["x"]
    if not is_float(x.dtype):
        raise last.error(f"its x is {x.dtype}: only floats have a gradient")
    ones = np.ones(x.shape, x.dtype if x.dtype.itemsize > 2 else np.float32)
    waiting = {last.part: {"x": ones if chosen is None else ones * chosen}}  # part -> the gradients of its record
    groups: list[dict[str, Tensor]] = []
    traced: dict[str, str] = {}  # the names of intermediates of whole models in their stage -> in a trace
    models: dict[str, tuple[Any, Reverse]] = {}
    parameters: list[str] = []
    for call in reversed(calls):
        outer, passed = waiting.pop(call.part, {}), call.passed()
        own = {name: gradient for name, gradient in outer.items() if name not in passed}
        tensors = {name: describe_gradient(call.result, name, gradient) for name, gradient in own.items()}
        into = undo_stage(call, own)
        for name in outer.keys() & passed:
            into.add_input(name, outer[name])
        waiting |= gradients_of_records(call, into)
        names = {name: call.parameter_name(name) for name in into.parameters}
        named = into.traced | into.tensors
        named |= {name: one for name, one in tensors.items() if name not in named}
        group = {names.get(name, call.prefix + name): one for name, one in named.items()}
        for later in groups:
            for name in later.keys() & group.keys():  # what records share
                group[name] = replace(group[name], array=group[name].array + later.pop(name).array)
        groups.append(group)
        traced |= {call.prefix + name: name for name in into.traced}
        parameters = list(dict.fromkeys([*names.values(), *parameters]))
        if into.layers.gradients:
            checkpoint = call.values["model_"]
            _, total = models.setdefault(checkpoint.folder, (checkpoint, Reverse()))
            for layer, parts in into.layers.gradients.items():
                total.add(layer, parts)
    before = {
        f"{INPUT}{part_prefix(part)}{name}": describe_gradient(record, name, waiting[part][name])
        for part, record in list_inputs(calls).items()
        for name in waiting.get(part, {})
    }
    return PipelineGradients(
        shorten_names([before, *reversed(groups)], traced),
        [*before, *parameters],
        {folder: (one, sum_tied(total.gradients, one.params)) for folder, (one, total) in models.items()},
    )


def undo_stage(call: StageCall, outer: Outer, nodes: NodesOf | None = None) -> StageGradients:
    """Undo one stage; UsageError if its tool or a tensor has no gradient.

    outer  gradients of the tensors that the stage computed; those that are used are removed
    nodes  of the stage, in place of those of its tool
    """
    into = StageGradients(call)
    if not outer or call.tool == "mask":  # masks are constants
        return into
    if call.tool not in NODES:
        raise call.error(f"no gradient of this tool (there is one of {', '.join(NODES)})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pipeline itself has warned
        graph = (nodes or NODES[call.tool])(call)
        undone = graph.backward(outer, KINDS)
    if outer:
        raise call.error(f"no gradient through its {', '.join(outer)}")
    for site in [site for site in undone.origins if site not in graph.late]:
        into.add_origin(graph.origins[site], undone.origins[site])
    if call.values.get("model_") is None:
        into.add_weights(graph.weights(undone.params), graph.axes)
    else:
        for layer, parts in undone.params.items():
            into.layers.add(layer, parts)
    if graph.has_trace:
        into.traced = describe_trace(undone.inner, call.prepared.base.labels.get("token"))
        return into
    shown = {name: one for name, one in undone.inner.items() if name not in into.parameters}  # as the router's
    for name, gradient in reversed(shown.items()):
        described = graph.describe and graph.describe(name, gradient)
        into.tensors[name] = described or describe_gradient(call.result, name, gradient)
    for site in graph.late:
        if site in undone.origins:  # of integers there are none
            into.add_origin(graph.origins[site], undone.origins[site])
    return into


def describe_trace(
    collected: Mapping[str, Array], tokens: Labels | None, source: Labels | None = None
) -> dict[str, Tensor]:
    """Describe gradients, from the last to the first, as a trace does."""
    tracer = Tracer({"--trace-only": ("*",)})
    tracer.saved = {name: collected[name] for name in reversed(list(collected))}
    traced = tracer.record(tokens, source)
    return {name: traced.tensor(name) for name in traced}


def gradients_of_records(call: StageCall, into: StageGradients) -> dict[int, Outer]:
    """The gradients of the records that a stage read, by their parts."""
    if not call.merges:
        return {call.part: into.inputs}
    gradients = dict(enumerate([into.inputs, *into.others], start=1))
    for number, branch in enumerate(call.branches, start=1):
        for name, gradient in gradients[number].items() if branch == FILE else ():
            described = describe_gradient(call.item[number - 1], name, gradient)
            into.add_parameter(f"{part_prefix(number)}{name}", gradient, described.axes, described.labels)
    return {branch: gradients[number] for number, branch in enumerate(call.branches, start=1) if branch != FILE}


def list_inputs(calls: Sequence[StageCall]) -> dict[int, Record]:
    """The records that the first stage read, by their parts."""
    if calls[0].merges:
        return dict(zip(calls[0].branches, calls[0].item, strict=True))
    return {call.part: call.before for call in calls if call.number == 1}


def shorten_names(groups: Sequence[Mapping[str, Tensor]], traced: Mapping[str, str]) -> dict[str, Tensor]:
    """Join gradients under the names of a trace if one stage alone has them.

    traced  name in its stage -> name in a trace

    >>> [*shorten_names([{"1.encode.a": 0, "1.encode.b": 0, "2.encode.b": 0}], {"1.encode.a": "a", "1.encode.b": "b"})]
    ['a', 'b', '2.encode.b']
    >>> [*shorten_names([{"1.encode.b": 0, "2.encode.b": 0}], {"1.encode.b": "b", "2.encode.b": "b"})]
    ['1.encode.b', '2.encode.b']
    """
    counts = Counter(traced.values())
    short = {name: own for name, own in traced.items() if counts[own] == 1}
    return {short.get(name, name): one for tensors in groups for name, one in tensors.items()}


def describe_gradient(record: Record, name: str, gradient: Array) -> Tensor:
    tensor = record.tensor(name)
    has_axes = tensor.axes is not None and len(tensor.axes) == gradient.ndim
    return Tensor(gradient, tensor.axes if has_axes else None, tensor.labels if has_axes or name == "x" else {})


def layer_axes(layer: str, name: str, rank: int) -> tuple[str, ...] | None:
    """The axes of a layer's parameter; None if it has others than its name says.

    >>> layer_axes("decoder.0.self", "wq", 2), layer_axes("decoder.positions", "table", 2)
    (('model', 'heads'), ('position', 'model'))
    """
    axes = parameter_axes(layer.rpartition(".")[2], name)
    return axes if len(axes) == rank else None


def gather_tensors(named: Mapping[str, Tensor]) -> Record:
    """Gather tensors in one record; labels that differ or do not fit are dropped.

    >>> token = Tensor(np.zeros(2), ("token",), {"token": ["a", "b"]})
    >>> gather_tensors({"x": token, "y": token}).labels, gather_tensors({"x": token, "y": np.zeros((1, 2))}).labels
    ({'token': ['a', 'b']}, {})
    """
    tensors = {name: one if isinstance(one, Tensor) else Tensor(one) for name, one in named.items()}
    labels: dict[str, Labels] = {}
    unclear = set()
    for one in tensors.values():
        for axis in filter(one.labels.__contains__, one.axis_names()):
            if labels.setdefault(axis, one.labels[axis]) != one.labels[axis]:
                unclear.add(axis)
    for one in tensors.values():
        for axis, size in zip(one.axis_names(), one.shape, strict=True):
            rows = labels.get(axis, [])
            row = rows[0] if rows and isinstance(rows[0], list) else rows
            if rows and len(row) != size:
                unclear.add(axis)
    bare = {name: Tensor(one.array, one.axes) for name, one in tensors.items()}
    return Record(bare, {axis: names for axis, names in labels.items() if axis not in unclear})


def select_names(record: Record, patterns: Sequence[str]) -> Record:
    """Select gradients by shell patterns; UsageError for one that matches none.

    >>> list(select_names(Record({"1.embed.x": np.zeros(1), "x": np.zeros(1)}), ["*.x"]))
    ['1.embed.x']
    """
    for pattern in patterns:
        if not fnmatch.filter([*record], pattern):
            raise UsageError(f"{pattern!r} fits no gradient{suggest(pattern, [*record])}", "--grad-only")
    return record.select([name for name in record if any(fnmatch.fnmatchcase(name, one) for one in patterns)])
