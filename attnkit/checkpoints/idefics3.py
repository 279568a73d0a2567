"""Idefics3 and SmolVLM: a Llama that reads pictures.

Their patches are shuffled to fewer rows.
"""

from typing import Any

from attnkit.checkpoints import idefics3_vision, llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.picture_towers import PictureTokens, Tower, find_part, read_decoder, with_connector
from attnkit.checkpoints.weights import Layers, Weights, map_linear
from attnkit.model.config import Config, ConnectorConfig

VARIANT_OF = llama
HAS_OWN_MODULES = False  # but those of its decoder
NAMES = {  # the beginnings of the names of the tensors of each part
    "text": ("model.text_model.", "lm_head."),
    "vision": ("model.vision_model.", "model.connector."),
}
NUMBERS = ()
TEXT: dict[str, Any] = {"model_type": "llama", "rms_norm_eps": 1e-5}  # what files may leave out
VISIONS = dict.fromkeys(("idefics3_vision", "smolvlm_vision", "idefics3", "smolvlm"), idefics3_vision)
CONNECTOR: Layers = {
    "connector.projection": map_linear(w="model.connector.modality_projection.proj", biased=False),
}


def find_towers(raw: ConfigReader, stored: Weights) -> dict[str, Any]:
    family = find_part(raw, "text_config", {"llama": llama}, "llama")
    vision = find_part(raw, "vision_config", VISIONS, "idefics3_vision")
    connector = ConnectorConfig(
        read_tower(raw, "text").get_int("hidden_size"),
        "shuffle",
        ("projection",),
        block=raw.get_int("scale_factor", 2),
    )
    return {
        "text": Tower(family, ("model.text_model.",), family.read_config, family.map_layers),
        "vision": with_connector(vision, ("model.vision_model.",), connector, CONNECTOR),
    }


def read_tower(raw: ConfigReader, tower: str) -> ConfigReader:
    """The configuration of a tower."""
    return read_decoder(raw, TEXT) if tower == "text" else raw.get_object("vision_config")


def read_tokens(raw: ConfigReader) -> PictureTokens:
    """What stands for a picture in a text."""
    raw.ignore("vocab_size")  # that of the decoder
    id = raw.get_int("image_token_id", 128257)
    return PictureTokens(id, id, "tiles")


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("vision_config", "scale_factor", "image_token_id", "vocab_size")
    return llama.read_config(read_tower(raw, "text"), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return llama.map_layers(read_tower(raw, "text"))
