"""GGUF files as models: what llama.cpp changes is undone, and the family reads what it reads from the folder."""

import dataclasses
import json
import re

import numpy as np
import pytest
import safetensors.numpy

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import fact_of
from attnkit.checkpoints.gguf import ModelFile, infer_part, infer_whole_rotation, open_model
from attnkit.errors import DataError
from attnkit.formats import gguf
from attnkit.formats.gguf_blocks import BLOCK_TYPES, decode_blocks
from tests.drawing import write_model
from tests.gguf_files import TYPE_NUMBERS, pack_gguf
from tests.gguf_models import ARCHITECTURES, convert, load_tiny, quantize_rows


def open_both(name, folder):
    """The checkpoints of a tiny model's folder and of its GGUF file."""
    config, tensors = load_tiny(name)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(
        {key: np.ascontiguousarray(one) for key, one in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "m.gguf").write_bytes(convert(name))
    return open_checkpoint(str(folder)), open_checkpoint(str(folder / "m.gguf"))


def plain(config):
    """A configuration without its rotation, tokens, the length of contexts and the head of encoders, as a dict."""
    values = dataclasses.asdict(
        dataclasses.replace(config, head=False, transform=False) if config.decoder is None else config
    )
    for key in ("rope", "local_rope", "size"):
        values["positions"].pop(key)
    return {key: value for key, value in values.items() if key not in ("special", "family")}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_are_those_of_the_folder_to_the_bit(name, tmp_path):
    folder, file = open_both(name, tmp_path)
    assert plain(file.config) == plain(folder.config)
    assert file.params.unused() == []
    has_head = folder.config.decoder is not None
    assert [*file.params] == [layer for layer in folder.params if has_head or "head" not in layer]
    for layer in file.params:
        assert [*file.params[layer]] == [*folder.params[layer]]
        for key, array in folder.params[layer].items():
            found = file.params[layer][key]
            limit = 1e-6 if key == "A_log" else 0  # the file has its exponential, rounded
            assert np.allclose(found, array, limit, limit), f"{layer}.{key}"


def logits(checkpoint, ids):
    """Logits of ids (1, T), which an encoder reads too if there is one; its states if there is nothing else."""
    core, memory = model.Model(checkpoint.config, checkpoint.params), None
    if checkpoint.config.encoder:
        memory = model.run(core, checkpoint.config.plan("encoder"), ids, model.Context())
    if memory is not None and not checkpoint.config.decoder:
        return memory
    x = model.run(core, checkpoint.config.plan("decoder"), ids, model.Context(memory=memory))
    return model.head_logits(core, x)


def assert_near(found, expected, limit=2e-6):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "bert-mlm"])
def test_logits_are_those_of_the_folder(name, tmp_path):
    folder, file = open_both(name, tmp_path)
    ids = np.random.default_rng(1).integers(3, 50, (1, 40))  # beyond the original contexts of scaled rotations
    assert_near(logits(file, ids), logits(folder, ids), 2e-5 if file.config.recall else 2e-6)


def test_the_block_that_predicts_further_tokens_is_left_out(tmp_path):
    """block_count counts it; its tensors have the names of a layer."""

    def with_further(stored):
        return stored | {name.replace("blk.3.", "blk.4."): one for name, one in stored.items() if "blk.3." in name} | {
            "blk.4.nextn.eh_proj.weight": np.ones((24, 48), np.float32)
        }  # fmt: skip

    plain_file, further = tmp_path / "plain.gguf", tmp_path / "further.gguf"
    plain_file.write_bytes(convert("qwen3_5_text"))
    keys = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    further.write_bytes(convert("qwen3_5_text", keys, older=with_further))
    one, other = (open_checkpoint(str(path)) for path in (plain_file, further))
    assert one.config == other.config and other.params.unused() == []
    ids = np.arange(3, 13)[None]
    assert np.array_equal(logits(one, ids), logits(other, ids))


def test_older_files_of_qwen3_next_have_one_projection(tmp_path):
    """ssm_in, the published in_proj_qkvz, in place of attn_qkv and attn_gate."""
    _, tensors = load_tiny("qwen3_next")

    def joined(stored):
        kept = {name: one for name, one in stored.items() if not name.endswith(("attn_qkv.weight", "attn_gate.weight"))}
        return kept | {
            f"blk.{at}.ssm_in.weight": tensors[f"model.layers.{at}.linear_attn.in_proj_qkvz.weight"] for at in range(3)
        }

    for name, older in (("new", None), ("old", joined)):
        (tmp_path / name).write_bytes(convert("qwen3_next", older=older))
    new, old = (open_checkpoint(str(tmp_path / name)) for name in ("new", "old"))
    for name in ("wq", "wk", "wv", "wg"):
        assert np.array_equal(new.params["decoder.2.recall"][name], old.params["decoder.2.recall"][name])


def test_heads_of_values_of_a_file_are_those_of_each_key_head_apart(tmp_path):
    """v0k0, v0k1, v1k0, v1k1 in the file, and v0k0, v1k0, v0k1, v1k1 as published: head h reads key head h // 2."""
    (tmp_path / "m.gguf").write_bytes(convert("qwen3_5_text"))
    _, tensors = load_tiny("qwen3_5_text")
    published = tensors["model.layers.0.linear_attn.dt_bias"]
    stored = open_gguf_tensor(tmp_path / "m.gguf", "blk.0.ssm_dt.bias")
    assert stored.tolist() == published[[0, 2, 1, 3]].tolist()
    assert (
        open_checkpoint(str(tmp_path / "m.gguf")).params["decoder.0.recall"]["dt_bias"].tolist() == published.tolist()
    )


def open_gguf_tensor(path, name):
    [part] = gguf.open_gguf(str(path)).parts
    return part.tensor(name)


def test_a_width_that_the_heads_of_values_do_not_share_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("qwen3_5_text", {"qwen35.ssm.inner_size": 21}))
    with pytest.raises(DataError, match=r"ssm.inner_size 21 is not divisible by ssm.time_step_rank 4"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_the_factors_of_falcon_h1_are_in_the_weights_of_its_file(tmp_path):
    """As FalconH1Model multiplies them: the logits are those of the folder, whose configuration states the factors."""
    folder = write_model("falcon_h1-gate", tmp_path, kind="state_spaces", time_step_limit=None)
    config = json.loads((folder / "config.json").read_text())
    z, x, b, c, dt = config["ssm_multipliers"]
    parts = np.repeat([z, x, b, c, dt], [42, 42, 10, 10, 6])[:, None] * config["ssm_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    first = config["attention_in_multiplier"]
    factors = {
        "attn_q.weight": first, "attn_k.weight": first * config["key_multiplier"], "attn_v.weight": first,
        "attn_output.weight": config["attention_out_multiplier"], "ssm_in.weight": parts,
        "ssm_out.weight": config["ssm_out_multiplier"], "ffn_gate.weight": gate, "ffn_down.weight": down,
        "token_embd.weight": config["embedding_multiplier"], "output.weight": config["lm_head_multiplier"],
    }  # fmt: skip
    factor_of = lambda name: factors.get(re.sub(r"blk\.[0-9]\.", "", name), 1.0)  # noqa: E731
    content = convert("falcon_h1-gate", quantize=lambda name, array: np.asarray(array * factor_of(name), np.float32))
    (tmp_path / "m.gguf").write_bytes(content)
    ids = np.random.default_rng(1).integers(3, 50, (1, 20))
    assert_near(logits(open_checkpoint(str(tmp_path / "m.gguf")), ids), logits(open_checkpoint(str(folder)), ids))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_quantized_matrices_are_decoded_and_then_changed_back(kind, tmp_path):
    rounded = {}

    def quantize(name, array):
        packed = quantize_rows(name, array, kind)
        if isinstance(packed, tuple):
            numbers = decode_blocks(np.frombuffer(packed[2], np.uint8), BLOCK_TYPES[TYPE_NUMBERS[kind]])
            rounded[name] = numbers.reshape(array.shape)
        return packed

    (tmp_path / "m.gguf").write_bytes(convert("wide", quantize=quantize))
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert {"blk.1.attn_q.weight", "blk.0.ffn_down.weight", "token_embd.weight"} <= {*rounded}
    by_head = rounded["blk.1.attn_q.weight"].reshape(4, 8, 2, 64)
    expected = np.concatenate([by_head[:, :, 0], by_head[:, :, 1]], axis=1).reshape(64, 64)
    assert np.array_equal(checkpoint.params["decoder.1.self"]["wq"], expected.T)
    assert np.array_equal(checkpoint.params["decoder.0.ffn"]["w2"], rounded["blk.0.ffn_down.weight"].T)
    assert np.array_equal(checkpoint.params["decoder.embed"]["table"], rounded["token_embd.weight"])


def test_no_tensor_is_read_before_it_is_needed(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(convert("wide", quantize=lambda name, array: quantize_rows(name, array, "Q8_0")))
    counts = []
    monkeypatch.setattr(gguf, "decode_blocks", lambda data, kind: counts.append(data.size) or decode_blocks(data, kind))
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert counts == []
    checkpoint.params["decoder.1.self"]
    assert len(counts) == 4  # q, k, v and the output


def test_parameters_that_are_not_kept_are_those_that_are(tmp_path):
    """Experts of gpt-oss, which are entries of one tensor, as `diff` reads them."""
    (tmp_path / "m.gguf").write_bytes(convert("gpt_oss"))
    params = open_checkpoint(str(tmp_path / "m.gguf")).params
    for layer, parameters in params.items():
        for name, array in parameters.items():
            assert np.array_equal(params.read(layer, name), array), f"{layer}.{name}"


def test_tensors_without_numbers_are_no_experts(tmp_path):
    """Of which a file could have any number in no bytes."""
    none = np.zeros((4000, 0, 0), np.float32)
    content = convert("mixtral", quantize=lambda name, array: none if "_exps" in name else array)
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(DataError, match=r"tensor 'blk\.0\.ffn_\w+_exps\.weight' has shape \(4000, 0, 0\)"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_pooling_of_another_type(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("bert-mlm", {"bert.pooling_type": "mean"}))
    with pytest.raises(DataError, match=r"bert\.pooling_type is 'mean' \(expected a whole number from 0\)"):
        assert open_model(str(tmp_path / "m.gguf"), fact_of)[2].pool


FAULTS = {
    "another architecture": ("llama", {"general.architecture": "mamba"}, "architecture 'mamba' is not known"),
    "no architecture": ("llama", {"general.architecture": ...}, "no general.architecture: not the file of a model"),
    "a key that is not read": ("llama", {"llama.attention.scale": 0.5}, "llama.attention.scale is not supported"),
    "no layers": ("llama", {"llama.block_count": ...}, "llama.block_count is missing (expected a whole number)"),
    "too many layers": ("llama", {"llama.block_count": 3}, "no tensor 'layers.2."),
    "layers without end": ("llama", {"llama.block_count": 2**31}, "num_hidden_layers 2147483648, and only"),
    "no heads": (
        "llama",
        {"llama.attention.head_count": 0},
        "llama.attention.head_count is '0'",
    ),
    "heads that do not divide": ("llama", {"llama.attention.head_count": 5}, "not divisible"),
    "heads a text": (
        "llama",
        {"llama.attention.head_count": "4"},
        "head_count is '4' (expected a whole",
    ),
    "heads by layer": ("llama", {"llama.attention.head_count_kv": [2, 1]}, "head_count_kv is [2, 1] (expected a"),
    "part of a head": ("llama", {"llama.rope.dimension_count": 4}, "rope.dimension_count is 4 (expected the width"),
    "another width of values": ("llama", {"llama.attention.value_length": 4}, "value_length is 4 (expected 8"),
    "unknown scaling": ("llama", {"llama.rope.scaling.type": "su", "llama.rope.scaling.factor": 2.0}, "rope_type 'su'"),
    "factor nan": ("llama", {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float("nan")}, "factor"),
    "token id a list": ("llama", {"tokenizer.ggml.bos_token_id": [1, 2.5]}, "bos_token_id is "),
    "token id a text": ("llama", {"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id"),
    "another rule of routers": ("mixtral", {"llama.expert_gating_func": 2}, "expert_gating_func 2 is not supported"),
    "fewer experts": ("mixtral", {"llama.expert_count": 4}, "expert_count is 4, and the outputs of the routers are 5"),
    "experts without end": (
        "gpt_oss",
        {"gpt-oss.expert_count": 2**31 - 1},
        "expert_count is 2147483647 (expected",
    ),
    "a million experts": (
        "mixtral",
        {"llama.expert_count": 10**6},
        "expert_count is 1000000 (expected a whole",
    ),
    "scale a list": (
        "granite",
        {"granite.logit_scale": [1.0, 2.0]},
        "granite.logit_scale is [1.0, 2.0] (expected",
    ),
    "scaling a number": ("llama", {"llama.rope.scaling.type": 3}, "llama.rope.scaling.type is 3 (expected a text)"),
    "parts by layer": ("llama", {"split.count": [1, 2]}, "split.count is [1, 2] (expected a whole number from 0)"),
    "architecture a list": (
        "llama",
        {"general.architecture": ["a"]},
        "general.architecture is a list of 1 text",
    ),
    "windows as text": (
        "olmo3",
        {"olmo2.attention.sliding_window_pattern": "x"},
        "is 'x' (expected a list of true",
    ),
    "no experts": ("gemma2", {"gemma2.expert_count": 4}, "the outputs of the routers are none"),
    "width 0": ("phi3", {"phi3.embedding_length": 0}, "embedding_length 0"),
    "shared keys": (
        "bloom",
        {"bloom.attention.head_count_kv": 2},
        "head_count_kv is 2 (expected 6, as bloom.att",
    ),
    "a window in both directions": ("gpt_oss", {"gpt-oss.attention.causal": False}, "causal false is not supported wi"),
    "a direction as a number": ("llama", {"llama.attention.causal": 0}, "llama.attention.causal is 0 (expected"),
    "two rotations": (
        "olmo3",
        {"olmo2.rope.freq_base_swa": 9.0},
        "freq_base_swa is 9.0 (expected 5000.0, as olmo2",
    ),
    "a router of DeepSeek": ("deepseek_v2", {"deepseek2.expert_gating_func": 4}, "expert_gating_func 4 is not support"),
    "a head all rotated": ("deepseek_v2", {"deepseek2.rope.dimension_count": 10}, "qk_nope_head_dim is '0'"),
}


def one_tensor_of_each_expert(stored):
    """Mixtral in files before 2024-04."""
    found = {}
    for name, array in stored.items():
        bare = name.replace("_exps.weight", "")
        found |= {name: array} if bare == name else {f"{bare}.{at}.weight": one for at, one in enumerate(array)}
    return found


def keys_and_values_in_one(stored):
    """DeepSeek in files before 2025-04."""
    found = {name: array for name, array in stored.items() if "attn_k_b" not in name and "attn_v_b" not in name}
    for name in stored.keys() - found.keys():
        if "attn_k_b" in name:
            both = [stored[name].swapaxes(1, 2), stored[name.replace("k_b", "v_b")]]
            found[name.replace("k_b", "kv_b")] = np.concatenate(both, axis=1).reshape(-1, both[0].shape[2])
    return found


WIDTHS = dict.fromkeys(("deepseek2.attention.key_length_mla", "deepseek2.attention.value_length_mla"), ...)
OLDER = {
    "mixtral": (one_tensor_of_each_expert, {}),
    "deepseek_v3": (
        keys_and_values_in_one,
        {"deepseek2.attention.key_length": 10, "deepseek2.attention.value_length": 3, **WIDTHS},
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_files_are_read_as_newer_ones(name, tmp_path):
    older, changes = OLDER[name]
    (tmp_path / "older.gguf").write_bytes(convert(name, changes, older=older))
    (tmp_path / "newer.gguf").write_bytes(convert(name))
    found, expected = (open_checkpoint(str(tmp_path / f"{age}.gguf")) for age in ("older", "newer"))
    assert found.config == expected.config
    for layer in expected.params:
        for key, array in expected.params[layer].items():
            assert np.array_equal(found.params[layer][key], array), f"{layer}.{key}"


def test_a_stated_factor_of_a_scaled_rotation_is_read(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("olmo3", {"olmo2.rope.scaling.yarn_attn_factor": 1.25}))
    assert open_checkpoint(str(tmp_path / "m.gguf")).config.positions.rope["attention_factor"] == 1.25


def test_a_decoder_that_attends_in_both_directions_is_an_encoder(tmp_path):
    for name, value in (("both", False), ("causal", True)):
        (tmp_path / f"{name}.gguf").write_bytes(convert("llama", {"llama.attention.causal": value}))
    both, causal = (open_checkpoint(str(tmp_path / f"{name}.gguf")).config for name in ("both", "causal"))
    assert (both.stacks, causal.stacks) == (("encoder",), ("decoder",))
    assert both.encoder == dataclasses.replace(causal.decoder, causal=False)


def test_a_file_without_key_value_heads_has_as_many_as_heads(tmp_path):
    """As to llama.cpp, unlike a config.json of Qwen2 without them."""
    (tmp_path / "m.gguf").write_bytes(convert("qwen2", {"qwen2.attention.head_count_kv": ...}))
    problem = r"self_attn.k_proj.weight"
    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(tmp_path / "m.gguf"))
    reader, _, _ = open_model(str(tmp_path / "m.gguf"), fact_of)
    assert reader.get_int("num_key_value_heads") == reader.get_int("num_attention_heads")


def test_a_tensor_of_a_pair_that_is_missing(tmp_path):
    """The linear parts of gpt-oss, which are published beside its gates."""

    def shorten(name, array):
        return array[:, :-1] if name == "blk.2.ffn_up_exps.weight" else array

    (tmp_path / "m.gguf").write_bytes(convert("gpt_oss", quantize=shorten))
    with pytest.raises(DataError, match=r"does not fit 'blk\.2\.ffn_up_exps\.weight'"):
        open_checkpoint(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", FAULTS)
def test_files_that_are_no_model(name, tmp_path):
    model_name, changes, problem = FAULTS[name]
    (tmp_path / "m.gguf").write_bytes(convert(model_name, changes))
    with pytest.raises(DataError) as caught:
        checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
        [checkpoint.params[layer] for layer in checkpoint.params]
    assert str(caught.value).startswith(f"{tmp_path}/m.gguf: ") and problem in str(caught.value), caught.value


def test_a_model_in_two_parts(tmp_path):
    """The tensors of a layer may be in different parts, and gpt-oss joins two of them."""
    for number in (0, 1):
        keys = {"split.no": number, "split.count": 2}
        content = convert("gpt_oss", keys, chosen=lambda at, number=number: at % 2 == number)
        (tmp_path / f"m-{number + 1:05}-of-00002.gguf").write_bytes(content)
    (tmp_path / "whole.gguf").write_bytes(convert("gpt_oss"))
    parts, whole = (open_checkpoint(str(tmp_path / name)) for name in ("m-00001-of-00002.gguf", "whole.gguf"))
    assert len(parts.params.weights.files) == 2
    for layer in whole.params:
        for key, array in whole.params[layer].items():
            assert np.array_equal(parts.params[layer][key], array), f"{layer}.{key}"


def opened_file(tmp_path, model, **changes):
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    (tmp_path / "m.gguf").write_bytes(convert(model, keys))
    return ModelFile(gguf.open_gguf(str(tmp_path / "m.gguf")))


@pytest.mark.parametrize(
    ("heads", "length", "width"), [(1, ..., 24), (4, ..., 6), (4, 5, 5), (0, ..., None), (5, ..., None)]
)
def test_the_width_of_a_head(heads, length, width, tmp_path):
    keys = {
        "llama__embedding_length": 24,
        "llama__attention__head_count": heads,
        "llama__attention__key_length": length,
    }
    file = opened_file(tmp_path, "llama", **keys)
    if width is None:
        with pytest.raises(DataError, match=rf"embedding_length 24 is not divisible by attention.head_count {heads}"):
            file.head_dim()
    else:
        assert file.head_dim() == width


YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, None),
        ({"rope__scaling__type": "linear"}, None),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0, "rope__scaling__attn_factor": 0.5},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (YARN, {"rope_type": "yarn", "factor": 4.0}),
        (
            YARN
            | {
                "rope__scaling__original_context_length": 16,
                "rope__scaling__yarn_beta_fast": 32.0,
                "rope__scaling__yarn_beta_slow": 2.0,
                "rope__scaling__attn_factor": 0.5,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 2.0,
                "attention_factor": 0.5 * (1 + 0.1 * 1.3862943611198906),
            },
        ),
        (
            YARN | {"rope__scaling__yarn_attn_factor": 1.25, "rope__scaling__attn_factor": 0.5},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25},
        ),
    ],
)
def test_the_scaling_of_a_rotation(keys, expected, tmp_path):
    """llama.cpp multiplies the factor of YaRN's attention by 1 + 0.1 ln(factor) itself."""
    file = opened_file(tmp_path, "llama", **{f"llama__{key}": value for key, value in keys.items()})
    found = file.rotation().get("rope_scaling")
    assert (found and found | {"attention_factor": 1}) == (expected and expected | {"attention_factor": 1})
    if expected and "attention_factor" in expected:
        assert found["attention_factor"] == pytest.approx(expected["attention_factor"], rel=1e-12)


@pytest.mark.parametrize(
    ("count", "expected"), [(..., {}), (6, {"part": 1.0}), (2, {"part": pytest.approx(1 / 3, rel=1e-15)})]
)
def test_the_part_of_a_head_that_is_rotated(count, expected, tmp_path):
    keys = {"llama__rope__dimension_count": count, "llama__attention__key_length": 6}
    file = opened_file(tmp_path, "llama", **keys)
    found = infer_part(file, "part")
    assert found == expected and int(found.get("part", 0) * 6) == (0 if count is ... else count)
    if count == 2:
        with pytest.raises(DataError, match=r"rope.dimension_count is 2 \(expected the width of a head, 6\)"):
            infer_whole_rotation(file)
    else:
        assert infer_whole_rotation(file) == {}


@pytest.mark.parametrize("shape", [None, (60,), (60, 4, 2)])
def test_a_file_without_a_table_of_embeddings_is_no_model(shape, tmp_path):
    name = "token_embd.weight"
    tensors = {name: np.zeros(shape, np.float32)} if shape else {}
    (tmp_path / "m.gguf").write_bytes(pack_gguf({"general.architecture": "llama"}, tensors))
    with pytest.raises(DataError, match=f"no table of embeddings '{name}'"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_special_tokens_are_those_of_the_keys(tmp_path):
    stated = {"bos": 3, "eos": 4, "padding": 5, "eot": 6}
    keys = {f"tokenizer.ggml.{name}_token_id": id for name, id in stated.items()}
    (tmp_path / "m.gguf").write_bytes(convert("llama", keys))
    special = open_checkpoint(str(tmp_path / "m.gguf")).config.special
    assert (special.bos, special.eos, special.pad) == (3, (4, 6), 5)
    (tmp_path / "m.gguf").write_bytes(convert("llama", dict.fromkeys(keys, ...)))
    bare = open_checkpoint(str(tmp_path / "m.gguf")).config.special
    assert (bare.bos, bare.eos, bare.pad) == (None, (), None)


def with_scales(stored):
    """All matrices of layers divided by powers of two, which their scales undo, and scales of inputs."""
    scaled = {}
    for name, array in stored.items():
        scaled[name] = array
        if name.startswith("blk.") and name.endswith(".weight") and array.ndim >= 2:
            scales = np.exp2(np.arange(len(array) if array.ndim == 3 else 1, dtype=np.float32) - 1)
            scaled[name] = array / scales.reshape(-1, *[1] * (array.ndim - 1)) if array.ndim == 3 else array / scales
            base = name.removesuffix("weight")
            scaled |= {f"{base}scale": scales, f"{base}input_scale": np.float32([0.3])}
    return scaled


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt_oss", "deepseek_v2", "gpt2"])
def test_a_weight_is_multiplied_by_its_scale(name, tmp_path):
    """As files of NVFP4 have them: one for a matrix, or one for each expert."""
    (tmp_path / "a.gguf").write_bytes(convert(name))
    (tmp_path / "b.gguf").write_bytes(convert(name, older=with_scales))
    plain, scaled = (open_checkpoint(str(tmp_path / f"{one}.gguf")) for one in "ab")
    assert scaled.params.unused() == [] and [*scaled.params] == [*plain.params]
    for layer in plain.params:
        for key, array in plain.params[layer].items():
            assert np.array_equal(scaled.params[layer][key], array), f"{layer}.{key}"
            assert np.array_equal(scaled.params.read(layer, key), array), f"{layer}.{key}"


@pytest.mark.parametrize("scale", [np.ones(2), np.ones((1, 1))])
def test_a_scale_of_another_shape(scale, tmp_path):
    changed = convert("llama", older=lambda stored: {**stored, "blk.0.attn_q.scale": scale})
    (tmp_path / "m.gguf").write_bytes(changed)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    with pytest.raises(DataError, match=r"m\.gguf: tensor 'blk\.0\.attn_q\.scale' has shape .* \(expected \(1\), or"):
        checkpoint.params["decoder.0.self"]


def test_a_scale_without_its_weight_is_not_read(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("llama", older=lambda stored: {**stored, "blk.0.x.scale": np.ones(1)}))
    assert open_checkpoint(str(tmp_path / "m.gguf")).params.unused() == ["blk.0.x.scale"]
