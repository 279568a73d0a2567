"""The engines: which one computes, what is installed, and its devices."""

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np

from attnkit.errors import AttnkitError, UsageError
from attnkit.libraries import import_library, install_extra, quote_error
from attnkit.model.context import Engine
from attnkit.options import EngineOptions

ENGINES = ("numpy", "jax")
VARIABLE = "ATTNKIT_ENGINE"
MMAP_MAX = -4  # what glibc's malloc.h calls it


def choose_options(stated: EngineOptions) -> EngineOptions:
    """The options of an engine as stated, or of ATTNKIT_ENGINE.

    UsageError for an option that needs an engine.
    """
    name: Any = stated.engine or os.environ.get(VARIABLE) or "numpy"
    if name not in ENGINES:
        raise UsageError(f"{name!r} (expected {' or '.join(ENGINES)})", VARIABLE)
    others = [one for one, value in stated._asdict().items() if one != "engine" and value is not None]
    if name == "numpy" and others:
        raise UsageError("needs --engine jax", f"--{others[0]}")
    for one in others if stated.coordinator is None else ():
        if one in ("process", "processes"):
            raise UsageError("needs --coordinator HOST:PORT", f"--{one}")
    return stated._replace(engine=name)


def choose_engine(stated: EngineOptions) -> Engine | None:
    """The engine that options choose, None for NumPy. UsageError if not installed."""
    options = choose_options(stated)
    if options.engine == "numpy":
        return None
    with name_start_failures():
        import_library("jax", "jax", "--engine jax")
        return _make_engine(options)


def join_processes(stated: EngineOptions) -> "contextlib.AbstractContextManager[bool]":
    """Join the processes that options name, --coordinator among them: see `joined`."""
    options = choose_options(stated)
    with name_start_failures():
        import_library("jax", "jax", "--engine jax")
    from attnkit.backends.jax.processes import joined

    return joined(str(options.coordinator), options.process, options.processes)


@cache
def _make_engine(options: EngineOptions) -> Engine:
    import ctypes

    from attnkit.backends.jax.engine import JaxEngine
    from attnkit.backends.jax.mesh import parse_mesh

    mesh = None if options.mesh is None else parse_mesh(options.mesh)
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # of glibc: freed memory serves again, instead of being mapped anew page by page
        library.mallopt(MMAP_MAX, 0)
    return JaxEngine(options.compute, mesh)


@contextlib.contextmanager
def name_start_failures() -> Iterator[None]:
    """Raise UsageError in a `with` block if JAX does not start."""
    try:
        yield
    except (AttnkitError, ImportError, MemoryError):
        raise
    except Exception as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        reason = quote_error(error) if str(error) else f"it has no devices of {platforms or 'any platform'}"
        name = f"JAX_PLATFORMS={platforms}" if platforms else "--engine jax"
        raise UsageError(f"JAX does not start: {reason}", name) from None


def list_engines() -> list[dict[str, Any]]:
    """Every engine: name, version (None: not installed), installation and devices.

    UsageError where JAX is installed, but does not start.

    >>> list_engines()[0]["engine"], list_engines()[0]["devices"][0]["kind"]
    ('numpy', 'CPU')
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpu = {"kind": "CPU", "count": cores, "memory": machine_memory()}
    numpy = {"engine": "numpy", "version": np.__version__, "install": None, "devices": [cpu]}
    try:
        with name_start_failures():
            import jax

            kinds = [describe_device(one) for one in jax.devices()]
    except ImportError:
        return [numpy, {"engine": "jax", "version": None, "install": install_extra("jax"), "devices": []}]
    devices = [{"kind": kind, "count": len([*same]), "memory": size} for (kind, size), same in groupby(kinds)]
    return [numpy, {"engine": "jax", "version": jax.__version__, "install": None, "devices": devices}]


def machine_memory() -> int | None:
    """The bytes of memory of this machine; None if unknown."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def describe_device(device: Any) -> tuple[str, int | None]:
    """The platform of a device, with its model if that differs, and bytes if known."""
    platform, statistics = str(device.platform).upper(), None
    with contextlib.suppress(Exception):  # a device of another process, or one without statistics
        statistics = device.memory_stats()
    size = (statistics or {}).get("bytes_limit") or (machine_memory() if device.platform == "cpu" else None)
    kind = platform if device.device_kind.upper() == platform else f"{platform} {device.device_kind}"
    return kind, None if size is None else int(size)
