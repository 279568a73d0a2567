"""Command lines of attnkit, as the tests run them.

`call`, `run` and `run_piped` run a command line in this process, with descriptors, a folder and an environment of its
own, in 3 ms.
`bash` and every `attnkit` on the PATH of the tests are processes. They are forks of a process that has imported attnkit
(tests/server.py), and take 20 ms instead of 250.

A command line gets an interpreter if it changes variables of START, limits of resources, or whether standard streams
are open. So do all tests that use ALONE (signals, memory, start-up), and all command lines if ATTNKIT_TESTS is `alone`.
"""

import atexit
import contextlib
import functools
import inspect
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests import client

TESTS = Path(__file__).parent
ROOT = TESTS.parent
BIN = Path(sys.executable).parent
START = ("PYTHON", "LC_", "OMP_", "OPENBLAS_", "TZ", "MALLOC_")
SETTINGS = {"LC_ALL": "C.UTF-8"}  # of the server, and of what it runs
OWN = ("ATTNKIT_", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHON", "TERM", "LC_", "LANG")  # a user's own settings
ALL_ALONE = os.environ.get("ATTNKIT_TESTS") == "alone"
ALONE = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # a PATH on which attnkit starts an interpreter

FEW_THREADS = {"OPENBLAS_NUM_THREADS": "2"}  # for tests that measure memory: each thread has buffers of its own
LOOPS = {
    "Prescott": "SSE3",
    "Sandybridge": "AVX",
    "Haswell": "AVX2",
    "Zen": "AVX2",
    "SkylakeX": "AVX512_SKX",
}  # OPENBLAS_CORETYPE -> what it needs


def has_loops(name):
    """Whether OpenBLAS can compute here as on this kind of processor."""
    from numpy._core._multiarray_umath import __cpu_features__ as features

    return features.get(LOOPS[name], False)


def default_signals():
    """Start the processes of tests with the default action of the signals that this process ignores.

    Under nohup and in the background of some shells a process ignores SIGHUP or SIGINT, and so would its children. A
    handler that does nothing has the same effect here, and is not inherited.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def environment(**settings):
    """An environment with these settings and none of a user's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | SETTINGS | settings


class Run(NamedTuple):
    """How a process ended: its exit code (-N: killed by signal N), and what it wrote."""

    code: int
    out: bytes
    err: str


class Server:
    """A process that runs command lines (tests/server.py), and ends with this one."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="attnkit-tests-")
        self.socket = f"{self.folder.name}/socket"
        command = [sys.executable, TESTS / "server.py", self.socket]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | SETTINGS | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,  # Ctrl-C and a terminal that closes end the tests, and these end it
        )
        while not Path(self.socket).exists() and self.process.poll() is None:
            time.sleep(0.001)
        atexit.register(self.close)

    def command(self):
        """A folder with a command `attnkit` that goes to this server."""
        settings = {"python": sys.executable, "command": str(BIN / "attnkit"), "path": self.socket, "names": START}
        settings |= {"expected": client.at_start(os.environ | SETTINGS, START), "given": client.limits()}
        command = Path(self.folder.name, "attnkit")
        command.write_text(f"#!{sys.executable} -IS\n{inspect.getsource(client)}\n\nmain(**{settings!r})\n")
        command.chmod(0o755)
        return self.folder.name

    def close(self):
        """End the server."""
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


@functools.cache
def server():
    """The server of this process."""
    return Server()


def runs_here(environment):
    """Whether a command line with these variables may run in this process: none of them acts at a start."""
    return client.at_start(environment, START) <= client.at_start(os.environ, START)


def run(*arguments, stdin=b"", env=None, cwd=None) -> Run:
    """Run `attnkit` to its end, in this process if that makes no difference; stdin is bytes, in a file."""
    if not runs_here(env or {}):
        return run_command(["attnkit", *arguments], stdin, env, cwd=cwd)
    with contextlib.ExitStack() as files:
        given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        code = call(map(str, arguments), cwd or os.curdir, os.environ | (env or {}), given, out, err)
        out.seek(0)
        err.seek(0)
        return Run(code, out.read(), err.read().decode("utf-8", "backslashreplace"))


def run_piped(arguments, stdin, environment, folder) -> Run:
    """Run `attnkit` to its end in this process, in an environment; its standard streams are pipes."""
    with contextlib.ExitStack() as pipes:
        given = pipes.enter_context(pipe_from(stdin))
        (out, read), (err, problems) = (pipes.enter_context(pipe_to_end()) for _ in range(2))
        code = call(map(os.fsdecode, arguments), folder, environment, given, out, err)
        return Run(code, read(), problems().decode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def pipe_from(data):
    """The end of a pipe that a thread fills with bytes, as far as they are read."""
    reader, writer = os.pipe()

    def fill():
        with contextlib.suppress(BrokenPipeError), open(writer, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]

    thread = threading.Thread(target=fill)
    with open(reader, "rb", buffering=0) as file:
        thread.start()
        yield file
    thread.join()


@contextlib.contextmanager
def pipe_to_end():
    """The end of a pipe that a thread empties, and a function that closes it and returns what went through."""
    reader, writer = os.pipe()
    parts = []

    def empty():
        with open(reader, "rb") as file:
            parts.append(file.read())

    thread = threading.Thread(target=empty)
    thread.start()
    with open(writer, "wb", buffering=0) as file:

        def read():
            file.close()
            thread.join()
            return parts[0]

        yield file, read
    thread.join()


def call(arguments, folder, environment, *files):
    """The exit code of a command line of attnkit in this process; its standard streams are three open files."""
    if ALL_ALONE:
        streams = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
        return subprocess.run(["attnkit", *arguments], cwd=folder, env=environment, **streams).returncode
    from attnkit.cli import main

    with contextlib.ExitStack() as settings:
        settings.callback(os.chdir, os.getcwd())
        os.chdir(folder)
        settings.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        for number, file in enumerate(files):
            settings.enter_context(replaced(number, file))
        return main.main(list(arguments))


@contextlib.contextmanager
def replaced(number, file):
    """Replace a standard stream of this process by a file: its descriptor, and its name in sys."""
    name, mode, lines, unknown = (
        ("stdin", "r", -1, None),
        ("stdout", "w", -1, None),
        ("stderr", "w", 1, "backslashreplace"),
    )[number]
    kept = os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        with (
            open(number, mode, lines, encoding="utf-8", errors=unknown, closefd=False) as stream,
            mock.patch.object(sys, name, stream),
        ):
            yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def bash(line, **options) -> Run:
    """Run a line of bash to its end; it fails if one of its stages fails."""
    return run_command(["bash", "-c", f"set -o pipefail; {line}"], **options)


def run_command(command, stdin=b"", env=None, **options) -> Run:
    """Run a command to its end; stdin is bytes, which go through a pipe; env is added to the environment."""
    environment = os.environ | (env or {})
    done = subprocess.run(
        list(map(str, command)), input=stdin, env=environment, capture_output=True, timeout=120, **options
    )
    return Run(done.returncode, done.stdout, done.stderr.decode("utf-8", "backslashreplace"))


def on_a_terminal(command, folder, **settings) -> str:
    """What a line of bash, which must succeed, shows on a terminal."""
    options = {"cwd": folder, "env": environment(**settings), "stdin": subprocess.DEVNULL}
    line = ["bash", "-c", command]
    code, text = shown(lambda screen: subprocess.run(line, stdout=screen, stderr=screen, **options).returncode)
    assert code == 0, text
    return text


def shown(run) -> tuple[int, str]:
    """What run(a terminal) returns, and what the terminal shows meanwhile."""
    leader, follower = pty.openpty()
    parts = []

    def read():
        with open(leader, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # as Linux says: it is closed
            while chunk := terminal.read(65536):
                parts.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(follower, "wb", buffering=0) as screen:
            code = run(screen)
    finally:
        reader.join()
    return code, b"".join(parts).decode().replace("\r\n", "\n")
