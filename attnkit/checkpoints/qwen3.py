"""Qwen3: Llama with normed queries and keys, free head width, Qwen2's windows."""

from attnkit.checkpoints import llama, qwen2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = qwen2
RERANKER = "qwen3-reranker"
GGUF = llama.USUAL_GGUF | {"infer": (*llama.BIASED, "whole rotation")}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = llama.read_config(raw, stored, size=32768, head_dim=128, kv_heads=32, qk_norm="head")
    return qwen2.limit_last_layers(raw, config)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    return llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, qk_norm=True)
