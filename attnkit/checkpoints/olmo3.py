"""OLMo 3: OLMo 2 with windows in three of four layers, unscaled in rotation."""

from dataclasses import replace

from attnkit.checkpoints import llama, olmo2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config

VARIANT_OF = olmo2
FIELDS = llama.WINDOWED | {"window theta": "rope_theta", "window scaling": "rope_type type"}
map_layers = olmo2.map_layers


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = olmo2.read_olmo(raw, stored, 5e5)
    config = llama.limit_layers(raw, config, llama.every(4, config.stack("decoder").layers), window=4096)
    size, has_both = config.positions.size, llama.SLIDING in raw.get_dict("rope_parameters")
    rope = llama.read_rotation(raw, size, 5e5, llama.FULL)
    local = {"rope_theta": rope["rope_theta"]}
    sliding = llama.read_rotation(raw, size, 5e5, llama.SLIDING) if has_both else llama.read_rope(raw, local, size, 5e5)
    return replace(config, positions=replace(config.positions, rope=rope, local_rope=sliding))
