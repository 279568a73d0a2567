"""Qwen3.5 with experts and images: its text model, which reads text alone."""

from attnkit.checkpoints import qwen3_5, qwen3_5_moe_text
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

PREFIXES = qwen3_5.PREFIXES
VARIANT_OF = qwen3_5_moe_text
IS_CAUSAL = "ignored"  # but that of its text model
HAS_OWN_MODULES = False  # but those of its text model


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return qwen3_5_moe_text.read_config(qwen3_5.text_of(raw, "qwen3_5_moe_text"), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return qwen3_5_moe_text.map_layers(qwen3_5.text_of(raw, "qwen3_5_moe_text"))
