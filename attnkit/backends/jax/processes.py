"""Many processes as one engine, each with a part of every array."""

import contextlib
import ctypes
import importlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from attnkit.errors import AttnkitError, FileError, UsageError
from attnkit.formats.atomic import remove_temporaries
from attnkit.libraries import quote_error
from attnkit.model.dtypes import Array

FLAG, AUTO = "--coordinator", "auto"
RANKS = ("PMI_RANK", "PMIX_RANK")  # mpiexec sets one of them
LIMITS = {  # seconds until all have joined, until a process without a heartbeat counts as ended, and for all to end
    "initialization_timeout": 300,
    "heartbeat_timeout_seconds": 20,
    "shutdown_timeout_seconds": 24 * 3600,
}
# JAX ends a process that lost another by this signal, without running a handler of Python's
ON_ABORT = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: remove_temporaries())
NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")  # what the errors of JAX say on GPUs, and on a CPU


@contextlib.contextmanager
def joined(coordinator: str, process: int | None, processes: int | None) -> Iterator[bool]:
    """Join the processes of a run for a `with` block; wait at its end for all.

    Yields whether this is process 0, which writes the result. JAX ends the others if one fails or dies; they exit with
    its message and a code other than 0. UsageError for numbers that do not agree, FileError if processes do not join.
    """
    check_processes(coordinator, process, processes)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
    ctypes.CDLL(None).signal(int(signal.SIGABRT), ON_ABORT)
    try:
        if coordinator == AUTO:
            initialize_automatically()
        else:
            jax.distributed.initialize(coordinator, processes, process, **LIMITS)
    except AttnkitError:
        raise
    except Exception as error:  # of the libraries of a cluster too
        raise FileError(f"cannot join the processes: {quote_error(error)}", FLAG) from None
    try:
        yield is_first()
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError as error:
        raise FileError(f"the processes have lost each other: {quote_error(error)}", FLAG) from None


def check_processes(coordinator: str, process: int | None, processes: int | None) -> None:
    """Check that address and numbers agree, and that process 0 can listen."""
    numbers = {"--process": process, "--processes": processes}
    if coordinator == AUTO:
        for flag in (flag for flag, number in numbers.items() if number is not None):
            raise UsageError(f"{FLAG} {AUTO} finds it (expected HOST:PORT)", flag)
        return
    port = re.fullmatch(r"\S+:([0-9]{1,5})", coordinator)
    if not port or int(port[1]) >= 1 << 16:
        raise UsageError(f"expected HOST:PORT or {AUTO}, got {coordinator!r}", FLAG)
    for flag in (flag for flag, number in numbers.items() if number is None):
        raise UsageError(f"needs {flag}", FLAG)
    if process is not None and processes is not None and process >= processes:
        raise UsageError(f"expected 0 to {processes - 1}, got {process}", "--process")
    if process == 0:
        try:
            socket.create_server(("", int(port[1]))).close()
        except OSError as error:  # on which JAX would crash
            reason = os.strerror(error.errno or 0)
            raise FileError(f"cannot listen at port {int(port[1])}: {reason}", FLAG) from None


def initialize_automatically() -> None:
    """Join the processes of a job of SLURM, MPI or Kubernetes, or raise UsageError."""
    try:
        jax.distributed.initialize(**LIMITS)
    except ValueError as error:
        if find_spec("mpi4py") and any(name in os.environ for name in RANKS):
            jax.distributed.initialize(cluster_detection_method="mpi4py", **LIMITS)
            importlib.import_module("mpi4py.MPI").Finalize()  # else mpiexec takes the end of a process for a crash
            return
        problem = f"{AUTO} finds no job of SLURM, MPI (with mpi4py) or Kubernetes (with kubernetes) here"
        raise UsageError(f"{problem}; --coordinator HOST:PORT --process I --processes N", FLAG) from error


@contextlib.contextmanager
def name_failures() -> Iterator[None]:
    """Raise MemoryError in a `with` block if JAX has no memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        start = max(str(error).find(words) for words in NO_MEMORY)
        if start < 0:
            raise
        raise MemoryError(quote_error(RuntimeError(str(error)[start:]))) from None


@contextlib.contextmanager
def spare_stdout() -> Iterator[None]:
    """Discard what native code writes to standard output, in a run of many processes.

    The library that joins processors without GPUs reports each connection there.
    """
    if jax.process_count() == 1:
        yield
        return
    saved = os.dup(1)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def is_first() -> bool:
    """Whether this is process 0, which writes results."""
    return int(jax.process_index()) == 0


def highest(number: int) -> int:
    """The highest of the numbers of all processes."""
    if jax.process_count() == 1:
        return number
    with spare_stdout():
        return int(multihost_utils.process_allgather(np.int32(number)).max())


def to_numpy(x: Any, dtype: Any = None) -> Array:
    """An array of JAX in NumPy, with the parts of other processes; or raise its error."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(jax.block_until_ready(x), dtype)
