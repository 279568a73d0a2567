"""What is installed, and the devices that it computes on."""

import contextlib
import os
from itertools import groupby
from typing import Any

import numpy as np

from attnkit.backends.choice import name_start_failures


def list_engines() -> list[dict[str, Any]]:
    """Every engine: name, version (None: not installed), installation and devices.

    UsageError where JAX is installed, but does not start.

    >>> list_engines()[0]["engine"], list_engines()[0]["devices"][0]["kind"]
    ('numpy', 'CPU')
    """
    numpy = {"engine": "numpy", "version": np.__version__, "install": None, "devices": [processor()]}
    try:
        with name_start_failures():
            import jax

            kinds = [(kind_of(one), memory(one)) for one in jax.devices()]
    except ImportError:
        return [numpy, {"engine": "jax", "version": None, "install": "pip install 'attnkit[jax]'", "devices": []}]
    devices = [{"kind": kind, "count": len([*same]), "memory": size} for (kind, size), same in groupby(kinds)]
    return [numpy, {"engine": "jax", "version": jax.__version__, "install": None, "devices": devices}]


def processor() -> dict[str, Any]:
    """The cores that this process may use, and the memory of the machine."""
    with contextlib.suppress(AttributeError):
        return {"kind": "CPU", "count": len(os.sched_getaffinity(0)), "memory": machine_memory()}
    return {"kind": "CPU", "count": os.cpu_count() or 1, "memory": machine_memory()}


def machine_memory() -> int | None:
    """The bytes of memory of this machine; None if unknown."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def kind_of(device: Any) -> str:
    """The platform of a device of JAX, and its model if that differs."""
    platform = str(device.platform).upper()
    return platform if device.device_kind.upper() == platform else f"{platform} {device.device_kind}"


def memory(device: Any) -> int | None:
    """The bytes of memory of a device of JAX; None if unknown."""
    statistics = None
    with contextlib.suppress(Exception):  # a device of another process, or one without statistics
        statistics = device.memory_stats()
    size = (statistics or {}).get("bytes_limit") or (machine_memory() if device.platform == "cpu" else None)
    return None if size is None else int(size)
