"""The keys of config.json: each that transformers reads is read, or refused by its name; others pass with a note.

The full configurations of transformers, and how they were made: tests/references/make_configs.py; the keys that its
code reads: make_keys.py.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import FAMILIES, Checkpoint, open_checkpoint
from attnkit.checkpoints.checkpoint import fact_of, import_family, read_family
from attnkit.checkpoints.config_reader import FIELDS, ConfigReader, read_preprocessor
from attnkit.checkpoints.harmless_keys import CACHED, COMPUTATIONS, KNOWN, OTHER_NAMES, OWN_FORMATS, note_unread
from attnkit.checkpoints.publishing import AllTensors, assemble_checkpoint, published_tensors
from attnkit.errors import AttnkitError, AttnkitNote, AttnkitWarning, DataError
from attnkit.model import RecurrentConfig
from attnkit.model.formulas.rotary import rope_frequencies
from tests.checkpoints.test_published import COUNTS_OF_EXPERTS, COUNTS_OF_LAYERS, made_small
from tests.drawing import draw_tensors, drawn_models
from tests.places import MODELS, REFERENCES
from tests.process import run
from tests.registry import FOLDERS

FULL = json.loads((REFERENCES / "configs.json").read_text())
KEYS = json.loads((REFERENCES / "keys.json").read_text())
CONFIGURED = [name for name in FOLDERS if name != "marian-native"]  # with a config.json
TEXTS_OF = ("gemma3", "qwen3_5", "qwen3_5_moe")  # models of images, of which the text model is read
TEXTS_IN = ("idefics3", "llava", "smolvlm")  # the same, whose text model is one of another family
WHOLE = ("clip", "siglip", *TEXTS_OF, *TEXTS_IN)  # with their keys in objects
DRAWN = {
    name: one
    for kind in ("decoders", "recall")
    for name, one in drawn_models(kind).items()
    if one["config"]["model_type"] not in WHOLE
}
SMALL = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1,
    "vocab_size": 9, "max_position_embeddings": 32,
}  # fmt: skip


def read(raw: dict[str, Any]) -> Checkpoint:
    """The model of a configuration, with weights drawn by their names."""
    shapes = published_tensors(raw).shapes
    return assemble_checkpoint(raw, draw_tensors(raw["model_type"], shapes))


@pytest.mark.parametrize("name", [name for name in FULL if name.split()[0] in FAMILIES])
def test_full_configurations_of_transformers_are_read(name: str) -> None:
    table = published_tensors(FULL[name])
    families = {"clip": "clip_text_model", "siglip": "siglip_text_model", "mt5": "t5"}
    families |= {name: f"{name}_text" for name in TEXTS_OF}
    families |= dict.fromkeys(TEXTS_IN, "llama")
    assert table.config.family == families.get(name.split()[0], name.split()[0])


def test_every_family_of_transformers_is_among_them() -> None:
    assert {*FAMILIES} - {name.split()[0] for name in FULL} == {"lstm", "seq2seq", "transformer"}
    assert {name.split()[1] for name in FULL} == {"4.40.2", "4.56.2", "5.23.0"}


@pytest.mark.parametrize("name", [*CONFIGURED, *DRAWN])
def test_an_unknown_key_is_noted_in_every_model(name: str) -> None:
    """In formats of attnkit's own it is refused: no other program reads them."""
    raw = config_of(name)
    expected = published_tensors(raw)
    if raw["model_type"] in OWN_FORMATS:
        with pytest.raises(DataError, match=r"^config\.json: clip_everything is not supported by family \S+; delete"):
            published_tensors(raw | {"clip_everything": 0.5})
        return
    tensors = {name: np.zeros(shape, np.float32) for name, shape in expected.shapes.items()}
    with pytest.warns(AttnkitNote, match=r"^config\.json: family \S+ ignores clip_everything, as transformers does$"):
        noted = assemble_checkpoint(raw | {"clip_everything": 0.5}, tensors)
    assert noted.config == assemble_checkpoint(raw, tensors).config


def config_of(name: str) -> dict[str, Any]:
    if name in DRAWN or name in FULL:
        return FULL.get(name) or DRAWN[name]["config"]
    return json.loads((MODELS / name / "config.json").read_text())


# what the code of transformers reads

BUILT = {  # keys that only name something to this code, or that it sets itself: why -> family or "" -> keys
    "attributes of the class, of which no file has any": {"": "default_theta rope_parameters"},
    "a property that the class computes": {"falcon": "head_dim"},
    "of flash attention alone, which the other ways to compute attention do without": {"olmoe": "sliding_window"},
    "of the other tower, or of both": {
        "clip_text_model": "image_size num_channels patch_size text_config text_config_dict vision_config "
        "vision_config_dict logit_scale_init_value",
        "clip_vision_model": "max_position_embeddings vocab_size text_config text_config_dict vision_config "
        "vision_config_dict logit_scale_init_value",
        "siglip_text_model": "image_size num_channels patch_size text_config vision_config vision_use_head",
        "siglip_vision_model": "max_position_embeddings vocab_size text_config vision_config projection_size",
    },
    "of images, which Qwen3.5 does not read here": dict.fromkeys(
        ("qwen3_5_text", "qwen3_5_moe_text"),
        "depth image_token_id in_channels num_heads num_position_embeddings out_hidden_size patch_size "
        "spatial_merge_size temporal_patch_size text_config video_token_id vision_config get intermediate_size",
    ),
    "of images, which Gemma 3 does not read here": {
        "gemma3_text": "image_size patch_size image_token_id layer_norm_eps mm_tokens_per_image text_config "
        "vision_config",
    },
    "a property that repeats local_attention": {"modernbert": "sliding_window"},
    "of relative attention, if there is any": {"deberta-v2": "share_att_key"},
}  # fmt: skip


def readings(family: str) -> Iterator[tuple[str, set[str]]]:
    """The keys that attnkit reads of each configuration of a family, also of those that the file does not have."""
    named = {name: raw for name, raw in FULL.items() if name.split()[0] == family}
    named |= {name: raw for name in (*CONFIGURED, *DRAWN) if (raw := config_of(name))["model_type"] == family}
    for name, raw in named.items():
        reader = ConfigReader(raw, name)
        read_family(import_family(reader), reader, AllTensors("", [], {}), strict=False)
        yield name, {key.rpartition(".")[2] for key in reader.values.reads}


@pytest.mark.parametrize("family", [family for family in KEYS if family not in WHOLE])
def test_every_key_that_transformers_reads_is_read_or_refused(family: str) -> None:
    named = COMPUTATIONS.keys() | OTHER_NAMES.keys() | KNOWN
    named |= {key for rows in BUILT.values() for one in ("", family) for key in rows.get(one, "").split()}
    for name, read in readings(family):
        assert KEYS[family]["keys"].keys() - read <= named, name


# what the code of transformers reads that all families share

SHARED = json.loads((REFERENCES / "shared_keys.json").read_text())
EFFECTS = json.loads((REFERENCES / "key_effects.json").read_text())
NO_KEYS = {  # what the shared code reads of a configuration and no file has, or not for these families: why -> names
    "how a model is loaded, and what a configuration computes of itself": (
        "_attn_implementation_internal _auto_class _config _configuration_file _experts_implementation_internal "
        "_from_auto _from_pipeline _heterogeneity_spec _out_features _out_indices _output_attentions "
        "allow_global_per_layer_attribute_access base_model_pp_plan base_model_tp_plan cache_dir commit_message "
        "compile_config config_class create_compatible_mapping device_map device_mesh disable_mmap disk_offload_folder "
        "distributed_config dtype_plan fget force_download get get_config_class gguf_file hf_quantizer "
        "ignore_mismatched_sizes init_kwargs is_heterogeneous is_quantized items local_files_only offload_buffers "
        "per_layer_attributes pretrained_model_name_or_path proxies quant_method repo_id return_unused_kwargs revision "
        "sanitize_kernel_mapping serialize_explicit_per_layer_config set_output_features_output_indices setter "
        "sharded_metadata stage_names sub_configs sub_configs_defaults subfolder token transformers_weights "
        "trust_remote_code verify_out_features_out_indices weight_mapping weights_only"
    ),
    "of a backbone of images inside another model": (
        "backbone_config embed_dim in_channels out_features out_indices patch_size temporal_patch_size vision_config"
    ),
    "of layers that predict further tokens, and of another family": "logits_mup_width_multiplier unpadded_vocab_size",
    "checked for its words alone": "mlp_layer_types",
}


def test_every_key_that_all_families_share_is_read_or_known() -> None:
    """Also those that are new in a later version, which the files of our families have none of."""
    later = SHARED["later"]
    assert {version: [*files] for version, files in later.items()} == {"5.24.0": ["core_model_loading"]}
    read = {key for family in KEYS if family in FAMILIES for _, keys in readings(family) for key in keys}
    known = KNOWN | COMPUTATIONS.keys() | OTHER_NAMES.keys() | CACHED.keys() | read
    known |= {"is_causal", "attention_factor"}  # which are read where a file states them
    known |= {key for names in NO_KEYS.values() for key in names.split()}
    shared = {
        key: file for files in (SHARED, *later.values()) for file in files if file != "later" for key in files[file]
    }
    assert {key: file for key, file in shared.items() if key not in known} == {}


def test_keys_that_are_known_to_change_nothing_were_tried() -> None:
    assert KNOWN - {"return_dict"} == {key for key, value in EFFECTS["tried"].items() if value == "another"}


@pytest.mark.parametrize("family", [family for family in EFFECTS if family != "tried"])
def test_a_key_that_changes_something_in_transformers_is_read_refused_or_noted(family: str) -> None:
    """A key of a whole pass is read; one of the cache alone is noted; one by which nothing runs is refused."""
    assert {*EFFECTS[family]} & KNOWN == set()
    for key, effect in EFFECTS[family].items():
        value, raw = EFFECTS["tried"][key], FULL[f"{family} 5.23.0"]
        reader = ConfigReader({**raw, "layer_types": None} | {key: value}, "config.json")
        if key == "kv_sharing_modes" or (key == "is_causal" and family in ("bloom", "stablelm")):
            with pytest.raises(DataError, match=key):
                read_family(import_family(reader), reader, AllTensors("", [], {}))
            continue
        read_family(import_family(reader), reader, AllTensors("", [], {}), strict=False)
        if effect == "pass":
            assert key in reader.values.reads, key
        elif key not in reader.values.reads:
            with pytest.warns(AttnkitNote, match=f"no layer of family {family} reads {key}; the cache of transformers"):
                note_unread(reader, family, has_cache=True)


def test_a_window_that_no_layer_has_is_not_noted_where_no_cache_reads_it() -> None:
    for changes, has_cache in (({"layer_types": ["full_attention"]}, True), ({}, False)):
        reader = ConfigReader({"sliding_window": 4} | changes, "config.json")
        with pytest.warns(AttnkitNote, match=r"family llama ignores (sliding_window|.*layer_types)"):
            note_unread(reader, "llama", has_cache=has_cache)


def test_every_row_of_a_family_names_a_key_that_it_reads() -> None:
    """Or one of the families that have the row, of which some are variants of others; training reads dropout.

    The direction of a stack is read where a file states it.
    """
    rows: dict[tuple[str, str], bool] = {}
    for family in {name.split()[0] for name in FULL} & {*FAMILIES}:
        reader = ConfigReader(FULL[f"{family} 5.23.0"], family)
        read_family(import_family(reader), reader, AllTensors("", [], {}), strict=False)
        read = {key.rpartition(".")[2] for key in reader.values.reads}
        for fact, keys in fact_of(family, "FIELDS").items():
            rows |= {(fact, key): rows.get((fact, key), False) or key in read for key in keys.split()}
    assert {row for row, is_read in rows.items() if not is_read and row[0] not in ("dropout", "stacks")} == set()


def test_every_key_of_one_family_is_one_that_transformers_reads() -> None:
    for key, asked in COMPUTATIONS.items():
        assert all(key in KEYS[family]["keys"] for family in asked.families), key
        usual = {json.dumps(KEYS[family]["keys"][key]) for family in asked.families} - {"null"}
        assert usual <= {json.dumps(value) for value in asked.neutral}, key


@pytest.mark.parametrize("family", [family for family in KEYS if KEYS[family]["keys"].get("num_key_value_heads")])
def test_a_file_without_key_value_heads_has_those_of_the_class(family: str) -> None:
    """Which transformers always writes: a file without the key is by hand, and read with the class's number."""
    raw, usual = FULL[f"{family} 5.23.0"], KEYS[family]["keys"]["num_key_value_heads"]
    without = {key: value for key, value in raw.items() if key != "num_key_value_heads"}
    stack = configuration(without).decoder
    assert stack is None or stack.kv_heads == usual
    if family in ("mistral", "smollm3"):  # others have as many as heads by default, which null means as well
        assert configuration(raw, num_key_value_heads=None).decoder.kv_heads == raw["num_attention_heads"] != usual
        with pytest.raises(DataError, match=rf"num_attention_heads 6 .* num_key_value_heads {usual} \(default\)$"):
            configuration(without | {"hidden_size": 48}, num_attention_heads=6)


SPECIAL_FIELDS = {
    "bos_token_id": ("bos", None), "eos_token_id": ("eos", ()), "forced_eos_token_id": ("forced_eos", None),
    "pad_token_id": ("pad", None),
}  # fmt: skip


@pytest.mark.parametrize("family", [family for family in KEYS if family not in ("clip", "siglip")])
def test_null_is_what_it_is_to_transformers(family: str) -> None:
    """Where its class accepts null instead of a default: no token, no window, false."""
    raw = FULL[f"{family} 5.23.0"]
    for key in KEYS[family]["nulls"]:
        if isinstance(raw[key], bool):
            assert configuration(raw, **{key: None}) == configuration(raw, **{key: False}), key
        elif key in SPECIAL_FIELDS:
            name, none = SPECIAL_FIELDS[key]
            assert getattr(configuration(raw, **{key: None}).special, name) == none, key
        elif key == "sliding_window":
            stack = configuration(raw, sliding_window=None)
            assert not stack.stack(stack.stacks[0]).windows, key


def configuration(raw: dict[str, Any], **changes: Any) -> Any:
    reader = ConfigReader(raw | changes, "config.json")
    return read_family(import_family(reader), reader, AllTensors("", [], {}))[0]


NO_DEFAULT = {  # keys that a file states or that count as absent, whatever value the class would give them
    "begin_suppress_tokens": "as special tokens: those of a file that states some",
}
OWN_TOKENS: dict[str, set[str]] = {  # families with special tokens in files that state none -> those without
    **{family: set() for family in ("bart", "hubert", "m2m_100", "mbart", "mt5", "t5", "wav2vec2")},
    "marian": {"forced_eos_token_id", "pad_token_id"},
    "whisper": {"bos_token_id"},
    **{family: {"bos_token_id"} for family in ("clip_text_model", "siglip_text_model")},
}


@pytest.mark.parametrize("name", [name for name in FULL if name.split()[0] not in WHOLE])
def test_a_missing_key_has_the_value_of_the_class_or_is_required(name: str) -> None:
    """Older files state some keys that newer ones do not have, or have in an object."""
    raw, family = FULL[name], name.split()[0]
    reader, required = ConfigReader(raw, family), set()
    config, shapes = (
        read_family(import_family(reader), reader, AllTensors("", [], {}))[0],
        published_tensors(made_small(raw)).shapes,
    )
    newer = FULL[f"{family} 5.23.0"].keys() if raw is not FULL[f"{family} 5.23.0"] else set()
    for key in raw.keys() & {*reader.values.reads} - NO_DEFAULT.keys() - {"model_type"} - newer:
        if key.endswith("_token_id") and (family not in OWN_TOKENS or key in OWN_TOKENS[family]):
            continue
        if (family, key, raw[key]) in (
            ("cohere", "rope_theta", 1e4),
            ("falcon_h1", "rope_theta", 1e5),
        ):  # others since 5
            continue
        try:
            rest = {name: value for name, value in raw.items() if name != key}
            found = configuration(rest)
        except DataError as error:
            assert key in str(error)
            required.add(key)
        else:
            assert found == config, key
            if key not in (*COUNTS_OF_EXPERTS, *COUNTS_OF_LAYERS):
                assert published_tensors(made_small(rest)).shapes == shapes, key
    assert len(required) <= 9 and not any("eps" in key or "theta" in key for key in required)


@pytest.mark.parametrize("name", FULL)
def test_a_missing_token_changes_nothing_else(name: str) -> None:
    raw = FULL[name]
    if raw["model_type"] in WHOLE:
        return
    config = configuration(raw)
    without = configuration({key: value for key, value in raw.items() if not key.endswith("_token_id")})
    assert replace(without, special=config.special) == config


LONGEST = {  # family -> the key of the longest text
    family: fact_of(family, "FIELDS")["longest text"].split()[0]
    for family in FAMILIES
    if family not in ("bloom", "hubert", "mt5", "t5", "wav2vec2", "whisper", *WHOLE)  # without one
    and family not in ("lstm", "m2m_100", "seq2seq", "transformer")  # of texts of any length
    and fact_of(family, "FIELDS").get("longest text")
}


@pytest.mark.parametrize("family", LONGEST)
def test_the_longest_text_is_what_the_file_states(family: str) -> None:
    raw = FULL[f"{family} 5.23.0"]
    first, second = (configuration(raw, **{LONGEST[family]: size}).positions.size for size in (100, 107))
    assert second - first == 7


@pytest.mark.parametrize(
    ("value", "most", "expected"),
    [
        (0, 2**31 - 1, "from 1 on"),
        ("7", 2**31 - 1, "from 1 on"),
        (2**31, 2**31 - 1, "from 1 to 2147483647"),
        (9, 8, "from 1 to 8"),
        (True, 8, "from 1 to 8"),
    ],
)
def test_a_number_out_of_range_is_one_error(value: Any, most: int, expected: str) -> None:
    reader = ConfigReader({"n": value}, "c.json")
    with pytest.raises(DataError, match=rf"^c\.json: n is .* \(expected a whole number {expected}\)$"):
        reader.get_int("n", most=most)
    assert ConfigReader({"n": most}, "c.json").get_int("n", most=most) == most


# tensors that a key adds

QKV, BOTH = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("weight", "bias")


def biases(*layers: str) -> tuple[str, ...]:
    return tuple(f"{layer}.bias" for layer in layers)


SWITCHES: list[tuple[str, str, tuple[str, ...]]] = [  # families, key -> the ends of the names that it adds where true
    ("cohere cohere2 gemma gemma2 gemma3_text gpt_oss granite llama olmo olmo2 olmo3 olmoe qwen3 qwen3_moe smollm3",
     "attention_bias", biases(*QKV, "self_attn.o_proj")),
    ("granite llama smollm3", "mlp_bias", biases("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    ("qwen2_moe", "qkv_bias", biases(*QKV)),
    ("stablelm", "use_qkv_bias", biases(*QKV)),
    ("deepseek_v2", "attention_bias", biases("self_attn.kv_a_proj_with_mqa", "self_attn.o_proj")),
    ("deepseek_v3", "attention_bias",
     biases("self_attn.kv_a_proj_with_mqa", "self_attn.o_proj", "self_attn.q_a_proj")),
    ("falcon", "bias", biases("mlp.dense_4h_to_h", "mlp.dense_h_to_4h", "attention.dense", "query_key_value")),
    ("gpt_neox", "attention_bias", biases("attention.dense", "attention.query_key_value")),
    ("opt", "enable_bias", biases("fc1", "fc2", *QKV, "self_attn.out_proj")),
    ("modernbert", "attention_bias", biases("attn.Wo", "attn.Wqkv")),
    ("modernbert", "mlp_bias", biases("mlp.Wi", "mlp.Wo")),
    ("modernbert", "classifier_bias", biases("head.dense")),
    ("modernbert", "decoder_bias", ("decoder.bias",)),
    ("modernbert", "norm_bias", biases("head.norm", "embeddings.norm", "final_norm", "attn_norm", "mlp_norm")),
    ("dinov2 dinov2_with_registers vit", "qkv_bias", biases("attention.key", "attention.query", "attention.value")),
    ("dinov3_vit", "query_bias", biases("attention.q_proj")),
    ("dinov3_vit", "key_bias", biases("attention.k_proj")),
    ("dinov3_vit", "value_bias", biases("attention.v_proj")),
    ("dinov3_vit", "proj_bias", biases("attention.o_proj")),
    ("dinov3_vit", "mlp_bias", biases("mlp.up_proj", "mlp.down_proj")),
    ("dinov3_vit", "use_gated_mlp", tuple(f"mlp.gate_proj.{one}" for one in BOTH)),
    ("hubert wav2vec2", "conv_bias", ("conv.bias",)),
    ("transformer", "bias", (
        "in_proj_bias", *biases("linear1", "linear2", "out_proj", "norm", "norm1", "norm2", "norm3"))),
    ("cohere", "use_qk_norm", ("k_norm.weight", "q_norm.weight")),
    ("phi", "qk_layernorm", tuple(f"{letter}_layernorm.{one}" for letter in "kq" for one in BOTH)),
    ("stablelm", "qk_layernorm", ("k_layernorm.norms.N.weight", "q_layernorm.norms.N.weight")),
    ("siglip_vision_model", "vision_use_head", ("probe", "in_proj_weight", "in_proj_bias",
     *(f"head.{name}.{one}" for name in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2") for one in BOTH))),
]  # fmt: skip


def tensor_names(family: str, **changes: Any) -> set[str]:
    """The published names of the tensors of a family, with N as the number of a layer."""
    drawn = [one["config"] for one in DRAWN.values() if one["config"]["model_type"] == family]
    raw = config_of(family) if family in CONFIGURED else drawn[0] if drawn else FULL[f"{family} 5.23.0"]
    return {re.sub(r"\.\d+\.", ".N.", name) for name in published_tensors(raw | changes).shapes}


@pytest.mark.parametrize(("family", "key", "ends"), [
    (family, key, ends) for families, key, ends in SWITCHES for family in families.split()
])  # fmt: skip
def test_a_key_adds_the_tensors_that_it_adds_in_transformers(family: str, key: str, ends: tuple[str, ...]) -> None:
    without = tensor_names(family, **{key: False})
    added = tensor_names(family, **{key: True}) - without
    assert all(name.endswith(ends) for name in added)
    assert [end for end in ends if not any(name.endswith(end) for name in added)] == []
    # no other layer of that name is left without one
    named = {end.removesuffix(".bias") + ".weight" for end in ends if end.endswith(".bias")}
    assert all(name.removesuffix("weight") + "bias" in added for name in without if name.endswith(tuple(named)))


LONG = "x" * 50
READ: list[tuple[Any, Callable[[ConfigReader], Any], Any]] = [  # the value of a key, how it is read, what is read
    (3, lambda raw: raw.get_float("k"), 3.0),
    ([1, 2.5], lambda raw: raw.get_floats("k", [0.0, 0.0]), [1.0, 2.5]),
    ([0, 1], lambda raw: raw.get_floats("k", [0.0, 0.0], least=0), [0.0, 1.0]),
    (None, lambda raw: raw.get_floats("k", [4.0]), [4.0]),
    (None, lambda raw: (raw.get_str("k", "a"), raw.get_bool("k", True), raw.get_object("k").values), ("a", False, {})),
    ("a", lambda raw: raw.get_choice("k", {"a": 1}), 1),
    (3, lambda raw: raw.get_size("k"), (3, 3)),
    ([2, 2**31 - 1], lambda raw: raw.get_size("k"), (2, 2**31 - 1)),
    ([-1, 3, 2**31 - 1], lambda raw: raw.get_token_ids("k"), (3, 2**31 - 1)),
    (0, lambda raw: raw.get_token_ids("k", (7,)), (0,)),
    (None, lambda raw: raw.get_token_ids("k", (7,)), ()),
    (-1, lambda raw: raw.get_token_id("k", 7), None),
    ([5, 6], lambda raw: raw.get_token_id("k"), 5),
]
REFUSED: list[tuple[list[Any], Callable[[ConfigReader], Any], str]] = [  # values, how they are read, the problem
    ([0, -1, True, "3", math.inf, math.nan], lambda raw: raw.get_float("k"), "k is {} (expected a number above 0)"),
    ([[1], [1, 2, 3], [1, "2"], [1, True], 3], lambda raw: raw.get_floats("k", [0.0, 0.0]), "k is {} (expected 2 num"),
    ([[-1, 3]], lambda raw: raw.get_floats("k", [0.0, 0.0], least=0), "k is {} (expected 2 numbers above 0)"),
    ([1, 0, "true", []], lambda raw: raw.get_bool("k", True), "k is {} (expected true or false)"),
    ([1, ["a"], True], lambda raw: raw.get_str("k"), "k is {} (expected a string)"),
    ([LONG], lambda raw: raw.get_choice("k", {"a": 1, "b": 2}), "k {} is not supported (use a, b)"),
    ([[1], "a", 7, True], lambda raw: raw.get_object("k"), "k is {} (expected an object)"),
    ([[1], LONG], lambda raw: raw.get_dict("k"), "k is {} (expected an object)"),
    ([[1], [1, 2, 3], [0, 1], [1, True], [1, 2**31], 1.5, "3", 0], lambda raw: raw.get_size("k"),
     "k is {} (expected a whole number or two)"),
    ([[1.5], [True], "3", 2**31, {"a": 1}], lambda raw: raw.get_token_ids("k"), "k is {} (expected an id or a list of"),
    ([None], lambda raw: raw.get_int("k"), "k is missing (expected a whole number)"),
    ([None], lambda raw: raw.get_float("k"), "k is missing (expected a number)"),
    ([None], lambda raw: raw.get_str("k"), "k is missing (expected a string)"),
    ([None], lambda raw: raw.get_size("k"), "k is missing (expected a whole number or two)"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "get", "expected"), READ)
def test_values_are_read_in_their_kind(value: Any, get: Callable[[ConfigReader], Any], expected: Any) -> None:
    found = get(ConfigReader({"k": value}, "c.json"))
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(("value", "get", "problem"), [
    (value, get, problem) for values, get, problem in REFUSED for value in values
])  # fmt: skip
def test_a_value_of_another_kind_is_named_with_its_file(
    value: Any, get: Callable[[ConfigReader], Any], problem: str
) -> None:
    for reader, file in (
        (ConfigReader({"k": value}, "c.json"), "c.json"),
        (ConfigReader({"k": value}, "c.json", origins={"k": "g.json"}), "g.json" if value is not None else "c.json"),
    ):
        with pytest.raises(DataError) as caught:
            get(reader)
        assert str(caught.value).startswith(f"{file}: {problem.format(repr(str(value)[:40]))}")


@pytest.mark.parametrize(("values", "banned"), [
    ({}, ()), ({"bad_words_ids": [[0], [2, 3], [5]]}, (0, 5)), ({"bad_words_ids": [[-1]]}, None),
    ({"bad_words_ids": [7]}, None), ({"bad_words_ids": "x"}, None), ({"bad_words_ids": [[2**31]]}, None),
    ({"bad_words_ids": [[2**31 - 1]]}, (2**31 - 1,)), ({"bad_words_ids": [[True]]}, None),
])  # fmt: skip
def test_banned_words_are_those_of_one_token(values: dict[str, Any], banned: tuple[int, ...] | None) -> None:
    reader = ConfigReader(values, "c.json")
    if banned is None:
        with pytest.raises(DataError, match=r"bad_words_ids is .* \(expected a list of lists of ids\)"):
            reader.get_special_tokens()
    else:
        assert reader.get_special_tokens().banned == banned


def test_the_keys_of_a_stack_that_do_not_fit_are_named() -> None:
    fields = FIELDS | {"key/value heads": "kv"}
    sizes = {
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "hidden_size": 12,
        "intermediate_size": 5,
        "vocab_size": 9,
    }
    assert ConfigReader(sizes | {"kv": 3}, "c.json").get_stack(fields).kv_heads == 3
    with pytest.raises(DataError, match=r"^c.json: num_attention_heads 6 is not divisible by kv 4$"):
        ConfigReader(sizes | {"kv": 4}, "c.json").get_stack(fields)
    with pytest.raises(DataError, match=r"^c.json: hidden_size 13 is not divisible by num_attention_heads 6$"):
        ConfigReader(sizes | {"hidden_size": 13}, "c.json").get_stack(fields)
    named = ConfigReader(
        {key: one for key, one in sizes.items() if key != "vocab_size"}, "c", names={"vocab_size": "v"}
    )
    with pytest.raises(DataError, match=r"^c: v is missing \(expected a whole number\)$"):
        named.get_stack(fields)
    names = [["XForCausalLM"], ["ForCausalLMX"], "XForCausalLM", None, [7, "AForCausalLM"]]
    found = [ConfigReader({"architectures": one}, "c").has_architecture("ForCausalLM") for one in names]
    assert found == [True, False, False, False, True]


OF_IMAGES = ("dinov2", "dinov2_with_registers", "dinov3_vit", "siglip_vision_model", "vit")


@pytest.mark.parametrize("family", [family for family in KEYS if family not in (*WHOLE, *OF_IMAGES)])
def test_special_tokens_are_those_of_the_file(family: str) -> None:
    special = configuration(FULL[f"{family} 5.23.0"], bos_token_id=3, eos_token_id=4, pad_token_id=5).special
    assert (special.bos, special.eos, special.pad) == (3, (4,), 5)


@pytest.mark.parametrize(("window", "side"), [(7, 3), (8, 4)])
def test_the_window_of_a_gemma_that_is_an_encoder_is_on_both_sides(window: int, side: int) -> None:
    """Distances below window // 2 + 1, as in transformers."""
    raw = FULL["gemma3_text 5.23.0"]
    encoder = configuration(raw, use_bidirectional_attention=True, sliding_window=window).stack("encoder")
    assert {*encoder.windows} == {side, -1} and not encoder.causal


@pytest.mark.parametrize("sizes", [[3, 0], [3, 65537], [3, True], [3, 2.0], 3])
def test_sizes_of_convolutions_are_whole_numbers(sizes: Any) -> None:
    raw = FULL["wav2vec2 5.23.0"] | {"conv_dim": [8, 8], "conv_stride": [1, 1]}
    assert configuration(raw, conv_kernel=[3, 1]).sound is not None
    with pytest.raises(DataError, match=r"conv_kernel is .* \(expected a list of whole numbers from 1 to 65536\)"):
        configuration(raw, conv_kernel=sizes)


@pytest.mark.parametrize("family", ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"])
def test_a_window_that_is_used_and_null_is_none(family: str) -> None:
    raw = {key: value for key, value in FULL[f"{family} 5.23.0"].items() if key != "layer_types"}
    raw |= {"use_sliding_window": True, "max_window_layers": 28 if family == "qwen2_moe" else 0}
    assert configuration(raw, sliding_window=64).stack("decoder").windows
    assert not configuration(raw, sliding_window=None).stack("decoder").windows


def test_a_null_that_transformers_passes_over_is_absent() -> None:
    """T5 is untied by false alone; a decoder begins with a token in any case."""
    t5, bart = FULL["t5 4.56.2"], FULL["bart 5.23.0"]
    assert configuration(t5, tie_word_embeddings=None) == configuration(t5, tie_word_embeddings=True)
    assert configuration(t5, tie_word_embeddings=None) != configuration(t5, tie_word_embeddings=False)
    assert configuration(bart, decoder_start_token_id=None).special.start == 2


def test_states_of_mt5_are_not_scaled_before_the_head() -> None:
    """transformers multiplies those of T5 by 1/√D where it is tied, those of mT5 never; an own head counts in both."""
    raw = FULL["mt5 5.23.0"]
    for is_tied in (True, False, None):
        assert configuration(raw, tie_word_embeddings=is_tied).logit_scale == 1.0
    assert configuration(raw, model_type="t5").logit_scale == raw["d_model"] ** -0.5
    head = published_tensors(raw | {"tie_word_embeddings": False}).specs["head"]["w"]
    assert head.names == ("lm_head.weight", "shared.weight")
    without = {key: value for key, value in raw.items() if key != "feed_forward_proj"}
    assert configuration(without).activation == "gelu-tanh"


def test_null_is_absent_in_the_settings_of_images(tmp_path: Any) -> None:
    """transformers 5.23 puts the default of the class in its place, unlike in config.json."""
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": null, "do_rescale": false}')
    settings = read_preprocessor(str(tmp_path))
    assert (settings.get_bool("do_resize", True), settings.get_bool("do_rescale", True)) == (True, False)


def test_heads_share_keys_only_where_falcon_says_so() -> None:
    raw = FULL["falcon 5.23.0"] | {"num_attention_heads": 71}
    assert configuration(raw, multi_query=None).stack("decoder").kv_heads == 71
    assert (
        configuration({key: value for key, value in raw.items() if key != "multi_query"}).stack("decoder").kv_heads == 1
    )


@pytest.mark.parametrize(("name", "keys"), [
    ("gpt2", {"hidden_size": 12}), ("t5", {"is_decoder": True}), ("bert", {"position_embedding_type": "relative_key"}),
    ("gemma3", {"attn_logit_softcapping": 4.0}), ("qwen2", {"per_layer_config": {"0": {"hidden_size": 8}}}),
    ("qwen2", {"dual_chunk_attention_config": {"chunk_size": 262144}}), ("gpt_neox", {"head_dim": 3}),
    ("bart 5.23.0", {"num_attention_heads": 8}), ("marian", {"suppress_tokens": [3]}),
])  # fmt: skip
def test_a_computation_is_refused_by_its_name(name: str, keys: dict[str, Any]) -> None:
    raw, (key,) = config_of(name), keys
    published_tensors(raw | {key: None})
    with pytest.raises(DataError, match=f"{key} .*(: | is |use )"):
        published_tensors(raw | keys)


@pytest.mark.parametrize(("changes", "problem"), [
    ({"quantization_config": {"bits": 4}}, 'quantization_config {"bits": 4} is not supported by family llama: '
     "quantized weights"),
    ({"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}},
     'quantization_config "fp8" is not supported by family llama: quantized weights'),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported by family llama: a rotation of a"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
     "rope_parameters.partial_rotary_factor 0.5 is not supported by family llama"),
    ({"n_embed": 12}, "n_embed 12 is not supported by family llama: hidden_size is 8"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e4}},
     'rope_scaling {"type": "linear", "factor": 2.0} is not'),
    ({"rope_theta": 500, "rope_parameters": {"rope_theta": 1e4}},
     "rope_theta 500 contradicts rope_parameters.rope_theta 10000"),
])  # fmt: skip
def test_a_key_that_may_change_a_number_is_named(changes: dict[str, Any], problem: str) -> None:
    read(SMALL)
    with pytest.raises(DataError, match=re.escape(problem)):
        read(SMALL | changes)


@pytest.mark.parametrize(("changes", "note"), [
    ({"attention_multiplier": 0.22, "is_decoder": True}, "family llama ignores attention_multiplier, is_decoder, as"),
    ({"num_key_values_heads": 1}, r"ignores num_key_values_heads \(did you mean num_key_value_heads\?\), as"),
    ({"attn_logit_softcapping": 50}, "ignores attn_logit_softcapping, as"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 8}}, "rope_type linear ignores beta_fast, as"),
    ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope_type default ignores factor, as"),
    (dict.fromkeys("abcdefg", 1), "ignores a, b, c, d, e and 2 more, as transformers does"),
])  # fmt: skip
def test_a_key_that_transformers_does_not_read_is_noted(changes: dict[str, Any], note: str) -> None:
    with pytest.warns(AttnkitNote, match=note):
        read(SMALL | changes)


@pytest.mark.parametrize("changes", [
    {"attention_dropout": 0.1, "hidden_dropout": 0.3}, {"initializer_range": 1.0}, {"use_cache": True},
    {"torch_dtype": "bfloat16", "dtype": "float32"}, {"architectures": ["LlamaForCausalLM"], "auto_map": {"x": "y"}},
    {"_name_or_path": "x", "transformers_version": "9"}, {"id2label": {"0": "a"}, "label2id": {"a": 0}},
    {"do_sample": True, "temperature": 0.6, "top_k": 5}, {"pretraining_tp": 2}, {"is_decoder": False},
    {"attn_logit_softcapping": None, "anything": None, "empty": [], "none": {}, "no": ""}, {"partial_rotary_factor": 1},
    {"qkv_bias": False, "shared_expert_intermediate_size": 0, "custom_scale": 0.0}, {"n_embed": 8},
    {"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "finetuned": True}},
    {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
])  # fmt: skip
def test_a_harmless_key_passes(changes: dict[str, Any]) -> None:
    read(SMALL | changes)


@pytest.mark.parametrize(("name", "keys"), [
    ("bloom", {"hidden_size": None, "n_head": None, "n_layer": None, "n_embed": 24, "num_attention_heads": 6,
     "num_hidden_layers": 3, "n_inner": None, "masked_softmax_fusion": True}),
    ("cohere2", {"layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "rotary_pct": 1.0,
     "position_embedding_type": "rope_gptj", "use_embedding_sharing": True, "use_gated_activation": True,
     "use_parallel_block": True, "use_parallel_embedding": True, "use_qk_norm": False}),
    ("falcon-7b", {"apply_residual_connection_post_layernorm": False}),
    ("falcon-11b", {"apply_residual_connection_post_layernorm": False, "ff_factor": 4}),
    ("gemma2", {"sliding_window_size": 5}),
    ("gpt_oss", {"experts_per_token": 2, "initial_context_length": 4096}),
    ("olmo", {"rms_norm_eps": 0.1}),
    ("phi3-long", {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}),
    ("qwen3_moe", {"max_window_layers": 48}),
    ("stablelm", {"use_norm_bias": False, "rotary_scaling_factor": 1.0}),
])  # fmt: skip
def test_the_keys_of_published_files_change_nothing(name: str, keys: dict[str, Any]) -> None:
    """As in the files of BLOOM, Command R7B, Falcon, Gemma 2, gpt-oss, Phi-4-mini, Qwen3-30B-A3B and StableLM 2."""
    raw = DRAWN[name]["config"]
    tensors = draw_tensors(raw["model_type"], DRAWN[name]["shapes"])
    expected = outputs(assemble_checkpoint(raw, tensors))
    found = outputs(assemble_checkpoint(raw | keys, tensors))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("name", "keys"), [
    ("bloom", {"apply_residual_connection_post_layernorm": True}), ("cohere2", {"use_parallel_block": False}),
    ("cohere2", {"order_of_interleaved_layers": "global_attn_first"}), ("cohere2", {"use_embedding_sharing": False}),
    ("gemma2", {"sliding_window_size": 6}), ("gemma3", {"attn_logit_softcapping": 4.0}),
    ("gpt_oss", {"experts_per_token": 3}), ("phi3", {"full_attn_mod": 2}), ("stablelm", {"rotary_scaling_factor": 2.0}),
])  # fmt: skip
def test_published_keys_with_other_values_are_refused(name: str, keys: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"{next(iter(keys))} .*is not supported"):
        published_tensors(DRAWN[name]["config"] | keys)


def test_a_stated_factor_of_yarn_needs_no_mscale() -> None:
    """transformers 5.23 passes over mscale then: cosines and sines are multiplied by attention_factor."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.25}
    for more in ({}, {"mscale": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0.5}):
        rope = read(SMALL | {"rope_scaling": yarn | more}).config.positions.rope
        assert rope_frequencies(4, rope, 8)[1] == 1.25


def test_older_files_of_olmo_3_have_one_base_for_all_layers() -> None:
    """transformers 5 has 500000 in windows, whatever such a file says; version 4 had the base of the file."""
    raw = {key: value for key, value in FULL["olmo3 5.23.0"].items() if key != "rope_parameters"}
    positions = configuration(raw, rope_theta=1e4).positions
    assert positions.rope["rope_theta"] == positions.local_rope["rope_theta"] == 1e4


def test_states_of_opt_are_those_before_project_out() -> None:
    """transformers' last_hidden_state is head.dense, after it: `encode` is what `decode` continues from."""
    raw = DRAWN["opt-350m"]["config"]
    tensors = draw_tensors("opt", DRAWN["opt-350m"]["shapes"])
    checkpoint, seen = assemble_checkpoint(raw, tensors), {}
    core = model.Model(checkpoint.config, checkpoint.params)
    states = model.run(core, checkpoint.config.plan("decoder"), np.arange(3, 9)[None], model.Context())
    model.head_logits(core, states, {"head.dense": lambda x: seen.setdefault("head.dense", x)}.get)
    assert states.shape[-1] == raw["hidden_size"] and seen["head.dense"].shape[-1] == raw["word_embed_proj_dim"]
    projection = next(tensor for name, tensor in tensors.items() if "project_out" in name)
    assert np.allclose(seen["head.dense"], states @ projection.T, atol=1e-6 * np.abs(states).max())


def test_the_process_names_the_key(tmp_path: Any) -> None:
    raw = json.loads((MODELS / "llama" / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((MODELS / "llama" / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"per_layer_config": {"0": {"head_dim": 2}}}))
    code, out, err = run("show", str(tmp_path))
    problem = 'per_layer_config {"0": {"head_dim": 2}} is not supported by family llama: layers of other sizes'
    assert (code, out, err) == (3, b"", f"attnkit show: {tmp_path}/config.json: {problem}\n")
    (tmp_path / "config.json").write_text(json.dumps(raw | {"residual_multiplier": 0.5}))
    code, out, err = run("show", str(tmp_path))
    note = "family llama ignores residual_multiplier, as transformers does"
    assert (code, err) == (0, f"attnkit show: note: {tmp_path}/config.json: {note}\n")
    assert run("show", str(tmp_path), "--quiet") == (0, out, "")


# every number of a configuration changed

LIMITS = {"max_position_embeddings", "n_positions"}  # of the length of texts
INERT = {  # what another key of the same file decides, as in transformers: model or family -> keys
    "deberta-v2": {"legacy", "pooler_hidden_size"},  # of heads that the models do not have
    "deepseek_v2": {"original_max_position_embeddings"},  # two pairs of features, scaled alike
    "deepseek_v2-greedy": {"intermediate_size"},  # of no layer
    "deepseek_v3": {"original_max_position_embeddings"},
    "falcon-7b": {"num_kv_heads"},
    "falcon-11b": {"multi_query", "parallel_attn"},
    "falcon-40b": {"multi_query", "parallel_attn"},
    "falcon-rw": {"num_kv_heads", "rope_theta", "max_position_embeddings"},
    "gemma3_text": {"sliding_window_pattern"},
    "gpt2": {"n_ctx"},
    "gpt_neox-serial": {"rope_theta"},  # one pair of features, which turns by 1 whatever it is
    "marian": {"num_hidden_layers"},
    "modernbert": {"layer_norm_eps"},
    "olmo3": {"original_max_position_embeddings"},  # two pairs of features, scaled alike
    "openai-gpt": {"n_ctx"},
    "opt-350m": {"_remove_final_layer_norm"},
    "phi3": {"partial_rotary_factor", "original_max_position_embeddings"},
    "qwen3": {"max_window_layers", "use_sliding_window"},
    "qwen2_moe": {"max_window_layers"},
    "qwen3_moe": {"use_sliding_window"},
    "smollm3": {"no_rope_layer_interval", "use_sliding_window"},
    "stablelm": {"rope_theta"},  # as gpt_neox-serial
    "t5": {"n_positions"},
    "mt5": {"n_positions"},
}


def numbers(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The places of all numbers and booleans of an object."""
    places = []
    for key, value in values.items():
        if isinstance(value, dict) and key not in ("id2label", "label2id", "task_specific_params"):
            places += numbers(value, (*path, key))
        elif isinstance(value, bool | int | float):
            places.append((*path, key))
    return places


def changed(values: dict[str, Any], place: tuple[str, ...], times: int) -> dict[str, Any]:
    """The object with the number at a place replaced by another, the boolean by its opposite."""
    key, *rest = place
    value = values[key]
    if rest:
        return {**values, key: changed(value, tuple(rest), times)}
    return {**values, key: not value if isinstance(value, bool) else value * times + 3}


def outputs(checkpoint: Checkpoint) -> list[np.ndarray]:
    """The states of every stack and the logits of a model, for fixed inputs."""
    config, core = checkpoint.config, model.Model(checkpoint.config, checkpoint.params)
    rng = np.random.default_rng(3)
    memory, states, found = None, None, []
    for stack in config.stacks:
        ids: Any = rng.integers(3, 9, (1, 23))
        if config.patches:
            ids = rng.random((1, 3, config.patches.height, config.patches.width))
        elif not config.stack(stack).vocab:
            ids = rng.random((1, 23, config.width))
        context = model.Context(memory=memory, source_states=states)
        x = model.run(core, config.plan(stack), ids, context)
        memory, states = x, context.last_states() if isinstance(config, RecurrentConfig) else None
        found.append(x)
    return [*found, model.head_logits(core, x)] if config.head else found


@pytest.mark.parametrize("name", [*CONFIGURED, *DRAWN])
def test_a_changed_number_changes_the_model_or_is_named(name: str) -> None:
    raw = config_of(name)
    if name in DRAWN:
        tensors = draw_tensors(raw["model_type"], DRAWN[name]["shapes"])
    else:
        weights = open_checkpoint(str(MODELS / name)).params.weights
        tensors = {key: weights.tensor(key) for key in weights.entries}
    before = assemble_checkpoint(raw, tensors)
    expected = outputs(before)
    for place in numbers(raw):
        key, inert = place[-1], INERT.get(name, set()) | INERT.get(raw["model_type"], set())
        is_special = key in SPECIAL
        if key in inert or (key in KNOWN and not is_special):
            continue
        changes = (changed(raw, place, times) for times in (2, 9))
        assert any(differs(before, expected, one, tensors, key in LIMITS or is_special) for one in changes), place


SPECIAL = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id"}


def differs(
    before: Checkpoint, expected: list[np.ndarray], raw: dict[str, Any], tensors: dict[str, Any], is_limit: bool
) -> bool:
    """Whether another configuration is refused, noted or warned of, or gives other numbers (or has another limit)."""
    try:
        after = assemble_checkpoint(raw, tensors)
        if is_limit:
            return after.config != before.config
        actual = outputs(after)
    except (AttnkitError, AttnkitNote, AttnkitWarning):  # as of a head stored beside the table it is tied to
        return True
    return len(actual) != len(expected) or not all(map(np.array_equal, actual, expected))


def test_the_keys_of_published_cohere_2_are_read() -> None:
    """Command R7B and Command A state what transformers takes for granted."""
    published = {
        "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0, "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
        "use_parallel_embedding": True, "use_qk_norm": False, "cache_implementation": "hybrid",
    }  # fmt: skip
    config = DRAWN["cohere2"]["config"]
    assert read(config | published).config == read(config).config
    for key, value in (("layer_switch", 2), ("order_of_interleaved_layers", "global"), ("use_parallel_block", False)):
        with pytest.raises(DataError, match=key):
            read(config | {key: value})


def test_the_norms_of_olmo_have_an_epsilon_of_their_own() -> None:
    """transformers normalizes OLMo without parameters by 1e-5, whatever rms_norm_eps the file states."""
    assert read(DRAWN["olmo"]["config"] | {"rms_norm_eps": 0.25}).config.eps == 1e-5


@pytest.mark.parametrize(("name", "changes", "problem"), [
    ("deberta-v2 5.23.0", {"relative_attention": True, "position_buckets": 1, "max_relative_positions": 5}, "too few"),
    ("deberta-v2 5.23.0", {"relative_attention": True, "position_buckets": 8, "max_relative_positions": 5}, "too many"),
    ("deberta-v2 5.23.0", {"relative_attention": True, "position_buckets": 2, "max_relative_positions": 5}, ""),
    ("deberta-v2 5.23.0", {"relative_attention": True, "position_buckets": 7, "max_relative_positions": 5}, ""),
    ("deepseek_v3", {"n_group": 3, "n_routed_experts": 8}, "n_group 3 and topk_group"),
    ("deepseek_v3", {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 5}, "n_group 4 and"),
    ("deepseek_v3", {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}, ""),
    ("deepseek_v3", {"n_routed_experts": 1 << 20}, "n_routed_experts is "),
    ("t5 5.23.0", {"relative_attention_num_buckets": 3}, "too few buckets"),
    ("t5 5.23.0", {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 2}, "too short a distance"),
    ("t5 5.23.0", {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 3}, ""),
    ("t5 5.23.0", {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 2,
     "is_encoder_decoder": False}, ""),
    ("t5 5.23.0", {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 1,
     "is_encoder_decoder": False}, "too short a distance"),
    ("seq2seq", {"attention": "none", "readout": "none", "input_feeding": True}, "input_feeding needs an attention"),
    ("seq2seq", {"attention": "general", "attention_query": "previous", "input_feeding": True}, "input_feeding needs"),
    ("seq2seq", {"attention": "general", "attention_query": "current", "input_feeding": True}, ""),
    ("seq2seq", {"attention": "general", "attention_query": "current", "readout": "none"}, "attention unused"),
    ("seq2seq", {"attention": "general", "attention_query": "previous", "readout": "none"}, ""),
    ("gpt_neo", {"attention_types": [[["global"], 99]]}, "the kinds of 5 layers, and num_layers is 4"),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1], [["local"], 2]]}, ""),
    ("dinov2_with_registers 5.23.0", {"num_register_tokens": 0}, ""),
    ("dinov3_vit 5.23.0", {"num_register_tokens": 0}, ""),
    ("whisper 5.23.0", {"forced_decoder_ids": [[1, 0], [2, None], [3, 51864]]}, ""),
    ("whisper 5.23.0", {"forced_decoder_ids": [[1, 51865]]}, "forced_decoder_ids is .*of ids below 51865"),
    ("whisper 5.23.0", {"forced_decoder_ids": [[1, -1]]}, "forced_decoder_ids is"),
    ("whisper 5.23.0", {"forced_decoder_ids": [[1, 2, 3]]}, "forced_decoder_ids is"),
    ("whisper 5.23.0", {"forced_decoder_ids": ["ab"]}, "forced_decoder_ids is"),
    ("whisper 5.23.0", {"forced_decoder_ids": "ab"}, "forced_decoder_ids is"),
    ("whisper 5.23.0", {"lang_to_id": {"<|en|>": 0, "<|fr|>": 51864}}, ""),
    ("whisper 5.23.0", {"lang_to_id": {"<|en|>": 51865}}, "lang_to_id: '<|en|>' is 51865 .expected an id below 51865"),
    ("whisper 5.23.0", {"lang_to_id": {"<|en|>": -1}}, "lang_to_id: "),
    ("whisper 5.23.0", {"task_to_id": {"translate": 3}}, "task_to_id has no transcribe"),
    ("whisper 5.23.0", {"suppress_tokens": [5, 51865]}, "suppress_tokens has 51865 .expected ids below 51865.$"),
    ("whisper 5.23.0", {"suppress_tokens": [0, 51864]}, ""),
    ("wav2vec2 5.23.0", {"conv_dim": [65536, 1], "conv_stride": [1, 1], "conv_kernel": [3, 1]}, ""),
    ("bart 5.23.0", {"normalize_before": True}, "normalize_before true is not supported by family bart"),
])  # fmt: skip
def test_numbers_that_do_not_fit_each_other_and_those_that_just_do(
    name: str, changes: dict[str, Any], problem: str
) -> None:
    def open_zeros() -> None:
        raw = config_of(name) | changes
        shapes = published_tensors(raw).shapes
        assemble_checkpoint(raw, {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()})

    if problem:
        with pytest.raises(DataError, match=problem):
            open_zeros()
    else:
        open_zeros()


def test_sizes_at_the_ends_of_what_is_counted() -> None:
    raw = FULL["deberta-v2 5.23.0"] | {"relative_attention": True, "position_buckets": -1}
    assert configuration(raw, max_relative_positions=1).positions.buckets == 1
    assert configuration(raw, max_relative_positions=0).positions.buckets == raw["max_position_embeddings"]
    assert configuration(raw, position_buckets=0, max_relative_positions=5).positions.buckets == 5
    unstated = {key: value for key, value in raw.items() if key != "position_buckets"}
    assert configuration(unstated, max_relative_positions=5).positions.buckets == 5
    sparse = configuration(
        DRAWN["qwen3_moe"]["config"], num_hidden_layers=6, decoder_sparse_step=3, mlp_only_layers=[5]
    )
    assert sparse.experts.dense == (0, 1, 3, 4, 5)
    moe = {key: value for key, value in DRAWN["qwen2_moe"]["config"].items() if key != "layer_types"}
    moe |= {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}
    assert configuration(moe).stack("decoder").windows == (4, -1, 4, -1)
    qwen3 = {key: value for key, value in DRAWN["qwen3"]["config"].items() if key != "head_dim"}
    assert configuration(qwen3).stack("decoder").head_dim == 128  # whatever the width of the model is
    encoder = configuration(FULL["gemma3_text 5.23.0"], use_bidirectional_attention=True)
    assert not encoder.head and encoder.decoder is None
    pair = config_of("transformer")
    assert configuration(pair, num_encoder_layers=1).encoder.layers == 1
    assert configuration(pair, num_encoder_layers=0).encoder is None
    older = FULL["bart 5.23.0"] | {"bos_token_id": 0}
    forced = [configuration(older, force_bos_token_to_be_generated=one).special.forced_bos for one in (True, False)]
    assert forced == [0, None]
    listed = configuration(FULL["whisper 5.23.0"], forced_decoder_ids=[[1, 7], [2, None]], begin_suppress_tokens=[3])
    assert (listed.sound.forced, listed.sound.banned_first) == ((7,), (3,))
