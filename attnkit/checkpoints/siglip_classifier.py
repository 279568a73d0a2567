"""SigLIP's classifier of images: a linear head of the mean of the patches."""

from dataclasses import replace

from attnkit.checkpoints import siglip_vision_model
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import read_image_labels
from attnkit.checkpoints.weights import Layers, Weights, map_linear
from attnkit.model.config import Config

VARIANT_OF = siglip_vision_model


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("text_config", "tie_word_embeddings")  # there are no words
    config = siglip_vision_model.read_config(_read_tower(raw), stored)
    return replace(config, head=True, pooling="mean", **read_image_labels(raw))


def map_layers(raw: ConfigReader) -> Layers:
    return {**siglip_vision_model.map_layers(_read_tower(raw)), "head": map_linear(w="classifier")}


def _read_tower(raw: ConfigReader) -> ConfigReader:
    """The configuration of the tower, whose probe the classifier does not use."""
    part = raw.get_object("vision_config")
    return part.replaced({**part.values.plain, "vision_use_head": False})
