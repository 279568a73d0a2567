"""attnkit history: the commands that made a record; run them again."""

import contextlib
import io
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from attnkit import __version__, formats
from attnkit.cli import options, pipeline
from attnkit.cli.history import command_line
from attnkit.cli.stage import Records, Result, Stage, read_records, stored_by
from attnkit.cli.tool import tool
from attnkit.errors import DataError, DifferentError, FileError, UsageError, escaped
from attnkit.record import Record

STREAMS = ("/dev/", "/proc/")  # where `<(…)` and descriptors are
BESIDE = ("trace", "cache_out")  # flags whose file is written beside the result
HERE = "/dev/fd/3"  # where a script has what goes on to the next command and is not the result


def recorded(call: Stage, upstream: Records | None) -> Records:
    """Feed: the record of a file or of the stage before; a folder is none, and has no history."""
    for name in filter(os.path.isdir, call.operands):
        raise FileError("Is a directory; a history is that of a record: attnkit history FILE", name)
    return read_records(call, upstream)


@tool(feed=recorded, numeric=lambda given: False, prints=lambda given: True)
def history(
    record: Record,
    *,
    replay: Annotated[
        bool, options.switch("run the commands again: exit code 0 when the result is equal bit for bit, 1 when not")
    ] = False,
) -> str:
    """The commands that made a record, as a shell script; --replay runs them again.

    Neither writes a file: the script gives the record on standard output, and what its commands wrote to other
    files (--trace, --cache-out) goes to /dev/null. Where the first command read standard input, the script and
    --replay read it from standard input too. Of a file that --trace or --cache-out has written, --replay compares
    what these would write now. It reads regular files alone.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc > out.json && attnkit history out.json --replay
    """
    if not record.history:
        raise DataError("it carries no history (npy and bare JSON lists have none)")
    parts = pipes(record)
    if not replay:
        return script(record, parts)
    streams = [file for entry in record.history for file in entry.get("files", {}) if file.startswith(STREAMS)]
    if streams:
        raise DataError(f"it was made from {streams[0]}, a stream that cannot be read again")
    parts[0].calls[0].common["format"] = "json"  # an input in npy would be followed in npy, which carries no history
    with formats.regular_files_only():
        problem = ""
        for found in made_again(parts):
            problem = difference(record, found)
            if not problem:
                many = "s" if len(record.history) > 1 else ""
                return f"{len(record.history)} command{many} run again: equal bit for bit"
    raise DifferentError(f"run again, {problem}")


class Part(NamedTuple):
    """A pipeline of the history, and the file beside its result in which it has what goes on; "" of the result."""

    calls: list[Stage]
    beside: str


def pipes(record: Record) -> list[Part]:
    """The commands of a record as pipelines."""
    parts = [Part([], "")]
    for entry in record.history:
        call, beside = called(entry["command"]), entry.get("beside", "")
        if beside and beside not in written(call).values():
            raise DataError(f"its history has {beside} written by a command that does not write it")
        parts[-1] = Part([*parts[-1].calls, call], beside)
        if beside:
            parts.append(Part([], ""))
    return [part for part in parts if part.calls]


def called(command: str) -> Stage:
    """The stage that a command of the history is.

    DataError where it is none, or has a flag that no command in a history has: one that writes its result to a file.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DataError(f"its history has a command that cannot be read ({error}): {command}") from None
    if words[:1] != ["attnkit"] or "\0" in command:
        raise DataError(f"its history has a command that is not attnkit's: {command}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the help, where it asks for that
            call = pipeline.parse_stage(words[1:])
    except UsageError as error:
        raise DataError(f"its history has a command that attnkit {__version__} refuses ({error}): {command}") from None
    if "output" in call.common:
        raise DataError(f"its history writes {call.common['output']}: not one that attnkit made")
    return call


def made_again(parts: list[Part]) -> Iterator[Result]:
    """What the last of some pipelines makes, each going on from what the one before has made; nothing is written."""
    upstream: Records | None = None
    for calls, beside in parts:
        files: dict[str, Record] = {}
        with stored_by(files.__setitem__):
            made = pipeline.chain_stages(calls, upstream=upstream).items
            if not beside:
                yield from made
                return
            for _ in made:  # what it writes beside its result is there once it is done
                pass
        found = formats.round_trip(files[beside], formats.suffix_format(beside) or "json")
        upstream = Records("json", iter([found]))
    yield found


def script(record: Record, parts: list[Part]) -> str:
    """The history as a shell script: the pipeline, and the SHA-256 of every file it read.

    Every command is one that attnkit itself has made of the flags it found, each word of it quoted.
    """
    lines = ["#!/bin/sh"]
    versions = dict.fromkeys(entry["version"] for entry in record.history)
    lines.append(f"# made by attnkit {escaped(', '.join(versions))}")
    files = {file: digest for entry in record.history for file, digest in entry.get("files", {}).items()}
    gone = " (a stream: it cannot be read again)"
    lines += [f"# {escaped(f'{digest}  {file}')}{gone * file.startswith(STREAMS)}" for file, digest in files.items()]
    calls = [call for part in parts for call in part.calls]
    if calls[0].stdin_readers():
        lines.append("# reads standard input")
    lines += [f"# without writing {escaped(path)}" for call in calls for path in written(call).values()]
    if record.history[0].get("files") and calls[0].tool.name != "embed":
        calls[0].common["format"] = "json"
    for call in calls[:-1]:
        if call.tool.eyes:
            call.common["format"] = "json"
    stages = [spelled(call, beside * (call is calls[-1])) for calls, beside in parts for call in calls]
    return "\n".join([*lines, " \\\n  | ".join(stages)])


def written(call: Stage) -> dict[str, str]:
    """The files that a command writes beside its result, by flag."""
    return {name: call.parameters[name] for name in BESIDE if call.parameters.get(name) is not None}


def spelled(call: Stage, beside: str) -> str:
    """A command of the script, which writes no file: what goes on from one beside its result goes down the pipe."""
    elsewhere = {name: HERE if path == beside else os.devnull for name, path in written(call).items()}
    words = shlex.split(command_line(replace(call, parameters=call.parameters | elsewhere), None))
    if "format" in call.common:
        words[2:2] = ["-f", call.common["format"]]
    return shlex.join(words) + f" 3>&1 > {os.devnull}" * bool(beside)


def difference(before: Record, after: Any) -> str:
    """What differs between a record and the one its commands give now; "" when nothing does."""
    if not isinstance(after, Record):
        return "they print text"
    for then, now in zip(before.history, after.history, strict=False):
        for file, digest in then.get("files", {}).items():
            if now.get("files", {}).get(file) != digest:
                return f"{file} is another file than it was (SHA-256 {digest[:12]}… then)"
    a, b = (formats.round_trip(one, "json") for one in (before, after))
    if list(a.tensors) != list(b.tensors):
        return f"there are other tensors: {', '.join(b.tensors)} (expected {', '.join(a.tensors)})"
    for name in a.tensors:
        x, y = a[name], b[name]
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{name} is {y.dtype} {y.shape} (expected {x.dtype} {x.shape})"
        if x.tobytes() != y.tobytes():
            at = (
                int(np.argmax(np.frombuffer(x.tobytes(), np.uint8) != np.frombuffer(y.tobytes(), np.uint8)))
                // x.itemsize
            )
            index = "".join(f"[{i}]" for i in np.unravel_index(at, x.shape))
            versions = {entry["version"] for entry in before.history} - {__version__}
            return f"{name} differs first at {index}" + (
                f" (it was made by attnkit {', '.join(versions)})" if versions else ""
            )
    return "" if a.labels == b.labels else "the labels differ"
