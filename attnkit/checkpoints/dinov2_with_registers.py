"""DINOv2 with registers: tokens without positions beside the class token.

Positions are interpolated smoothly.
"""

from attnkit.checkpoints import dinov2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights
from attnkit.model.config import Config

PREFIXES = ("dinov2_with_registers.",)
FIELDS = dinov2.FIELDS | {"registers": "num_register_tokens"}
RENAMED_MODULES = dinov2.RENAMED_MODULES


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    registers = raw.get_int("num_register_tokens", 4, least=0)
    raw.expect(interpolate_antialias=True, interpolate_offset=0)
    return dinov2.read_config(raw, stored, registers=registers, resampling="antialiased")


def map_layers(raw: ConfigReader) -> Layers:
    layers = dinov2.map_layers(raw)
    if not raw.get_int("num_register_tokens", 4, least=0):
        return layers
    registers = TensorSpec(("embeddings.register_tokens",), leading_ones=1)
    return {**layers, "encoder.embed": {**layers["encoder.embed"], "registers": registers}}
