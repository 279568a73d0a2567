"""Gemma 3 with images, as published: its text model and SigLIP's tower.

The means of blocks of patches are normed and projected. A file without a tower is its text model alone.
"""

from typing import Any

from attnkit.checkpoints import gemma3_text, siglip_vision_model
from attnkit.checkpoints.bidirectional import read_direction
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.llava import NAMES as NAMES
from attnkit.checkpoints.llava import PART_PREFIXES as PARTS
from attnkit.checkpoints.picture_towers import TIED, PictureTokens, Tower, find_part, read_decoder, with_connector
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, norm
from attnkit.model.config import Config, ConnectorConfig

PREFIXES = ("language_model.model.", "model.language_model.")
VARIANT_OF = gemma3_text
IS_CAUSAL = "ignored"  # but that of its text model
HAS_OWN_MODULES = False  # but those of its text model
NUMBERS = ()
TEXT: dict[str, Any] = {  # what files leave out
    "model_type": "gemma3_text",
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    TIED: True,
}
IMAGES = ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image")
PROJECTOR = "multi_modal_projector"
CONNECTOR: Layers = {
    "connector.norm": norm(f"{PROJECTOR}.mm_soft_emb_norm", False, 1.0),
    "connector.projection": {"w": TensorSpec((f"{PROJECTOR}.mm_input_projection_weight",))},
}


def find_towers(raw: ConfigReader, stored: Weights) -> dict[str, Any]:
    """The parts of a model with a tower of pictures; {} for a text model alone."""
    if not any(name.startswith(NAMES["vision"]) for name in stored.entries):
        return {}
    vision = find_part(raw, "vision_config", {"siglip_vision_model": siglip_vision_model}, "siglip_vision_model")
    images = read_tower(raw, "vision")
    cut = siglip_vision_model.read_config(images, stored).patches
    assert cut is not None
    (rows, columns), tokens = cut.grid(cut.height, cut.width), raw.get_int("mm_tokens_per_image", 256)
    side = int(tokens**0.5)
    if rows != columns or side * side != tokens or rows % side:
        raise raw.error(f"mm_tokens_per_image {tokens} is no square of blocks of {rows} x {columns} patches")
    connector = ConnectorConfig(
        read_tower(raw, "text").get_int("hidden_size"),
        "mean",
        ("norm", "projection"),
        block=rows // side,
        norm="rms",
        eps=images.get_float("layer_norm_eps", 1e-6),
    )
    return {
        "text": Tower(gemma3_text, PARTS["text"], _read_text_config, gemma3_text.map_layers),
        "vision": with_connector(vision, PARTS["vision"], connector, CONNECTOR),
    }


def read_tower(raw: ConfigReader, tower: str) -> ConfigReader:
    """The configuration of a tower."""
    return read_decoder(raw, TEXT) if tower == "text" else raw.get_object("vision_config")


def read_tokens(raw: ConfigReader) -> PictureTokens:
    """What stands for a picture in a text."""
    id, begin, end = (
        raw.get_int(f"{name}_token_id", raw.get_int(f"{name}_token_index", usual))
        for name, usual in (("image", 262144), ("boi", 255999), ("eoi", 256000))
    )
    return PictureTokens(id, begin, "framed", (begin, end), attends=True)


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore(*IMAGES)
    text = read_decoder(raw, TEXT)
    return read_direction(text, _read_text_config(text, stored))


def _read_text_config(text: ConfigReader, stored: Weights) -> Config:
    if text.get_bool("use_bidirectional_attention", False):  # whose windows the masks of the whole model do not have
        raise text.error("text_config.use_bidirectional_attention true is not supported by family gemma3")
    return gemma3_text.read_config(text, stored)


def map_layers(raw: ConfigReader) -> Layers:
    return gemma3_text.map_layers(read_decoder(raw, TEXT))
