"""Gemma 2: Gemma with norms around each sub-layer, soft caps and windows.

Every other layer has a window.
"""

from functools import partial
from typing import Any

from attnkit.checkpoints import gemma, llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config
from attnkit.model.formulas.activations import PUBLISHED

VARIANT_OF = gemma
FIELDS = llama.WINDOWED | {
    "activation": "hidden_activation", "score scale": "query_pre_attn_scalar", "score cap": "attn_logit_softcapping",
    "logit cap": "final_logit_softcapping",
}  # fmt: skip
NORMS = {
    "norm1": "input_layernorm",
    "output_norm1": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "output_norm2": "post_feedforward_layernorm",
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.expect(sliding_window_size=raw.values.get("sliding_window", 4096))  # stated twice
    softcap = read_cap(raw, "attn_logit_softcapping", 50.0)
    logit_softcap = read_cap(raw, "final_logit_softcapping", 30.0)
    config = read_sandwich(raw, stored, size=8192, softcap=softcap, logit_softcap=logit_softcap)
    return llama.limit_layers(raw, config, llama.every(2, config.stack("decoder").layers), window=4096)


def read_cap(raw: ConfigReader, key: str, default: float | None = None) -> float:
    """A soft cap; null: none, which is 0."""
    return 0.0 if raw.values.get(key, default) is None else raw.get_float(key, default)


def read_sandwich(raw: ConfigReader, stored: Weights, size: int, **choices: Any) -> Config:
    """The configuration of a Gemma from 2 on; choices: fields of Config."""
    return gemma.read_gemma(
        raw,
        stored,
        activation=raw.get_choice("hidden_activation", PUBLISHED, "gelu_pytorch_tanh"),
        size=size,
        kv_heads=4,
        norm_output=True,
        scale=raw.get_float("query_pre_attn_scalar", 256) ** -0.5,
        **choices,
    )


def map_layers(raw: ConfigReader) -> Layers:
    return gemma.map_gemma(raw, NORMS)


def infer_query_scale(file: Any, layers: int) -> dict[str, Any]:
    """Infer the number whose root divides the scores.

    It is width by heads for the largest of the models, which its number of layers tells.
    """
    width, heads = file.get_int("embedding_length"), file.get_int("attention.head_count")
    is_largest = file.get_int("block_count") == layers and heads > 0
    return {"query_pre_attn_scalar": width // heads if is_largest else file.head_dim()}


GGUF = gemma.GGUF | {
    "keys": (*gemma.GGUF["keys"], "windows", "score cap", "logit cap"),
    "names": llama.name_gguf(
        {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    ),
    "infer": (*gemma.GGUF["infer"], partial(infer_query_scale, layers=46)),
}
