"""The process of the command `attnkit`: signals, file descriptors, memory allocator, start and end."""

import gc
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import CDLL

FEW_ADDRESSES = 1 << 30  # bytes
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # what glibc's malloc.h calls them


def end_by_signals() -> None:
    """Have SIGINT and SIGPIPE end the process at once, as they end other tools.

    An ignored SIGINT stays ignored.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


end_by_signals()  # before anything else is imported: Python's own handler would print a traceback


def main() -> None:
    """Run one command line and end the process with its exit code.

    A closed standard stream is replaced by one that fails when it is used, so that no file opened later takes
    its number. A pipe starts many processes: the garbage collector is off while modules load, and the process
    ends without finalizing the interpreter, which has nothing left to write.
    """
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)
    gc.disable()
    import ctypes

    library = ctypes.CDLL(None)
    tune_allocator(library)
    survived = ctypes.CFUNCTYPE(None, ctypes.c_int)(end_by_truncation)
    library.signal(int(signal.SIGBUS), survived)

    import sys

    from attnkit.cli import main

    os._exit(main.main(sys.argv[1:]))


def end_by_truncation(number: int) -> None:
    """Handle SIGBUS: report the memory-mapped file that was truncated, and end.

    Python runs its own handlers between two instructions, and the interrupted one never ends, so the system calls
    this one through ctypes. Any other SIGBUS has its default effect.
    """
    from attnkit.cli import main

    if status := main.report_truncation():
        os._exit(status)
    import ctypes

    ctypes.CDLL(None).signal(number, None)


def tune_allocator(library: "CDLL") -> None:
    """Set the allocator of glibc and the threads of OpenBLAS for large tensors.

    glibc keeps freed memory for the next tensor, because fresh memory is mapped slowly, page by page. The threads
    of OpenBLAS, which reads the variable when it is loaded, wait actively for work for at most half a millisecond:
    longer waits take processor time from all others. Each of its threads takes 40 MB of addresses, and where they
    are not left it ends the process, so that a process of few (ulimit -v) has one. A C library without mallopt is
    left as it is.
    """
    import resource

    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2^20 cycles
    if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < FEW_ADDRESSES:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if hasattr(library, "mallopt"):
        library.mallopt(TRIM_THRESHOLD, 1 << 28)
        library.mallopt(MMAP_THRESHOLD, 1 << 22)  # larger tensors are in large pages, which are mapped fast


if __name__ == "__main__":
    main()
