"""The signals that end a run after it has saved: SIGINT and SIGTERM."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from attnkit.errors import InterruptedRunError, TerminatedRunError
from attnkit.formats import atomic

STOPPED = {signal.SIGINT: InterruptedRunError, signal.SIGTERM: TerminatedRunError}


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Note SIGINT and SIGTERM in a `with` block; the second ends the process.

    The value of the block is a function that returns the number of the signal that has arrived, 0 for none.
    """
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if arrived:
            atomic.remove_temporaries()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        arrived.append(number)

    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield lambda: arrived[0] if arrived else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
