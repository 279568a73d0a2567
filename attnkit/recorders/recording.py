"""A recording in progress: tensors are written as they are computed.

The file appears when it is complete. One recording is in progress at a time, for all threads, because JAX calls back
in threads of its own.
"""

import contextlib
import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from attnkit.errors import DataError, UsageError
from attnkit.formats import Sink, file_format, npz
from attnkit.formats.metadata import to_metadata
from attnkit.formats.streams import name_errors, prefix_errors
from attnkit.libraries import call_library
from attnkit.model.arrays import numpy_array
from attnkit.recorders.digests import DigestWriter
from attnkit.recorders.torch_modules import ModuleCalls, check_module
from attnkit.records import Record

T = TypeVar("T")


class Recording:
    """A file that tensors are written to.

    A tensor whose name occurred before is named `NAME#1`, `NAME#2`, …

    name     of the file, for errors
    process  the process that writes it: not one forked from it
    """

    def __init__(self, name: str, writer: npz.Writer | DigestWriter) -> None:
        self.name, self.process = name, os.getpid()
        self._writer = writer
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._is_finished = False

    def write(self, name: str, value: Any) -> None:
        """Write a tensor. DataError for what is none; later tensors are then ignored."""
        try:
            # outside the lock: an array of JAX may wait for a callback that writes another one
            with name_errors(self.name), prefix_errors(f"tensor {name[:100]!r}"):
                try:
                    with call_library("cannot be recorded", ""):
                        array = numpy_array(value)
                except UsageError as error:  # a tensor without numbers
                    raise DataError(f"cannot be recorded: {error.problem}") from error
                with self._lock:
                    if not (self._is_finished or self._failure):
                        number = self._counts[name]
                        self._counts[name] += 1
                        self._writer.add(f"{name}#{number}" if number else name, array)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def finish(self, nothing: Callable[[], str]) -> None:
        """End the file, or raise an error of `write` again.

        nothing  says why nothing was recorded, for the DataError in that case
        """
        with self._lock:
            self._is_finished = True
            if self._failure:
                raise self._failure
            if not self._counts:
                raise DataError(f"nothing was recorded: {nothing()}", self.name)
            self._writer.finish(to_metadata(Record({})))


def choose_writer(name: str) -> type[npz.Writer] | type[DigestWriter]:
    """What writes a recording: tensors to FILE.npz, digests to FILE.json.

    >>> choose_writer("mine.json").__name__
    'DigestWriter'
    """
    file_format(name)  # which names the suffixes that there are
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".npz":
        return npz.Writer
    if suffix == ".json":
        return DigestWriter
    raise UsageError("a recording is an NPZ file, or a JSON file of digests; expected .npz or .json", name)


class _State:
    """What is in progress.

    recording  the recording, None outside of one
    accepts    whether a tap of this thread is written to it; None: always
    """

    recording: Recording | None = None
    accepts: Callable[[], bool] | None = None
    lock = threading.Lock()


@contextlib.contextmanager
def record(path: str | os.PathLike[str], module: Any = None, *, call: int = 0) -> Iterator[None]:
    """Record what a program computes in a `with` block to an NPZ file, or its digests.

    module  a torch module: all that it and the modules inside it read and return is written, by the path of each, and
            what `tap` names. Without it only what `tap` names
    call    which calls to record, of those that no other call contains, numbered from 0 for each module: in
            `model.generate()`, 0 is the pass over the prompt, 1 that over the first generated token

    The file holds the tensors in the order in which they were computed. `PATH.input` is what the module at PATH reads
    and `PATH.output` what it returns; `PATH.output.1` and `PATH.output.logits` are parts of a tuple or a dict,
    `PATH.input.attention_mask` a keyword argument. The path of the module itself is left out: `output.logits`. The
    second call of a module within one call of the model is `PATH#1.output`. A module shared by several paths has the
    path inside the module that calls it, or each path if that is not clear. Values that are no tensors are left out.

    The name of a file that ends in .json asks for digests: the hash and a few numbers of each tensor, in place of the
    tensors, which `diff --hash` compares.

    Each tensor is written when it is computed, and not kept. The file appears when the block ends without an error.
    UsageError for a second recording inside the block, DataError if nothing was recorded, FileError if the file cannot
    be written.

    >>> import numpy as np, os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "mine.npz")
    >>> with record(file):
    ...     for x in (np.eye(2), np.zeros(3)):
    ...         x = tap("x", x)
    >>> [(name, array.shape) for name, array in np.load(file).items() if name != "meta.json"]
    [('x', (2, 2)), ('x#1', (3,))]
    """
    name = os.fspath(path)
    writer = choose_writer(name)
    if module is None and call:
        raise UsageError(f"call {call} of no module", "record")
    if type(call) is not int or call < 0:
        raise UsageError(f"expected the number of a call, 0 or more, got {call!r}", "record")
    if module is not None:
        check_module(module)
    with Sink(name) as sink:
        recording = Recording(name, writer(sink.write))
        calls = ModuleCalls(module, call, recording.write) if module is not None else None
        with _in_progress(recording, calls.is_recorded if calls else None), _traced_again():
            with calls.hooked() if calls else contextlib.nullcontext():
                yield
            if jax := sys.modules.get("jax"):
                jax.effects_barrier()  # until its callbacks have run
        recording.finish(calls.describe_outer if calls else lambda: "no tap was reached")


def tap(name: str, array: T) -> T:
    """Write an array to the recording in progress, if any, and return the same object.

    array  of NumPy, torch, JAX or MLX, or anything that NumPy converts; under `jax.jit` and the other transformations
           of JAX, on one device, it is written when it is computed, with the whole batch of `jax.vmap`

    A name that occurs again is written as NAME#1, NAME#2, … Nothing is written within a call of a torch module that is
    not recorded.

    >>> tap("x", [1, 2])  # no recording is in progress
    [1, 2]
    """
    recording = _State.recording
    if recording is not None and recording.process == os.getpid() and (_State.accepts is None or _State.accepts()):
        if not isinstance(name, str) or not name:
            raise UsageError(f"expected the name of a tensor, got {name!r}", "tap")
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(array, jax.core.Tracer):
            _tap_traced(jax, name, array)
        else:
            recording.write(name, array)
    return array


@contextlib.contextmanager
def _in_progress(recording: Recording, accepts: Callable[[], bool] | None) -> Iterator[None]:
    with _State.lock:
        if _State.recording is not None:
            raise UsageError(f"{_State.recording.name} is being recorded; one recording at a time", recording.name)
        _State.recording, _State.accepts = recording, accepts
    try:
        yield
    finally:
        _State.recording = _State.accepts = None


@contextlib.contextmanager
def _traced_again() -> Iterator[None]:
    """Compile again what JAX compiled before the block, when taps did nothing."""
    jax = sys.modules.get("jax")
    if jax is None:
        yield
    else:
        with _user_context(jax)(True):
            yield


@functools.cache
def _user_context(jax: Any) -> Any:
    """A value that JAX compiles each function once for."""
    return jax.make_user_context(False)


def _tap_traced(jax: Any, name: str, array: Any) -> None:
    """Write an array when compiled code computes it; of a batch, all rows at once."""

    def write(array: Any) -> tuple[()]:
        jax.debug.callback(functools.partial(_write_computed, name), array, ordered=True)
        return ()

    def write_batch(size: int, is_batched: Any, array: Any) -> tuple[tuple[()], tuple[()]]:
        return write_rows(array), ()

    write_rows = jax.custom_batching.custom_vmap(write)
    write_rows.def_vmap(write_batch)
    write_rows(jax.lax.stop_gradient(array))


def _write_computed(name: str, array: Any) -> None:
    """Write what compiled code has computed; the end of the recording raises errors."""
    recording = _State.recording
    if recording is not None:
        with contextlib.suppress(Exception):
            recording.write(name, array)
