"""Mistral: Llama with sliding-window attention, unless `sliding_window` is null."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.WINDOWED
WINDOW = 4096  # where the key is absent


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = llama.read_config(raw, stored, size=131072, kv_heads=8)
    return llama.limit_window(config, [llama.read_window(raw, WINDOW)] * config.stack("decoder").layers)


def map_layers(raw: ConfigReader) -> Layers:
    return llama.map_llama(raw)
