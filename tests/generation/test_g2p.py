"""A trained model: the GRU encoder-decoder of the package g2p-en, made the folder of a seq2seq model by a sample."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import save_file

import attnkit
from attnkit.checkpoints import open_checkpoint
from tests.places import ROOT

WORDS = json.loads((ROOT / "tests/references/g2p.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def g2p(tmp_path_factory):
    """The folder, with the weights as the package has them."""
    folder = tmp_path_factory.mktemp("g2p")
    weights, model = folder / "weights.npz", folder / "model"
    [package] = find_spec("g2p_en").submodule_search_locations
    subprocess.run([sys.executable, ROOT / "samples/data/make_g2p.py", package, weights, model], check=True)
    with np.load(weights) as arrays:
        save_file(dict(arrays), model / "model.safetensors")
    return open_checkpoint(str(model))


@pytest.mark.slow
def test_100_words_have_the_phonemes_of_the_packages_own_code(g2p):
    """One thread: products of one row on several cost more than they gain, where other tests run beside this one."""
    assert len(WORDS) == 500
    words = [*WORDS][::5]
    command = [
        sys.executable,
        "-m",
        "attnkit",
        "decode",
        "--model",
        g2p.folder,
        "--max-tokens",
        "20",
        "--emit",
        "text",
        "--batch",
        "-q",  # no warning of characters that the package lacks too
    ]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    lines = "\n".join(words)
    done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == [WORDS[word] for word in words]


def test_one_beam_is_greedy(g2p):
    word = "activationist"
    assert attnkit.decode(word, model=g2p, max_tokens=20, emit="text", beam=1) == WORDS[word]
