"""The command line in a folder of its own, and what every one of its failures has in common.

A command line with pipes as its standard streams runs within the process of the tests, in 3 ms. One that closes or
redirects a stream, or limits another resource than memory, is a process, and so are the lines of a shell.
"""

import contextlib
import itertools
import os
import re
import resource
import subprocess
import tempfile
import zlib
from pathlib import Path

import numpy as np  # noqa: F401 - OpenBLAS takes its memory when NumPy is loaded, which no limit may meet
import pytest

from tests import client
from tests.process import ALONE, SETTINGS, Run, run_piped, runs_here

OLD = b"what was there before\n"
GOOD = b"[[1,2],[3,4]]"  # as good.json, in every test's folder

# Every tool that reads a record, its input standing where it says INPUT.
READERS = (
    "posenc INPUT",
    "mask INPUT --causal",
    "attend INPUT",
    "layernorm INPUT",
    "ffn INPUT --hidden 2",
    "decode INPUT --table good.json",
    "show INPUT",
    "peek INPUT",
    "history INPUT",
    "diff INPUT good.json",
)

FLAT = {resource.RLIMIT_DATA: 100 << 20}  # twice the memory that the libraries take
ROOM = 50 << 20  # beside the libraries


@contextlib.contextmanager
def limited_memory():
    """Leave this process no more than ROOM beside the memory that it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (client.data_size() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class Process:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path, path: str | None = None) -> None:
        self.folder = folder
        # only what the process needs, so that no test depends on the terminal or the shell that starts it
        machine = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
        self.environment = {"PATH": path or os.environ["PATH"], "HOME": tempfile.gettempdir()} | machine | SETTINGS
        (folder / "good.json").write_bytes(GOOD)

    def __call__(self, *arguments, stdin=b"", env=None, limits=None, **options) -> Run:
        """Run `attnkit` to its end; stdin is bytes, which go through a pipe, or anything that subprocess takes."""
        settings = self.environment | (env or {})
        is_alone = self.environment["PATH"] == ALONE or not runs_here(settings)
        if is_alone or options or not isinstance(stdin, bytes) or limits not in (None, FLAT):
            return self.run(["attnkit", *arguments], stdin, env=env, limits=limits, **options)
        with limited_memory() if limits else contextlib.nullcontext():
            return run_piped(arguments, stdin, settings, self.folder)

    def shell(self, script, **options) -> Run:
        """Run a Bash script to its end."""
        return self.run(["bash", "-c", script], **options)

    def run(self, command, stdin=subprocess.DEVNULL, **options) -> Run:
        """Run a command to its end."""
        given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        done = subprocess.run(command, timeout=60, check=False, **given, **pipes | self.prepared(**options))
        return Run(done.returncode, done.stdout or b"", (done.stderr or b"").decode("utf-8", "backslashreplace"))

    def start(self, *command, **options) -> subprocess.Popen:
        """Start a command and let it run, with an interpreter of its own."""
        options["env"] = {"PATH": ALONE} | (options.get("env") or {})
        return subprocess.Popen(command, **self.prepared(**options))

    def prepared(self, env=None, limits=None, **options) -> dict:
        """Options of subprocess: our folder, none of this process's environment, limits of resources."""

        def limit():
            for kind, most in limits.items():
                resource.setrlimit(kind, (most, most))

        if {"preexec_fn", "umask"} & {*options}:  # which the server does not pass on
            env = {"PATH": ALONE} | (env or {})
        if limits == FLAT and self.environment["PATH"] != ALONE:
            env, limits = {client.ROOM: str(ROOM)} | (env or {}), None
        before = {"preexec_fn": limit} if limits else {}
        return {"cwd": self.folder, "env": self.environment | (env or {})} | before | options

    def temporaries(self) -> list[str]:
        """The temporary files that attnkit has left."""
        return [path.name for path in self.folder.rglob(".*.attnkit-*")]

    def file(self, name, content=b"") -> str:
        """A new file in the folder; its name."""
        (self.folder / name).write_bytes(content)
        return name


@pytest.fixture(scope="session")
def process():
    return Process


@pytest.fixture
def attnkit(process, tmp_path):
    return process(tmp_path)


@pytest.fixture
def refused(attnkit):
    """Checks a failure: its exit code, one line on stderr that begins with the place, and nothing else anywhere."""

    def check(run: Run, code: int, place: str, *parts: str) -> None:
        assert (run.code, run.out) == (code, b""), run.err
        assert re.fullmatch(r"[^\n]+\n", run.err), run.err
        assert run.err[:-1].isprintable(), run.err
        assert run.err.startswith(("attnkit: " if place[:1] in ("", "<") else "attnkit ") + place), run.err
        for part in parts:
            assert part in run.err
        assert attnkit.temporaries() == []

    return check


@pytest.fixture
def flat():
    """Limits that leave no room for what a bad input declares."""
    return FLAT


@pytest.fixture
def reject(attnkit, refused, request):
    """Checks that an input is bad data, for one reader in one way.

    The name of the test decides which tool, whether from standard input or a file, and whether to standard
    output or onto an old file, so that the cases of a table go through all of them.
    """

    def check(content: bytes, *parts: str) -> None:
        number = zlib.crc32(request.node.name.encode())
        reader, by_name, onto_old = list(itertools.product(READERS, (False, True), (False, True)))[number % 40]
        name = attnkit.file("in.put", content) if by_name else "-"
        arguments = reader.replace("INPUT", name).split()
        old = "old.svg" if arguments[0] == "history" else "old.json"  # which writes text
        if onto_old:
            arguments += ["-o", attnkit.file(old, OLD)]
        before = set(os.listdir(attnkit.folder))
        run = attnkit(*arguments, stdin=b"" if by_name else content, limits=FLAT)
        refused(run, 3, f"{arguments[0]}: {name if by_name else '<stdin>'}: ", *parts)
        assert set(os.listdir(attnkit.folder)) == before
        assert not onto_old or (attnkit.folder / old).read_bytes() == OLD

    return check


@pytest.fixture
def main(attnkit, capfdbinary, monkeypatch):
    """Run a command line within this process, in the folder: what takes hundreds of them."""
    from attnkit.cli import main

    def run(*arguments) -> Run:
        monkeypatch.chdir(attnkit.folder)
        code = main.main(list(arguments))
        out, err = capfdbinary.readouterr()
        return Run(code, out, err.decode("utf-8", "backslashreplace"))

    return run
