"""Granite: Llama with factors on embeddings, scores, residual branches and logits."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.FIELDS | {
    "score scale": "attention_multiplier", "embedding factor": "embedding_multiplier",
    "residual factor": "residual_multiplier", "logit factor": "logits_scaling",
}  # fmt: skip
GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.USUAL_GGUF["keys"], "score scale", "embedding factor", "residual factor", "logit factor"),
    "infer": (*llama.BIASED, "whole rotation"),
    "changes": llama.UNROTATED,
}
map_layers = llama.map_layers


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return llama.read_config(
        raw,
        stored,
        scale=raw.get_float("attention_multiplier", 1.0),
        embed_scale=raw.get_float("embedding_multiplier", 1.0),
        residual_scale=raw.get_float("residual_multiplier", 1.0),
        logit_scale=1 / raw.get_float("logits_scaling", 1.0),
    )
