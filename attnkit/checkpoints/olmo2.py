"""OLMo 2: Llama with a norm after each sub-layer instead of before, and norms of whole queries and keys."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
NORMS = {"output_norm1": "post_attention_layernorm", "output_norm2": "post_feedforward_layernorm"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return read_olmo(raw, stored, 10000.0)


def read_olmo(raw: ConfigReader, stored: Weights, theta: float) -> Config:
    """The configuration of an OLMo from 2 on; theta: where the file has none."""
    eps = raw.get_float("rms_norm_eps", 1e-5)
    return llama.read_config(
        raw, stored, eps=eps, theta=theta, norm_first=False, norm_output=True, qk_norm="projection"
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    return llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, norms=NORMS, qk_norm=True)
