"""OLMo: Llama with layer norms without parameters, and clipped queries, keys and values."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.FIELDS | {"q k v bound": "clip_qkv"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    clip = raw.get_float("clip_qkv") if raw.has("clip_qkv") else 0.0
    raw.ignore("rms_norm_eps")  # the norms have an epsilon of their own
    return llama.read_config(raw, stored, norm="layer", eps=1e-5, clip=clip)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    return llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, norms={})
