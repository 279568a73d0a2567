"""The tensors of each stage of a case, with their noise if it is measured."""

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from attnkit import formats
from attnkit.checking.callees import CalleeError
from attnkit.checking.programs import ProgramError, run_program
from attnkit.cli import pipeline
from attnkit.cli.output_format import Result
from attnkit.cli.replay import Change, compare_runs
from attnkit.cli.stage import Stage, stored_by
from attnkit.commands.golden.cases import GoldenCase
from attnkit.errors import AttnkitError, DataError, counted
from attnkit.interpret.rounding_report import Noise
from attnkit.records import Record, Tensor, find_names

MOST = 512 << 20  # bytes that a command may write
MOST_STAGES = 200  # stages or records of a case
OUTPUT = "output"  # the stage of a program


@dataclass
class CaseRun:
    """What a case computed.

    stages   the tensors that each stage made, by its name: 3.attend
    noise    by stage and tensor, as 3.attend/x; nothing where it is derived
    problem  why it computed nothing, or ""
    """

    stages: dict[str, Record] = field(default_factory=dict)
    noise: Noise = field(default_factory=Noise)
    problem: str = ""


def run_case(case: GoldenCase, folder: str, measures: bool = False) -> CaseRun:
    """Run a case in a folder; a run with a problem if it fails.

    measures  whether the noise of a pipeline is measured, by running it several times
    """
    try:
        with contextlib.chdir(folder):
            if case.way != "pipeline":
                return CaseRun(select_tensors(read_output(case), case.only))
            stages = run_pipeline(case)
            if not measures:
                return CaseRun(stages)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first run has warned
                noise = compare_runs(lambda change: join_stages(run_pipeline(case, change)))
            return CaseRun(stages, noise)
    except (CalleeError, ProgramError) as error:
        return CaseRun(problem=str(error))
    except AttnkitError as error:
        place = error.place.removeprefix("attnkit ")
        return CaseRun(problem=f"{place}: {error}" if place else str(error))
    except OSError as error:
        return CaseRun(problem=f"{folder}: {error.strerror}")


def run_pipeline(case: GoldenCase, change: Change = lambda stage: None) -> dict[str, Record]:
    """The tensors that each stage of a pipeline makes, without writing files."""
    stages = pipeline.parse_stages(case.text)
    if stages[0].count_stdin():
        raise DataError(f"{stages[0].tool.name} reads standard input, which a case does not have; name a file")
    for stage in stages:
        if stage.tool.name == "golden":
            raise DataError("golden cannot be a stage of a case")
        change(stage)
        if refused := [name for name in ("output", "save") if (stage.common | stage.extra).get(name)]:
            raise DataError(f"{stage.tool.name} --{refused[0]}: a case writes no files")
    made: dict[str, Record] = {}
    before: dict[str, int] = {}

    def keep(at: int, stage: Stage, result: Result) -> None:
        name = f"{at + 1}.{stage.tool.name}"
        number = before[name] = before.get(name, 0) + 1
        if not isinstance(result, Record):
            raise DataError(f"{stage.tool.name} writes text, which has no numbers")
        made[f"{name}#{number}" if number > 1 else name] = result
        if len(made) > MOST_STAGES:
            raise DataError(f"more than {MOST_STAGES} results; only a short stream is golden")

    with stored_by(lambda path, record: None):
        for _ in pipeline.chain_stages(stages, keep).items:
            pass
    return select_tensors(drop_passed(made), case.only)


def drop_passed(made: Mapping[str, Record]) -> dict[str, Record]:
    """The records of stages without the tensors that an earlier one made."""
    seen: dict[str, list[Tensor]] = {}
    kept: dict[str, Record] = {}
    for stage, record in made.items():
        own = {}
        for name, one in record.tensors.items():
            if not any(has_same_bits(one, other) for other in seen.setdefault(name, [])):
                own[name] = one
                seen[name].append(one)
        kept[stage] = Record(own)
    return kept


def has_same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    if one.array is other.array:
        return True
    is_alike = (one.array.dtype, one.shape) == (other.array.dtype, other.shape)
    return is_alike and one.array.tobytes() == other.array.tobytes()


def join_stages(stages: Mapping[str, Record]) -> Record:
    """The tensors of all stages in one record, by stage and name."""
    return Record({f"{stage}/{name}": one for stage, record in stages.items() for name, one in record.tensors.items()})


def select_tensors(stages: dict[str, Record], only: tuple[str, ...]) -> dict[str, Record]:
    """The stages that have tensors of some names, with these alone."""
    if not only:
        return {stage: record for stage, record in stages.items() if len(record)}
    find_names(only, {name for record in stages.values() for name in record})
    chosen = {}
    for stage, record in stages.items():
        names = [name for one in only for name in ([one] if one in record else fitting_names(one, record))]
        if names:
            chosen[stage] = record.select(names)
    return chosen


def fitting_names(pattern: str, record: Record) -> list[str]:
    """The names of a record that a pattern fits."""
    with contextlib.suppress(DataError):
        return find_names([pattern], [*record])
    return []


def read_output(case: GoldenCase) -> dict[str, Record]:
    """The records that a command writes; ProgramError or DataError if none."""
    before = state_of(case.output) if case.output else None
    written, error = run_program(case.words, case.timeout, MOST, {"FSIZE": MOST})
    if not case.output:
        if not written:
            raise ProgramError(f"it wrote nothing{error}")
        with formats.Source.of(written, "its output") as source:
            return read_records_of(source)
    after = state_of(case.output)
    if after is None or after == before:
        raise ProgramError(f"it did not write {case.output}")
    with formats.regular_files_only(), formats.open_source(case.output) as source:
        return read_records_of(source)


def state_of(path: str) -> tuple[int, ...] | None:
    """Facts that change when a file is written; None without one. DataError if huge."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if found.st_size > MOST:
            raise DataError(f"{found.st_size} bytes (expected at most {MOST})", path)
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def read_records_of(source: formats.Source) -> dict[str, Record]:
    """The records of a program; JSON writes floats that are whole as integers."""
    stream = formats.read(source, maps=True)
    return number_records(map(as_floats_of, stream) if stream.source in ("json", "csv") else iter(stream))


def as_floats_of(record: Record) -> Record:
    """A record with float64 in place of int64."""
    whole = {name: one for name, one in record.tensors.items() if one.array.dtype == np.int64}
    return record.with_tensors({name: replace(one, array=one.array.astype(float)) for name, one in whole.items()})


def number_records(records: Iterator[Record]) -> dict[str, Record]:
    """The records of a stream as stages: output, output#2."""
    stages: dict[str, Record] = {}
    for record in records:
        number = len(stages) + 1
        if number > MOST_STAGES:
            raise DataError(f"more than {counted(MOST_STAGES, 'record')}; only a short stream is golden")
        stages[f"{OUTPUT}#{number}" if number > 1 else OUTPUT] = Record(record.tensors)
    return stages


def full_tensors(case: GoldenCase, run: CaseRun) -> dict[str, Tensor]:
    """The tensors of a run by case, stage and name, as --full keeps them."""
    joined = join_stages(run.stages).tensors
    return {f"{case.name}/{name}": replace(one, axes=None) for name, one in joined.items() if np.size(one.array)}
