"""Qwen3.5 with images, as published: its text model, which reads text alone."""

from attnkit.checkpoints import qwen3_5_text
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

PREFIXES = ("model.language_model.", *qwen3_5_text.PREFIXES)
VARIANT_OF = qwen3_5_text
IS_CAUSAL = "ignored"  # but that of its text model
HAS_OWN_MODULES = False  # but those of its text model
TIED = "tie_word_embeddings"
IMAGES = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "language_model_only",
)  # fmt: skip


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return qwen3_5_text.read_config(text_of(raw, "qwen3_5_text"), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return qwen3_5_text.map_layers(text_of(raw, "qwen3_5_text"))


def text_of(raw: ConfigReader, family: str) -> ConfigReader:
    """The configuration of the text model.

    It says whether it is tied, or else the whole model does. Tokens of the whole model come before its own.
    """
    text, tied = raw.get_object("text_config"), {TIED: raw.get_bool(TIED, False)}
    tokens = {key: value for key, value in raw.values.plain.items() if key.endswith("_token_id") and key not in IMAGES}
    raw.ignore(*tokens, *IMAGES)
    return text.replaced({"model_type": family, **tied, **text.values.plain, **tokens})
