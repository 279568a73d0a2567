"""Optional libraries: imported when they are needed, whatever goes wrong in them an error of one line."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from attnkit.errors import AttnkitError, DataError, UsageError

STDERR = 2
LONGEST = 200  # characters of a library's message that are quoted
PANIC = "pyo3_runtime"  # the module of the exception that a panic of Rust code becomes, which is no Exception


def import_library(library: str, extra: str, name: str) -> Any:
    """An optional library, imported; UsageError says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        title = "Pillow" if library.startswith("PIL") else library
        raise UsageError(f"needs the {title} library: pip install 'attnkit[{extra}]'", name) from None


@contextlib.contextmanager
def call_library(problem: str, name: str) -> Iterator[None]:
    """Turn whatever a library raises on bad data, panics included, into a DataError: problem, and what it says.

    What the library itself prints on standard error is discarded.

    >>> with call_library("not a number", "n.txt"):
    ...     int("x")
    Traceback (most recent call last):
    attnkit.errors.DataError: n.txt: not a number: invalid literal for int() with base 10: 'x'
    """
    try:
        with silenced():
            yield
    except (AttnkitError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{problem}: {quoted(error)}", name) from None
    except BaseException as error:
        if type(error).__module__ != PANIC:
            raise
        raise DataError(f"{problem}: {quoted(error)}", name) from None


def quoted(error: BaseException) -> str:
    """What an error says, on one line and not at length; the name of its kind where it says nothing.

    >>> quoted(ValueError("two\\nlines")), quoted(KeyError())
    ('two lines', 'KeyError')
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discard what is written to standard error below Python, as the hook of a panic does."""
    try:
        kept = os.dup(STDERR)
    except OSError:  # it is closed
        yield
        return
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, STDERR)
        os.close(nothing)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
