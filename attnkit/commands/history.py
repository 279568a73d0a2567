"""attnkit history: the commands that made a record; run them again."""

import os
import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np

from attnkit import __version__, options, pipelines, tensors
from attnkit.errors import DataError, FileError
from attnkit.tensors.record import Record
from attnkit.tool import Call, Flow, Result, arriving, tool

STREAMS = ("/dev/", "/proc/")  # where `<(…)` and descriptors are


def recorded(call: Call, upstream: Flow | None) -> Flow:
    """Feed: the record of a file or of the stage before; a folder is none, and has no history."""
    for name in filter(os.path.isdir, call.operands):
        raise FileError("Is a directory; a history is that of a record: attnkit history FILE", name)
    return arriving(call, upstream)


@tool(feed=recorded, numeric=lambda given: False, prints=lambda given: True)
def history(
    record: Record,
    *,
    replay: Annotated[bool, options.switch("run the commands and say whether the result is equal bit for bit")] = False,
) -> str:
    """The commands that made a record, as a shell script; --replay runs them again.

    Where the first command read standard input, --replay reads it from standard input too. Of a file that
    --trace or --cache-out has written, it compares what these would write now, and writes nothing.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc > out.json && attnkit history out.json --replay
    """
    if not record.history:
        raise DataError("it carries no history (npy and bare JSON lists have none)")
    commands = [quoted(entry["command"]) for entry in record.history]
    if not replay:
        return script(record, commands)
    parts = [(pipelines.stages(" | ".join(part)), beside) for part, beside in pipes(record, commands)]
    if written := [call.common["output"] for calls, _ in parts for call in calls if "output" in call.common]:
        raise DataError(f"its history writes {written[0]}: not one that attnkit made")
    streams = [file for entry in record.history for file in entry.get("files", {}) if file.startswith(STREAMS)]
    if streams:
        raise DataError(f"it was made from {streams[0]}, a stream that cannot be read again")
    parts[0][0][0].common["format"] = "json"  # an input in npy would be followed in npy, which carries no history
    for found in made_again(parts):
        problem = difference(record, found)
        if not problem:
            many = "s" if len(record.history) > 1 else ""
            return f"{len(record.history)} command{many} run again: equal bit for bit"
    raise DataError(f"run again, {problem}")


def pipes(record: Record, commands: list[str]) -> list[tuple[list[str], str]]:
    """The commands as pipelines, and the file beside its result in which each has what goes on; "" of the result."""
    parts: list[tuple[list[str], str]] = [([], "")]
    for command, entry in zip(commands, record.history, strict=True):
        parts[-1] = [*parts[-1][0], command], entry.get("beside", "")
        if parts[-1][1]:
            parts.append(([], ""))
    return [part for part in parts if part[0]]


def made_again(parts: list[tuple[list[Call], str]]) -> Iterator[Result]:
    """What the last of some pipelines makes, each going on from what the one before has made; nothing is written."""
    upstream: Flow | None = None
    for calls, beside in parts:
        files: dict[str, Record] = {}
        with Call.stored_by(files.__setitem__):
            made = pipelines.chained(calls, upstream=upstream).items
            if not beside:
                yield from made
                return
            for _ in made:  # what it writes beside its result is there once it is done
                pass
        if beside not in files:
            raise DataError(f"its history has {beside} written by a command that does not write it")
        found = tensors.survive(files[beside], tensors.suffix_format(beside) or "json")
        upstream = Flow("json", iter([found]))
    yield found


def quoted(command: str) -> str:
    """A command of the history with every word quoted, so that a shell reads it as nothing more.

    >>> quoted("attnkit embed $(date) --dim 2")
    "attnkit embed '$(date)' --dim 2"
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DataError(f"its history has a command that cannot be read ({error}): {command}") from None
    if words[:1] != ["attnkit"]:
        raise DataError(f"its history has a command that is not attnkit's: {command}")
    return shlex.join(words)


def script(record: Record, commands: list[str]) -> str:
    """The history as a shell script: the pipeline, and the SHA-256 of every file it read."""
    lines = ["#!/bin/sh"]
    versions = list(dict.fromkeys(entry["version"] for entry in record.history))
    lines.append(f"# made by attnkit {', '.join(versions)}")
    files = {file: digest for entry in record.history for file, digest in entry.get("files", {}).items()}
    gone = " (a stream: it cannot be read again)"
    lines += [f"# {digest}  {file}{gone * file.startswith(STREAMS)}" for file, digest in files.items()]
    has_format = commands[0].startswith("attnkit embed ") or " --format json" in commands[0]
    if record.history[0].get("files") and not has_format:
        program, tool_name, *rest = commands[0].split(" ", 2)
        commands[0] = " ".join([program, tool_name, "-f json", *rest])
    before = ""
    for part, beside in pipes(record, commands):
        text = " \\\n  | ".join([part[0] + f" < {shlex.quote(before)}" * bool(before), *part[1:]])
        lines += [f"{lines.pop()} > /dev/null", text] if before else [text]
        before = beside
    return "\n".join(lines)


def difference(before: Record, after: Any) -> str:
    """What differs between a record and the one its commands give now; "" when nothing does."""
    if not isinstance(after, Record):
        return "they print text"
    for then, now in zip(before.history, after.history, strict=False):
        for file, digest in then.get("files", {}).items():
            if now.get("files", {}).get(file) != digest:
                return f"{file} is another file than it was (SHA-256 {digest[:12]}… then)"
    a, b = (tensors.survive(one, "json") for one in (before, after))
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
