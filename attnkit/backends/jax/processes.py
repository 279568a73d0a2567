"""Many processes as one engine: joined by jax.distributed, and arrays of which each holds a part."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from attnkit.errors import FileError, UsageError
from attnkit.libraries import quote_error
from attnkit.model.dtypes import Array

AUTO = "auto"  # the coordinator that SLURM, MPI or Kubernetes tell of
PATIENCE = 20  # seconds without a sign of life from a process, after which all end


def join_processes(coordinator: str | None, process: int | None, processes: int | None) -> None:
    """Join the processes of a run, this one of them; UsageError for options that miss another, FileError.

    A process that dies ends the others, by JAX's own error, which names its number as `task`.
    """
    numbers = {"--process": process, "--processes": processes}
    if coordinator is None:
        for flag in (flag for flag, number in numbers.items() if number is not None):
            raise UsageError("needs --coordinator HOST:PORT", flag)
        return
    if jax.distributed.is_initialized():
        return
    if coordinator == AUTO:
        call(coordinator, heartbeat_timeout_seconds=PATIENCE)
        return
    if not re.fullmatch(r"[^\s:]+:[0-9]{1,5}", coordinator):
        raise UsageError(f"expected HOST:PORT or auto, got {coordinator!r}", "--coordinator")
    for flag in (flag for flag, number in numbers.items() if number is None):
        raise UsageError(f"needs {flag}", "--coordinator")
    if process is not None and processes is not None and process >= processes:
        raise UsageError(f"expected 0 to {processes - 1}, got {process}", "--process")
    call(coordinator, coordinator, processes, process, heartbeat_timeout_seconds=PATIENCE)


def call(name: str, *arguments: Any, **options: Any) -> None:
    """Call jax.distributed.initialize; FileError with the first line of what it raises."""
    try:
        jax.distributed.initialize(*arguments, **options)
        jax.devices()  # those of all processes, which wait for each other here
    except (RuntimeError, ValueError) as error:
        raise FileError(f"cannot join the processes: {str(error).splitlines()[0]}", name) from None


@contextlib.contextmanager
def name_failures() -> Iterator[None]:
    """Turn what JAX raises in a `with` block into an error of one line: no memory, or a process that has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise MemoryError(quote_error(error)) from None
        if jax.process_count() == 1:
            raise
        raise FileError(f"another process has ended: {quote_error(error)}", "--coordinator") from None


@contextlib.contextmanager
def spare_stdout() -> Iterator[None]:
    """Write what native code writes to standard output to standard error, in a run of many processes.

    The library that joins processors without GPUs reports each connection there.
    """
    if jax.process_count() == 1:
        yield
        return
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def is_first() -> bool:
    """Return whether this is process 0, which writes results."""
    return int(jax.process_index()) == 0


def to_numpy(x: Any, dtype: Any = None) -> Array:
    """Return an array of JAX in NumPy, with the parts that other processes hold.

    >>> import jax.numpy as jnp
    >>> to_numpy(jnp.ones(2)).tolist()
    [1.0, 1.0]
    """
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        from jax.experimental import multihost_utils

        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x, dtype)
