"""The process: its signals, its file descriptors, its start and its end."""

import gc
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import CDLL

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # what glibc's malloc.h calls them


def end_by_signals() -> None:
    """Have SIGINT and SIGPIPE end the process at once and silently, as they end other tools of a pipe.

    An ignored SIGINT stays ignored.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


end_by_signals()  # before anything else is imported: Python's own handler would print a traceback


def main() -> None:
    """Run one command line and end the process with its exit code.

    A closed standard stream is filled with one that fails when it is used, so that no file opened
    later takes its number. A pipe starts many processes: no garbage is looked for among the modules, and the
    interpreter, with nothing left to write, is not taken down piece by piece.
    """
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)
    gc.disable()
    import ctypes

    library = ctypes.CDLL(None)
    spare_time(library)
    survived = ctypes.CFUNCTYPE(None, ctypes.c_int)(end_by_truncation)
    library.signal(int(signal.SIGBUS), survived)

    import sys

    from attnkit.cli import main

    os._exit(main.main(sys.argv[1:]))


def end_by_truncation(number: int) -> None:
    """SIGBUS: a mapped file is shorter than it was, and the tensor at hand has no bytes; say so and end the process.

    Python runs its own handlers between two instructions, and the one at hand never ends, so the system calls this
    one through ctypes. For any other SIGBUS the process dies of it.
    """
    from attnkit.cli import main

    if status := main.cut_short():
        os._exit(status)
    import ctypes

    ctypes.CDLL(None).signal(number, None)


def spare_time(library: "CDLL") -> None:
    """Ask the libraries below for two things that cost a model much time; what is not there is not asked.

    glibc shall keep freed memory for the next tensor, as fresh memory comes slowly, page by page. The threads of
    OpenBLAS, which it reads of when it is loaded, shall not wait for work for longer than half a millisecond: they
    do so at the cost of all others.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2^20 cycles
    if hasattr(library, "mallopt"):
        library.mallopt(TRIM_THRESHOLD, 1 << 28)
        library.mallopt(MMAP_THRESHOLD, 1 << 22)  # larger tensors lie in large pages, which come fast


if __name__ == "__main__":
    main()
