"""The memory of the machine, and what of it a process may still take."""

import os
import re
import sys
from collections.abc import Iterator

from attnkit.errors import DataError, format_bytes

CGROUPS = (  # where version 2 and version 1 keep a limit, what is in use, and what of this can be dropped
    ("/sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def check_memory(count: int, subject: str, name: str = "") -> None:
    """Raise DataError for something that needs more memory than the machine has.

    >>> check_memory(10**18, "a table (V, D)", "--dim")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attnkit.errors.DataError: --dim: a table (V, D) needs 1000.0 PB, more than this machine's memory (...
    """
    if count > (memory := physical_memory()):
        needed, there = format_bytes(count), format_bytes(memory)
        raise DataError(f"{subject} needs {needed}, more than this machine's memory ({there})", name)


def physical_memory() -> int:
    """The memory of this machine in bytes, unlimited if the system does not say."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        pages = -1
    return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else sys.maxsize


def available_memory() -> int:
    """The bytes that this process may still take, by the system and each limit.

    >>> 0 < available_memory() <= physical_memory()
    True
    """
    left = [physical_memory(), *_left_by_limits(), *_left_by_cgroups()]
    left += [number * 1024 for number in _numbers("/proc/meminfo", "MemAvailable")]
    return max(min(left), 0)


def _left_by_limits() -> Iterator[int]:
    """What the limits of data and of addresses (`ulimit -d` and `-v`) leave."""
    try:
        import resource
    except ImportError:  # of Windows, which has none
        return
    for kind, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - 1024 * sum(_numbers("/proc/self/status", used))


def _left_by_cgroups() -> Iterator[int]:
    """The bytes that the limits of the groups of this process leave.

    Such as those of a container.
    """
    groups = dict(re.findall(r"^\d+:([^:]*):(.*)$", _text("/proc/self/cgroup"), re.MULTILINE))
    for folder, controller, limit, used, droppable in CGROUPS:
        path = groups.get(controller, "/").rstrip("/")
        while True:
            group = folder + path
            for most in _numbers(f"{group}/{limit}"):
                in_cache = sum(_numbers(f"{group}/memory.stat", droppable))
                yield most - sum(_numbers(f"{group}/{used}")) + in_cache
            if not path:
                break
            path = path.rpartition("/")[0]


def _numbers(path: str, name: str = "") -> list[int]:
    """The number after a name in a file of the system, or the only one.

    None where it is missing.
    """
    return [int(number) for number in re.findall(rf"^{name}:?\s*(\d+)\b", _text(path), re.MULTILINE)]


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
