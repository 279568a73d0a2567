"""Callbacks of a running tool: progress, streamed text and side outputs."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.errors import UsageError
from attnkit.records import Array, Record

if TYPE_CHECKING:
    from attnkit.display import Style, TextTable
    from attnkit.model.context import Engine


def ignore(event: Any) -> None:
    """Do nothing with an event."""


def refuse_side_output(path: str, record: Record) -> None:
    """Raise UsageError: the caller takes no second result."""
    raise UsageError(f"{path}: expected a file, not standard output")


class Callbacks(NamedTuple):
    """What a run calls while it computes. By default nothing is shown or written.

    on_progress        the layer or the token that is computed next
    on_table           a function of a style that makes a table: a step of generation
    on_check           (line, error), what a check of gradients found
    on_text            (text, is_prompt), each part of a text as it is generated; None: no text is streamed
    on_report          (values, line), the numbers of a run in training, and a function of a style that draws them
    on_non_finite      the first layer whose result has NaN or infinity
    on_parameters      the parameters that a tool computes with, by name
    on_operands        what a tool has prepared of its input and its options, and computes with
    on_intermediates   the record of a tool with all its intermediates, as by --keep all; None: it is not made
    on_default         (option, value), a default that only the run knows, which the history states
    on_modules         what the modules of a folder did, in their order, which the history states
    write_side_output  (path, record), a second result: a trace, a KV cache
    is_output_file     whether a path is the file of the result itself
    engine             what computes models and attention; None: NumPy
    """

    on_progress: Callable[[str], None] = ignore
    on_table: "Callable[[Callable[[Style], TextTable]], None]" = ignore
    on_check: Callable[[str, float], None] = lambda line, error: None
    on_text: Callable[[str, bool], None] | None = None
    on_report: "Callable[[Mapping[str, Any], Callable[[Style], str]], None]" = lambda values, line: None
    on_non_finite: Callable[[str], None] = ignore
    on_parameters: Callable[[Mapping[str, Array]], None] = ignore
    on_operands: Callable[[Any], None] = ignore
    on_intermediates: Callable[[Record], None] | None = None
    on_default: Callable[[str, Any], None] = lambda option, value: None
    on_modules: Callable[[list[str]], None] = ignore
    write_side_output: Callable[[str, Record], None] = refuse_side_output
    is_output_file: Callable[[str], bool] = lambda path: False
    engine: "Engine | None" = None


SILENT = Callbacks()
_CURRENT: contextvars.ContextVar[Callbacks] = contextvars.ContextVar("callbacks", default=SILENT)


def current() -> Callbacks:
    """The callbacks of the run in progress, in this thread.

    >>> contextvars.Context().run(current) is SILENT
    True
    """
    return _CURRENT.get()


@contextlib.contextmanager
def use_callbacks(callbacks: Callbacks) -> Iterator[None]:
    """Make these the callbacks of what runs in a `with` block.

    >>> with use_callbacks(Callbacks(on_progress=print)):
    ...     current().on_progress("encoder.0.self")
    encoder.0.self
    """
    token = _CURRENT.set(callbacks)
    try:
        yield
    finally:
        _CURRENT.reset(token)
