"""Memory-mapped files: tensors stay in the file until they are accessed."""

import contextlib
import mmap
import os
import stat
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, FileError, refuse_lfs_pointer, system_reason
from attnkit.formats.streams import name_errors
from attnkit.records import Array

_sizes: dict[str, int] = {}  # the size of each file when it was mapped


class Mapped(NamedTuple):
    """The tensors of a mapped file, each read when it is needed.

    entries    tensor name -> dtype and shape, in the order of the file
    read       reads the tensor of a name, in place where the file allows
    packed     tensor name -> how its numbers are stored, where they are decoded to the dtype: Q4_K
    read_rows  reads the rows of a tensor that an index selects, where that takes less than the tensor
    """

    name: str
    entries: dict[str, tuple[str, tuple[int, ...]]]
    read: Callable[[str], Array]
    packed: Mapping[str, str] = MappingProxyType({})
    read_rows: Callable[[str, Any], Array] | None = None

    def tensor(self, name: str) -> Array:
        """Read the tensor of that name; errors name the file."""
        with name_errors(self.name):
            return self.read(name)

    def rows(self, name: str, index: Any) -> Array:
        """Read the rows of a tensor that an index selects.

        The index is a number, a slice or an array of numbers.
        """
        with name_errors(self.name):
            return np.asarray(self.read_rows(name, index) if self.read_rows else self.read(name)[index])


def map_file(path: str) -> mmap.mmap:
    """Map a regular file into memory, which is read as it is accessed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise FileError(system_reason(error), path) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError("not a regular file", path)
        if os.fstat(descriptor).st_size == 0:
            raise DataError("empty file", path)
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise FileError(system_reason(error), path) from error
    finally:
        os.close(descriptor)
    refuse_lfs_pointer(data[:64], path)
    _sizes[path] = len(data)
    return data


def truncated_file() -> str:
    """A mapped file that was truncated, on which reading is a SIGBUS, or ""."""
    for path, size in _sizes.items():
        with contextlib.suppress(OSError):
            if os.stat(path).st_size < size:
                return path
    return ""


def release_pages(array: Array) -> None:
    """Give the memory of a mapped array back to the system."""
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if hasattr(owner, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        start, page = np.frombuffer(owner, np.uint8).ctypes.data, mmap.PAGESIZE
        first, end = (address - start for address in np.lib.array_utils.byte_bounds(array))
        first = -(-first // page) * page  # whole pages only
        if end // page * page > first:
            owner.madvise(mmap.MADV_DONTNEED, first, end // page * page - first)
