"""Many processes as one engine: their outputs, their errors, and arrays of which each holds a part."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from attnkit.libraries import quote_error
from attnkit.model.dtypes import Array

NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")  # what the errors of JAX say on GPUs, and on a CPU


@contextlib.contextmanager
def name_failures() -> Iterator[None]:
    """Turn what JAX raises in a `with` block where it has no memory into MemoryError."""
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
    saved, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def is_first() -> bool:
    """Return whether this is process 0, which writes results."""
    return int(jax.process_index()) == 0


def highest(number: int) -> int:
    """Return the highest of the numbers of all processes.

    >>> highest(7)
    7
    """
    if jax.process_count() == 1:
        return number
    with spare_stdout():
        return int(multihost_utils.process_allgather(np.int32(number)).max())


def to_numpy(x: Any, dtype: Any = None) -> Array:
    """Return an array of JAX in NumPy, with the parts that other processes hold, or raise why it was not computed.

    >>> import jax.numpy as jnp
    >>> to_numpy(jnp.ones(2)).tolist()
    [1.0, 1.0]
    """
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(jax.block_until_ready(x), dtype)
