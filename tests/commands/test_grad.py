"""The tool grad as a process: formats, exit codes of --check, warnings, histories that can be run again."""

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import AttnkitWarning, UsageError
from tests import process
from tests.places import ROOT

X = np.random.default_rng(2017).standard_normal((3, 4))
PIPELINE = 'embed "The cat" --dim 8 | posenc | attend --heads 2 --seed 1 | layernorm | decode | loss --target "cat"'


def grad(tmp_path, *arguments, stdin=b""):
    return process.run("grad", *arguments, stdin=stdin, cwd=tmp_path, env={"COLUMNS": "100"})


def test_the_record_is_written_and_read_by_numpy(tmp_path):
    done = grad(tmp_path, PIPELINE, "-o", "g.npz")
    assert (done.code, done.out, done.err) == (0, b"", "")
    with np.load(tmp_path / "g.npz") as members:
        assert members["3.attend.wq"].shape == (8, 8) and members["1.embed.table"].shape == (2, 8)
    shown = process.run("show", "g.npz", "--name", "3.attend.weights", "--heatmap", cwd=tmp_path)
    assert shown.code == 0 and b"cat" in shown.out


def test_the_check_passes_or_fails_by_its_tolerance(tmp_path):
    passed = grad(tmp_path, PIPELINE, "--check", "-o", "g.npz")
    assert passed.code == 0 and passed.err.startswith("check: derivative ")
    failed = grad(tmp_path, PIPELINE, "--check", "--tolerance", "1e-30", "-o", "h.npz")
    assert failed.code == 1 and (tmp_path / "h.npz").exists()
    error = formats.load(str(tmp_path / "h.npz"))["check"]
    assert error.shape == (3,) and 0 < error[2] < 1e-6
    hidden = grad(tmp_path, PIPELINE, "--check", "--tolerance", "1e-30", "--only", "x", "-q", "-o", "j.npz")
    assert (hidden.code, hidden.err) == (1, "")
    other = grad(tmp_path, PIPELINE, "--check", "--seed", "5", "-o", "i.npz")
    assert other.code == 0 and other.err != passed.err


def test_standard_input_is_read_by_the_first_stage(tmp_path):
    done = grad(tmp_path, "layernorm | loss --target 1", "--grad-only", "0.input.x,x", stdin=b"[[1, 2, 4]]")
    assert done.code == 0 and b'"0.input.x"' in done.out
    again = grad(tmp_path, "layernorm - | loss --target 1", "--grad-only", "0.input.x,x", stdin=b"[[1, 2, 4]]")
    assert again.out.replace(b"layernorm - |", b"layernorm |") == done.out


def test_a_sum_is_named_in_a_warning(tmp_path):
    done = grad(tmp_path, "layernorm", "-o", "g.npz", stdin=b"[[1, 2, 4]]")
    assert done.err == (
        "attnkit grad: warning: x (1, 3) is not one number: "
        "these are gradients of the sum of its elements (--of x[…] chooses one)\n"
    )


@pytest.mark.parametrize(
    "line", [f"attnkit grad '{PIPELINE}'", "attnkit embed a --dim 4 | attnkit grad 'attend --seed 1'"]
)
def test_the_history_runs_again(tmp_path, line):
    done = process.bash(f"{line} -q -o g.npz && attnkit history g.npz --replay && attnkit history g.npz", cwd=tmp_path)
    assert done.code == 0 and b"identical bit for bit" in done.out and b"attnkit grad" in done.out, done.err


def test_python_gives_the_record_of_the_command_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    x, line = np.array([[1.0, 2.0], [3.0, 4.0]]), "attend --seed 1 | loss --target 1"
    np.save("x.npy", x)
    done = grad(tmp_path, line.replace("attend", "attend x.npy"), "--check", "-o", "g.npz")
    assert done.code == 0
    ours = attnkit.grad(line, x, check=True)
    assert capfd.readouterr().err == ""
    for record in (ours, attnkit.grad(line, "x.npy", check=True)):
        assert attnkit.diff(record.select([*record]), "g.npz").same
    assert [*attnkit.grad(line, x, grad_only="*.wq")] == ["1.attend.wq"]
    for bad in ((), (x,), ("attend --seed 1",)):
        with pytest.raises(UsageError, match=r"one pipeline: attnkit.grad|needs a record or an array"):
            attnkit.grad(*bad)


def test_the_gradient_of_one_element_is_that_of_the_softmax():
    logits = np.array([[1.0, 2.0, 0.5], [0.0, 3.0, 1.0]])
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    ours = attnkit.grad("softmax", logits, of="x[1,2]", check=True)
    expected = np.zeros_like(logits)
    expected[1] = probs[1, 2] * ((np.arange(3) == 2) - probs[1])  # p_2 (δ − p), row 1 alone
    np.testing.assert_allclose(ours["0.input.x"], expected, rtol=1e-12, atol=1e-16)
    assert ours["check"][2] < 1e-7


def test_an_element_is_of_what_the_last_stage_emits_and_by_words(tmp_path):
    whole = attnkit.grad('embed "a b c" --dim 4 | attend --seed 1 --emit weights', of="x[0,2,1]")
    for of in ("weights[0,2,1]", "weights[0,c,b]", "weights[:,2,b]"):
        ours = attnkit.grad('embed "a b c" --dim 4 | attend --seed 1', of=of)
        assert [*ours] == [*whole]
        np.testing.assert_array_equal(ours["2.attend.wq"], whole["2.attend.wq"])
    parts = [attnkit.grad("attend", X, of=f"x[{row}]")["0.input.x"] for row in range(len(X))]
    with pytest.warns(AttnkitWarning, match="is not one number"):
        total = attnkit.grad("attend", X)["0.input.x"]
    np.testing.assert_allclose(sum(parts), total, rtol=1e-9, atol=1e-12)


def test_random_scores_and_positions_have_gradients(tmp_path):
    for line, name in [
        ("attend --score additive --seed 1 | loss --target '0 1 2'", "1.attend.wa"),
        ("attend --score general --seed 1 | loss --target '0 1 2'", "1.attend.w"),
        ("posenc --kind learned --seed 3 --offset 1 | attend --seed 1 | loss --target '0 1 2'", "1.posenc.table"),
    ]:
        record = attnkit.grad(line, X, check=True)
        assert record[name].any() and record["check"][2] < 1e-7


@pytest.mark.parametrize(("name", "site"), [("wav2vec2", "samples"), ("whisper", "spectrogram")])
def test_a_sound_has_gradients_through_convolutions_and_their_norms(name, site):
    inputs = ROOT / "tests" / "transcripts" / "inputs"
    record = attnkit.grad(f"encode --model {inputs / name} --audio {inputs / 'tone.wav'}", of="x[1,2]", check=True)
    assert record[f"1.encode.{site}"].any()
    assert record["encoder.conv1.w"].any() and record["encoder.conv1.convolved"].any()
    assert record["check"][2] < 1e-7
