"""Run command lines of attnkit in forks of one process that has imported it, each as in a process of its own.

A client connects to a Unix socket and sends its file descriptors with their numbers, its working directory, its
environment, its arguments and the signals that it ignores; the answer is how the process ended: its exit code, or
-N where signal N has ended it. A client that goes away takes its process along.

    python tests/server.py SOCKET    serves until its standard input ends

`tests/process.py` has the clients: a Python call, and a command `attnkit` for the lines of a shell.
"""

import contextlib
import gc
import importlib
import io
import marshal
import os
import pkgutil
import resource
import selectors
import signal
import socket
import sys

from tests import client

LAST = ("__main__", "backends")  # what is imported when it runs, and what needs libraries of its own
LIBRARIES = ("numpy.random", "tokenizers", "sentencepiece", "ml_dtypes", "rich.console", "PIL.Image", "difflib",
             "matplotlib.backends.backend_svg", "matplotlib.font_manager", "matplotlib.figure")  # fmt: skip
WARM_UP = ("attend -f json", "show", "embed a --dim 2 -f npz", "layernorm missing")
MOST, HIGH = 250, 300  # descriptors that a message holds, and a number above those of every client


def preload():
    """Import what a stage may import, so that a fork has it at once."""
    import attnkit

    for module in pkgutil.walk_packages(attnkit.__path__, "attnkit."):
        if not set(module.name.split(".")) & set(LAST):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from tests import process

    for line in WARM_UP:  # so that what is computed once in a process is there
        process.run(*line.split(), stdin=b"[[1]]")


def received(connection):
    """The request of a client and its descriptors; the first bytes of a message are its length."""
    head, descriptors, _, _ = socket.recv_fds(connection, 4, MOST)
    length, body = int.from_bytes(head, "little"), b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return marshal.loads(body), descriptors


def run(request, descriptors):
    """Run one command line in this process, and end it."""
    descriptors = [os.dup2(one, HIGH + at) for at, one in enumerate(descriptors)]
    os.closerange(0, HIGH)
    for number, one in zip(request["numbers"], descriptors, strict=True):
        os.dup2(one, number)
    os.closerange(HIGH, HIGH + MOST)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if room := os.environ.pop(client.ROOM, ""):
        most = client.data_size() + int(room)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.argv = ["attnkit", *request["arguments"]]
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    if client.UNBUFFERED in os.environ.items():  # as Python itself does
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    from attnkit.__main__ import main
    from attnkit.cli import output

    output.PROGRESS = output.Progress()  # whose time begins now
    main()


def fork(connection):
    """Start the command line that a client sends; the number of its process."""
    request, descriptors = received(connection)
    if child := os.fork():
        for one in descriptors:
            os.close(one)
        return child
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        run(request, descriptors)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(99)


def ended():
    """The processes that have ended, and how."""
    with contextlib.suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            yield end[0], os.waitstatus_to_exitcode(end[1])


def answer(selector, connection, end):
    """Tell a client how its process has ended."""
    if connection in [key.fileobj for key in selector.get_map().values()]:
        selector.unregister(connection)
        connection.sendall(end.to_bytes(4, "little", signed=True))
    connection.close()


def serve(path):
    """Answer clients until standard input ends."""
    listening, wake = socket.socket(socket.AF_UNIX), socket.socketpair()
    listening.bind(f"{path}~")
    listening.listen(64)
    os.rename(f"{path}~", path)  # clients wait for it
    preload()
    gc.freeze()
    wake[1].setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake[1].fileno())
    selector, clients = selectors.DefaultSelector(), {}
    for one in (0, listening, wake[0]):
        selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            if key.fileobj is listening:
                connection, _ = listening.accept()
                child = fork(connection)
                clients[child] = connection
                selector.register(connection, selectors.EVENT_READ, child)
            elif key.fileobj is wake[0]:
                wake[0].recv(1 << 12)
                for child, end in ended():
                    answer(selector, clients.pop(child), end)
            elif key.data in clients:  # which has gone away
                os.kill(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)


if __name__ == "__main__":
    serve(sys.argv[1])
