"""The figure of BLEU by sentence length with and without attention: its script, its stored numbers, and the page."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from attnkit.display.colors import SERIES
from attnkit.formats import open_source, read
from attnkit.records import Record
from tests.pictures import Picture
from tests.places import ROOT
from tests.process import run

SCRIPT = ROOT / "samples" / "data" / "road-to-attention.sh"
STORED = SCRIPT.with_suffix(".json")
MODELS = ["GRU", "GRU + attention", "Transformer"]


def record_of(path: Path) -> Record:
    with open_source(str(path)) as source:
        [record] = read(source)
    return record


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="the script pipes into jq")
def test_the_script_trains_translates_scores_and_draws(tmp_path):
    command = ["bash", str(SCRIPT), "road", "2", "200", "9", "1", "80"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    made, stored = record_of(tmp_path / "road" / "results.json"), record_of(STORED)
    assert made.labels == stored.labels
    assert {name: made[name].shape for name in made} == {name: stored[name].shape for name in stored}
    np.testing.assert_array_equal(made["parameters"], stored["parameters"])
    assert len((tmp_path / "road" / "transformer.txt").read_text().splitlines()) == 9
    assert (tmp_path / "road" / "bleu.svg").read_text().startswith("<svg")


def test_without_attention_the_score_falls_and_with_it_does_not():
    stored = record_of(STORED)
    assert stored.labels["model"] == MODELS
    plain, additive, transformer = stored["x"].T
    assert plain[0] > 80 and np.all(np.diff(plain) < 0) and plain[-1] < 20
    assert additive.min() > 99 and transformer.min() > 90
    assert stored["parameters"].max() < 1.03 * stored["parameters"].min()


def test_the_readme_has_the_stored_numbers():
    stored, rows = record_of(STORED), []
    for at, name in enumerate(MODELS):
        scores = [f"{score:.1f}" for score in stored["x"][:, at]]
        steps = [f"{time:.0f}" for time in stored["milliseconds"][:, at]]
        minutes = f"{stored['seconds'][at] / 60:.1f}"
        rows.append([name, f"{stored['parameters'][at]:,.0f}", minutes, *scores, ", ".join(steps)])
    table = re.findall(r"^\| (?:GRU|Transformer).*\|$", (ROOT / "attnkit/help/training.md").read_text(), re.MULTILINE)
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in table] == rows


def test_the_picture_is_drawn_from_the_stored_numbers(tmp_path):
    picture = tmp_path / "bleu.svg"
    flags = ["--curves", "--range", "0,100", "--title", "BLEU by sentence length", "-o", str(picture)]
    assert run("show", STORED, *flags).code == 0
    drawn, stored = (Picture(path.read_text()) for path in (picture, SCRIPT.with_suffix(".svg")))
    assert drawn.texts == stored.texts and {"BLEU by sentence length", "100", *MODELS} <= set(drawn.texts)
    for color in SERIES[:3]:
        np.testing.assert_allclose(drawn.curve(color), stored.curve(color), atol=0.5)


def test_every_length_of_the_stored_scores_is_of_at_most_ten_words():
    labels = json.loads(STORED.read_text())["labels"]
    assert labels["length"] == ["1-10", "11-20", "21-30", "31-40", "41-50"]
