"""The process: its signals, its file descriptors, its start and its end."""

import gc
import os
import signal


def main() -> None:
    """Run one command line and end the process with its exit code.

    SIGINT and SIGPIPE end it at once and silently, as they end other tools of a pipe; an ignored SIGINT stays
    ignored. A closed standard stream is filled with one that fails when it is used, so that no file opened
    later takes its number. A pipe starts many processes: no garbage is looked for among the modules, and the
    interpreter, with nothing left to write, is not taken down piece by piece.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)
    gc.disable()

    import sys

    from attnkit import cli

    os._exit(cli.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
