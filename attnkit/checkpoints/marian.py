"""Marian as it was ported: a post-norm encoder and decoder, sinusoidal positions in halves, a bias on the logits."""

from math import sqrt

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Entries, Layers, TensorSpec, embedding_table, linear, norm, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("model.",)
BIAS = "final_logits_bias"


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    width, vocab = raw.whole("d_model"), raw.whole("vocab_size")
    return Config(
        "marian",
        width,
        encoder=_stack(raw, "encoder", vocab),
        decoder=_stack(raw, "decoder", raw.whole("decoder_vocab_size", vocab)),
        activation=raw.choice("activation_function", ACTIVATIONS, "gelu"),
        positions=PositionConfig("sinusoidal", size=raw.whole("max_position_embeddings", 1024), layout="halves"),
        embed_scale=sqrt(width) if raw.flag("scale_embedding", False) else 1.0,
        head=stored.has(BIAS) or raw.built_as("MTModel"),
        special=raw.special(start=raw.token("pad_token_id"), eos=(0,)),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    shared = ["shared.weight"] if raw.flag("share_encoder_decoder_embeddings", True) else []
    target = [*shared, "decoder.embed_tokens.weight"]
    is_tied = raw.flag("tie_word_embeddings", True)
    found: dict[str, Entries] = {
        "encoder.embed": embedding_table(*shared, "encoder.embed_tokens.weight"),
        "decoder.embed": embedding_table(*target),
        "head": (tied_head(*target) if is_tied else tied_head("lm_head.weight")) | {"b": TensorSpec((BIAS,), lead=1)},
    }
    for stack, middle in (("encoder", ()), ("decoder", (("cross", "encoder_attn"),))):
        at, parts = f"{stack}.layers.{{n}}", [("self", "self_attn"), *middle]
        for order, (name, published) in enumerate(parts, start=1):
            found[f"{stack}.{{n}}.{name}"] = _attention(f"{at}.{published}")
            found[f"{stack}.{{n}}.norm{order}"] = norm(f"{at}.{published}_layer_norm")
        found[f"{stack}.{{n}}.ffn"] = linear("1", f"{at}.fc1") | linear("2", f"{at}.fc2")
        found[f"{stack}.{{n}}.norm{len(parts) + 1}"] = norm(f"{at}.final_layer_norm")
    return found


def _stack(raw: ConfigReader, name: str, vocab: int) -> StackConfig:
    heads = raw.whole(f"{name}_attention_heads")
    return StackConfig(
        layers=raw.whole(f"{name}_layers"),
        heads=heads,
        hidden=raw.whole(f"{name}_ffn_dim"),
        kv_heads=heads,
        head_dim=raw.head_dim("d_model", f"{name}_attention_heads"),
        vocab=vocab,
        causal=name == "decoder",
        cross=name == "decoder",
    )


def _attention(stem: str) -> Entries:
    pairs = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return {key: entry for name, end in pairs.items() for key, entry in linear(name, f"{stem}.{end}").items()}
