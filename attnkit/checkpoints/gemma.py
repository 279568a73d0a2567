"""Gemma: Llama with scaled embeddings, norms by 1 + weight, a GELU gate, tied."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config
from attnkit.model.formulas.activations import PUBLISHED

VARIANT_OF = llama
FIELDS = llama.FIELDS | {"activation": "hidden_act hidden_activation"}
GGUF_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
GGUF = llama.USUAL_GGUF | {
    "changes": {**{f"blk.{{n}}.{name}": "less one" for name in GGUF_NORMS}, "output_norm": "less one"}
}
SCALES_EMBEDDINGS = True
ACTIVATIONS = PUBLISHED | {"gelu": "gelu-tanh"}  # what files of the first Gemma mean by gelu


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    key = "hidden_activation" if raw.has("hidden_activation") else "hidden_act"
    return read_gemma(raw, stored, activation=raw.get_choice(key, ACTIVATIONS, "gelu_pytorch_tanh"))


def read_gemma(
    raw: ConfigReader, stored: Weights, *, activation: str, size: int = 8192, kv_heads: int = 16, **choices: Any
) -> Config:
    """The configuration of a Gemma; choices: fields of Config."""
    raw.ignore("hidden_act")  # where hidden_activation is read
    if raw.get_bool("use_bidirectional_attention", False):
        raise raw.error("use_bidirectional_attention is supported for gemma3_text alone")
    scale = sqrt(raw.get_int("hidden_size"))
    return llama.read_config(
        raw,
        stored,
        size=size,
        head_dim=256,
        kv_heads=kv_heads,
        tied=True,
        activation=activation,
        embed_scale=scale,
        **choices,
    )


def map_layers(raw: ConfigReader) -> Layers:
    return map_gemma(raw)


def map_gemma(raw: ConfigReader, norms: Mapping[str, str] = llama.NORMS, qk_norm: bool = False) -> Layers:
    """Map the parameters of a Gemma, whose norms multiply by 1 + weight."""
    is_biased = raw.get_bool("attention_bias", False)
    return llama.map_llama(
        raw, qkv_bias=is_biased, output_bias=is_biased, norms=norms, offset=1.0, tied=True, qk_norm=qk_norm
    )
