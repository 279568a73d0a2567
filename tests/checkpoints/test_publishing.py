"""The inverse of reading a folder: published names and shapes from a configuration, tensors from parameters."""

import json
from pathlib import Path

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints.publishing import assemble_checkpoint, publish_parameters, published_tensors
from attnkit.errors import DataError
from tests.registry import drawn_names, open_model, place_of

FOLDERS = ["gpt2", "gpt2-scaled", "llama", "llama3", "mistral", "qwen2", "marian", "bert-mlm", "t5", "t5-gated",
           "transformer", "transformer-prenorm", "roberta", "xlm-roberta", "distilbert", "albert",
           "electra", "mpnet", "modernbert", "deberta-v3"]  # fmt: skip
RENAMED = {
    "dinov3",
    "dinov3-gated",
    "clip",
    "clip-old",
    "siglip",
    "siglip-wide",
    "waves/hubert",
    "bart-bare",
    "embeddinggemma",
}  # prefixes
KINDS = ("decoders", "state_spaces", "embedders", "vision", "sounds", "waves", "translators")
PUBLISHED = [*FOLDERS, *(name for kind in KINDS for name in drawn_names(kind) if name not in RENAMED)]


def stored(folder):
    checkpoint = open_model(folder)
    return checkpoint, {name: checkpoint.tensor(name) for name in checkpoint.tensors()}


def config_of(folder):
    return json.loads(Path(place_of(folder), "config.json").read_text())


@pytest.mark.parametrize("folder", PUBLISHED)
def test_names_and_shapes_are_the_published_ones(folder):
    checkpoint, tensors = stored(folder)
    used = {name: array.shape for name, array in tensors.items() if name not in checkpoint.params.unused()}
    assert published_tensors(config_of(folder)).shapes == used


@pytest.mark.parametrize("folder", PUBLISHED)
def test_parameters_become_the_tensors_that_they_were_read_from(folder):
    checkpoint, tensors = stored(folder)
    table = published_tensors(config_of(folder))
    rounding = 2.0**-22 if folder.startswith("gemma") else 0  # the stored gains are less by 1 than those of the model
    for name, array in publish_parameters(table, checkpoint.params).items():
        assert array.dtype == tensors[name].dtype
        np.testing.assert_allclose(array, tensors[name], rtol=0, atol=rounding, err_msg=name)


@pytest.mark.parametrize("folder", ["gpt2", "t5", "bert-mlm"])
def test_a_model_in_memory_is_that_of_the_folder(folder):
    checkpoint, tensors = stored(folder)
    ours = assemble_checkpoint(config_of(folder), {name: np.array(array) for name, array in tensors.items()})
    stack, ids = checkpoint.config.stacks[0], np.array([[3, 1, 4, 1, 5]])
    plan = checkpoint.config.plan(stack)
    of_folder, of_memory = (
        model.run(model.Model(one.config, one.params), plan, ids, model.Context()) for one in (checkpoint, ours)
    )
    np.testing.assert_array_equal(of_memory, of_folder)


def test_each_tensor_knows_its_parameters():
    table = published_tensors(config_of("marian"))
    assert table.parameters["model.shared.weight"] == ("encoder.embed.table", "decoder.embed.table", "head.w")
    assert table.names["decoder.1.cross.wq"] == ("model.decoder.layers.1.encoder_attn.q_proj.weight",)
    fused = published_tensors(config_of("gpt2")).parameters["transformer.h.0.attn.c_attn.weight"]
    assert fused == ("decoder.0.self.wq", "decoder.0.self.wk", "decoder.0.self.wv")


def test_a_missing_tensor_and_a_wrong_configuration():
    raw = config_of("gpt2")
    tensors = {name: np.zeros(shape, np.float32) for name, shape in published_tensors(raw).shapes.items()}
    del tensors["transformer.h.1.ln_2.bias"]
    with pytest.raises(DataError, match=r"no tensor 'h.1.ln_2.bias' \(beta of decoder.1.norm2\)"):
        assemble_checkpoint(raw, tensors)
    with pytest.raises(DataError, match=r"my.json: n_embd 16 is not divisible by n_head 3"):
        published_tensors(raw | {"n_head": 3}, "my.json")
