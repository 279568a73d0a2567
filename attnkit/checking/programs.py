"""Programs of any language as implementations: inputs on stdin, answer on stdout.

A process is started for each case. It reads a record of all inputs by their names, tensors as NPY one after another in
the order of the arguments, or their bare numbers; whatever format its answer has is recognized.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit import formats
from attnkit.checking.callees import (
    FILE_BYTES,
    TIMEOUT,
    CalleeError,
    Outcome,
    can_read,
    describe_code,
    last_line,
    most_bytes,
)
from attnkit.checking.cases import Drawn
from attnkit.checking.definition import Definition, find_shape
from attnkit.checking.interpreter import end_with_parent, limit
from attnkit.errors import AttnkitError, UsageError
from attnkit.formats import Source
from attnkit.model.dtypes import Array
from attnkit.records import Record, Tensor

RAW = "raw"
SENT = ("npz", "json", "npy", RAW)


@dataclass
class ProgramCallee:
    """A program, started for each case.

    command  the program and its arguments
    send     how its inputs are written: one of SENT
    """

    definition: Definition
    command: Sequence[str]
    send: str
    timeout: float
    memory: int

    library: str = ""
    by_place: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return shlex.join(self.command)

    def takes(self, argument: str) -> bool:
        return True

    def call(self, case: Drawn, given: Mapping[str, Any], dtype: str) -> Outcome:
        values = {name: as_dtype(given[name], dtype) for name in self.definition.arguments if name in given}
        try:
            written = self.run(encode(values, self.send), most_bytes([*values.values()]))
        except ProgramError as error:
            return Outcome(None, problem=str(error), is_end=error.is_end)
        try:
            array = read_answer_of(
                written, self.send, find_shape(self.definition.answer, {**case.sizes, **given}, case.lead)
            )
        except AttnkitError as error:
            return Outcome(None, problem=f"its answer: {error.problem}")
        return Outcome(array, array.dtype.name)

    def run(self, data: bytes, most: int) -> bytes:
        """Run the program on data; return what it writes, or raise ProgramError."""
        limits = {"CPU": int(self.timeout) + 1, "FSIZE": FILE_BYTES, **({"AS": self.memory} if self.memory else {})}
        written, problem = run_program(self.command, self.timeout, most, limits, data)
        if not written:
            raise ProgramError(f"it wrote nothing{problem}")
        return written

    def close(self) -> None:
        pass


class ProgramError(Exception):
    """What went wrong with a process, in words.

    is_end  whether it did not answer in time
    """

    def __init__(self, problem: str, is_end: bool = False) -> None:
        super().__init__(problem)
        self.is_end = is_end


def run_program(
    command: Sequence[str],
    timeout: float,
    most: int,
    limits: Mapping[str, int],
    data: bytes = b"",
    folder: str | None = None,
) -> tuple[bytes, str]:
    """Run a program without a shell; return what it writes, and its last error line.

    timeout  seconds until it is ended, with all processes that it started
    most     the most bytes that it may write
    limits   what it may use, by the names of the module `resource`
    folder   where it runs; None for the current one

    CalleeError if it cannot be started, ProgramError if it fails.
    """

    def restrict() -> None:
        limit(**limits, CORE=0)
        end_with_parent(watches=False)

    with tempfile.TemporaryFile() as inputs, tempfile.TemporaryFile() as errors:
        inputs.write(data)
        inputs.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=inputs,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                start_new_session=True,
                preexec_fn=restrict,
            )
        except OSError as error:
            raise CalleeError(f"{command[0]}: {error.strerror}") from None
        try:
            return read_written(process, most, timeout, errors), last_line(errors)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def read_written(process: subprocess.Popen[bytes], most: int, timeout: float, errors: Any) -> bytes:
    """Read what a process writes until it ends."""
    assert process.stdout is not None
    parts, length, deadline = [], 0, time.monotonic() + timeout
    while True:
        if not can_read(process.stdout.fileno(), deadline - time.monotonic()):
            raise ProgramError(TIMEOUT.format(timeout), is_end=True)
        part = os.read(process.stdout.fileno(), 1 << 20)
        if not part:
            break
        parts.append(part)
        length += len(part)
        if length > most:
            raise ProgramError(f"its answer is too large: more than {most} bytes")
    try:
        code = process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise ProgramError(TIMEOUT.format(timeout), is_end=True) from None
    if code:
        raise ProgramError(f"it ended with {describe_code(code)}{last_line(errors)}")
    return b"".join(parts)


def as_dtype(value: Any, dtype: str) -> Array:
    """A value as an array, floats in a dtype that files have."""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return array
    if dtype == "bfloat16":
        raise UsageError("a program reads float16, float32 or float64", "--dtype")
    return array.astype(dtype)


def encode(values: Mapping[str, Array], send: str) -> bytes:
    """Inputs as bytes.

    >>> encode({"x": np.array([1, 2], np.float32)}, "raw") == np.array([1, 2], "<f4").tobytes()
    True
    """
    if send == RAW:
        return b"".join(np.ascontiguousarray(one, "<f4").tobytes() for one in values.values())
    if send == "npy":
        records = [Record({"x": Tensor(one)}) for one in values.values()]
        return b"".join(bytes(part) for record in records for part in formats.encode(record, "npy"))
    record = Record({name: Tensor(one) for name, one in values.items()})
    return b"".join(bytes(part) for part in formats.encode(record, send))


def read_answer_of(data: bytes, send: str, shape: tuple[int, ...]) -> Array:
    """Read an answer: bare float32 numbers, or a format that is recognized.

    >>> read_answer_of(np.array([1, 2], "<f4").tobytes(), "raw", (2, 1)).tolist()
    [[1.0], [2.0]]
    """
    if send == RAW:
        numbers = np.frombuffer(data[: len(data) // 4 * 4], "<f4")
        return numbers.reshape(shape) if numbers.size == np.prod(shape, dtype=int) and len(data) % 4 == 0 else numbers
    with Source.of(data, "its answer") as source:
        record = next(iter(formats.read(source)))
    array: Array = record["x" if "x" in record else next(iter(record.tensors))]
    return array
