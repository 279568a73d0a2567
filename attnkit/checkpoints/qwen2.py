"""Qwen2: Llama with biases on queries, keys and values, some of whose layers may see only the nearest keys."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mapping import Layers
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config

PREFIXES = llama.PREFIXES
SLIDING, FULL = "sliding_attention", "full_attention"


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    found = llama.config(raw, stored)
    depth = found.stack("decoder").layers
    window = raw.whole("sliding_window", 4096) if raw.flag("use_sliding_window", False) else 0
    return llama.windowed(found, tuple(window if kind == SLIDING else 0 for kind in _kinds(raw, depth)))


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    return llama.mapping(raw, inputs=True)


def _kinds(raw: ConfigReader, depth: int) -> list[str]:
    """What each layer sees, as listed, or else by how many of the first layers see everything."""
    full = raw.whole("max_window_layers", 28, least=0)
    kinds = raw.values.get("layer_types") or [FULL if number < full else SLIDING for number in range(depth)]
    if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in (SLIDING, FULL) for kind in kinds):
        raise raw.wrong(f"layer_types is not a list of {depth} of {SLIDING} and {FULL}")
    return kinds
