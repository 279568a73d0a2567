"""Side outputs: files that a stage writes beside its result, replaced together with it."""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator

from attnkit import formats
from attnkit.errors import DataError
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
    sinks: dict[str, formats.Sink] = {}
    with formats.write_together() as opened:

        def store(path: str, record: Record) -> None:
            format = formats.file_format(path)
            if path in sinks and format not in formats.STREAMS and path != os.devnull:
                raise DataError(f"{format} holds one record, but the stream has more", path)
            sinks[path] = sinks.get(path) or opened(path)
            sinks[path].write(formats.encode(record, format))

        with stored_by(store):
            yield opened
