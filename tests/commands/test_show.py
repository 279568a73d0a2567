"""What is shown, as data and as pictures: every result honours the format that is asked for, or says which it can."""

import json
import os

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.formats import Record
from attnkit.interpret.tensor_statistics import row_statistics
from tests.places import STORY
from tests.process import run


def process(line, folder):
    """A command of attnkit as a process of its own."""
    return run(*(line.split(" ") if isinstance(line, str) else line), cwd=folder, env={"COLUMNS": "80"})


def written(line, folder):
    """What a command of attnkit that succeeds writes to standard output."""
    code, out, err = process(line, folder)
    assert code == 0, err
    return out


@pytest.fixture
def here(tmp_path):
    formats.save(attnkit.embed("a b", dim=4), str(tmp_path / "r.npz"))
    return tmp_path


TEXTS = [
    f"show {STORY} --pipeline decoder.0",
    "history r.npz",
    "decode r.npz --emit text",
]


@pytest.mark.parametrize("line", TEXTS)
def test_a_text_is_a_picture_where_one_is_asked_for(here, line):
    text = written(line, here).decode()
    assert written(f"{line} -f table", here).decode() == text
    for form, start in (("svg", b"<svg"), ("html", b"<!DOCTYPE html>")):
        drawn = written(f"{line} -f {form}", here)
        written(f"{line} -o made.{form}", here)
        assert drawn.startswith(start) and (here / f"made.{form}").read_bytes() == drawn
        assert text.split()[0].encode() in drawn
        if not line.startswith("history"):  # which is no stage
            assert written(["run", line, "--format", form], here) == drawn
    written(f"{line} -o made.sh", here)
    assert (here / "made.sh").read_text() == text


@pytest.mark.parametrize("line", TEXTS)
def test_a_text_is_refused_where_tensors_are_asked_for(here, line):
    for form in ("json", "npy", "npz", "safetensors"):
        problem = f"the result is text, which {form} cannot hold (expected table, svg, png, pdf or html)\n"
        for flags, name in ((f"-f {form}", "--format"), (f"-o out.{form}", f"out.{form}")):
            done = process(f"{line} {flags}", here)
            assert (done.code, done.out) == (2, b"")
            assert done.err == f"attnkit {line.split()[0]}: {name}: {problem}"
    assert sorted(os.listdir(here)) == ["r.npz"]


@pytest.mark.parametrize("suffix", [".pdf", ".csv", ".npz", ".json", ".png", ".gz"])
@pytest.mark.parametrize("line", TEXTS)
def test_no_suffix_of_another_format_is_ignored(here, line, suffix):
    done = process(f"{line} -o out{suffix}", here)
    if (here / f"out{suffix}").exists():  # it is a picture then
        assert suffix in (".pdf", ".png") and not (here / f"out{suffix}").read_bytes().isascii()
    else:
        assert done.code == 2 and f"out{suffix}: " in done.err


def test_the_control_characters_of_a_text_are_spelled_out_in_a_picture(here):
    words, table = ["\x1b[31mred", "b"], np.eye(2)
    formats.save(Record({"x": table, "table": table}, labels={"vocab": words}), str(here / "red.npz"))
    assert rb"\x1b[31mred" in written("decode red.npz --emit text -f svg", here).replace(b"&#160;", b" ")


def test_the_rows_of_a_tensor_by_hand():
    record = row_statistics(Record({"x": np.array([[3.0, 4.0], [0.0, -2.0]]), "ids": np.array([1, 2])}))
    np.testing.assert_allclose(record["x"], [[5, 3.5, 0.5, 3, 4], [2, -1, 1, -2, 0]])
    assert record.labels["statistic"] == ["norm", "mean", "std", "min", "max"] and [*record] == ["x"]


def test_a_run_without_recorded_steps_is_a_page_of_its_losses(tmp_path):
    (tmp_path / "run").mkdir()
    keys = {"gradient_norm": 1.0, "learning_rate": 0.1, "tokens": 8}
    lines = [json.dumps({"step": step, "loss": 4.0 / step} | keys) for step in (1, 2, 4)]
    (tmp_path / "run" / "training.jsonl").write_text("\n".join(lines) + "\n")
    done = run("explore", "run", "-o", "page.html", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "<h2>run" in page and "<path" in page
