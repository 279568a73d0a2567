"""Bamba: Llama with state spaces in most layers; attention rotates half of a head."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnkit.checkpoints import llama, mamba2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_linear, norm
from attnkit.model.config import Config
from attnkit.model.formulas.recall import RecallConfig

VARIANT_OF = llama
SPACE = {  # facts of the state space of hybrid families
    "state": "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_expand", "state taps": "mamba_d_conv",
    "step limits": "time_step_limit",
}  # fmt: skip
FIELDS = llama.FIELDS | SPACE | {
    "biases": "attention_bias mlp_bias mamba_proj_bias mamba_conv_bias", "mixers": "attn_layer_indices",
    "rotated features": llama.PARTIAL,
}  # fmt: skip
KEYS = mamba2.Keys(
    "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_chunk_size", 1, 256
)
SMALLEST = {"hidden_size": 4, "head_dim": 4, "mamba_n_heads": 4, "mamba_d_head": 2, "mamba_d_state": 3}
FORMS = ({"attn_layer_indices": [0]},)
LAYER = llama.LAYER
NORMS = {"norm1": f"{LAYER}.input_layernorm", "norm2": f"{LAYER}.pre_ff_layernorm"}
HALF = 0.5


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("layer_types", "layers_block_type", "num_logits_to_keep", "z_loss_coefficient")
    plain = {key: value for key, value in raw.values.plain.items() if key != llama.PARTIAL}  # which no code reads
    raw.ignore(llama.PARTIAL)
    raw = raw.replaced(plain)
    config = llama.read_config(
        raw,
        stored,
        eps=raw.get_float("rms_norm_eps", 1e-5),
        size=262144,
        kv_heads=8,
        recall=read_space(raw),
    )
    config = llama.rotate_partly(raw, config, HALF)
    raw.expect(attn_rotary_emb=config.positions.rotary_dim)
    full, layers = raw.values.get("attn_layer_indices") or [], config.stack("decoder").layers
    if not isinstance(full, list) or not all(type(number) is int for number in full):
        raise raw.error("attn_layer_indices is no list of the numbers of layers")
    mixers = tuple("self" if number in full else "recall" for number in range(layers))
    return replace(config, decoder=replace(config.stack("decoder"), mixers=mixers))


def read_space(raw: ConfigReader, inner: int | None = None, **choices: Any) -> RecallConfig:
    """Read the state space of a hybrid family, whose keys begin with mamba_.

    inner    features of all heads; by default `mamba_expand` times the width
    choices  fields of RecallConfig
    """
    inner = raw.get_int("mamba_expand", 2) * raw.get_int("hidden_size") if inner is None else inner
    heads = raw.get_int("mamba_n_heads", 128)
    if raw.values.get("mamba_d_head", "auto") == "auto":
        return mamba2.read_space(raw, KEYS, inner, inner // heads, **choices)
    return mamba2.read_space(raw, KEYS, inner, raw.get_int("mamba_d_head"), **choices)


def map_layers(raw: ConfigReader) -> Layers:
    biased = raw.get_bool("mamba_proj_bias", False)
    return map_hybrid(raw, map_space(raw, read_space(raw), biased), norms=NORMS)


def infer_space(file: Any) -> dict[str, Any]:
    """The biases of a state space in a GGUF file."""
    found = mamba2.infer_space(file)
    return {"mamba_proj_bias": found["in"], "mamba_conv_bias": found["conv1d"]}


def infer_mixers(file: Any) -> dict[str, Any]:
    """Which layers have attention, and its heads of keys."""
    groups = file.get_counts("attention.head_count_kv")
    full = [number for number, count in enumerate(groups) if count]
    return {"num_key_value_heads": max(groups, default=0), "attn_layer_indices": full}


def infer_inner(file: Any) -> dict[str, Any]:
    """How many times as wide as the model its state spaces are."""
    width, inner = max(file.get_int("embedding_length", 1), 1), file.get_int("ssm.inner_size")
    return {"mamba_expand": inner // width}


def infer_half(file: Any) -> dict[str, Any]:
    """The part of each head that is rotated, beside theta."""
    part = file.get_int("rope.dimension_count", file.head_dim() // 2) / file.head_dim()
    return {"rope_parameters": {"rope_theta": file.get("rope.freq_base", 10000.0), llama.PARTIAL: part}}


SPACE_KEYS = (
    ("mamba_d_conv", "state taps"), ("mamba_d_state", "state width"), ("mamba_n_groups", "state groups"),
    ("mamba_n_heads", "state heads"),
)  # fmt: skip
HYBRID_NAMES = {
    **mamba2.name_space("mamba"), "ffn_norm": "pre_ff_layernorm",
    **{f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
}  # fmt: skip
NAMES = llama.name_gguf(HYBRID_NAMES) | {"output_norm": "model.final_layernorm"}
GGUF: dict[str, Any] = {
    "keys": ("width", "layers", "hidden width", "heads", "longest text", ("rms_norm_eps", "rms norm eps"), *SPACE_KEYS),
    "names": NAMES,
    "infer": ("head", "biases", infer_mixers, infer_inner, infer_space, infer_half),
    "changes": {**llama.UNROTATED, **mamba2.CHANGES},
}


def map_space(raw: ConfigReader, recall: RecallConfig, out_bias: bool) -> Mapping[str, TensorSpec]:
    in_bias, conv_bias = raw.get_bool("mamba_proj_bias", False), raw.get_bool("mamba_conv_bias", True)
    return mamba2.map_space(recall, f"{LAYER}.mamba", in_bias, out_bias, conv_bias)


def map_hybrid(raw: ConfigReader, space: Mapping[str, TensorSpec], norms: Mapping[str, str]) -> Layers:
    """Map Llama's layers with other names of norms and networks, and state spaces."""
    named = {f"decoder.{{n}}.{part}": norm(name, biased=False) for part, name in norms.items()}
    network = map_linear(
        f"{LAYER}.feed_forward", w1="gate_proj", w3="up_proj", w2="down_proj", biased=raw.get_bool("mlp_bias", False)
    )
    own = {"decoder.{n}.recall": space, "decoder.{n}.ffn": network, "decoder.norm": norm("final_layernorm", False)}
    return {**llama.map_layers(raw), **named, **own}
