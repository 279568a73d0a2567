"""Gemma 2: Gemma with norms before and after each sub-layer, soft caps, and windows in every other layer."""

from typing import Any

from attnkit.checkpoints import gemma, llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.activations import PUBLISHED
from attnkit.model.config import Config

PREFIXES = llama.PREFIXES
NORMS = {
    "norm1": "input_layernorm",
    "output_norm1": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "output_norm2": "post_feedforward_layernorm",
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = read_sandwich(raw, stored, caps=(50.0, 30.0), size=8192)
    return llama.limit_layers(raw, config, llama.every(2, config.stack("decoder").layers), window=4096)


def read_sandwich(raw: ConfigReader, stored: Weights, caps: tuple[float, float], size: int, **choices: Any) -> Config:
    """The configuration of a Gemma from 2 on.

    caps  of scores and of logits where the file has none
    """
    softcap, logit_softcap = (
        0.0 if raw.values.get(key, cap) is None or (not cap and not raw.has(key)) else raw.get_float(key, cap)
        for key, cap in zip(("attn_logit_softcapping", "final_logit_softcapping"), caps, strict=True)
    )
    return gemma.read_gemma(
        raw,
        stored,
        activation=raw.get_choice("hidden_activation", PUBLISHED, "gelu_pytorch_tanh"),
        size=size,
        norm_output=True,
        scale=raw.get_float("query_pre_attn_scalar", 256) ** -0.5,
        softcap=softcap,
        logit_softcap=logit_softcap,
        **choices,
    )


def map_layers(raw: ConfigReader) -> Layers:
    return gemma.map_gemma(raw, NORMS)
