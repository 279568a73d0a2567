"""Qwen2: Llama with biases on q, k and v, and sliding windows in some layers."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.WINDOWED
GGUF = llama.USUAL_GGUF
TOKENIZER = "Qwen2Tokenizer"
RERANKER = "mxbai-rerank-v2"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return limit_last_layers(raw, llama.read_config(raw, stored, size=32768, kv_heads=32))


def limit_last_layers(raw: ConfigReader, config: Config) -> Config:
    """Limit the layers after `max_window_layers` to a window, if one is used."""
    layers, full = config.stack("decoder").layers, raw.get_int("max_window_layers", 28, least=0)
    kinds = llama.read_layer_types(raw, [llama.FULL if number < full else llama.SLIDING for number in range(layers)])
    window = llama.read_window(raw, 4096) * raw.get_bool("use_sliding_window", False)
    return llama.limit_window(config, [window if kind == llama.SLIDING else 0 for kind in kinds])


def map_layers(raw: ConfigReader) -> Layers:
    return llama.map_llama(raw, qkv_bias=True)
