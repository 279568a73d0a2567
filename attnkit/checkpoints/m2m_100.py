"""M2M-100 and NLLB: a pre-norm encoder-decoder with sinusoidal positions.

Positions begin after that of the padding.
"""

from attnkit.checkpoints import mbart
from attnkit.checkpoints.bart import LAYERS, map_words, read_translator
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.positions import base_of_pairs

VARIANT_OF = mbart
TOKENIZER = "M2M100Tokenizer"
MODEL_KEYS = ("pad_token_id",)  # which positions depend on, and generation_config.json does not change


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("max_position_embeddings")  # of the table that is computed anew for a longer text
    base = base_of_pairs(raw.get_int("d_model") // 2)
    first = raw.get_int("pad_token_id", 1, least=0) + 1
    return read_translator(
        raw,
        "m2m_100",
        {},
        start=2,
        forced_eos=None,
        norm_first=True,
        activation="relu",
        scales=True,
        positions=PositionConfig("sinusoidal", first=first, layout="halves", base=base),
    )


def map_layers(raw: ConfigReader) -> Layers:
    return {**LAYERS, **mbart.FINAL_NORMS, **map_words(raw, {})}
