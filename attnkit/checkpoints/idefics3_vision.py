"""The tower of pictures of Idefics3 and SmolVLM: SigLIP's without its vector.

Positions of another grid are those of the places of its own grid.
"""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints import siglip_vision_model
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = siglip_vision_model
DEFAULTS: dict[str, Any] = {  # what files may leave out
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("max_image_size", "size", "use_base_siglip")  # of the processor of pictures
    config = siglip_vision_model.read_config(_complete(raw), stored)
    assert config.patches is not None
    return replace(config, family="idefics3_vision", patches=replace(config.patches, resampling="nearest"))


def map_layers(raw: ConfigReader) -> Layers:
    return siglip_vision_model.map_layers(_complete(raw))


def _complete(raw: ConfigReader) -> ConfigReader:
    return raw.replaced({**DEFAULTS, **raw.values.plain, "vision_use_head": False})
