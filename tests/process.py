"""Real processes of attnkit, as the tests start them.

`run`, `bash` and every `attnkit` on the PATH of the tests end up in a fork of one process that has imported attnkit
(tests/server.py): a process with descriptors, a folder, an environment and an end of its own, in 20 ms in place of
250. What acts when an interpreter starts is another matter: where a line changes variables of START, limits of
resources or whether standard streams are open, it gets an interpreter; and so do all tests that use ALONE (signals,
memory, start-up, the samples and pages as users run them), and every line where ATTNKIT_TESTS=alone is set.
"""

import atexit
import functools
import inspect
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests import client

TESTS = Path(__file__).parent
ROOT = TESTS.parent
BIN = Path(sys.executable).parent
START = ("PYTHON", "LC_", "OMP_", "OPENBLAS_", "TZ", "MALLOC_")
SETTINGS = {"LC_ALL": "C.UTF-8"}  # of the server, and of what it runs
ALONE = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # a PATH on which attnkit starts an interpreter


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
            command, stdin=subprocess.PIPE, cwd=ROOT, env=os.environ | SETTINGS | {"PYTHONPATH": str(ROOT)}
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

    def run(self, arguments, folder, environment, stdin, stdout, stderr):
        """The exit code of a command line of attnkit whose standard streams are files, by their paths."""
        flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        descriptors = [os.open(path, how, 0o644) for path, how in zip((stdin, stdout, stderr), flags, strict=True)]
        request = {"cwd": str(folder), "environment": environment, "arguments": arguments, "ignored": []}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.socket)
            client.send(connection, request, dict(enumerate(descriptors)))
            for one in descriptors:
                os.close(one)
            return client.received(connection)

    def close(self):
        """End the server."""
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


@functools.cache
def server():
    """The server of this process."""
    return Server()


def run(*arguments, **options) -> Run:
    """Run `attnkit` to its end."""
    return run_command(["attnkit", *arguments], **options)


def bash(line, **options) -> Run:
    """Run a line of bash to its end; it fails where a stage of it fails."""
    return run_command(["bash", "-c", f"set -o pipefail; {line}"], **options)


def run_command(command, stdin=b"", env=None, **options) -> Run:
    """Run a command to its end; stdin is bytes, which go through a pipe; env is added to the environment."""
    environment = os.environ | (env or {})
    done = subprocess.run(
        list(map(str, command)), input=stdin, env=environment, capture_output=True, timeout=120, **options
    )
    return Run(done.returncode, done.stdout, done.stderr.decode("utf-8", "backslashreplace"))
