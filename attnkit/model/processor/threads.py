"""Threads that share a queue of tasks, with BLAS limited to one thread."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

from attnkit.model.processor.machine import find_openblas

Task = TypeVar("Task")

_lock = threading.Lock()
_saved: list[int] = []  # thread counts at the start of each running call; the first is the user's setting
_idle: "deque[Worker]" = deque()  # threads that wait for work
_local = threading.local()  # share: how many threads a call within parallel work may use


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """Getter and setter of NumPy's BLAS thread count; None if it is not OpenBLAS."""
    threads, set_threads = find_openblas("get_num_threads"), find_openblas("set_num_threads")
    return (threads, set_threads) if threads and set_threads else None


@contextmanager
def single_blas() -> Iterator[int]:
    """Limit BLAS to one thread while any caller is inside; yield the user's count."""
    blas = _openblas()
    if blas is None:
        yield os.cpu_count() or 1
        return
    threads, set_threads = blas
    with _lock:
        if not _saved:
            count = threads()
            set_threads(1)
        _saved.append(_saved[0] if _saved else count)
    try:
        yield _saved[0]
    finally:
        with _lock:
            count = _saved.pop()
            if not _saved:
                set_threads(count)


def split_range(start: int, stop: int, size: int) -> Iterator[slice]:
    """Split a range into slices of one size; the last may be shorter.

    >>> [(part.start, part.stop) for part in split_range(2, 7, 3)]
    [(2, 5), (5, 7)]
    """
    for i in range(start, stop, size):
        yield slice(i, min(i + size, stop))


class Worker:
    """A thread that waits for work between calls: waking it is faster than a new one."""

    def __init__(self) -> None:
        """Start the thread; RuntimeError if there can be no more."""
        self.wake, self.waiting = threading.Lock(), deque[tuple[deque[Callable[[], None]], threading.Lock]]()
        self.wake.acquire()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.wake.acquire()
            while self.waiting:
                self._work(*self.waiting.popleft())

    def _work(self, work: deque[Callable[[], None]], done: threading.Lock) -> None:
        try:
            run = work.pop()
        except IndexError:  # withdrawn
            return
        run()
        _idle.append(self)
        done.release()

    def submit(self, run: Callable[[], None]) -> Callable[[], None]:
        """Begin work in the thread; return a function that withdraws it or waits for it.

        Only who has taken the worker from the idle ones may call this.
        """
        work, done = deque([run]), threading.Lock()
        done.acquire()
        self.waiting.append((work, done))
        if self.wake.locked():  # else the thread is awake, or about to be
            self.wake.release()

        def wait() -> None:
            try:
                work.pop()
            except IndexError:
                done.acquire()
            else:
                _idle.append(self)

        return wait


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a child has no threads but its own


def _submit(work: Callable[[], None]) -> Callable[[], None]:
    """Begin work in an idle or a new thread; return the function that waits for it."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = Worker()
    return worker.submit(work)


def run_parallel(work: Callable[[Iterator[Task]], None], tasks: Iterable[Task], threads: int | None = None) -> None:
    """Call `work` in several threads, each with an iterator over tasks of its own.

    There are as many threads as NumPy's BLAS may use [or `threads`], never more than tasks; calls within the work share
    those that it leaves. An exception of the work is raised here, after every thread has ended.

    >>> done = []
    >>> run_parallel(lambda tasks: done.extend(tasks), range(4), threads=2)
    >>> sorted(done)
    [0, 1, 2, 3]
    """
    waiting, failures = deque(tasks), deque[BaseException]()

    def take_tasks() -> Iterator[Task]:
        while waiting:
            try:
                task = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            yield task

    def run() -> None:
        outer = getattr(_local, "share", None)
        _local.share = max(1, cores // count)
        try:
            work(take_tasks())
        except BaseException as error:
            waiting.clear()
            failures.append(error)
        finally:
            _local.share = outer

    with single_blas() as cores:
        cores = getattr(_local, "share", None) or cores
        count = max(1, min(threads or cores, len(waiting)))
        waits = []
        with suppress(RuntimeError):  # no more threads available: those at work do all of it
            for _ in range(count - 1):
                waits.append(_submit(run))
        run()
        for wait in waits:
            wait()
    if failures:
        raise failures[0]
