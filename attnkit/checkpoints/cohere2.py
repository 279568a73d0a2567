"""Cohere 2: Cohere with windows in three of four layers, which alone rotate."""

from dataclasses import replace

from attnkit.checkpoints import cohere, llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config

VARIANT_OF = cohere
FIELDS = cohere.FIELDS | {"windows": "sliding_window", "unrotated layers": "layer_types"}
GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.GGUF_SIZES, "norm eps", "windows", "logit factor"),
    "infer": (*llama.BIASED, "whole rotation"),
}
map_layers = cohere.map_layers
STATED = {  # what files say of every Cohere 2
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_gated_activation": True,
    "use_parallel_block": True,
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    raw.ignore("layer_switch", "use_parallel_embedding")
    raw.expect(**STATED, use_embedding_sharing=is_tied)
    config = cohere.read_cohere(raw, stored)
    layers = config.stack("decoder").layers
    pattern = raw.get_int("sliding_window_pattern", 4)
    if raw.get_int("layer_switch", pattern) != pattern:
        raise raw.error(f"layer_switch {raw.values['layer_switch']} (expected {pattern}, as sliding_window_pattern)")
    kinds = llama.read_layer_types(raw, llama.every(pattern, layers))
    config = llama.limit_layers(raw, config, kinds, window=4096)
    unrotated = tuple(number for number, kind in enumerate(kinds) if kind == llama.FULL)
    return replace(config, positions=replace(config.positions, unrotated=unrotated))
