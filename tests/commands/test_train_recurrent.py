"""Training of recurrent models and of classifiers through the tool: bits, options, errors, what decode answers."""

import json

import numpy as np
import pytest

import attnkit
from attnkit import formats
from tests.commands.test_train import TEXT, files_of, lines_of
from tests.process import run

PAIRS = "".join(f"{a} {b}\t{b} {a}\n" for a in ("un", "le", "la") for b in ("chat", "chien", "oiseau", "livre")) * 2
LABELS = "".join(
    f"{label}\tthe {noun} was {word}\n"
    for label, words in {"good": ("fine", "warm", "great"), "bad": ("cold", "poor", "dull")}.items()
    for noun in ("film", "book", "meal", "song")
    for word in words
)
SMALL = ("--dim", "12", "--batch", "4", "--block", "16", "--every", "4")
RUNS = {
    "seq2seq": ("pairs.tsv", "--family", "seq2seq", "--weight-drop", "0.2", "--dropout", "0.1", "--bidirectional"),
    "feeding": ("pairs.tsv", "--family", "seq2seq", "--cell", "lstm", "--attention", "general", "--input-feeding"),
    "lstm": ("tales.txt", "--family", "lstm", "--weight-drop", "0.5", "--layers", "2"),
    "classifier": ("labels.tsv", "--family", "lstm", "--classify", "--layers", "1", "--dropout", "0.1"),
}


@pytest.fixture
def texts(tmp_path):
    """Files of the three kinds."""
    for name, text in {"tales.txt": TEXT, "pairs.tsv": PAIRS, "labels.tsv": LABELS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_goes_on_with_the_same_bits(texts, name):
    text, *options = RUNS[name]
    assert run("train", text, "-o", "whole", *options, *SMALL, "--steps", "9", cwd=texts).code == 0
    assert run("train", text, "-o", "parts", *options, *SMALL, "--steps", "5", cwd=texts).code == 0
    assert run("train", text, "--resume", "parts", "--steps", "9", cwd=texts).code == 0
    whole, parts = files_of(texts / "whole"), files_of(texts / "parts")
    assert whole["state.safetensors"] == parts["state.safetensors"]
    assert whole["model.safetensors"] == parts["model.safetensors"]
    assert json.loads(whole["training.json"])["recipe"].keys() == json.loads(parts["training.json"])["recipe"].keys()


def test_a_trained_seq2seq_translates(texts):
    options = ("--dim", "24", "--batch", "12", "--steps", "150", "--lr", "0.02", "--warmup", "10", "--valid", "0")
    assert run("train", "pairs.tsv", "-o", "model", "--family", "seq2seq", *options, cwd=texts).code == 0
    done = run("decode", "--model", "model", "un chat", "la livre", "--emit", "text", cwd=texts)
    assert done.out.decode().splitlines() == ["chat un", "livre la"]
    assert run("show", "model", "--list", cwd=texts).code == 0


def test_freezing_and_recording_name_the_layers_of_a_seq2seq(texts):
    options = ("--family", "seq2seq", *SMALL, "--freeze", "encoder,decoder.cross", "--record", "2")
    assert run("train", "pairs.tsv", "-o", "model", *options, "--steps", "3", cwd=texts).code == 0
    step = formats.load(str(texts / "model" / "step-2.npz"))
    for name in ("decoder.cross.weights", "decoder.0.rnn.state", "decoder.readout.output", "decoder.cross.wa"):
        assert np.isfinite(step[f"{name}.grad"]).all()
    assert run("train", "pairs.tsv", "-o", "first", *options, "--steps", "1", cwd=texts).code == 0
    one, other = (formats.load(str(texts / name / "model.safetensors")) for name in ("first", "model"))
    same = {name for name in one if np.array_equal(one[name], other[name])}
    assert {"encoder.rnn.weight_hh_l0", "attention.key.weight", "encoder.embedding.weight"} <= same
    assert "decoder.rnn.weight_hh_l0" not in same


def test_a_classifier_answers_with_labels(texts):
    options = ("--dim", "16", "--layers", "1", "--tokens", "bpe:300", "--steps", "120", "--lr", "0.02", "--every", "60")
    sample = ("--sample", "the film was warm", "--valid", "20%")
    done = run("train", "labels.tsv", "-o", "cls", "--family", "lstm", "--classify", *options, *sample, cwd=texts)
    *_, report, made = lines_of(done)
    assert report["accuracy"] == 1
    assert report["sample"].startswith("good ")
    assert made["steps"] == 120
    config = json.loads((texts / "cls" / "config.json").read_text())
    assert (config["id2label"], config["label2id"]) == ({"0": "bad", "1": "good"}, {"bad": 0, "good": 1})
    assert config["problem_type"] == "single_label_classification"
    record = json.loads(run("decode", "--model", "cls", "the film was cold", cwd=texts).out)
    assert record["labels"]["label"] == ["bad", "good"]
    assert record["tensors"]["x"]["axes"] == record["tensors"]["logits"]["axes"] == ["label"]
    probability = record["tensors"]["x"]["data"]
    assert probability[0] > 0.5
    assert abs(sum(probability) - 1) < 1e-6
    assert run("decode", "--model", "cls", "the film was cold", "--emit", "text", cwd=texts).out == b"bad\n"
    table = run("decode", "--model", "cls", "the film was cold", "-f", "table", cwd=texts).out.decode()
    assert "bad" in table


def test_a_batch_of_texts_has_the_labels_of_each_alone(texts):
    options = ("--family", "lstm", "--classify", *SMALL, "--steps", "4", "--layers", "2")
    assert run("train", "labels.tsv", "-o", "cls", *options, cwd=texts).code == 0
    reviews = ["the film was warm", "a book", "the meal"]
    alone = [json.loads(run("decode", "--model", "cls", one, cwd=texts).out)["tensors"]["x"]["data"] for one in reviews]
    rows = [run("decode", "--model", "cls", one, "-f", "json", cwd=texts).out for one in reviews]
    ids = [json.loads(row)["tensors"]["ids"]["data"] for row in rows]
    width = max(map(len, ids))
    mask = [[[place < len(row) for place in range(width)]] for row in ids]
    padded = [row + [0] * (width - len(row)) for row in ids]
    record = {"ids": np.array(padded), "mask": np.array(mask)}
    hidden = attnkit.encode(attnkit.Record(record), model=str(texts / "cls"))
    found = attnkit.decode(hidden, model=str(texts / "cls"))
    np.testing.assert_allclose(found["x"], alone, rtol=0, atol=1e-6)


def test_a_language_model_becomes_a_classifier_layer_by_layer(texts):
    assert run("train", "tales.txt", "-o", "lm", "--family", "lstm", "--layers", "2", *SMALL, "--steps", "4",
               cwd=texts).code == 0  # fmt: skip
    lines = (f"{'ab'[n % 2]}\tthe {'cat' if n % 2 else 'dog'} sat\n" for n in range(24))
    (texts / "own.tsv").write_text("".join(lines))
    options = ("--classify", "--batch", "4", "--unfreeze-every", "2", "--layer-decay", "0.4", "--every", "2",
               "--schedule", "slanted_triangular", "--valid", "25%")  # fmt: skip
    assert run("train", "own.tsv", "--from", "lm", "-o", "two", *options, "--steps", "2", cwd=texts).code == 0
    lm, two = (formats.load(str(texts / name / "model.safetensors")) for name in ("lm", "two"))
    same = {name for name in two if name in lm and np.array_equal(lm[name], two[name])}
    assert same == {name for name in lm if name.startswith(("encoder.", "rnns.0."))}
    assert set(two) - set(lm) == {"classifier.weight", "classifier.bias"}
    assert run("train", "own.tsv", "--from", "lm", "-o", "six", *options, "--steps", "6", cwd=texts).code == 0
    report = json.loads((texts / "six" / "training.jsonl").read_text().splitlines()[-1])
    assert {"accuracy", "held_out_loss"} <= set(report)
    again = run("train", "own.tsv", "--from", "two", "-o", "three", "--classify", "--steps", "1", cwd=texts)
    assert again.code == 0
