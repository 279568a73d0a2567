"""Run command lines of attnkit in forks of one process that has imported it, each as if in a process of its own.

Every line on standard input is a JSON object {"argv", "cwd", "stdin", "stdout", "stderr"}, the last four of them
paths; the answer is a line with the exit code.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import sys

LAST = ("__main__", "engines")  # what is imported when it runs, and what needs libraries of its own


def preload():
    """Import what a stage may import, so that a fork has it at once."""
    import attnkit

    for module in pkgutil.walk_packages(attnkit.__path__, "attnkit."):
        if not set(module.name.split(".")) & set(LAST):
            importlib.import_module(module.name)
    for name in ("numpy.random", "tokenizers", "sentencepiece", "ml_dtypes", "rich.console", "PIL.Image", "difflib"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(request):
    """Run one command line in this process, and end it."""
    for fd, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(request[name], flags, 0o644)
        os.dup2(opened, fd)
        os.close(opened)
    os.chdir(request["cwd"])
    sys.argv = ["attnkit", *request["argv"]]
    from attnkit.__main__ import main

    main()


def serve():
    """Answer requests until standard input ends."""
    preload()
    gc.freeze()
    while line := os.read(0, 1 << 16):
        child = os.fork()
        if not child:
            try:
                run(json.loads(line))
            except SystemExit as end:
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            os._exit(99)
        status = os.waitpid(child, 0)[1]
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    serve()
