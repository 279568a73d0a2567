"""What newcomers type: lines of numbers, the home folder, a replay elsewhere, a page that is longer than the screen."""

import json
import os
import pty
import subprocess

import numpy as np
import pytest

from tests import process

MANY = "if each line has a number, paste -sd, makes one row of them"


@pytest.mark.parametrize("tool", ["attend", "layernorm", "mask"])
def test_numbers_on_lines_of_their_own(tool):
    run = process.run(tool, *["--causal"] * (tool == "mask"), stdin=b"1\n2\n3\n")
    assert run.code == 3 and run.err.endswith(f"; {MANY}\n")


def test_a_tilde_in_a_pipeline_is_the_home_folder(tmp_path):
    (tmp_path / "x.json").write_text("[[1, 3]]")
    run = process.run("run", "layernorm ~/x.json -o ~/y.npy", env={"HOME": str(tmp_path)})
    assert (run.code, run.err) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), [[-1, 1]], atol=1e-5)


def test_a_replay_in_another_folder_says_what_names_are_relative_to(tmp_path):
    (tmp_path / "x.json").write_text("[[1, 3]]")
    (tmp_path / "elsewhere").mkdir()
    assert process.run("layernorm", "x.json", "-o", "y.npz", cwd=tmp_path).code == 0
    run = process.run("history", "../y.npz", "--replay", cwd=tmp_path / "elsewhere")
    assert run.code == 4
    assert "names of files are relative to the folder in which the record was made" in run.err


def test_a_text_too_short_to_hold_out_a_part(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    run = process.run("train", "a.txt", "-o", "m", "--steps", "1", cwd=tmp_path)
    assert run.code == 3
    assert "6 characters are too few to hold out 5% of them; --valid 0 holds out nothing" in run.err


def test_rollout_notes_that_the_first_token_has_nearly_all():
    weights = np.zeros((1, 6, 6))
    weights[:, :, 0] = 1
    one = {"dtype": "float64", "shape": [1, 6, 6], "data": weights.tolist()}
    text = json.dumps({"tensors": {f"decoder.{layer}.self.weights": one for layer in range(5)}})
    run = process.run("rollout", stdin=text.encode())
    assert run.code == 0
    assert "97% of all tokens is the first token, on which most heads rest" in run.err


@pytest.mark.parametrize(("term", "is_paged"), [("xterm", True), ("dumb", False)])
def test_a_long_page_goes_through_the_pager(term, is_paged):
    leader, follower = pty.openpty()
    environment = process.environment(TERM=term, PAGER="sed -e s/^/PAGED:/", NO_COLOR="1")
    with subprocess.Popen(
        ["attnkit", "help", "attention"], stdin=follower, stdout=follower, stderr=follower, env=environment
    ) as running:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:  # as Linux says that it is closed
            pass
        assert running.wait() == 0
    os.close(leader)
    assert shown.startswith(b"PAGED:attention" if is_paged else b"attention")


def test_the_name_of_an_intermediate_as_an_output_file_is_noted(tmp_path):
    run = process.run("attend", "--output", "weights", stdin=b"[[1, 0], [0, 1]]", cwd=tmp_path)
    assert run.code == 0 and (tmp_path / "weights").exists()
    note = "attnkit attend: note: -o weights writes a file of that name; --emit weights makes the intermediate x\n"
    assert run.err == note


def test_a_single_report_of_a_training_has_points_and_no_curve(tmp_path):
    report = {"step": 3, "loss": 3.25, "held_out_loss": 3.5, "gradient_norm": 1.0, "learning_rate": 0.1, "tokens": 9}
    (tmp_path / "training.jsonl").write_text(json.dumps(report | {"bits_per_byte": 4.0}) + "\n")
    run = process.run("show", "training.jsonl", "-f", "table", cwd=tmp_path)
    assert run.code == 0 and "→" not in run.out.decode() and "3.25" in run.out.decode()
    assert process.run("show", "training.jsonl", "-o", "loss.svg", cwd=tmp_path).code == 0
    drawing = (tmp_path / "loss.svg").read_text()
    assert ">step<" in drawing and ">held_out_loss<" in drawing and drawing.count("<use ") == 2
