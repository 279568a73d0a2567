"""Optional libraries, imported on first use. Their errors become one line."""

import contextlib
import importlib
import os
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from attnkit.errors import AttnkitError, DataError, UsageError, is_lack_of_memory

STDERR = 2
MAX_QUOTE = 200  # characters of a library's message that are quoted
OBJECT = re.compile(r" ?<[^<>]* object at 0x\w+>")
PANIC = "pyo3_runtime"  # the module of the exception for a panic in Rust, a BaseException

_IS_SILENT: ContextVar[bool] = ContextVar("is_silent", default=False)


def import_library(library: str, extra: str, name: str) -> Any:
    """Import an optional library. UsageError says how to install a missing one.

    extra  the extra of attnkit that installs it, "" for a library that only a user's own files need

    MemoryError where it is there, and there is no memory for it.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        if is_lack_of_memory(error):
            raise MemoryError(f"the {library} library cannot be loaded") from None
        title = "Pillow" if library.startswith("PIL") else library
        install = install_extra(extra) if extra else f"pip install {library}"
        raise UsageError(f"needs the {title} library: {install}", name) from None


def install_extra(extra: str) -> str:
    """How to install an extra of attnkit.

    >>> install_extra("text")
    "pip install '.[text]' in a clone of attnkit"
    """
    return f"pip install '.[{extra}]' in a clone of attnkit"


@contextlib.contextmanager
def call_library(problem: str, name: str) -> Iterator[None]:
    """Turn what a library raises on bad data, panics included, into a DataError.

    Within `silence_libraries` what the library writes to standard error is discarded.

    >>> with call_library("not a number", "n.txt"):
    ...     int("x")
    Traceback (most recent call last):
    attnkit.errors.DataError: n.txt: not a number: invalid literal for int() with base 10: 'x'
    """
    try:
        with suppress_stderr():
            yield
    except (AttnkitError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{problem}: {quote_error(error)}", name) from None
    except BaseException as error:
        if type(error).__module__ != PANIC:
            raise
        raise DataError(f"{problem}: {quote_error(error)}", name) from None


def quote_error(error: BaseException) -> str:
    """The message of an error in one short line, or the name of its class.

    Without addresses of objects.

    >>> quote_error(ValueError("two\\nlines")), quote_error(KeyError())
    ('two lines', 'KeyError')
    >>> quote_error(ValueError(f"cannot open {object()}: no image"))
    'cannot open: no image'
    """
    text = " ".join(OBJECT.sub("", str(error)).split()) or type(error).__name__
    return text if len(text) <= MAX_QUOTE else f"{text[: MAX_QUOTE - 1]}…"


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Discard what libraries write to standard error in a `with` block.

    For the process of one command: in Python all threads share the descriptor, and others may write to it.
    """
    token = _IS_SILENT.set(True)
    try:
        yield
    finally:
        _IS_SILENT.reset(token)


@contextlib.contextmanager
def suppress_stderr() -> Iterator[None]:
    """Discard what native code writes to standard error, within `silence_libraries`."""
    try:
        saved = os.dup(STDERR) if _IS_SILENT.get() else None
    except OSError:  # standard error is closed
        saved = None
    if saved is None:
        yield
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, STDERR)
        os.close(null)
        yield
    finally:
        os.dup2(saved, STDERR)
        os.close(saved)
