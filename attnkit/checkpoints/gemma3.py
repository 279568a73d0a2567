"""Gemma 3 with images, as published: its text model, which reads text alone."""

from attnkit.checkpoints import gemma3_text
from attnkit.checkpoints.bidirectional import read_direction
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

PREFIXES = ("language_model.model.", "model.language_model.")
VARIANT_OF = gemma3_text
IS_CAUSAL = "ignored"  # but that of its text model
HAS_OWN_MODULES = False  # but those of its text model
TIED = "tie_word_embeddings"
TEXT = {  # what files leave out
    "model_type": "gemma3_text",
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
IMAGES = ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image")


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    text = _text(raw)
    if text.get_bool("use_bidirectional_attention", False):  # whose windows the masks of the whole model do not have
        raise raw.error("text_config.use_bidirectional_attention true is not supported by family gemma3")
    return read_direction(text, gemma3_text.read_config(text, stored))


def map_layers(raw: ConfigReader) -> Layers:
    return gemma3_text.map_layers(_text(raw))


def _text(raw: ConfigReader) -> ConfigReader:
    """The configuration of the text model, tied where the whole model says so."""
    text, tied = raw.get_object("text_config"), {TIED: raw.get_bool(TIED, True)}
    tokens = {key: value for key, value in raw.values.plain.items() if key.endswith("_token_id")}
    raw.ignore(*tokens, *IMAGES)
    return text.replaced({**TEXT, **tokens, **text.values.plain, **tied})
