"""attnkit history: the commands that made a record; run them again."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import typer

from attnkit import __version__, formats
from attnkit.cli.calls import tool
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.replay import (
    STREAMS,
    Origins,
    Part,
    count_noise,
    first_stage,
    measure_noise,
    parse_history,
    read_stream,
    run_parts,
    side_outputs,
)
from attnkit.cli.stage import Stage, read_records
from attnkit.cli.tool import Records
from attnkit.errors import DataError, DifferentError, FileError, UsageError, counted, escaped
from attnkit.interpret.rounding_report import JudgedTensor, describe_largest, judge_tensors
from attnkit.model.processor.machine import describe_machine
from attnkit.model.rounding import DIFFERENT
from attnkit.records import Record, find_machine
from attnkit.training.folder import ORIGIN

SIDE_PIPE = "/dev/fd/3"  # where a script writes a side output that the next command reads


def read_recorded(stage: Stage, upstream: Records | None) -> Records:
    """Read the record of a file or of the stage before, or the folder of a model.

    FileError for another folder, which has no history; UsageError for --replay of a folder.
    """
    for name in filter(os.path.isdir, stage.operands):
        if not os.path.exists(os.path.join(name, ORIGIN)):
            raise FileError("Is a directory; a history is that of a record: attnkit history FILE", name)
        if stage.parameters["replay"]:
            raise UsageError("a model is not trained again: run its command, and compare the bytes", "--replay")
        return Records(None, iter([name]))
    return read_records(stage, upstream)


@tool(
    reader=read_recorded,
    without=OF_TENSORS,
    gives="text",
)
def history(
    record: Record | str,
    *,
    replay: Annotated[
        bool,
        typer.Option(
            help="run the commands again; exit code 0 if the result is identical or the same to rounding, 1 if not"
        ),
    ] = False,
) -> str:
    """Print the commands that made a record as a script, or run them again.

    The script and --replay write no files: the script writes the record to standard output, and the other outputs of
    its commands (--trace, --cache-out) to /dev/null. If the first command read standard input, the script and
    --replay read it too. For a file from --trace or --cache-out, --replay compares the file with its new content.
    --replay reads only regular files. The result is identical bit for bit, the same to rounding, or different, with the
    first stage that moved; noise is measured as `diff --rounding` does. For the folder of a trained model, history
    prints the command that trained it, with the SHA-256 of its text.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc > out.json && attnkit history out.json --replay
    """
    if isinstance(record, str):
        from attnkit.training.reports import training_script

        return training_script(record)
    if not record.history:
        raise DataError("it has no history (npy and bare JSON lists have none)")
    parts = parse_history(record)
    if not replay:
        return write_script(record, parts)
    if stream := read_stream(record):
        raise DataError(f"it was made from {stream}, a stream that cannot be read again")
    try:
        return replay_history(record, parts)
    except FileError as error:
        if os.path.isabs(error.name) or os.path.exists(error.name):
            raise
        elsewhere = "names of files are relative to the folder in which the record was made"
        raise FileError(f"{error.problem}; {elsewhere}", error.name) from None
    except UsageError as error:  # of a command in the record, not of this one
        tool = str(getattr(error, "place", "")).removeprefix("attnkit ")
        raise DataError(f"its history cannot be run again: {f'{tool}: ' if tool else ''}{error}") from None


def replay_history(record: Record, parts: list[Part]) -> str:
    """Run the history again; DifferentError if each result differs from the record."""
    parts[0].stages[0].common["format"] = "json"  # with an npy input the output would be npy, which has no history
    origins, problem = Origins(), ""
    nearest: Replayed | None = None
    commands = f"{counted(len(record.history), 'command')} run again"
    with formats.regular_files_only():
        for result in run_parts(parts, origins.keep):
            if not isinstance(result, Record):
                problem = "they print text"
                continue
            if problem := find_change(record, result):
                continue
            a, b = (formats.round_trip(one, "json") for one in (record, result))
            moved = [name for name in a if a[name].tobytes() != b[name].tobytes()]
            if not moved:
                return f"{commands}: identical bit for bit"
            distance = count_noise(a, b)
            if nearest is None or distance < nearest.distance:
                nearest = Replayed(distance, a, b, tuple(moved), dict(origins.stages))
    if nearest is None:
        raise DifferentError(f"run again, {problem}")
    noise = measure_noise(record)
    judged = [judge_tensors(nearest.a, nearest.b, name, noise, ("then", "now")) for name in nearest.moved]
    if differing := [one for one in judged if one.verdict == DIFFERENT]:
        raise DifferentError(f"run again, {describe_moved(nearest, differing)}{describe_makers(record)}")
    worst = max(judged, key=lambda one: one.judgement.relative)
    largest = f"{describe_largest(worst.judgement)} ({worst.name}); {worst.noise}"
    return "\n".join([f"{commands}: the same to rounding, {largest}", *machine_lines(record)])


class Replayed(NamedTuple):
    """A result beside the record, and how far it is from it.

    moved   the tensors whose bits differ
    stages  which stage made each tensor
    """

    distance: float
    a: Record
    b: Record
    moved: tuple[str, ...]
    stages: Mapping[str, tuple[int, str]]


def describe_moved(replayed: Replayed, differing: Sequence[JudgedTensor]) -> str:
    """The first stage with a tensor that differs, and the last before it without one."""
    first = min(differing, key=lambda one: replayed.stages.get(one.name, (0, ""))[0])
    number, tool = replayed.stages.get(first.name, (0, ""))
    index = "".join(f"[{at}]" for at in first.judgement.at)
    note = f" ({first.note})" if first.note else ""
    text = f"{first.name}{f' of stage {number}, {tool},' if number else ''} differs first at {index}{note}"
    same = {stage for name, stage in replayed.stages.items() if name not in replayed.moved and stage[0] < number}
    if same:
        last, tool = max(same)
        text += f"; up to stage {last}, {tool}, all is identical"
    return text


def describe_makers(record: Record) -> str:
    """The version and the machine that made a record, if they are others than here."""
    versions = {entry["version"] for entry in record.history} - {__version__}
    made = [f"by attnkit {', '.join(sorted(versions))}"] if versions else []
    machine = find_machine(record.history)
    made += [f"on {machine}"] if machine and machine != describe_machine() else []
    return f" (it was made {' '.join(made)})" if made else ""


def machine_lines(record: Record) -> list[str]:
    """The machine that made a record and this one, if that is known."""
    then, here = find_machine(record.history), describe_machine()
    return [f"made on {then}; this is {here}"] if then and then != here else []


def write_script(record: Record, parts: list[Part]) -> str:
    """Write the history as a shell script with the SHA-256 of every file it reads.

    Every command is rebuilt from its parsed flags, and every word of it is quoted.
    """
    stages = [stage for part in parts for stage in part.stages]
    comments = script_comments(record, stages)
    if record.history[0].get("files") and stages[0].tool.name != "embed":
        stages[0].common["format"] = "json"
    for stage in stages[:-1]:
        if stage.format.shows_table:
            stage.common["format"] = "json"
    lines = [script_command(stage, beside * (stage is stages[-1])) for stages, beside in parts for stage in stages]
    return "\n".join(["#!/bin/sh", *comments, " \\\n  | ".join(lines)])


def script_comments(record: Record, stages: list[Stage]) -> list[str]:
    """The comments of a script: versions, files with their SHA-256, what is left out."""
    versions = dict.fromkeys(entry["version"] for entry in record.history)
    files = {file: digest for entry in record.history for file, digest in entry.get("files", {}).items()}
    stream = " (a stream: it cannot be read again)"
    return [
        f"# made by attnkit {escaped(', '.join(versions))}",
        *(f"# {escaped(f'{digest}  {file}')}{stream * file.startswith(STREAMS)}" for file, digest in files.items()),
        *(
            [f"# attnkit {stages[0].tool.name} read standard input: give it the same again"]
            if first_stage(stages[0]).count_stdin()
            else []
        ),
        *(f"# modules: {escaped('; '.join(entry['modules']))}" for entry in record.history if entry.get("modules")),
        *(f"# without writing {escaped(path)}" for stage in stages for path in side_outputs(stage).values()),
    ]


def script_command(stage: Stage, beside: str) -> str:
    """A command that writes no file, piping a side output that the next one reads."""
    paths = {name: SIDE_PIPE if path == beside else os.devnull for name, path in side_outputs(stage).items()}
    words = shlex.split(replace(stage, parameters=stage.parameters | paths).command_line())
    if "format" in stage.common:
        words[2:2] = ["-f", stage.common["format"]]
    return shlex.join(words) + f" 3>&1 > {os.devnull}" * bool(beside)


def find_change(before: Record, after: Record) -> str:
    """What changed beside numbers: files, tensors, shapes, labels; "" if nothing."""
    for number, (then, now) in enumerate(zip(before.history, after.history, strict=False), start=1):
        for file, digest in then.get("files", {}).items():
            if now.get("files", {}).get(file) != digest:
                stage = f"stage {number}: " if len(before.history) > 1 else ""
                return f"{stage}{file} has changed (SHA-256 {digest[:12]}… then)"
    a, b = (formats.round_trip(record, "json") for record in (before, after))
    if list(a) != list(b):
        return f"the tensors are {', '.join(b)} (expected {', '.join(a)})"
    for name in a:
        x, y = a[name], b[name]
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{name} is {y.dtype} {y.shape} (expected {x.dtype} {x.shape})"
    return "" if a.labels == b.labels else "the labels differ"
