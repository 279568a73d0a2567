"""Every family: its choices, and its parameters out of folders as the reference implementations publish them."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.checkpoints import FAMILIES, open_checkpoint
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.marian_native import _read_vocabulary_sizes
from attnkit.errors import DataError
from attnkit.help import read_page
from attnkit.model.config import PatchConfig, SpecialTokens
from tests.drawing import drawn_models
from tests.places import MODELS
from tests.registry import DRAWN, FOLDERS


def opened(name):
    return open_checkpoint(str(MODELS / name))


def raw_tensors(name):
    tensors = {}
    for path in sorted((MODELS / name).glob("*.safetensors")):
        tensors |= safetensors.numpy.load_file(path)
    return tensors


def same(model, layer, name, expected):
    array = model.params[layer][name]
    assert array.dtype == expected.dtype and np.array_equal(array, expected), f"{layer}.{name}"


def copied(name, folder, tensors=None, **settings):
    """Copy a folder with other settings, `...` removing a key, and other tensors."""
    source = MODELS / name
    config = json.loads((source / "config.json").read_text()) | settings
    config = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(raw_tensors(name) if tensors is None else tensors, folder / "model.safetensors")
    return open_checkpoint(str(folder))


@pytest.mark.parametrize("name", FOLDERS)
def test_all_layers_of_every_folder_are_there_in_their_shapes(name):
    model = opened(name)
    assert list(model.params) == model.layers() and len(set(model.layers())) == len(model.layers())
    for layer in model.layers():
        for parameter, array in model.params[layer].items():
            assert array.shape == model.config.parameter_shape(layer, parameter)
            assert array.dtype in (np.float32, np.float64)
            assert model.tensor(f"{layer}.{parameter}") is array
        places = layer.endswith(".positions") and model.config.positions.kind == "sinusoidal"
        assert model.params[layer] or places, f"{layer} has no parameters"


def test_a_folder_for_every_family():
    published = sorted({*FOLDERS} - {"marian-native"})  # which has the configuration of Marian's own program
    families = {json.loads((MODELS / name / "config.json").read_text())["model_type"] for name in published}
    kinds = [drawn_models(kind) for kind in DRAWN]
    drawn = {model["config"]["model_type"] for models in kinds for model in models.values()}
    parts = {"gemma3", *(f"{family}_{tower}_model" for family in ("clip", "siglip") for tower in ("text", "vision"))}
    assert families | drawn | parts == set(FAMILIES)


def test_the_layers_come_in_the_order_of_a_forward_pass():
    assert opened("gpt2").layers()[:6] == [
        "decoder.embed", "decoder.positions", "decoder.0.norm1", "decoder.0.self", "decoder.0.norm2", "decoder.0.ffn",
    ]  # fmt: skip
    assert opened("bert-mlm").layers()[-3:] == ["head.dense", "head.norm", "head"]
    assert opened("t5").layers()[:3] == ["encoder.embed", "encoder.bias", "encoder.0.norm1"]
    marian = opened("marian").layers()
    assert marian[marian.index("decoder.embed") :][:9] == [
        "decoder.embed", "decoder.positions", "decoder.0.self", "decoder.0.norm1", "decoder.0.cross",
        "decoder.0.norm2", "decoder.0.ffn", "decoder.0.norm3", "decoder.1.self",
    ]  # fmt: skip


def test_gpt2_with_other_choices(tmp_path):
    config = opened("gpt2-scaled").config
    assert config.scale_by_layer and config.decoder.hidden == 40
    again = copied("gpt2", tmp_path, scale_attn_weights=False, activation_function="gelu", n_inner=None)
    assert (again.config.scale, again.config.activation) == (1.0, "gelu")


def test_tensors_that_no_layer_has_are_ignored(tmp_path):
    tensors = raw_tensors("gpt2")
    at = "transformer.h.0.attn"
    buffers = {f"{at}.bias": np.tri(8, dtype=np.bool_)[None, None], f"{at}.masked_bias": np.array(-1e4, np.float32)}
    model = copied("gpt2", tmp_path, tensors | buffers)
    assert model.parameter_count == opened("gpt2").parameter_count
    assert model.tensors()["transformer.h.0.attn.bias"] == ("bool", (1, 1, 8, 8))


@pytest.mark.parametrize("name", ["gpt2", "bert", "bert-mlm", "vit", "llama", "marian", "transformer", "openai-gpt"])
def test_prefixes_may_be_there_or_not(name, tmp_path):
    prefixes = {"gpt2": "transformer.", "openai-gpt": "transformer.", "vit": "vit.", "transformer": "model."}
    prefix = prefixes.get(name, "bert." if "bert" in name else "model.")
    tensors = raw_tensors(name)
    if any(key.startswith(prefix) for key in tensors):
        other = {key.removeprefix(prefix): array for key, array in tensors.items()}
    else:
        other = {prefix + key: array for key, array in tensors.items()}
    model, again = opened(name), copied(name, tmp_path, other)
    assert again.config == model.config and again.parameter_count == model.parameter_count
    for layer in model.layers():
        for parameter, array in model.params[layer].items():
            same(again, layer, parameter, array)


def test_roberta_has_positions_after_that_of_the_padding(tmp_path):
    with pytest.raises(DataError, match="max_position_embeddings 66: no positions are left after that of pad_token"):
        copied("roberta", tmp_path, pad_token_id=65)
    ids = np.full(65, 7)
    with pytest.raises(DataError, match="65 tokens, and this roberta model has 64 positions"):
        attnkit.encode(model=str(MODELS / "roberta"), ids=ids)
    assert attnkit.encode(model=str(MODELS / "roberta"), ids=ids[:64])["x"].shape == (64, 24)


def test_albert_stores_the_weights_that_its_layers_share_once():
    model, stored = opened("albert"), raw_tensors("albert")
    shared = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    for number in range(3):
        same(model, f"encoder.{number}.self", "wo", stored[f"{shared}.attention.dense.weight"].T)
        same(model, f"encoder.{number}.norm2", "beta", stored[f"{shared}.full_layer_layer_norm.bias"])
    assert np.shares_memory(model.params["encoder.0.ffn"]["w1"], model.params["encoder.2.ffn"]["w1"])
    assert model.parameter_count == sum(array.size for array in stored.values())
    same(model, "encoder.projection", "w", stored["albert.encoder.embedding_hidden_mapping_in.weight"].T)
    assert model.params["head.dense"]["w"].shape == (24, 12) and model.params["head"]["w"].shape[0] == 12
    assert model.layers()[:4] == ["encoder.embed", "encoder.positions", "encoder.embed_norm", "encoder.projection"]


def test_albert_with_groups_of_layers(tmp_path):
    model, stored = opened("albert-groups"), raw_tensors("albert-groups")
    assert model.config.encoder.layers == 6 and model.config.pooler
    for number, place in enumerate(["0.0", "0.1", "0.0", "0.1", "1.0", "1.1"]):
        group, inner = place.split(".")
        expected = stored[f"encoder.albert_layer_groups.{group}.albert_layers.{inner}.ffn.weight"].T
        same(model, f"encoder.{number}.ffn", "w1", expected)
    deep = copied("albert", tmp_path, num_hidden_layers=40)
    assert deep.config.encoder.layers == 40
    with pytest.raises(DataError, match="more than 4096 layers"):
        copied("albert", tmp_path, inner_group_num=10**6)


def test_modernbert_with_newer_keys_and_biases(tmp_path):
    model, stored = opened("modernbert-biased"), raw_tensors("modernbert-biased")
    same(model, "encoder.1.self", "bv", stored["model.layers.1.attn.Wqkv.bias"][48:])
    same(model, "encoder.0.ffn", "b3", stored["model.layers.0.mlp.Wi.bias"][40:])
    same(model, "head", "w", stored["decoder.weight"].T)
    config = model.config
    assert config.encoder.windows == (4, -1) and (config.activation, config.head_activation) == ("silu", "relu")
    assert (config.positions.rope["rope_theta"], config.positions.local_rope["rope_theta"]) == (50.0, 900.0)
    with pytest.raises(DataError, match="layer_types is not a list of 2 times full_attention or sliding_attention"):
        copied("modernbert-biased", tmp_path, layer_types=["full_attention"])
    with pytest.raises(DataError, match="rope_type 'spiral' is not supported"):
        rope = {"full_attention": {"rope_type": "spiral"}, "sliding_attention": {}}
        copied("modernbert-biased", tmp_path, rope_parameters=rope)


def test_deberta_with_shared_projections(tmp_path):
    model, stored = opened("deberta-v3"), raw_tensors("deberta-v3")
    same(model, "encoder.relative", "table", stored["deberta.encoder.rel_embeddings.weight"])
    same(model, "encoder.relative", "gamma", stored["deberta.encoder.LayerNorm.weight"])
    same(model, "encoder.1.self", "wq", stored["deberta.encoder.layer.1.attention.self.query_proj.weight"].T)
    same(model, "head.dense", "w", stored["cls.predictions.transform.dense.weight"].T)
    assert model.layers()[:4] == ["encoder.embed", "encoder.embed_norm", "encoder.relative", "encoder.0.self"]
    positions = model.config.positions
    assert (positions.kind, positions.buckets, positions.max_distance) == ("none", 8, 48)
    assert model.config.scale == (6 * 3) ** -0.5 and model.config.types == 0 and model.config.eps == 1e-7
    for settings, problem in [
        ({"conv_kernel_size": 3}, "conv_kernel_size 3 is not supported"),
        ({"embedding_size": 12}, "embedding_size 12 other than hidden_size is not supported"),
        ({"pos_att_type": "c2c"}, r"pos_att_type is 'c2c' \(expected c2p, p2c or both\)"),
        ({"position_buckets": 400}, "position_buckets 400 for 48 max_relative_positions"),
    ]:
        with pytest.raises(DataError, match=problem):
            copied("deberta-v3", tmp_path, **settings)


def test_vit(tmp_path):
    model, stored = opened("vit"), raw_tensors("vit")
    kernel = stored["vit.embeddings.patch_embeddings.projection.weight"]
    same(model, "encoder.embed", "w", kernel.reshape(len(kernel), -1).T)
    same(model, "encoder.embed", "cls", stored["vit.embeddings.cls_token"][0, 0])
    same(model, "encoder.positions", "table", stored["vit.embeddings.position_embeddings"][0])
    same(model, "encoder.0.norm2", "gamma", stored["vit.encoder.layer.0.layernorm_after.weight"])
    same(model, "head", "w", stored["classifier.weight"].T)
    config = model.config
    assert config.patches == PatchConfig(32, 32, 8, 8, 3) and config.positions.size == 17
    assert config.classes == ("cat", "dog", "river", "machine", "book") and config.norm_first
    again = copied("vit", tmp_path, image_size=[16, 64], patch_size=[8, 8], qkv_bias=False)
    assert again.config.patches == PatchConfig(16, 64, 8, 8, 3)
    assert set(again.params.specs["encoder.0.self"]) == {"wq", "wk", "wv", "wo", "bo"}


def test_t5_gated(tmp_path):
    model, stored = opened("t5-gated"), raw_tensors("t5-gated")
    same(model, "encoder.0.ffn", "w1", stored["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"].T)
    same(model, "encoder.0.ffn", "w3", stored["encoder.block.0.layer.1.DenseReluDense.wi_1.weight"].T)
    same(model, "head", "w", stored["lm_head.weight"].T)
    assert (model.config.activation, model.config.logit_scale) == ("gelu-tanh", 1.0)
    assert (model.config.encoder.layers, model.config.decoder.layers) == (3, 2)
    rewritten = {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    again = copied("t5-gated", tmp_path, **rewritten)
    same(again, "head", "w", stored["lm_head.weight"].T)
    without = {name: array for name, array in stored.items() if name != "lm_head.weight"}
    tied = copied("t5-gated", tmp_path, without, **rewritten)
    same(tied, "head", "w", stored["shared.weight"].T)
    assert tied.config.logit_scale == 1.0


def test_a_t5_encoder_alone(tmp_path):
    tensors = {name: array for name, array in raw_tensors("t5").items() if not name.startswith("decoder.")}
    model = copied("t5", tmp_path, tensors, is_encoder_decoder=False)
    assert model.config.decoder is None and model.layers()[-1] == "encoder.norm"


def test_marian_with_two_vocabularies(tmp_path):
    tensors = raw_tensors("marian")
    shared = tensors.pop("model.shared.weight")
    tensors |= {"model.encoder.embed_tokens.weight": shared[:-3].copy(), "model.decoder.embed_tokens.weight": shared}
    model = copied("marian", tmp_path, tensors, vocab_size=90, share_encoder_decoder_embeddings=False)
    assert (model.config.encoder.vocab, model.config.decoder.vocab) == (90, 93)
    same(model, "encoder.embed", "table", shared[:-3])
    same(model, "head", "w", shared.T)


def test_marian_in_half_precision_is_widened_once():
    model, stored = opened("marian-half"), raw_tensors("marian-half")
    assert model.tensor("final_logits_bias").dtype == np.float16
    same(model, "encoder.embed", "table", stored["model.shared.weight"].astype(np.float32))
    tables = [model.params["encoder.embed"]["table"], model.params["decoder.embed"]["table"], model.params["head"]["w"]]
    assert all(np.shares_memory(tables[0], table) for table in tables)


def test_rotations_are_read_from_either_form(tmp_path):
    old = opened("llama3").config.positions.rope
    assert old["rope_type"] == "llama3" and old["rope_theta"] == 500000.0 and old["factor"] == 8.0
    assert old["max_position_embeddings"] == 512
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "high_freq_factor": 4.0}
    rope |= {"low_freq_factor": 1.0, "original_max_position_embeddings": 64}
    new = copied("llama3", tmp_path, rope_theta=..., rope_scaling=..., rope_parameters=rope)
    assert new.config.positions.rope == old
    typed = copied("llama", tmp_path, rope_parameters=..., rope_theta=5.0, rope_scaling={"type": "linear", "factor": 2})
    rope = {"rope_type": "linear", "rope_theta": 5.0, "factor": 2}
    assert typed.config.positions.rope == rope | {"max_position_embeddings": typed.config.positions.size}
    plain = copied("llama", tmp_path, rope_parameters=..., rope_theta=..., rope_scaling=None)
    assert plain.config.positions.rope["rope_type"] == "default"
    assert plain.config.positions.rope["rope_theta"] == 10000.0


def test_llama_with_biases(tmp_path):
    tensors = raw_tensors("llama3")
    widths = {"q": 32, "k": 16, "v": 16, "o": 32, "gate": 40, "up": 40, "down": 32}
    for number in range(2):
        for letter, width in widths.items():
            part = "self_attn" if len(letter) == 1 else "mlp"
            tensors[f"model.layers.{number}.{part}.{letter}_proj.bias"] = np.full(width, number, np.float32)
    model = copied("llama3", tmp_path, tensors, attention_bias=True, mlp_bias=True)
    assert set(model.params["decoder.1.self"]) == {"wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo"}
    assert set(model.params["decoder.1.ffn"]) == {"w1", "w2", "w3", "b1", "b2", "b3"}


def test_mistral_and_qwen2_windows(tmp_path):
    assert opened("mistral").config.decoder.windows == (5, 5)
    assert copied("mistral", tmp_path, sliding_window=None).config.decoder.windows == ()
    assert copied("mistral", tmp_path, sliding_window=...).config.decoder.windows == (4095, 4095)
    assert opened("qwen2").config.decoder.windows == (-1, 5)
    assert copied("qwen2", tmp_path, use_sliding_window=False).config.decoder.windows == ()
    listed = copied("qwen2", tmp_path, layer_types=["sliding_attention", "full_attention"])
    assert listed.config.decoder.windows == (5, -1)
    assert {"bq", "bk", "bv"} <= set(opened("qwen2").params["decoder.0.self"])
    assert "bo" not in opened("qwen2").params["decoder.0.self"]


def test_transformer(tmp_path):
    model, stored = opened("transformer"), raw_tensors("transformer")
    prefix = next(name for name in stored if name.endswith("encoder.layers.0.linear1.weight"))
    prefix = prefix.removesuffix("encoder.layers.0.linear1.weight")
    fused = stored[f"{prefix}decoder.layers.2.multihead_attn.in_proj_weight"]
    same(model, "decoder.2.cross", "wk", fused[16:32].T)
    same(model, "decoder.2.cross", "bv", stored[f"{prefix}decoder.layers.2.multihead_attn.in_proj_bias"][32:])
    same(model, "decoder.2.norm3", "gamma", stored[f"{prefix}decoder.layers.2.norm3.weight"])
    same(model, "encoder.norm", "beta", stored[f"{prefix}encoder.norm.bias"])
    config = model.config
    assert not config.head and config.encoder.vocab == 0 and "encoder.embed" not in model.layers()
    assert opened("transformer-prenorm").config.norm_first
    words = {"embed.weight": np.ones((7, 16), np.float32)}
    full = copied("transformer", tmp_path, stored | words, vocab_size=7, bos_token_id=1, eos_token_id=2)
    assert full.config.embed_scale == 4.0 and full.config.special.start == 1 and full.layers()[-1] == "head"


def test_a_generation_of_its_own_says_more(tmp_path):
    tokens = {"eos_token_id": [3, 5], "bos_token_id": None, "pad_token_id": 7, "temperature": 0.6}
    (tmp_path / "generation_config.json").write_text(json.dumps(tokens))
    special = copied("llama", tmp_path, eos_token_id=2, bos_token_id=1).config.special
    assert special == SpecialTokens(eos=(3, 5), bos=1, pad=7)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": null, "image_token_id": 4, "boi_token_id": 5}')
    assert copied("llama", tmp_path, eos_token_id=2, bos_token_id=1).config.special == SpecialTokens(eos=(), bos=1)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1.5]}')
    with pytest.raises(DataError, match=f"^{tmp_path}/generation_config.json: eos_token_id is "):
        opened(tmp_path)
    (tmp_path / "generation_config.json").write_text("{}")
    with pytest.raises(DataError, match=f"^{tmp_path}/config.json: eos_token_id is "):
        copied("llama", tmp_path, eos_token_id=[1.5])


def test_shards_are_one_model(tmp_path):
    model = opened("gpt2-scaled")
    assert len(list((MODELS / "gpt2-scaled").glob("*.safetensors"))) == 3
    again = copied("gpt2-scaled", tmp_path)
    assert again.parameter_count == model.parameter_count and dict(again.tensors()) == dict(model.tensors())
    assert len(model.digests()) == 5


# families whose tensors mostly have the names of another
NAMED_AS = {
    "openai-gpt": "gpt2",
    **dict.fromkeys(("albert", "camembert", "deberta-v2", "electra", "mpnet", "roberta", "xlm-roberta"), "bert"),
}


def is_named(published, section):
    """Tell whether a section has a published name: with its layer's number or N, whole or as an ending in a list."""
    stem = published.removesuffix(".weight").removesuffix(".bias")
    inner = re.sub("0", "N", re.sub(r"[0-9]+", "0", stem), count=1)  # the first layer of a group
    for name in (stem, re.sub(r"[0-9]+", "N", stem, count=1), inner):
        parent, _, end = name.rpartition(".")
        if name in section or (f"{parent}." in section and f", .{end}" in section):
            return True
    return False


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "marian-native"])
def test_the_page_of_checkpoints_has_every_published_name(name):
    sections = re.split(r"^## ", read_page("checkpoints"), flags=re.MULTILINE)
    family = json.loads((MODELS / name / "config.json").read_text())["model_type"]
    [section] = [part for part in sections if family in re.split(r"[:,\n] ?", part.partition("\n")[0])]
    if family in NAMED_AS:
        section += next(part for part in sections if part.startswith(NAMED_AS[family]))
    for layer, parameters in opened(name).params.specs.items():
        for parameter, entry in parameters.items():
            assert any(is_named(stored, section) for stored in entry.names), f"{layer}.{parameter}: {entry.names}"


def test_a_model_of_images_has_the_head_and_the_pooler_that_are_stored(tmp_path):
    bare = {name: one for name, one in raw_tensors("vit").items() if not name.startswith(("classifier", "vit.pooler"))}
    model = copied("vit", tmp_path, bare, pooler_output_size=99)  # of no pooler
    assert (model.config.head, model.config.pooler) == (False, False) and model.layers()[-1] == "encoder.norm"
    width = model.config.width
    pooler = {"vit.pooler.dense.weight": np.eye(width, dtype=np.float32), "vit.pooler.dense.bias": np.zeros(width)}
    assert copied("vit", tmp_path, bare | pooler).config.pooler
    for changes in ({"pooler_output_size": 99}, {"pooler_act": "relu"}):
        with pytest.raises(DataError, match=f"a pooler other than tanh of size {width} is not supported"):
            copied("vit", tmp_path, bare | pooler, **changes)


@pytest.mark.parametrize("sizes", [[1, 93], [93], [93, 0], [93, 93, 93], [93, True], 93, [93, 9.5], None])
def test_the_vocabularies_of_marian_are_two_sizes(sizes):
    assert _read_vocabulary_sizes(ConfigReader({"dim-vocabs": [2, 93]}, "m")) == (2, 93)
    with pytest.raises(DataError, match="dim-vocabs is not a list of two whole numbers"):
        _read_vocabulary_sizes(ConfigReader({"dim-vocabs": sizes}, "m"))
