"""OLMo: Llama with layer norms without parameters; clips queries, keys, values."""

from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.errors import DataError
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.FIELDS | {"q k v bound": "clip_qkv"}
EPS = 1e-5


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    clip = raw.get_float("clip_qkv") if raw.has("clip_qkv") else 0.0
    raw.ignore("rms_norm_eps")  # the norms have an epsilon of their own
    return llama.read_config(raw, stored, norm="layer", eps=EPS, clip=clip)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    return llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, norms={})


def infer_clip(file: Any) -> dict[str, Any]:
    """The limit of queries, keys and values.

    DataError for an epsilon that OLMo does not have.
    """
    if (eps := file.get("attention.layer_norm_epsilon", EPS)) != EPS:
        raise DataError(f"attention.layer_norm_epsilon is {eps} (expected {EPS})", file.name)
    return {"clip_qkv": clip} if (clip := file.get("attention.clamp_kqv")) else {}


GGUF = llama.USUAL_GGUF | {
    "keys": llama.GGUF_SIZES,
    "infer": ("head", "rotation", "whole rotation", infer_clip),
    "changes": llama.UNROTATED,
}
