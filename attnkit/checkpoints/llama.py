"""Llama: a pre-norm decoder with RMS norms, rotary positions, grouped heads and a gated feed-forward network."""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Layers, embedding_table, linear, norm, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("model.",)
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    heads, size = raw.whole("num_attention_heads"), raw.whole("max_position_embeddings", 2048)
    kv_heads = raw.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise raw.wrong(f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")
    head_dim = None if raw.has("head_dim") else raw.head_dim("hidden_size", "num_attention_heads")
    has_head = stored.has("lm_head.weight") or raw.built_as("ForCausalLM")
    return Config(
        raw.text("model_type"),
        raw.whole("hidden_size"),
        decoder=StackConfig(
            layers=raw.whole("num_hidden_layers"),
            heads=heads,
            hidden=raw.whole("intermediate_size"),
            kv_heads=kv_heads,
            head_dim=raw.whole("head_dim", head_dim),
            vocab=raw.whole("vocab_size"),
            causal=True,
            final_norm=True,
        ),
        norm="rms",
        eps=raw.number("rms_norm_eps", 1e-6),
        norm_first=True,
        activation=raw.choice("hidden_act", ACTIVATIONS, "silu"),
        positions=PositionConfig("rotary", size=size, rope=_rope(raw, size)),
        head=raw.flag("tie_word_embeddings", False) or has_head,
        special=raw.special(),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    biased = raw.flag("attention_bias", False)
    return mapping(raw, biased, biased, raw.flag("mlp_bias", False))


def mapping(raw: ConfigReader, inputs: bool = False, output: bool = False, ffn: bool = False) -> Layers:
    """Where the parameters lie, and which have biases: queries, keys and values, their output, the network."""
    at, words = "layers.{n}", "embed_tokens.weight"
    is_tied = raw.flag("tie_word_embeddings", False)
    return {
        "decoder.embed": embedding_table(words),
        "decoder.{n}.norm1": norm(f"{at}.input_layernorm", biased=False),
        "decoder.{n}.self": linear("q", f"{at}.self_attn.q_proj", inputs)
        | linear("k", f"{at}.self_attn.k_proj", inputs)
        | linear("v", f"{at}.self_attn.v_proj", inputs)
        | linear("o", f"{at}.self_attn.o_proj", output),
        "decoder.{n}.norm2": norm(f"{at}.post_attention_layernorm", biased=False),
        "decoder.{n}.ffn": linear("1", f"{at}.mlp.gate_proj", ffn)
        | linear("3", f"{at}.mlp.up_proj", ffn)
        | linear("2", f"{at}.mlp.down_proj", ffn),
        "decoder.norm": norm("norm", biased=False),
        "head": tied_head(words) if is_tied else tied_head("lm_head.weight"),
    }


def windowed(config: Config, sizes: tuple[int, ...]) -> Config:
    """The model whose layers see so many keys each, the query's own among them; 0: all."""
    stack = config.stack("decoder")
    return replace(config, decoder=replace(stack, windows=tuple(size - 1 for size in sizes) if any(sizes) else ()))


def _rope(raw: ConfigReader, size: int) -> dict[str, Any]:
    """The rotation, said in one object since version 5 of the format, in two places before."""
    said = raw.mapping("rope_parameters") or {**raw.mapping("rope_scaling"), "rope_theta": raw.values.get("rope_theta")}
    inner = ConfigReader(said, raw.name)
    kind = inner.text("rope_type", inner.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise raw.wrong(f"rope_type {kind[:40]!r} is not supported (use {', '.join(ROPE_TYPES)})")
    theta = inner.number("rope_theta", raw.number("rope_theta", 10000.0))
    known = {key: value for key, value in said.items() if value is not None and key != "type"}
    return {"max_position_embeddings": size, **known, "rope_type": kind, "rope_theta": theta}
