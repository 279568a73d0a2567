"""Processes that are joined give the result of one; process 0 writes it, and no other writes anything."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("jax")

import attnkit

GPT2 = os.path.abspath("tests/references/trained/gpt2")
IMPATIENT = "from attnkit.backends.jax import processes; processes.LIMITS['heartbeat_timeout_seconds'] = 3"
RUN = f"{IMPATIENT}; from attnkit.__main__ import main; main()"
AUTO = ["--engine", "jax", "--coordinator", "auto"]


def free_port():
    """Return a port that no process listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(folder, *lines, job=None):
    """Start a process for each command line, joined by flags, or by the variables of a job."""
    port, pipes = free_port(), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    settings = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=8", "count=1")}
    started = []
    for number, line in enumerate(lines):
        flags = ["--coordinator", f"localhost:{port}", "--process", f"{number}", "--processes", f"{len(lines)}"]
        own = {name: value.format(port=port, number=number, count=len(lines)) for name, value in (job or {}).items()}
        flags = [*line, "--engine", "jax", *(AUTO[2:] if job else flags)]
        command = [sys.executable, "-c", RUN, *flags]
        started.append(subprocess.Popen(command, cwd=folder, env=settings | own, **pipes))
    return started


def outcomes(started):
    """Return the output, the errors and the exit code of each process."""
    return [(*one.communicate(timeout=100), one.returncode) for one in started]


SLURM = {
    "SLURM_JOB_ID": "{port}",
    "JAX_COORDINATOR_PORT": "{port}",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "{count}",
    "SLURM_PROCID": "{number}",
    "SLURM_LOCALID": "{number}",
}


@pytest.mark.slow
def test_two_processes_of_a_job_give_what_one_gives(tmp_path):
    line = ["encode", "--model", GPT2, "the cat", "a dog ran", "--batch", "--mesh", "model=2", "-f", "npz"]
    (first, errors, code), (second, others, other) = outcomes(start(tmp_path, line, line, job=SLURM))
    assert (errors, code, second, others, other) == (b"", 0, b"", b"", 0)
    (tmp_path / "out.npz").write_bytes(first)
    ours = attnkit.formats.load(str(tmp_path / "out.npz"))
    theirs = attnkit.encode(["the cat", "a dog ran"], model=GPT2, batch=True)
    np.testing.assert_allclose(ours["x"], theirs["x"], atol=1e-5)
    assert "--mesh model=2" in ours.history[-1]["command"] and "--coordinator" not in ours.history[-1]["command"]


@pytest.mark.slow
def test_an_error_of_one_ends_all_and_writes_no_file(tmp_path):
    line = ["encode", "the cat", "-o", "out.npz", "--model"]
    (_, _, code), (_, theirs, other) = outcomes(start(tmp_path, [*line, GPT2], [*line, "nowhere"]))
    told = b"nowhere: no such folder; a model is a local folder as published: attnkit help models\n"
    assert (other, theirs) == (4, b"attnkit encode: " + told)
    assert code != 0
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_process_that_dies_ends_all_and_leaves_no_file_in_part(tmp_path):
    (tmp_path / "tale.txt").write_text("the cat sat on the mat\n" * 40)
    line = shlex.split("train tale.txt -o model --layers 1 --heads 1 --dim 4 --block 8 --every 1 --steps 100000")
    started = start(tmp_path, line, line)
    while not (tmp_path / "model/training.json").exists():
        assert all(one.poll() is None for one in started)
        time.sleep(0.05)
    started[1].send_signal(signal.SIGKILL)
    (_, _, code), (nothing, *_) = outcomes(started)
    assert code != 0 and nothing == b""
    assert not [name for name in os.listdir(tmp_path / "model") if name.startswith(".")]


def test_outside_of_a_job_auto_is_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "attnkit", "encode", "a", "--model", GPT2, *AUTO], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("attnkit encode: --coordinator: auto finds no job of SLURM, MPI (with mpi4py) or")
