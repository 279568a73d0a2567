"""Llama: a pre-norm decoder with RMS norm, RoPE, grouped queries and a gated FFN."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnkit.checkpoints.config_reader import ConfigReader, StackKeys
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.activations import PUBLISHED
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("model.",)
KEYS = StackKeys(kv_heads="num_key_value_heads", head_dim="head_dim")
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
LAYER, WORDS = "layers.{n}", "embed_tokens.weight"
FULL, SLIDING = "full_attention", "sliding_attention"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    size = raw.get_int("max_position_embeddings", 2048)
    has_head = stored.has("lm_head.weight") or raw.has_architecture("ForCausalLM")
    return Config(
        raw.get_str("model_type"),
        raw.get_int("hidden_size"),
        decoder=raw.get_stack(KEYS, causal=True, final_norm=True),
        norm="rms",
        eps=raw.get_float("rms_norm_eps", 1e-6),
        norm_first=True,
        activation=raw.get_choice("hidden_act", PUBLISHED, "silu"),
        positions=PositionConfig("rotary", size=size, rope=_read_rope(raw, size)),
        head=raw.get_bool("tie_word_embeddings", False) or has_head,
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    return map_llama(raw, is_biased, is_biased, raw.get_bool("mlp_bias", False))


def map_llama(raw: ConfigReader, qkv_bias: bool = False, output_bias: bool = False, ffn_bias: bool = False) -> Layers:
    """Map the parameters of the Llama families, which differ in their biases."""
    is_tied = raw.get_bool("tie_word_embeddings", False)
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.{n}.norm1": norm(f"{LAYER}.input_layernorm", biased=False),
        "decoder.{n}.self": map_linear(f"{LAYER}.self_attn", wq="q_proj", wk="k_proj", wv="v_proj", biased=qkv_bias)
        | map_linear(f"{LAYER}.self_attn", wo="o_proj", biased=output_bias),
        "decoder.{n}.norm2": norm(f"{LAYER}.post_attention_layernorm", biased=False),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="gate_proj", w3="up_proj", w2="down_proj", biased=ffn_bias),
        "decoder.norm": norm("norm", biased=False),
        "head": tied_head(WORDS if is_tied else "lm_head.weight"),
    }


def limit_window(config: Config, sizes: Sequence[int]) -> Config:
    """Limit each layer to a sliding window of keys, the query's own included."""
    windows = tuple(size - 1 for size in sizes) if any(sizes) else ()
    return replace(config, decoder=replace(config.stack("decoder"), windows=windows))


def read_layer_types(raw: ConfigReader, default: Sequence[str]) -> list[str]:
    """The kind of attention of each layer, by `layer_types`, else the default."""
    kinds = raw.values.get("layer_types") or [*default]
    if not isinstance(kinds, list) or len(kinds) != len(default) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise raw.error(f"layer_types is not a list of {len(default)} times {FULL} or {SLIDING}")
    return kinds


def _read_rope(raw: ConfigReader, size: int) -> dict[str, Any]:
    """The rotation: one object since version 5 of the format, two keys before."""
    older = {**raw.get_dict("rope_scaling"), "rope_theta": raw.values.get("rope_theta")}
    theta = raw.get_float("rope_theta", 10000.0)
    return read_rope(raw, raw.get_dict("rope_parameters") or older, size, theta)


def read_rope(raw: ConfigReader, rope: Mapping[str, Any], size: int, theta: float) -> dict[str, Any]:
    """A rotation in the form that `rope_frequencies` accepts."""
    inner = ConfigReader(rope, raw.name)
    kind = inner.get_str("rope_type", inner.get_str("type", "default"))
    if kind not in ROPE_TYPES:
        raise raw.error(f"rope_type {kind[:40]!r} is not supported (use {', '.join(ROPE_TYPES)})")
    theta = inner.get_float("rope_theta", theta)
    others = {key: value for key, value in rope.items() if value is not None and key != "type"}
    return {"max_position_embeddings": size, **others, "rope_type": kind, "rope_theta": theta}
