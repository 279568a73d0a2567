"""Mistral: Llama whose layers see only the nearest keys, unless its configuration says null."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mapping import Layers
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config

PREFIXES = llama.PREFIXES
WINDOW = 4096  # where nothing is said


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    found = llama.config(raw, stored)
    window = 0 if raw.values.get("sliding_window", WINDOW) is None else raw.whole("sliding_window", WINDOW)
    return llama.windowed(found, (window,) * found.stack("decoder").layers)


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    return llama.mapping(raw)
