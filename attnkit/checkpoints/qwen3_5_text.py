"""Qwen3.5 without experts: Qwen3-Next with flat projections and one network."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnkit.checkpoints import llama, qwen3_next
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_linear
from attnkit.model.config import Config
from attnkit.model.dtypes import Array

VARIANT_OF = qwen3_next
MIXTURES = ("experts", "chosen experts", "expert width", "dense layers", "router", "shared width")
FIELDS = {key: value for key, value in qwen3_next.FIELDS.items() if key not in MIXTURES}
TOKENIZER = "Qwen3_5Tokenizer"
PREFIXES = ("model.", "model.language_model.", "language_model.")


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return qwen3_next.read_hybrid(raw, stored, kv_heads=4)


def map_layers(raw: ConfigReader) -> Layers:
    return qwen3_next.map_hybrid(raw) | {"decoder.{n}.recall": map_recall(raw)}


def map_recall(raw: ConfigReader) -> dict[str, TensorSpec]:
    """Map a layer that keeps a state, with queries, keys and values side by side."""
    heads, groups, key, value, _ = qwen3_next.read_sizes(raw).values()
    units = {"q": groups * key, "k": groups * key, "v": heads * value}
    return (
        qwen3_next.map_shares(f"{qwen3_next.RECALL}.in_proj_qkv", units, 1)
        | map_linear(qwen3_next.RECALL, wg="in_proj_z", wbeta="in_proj_b", wdt="in_proj_a", biased=False)
        | qwen3_next.map_rest(raw)
    )


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes.

    Every fourth layer has attention. States have the heads of attention.
    """
    width = recipe.dim // recipe.heads
    rotated = {"partial_rotary_factor": 0.25 if width % 8 == 0 else 1.0, "rope_theta": 1e4, "rope_type": "default"}
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "attention_bias": False,
        "head_dim": width,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": llama.new_values(recipe, special)["intermediate_size"],
        "layer_types": [qwen3_next.LINEAR if (number + 1) % 4 else llama.FULL for number in range(recipe.layers)],
        "linear_conv_kernel_dim": 4,
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), width),
        **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), recipe.heads),
        "rms_norm_eps": 1e-6,
        "rope_parameters": rotated,
        "tie_word_embeddings": True,
    }


def group_values(before: int, is_by_column: bool, array: Array, values: Mapping[str, Any]) -> Array:
    """Heads of values in the published order; llama.cpp has those of a key head apart.

    before  rows of queries and keys before them, in heads of queries and keys; is_by_column: heads are columns

    >>> sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 1}
    >>> group_values(2, False, np.arange(8), sizes)
    array([0, 1, 2, 3, 4, 6, 5, 7])
    """
    groups, heads = values["linear_num_key_heads"], values["linear_num_value_heads"]
    rows = array.T if is_by_column else array
    first = before * groups * values.get("linear_key_head_dim", 128)
    kept, moved = rows[:first], rows[first:]
    moved = moved.reshape(heads // groups, groups, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(moved.shape)
    ordered = np.concatenate([kept, moved])
    return ordered.T if is_by_column else ordered


ROWS = partial(group_values, 0, False)
NAMES = llama.name_gguf(
    {**qwen3_next.BLOCK, "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z"}
)
CHANGES = qwen3_next.CHANGES | {
    **{f"blk.{{n}}.{name}": (ROWS,) for name in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_dt.bias")},
    "blk.{n}.attn_qkv": (partial(group_values, 2, False),),
    "blk.{n}.ssm_out": (partial(group_values, 0, True),),
    "blk.{n}.ssm_a": (lambda array, values: np.log(-ROWS(array, values)),),
    "blk.{n}.ssm_conv1d": (
        lambda array, values: group_values(2, False, array, values)[:, None],
        lambda shape: (shape[0], 1, *shape[1:]),
    ),
}
GGUF = {
    "keys": (*llama.USUAL_GGUF["keys"], *qwen3_next.STATE_KEYS),
    "names": NAMES,
    "infer": qwen3_next.INFER,
    "changes": CHANGES,
}
