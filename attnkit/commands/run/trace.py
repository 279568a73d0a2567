"""The trace of a pipeline: what each stage computed, as one record."""

import contextlib
import fnmatch
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnkit import callbacks, formats
from attnkit.cli.output_format import Result
from attnkit.cli.stage import Stage, command_line, extend_history, write_side_output
from attnkit.cli.tool import Item
from attnkit.errors import UsageError, suggest
from attnkit.generation.options import is_same_file
from attnkit.inputs import layers
from attnkit.interpret.gradients.pipeline import gather_tensors, shorten_names
from attnkit.interpret.stage_calls import part_prefix
from attnkit.model.parameters import MIXERS, last_part, tool_of
from attnkit.records import Labels, Record, Tensor, join_names

INPUT = "0.input"
SIDE_OUTPUT = "trace.npz"  # where a stage writes its own trace, which is not a file here
# tools of a layer of a model -> the end of the name of their x in a trace, after that of the layer
NAMES_OF_X = {"embed": "", "posenc": "", "layernorm": "", "linear": "", "attend": ".output", "ffn": ".output"}
HELD_TWICE = ("present_key", "present_value", "residual")  # k and v of all tokens, and the input of a norm


@dataclass(frozen=True)
class TracedCall:
    """One call of a stage.

    tensors  what it computed, by the names in the stage
    short    those of a layer of a model, by the names in a trace of the model
    """

    number: int
    stage: Stage
    item: Item
    tensors: Mapping[str, Tensor]
    short: Mapping[str, str]


class PipelineTrace:
    """What the stages of a pipeline compute, one record for each result.

    path      the file, which holds one record after another
    patterns  shell patterns of the names that are kept; none: all are
    """

    def __init__(self, path: str, patterns: Sequence[str], stages: Sequence[Stage]) -> None:
        if path == "-":
            callbacks.refuse_side_output(path, Record({}))
        formats.file_format(path)
        if is_same_file(path, stages[-1].common.get("output")):
            raise UsageError(f"{path}: --output writes the same file", "--trace")
        self._path, self._patterns, self._calls = path, tuple(patterns), list[TracedCall]()
        for number, stage in enumerate(stages, start=1):
            stage.compute = self._record_calls(stage, number)

    def write(self) -> None:
        """Write the trace of the last stage's result, and begin that of the next one."""
        calls, self._calls = self._calls, []
        counts, numbers, short = Counter(call.number for call in calls), Counter[int](), dict[str, str]()
        groups = [name_inputs(calls[0].item)] if calls else []
        for call in calls:
            numbers[call.number] += 1
            prefix = f"{call.number}.{call.stage.tool.name}."
            prefix += part_prefix(numbers[call.number] if counts[call.number] > 1 else 0)
            groups.append({prefix + name: one for name, one in call.tensors.items()})
            short |= {prefix + name: call.short[name] for name in call.tensors if name in call.short}
        separate = separate_axes({name: one for group in groups for name, one in group.items()})
        record = self._select(gather_tensors(shorten_names([separate], short)))
        write_side_output(self._path, replace(record, history=self._history(calls, counts)).check())

    def _select(self, record: Record) -> Record:
        for pattern in self._patterns:
            if not fnmatch.filter([*record], pattern):
                near = suggest(pattern, [*record]) or f" (it has {join_names([*record], 4)})"
                raise UsageError(f"{pattern!r} matches no tensor of this pipeline{near}", "--trace-only")
        names = [name for name in record if any(fnmatch.fnmatchcase(name, one) for one in self._patterns or ("*",))]
        return record.select(names)

    def _history(self, calls: Sequence[TracedCall], counts: Mapping[int, int]) -> list[dict[str, Any]]:
        """The history of the trace: the input's, and the pipeline as one command."""
        first, commands, files = {call.number: call for call in reversed(calls)}, list[str](), dict[str, str]()
        for number, call in sorted(first.items()):
            before = getattr(call.item, "history", [])
            files |= call.stage.files.compute_digests(not before)
            line = call.stage.command_line(call.item if counts[number] == 1 else None)
            commands.append(line.removeprefix("attnkit "))
        flags = [("trace", self._path), *([("trace_only", self._patterns)] if self._patterns else [])]
        command = command_line("run", [" | ".join(commands)], flags)
        before = getattr(calls[0].item, "history", []) if calls else []
        return extend_history(before, command, files, self._path)

    def _record_calls(self, stage: Stage, number: int) -> Callable[..., Result]:
        """The call of a stage's tool, which also keeps what each call computes."""
        compute = stage.compute

        def record_call(item: Any, **values: Any) -> Result:
            kept = list[Record]()
            with callbacks.use_callbacks(callbacks.current()._replace(on_intermediates=kept.append)):
                result = compute(item, **values)
            stage.format.keeps_history = True  # so that its files are hashed: the history of the trace names them
            converted = stage.convert_dtype(item, result) if isinstance(result, Record) else result
            own, traced = computed_tensors(item, converted), trace_model(compute, stage.tool.name, item, values)
            inner = {name: one for record in kept for name, one in computed_tensors(item, record).items()}
            inner = {name: one for name, one in inner.items() if name not in HELD_TWICE} | traced
            inner = {name: one for name, one in inner.items() if name not in own}
            last = {"x": own.pop("x")} if "x" in own else {}
            short = dict(zip(traced, traced, strict=True)) | name_layer(stage.tool.name, values, [*inner, *own, *last])
            self._calls.append(TracedCall(number, stage, item, inner | own | last, short))
            return result

        return record_call


def name_inputs(item: Item) -> dict[str, Tensor]:
    """The tensors that the first stage read: 0.input.x, 0.input.part2.x."""
    records = item if isinstance(item, list) else [item]
    return {
        f"{INPUT}.{part_prefix(part if len(records) > 1 else 0)}{name}": record.tensor(name)
        for part, record in enumerate(records, start=1)
        if isinstance(record, Record)
        for name in record
    }


def separate_axes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename an axis whose labels or size differ from those of most tensors.

    The labels of a record are those of an axis, so that only one of two texts can be `token`.

    >>> import numpy as np
    >>> words = [Tensor(np.zeros(2), ("token",), {"token": names}) for names in (["a", "b"], ["c", "d"], ["c", "d"])]
    >>> named = dict(zip(("1.embed.x", "2.embed.x", "3.ffn.x"), words))
    >>> [one.axes for one in separate_axes(named).values()]
    [('1.token',), ('token',), ('token',)]
    """
    counts = Counter(
        (axis, size, str(one.labels[axis]))
        for one in tensors.values()
        for axis, size in zip(one.axis_names(), one.shape, strict=True)
        if one.labels.get(axis)
    )
    most = {axis: (size, labels) for (axis, size, labels), _ in sorted(counts.items(), key=lambda item: item[1])}

    def rename(number: str, axis: str, size: int, labels: Labels | None) -> str:
        usual = most.get(axis, (size, ""))
        return axis if size == usual[0] and (not labels or str(labels) == usual[1]) else f"{number}.{axis}"

    separate = {}
    for name, one in tensors.items():
        old = one.axis_names()
        new = [
            rename(name.partition(".")[0], *pair, one.labels.get(pair[0])) for pair in zip(old, one.shape, strict=True)
        ]
        labels = {after: one.labels[before] for before, after in zip(old, new, strict=True) if before in one.labels}
        separate[name] = one if old == tuple(new) else replace(one, axes=tuple(new), labels=labels)
    return separate


def computed_tensors(item: Item, result: Result) -> dict[str, Tensor]:
    """The tensors of a result that the tool did not merely pass on."""
    if not isinstance(result, Record):
        return {}
    before = item[0] if isinstance(item, list) and item else item
    passed = before.arrays() if isinstance(before, Record) else {}
    return {name: result.tensor(name) for name in result if result[name] is not passed.get(name)}


def trace_model(compute: Callable[..., Result], name: str, item: Item, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The trace of a whole model, in a run of its own.

    A traced run may differ in the last bits, so the result comes from another run.
    """
    if name not in ("encode", "decode") or values["model_"] is None:
        return {}
    written: dict[str, Record] = {}
    quiet = callbacks.SILENT._replace(write_side_output=written.__setitem__)
    with warnings.catch_warnings(), callbacks.use_callbacks(quiet), contextlib.suppress(UsageError):
        warnings.simplefilter("ignore")
        compute(item, **{**values, "trace": SIDE_OUTPUT, "trace_only": ()})  # refused for texts of a classifier
    traced = written.get(SIDE_OUTPUT, Record({}))
    return {each: traced.tensor(each) for each in traced}


TOOLS_OF_MIXERS = tuple(tool_of(mixer) for mixer in MIXERS)


def name_layer(tool: str, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """The names of a layer's tensors in a trace of the model."""
    if values.get("model_") is None or tool not in (*NAMES_OF_X, *TOOLS_OF_MIXERS):
        return {}
    layer = layers.find_layer(values["model_"], values["layer"], tool)
    if tool not in NAMES_OF_X and last_part(layer) not in MIXERS:
        return {}
    x = NAMES_OF_X.get(tool, ".output")
    if x == ".output" and (values["residual"] or values["add"] is not None):
        x = ".residual"
    inner = () if tool in ("embed", "posenc") else names
    return {name: f"{layer}.{name}" for name in inner} | {"x": layer + x}
