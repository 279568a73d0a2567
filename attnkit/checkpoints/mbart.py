"""mBART: BART with pre-norm and a norm after the last layer of each stack."""

from attnkit.checkpoints import bart
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, norm
from attnkit.model.config import Config

VARIANT_OF = bart
TOKENIZER = "MBartTokenizer"
OLDER_KEYS = bart.OLDER_KEYS | {"normalize_before": True, "add_final_layer_norm": True}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return bart.read_translator(
        raw,
        "mbart",
        OLDER_KEYS,
        start=None,
        norm_first=True,
        embed_norm=True,
        activation="gelu",
        positions=bart.read_positions(raw),
    )


def map_layers(raw: ConfigReader) -> Layers:
    return {**bart.map_layers(raw), **FINAL_NORMS}


FINAL_NORMS: Layers = {f"{stack}.norm": norm(f"{stack}.layer_norm") for stack in ("encoder", "decoder")}
