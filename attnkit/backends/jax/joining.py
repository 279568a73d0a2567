"""The processes of a run: joined by jax.distributed, and ended together."""

import contextlib
import ctypes
import importlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NoReturn

import jax
from jax._src import distributed

from attnkit.errors import AttnkitError, FileError, UsageError
from attnkit.libraries import quote_error

FLAG, AUTO = "--coordinator", "auto"
RANKS = ("PMI_RANK", "PMIX_RANK")  # mpiexec sets one of them
START = 300  # seconds in which all processes must have joined
PATIENCE = 20  # seconds without a heartbeat of a process, after which all end
GRACE = 2  # seconds that process 0, which keeps the notes, waits for the others to end
FOREVER = 10**9  # milliseconds
NOTE, LEFT, DONE = "attnkit/note", "attnkit/left", "attnkit/done"  # keys of the coordination service, and a barrier
UNBUFFERED = 2  # what stdio.h calls _IONBF
SIGNALLED = 128  # exit codes above are of signals

Describe = Callable[[BaseException], tuple[int, str]]  # an error -> its exit code and line


class Group:
    """The processes of a run, this one of them, which all end where one of them ends early.

    One that fails leaves a note with the coordination service of JAX, which process 0 runs; one that dies is missed by
    the others. The service ends with process 0; JAX then aborts the others, which say so before.

    end  ends this process with an error, from any thread
    """

    def __init__(self, end: Callable[[AttnkitError], None]) -> None:
        self._end, self._ending = end, threading.Lock()
        self._client: Any = None
        self._has_failed = False
        self._log = capture_native_errors()
        self._on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._explain_abort)
        if self._log is not None:
            ctypes.CDLL(None).signal(int(signal.SIGABRT), self._on_abort)

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes the result."""
        return int(distributed.global_state.process_id) == 0

    def join(self, coordinator: str, process: int | None, processes: int | None) -> None:
        """Join the processes, and wait for all of them; UsageError, FileError."""
        jax.config.update("jax_enable_recoverability", True)  # else any death aborts all
        jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
        try:
            if coordinator == AUTO:
                initialize_automatically()
            else:
                initialize(coordinator, processes, process)
        except AttnkitError:
            raise
        except Exception as error:  # of the libraries of a cluster too
            raise FileError(f"cannot join the processes: {quote_error(error)}", FLAG) from None
        self._client = distributed.global_state.client
        for task in (self._await_note, self._await_death):
            threading.Thread(target=task, daemon=True).start()

    @contextlib.contextmanager
    def working(self, describe: Describe) -> Iterator[None]:
        """Tell the other processes where the `with` block fails, and wait for them where it does not.

        A run that a signal has stopped has stopped in all processes.
        """
        try:
            with self._losses():
                jax.devices()  # those of all processes
                yield
            self._wait_for_all()
        except BaseException as error:
            code, line = describe(error)
            if code < SIGNALLED:
                self._has_failed = True
                number, count = distributed.global_state.process_id, distributed.global_state.num_processes
                self._leave_note(code, f"process {number} of {count} has failed: {line}")
            else:
                self._wait_for_all()
            raise
        finally:
            self._ending.acquire()  # no other thread ends this process from now on
            self._leave()

    def _wait_for_all(self) -> None:
        with self._losses():
            self._client.wait_at_barrier(DONE, FOREVER)

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        """Wait in vain, where JAX fails in a `with` block, for the note on who has ended; FileError then."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            time.sleep(2 * PATIENCE)
            raise FileError(f"the processes have lost each other: {quote_error(error)}", FLAG) from None

    def _leave_note(self, code: int, problem: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # there is one already
            self._client.key_value_set(NOTE, json.dumps([code, problem]))

    def _await_note(self) -> None:
        """End this process where another leaves a note."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 has ended
            code, problem = json.loads(self._client.blocking_key_value_get(NOTE, FOREVER))
            if self._has_failed:
                return
            if self.is_first:
                time.sleep(GRACE)  # it may fail in the same way
            self._ending.acquire()
            self._leave()
            self._report(problem, code)

    def _leave(self) -> None:
        """Tell process 0 that this one ends; process 0 waits for the others a while, as JAX aborts them without it."""
        if not self.is_first:
            teller = threading.Thread(target=self._tell, daemon=True)  # which hangs where process 0 has ended
            teller.start()
            teller.join(GRACE)
            return
        others, end = distributed.global_state.num_processes - 1, time.monotonic() + GRACE
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            while len(self._client.key_value_dir_get(LEFT)) < others and time.monotonic() < end:
                time.sleep(0.01)

    def _tell(self) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"{LEFT}/{distributed.global_state.process_id}", "")

    def _await_death(self) -> None:
        """Leave a note where another process gives no sign of life; all processes ask at the same time."""
        count = distributed.global_state.num_processes
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            while not (missing := {*range(count)} - {*self._client.get_live_nodes(range(count))}):
                time.sleep(1)
            one = "process {} of {} has" if len(missing) == 1 else "processes {} of {} have"
            problem = one.format(", ".join(map(str, sorted(missing))), count)
            self._leave_note(FileError.exit_code, f"{problem} ended (no heartbeat for {PATIENCE} s)")

    def _explain_abort(self, number: int) -> None:
        """Handle SIGABRT: end the process with an error where JAX could not reach process 0."""
        text = os.pread(self._log or 0, 1 << 20, 0)
        status = re.search(r"absl::Status: (.*)", text.decode(errors="replace"))
        if status is None:
            os.write(2, text)
            return
        state = distributed.global_state
        self._ending.acquire()
        if self._client:
            self._report(f"process 0 of {state.num_processes} has ended")
        if "DEADLINE_EXCEEDED" in status[1]:
            missing = f"not all of {state.num_processes} processes have joined at {state.coordinator_address}"
            self._report(f"{missing} within {START} s")
        if "ALREADY_EXISTS" in status[1]:
            self._report(f"another process is {state.process_id} too (expected --process 0 to N - 1, each once)")
        self._report(f"cannot join the processes: {status[1]}")

    def _report(self, problem: str, code: int = FileError.exit_code) -> NoReturn:
        """End this process."""
        error = FileError(problem, FLAG)
        error.exit_code = code
        self._end(error)
        raise error


def check_processes(coordinator: str, process: int | None, processes: int | None) -> None:
    """Raise UsageError for an address and numbers that do not agree, FileError where process 0 cannot listen."""
    numbers = {"--process": process, "--processes": processes}
    if coordinator == AUTO:
        for flag in (flag for flag, number in numbers.items() if number is not None):
            raise UsageError(f"{FLAG} {AUTO} finds it (expected HOST:PORT)", flag)
        return
    port = re.fullmatch(r"\S+:([0-9]{1,5})", coordinator)
    if not port or int(port[1]) >= 1 << 16:
        raise UsageError(f"expected HOST:PORT or {AUTO}, got {coordinator!r}", FLAG)
    for flag in (flag for flag, number in numbers.items() if number is None):
        raise UsageError(f"needs {flag}", FLAG)
    if process is not None and processes is not None and process >= processes:
        raise UsageError(f"expected 0 to {processes - 1}, got {process}", "--process")
    if process == 0:
        check_port(int(port[1]))


def check_port(port: int) -> None:
    """Raise FileError where this process cannot listen at a port; JAX would crash."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise FileError(f"cannot listen at port {port}: {os.strerror(error.errno or 0)}", FLAG) from None


def initialize_automatically() -> None:
    """Join the processes of a job of SLURM, MPI or Kubernetes; UsageError outside of one."""
    try:
        initialize()
    except ValueError as error:
        if find_spec("mpi4py") and any(name in os.environ for name in RANKS):
            initialize(cluster_detection_method="mpi4py")
            importlib.import_module("mpi4py.MPI").Finalize()  # else mpiexec takes the end of a process for a crash
            return
        problem = f"{AUTO} finds no job of SLURM, MPI (with mpi4py) or Kubernetes (with kubernetes) here"
        raise UsageError(f"{problem}; --coordinator HOST:PORT --process I --processes N", FLAG) from error


def initialize(*arguments: Any, **options: Any) -> None:
    """Call jax.distributed.initialize with the patience of this module."""
    jax.distributed.initialize(*arguments, initialization_timeout=START, heartbeat_timeout_seconds=PATIENCE, **options)


def capture_native_errors() -> int | None:
    """Let native code write its standard error to a file in memory from now on; return its descriptor.

    None where the C library is not glibc, and with ATTNKIT_DEBUG, which shows what JAX reports.
    """
    library = ctypes.CDLL(None)
    try:
        stream = ctypes.c_void_p.in_dll(library, "stderr")
    except ValueError:
        return None
    if os.environ.get("ATTNKIT_DEBUG", "0") not in ("", "0"):
        return None
    log = os.memfd_create("stderr")
    library.fdopen.restype = ctypes.c_void_p
    file = library.fdopen(log, b"w")
    library.setvbuf(ctypes.c_void_p(file), None, UNBUFFERED, 0)
    stream.value = file
    return log
