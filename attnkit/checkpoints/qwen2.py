"""Qwen2: Llama with biases on q, k and v, and sliding windows in some layers."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mapping import Layers
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config

PREFIXES = llama.PREFIXES
SLIDING, FULL = "sliding_attention", "full_attention"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = llama.read_config(raw, stored)
    kinds = _read_layer_types(raw, config.stack("decoder").layers)
    window = raw.get_int("sliding_window", 4096) if raw.get_bool("use_sliding_window", False) else 0
    return llama.limit_window(config, [window if kind == SLIDING else 0 for kind in kinds])


def map_layers(raw: ConfigReader) -> Layers:
    return llama.map_llama(raw, qkv_bias=True)


def _read_layer_types(raw: ConfigReader, layers: int) -> list[str]:
    """The kind of attention of each layer, by `layer_types` or `max_window_layers`."""
    full = raw.get_int("max_window_layers", 28, least=0)
    kinds = raw.values.get("layer_types") or [FULL if number < full else SLIDING for number in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (SLIDING, FULL) for kind in kinds):
        raise raw.error(f"layer_types is not a list of {layers} of {SLIDING} and {FULL}")
    return kinds
