"""Processes that are joined give the result of one; process 0 writes it, and no other writes anything."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax")

import attnkit

GPT2 = os.path.abspath("tests/references/trained/gpt2")


def start(folder, *arguments, processes=2):
    """Start the processes of a command line on a free port; return what each wrote, and its exit code."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    joined = [
        subprocess.Popen(
            [sys.executable, "-m", "attnkit", *arguments, "--coordinator", address, "--process", str(number),
             "--processes", str(processes)],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=8", "count=1")},
        )
        for number in range(processes)
    ]  # fmt: skip
    return [(*one.communicate(timeout=100), one.returncode) for one in joined]


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tmp_path):
    line = ["encode", "--model", GPT2, "the cat", "a dog ran", "--batch", "--engine", "jax", "--mesh", "model=2"]
    (first, _, code), (second, _, other) = start(tmp_path, *line, "-f", "npz")
    assert (code, other, second) == (0, 0, b"")
    (tmp_path / "out.npz").write_bytes(first)
    ours = attnkit.formats.load(str(tmp_path / "out.npz"))
    theirs = attnkit.encode(["the cat", "a dog ran"], model=GPT2, batch=True)
    np.testing.assert_allclose(ours["x"], theirs["x"], atol=1e-5)


@pytest.mark.slow
def test_an_error_ends_all_processes_and_writes_no_file(tmp_path):
    line = ["encode", "--model", GPT2, "the cat", "--engine", "jax", "--mesh", "model=3", "-o", "out.npz"]
    ended = start(tmp_path, *line)
    assert all(out == b"" and code for out, _, code in ended)
    problem = b"attnkit encode: --mesh: 3 devices, but there are 2: attnkit engines lists them\n"
    assert any(code == 2 and errors.endswith(problem) for _, errors, code in ended)  # an end may end the others first
    assert not (tmp_path / "out.npz").exists()
