"""The process of the command `attnkit`: signals, file descriptors, start and end."""

import gc
import os
import signal


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

    from attnkit.tuning import tune_allocator, tune_blas

    library = ctypes.CDLL(None)
    tune_blas()
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


if __name__ == "__main__":
    main()
