"""Trained folders and transformers: the same ids and logits, frozen in tests/references/trained.npz."""

import json
from functools import cache

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.model.context import Model
from attnkit.model.passes.model_gradients import StackInputs, run_model
from tests.places import REFERENCES
from tests.process import run
from tests.references.make_trained import FILES, RUNS, SMALL

FAMILIES = pytest.mark.parametrize("name", RUNS)


@cache
def frozen():
    with np.load(REFERENCES / "trained.npz") as file:
        return {name: file[name] for name in file.files}


def folder_of(name):
    return REFERENCES / "trained" / name


def ids_of(name, text, side="source"):
    tokenizer = open_tokenizer(str(folder_of(name)), side)
    return tokenizer.encode(str(text), tokenizer.vocabulary).ids


@FAMILIES
def test_ids_are_those_of_transformers(name):
    given = frozen()
    assert ids_of(name, given[f"{name}.text"]) == given[f"{name}.ids"].tolist()
    if f"{name}.decoder_ids" in given:
        assert ids_of(name, given[f"{name}.target"], "target") == given[f"{name}.decoder_ids"][1:].tolist()


@pytest.mark.parametrize("name", [name for name in RUNS if name != "transformer"])
def test_logits_are_those_of_transformers(name):
    given, checkpoint = frozen(), open_checkpoint(str(folder_of(name)))
    model = Model(checkpoint.config, {layer: dict(checkpoint.params[layer]) for layer in checkpoint.params})
    last = checkpoint.config.stacks[-1]
    inputs = {last: StackInputs(given.get(f"{name}.decoder_ids", given[f"{name}.ids"])[None])}
    if f"{name}.decoder_ids" in given:
        inputs["encoder"] = StackInputs(given[f"{name}.ids"][None])
    logits, _ = run_model(model, inputs)
    np.testing.assert_allclose(logits[0], given[f"{name}.logits"], rtol=0, atol=1e-5)
    assert np.abs(given[f"{name}.logits"]).max() > 0.1


@FAMILIES
def test_the_same_command_writes_the_same_kind_of_folder(name, tmp_path):
    text, flags = RUNS[name]
    (tmp_path / f"{name}.txt").write_text(text)
    assert run("train", f"{name}.txt", "-o", "made", *SMALL, *flags, cwd=tmp_path).code == 0
    made, kept = tmp_path / "made", folder_of(name)
    others = {"training.json", "training.jsonl", "state.safetensors"}
    assert (
        {path.name for path in made.iterdir()} == {*FILES} | others == {path.name for path in kept.iterdir()} | others
    )
    for file in ("config.json", "tokenizer_config.json"):
        assert json.loads((made / file).read_text()) == json.loads((kept / file).read_text())
    if "unigram" not in " ".join(flags):  # whose scores may be rounded otherwise
        assert (made / "tokenizer.json").read_bytes() == (kept / "tokenizer.json").read_bytes()
    assert shapes_of(made) == shapes_of(kept)
    assert open_checkpoint(str(kept)).params.unused() == []


def shapes_of(folder):
    checkpoint = open_checkpoint(str(folder))
    return {name: (checkpoint.tensor(name).shape, checkpoint.tensor(name).dtype) for name in checkpoint.tensors()}
