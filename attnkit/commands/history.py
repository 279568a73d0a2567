"""attnkit history: the commands that made a record; run them again."""

import os
import shlex
from dataclasses import replace
from typing import Annotated

import numpy as np
import typer

from attnkit import __version__, formats
from attnkit.cli.calls import tool
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.output_format import Result
from attnkit.cli.replay import STREAMS, Part, first_stage, parse_history, read_stream, run_parts, side_outputs
from attnkit.cli.stage import Stage, read_records
from attnkit.cli.tool import Records
from attnkit.errors import DataError, DifferentError, FileError, UsageError, escaped
from attnkit.records import Array, Record
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
        bool, typer.Option(help="run the commands again; exit code 0 if the result is equal bit for bit, 1 if not")
    ] = False,
) -> str:
    """Print the commands that made a record as a script, or run them again.

    The script and --replay write no files: the script writes the record to standard output, and the other outputs of
    its commands (--trace, --cache-out) to /dev/null. If the first command read standard input, the script and
    --replay read it too. For a file from --trace or --cache-out, --replay compares the file with its new content.
    --replay reads only regular files. For the folder of a trained model,
    history prints the command that trained it, with the SHA-256 of its text.

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
    """Run the history again; DifferentError unless a result equals the record."""
    parts[0].stages[0].common["format"] = "json"  # with an npy input the output would be npy, which has no history
    with formats.regular_files_only():
        problem = ""
        for result in run_parts(parts):
            problem = find_difference(record, result)
            if not problem:
                plural = "s" if len(record.history) > 1 else ""
                return f"{len(record.history)} command{plural} run again: equal bit for bit"
    raise DifferentError(f"run again, {problem}")


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


def find_difference(before: Record, after: Result) -> str:
    """Describe the first difference of two records; "" if they are equal."""
    if not isinstance(after, Record):
        return "they print text"
    for then, now in zip(before.history, after.history, strict=False):
        for file, digest in then.get("files", {}).items():
            if now.get("files", {}).get(file) != digest:
                return f"{file} has changed (SHA-256 {digest[:12]}… then)"
    a, b = (formats.round_trip(record, "json") for record in (before, after))
    if list(a) != list(b):
        return f"the tensors are {', '.join(b)} (expected {', '.join(a)})"
    for name in a:
        x, y = a[name], b[name]
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{name} is {y.dtype} {y.shape} (expected {x.dtype} {x.shape})"
        if x.tobytes() != y.tobytes():
            versions = {entry["version"] for entry in before.history} - {__version__}
            origin = f" (it was made by attnkit {', '.join(versions)})" if versions else ""
            return f"{name} differs first at {first_different_index(x, y)}{origin}"
    return "" if a.labels == b.labels else "the labels differ"


def first_different_index(x: Array, y: Array) -> str:
    """The index of the first element whose bytes differ in equally shaped arrays.

    >>> first_different_index(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [0, 4]]))
    '[1][0]'
    """
    x_bytes, y_bytes = (np.frombuffer(array.tobytes(), np.uint8) for array in (x, y))
    at = int(np.argmax(x_bytes != y_bytes)) // x.itemsize
    return "".join(f"[{i}]" for i in np.unravel_index(at, x.shape))
