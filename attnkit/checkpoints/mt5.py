"""mT5: T5 1.1 for many languages, whose states are not scaled before the head."""

from attnkit.checkpoints import t5
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = t5
HAS_OWN_MODULES = False  # but those of T5


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return t5.read_config(_as_t5(raw), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return t5.map_layers(_as_t5(raw))


def _as_t5(raw: ConfigReader) -> ConfigReader:
    return raw.replaced({"feed_forward_proj": "gated-gelu", **raw.values.plain, "scale_decoder_outputs": False})
