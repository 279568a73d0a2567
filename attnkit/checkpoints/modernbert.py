"""ModernBERT: a pre-norm encoder with RoPE, windows in most layers, a gated FFN."""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, Heads, map_head, read_head
from attnkit.checkpoints.llama import FULL, SLIDING, read_layer_types, read_rope
from attnkit.checkpoints.weights import (
    Layers,
    TensorSpec,
    Weights,
    embedding_table,
    map_fused,
    map_linear,
    norm,
    tied_head,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("model.",)
FIELDS = USUAL | {
    "windows": "local_attention", "norm": "norm_bias", "norm eps": "norm_eps", "activation": "hidden_activation",
    "biases": "attention_bias mlp_bias", "theta": "rope_theta global_rope_theta", "scaling": "rope_type type",
    "window theta": "local_rope_theta rope_theta", "window scaling": "rope_type type", "pooling": "classifier_pooling",
}  # fmt: skip
WORDS, LAYER = "embeddings.tok_embeddings.weight", "layers.{n}"
POOLINGS = {"cls": "first", "mean": "mean"}  # of a head of whole texts


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    size, has_head = raw.get_int("max_position_embeddings", 8192), stored.has("head.dense.weight")
    raw.expect(head_dim=raw.get_head_dim("hidden_size", "num_attention_heads"))
    raw.ignore("layer_norm_eps")  # norm_eps is what the model reads
    stack = raw.get_stack(FIELDS, final_norm=True)
    config = Config(
        "modernbert",
        raw.get_int("hidden_size"),
        encoder=replace(stack, windows=_read_windows(raw, stack.layers), first_norm=False),
        eps=raw.get_float("norm_eps", 1e-5),
        norm_first=True,
        activation=raw.get_choice("hidden_activation", PUBLISHED, "gelu"),
        positions=PositionConfig(
            "rotary",
            size=size,
            rope=_read_rope(raw, size, FULL, raw.get_float("global_rope_theta", 160000.0)),
            local_rope=_read_rope(raw, size, SLIDING, raw.get_float("local_rope_theta", 10000.0)),
        ),
        embed_norm=True,
        head=has_head,
        transform=has_head,
        head_activation=_head_activation(raw),
        special=raw.get_special_tokens(),
    )
    return replace(config, **read_head(raw, stored, _heads(raw)))


def _heads(raw: ConfigReader) -> Heads:
    """The published names of the heads, which begin as the masked-word head does."""
    head = Head("classifier", dense="head.dense", activation=_head_activation(raw), norm="head.norm")
    pooling = raw.get_choice("classifier_pooling", POOLINGS, "cls")
    return {"sequence": head._replace(pooling=pooling), "token": head, "question": head}


def _head_activation(raw: ConfigReader) -> str:
    return raw.get_choice("classifier_activation", PUBLISHED, "gelu")


def map_layers(raw: ConfigReader) -> Layers:
    attention, ffn = raw.get_bool("attention_bias", False), raw.get_bool("mlp_bias", False)
    has_beta, is_tied = raw.get_bool("norm_bias", False), raw.get_bool("tie_word_embeddings", True)
    qkv, gates = f"{LAYER}.attn.Wqkv", f"{LAYER}.mlp.Wi"
    words = tied_head("decoder.weight", to=WORDS * is_tied)
    bias = {"b": TensorSpec(("decoder.bias",))} if raw.get_bool("decoder_bias", True) else {}
    return {
        "encoder.embed": embedding_table(WORDS),
        "encoder.embed_norm": norm("embeddings.norm", has_beta),
        "encoder.{n}.norm1": norm(f"{LAYER}.attn_norm", has_beta),
        "encoder.{n}.self": map_fused("qkv", f"{qkv}.weight", f"{qkv}.bias" * attention)
        | map_linear(f"{LAYER}.attn", wo="Wo", biased=attention),
        "encoder.{n}.norm2": norm(f"{LAYER}.mlp_norm", has_beta),
        "encoder.{n}.ffn": map_fused("13", f"{gates}.weight", f"{gates}.bias" * ffn)
        | map_linear(f"{LAYER}.mlp", w2="Wo", biased=ffn),
        "encoder.norm": norm("final_norm", has_beta),
        "head.dense": map_linear(w="head.dense", biased=raw.get_bool("classifier_bias", False)),
        "head.norm": norm("head.norm", has_beta),
        "head": map_head(raw, _heads(raw)).get("head", words | bias),
    }


def _read_windows(raw: ConfigReader, layers: int) -> tuple[int, ...]:
    """For each layer, how many keys before and after a query it reads. -1 is all."""
    every, half = raw.get_int("global_attn_every_n_layers", 3), raw.get_int("local_attention", 128) // 2
    kinds = read_layer_types(raw, [SLIDING if number % every else FULL for number in range(layers)])
    return tuple(half if kind == SLIDING else -1 for kind in kinds)


def _read_rope(raw: ConfigReader, size: int, kind: str, theta: float) -> dict[str, Any]:
    rope = raw.get_object("rope_parameters").get_object(kind)
    rope = rope if rope.values else raw.get_object("rope_scaling")
    return read_rope(raw, rope.values, size, theta)
