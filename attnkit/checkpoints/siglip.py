"""SigLIP: a tower of texts and one of images, each pair judged by a sigmoid."""

import math

from attnkit.checkpoints import siglip_classifier, siglip_text_model, siglip_vision_model
from attnkit.checkpoints.clip import SCALE, read_number
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config, Similarity

VARIANT_OF = siglip_text_model
CLASSIFIER = siglip_classifier  # of images, a model of its own
TOWERS = {"text": siglip_text_model, "vision": siglip_vision_model}
NAMES = {"text": ("text_",), "vision": ("vision_",)}  # the beginnings of the names of their tensors
NUMBERS = (SCALE, BIAS) = (SCALE, "logit_bias")  # tensors of one number, of no tower


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("vision_config")
    return siglip_text_model.read_config(read_tower(raw, "text"), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return siglip_text_model.map_layers(read_tower(raw, "text"))


def read_tower(raw: ConfigReader, tower: str) -> ConfigReader:
    """The configuration of a tower."""
    raw.ignore("tie_word_embeddings")  # there is no head of words
    part = raw.get_object(f"{tower}_config")
    if tower == "vision" and not part.get_bool("vision_use_head", True):
        raise part.error("vision_use_head false leaves images without a vector to compare with texts")
    return part


def read_similarity(stored: Weights) -> Similarity:
    """Read how text and image are compared: sigmoid of a scaled, shifted cosine.

    exp(logit_scale) times the cosine, plus logit_bias
    """
    return Similarity(math.exp(read_number(stored, SCALE)), read_number(stored, BIAS), "sigmoid")
