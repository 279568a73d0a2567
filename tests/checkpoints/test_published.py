"""The config.json of published models: each opens, or is refused by the name of a computation that attnkit lacks.

tests/references/published.json holds their keys and values, and where these were looked up: in the repositories of
mlc-llm or aiconfigurator, or recalled, where the factors of LongRoPE and lists of tokens stand for those of the file.
Maps of labels are cut to a few, and tensors are zeros of no memory.
make_published.py counted the parameters of the models of transformers.
"""

import json
import math
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from attnkit.checkpoints import FAMILIES
from attnkit.checkpoints.checkpoint import fact_of, find_towers, import_family, read_family
from attnkit.checkpoints.config_reader import ConfigReader, keys_of
from attnkit.checkpoints.harmless_keys import note_unread, refuse_unread
from attnkit.checkpoints.publishing import AllTensors, assemble_checkpoint, published_tensors
from attnkit.errors import AttnkitNote, DataError
from tests.places import REFERENCES

PUBLISHED = json.loads((REFERENCES / "published.json").read_text())
LAYERS = 4  # of each model that is opened, which begin with the dense ones of DeepSeek
EXPERTS = 16
COUNTS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
COUNTS_OF_LAYERS = {key for name in FAMILIES for key in keys_of(fact_of(name, "FIELDS"), "layers")}
BY_LAYER = ("layer_types", "no_rope_layers", "attention_layers")


def made_small(raw: dict[str, Any]) -> dict[str, Any]:
    """A configuration with few layers and experts; all other sizes are those of the model."""
    small = {key: min(value, LAYERS) if key in COUNTS_OF_LAYERS else value for key, value in raw.items()}
    small |= {key: min(raw[key], EXPERTS) for key in COUNTS_OF_EXPERTS if key in raw}
    small |= {key: raw[key][:LAYERS] for key in BY_LAYER if raw.get(key)}
    small |= {key: [f"stage{LAYERS}"] for key in ("out_features",) if key in raw}
    small |= {key: [LAYERS] for key in ("out_indices",) if key in raw}
    if "attention_types" in raw:
        small["attention_types"] = [[kinds, LAYERS // len(kinds)] for kinds, _ in raw["attention_types"]]
    if "text_config" in raw:
        small["text_config"] = made_small(raw["text_config"])
    return small


def open_model(raw: dict[str, Any]) -> None:
    """Open a model of zeros; of texts and images both towers."""
    reader = ConfigReader(raw, "config.json")
    family = import_family(reader)
    modules = find_towers(family, reader, AllTensors("", [], {}))
    if not modules:
        shapes = published_tensors(raw).shapes
        assemble_checkpoint(raw, {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()})
        return
    for name, module in modules.items():
        read_family(module, family.read_tower(reader, name), AllTensors("", [], {}))
    if hasattr(family, "read_tokens"):
        family.read_tokens(reader)
    refuse_unread(reader, raw["model_type"])
    note_unread(reader, raw["model_type"])


def outcome(raw: dict[str, Any]) -> str:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            open_model(raw)
        except DataError as error:
            return error.problem
    assert all(one.category is AttnkitNote for one in noted)
    return "; ".join(str(one.message) for one in noted)


FP8 = 'fp8" is not supported by family {}: quantized weights'
LACKING = {  # model -> the computation that its error names
    "Qwen/Qwen3-235B-A22B-FP8": FP8.format("qwen3_moe"),
    "Qwen/Qwen3-30B-A3B-FP8": FP8.format("qwen3_moe"),
    "Qwen/Qwen3-32B-FP8": FP8.format("qwen3"),
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": "is not supported by family qwen3: quantized weights",
    "deepseek-ai/DeepSeek-R1": FP8.format("deepseek_v3"),
    "deepseek-ai/DeepSeek-V3": FP8.format("deepseek_v3"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": 'gptq" is not supported by family qwen2: quantized weights',
    "Qwen/Qwen2.5-7B-Instruct-1M": "is not supported by family qwen2: dual chunk attention",
    "facebook/mms-1b-all": "adapter_attn_dim 16 is not supported by family wav2vec2: adapters of each language",
    "microsoft/deberta-v2-xlarge": "conv_kernel_size 3 is not supported by family deberta-v2: a convolution beside",
}
NOTED = {"tiiuae/Falcon3-7B-Instruct": "family llama ignores activation, as transformers does"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_opens_or_names_a_computation(name: str) -> None:
    told = outcome(made_small(PUBLISHED[name]["config"]))
    expected = LACKING.get(name) or NOTED.get(name, "")
    assert expected in told and bool(told) is bool(expected)


def test_a_published_model_has_the_parameters_of_transformers() -> None:
    expected = {name: one["parameters"] for name, one in PUBLISHED.items() if "parameters" in one}
    shapes = {name: published_tensors(made_small(PUBLISHED[name]["config"])).shapes for name in expected}
    assert {name: sum(map(math.prod, one.values())) for name, one in shapes.items()} == expected


def test_the_published_models_are_of_all_families() -> None:
    families = Counter(one["config"]["model_type"] for one in PUBLISHED.values())
    towers = {f"{name}_{tower}_model" for name in ("clip", "siglip") for tower in ("text", "vision")}
    texts = {"qwen3_5_text", "qwen3_5_moe_text"}  # which are published inside of models of texts and images
    assert {*FAMILIES} - {*families} == {"lstm", "seq2seq", "transformer", *towers, *texts}
    assert len(PUBLISHED) >= 150 and set(LACKING) | set(NOTED) <= set(PUBLISHED)
    assert {one["from"] for one in PUBLISHED.values()} == {"mlc-llm", "aiconfigurator", "recalled"}
