"""Embedders made of today's decoders: EmbeddingGemma as an encoder, Qwen3-Embedding by its last token."""

import json

import numpy as np
import safetensors.numpy

import attnkit
from attnkit.records import Record
from tests.drawing import write_model
from tests.places import arrays


def write_modules(folder, pooling, dense=()):
    """The files of sentence-transformers: a pooling, dense layers without biases, and a normalization."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"]
    modules = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for at, weight in enumerate(dense, start=2):
        place = folder / f"{at}_Dense"
        place.mkdir()
        sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False}
        activation = {"activation_function": "torch.nn.modules.linear.Identity"}
        (place / "config.json").write_text(json.dumps(sizes | activation))
        safetensors.numpy.save_file({"linear.weight": weight}, place / "model.safetensors")


def write_gemma(folder):
    return str(write_model("embeddinggemma", folder, np.float64, "embedders"))


def test_its_vectors_are_means_through_two_dense_layers(tmp_path):
    folder, rng = write_gemma(tmp_path), np.random.default_rng(0)
    wide, narrow = (rng.standard_normal(shape).astype(np.float32) for shape in ((31, 24), (24, 31)))
    write_modules(tmp_path, {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}, (wide, narrow))
    frozen = arrays("embedders")
    vector = frozen["embeddinggemma/hidden.4"][0].mean(axis=0) @ wide.T @ narrow.T
    found = attnkit.encode(Record({"ids": frozen["embeddinggemma/ids"][0]}), model=folder)["x"]
    np.testing.assert_allclose(found, vector / np.linalg.norm(vector), rtol=0, atol=2e-6)


def test_qwen3_embeds_a_text_as_the_state_of_its_last_token(tmp_path):
    folder = str(write_model("qwen3", tmp_path))
    write_modules(tmp_path, {"word_embedding_dimension": 24, "pooling_mode_lasttoken": True})
    frozen = arrays("decoders")
    last = frozen["qwen3/hidden.4"][0, -1]
    found = attnkit.encode(Record({"ids": frozen["qwen3/ids"][0]}), model=folder)["x"]
    np.testing.assert_allclose(found, last / np.linalg.norm(last), rtol=0, atol=2e-6)
