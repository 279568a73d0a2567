"""The history of a record run again, also with roundings to measure its noise."""

import contextlib
import io
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnkit import __version__, formats
from attnkit.cli import pipeline
from attnkit.cli.output_format import Result
from attnkit.cli.stage import Stage, stored_by
from attnkit.cli.tool import Records
from attnkit.errors import AttnkitError, DataError, UsageError
from attnkit.interpret.rounding_report import Noise
from attnkit.model.dtypes import is_float
from attnkit.model.rounding import EPSILON, judge_arrays, largest_of_rows, make_rounding, noise_floor, rows_of
from attnkit.records import Array, Record, Tensor

SIDE_OUTPUTS = ("trace", "cache_out")  # flags that write a file beside the result
STREAMS = ("/dev/", "/proc/")  # folders of `<(…)` and of file descriptors
PROGRAMS = ("check", "golden", "train")  # tools that run programs or write folders
STATING = ("check", "cost")  # tools whose --dtype states what something else computes in
NUDGES = (1, 2)  # seeds of the roundings of every stage
Change = Callable[[Stage], None]  # what is changed of a stage before it runs


class Part(NamedTuple):
    """A pipeline of the history, and the side output that the next part reads."""

    stages: list[Stage]
    beside: str


def parse_history(record: Record) -> list[Part]:
    """The stages of a history, unused; DataError if attnkit refuses one."""
    parts = [Part([], "")]
    for entry in record.history:
        stage, beside = parse_command(entry["command"]), entry.get("beside", "")
        if beside and beside not in side_outputs(stage).values():
            raise DataError(f"its history has {beside} written by a command that does not write it")
        parts[-1] = Part([*parts[-1].stages, stage], beside)
        if beside:
            parts.append(Part([], ""))
    return [part for part in parts if part.stages]


def parse_command(command: str) -> Stage:
    """The stage of a command of a history; DataError if attnkit refuses it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DataError(f"its history has a command that cannot be read ({error}): {command}") from None
    if words[:1] != ["attnkit"] or "\0" in command:
        raise DataError(f"its history has a command that is not attnkit's: {command}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the help, where it has --help
            stage = pipeline.parse_stage(words[1:], refused=("history",))
            first_stage(stage)
    except UsageError as error:
        raise DataError(f"its history has a command that attnkit {__version__} refuses ({error}): {command}") from None
    if "engine" in stage.tool.extra_names and stage.tool.name != "run":  # NumPy made it, whatever ATTNKIT_ENGINE is
        stage.extra["engine"] = stage.extra.get("engine") or "numpy"
    if any(one.tool.name in PROGRAMS for one in with_inner(stage)):
        raise DataError(f"its history has a command that runs programs or writes files, not run again: {command}")
    if stage.extra.get("save"):
        raise DataError(f"its history writes the folder {stage.extra['save']}: not one that attnkit made")
    if "output" in stage.common:
        raise DataError(f"its history writes {stage.common['output']}: not one that attnkit made")
    return stage


def first_stage(stage: Stage) -> Stage:
    """The stage that reads the input: of a pipeline of `run` its first."""
    return pipeline.parse_stages(stage.operands[0])[0] if stage.tool.name == "run" and stage.operands else stage


def with_inner(stage: Stage) -> list[Stage]:
    """A stage, and those of its pipeline if it is `run`."""
    return [stage, *(pipeline.parse_stages(stage.operands[0]) if stage.tool.name == "run" and stage.operands else [])]


def side_outputs(stage: Stage) -> dict[str, str]:
    """The files that a stage writes beside its result, by their flags."""
    return {name: stage.parameters[name] for name in SIDE_OUTPUTS if stage.parameters.get(name) is not None}


@dataclass
class Origins:
    """Which stage made each tensor of the result at hand.

    stages  by the name of a tensor: the number of its stage from 1, and the tool
    """

    stages: dict[str, tuple[int, str]] = field(default_factory=dict)
    _before: Record = field(default_factory=lambda: Record({}))

    def keep(self, number: int, stage: Stage, result: Result) -> None:
        """Note what a stage made; the first one begins a result."""
        if not isinstance(result, Record):
            return
        before = Record({}) if number == 1 else self._before
        kept = {
            name: self.stages[name] for name in result if name in self.stages and has_same_tensor(before, result, name)
        }
        self.stages = {name: kept.get(name, (number, stage.tool.name)) for name in result}
        self._before = result


def has_same_tensor(a: Record, b: Record, name: str) -> bool:
    """Whether two records have the same bits under a name."""
    if name not in a or name not in b:
        return False
    x, y = a[name], b[name]
    return x is y or ((x.shape, x.dtype) == (y.shape, y.dtype) and x.tobytes() == y.tobytes())


def run_parts(
    parts: list[Part], after: Callable[[int, Stage, Result], None] = lambda number, stage, result: None
) -> Iterator[Result]:
    """Run pipelines, each on the side output of the one before. Write no file.

    after  (number of the stage from 1, stage, result), called with every result of every stage
    """
    upstream: Records | None = None
    first = 1
    for stages, beside in parts:
        counted = partial(lambda first, at, stage, result: after(first + at, stage, result), first)
        first += len(stages)
        files: dict[str, Record] = {}
        with stored_by(files.__setitem__):
            results = pipeline.chain_stages(stages, counted, upstream).items
            if not beside:
                yield from results
                return
            for _ in results:  # the side output is complete at the end
                pass
        side_output = formats.round_trip(files[beside], formats.file_format(beside))
        upstream = Records("json", iter([side_output]))
    yield side_output


def read_stream(record: Record) -> str:
    """The first stream that a history read, which cannot be read again, or ""."""
    files = (file for entry in record.history for file in entry.get("files", {}))
    return next((file for file in files if file.startswith(STREAMS)), "")


def measure_noise(record: Record) -> Noise:
    """The noise of a record, measured by running its history again and again.

    It runs as it was, in float64, and in float64 with the result of each stage rounded to its dtype, to either side at
    random. What was computed in float64 runs in float32, and its noise is smaller by the ratio of their units.
    """
    if not record.history:
        return Noise()
    if stream := read_stream(record):
        return Noise(problem=f"{stream} cannot be read again")
    try:
        if first_stage(parse_history(record)[0].stages[0]).count_stdin():
            return Noise(problem="its first command read standard input")
        with formats.regular_files_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the record was made with them
            return compare_runs(lambda change: run_changed(record, change))
    except AttnkitError as error:
        return Noise(problem=str(error))


def run_changed(record: Record, change: Change) -> Record:
    """Run a history with its stages changed; of a stream the record that is nearest."""
    parts = parse_history(record)
    parts[0].stages[0].common["format"] = "json"
    for part in parts:
        for stage in part.stages:
            change(stage)
    results = [one for one in run_parts(parts) if isinstance(one, Record)]
    if not results:
        raise DataError("its history gives no record")
    return min(results, key=lambda one: count_noise(record, one))


def count_noise(record: Record, other: Record) -> float:
    """How far the tensors of two records are apart, in units of their noise."""
    total = 0.0
    for name in record:
        if name not in other or record[name].shape != other[name].shape:
            return np.inf
        judged = judge_arrays(record[name], other[name])
        total += judged.largest / judged.noise if judged.noise else judged.largest
    return total


def compare_runs(run: Callable[[Change], Record]) -> Noise:
    """The noise of a pipeline, of its runs in two dtypes and with roundings."""
    own = run(lambda stage: None)
    dtype = usual_dtype(own)
    narrow = own if dtype != "float64" else run(lambda stage: convert_stage(stage, "float32"))
    wide = own if dtype == "float64" else run(lambda stage: convert_stage(stage, "float64"))
    narrow_dtype, factor = dtype, 1.0
    if dtype == "float64":
        narrow_dtype, factor = "float32", EPSILON["float64"] / EPSILON["float32"]
    others = [narrow]
    for seed in NUDGES:
        others.append(run(lambda stage, seed=seed: round_stage(stage, narrow_dtype, seed)))  # type: ignore[misc]
    floors: dict[str, Array] = {}
    ties: dict[str, list[Array]] = {}
    for name in own:
        if not is_float(own[name].dtype):
            seen = [one[name] for one in (wide, *others) if name in one]
            if any(one.shape != own[name].shape or (one != own[name]).any() for one in seen):
                ties[name] = seen
        elif name in wide and wide[name].dtype == np.float64:
            floors |= measure_tensor(name, wide[name], others, narrow_dtype, factor)
    return Noise(floors, ties, "noise measured by running its history in float64 and rounded", dtype=dtype)


def measure_tensor(name: str, wide: Array, others: Sequence[Record], dtype: str, factor: float) -> Mapping[str, Array]:
    """The floor of a tensor by name; none if no run had a narrower dtype.

    A tensor that is the same in both was computed in neither: it is drawn, or its tool has one dtype alone.
    """
    if name not in others[0] or others[0][name].dtype == np.float64:
        return {}
    expected = rows_of(wide)
    if np.array_equal(expected, rows_of(others[0][name])):
        return {}
    scale = largest_of_rows(expected)
    narrow = [rows_of(one[name]) for one in others if name in one and one[name].shape == wide.shape]
    floors = [noise_floor(expected, one, dtype, scale) for one in narrow]
    return {name: factor * np.maximum.reduce(floors)} if floors else {}


def usual_dtype(record: Record) -> str:
    """The dtype of x, or of the first tensor of floats."""
    named = [record[name] for name in ("x", *record) if name in record]
    return next((one.dtype.name for one in named if one.dtype.name in EPSILON), "float64")


def convert_stage(stage: Stage, dtype: str) -> None:
    """Have a stage compute in a dtype."""
    if stage.tool.name == "run" and stage.operands:
        inner = pipeline.parse_stages(stage.operands[0])
        for one in inner:
            convert_stage(one, dtype)
        text = " | ".join(one.command_line().removeprefix("attnkit ") for one in inner)
        stage.operands = (text, *stage.operands[1:])
        return
    if "dtype" in stage.tool.flags:
        if stage.tool.name not in STATING:
            stage.parameters["dtype"] = dtype
    elif "dtype" in stage.tool.options:
        stage.common["dtype"] = dtype


def round_stage(stage: Stage, dtype: str, seed: int) -> None:
    """Have a stage compute in float64, and round the tensors that it makes at random."""
    convert_stage(stage, "float64")
    compute, change = stage.compute, make_rounding(dtype, seed)

    def round_result(item: Any, **values: Any) -> Result:
        result = compute(item, **values)
        if not isinstance(result, Record):
            return result
        before = item.arrays() if isinstance(item, Record) else {}
        moved: dict[str, Tensor] = {}
        for name, one in result.tensors.items():
            if one.array.dtype == np.float64 and before.get(name) is not one.array:
                moved[name] = Tensor(change(one.array), one.axes, one.labels, one.formula)
        return result.with_tensors(moved) if moved else result

    stage.compute = round_result
