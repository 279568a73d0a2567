"""Side outputs: files that a stage writes beside its result, replaced together with it."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

from attnkit import formats
from attnkit.record import Record


def save_now(path: str, record: Record) -> None:
    """Write a side output that belongs to no transaction."""
    formats.save(record, path)


_STORE: contextvars.ContextVar[Callable[[str, Record], None]] = contextvars.ContextVar("store", default=save_now)


def write_side_output(path: str, record: Record) -> None:
    """Write a side output as the innermost `with` block does."""
    _STORE.get()(path, record)


@contextlib.contextmanager
def stored_by(store: Callable[[str, Record], None]) -> Iterator[None]:
    """Pass the side outputs of a `with` block to this function of their path and record."""
    token = _STORE.set(store)
    try:
        yield
    finally:
        _STORE.reset(token)


@contextlib.contextmanager
def replace_together() -> Iterator[Callable[[str | None], formats.Sink]]:
    """Open sinks for a `with` block that replaces files only at its end, those of side outputs among them."""
    with formats.write_together() as opened:

        def store(path: str, record: Record) -> None:
            opened(path).write(formats.encode(record, formats.file_format(path)))

        with stored_by(store):
            yield opened
