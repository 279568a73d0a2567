"""CLIP: a tower of texts and a tower of images, whose vectors are in one space.

The towers are models of their own. The folder is opened as both, of which the tower of texts is the first.
"""

import math

from attnkit.checkpoints import clip_text_model, clip_vision_model
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config, Similarity

VARIANT_OF = clip_text_model
TOWERS = {"text": clip_text_model, "vision": clip_vision_model}
NAMES = {"text": ("text_",), "vision": ("vision_", "visual_")}  # the beginnings of the names of their tensors
NUMBERS = (SCALE,) = ("logit_scale",)  # tensors of one number, of no tower


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("vision_config", "vision_config_dict")
    return clip_text_model.read_config(read_tower(raw, "text"), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return clip_text_model.map_layers(read_tower(raw, "text"))


def read_tower(raw: ConfigReader, tower: str) -> ConfigReader:
    """The configuration of a tower.

    `text_config_dict` of older files overrides `text_config`, with all defaults.
    """
    family, width = TOWERS[tower], raw.get_int("projection_dim", 512)
    raw.ignore("logit_scale_init_value", "tie_word_embeddings")  # before training, and of no head
    values = {**raw.get_object(f"{tower}_config").values.plain}
    raw.ignore(f"{tower}_config_dict")  # whose keys are those of the other
    older = raw.get_dict(f"{tower}_config_dict")
    values |= {**family.DEFAULTS, "eos_token_id": 49407, **older} if older else {}
    return raw.get_object(f"{tower}_config").replaced({**values, "projection_dim": width})


def read_similarity(stored: Weights) -> Similarity:
    """How alike a text and an image are: exp(logit_scale) times their cosine."""
    return Similarity(math.exp(read_number(stored, SCALE)))


def read_number(stored: Weights, name: str) -> float:
    """A stored tensor of one number, between -100 and 100."""
    dtype, shape = stored.entries.get(name, ("", ()))
    if not dtype or math.prod(shape) != 1:
        raise stored.error(name, f"has shape {shape} (expected one number)" if dtype else "is missing")
    value = float(stored.tensor(name).astype("float64").reshape(()))
    if not abs(value) <= 100:
        raise stored.error(name, f"is {value:g} (expected a number from -100 to 100)")
    return value
