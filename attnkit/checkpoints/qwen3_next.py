"""Qwen3-Next: the gated delta rule in most layers, gated attention in others.

Its networks are experts. All norms multiply by 1 + weight but the one of what is read of a state, which multiplies by
its weight.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import log
from typing import Any

import numpy as np

from attnkit.checkpoints import llama, qwen2_moe, qwen3_moe
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import map_mixture
from attnkit.checkpoints.weights import Layers, Share, Specs, TensorSpec, Weights, map_linear
from attnkit.errors import DataError
from attnkit.model.config import Config
from attnkit.model.dtypes import Array
from attnkit.model.formulas.recall import RecallConfig

VARIANT_OF = qwen2_moe
LINEAR = "linear_attention"
MIXERS = {LINEAR: "recall", "mamba": "recall", llama.FULL: "self", "attention": "self"}  # kinds of layers, old ones too
FIELDS = {key: value for key, value in qwen2_moe.FIELDS.items() if key != "windows"} | {
    "biases": "attention_bias", "mixers": "layer_types full_attention_interval",
    "state": "linear_num_value_heads", "state taps": "linear_conv_kernel_dim", "rotated features": llama.PARTIAL,
}  # fmt: skip
SMALLEST = {
    "head_dim": 8, "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_value_head_dim": 3,
    "linear_key_head_dim": 2,
}  # fmt: skip
FORMS = ({"full_attention_interval": 1},)
ATTENTION = f"{llama.LAYER}.self_attn"
RECALL = f"{llama.LAYER}.linear_attn"
PART = 0.25  # of the features of a head rotate where the file does not say
SIZES = {"heads": ("linear_num_value_heads", 32), "key_heads": ("linear_num_key_heads", 16),
         "key": ("linear_key_head_dim", 128), "value": ("linear_value_head_dim", 128),
         "taps": ("linear_conv_kernel_dim", 4)}  # fmt: skip


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    shared = raw.get_int("shared_expert_intermediate_size", 512)
    experts = qwen3_moe.read_experts(raw, count=512, chosen=10, default_renormalizes=True, hidden=512, shared=shared)
    return read_hybrid(raw, stored, kv_heads=2, hidden=5632, experts=experts)


def read_hybrid(raw: ConfigReader, stored: Weights, **choices: Any) -> Config:
    """The configuration of a model with states in place of attention in some layers.

    choices  of `llama.read_config`
    """
    raw.expect(attn_output_gate=True, output_gate_type="swish", mamba_ssm_dtype="float32")
    raw.ignore(*(key for key in raw.values.plain if key.startswith("mtp_")))  # of layers that predict further tokens
    config = llama.read_config(
        raw,
        stored,
        size=32768,
        head_dim=256,
        qk_norm="head",
        gates_heads=True,
        **choices,
    )
    config = read_sections(raw, llama.rotate_partly(raw, config, PART))
    stack = config.stack("decoder")
    mixers = tuple(MIXERS[kind] for kind in read_kinds(raw, stack.layers))
    return replace(config, decoder=replace(stack, mixers=mixers), recall=read_recall(raw, config))


def read_recall(raw: ConfigReader, config: Config) -> RecallConfig:
    """The layers that keep a state by the gated delta rule."""
    heads, groups, key, value, taps = read_sizes(raw).values()
    return RecallConfig(
        "gated-delta",
        heads,
        groups,
        key,
        value,
        feature="unit",
        scale=key**-0.5,
        taps=taps,
        activation=config.activation,
        norm_groups=heads,
        shares_norm=True,
    )


def read_sizes(raw: ConfigReader) -> dict[str, int]:
    """The heads, widths and taps of the layers that keep a state."""
    sizes = {name: raw.get_int(key, default) for name, (key, default) in SIZES.items()}
    if sizes["heads"] % sizes["key_heads"]:
        values, keys = (f"{SIZES[name][0]} {sizes[name]}" for name in ("heads", "key_heads"))
        raise raw.error(f"{values} is not divisible by {keys}")
    return sizes


def read_kinds(raw: ConfigReader, layers: int) -> list[str]:
    """The kind of each layer, by `layer_types`; else every fourth one has attention."""
    every = raw.get_int("full_attention_interval", 4)
    default = [LINEAR if (number + 1) % every else llama.FULL for number in range(layers)]
    kinds = raw.values.get("layer_types") or default
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in MIXERS for kind in kinds):
        raise raw.error(f"layer_types is not a list of {layers} times {LINEAR} or {llama.FULL}")
    return kinds


def read_sections(raw: ConfigReader, config: Config) -> Config:
    """The rotation of a text, in which time, height and width are the same number.

    DataError unless their sections are those of its frequencies.
    """
    rope = {key: one for key, one in config.positions.rope.items() if not key.startswith("mrope_")}
    config = replace(config, positions=replace(config.positions, rope=rope))
    given = raw.get_object("rope_parameters")
    given.expect(mrope_interleaved=True)
    sections, pairs = given.values.get("mrope_section"), config.positions.rotary_dim // 2
    if sections is None:
        return config
    is_list = isinstance(sections, list) and len(sections) == 3 and all(type(one) is int for one in sections)
    if not is_list or sum(sections) != pairs or min(sections) < 0:
        raise raw.error(f"mrope_section {str(sections)[:40]} is not a list of 3 numbers with the sum {pairs}")
    return config


def draw_initial(
    config: Config, raw: Mapping[str, Any], part: str, name: str, usual: tuple[str, float]
) -> tuple[str, float] | tuple[str, float, float]:
    """Draw the rates of decay so that a state begins to forget slowly (Mamba-2).

    A is 1 to 16 and Δ 0.001 to 0.1, both by their logarithms; that of a small Δ = log(1 + e^b) is nearly its bias b.
    """
    ranges = {"A_log": (0.0, log(16)), "dt_bias": (log(0.001), log(0.1))}
    if name not in ranges:
        return usual
    low, high = ranges[name]
    return "uniform", (high - low) / 2, (high + low) / 2


def map_layers(raw: ConfigReader) -> Layers:
    return add_experts(map_hybrid(raw) | {"decoder.{n}.recall": map_recall(raw)})


def map_hybrid(raw: ConfigReader) -> dict[str, Specs]:
    """Map all layers but those that keep a state; queries and gates alternate by head."""
    is_biased, heads = raw.get_bool("attention_bias", False), raw.get_int("num_attention_heads")
    layers = llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, offset=1.0, qk_norm=True)
    own = dict(layers["decoder.{n}.self"])
    own |= map_shares(f"{ATTENTION}.q_proj", {"q": 1, "g": 1}, heads, is_biased)
    return {**layers, "decoder.{n}.self": own}


def map_shares(published: str, units: Mapping[str, int], groups: int, is_biased: bool = False) -> dict[str, TensorSpec]:
    """Map weights and biases to parts of one published tensor.

    Its outputs are groups, each of all parts.

    units  the relative sizes of the parts by the ends of their names

    >>> map_shares("qkv", {"q": 2, "k": 1}, 4)["wk"].share
    Share(first=2, units=1, total=3, groups=4)
    """
    specs, first = dict[str, TensorSpec](), 0
    for name, size in units.items():
        share = Share(first, size, sum(units.values()), groups)
        specs[f"w{name}"] = TensorSpec((f"{published}.weight",), True, share)
        if is_biased:
            specs[f"b{name}"] = TensorSpec((f"{published}.bias",), share=share)
        first += size
    return specs


def map_recall(raw: ConfigReader) -> dict[str, TensorSpec]:
    """Map a layer that keeps a state, whose projections are by key head."""
    heads, groups, key, value, _ = read_sizes(raw).values()
    each = heads // groups
    return (
        map_shares(f"{RECALL}.in_proj_qkvz", {"q": key, "k": key, "v": each * value, "g": each * value}, groups)
        | map_shares(f"{RECALL}.in_proj_ba", {"beta": each, "dt": each}, groups)
        | map_rest(raw)
    )


def map_rest(raw: ConfigReader) -> dict[str, TensorSpec]:
    """Map what follows the projections: convolution, gates, norm, and the result."""
    heads, groups, key, value, taps = read_sizes(raw).values()
    widths = map_shares(f"{RECALL}.conv1d", {"q": groups * key, "k": groups * key, "v": heads * value}, 1)
    return {
        **{f"conv_{name[1:]}": spec._replace(patch_shape=(1, taps)) for name, spec in widths.items()},
        "A_log": TensorSpec((f"{RECALL}.A_log",)),
        "dt_bias": TensorSpec((f"{RECALL}.dt_bias",)),
        "gamma": TensorSpec((f"{RECALL}.norm.weight",)),
        **map_linear(RECALL, wo="out_proj", biased=False),
    }


def add_experts(layers: Layers) -> Layers:
    """Map the experts, and the gate of the one that all tokens share."""
    mixture = dict(map_mixture(layers, qwen3_moe.MIXTURE, qwen3_moe.NAMES, "shared_expert"))
    gate = TensorSpec((f"{qwen3_moe.MIXTURE}.shared_expert_gate.weight",), transposed=True)
    mixture["decoder.{n}.router"] = {**mixture["decoder.{n}.router"], "shared_gate": gate}
    return mixture


def infer_states(file: Any) -> dict[str, Any]:
    """Which layers keep a state, its values, and what predicts further tokens."""
    further = file.get_int("nextn_predict_layers")
    layers, heads = file.get_int("block_count") - further, file.get_int("ssm.time_step_rank")
    inner, values = file.get_int("ssm.inner_size"), dict[str, Any]()
    if inner and heads and inner % heads:
        raise DataError(f"ssm.inner_size {inner} is not divisible by ssm.time_step_rank {heads}", file.name)
    if inner and heads:
        values["linear_value_head_dim"] = inner // heads
    if (sections := file.get("rope.dimension_sections")) is not None:
        values["rope_parameters"] = {"mrope_section": sections[:3]}
    if (keeps := file.get("attention.recurrent_layers")) is not None:
        values["layer_types"] = [LINEAR if one else llama.FULL for one in keeps][:layers]
    return values | {"num_hidden_layers": layers, "full_attention_interval": file.get_int("full_attention_interval", 4)}


def join_by_key_head(qkv: Array, gates: Array, values: Mapping[str, Any]) -> Array:
    """Queries, keys, values and gates by key head, from two tensors.

    >>> sizes = {"linear_num_key_heads": 2, "linear_key_head_dim": 1}
    >>> join_by_key_head(np.arange(8), np.arange(8, 12), sizes)
    array([ 0,  2,  4,  5,  8,  9,  1,  3,  6,  7, 10, 11])
    """
    groups = values["linear_num_key_heads"]
    keys = groups * values["linear_key_head_dim"]
    parts = [*np.split(qkv, [keys, 2 * keys]), gates]
    by_head = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(by_head, axis=1).reshape(-1, *qkv.shape[1:])


BLOCK = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "", "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a", "ssm_beta": "linear_attn.in_proj_b", "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias", "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj", "ssm_in": "linear_attn.in_proj_qkvz",
}  # fmt: skip
RATE = (lambda array, values: np.log(-array),)  # which is stored as −e^A
NORMS = ("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm")
CHANGES = {
    **{f"blk.{{n}}.{name}": "less one" for name in NORMS}, "output_norm": "less one", "blk.{n}.ssm_a": RATE,
    "blk.{n}.ssm_conv1d": (lambda array, values: array[:, None], lambda shape: (shape[0], 1, *shape[1:])),
    "blk.{n}.ffn_gate_inp_shexp": qwen2_moe.GGUF["changes"]["blk.{n}.ffn_gate_inp_shexp"],
}  # fmt: skip
STATE_KEYS = (
    ("linear_conv_kernel_dim", "state taps"), ("linear_key_head_dim", "state width"),
    ("linear_num_key_heads", "state groups"), ("linear_num_value_heads", "state heads"),
)  # fmt: skip
INFER: tuple[Any, ...] = ("head", "biases", "rotation", ("rotated part", llama.PARTIAL), infer_states)
GGUF = {
    "keys": (*llama.USUAL_GGUF["keys"], *STATE_KEYS, "experts", "chosen experts", "expert width", "shared width"),
    "names": llama.name_gguf(
        {**qwen3_moe.GGUF_EXPERTS, **BLOCK, "attn_qkv": "linear_attn.in_proj_qkvz", "attn_gate": ""}
    ),
    "infer": (*INFER, partial(qwen3_moe.infer_experts, renormalizes=True)),
    "changes": CHANGES
    | {
        "blk.{n}.attn_qkv": (
            join_by_key_head, lambda shape, gates: (shape[0] + gates[0], *shape[1:]), "blk.{n}.attn_gate.weight"
        )
    },
}  # fmt: skip
