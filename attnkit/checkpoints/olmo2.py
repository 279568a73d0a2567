"""OLMo 2: Llama with norms after sub-layers, and of whole queries and keys."""

from typing import Any

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


def infer_windows(file: Any) -> dict[str, Any]:
    """The windows of OLMo 3, which to llama.cpp is an OLMo 2 with windows.

    The layers that have one may be stated.
    """
    if not (window := file.get("attention.sliding_window")):
        return {}
    flags = file.get("attention.sliding_window_pattern", [])
    kinds = [llama.SLIDING if has_window else llama.FULL for has_window in flags]
    return {"model_type": "olmo3", "sliding_window": window, **({"layer_types": kinds} if kinds else {})}


GGUF = llama.USUAL_GGUF | {
    "names": llama.name_gguf(
        {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    ),
    "infer": (*llama.BIASED, "whole rotation", infer_windows),
}
