"""Qwen3-Next and Qwen3.5: logits, states and texts as transformers computes them, and padding that enters no state.

What the numbers are, and how they were made: tests/references/make_recall.py.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import DataError
from attnkit.generation.kv_cache_file import cache_record, read_cache
from attnkit.inputs import layers
from attnkit.records import Record
from tests.drawing import assert_near, drawn_models, write_model
from tests.generation.frozen_states import LENGTHS, Frozen, hidden, logits
from tests.process import run
from tests.registry import load_core

TABLE = {name: one for name, one in drawn_models("recall").items() if name.startswith("qwen3")}
LIMITS = {np.float64: 1e-12, np.float32: 4e-5}  # float32 in transformers itself is 2.5e-5 off
frozen = Frozen("recall")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return frozen.opener(tmp_path_factory.mktemp)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", TABLE)
def test_logits_are_those_of_transformers(opened, name, dtype):
    """Those of texts that end before, at and after the end of a chunk, and of batches padded on either side."""
    core, ending = opened(name, dtype), "f64" if dtype is np.float64 else "f32"
    for key in ("", "long."):
        assert_near(
            logits(core, frozen(name, f"{key}ids"))[:, -4:], frozen(name, f"{key}logits.{ending}"), LIMITS[dtype]
        )
    for count, expected in zip(LENGTHS, frozen(name, f"texts.logits.{ending}"), strict=True):
        assert_near(logits(core, frozen(name, "texts")[:, :count])[0, -1], expected, LIMITS[dtype])
    left, right = (frozen(name, f"{side}.mask").astype(bool) for side in ("batch", "right"))
    found = logits(core, frozen(name, "batch.ids"), left)[:, -4:]
    assert_near(found, frozen(name, f"batch.logits.{ending}"), LIMITS[dtype])
    found = logits(core, frozen(name, "right.ids"), right)[range(3), right.sum(axis=-1) - 1]
    assert_near(found, frozen(name, f"right.logits.{ending}"), LIMITS[dtype])


@pytest.mark.parametrize("name", TABLE)
def test_greedy_and_beams_write_the_same_tokens(opened, name):
    core, ids = opened(name), frozen(name, "ids")
    settings, prompt = model.SamplingConfig(limit=12, eos=core.config.special.eos), ids[0].tolist()
    text = model.generate(model.CachedDecoder(core), prompt, settings).ids
    best = model.beam_search(model.CachedDecoder(core), prompt, settings, 3)[0].ids
    for found, key in ((text, "greedy"), (best, "beam")):
        assert [*prompt, *found] == frozen(name, key)[0].tolist()[: len(prompt) + len(found)]


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_no_padding_enters_a_state(opened, side):
    """Each text of a padded batch, and what continues it, has the numbers of the text alone.

    A token of zeros would still decay the state: its gate a is not 0.
    """
    core, rng = opened("qwen3_next"), np.random.default_rng(0)
    rows = [slice(None), {"left": slice(4, None), "right": slice(0, 5), "both": slice(2, 4)}[side]]
    ids, mask = rng.integers(3, 60, (2, 9)), np.zeros((2, 9), bool)
    for row, real in enumerate(rows):
        mask[row, real] = True
    more, cache = rng.integers(3, 60, (2, 3)), model.KVCache()
    whole = [hidden(core, ids, mask, cache=cache)]
    longer = np.concatenate([mask, np.ones((2, 3), bool)], axis=1)
    states = {layer: [part.copy() for part in state] for layer, state in cache.states.items()}
    whole.append(hidden(core, more, longer, first=9, cache=cache))
    for row, real in enumerate(rows):
        alone = model.KVCache()
        assert_near(whole[0][row, real], hidden(core, ids[row : row + 1, real], cache=alone)[0], 1e-12)
        for layer, parts in states.items():
            for part, expected in zip(parts, alone.states[layer], strict=True):
                assert_near(part[row], expected[0], 1e-12)
        assert_near(whole[1][row], hidden(core, more[row : row + 1], cache=alone)[0], 1e-12)


@pytest.mark.parametrize("cut", [1, 3, 63, 64, 65, 199])
def test_a_text_that_is_cut_anywhere_has_the_numbers_of_the_whole(opened, cut):
    core, ids, cache = opened("qwen3_5_text"), frozen("qwen3_5_text", "texts"), model.KVCache()
    whole = hidden(core, ids)
    parts = [hidden(core, ids[:, :cut], cache=cache), hidden(core, ids[:, cut:], cache=cache)]
    assert_near(np.concatenate(parts, axis=1), whole, 1e-12)


def test_a_cache_in_a_file_continues_a_text(opened):
    core, ids = opened("qwen3_next"), frozen("qwen3_next", "ids")[0]
    cache, config = model.KVCache(), core.config
    hidden(core, ids[None, :9], cache=cache)
    record = cache_record(cache, config, ids[:9].tolist(), None)
    assert record.axes_of("decoder.0.recall.state") == ("batch", "head", "key_dim", "value_dim")
    assert record["decoder.0.recall.state"].shape == (1, 4, 6, 5)
    assert record["decoder.0.recall.v_window"].shape == (1, 3, 20)
    read, words = read_cache(record.arrays(), config, "float64", 1)
    assert words == ids[:9].tolist() and read.length == 9
    assert_near(hidden(core, ids[None, 9:], cache=read)[0], frozen("qwen3_next", "hidden.4")[0, 9:], 1e-12)


SMALL = {  # Qwen3.5-0.8B, as published
    "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_value_heads": 16,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 248320,
    "tie_word_embeddings": True, "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                        "mrope_interleaved": True, "mrope_section": [11, 11, 10]},
}  # fmt: skip


def test_states_are_as_large_as_the_keys_of_768_tokens():
    """18 states of 16 heads of 128 by 128 numbers, and 6 layers of 2 heads of 256 for each key and each value."""
    config = published_tensors(SMALL).config
    mixers = config.decoder.mixers
    assert mixers == ("recall", "recall", "recall", "self") * 6
    state = sum(np.prod([*parts["state"].values()]) for parts in config.states.values())
    windows = sum(np.prod([*size.values()]) for parts in config.states.values() for size in parts.values()) - state
    rules = config.attention_rules["decoder.3.self"]
    per_token = mixers.count("self") * 2 * rules.kv_heads * rules.head_dim
    assert (state, per_token, state // per_token, rules.rotary_dim) == (4_718_592, 6144, 768, 64)
    assert windows == 18 * 6144 * 3  # transformers keeps a fourth column, which no token reads


def test_layers_are_by_an_interval_and_by_older_words():
    config = {key: one for key, one in TABLE["qwen3_5_text"]["config"].items() if key != "layer_types"}
    for more, expected in (
        ({}, ("recall", "recall", "recall", "self")),
        ({"full_attention_interval": 2}, ("recall", "self", "recall", "self")),
        ({"layer_types": ["mamba", "attention", "mamba", "mamba"]}, ("recall", "self", "recall", "recall")),
    ):
        assert published_tensors(config | more).config.decoder.mixers == expected


def test_a_quarter_of_each_head_rotates_by_default():
    rope = {"rope_type": "default", "rope_theta": 1e4}
    for changes, width in (({}, 6), ({"partial_rotary_factor": 0.5}, 12)):
        raw = TABLE["qwen3_5_text"]["config"] | {"rope_parameters": rope | changes}
        assert published_tensors(raw).config.positions.rotary_dim == width


ROPE = TABLE["qwen3_5_text"]["config"]["rope_parameters"]


@pytest.mark.parametrize(("changes", "problem"), [
    ({"layer_types": ["linear_attention", "sliding_attention"] * 2}, "layer_types is not a list of 4 times linear_att"),
    ({"layer_types": ["linear_attention"] * 3}, "layer_types is not a list of 4 times linear_attention or full_attent"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not divisible by linear_num_key_heads 2"),
    ({"attn_output_gate": False}, r"attn_output_gate false is not supported \(use true\)"),
    ({"output_gate_type": "sigmoid"}, r'output_gate_type "sigmoid" is not supported \(use "swish"\)'),
    ({"mamba_ssm_dtype": "bfloat16"}, r'mamba_ssm_dtype "bfloat16" is not supported \(use "float32"\)'),
    ({"rope_parameters": ROPE | {"mrope_section": [2, 2, 2]}}, "is not a list of 3 numbers with the sum 3"),
    ({"rope_parameters": ROPE | {"mrope_interleaved": False}}, "mrope_interleaved false is not supported"),
    ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is '0'"),
])  # fmt: skip
def test_a_configuration_that_cannot_be_is_named(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(write_model("qwen3_5_text", tmp_path, kind="recall", **changes)))


def test_published_keys_of_other_programs_pass(tmp_path):
    more = {"attn_output_gate": True, "output_gate_type": "swish", "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1, "full_attention_interval": 4}  # fmt: skip
    config = open_checkpoint(str(write_model("qwen3_5_text", tmp_path, kind="recall", **more))).config
    assert config == published_tensors(TABLE["qwen3_5_text"]["config"]).config


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_the_text_model_says_whether_the_head_is_tied(name):
    """Else the whole model does."""
    raw = TABLE[name]["config"]
    for text, whole, is_tied in ((True, False, True), (False, True, False), (..., True, True), (..., False, False)):
        own = {key: one for key, one in (raw["text_config"] | {"tie_word_embeddings": text}).items() if one is not ...}
        table = published_tensors(raw | {"text_config": own, "tie_word_embeddings": whole})
        assert bool(table.specs["head"]["w"].tied) is is_tied


@pytest.mark.parametrize("name", [*TABLE, *drawn_models("state_spaces")])
def test_a_compiled_token_is_that_of_the_nodes(name):
    """Token by token, in float32, as with hooks, which read every stage."""
    core = load_core(name)
    ids = np.random.default_rng(0).integers(0, core.config.decoder.vocab, (2, 14))
    compiled, watched = model.CachedDecoder(core), model.CachedDecoder(core, hook=lambda site: None)
    for at in range(3, ids.shape[1]):
        new = ids[:, :3] if at == 3 else ids[:, at - 1 : at]
        assert_near(compiled(new), watched(new), LIMITS[np.float32])


@pytest.mark.parametrize("name", ["qwen3_5_moe_text", "qwen3_5_moe"])
def test_experts_in_one_tensor(tmp_path, name):
    """Published files have all experts of a layer in one tensor, gates before linear parts."""
    folder = tmp_path
    write_model(name, folder, np.float64, "recall")
    expected = logits(layers.core_model(open_checkpoint(str(folder))), frozen(name, "ids"))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    stacks = {}
    for one in [one for one in tensors if ".experts." in one]:
        mixture, _, rest = one.partition(".experts.")
        number, kind = rest.split(".")[:2]
        stacks.setdefault(f"{mixture}.experts", {}).setdefault(kind, {})[int(number)] = tensors.pop(one)
    for mixture, kinds in stacks.items():
        gates, linear, down = (
            np.stack([kinds[f"{kind}_proj"][number] for number in range(len(kinds["up_proj"]))])
            for kind in ("gate", "up", "down")
        )
        tensors[f"{mixture}.gate_up_proj"] = np.concatenate([gates, linear], axis=1)
        tensors[f"{mixture}.down_proj"] = down
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    packed = layers.core_model(open_checkpoint(str(folder)))
    assert_near(logits(packed, frozen(name, "ids")), expected, 0)


@pytest.mark.parametrize(("family", "count"), [("qwen3_next", 3), ("qwen3_5", 2), ("qwen3_5_moe_text", 2)])
def test_marks_are_letters_of_a_word_in_qwen_3_5(tmp_path, family, count):
    """x and the first byte of the mark after it are one token, unless the mark is a part of its own."""
    alphabet = dict.fromkeys(chr(one) for one in (*range(33, 127), *range(161, 173), *range(174, 324)))
    vocab = {one: at for at, one in enumerate([*alphabet, "xÌ"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("x Ì\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    assert len(open_tokenizer(str(tmp_path)).encode("x\u0301").ids) == count


SLIPS = {  # what a port gets wrong -> a layer's parameters, or its rules, as it has them
    "heads of values tiled": lambda recall, params: params | tile_heads(recall, params),
    "one tap too late": lambda recall, params: (
        params | {f"conv_{one}": np.roll(params[f"conv_{one}"], -1, axis=0) for one in "qkv"}
    ),
    "the norm by 1 + w": lambda recall, params: params | {"gamma": params["gamma"] + 1},
}


def tile_heads(recall, params):
    """Heads of values in the order v0k0, v0k1, v1k0, v1k1, in place of v0k0, v1k0, v0k1, v1k1."""
    order = np.arange(recall.heads).reshape(-1, recall.heads // recall.key_heads).T.ravel()
    columns = np.arange(recall.widths["v"]).reshape(recall.heads, -1)[order].ravel()
    by_head = {name: params[name][..., order] for name in ("wbeta", "wdt", "A_log", "dt_bias")}
    return (
        by_head | {name: params[name][..., columns] for name in ("wv", "conv_v", "wg")} | {"wo": params["wo"][columns]}
    )


@pytest.mark.parametrize("slip", SLIPS)
def test_the_texts_show_a_slip(opened, slip):
    core = opened("qwen3_next")
    params = {layer: SLIPS[slip](core.config.recall, dict(one)) if layer.endswith(".recall") else one
              for layer, one in core.params.items()}  # fmt: skip
    difference = logits(core._replace(params=params), frozen("qwen3_next", "ids"))[:, -4:] - frozen(
        "qwen3_next", "logits.f64"
    )
    assert np.abs(difference).max() > 0.05


@pytest.mark.parametrize("changes", [{"rule": "delta"}, {"feature": "identity"}, {"gate": ""}, {"scale": 1.0}])
def test_the_texts_show_another_rule(opened, changes):
    core = opened("qwen3_next")
    config = replace(core.config, recall=core.config.recall._replace(**changes))
    difference = logits(core._replace(config=config), frozen("qwen3_next", "ids"))[:, -4:] - frozen(
        "qwen3_next", "logits.f64"
    )
    limit = 1e-3 if changes == {"scale": 1.0} else 0.05  # the norm of what is read undoes a factor, but for its eps
    assert np.abs(difference).max() > limit


def read_arrays(path):
    with np.load(path) as file:
        return dict(file)


def test_recall_reads_a_layer_of_a_model(opened, tmp_path):
    """All of a text, its halves through a file of states, and the steps of its recurrence."""
    core, x = opened("qwen3_next", np.float32), np.random.default_rng(0).normal(size=(7, 24)).astype(np.float32)
    write_model("qwen3_next", tmp_path, np.float32, "recall")
    for name, part in (("x", x), ("first", x[:3]), ("second", x[3:])):
        np.save(tmp_path / f"{name}.npy", part)
    line = ["recall", "--model", ".", "--layer", "decoder.0.recall", "-f", "npz", "-o"]
    assert run(*line, "y.npz", "x.npy", "--keep", "all", cwd=tmp_path).code == 0
    assert run(*line, "y1.npz", "first.npy", "--state-out", "s.npz", cwd=tmp_path).code == 0
    assert run(*line, "y2.npz", "second.npy", "--state-in", "s.npz", cwd=tmp_path).code == 0
    step = next(one for one in core.config.plan("decoder") if one.layer == "decoder.0.recall")
    expected = model.run(core, [step._replace(adds_residual="")], x, model.Context())
    whole, *halves = (read_arrays(tmp_path / f"{name}.npz") for name in ("y", "y1", "y2"))
    assert_near(whole["x"], expected, 1e-6)
    assert_near(np.concatenate([one["x"] for one in halves]), expected, 2e-6)
    assert whole["states"].shape == (4, 7, 6, 5) and whole["q"].shape == (2, 7, 6)
    held = np.einsum(
        "htkv,htk->htv", whole["states"][:, :-1] * whole["decay"][:, 1:, None, None], np.repeat(whole["k"], 2, 0)[:, 1:]
    )
    assert_near(whole["held"][:, 1:], held, 1e-5)
    done = run("recall", "--model", ".", "--layer", "decoder.1.self", "x.npy", cwd=tmp_path)
    assert (done.code, done.err) == (
        2,
        "attnkit recall: --layer: decoder.1.self is not a layer for recall; did you mean decoder.3.recall?\n",
    )


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text"])
def test_a_layer_of_a_model_has_gradients_also_after_a_state(tmp_path, name):
    """Of its parameters under their names in the model; the convolutions read the window before x."""
    folder, state = str(write_model(name, tmp_path, np.float32, "recall")), str(tmp_path / "s.npz")
    x = np.random.default_rng(3).normal(size=(2, 7, 24))
    mask = np.ones((2, 3), bool)
    mask[1, :2] = False
    attnkit.recall(Record({"x": x[:, :4]}), model=folder, layer="decoder.0.recall", state_out=state)
    for options, record in (
        ("", {"x": x[:, 4:], "mask": mask}),
        (f"--state-in {state}", {"x": x[:, 4:]}),
    ):
        found = attnkit.grad(
            f"recall --model {folder} --layer decoder.0.recall {options}", Record(record), of="x[0,1,0]", check=True
        )
        assert found["check"][2] < 1e-6
        assert found["decoder.0.recall.conv_k"].any() and found["0.input.x"].any()
