"""Encoders with rotary positions: files of the code that was published with the models, and of transformers."""

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError
from attnkit.model.formulas.rotary import rope_frequencies
from tests.drawing import drawn_models, write_model

SIZES = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 37, "n_positions": 64, "layer_norm_epsilon": 1e-12}
KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
        "layer_norm_eps", "rope_parameters", "hidden_act", "head_dim")  # fmt: skip


def opened(name, folder, **changes):
    return open_checkpoint(str(write_model(name, folder, kind="embedders", **changes)))


def test_older_files_of_nomic_bert_are_read_by_their_own_keys(tmp_path):
    older = dict.fromkeys(KEYS, ...) | SIZES | {"rotary_emb_base": 1000, "activation_function": "swiglu"}
    assert opened("nomic_bert", tmp_path, **older).config == opened("nomic_bert", tmp_path).config
    other = opened("nomic_bert", tmp_path, **older | {"rotary_emb_base": 500}).config
    assert other.positions.rope["rope_theta"] == 500


def test_keys_of_transformers_count_before_the_older_ones(tmp_path):
    """Today's file of nomic-embed-text-v1.5 has both: 8192 positions in one, of which 2048 are in the other."""
    config = opened("nomic_bert", tmp_path, n_positions=8192, rotary_emb_base=77, n_layer=9).config
    assert config == opened("nomic_bert", tmp_path).config


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_experts", 8, "use 0"),
        ("prenorm", True, "use false"),
        ("activation_function", "gelu", 'use "swiglu"'),
        ("rotary_emb_fraction", 0.5, "use 1"),
        ("rotary_scaling_factor", 2, "use null"),
        ("position_embedding_type", "alibi", "use rotary"),
    ],
)
def test_another_computation_of_nomic_bert_is_refused(key, value, expected, tmp_path):
    with pytest.raises(DataError, match=rf"config\.json: {key} .* is not supported \({expected}\)"):
        opened("nomic_bert", tmp_path, **{key: value})


def test_the_model_type_new_is_gte_with_a_scaled_rotation(tmp_path):
    """NTKScalingRotaryEmbedding: the base times the factor, and each frequency by factor^(2/width) less."""
    older = {"model_type": "new", "rope_parameters": ..., "rope_theta": 20000, "pack_qkv": True}
    older |= {"rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope", "unpad_inputs": False}
    found = opened("gte", tmp_path, **older)
    assert found.config.family == "gte"
    width = found.config.encoder.head_dim
    frequencies, scale = rope_frequencies(width, found.config.positions.rope, 64)
    expected = (20000 * 8.0) ** (-np.arange(0, width, 2) / width) / 8.0 ** (2 / width)
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
    assert scale == 1
    with pytest.raises(DataError, match="rope_scaling type 'yarn' is not supported"):
        opened("gte", tmp_path, **older | {"rope_scaling": {"type": "yarn", "factor": 2.0}})
    with pytest.raises(DataError, match="logn_attention_scale true is not supported"):
        opened("gte", tmp_path, **older | {"logn_attention_scale": True})


def test_the_rotations_of_files_without_one(tmp_path):
    for name, theta in (("nomic_bert", 1e3), ("jina_embeddings_v3", 2e4), ("gte", 1.6e5), ("eurobert", 1e4)):
        folder = tmp_path / name
        folder.mkdir()
        assert opened(name, folder, rope_parameters=...).config.positions.rope["rope_theta"] == theta


def test_eurobert_without_classifier_pooling_reads_the_older_key(tmp_path):
    changes = {"classifier_pooling": ..., "architectures": ["EuroBertForSequenceClassification"]}
    pools = [opened("eurobert-late", tmp_path, **changes, **more).config.pooling
             for more in ({}, {"clf_pooling": "mean"}, {"clf_pooling": "bos"})]  # fmt: skip
    assert pools == ["late", "mean", "first"]


def test_the_table_has_both_kinds_of_segments_and_biases():
    """A model without segments, and one with biases only in its network and in its head for words."""
    models = drawn_models("embedders")
    assert "gte.embeddings.token_type_embeddings.weight" not in models["gte-labels"]["shapes"]
    assert {"lm_head.bias", "model.layers.0.mlp.up_proj.bias"} <= models["eurobert"]["shapes"].keys()
    assert "model.layers.0.self_attn.q_proj.bias" not in models["eurobert"]["shapes"]
