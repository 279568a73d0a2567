"""Cohere: parallel sub-layers after one layer norm, interleaved RoPE, tied head."""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.FIELDS | {"norm eps": "layer_norm_eps", "query-key norm": "use_qk_norm", "logit factor": "logit_scale"}
NORMS = {"norm1": "input_layernorm", "norm2": "input_layernorm"}  # one norm, which both sub-layers read


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return read_cohere(raw, stored, qk_norm="heads" if raw.get_bool("use_qk_norm", False) else "")


def read_cohere(raw: ConfigReader, stored: Weights, **choices: Any) -> Config:
    """The configuration of a Cohere; choices: fields of Config."""
    config = llama.read_config(
        raw,
        stored,
        theta=5e5 if raw.get_str("model_type") == "cohere" else 1e4,
        size=8192,
        tied=True,
        norm="layer",
        eps=raw.get_float("layer_norm_eps", 1e-5),
        parallel=True,
        logit_scale=raw.get_float("logit_scale", 0.0625),
        **choices,
    )
    return replace(config, positions=replace(config.positions, interleaved=True))


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    layers = dict(llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, norms=NORMS, tied=True))
    if raw.get_bool("use_qk_norm", False):
        layers["decoder.{n}.self"] = {**layers["decoder.{n}.self"], **_map_qk_norm(raw)}
    return layers


def _map_qk_norm(raw: ConfigReader) -> dict[str, TensorSpec]:
    """Norms of queries and keys, stored by head: (H, K)."""
    heads = raw.get_int("num_attention_heads")
    counts = {"gamma_q": heads, "gamma_k": raw.get_int("num_key_value_heads", heads)}
    names = {"gamma_q": "q_norm", "gamma_k": "k_norm"}
    return {
        name: TensorSpec((f"{llama.LAYER}.self_attn.{part}.weight",), rows=counts[name]) for name, part in names.items()
    }


def infer_norms(file: Any) -> dict[str, Any]:
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.entries}


GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.GGUF_SIZES, "norm eps", "logit factor"),
    "infer": (*llama.BIASED, "whole rotation", infer_norms),
}
