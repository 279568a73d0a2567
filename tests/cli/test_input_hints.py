"""What an error says to type where the input, the model or the names of two files are not what a tool can read."""

import shlex
import shutil

import numpy as np
import pytest

from tests import process
from tests.places import MODELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with models at several depths, and vectors."""
    path = tmp_path_factory.mktemp("inputs")
    shutil.copytree(MODELS / "gpt2", path / "gpt2")
    shutil.copytree(MODELS / "gpt2", path / "hub/snapshots/0a1b")
    np.savez(path / "idx.npz", x=np.eye(16))
    return path


def refused(line, folder, code):
    """The one line on standard error of a command line that is refused, after the tool's name."""
    run = process.run(*shlex.split(line), cwd=folder)
    assert (run.code, run.out, run.err.count("\n")) == (code, b"", 1), run
    return run.err.removesuffix("\n").partition(": ")[2]


@pytest.mark.parametrize(
    "line",
    [
        "attend 'The cat' --heads 2",
        "mask --causal 'The cat'",
        "ffn 'The cat' --model gpt2 --layer decoder.0.ffn",
        "score 'Once upon' --model gpt2",
        "heads 'The cat'",
        "loss 'The cat' --target cat",
        "near --index idx.npz animals",
    ],
)
def test_the_pipeline_of_a_hint_runs(line, folder):
    pipeline = refused(line, folder, 4).partition("for a text: ")[2].replace("DIR", "gpt2")
    run = process.bash(f"{pipeline} -f json", cwd=folder)
    assert run.code == 0 and run.out, run.err


@pytest.mark.parametrize(
    ("line", "message"),
    [("encode --model hub cat", "did you mean hub/snapshots/0a1b?"), ("show .", "did you mean ./gpt2?")],
)
def test_a_folder_that_is_no_model_is_answered_with_one_that_is(line, message, folder):
    assert refused(line, folder, 4).endswith(message)
