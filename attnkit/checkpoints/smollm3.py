"""SmolLM3: Llama in which some layers do not rotate."""

from dataclasses import replace

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.WINDOWED | {"unrotated layers": "no_rope_layers no_rope_layer_interval layer_types"}
GGUF = llama.USUAL_GGUF | {"infer": (*llama.BIASED, "whole rotation"), "changes": llama.UNROTATED}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = llama.read_config(raw, stored, theta=2e6, size=32768, kv_heads=4, tied=True)
    raw.ignore("max_window_layers")  # layer_types states the windows
    layers, every = config.stack("decoder").layers, raw.get_int("no_rope_layer_interval", 4)
    is_rotated = raw.values.get("no_rope_layers") or [int((number + 1) % every != 0) for number in range(layers)]
    if not isinstance(is_rotated, list) or len(is_rotated) != layers or not all(one in (0, 1) for one in is_rotated):
        raise raw.error(f"no_rope_layers is not a list of {layers} times 1, for a layer that rotates, or 0")
    unrotated = tuple(number for number, one in enumerate(is_rotated) if not one)
    config = replace(config, positions=replace(config.positions, unrotated=unrotated))
    has_window = raw.get_bool("use_sliding_window", False)
    kinds = [llama.SLIDING if has_window and not one else llama.FULL for one in is_rotated]
    return llama.limit_layers(raw, config, kinds)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    ffn_bias = raw.get_bool("mlp_bias", False)
    return llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, ffn_bias=ffn_bias, tied=True)
