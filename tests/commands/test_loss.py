"""The tool loss: numbers by hand, words and ids, the last rows, distributions; the same in shell, run and Python."""

import json

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.records import Record, Tensor
from tests import process

WORDS = ["a", "am", "I", "<eos>"]
LOGITS = np.log([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])


def record_of(array=LOGITS, **more):
    labels = {"vocab": WORDS} | ({"token": ["<s>", "I", "am"]} if array.ndim == 2 else {})
    axes = ("batch", "token", "vocab")[3 - array.ndim :]
    return Record({}).with_tensors({"x": Tensor(array, axes, labels), **more})


def test_losses_by_hand():
    result = attnkit.loss(record_of(), target="I am a")
    assert result["target"].tolist() == [2, 1, 0]
    np.testing.assert_allclose(result["probability"], [0.3, 0.25, 0.7])
    np.testing.assert_allclose(result["loss"], -np.log([0.3, 0.25, 0.7]))
    assert result["x"] == pytest.approx(-np.log([0.3, 0.25, 0.7]).mean())
    assert result.labels_of("loss", 0) == ["<s>", "I", "am"]
    assert result.labels_of("target", 0) == ["I", "am", "a"]


@pytest.mark.parametrize(
    "target", ["I am a", "2 1 0", "2,1,0", [2, 1, 0], np.array([2.0, 1.0, 0.0]), Record({"x": np.array([2, 1, 0])})]
)
def test_words_and_ids_are_the_same_targets(target):
    assert attnkit.loss(record_of(), target=target)["target"].tolist() == [2, 1, 0]


def test_ids_of_the_record_and_of_a_file(tmp_path):
    ids = Tensor(np.array([2, 1, 0]), ("token",))
    assert attnkit.loss(record_of(ids=ids), target=":ids")["target"].tolist() == [2, 1, 0]
    np.save(tmp_path / "ids.npy", [2, 1, 0])
    result = attnkit.loss(record_of(), target=str(tmp_path / "ids.npy"))
    assert result["target"].tolist() == [2, 1, 0]
    assert list(result.history[-1]["files"]) == [str(tmp_path / "ids.npy")]


def test_words_that_are_numbers_are_words():
    logits = Tensor(LOGITS[:1], ("token", "vocab"), {"vocab": ["7", "0", "1", "2"]})
    assert attnkit.loss(Record({}).with_tensors({"x": logits}), target="0")["target"].tolist() == [1]


def test_characters_of_a_vocabulary_of_characters():
    logits = Tensor(LOGITS[:2], ("token", "vocab"), {"vocab": ["a", "b", " ", "c"]})
    assert attnkit.loss(Record({}).with_tensors({"x": logits}), target="ab")["target"].tolist() == [0, 1]


def test_fewer_targets_are_those_of_the_last_rows():
    result = attnkit.loss(record_of(), target="a")
    assert result["target"].tolist() == [-100, -100, 0]
    assert result["loss"].tolist()[:2] == [0, 0] and np.isnan(result["probability"][:2]).all()
    assert result["x"] == pytest.approx(-np.log(0.7))


def test_the_logits_of_a_record_precede_its_probabilities():
    probs = np.exp(LOGITS)
    record = record_of(probs, logits=Tensor(LOGITS, ("token", "vocab")))
    assert attnkit.loss(record, target="I am a")["x"] == attnkit.loss(record_of(), target="I am a")["x"]
    with pytest.warns(AttnkitWarning, match=r"the rows of x are distributions"):
        attnkit.loss(record_of(probs), target="I am a")


def test_ignored_targets_weights_and_reductions():
    weights = np.array([2.0, 1.0, 0.5, 1.0])
    losses = -np.log([0.3, 0.25, 0.7]) * [0.5, 1.0, 2.0]
    results = {name: attnkit.loss(record_of(), target="I am a", weights=weights, reduction=name)["x"]
               for name in ("none", "sum", "mean")}  # fmt: skip
    np.testing.assert_allclose(results["none"], losses)
    assert results["sum"] == pytest.approx(losses.sum())
    assert results["mean"] == pytest.approx(losses.sum() / 3.5)
    ignored = attnkit.loss(record_of(), target="I am a", ignore=1)
    assert ignored["loss"][1] == 0 and ignored["x"] == pytest.approx(-np.log([0.3, 0.7]).mean())


def test_a_table_with_weights_has_the_mean_of_x_alone(tmp_path):
    np.save(tmp_path / "logits.npy", np.log([[0.75, 0.25], [0.75, 0.25]]))
    flags = ["--target", "1 0", "--weights", "-", "-f", "table"]
    table = process.run("loss", str(tmp_path / "logits.npy"), *flags, stdin=b"[1, 3]").out.decode()
    losses = -np.log([0.25, 0.75]) * [3, 1]
    assert f"2 targets, total {losses.sum():.4f}, perplexity 2.3094\n" in table
    assert table.endswith(f"\n{losses.sum() / 4:.4f}\n")


def test_steps_add_the_expected_distribution_and_that_of_the_model():
    result = attnkit.loss(record_of(), target="I am", smoothing=0.2, steps=True)
    np.testing.assert_allclose(result["expected"], [[0] * 4, [0.05, 0.05, 0.85, 0.05], [0.05, 0.85, 0.05, 0.05]])
    np.testing.assert_allclose(result["probs"], np.exp(LOGITS))
    np.testing.assert_allclose(result["loss"], -(result["expected"] * LOGITS).sum(axis=-1))
    assert result.axes_of("expected") == ("token", "vocab")


def test_a_batch_takes_ids():
    batch = record_of(np.stack([LOGITS, LOGITS[::-1]]))
    result = attnkit.loss(batch, target=[[2, 1, 0], [0, 1, -100]])
    assert result["loss"].shape == (2, 3) and result.axes_of("target") == ("batch", "target")
    np.testing.assert_allclose(result["loss"][1], [-np.log(0.7), -np.log(0.25), 0])
    with pytest.raises(DataError, match=r"targets \(3,\): expected \(2, 3\), an id for each row"):
        attnkit.loss(batch, target="I am a")


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("I an a", UsageError, "target 'an' is not in the vocabulary; did you mean a"),
        ("I am a a", DataError, "4 targets for 3 rows of logits"),
        ("1 2 9", DataError, r"target 9 at \[2\] outside 0..3"),
        ([], DataError, "0 targets for 3 rows"),
        ([[1]], DataError, r"targets \(1, 1\): expected \(3,\)"),
        (None, UsageError, "needs --target"),
    ],
)
def test_errors(target, error, message):
    with pytest.raises(error, match=message):
        attnkit.loss(record_of(), target=target)


def test_words_without_a_vocabulary():
    with pytest.raises(UsageError, match="target 'I': the columns of the logits have no words"):
        attnkit.loss(np.zeros((1, 3)), target="I")
    assert attnkit.loss(np.zeros((1, 3)), target="2")["x"] == pytest.approx(np.log(3))


def test_halves_have_losses_in_float32():
    result = attnkit.loss(record_of(LOGITS.astype(np.float16)), target="I am a")
    assert {result[name].dtype.name for name in ("x", "loss", "probability")} == {"float32"}


def test_targets_from_standard_input(tmp_path):
    np.save(tmp_path / "logits.npy", LOGITS)
    done = process.run(
        "loss", str(tmp_path / "logits.npy"), "--target", "-", "--only", "target", "-f", "json", stdin=b"[2, 1, 0]"
    )
    assert json.loads(done.out)["tensors"]["target"]["data"] == [2, 1, 0], done.err


def test_padding_does_not_count():
    batch = np.stack([LOGITS, LOGITS])
    mask = Tensor(np.array([[[True, True, True]], [[True, False, False]]]), ("batch", "query", "key"))
    result = attnkit.loss(record_of(batch, mask=mask), target=[[2, 1, 0], [2, 1, 0]])
    assert result["target"].tolist() == [[2, 1, 0], [2, -100, -100]]
    assert result["x"] == pytest.approx(-np.log([0.3, 0.25, 0.7, 0.3]).mean())
    causal = Tensor(np.tri(3, dtype=bool), ("query", "key"))
    assert attnkit.loss(record_of(mask=causal), target="I am a")["target"].tolist() == [2, 1, 0]
