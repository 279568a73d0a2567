"""Work on every core: threads that share a list of tasks, each with a BLAS of one thread."""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import numpy as np

Task = TypeVar("Task")

_entering = threading.Lock()
_inside: list[int] = []  # the setting that each call inside has found, the first of them the user's


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """How many threads the BLAS of NumPy has, and what sets that; None where it is no OpenBLAS within reach."""
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    for name in ("scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
        for ending in ("64_", ""):
            if hasattr(library, name.format("set") + ending):
                return getattr(library, name.format("get") + ending), getattr(library, name.format("set") + ending)
    return None


@contextmanager
def single_blas() -> Iterator[int]:
    """A BLAS of one thread for as long as anyone is inside; gives the number of threads that the user has set."""
    blas = _openblas()
    if blas is None:
        yield os.cpu_count() or 1
        return
    threads, set_threads = blas
    with _entering:
        _inside.append(_inside[0] if _inside else threads())
        set_threads(1)
    try:
        yield _inside[0]
    finally:
        with _entering:
            found = _inside.pop()
            set_threads(1 if _inside else found)


def split_range(start: int, stop: int, size: int) -> Iterator[slice]:
    """A range cut into slices of one size, the last as short as need be.

    >>> [(part.start, part.stop) for part in split_range(2, 7, 3)]
    [(2, 5), (5, 7)]
    """
    for i in range(start, stop, size):
        yield slice(i, min(i + size, stop))


def run_parallel(work: Callable[[Iterator[Task]], None], tasks: Iterable[Task], threads: int | None = None) -> None:
    """Calls `work` in several threads, each with an iterator of tasks that nobody else gets.

    As many threads as the BLAS of NumPy may use [or `threads`], never more than tasks. What the work raises is
    raised here, after every thread has ended.

    >>> done = []
    >>> run_parallel(lambda tasks: done.extend(tasks), range(4), threads=2)
    >>> sorted(done)
    [0, 1, 2, 3]
    """
    waiting, failures = deque(tasks), deque[BaseException]()

    def taken() -> Iterator[Task]:
        while waiting:
            try:
                task = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            yield task

    def run() -> None:
        try:
            work(taken())
        except BaseException as error:
            waiting.clear()
            failures.append(error)

    with single_blas() as cores:
        helpers = [threading.Thread(target=run) for _ in range(min(threads or cores, len(waiting)) - 1)]
        started = []
        with suppress(RuntimeError):  # no more threads to be had: those there are do it all
            for helper in helpers:
                helper.start()
                started.append(helper)
        run()
        for helper in started:
            helper.join()
    if failures:
        raise failures[0]
