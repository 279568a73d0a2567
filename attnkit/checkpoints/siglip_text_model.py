"""SigLIP's tower of texts: all tokens attend to all.

The state of the last token of a padded text is its vector.
"""

from typing import Any

from attnkit.checkpoints import clip_text_model
from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, map_linear
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

VARIANT_OF = clip_text_model
FIELDS = USUAL | {"vector width": "projection_size hidden_size"}
TOKENIZER = "SiglipTokenizer"
DEFAULTS = {  # what files may leave out
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    length = raw.get_int("max_position_embeddings")
    common = read_common(raw)
    return Config(
        "siglip_text_model",
        encoder=raw.get_stack(FIELDS, final_norm=True),
        positions=PositionConfig("learned", size=length),
        vector_width=raw.get_int("projection_size", common["width"]),
        vector_pooling="last",
        text_length=length,
        special=raw.get_special_tokens(eos=(49407,), pad=1),
        **common,
    )


def read_common(raw: ConfigReader) -> dict[str, Any]:
    """The fields of both towers."""
    raw.ignore("tie_word_embeddings", "model_type")  # there is no head of words
    return {
        "width": raw.get_int("hidden_size"),
        "eps": raw.get_float("layer_norm_eps", 1e-6),
        "norm_first": True,
        "activation": raw.get_choice("hidden_act", PUBLISHED, "gelu_pytorch_tanh"),
        "head": False,
    }


def map_layers(raw: ConfigReader) -> Layers:
    return {**clip_text_model.map_layers(raw), "vector": map_linear(w="head")}
