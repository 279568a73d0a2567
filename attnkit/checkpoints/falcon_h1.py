"""Falcon-H1: attention beside a state space in every layer, with many factors."""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints import bamba, llama, mamba2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, name_blocks
from attnkit.model.config import Config
from attnkit.model.formulas.recall import RecallConfig

VARIANT_OF = llama
FIELDS = llama.FIELDS | bamba.SPACE | {
    "biases": "attention_bias mlp_bias projectors_bias mamba_proj_bias mamba_conv_bias",
    "state": f"{bamba.SPACE['state']} mamba_d_ssm", "state norm": "mamba_rms_norm mamba_norm_before_gate",
    "key factor": "key_multiplier", "embedding factor": "embedding_multiplier", "logit factor": "lm_head_multiplier",
    "gate factor": "mlp_multipliers", "state factors": "ssm_multipliers",
    "sub-layer factors": "attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier "
    "mlp_multipliers",
}  # fmt: skip
SMALLEST = bamba.SMALLEST | {"mamba_d_ssm": 8}
LAYER = llama.LAYER
NORMS = {
    "norm1": f"{LAYER}.input_layernorm", "norm2": f"{LAYER}.input_layernorm", "norm3": f"{LAYER}.pre_ff_layernorm",
}  # fmt: skip
PARTS = ("g", "v", "k", "q", "dt")  # of the projection, each of which has a factor


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("layer_types", "layers_block_type", "num_logits_to_keep", "mamba_expand", "mlp_expansion_factor")
    raw.expect(mamba_use_mlp=True)
    config = llama.read_config(
        raw, stored, eps=raw.get_float("rms_norm_eps", 1e-5), size=8192, kv_heads=8, recall=read_space(raw)
    )
    stack = config.stack("decoder")
    gate, result = raw.get_floats("mlp_multipliers", (1.0, 1.0), least=0)
    factors = {"ffn": (1.0, result)}
    for part, name in (("self", "attention"), ("recall", "ssm")):
        first, last = (raw.get_float(f"{name}_{place}_multiplier", 1.0) for place in ("in", "out"))
        factors[part] = (first, last)
    return replace(
        config,
        decoder=replace(stack, mixers=("recall self",) * stack.layers),
        key_scale=raw.get_float("key_multiplier", 1.0),
        embed_scale=raw.get_float("embedding_multiplier", 1.0),
        logit_scale=raw.get_float("lm_head_multiplier", 1.0),
        gate_scale=gate,
        factors={part: both for part, both in factors.items() if both != (1.0, 1.0)},
    )


def read_space(raw: ConfigReader) -> RecallConfig:
    inner = raw.get_int("mamba_d_ssm", 1024) if raw.values.get("mamba_d_ssm", 1024) is not None else None
    factors = raw.get_floats("ssm_multipliers", (1.0,) * len(PARTS), least=0)
    recall = bamba.read_space(raw, inner, factors=tuple(zip(PARTS, factors, strict=True)))
    has_norm, norms_first = raw.get_bool("mamba_rms_norm", False), raw.get_bool("mamba_norm_before_gate", True)
    return recall._replace(norm_groups=recall.norm_groups * has_norm, gates_first=not norms_first)


def infer_norm(file: Any) -> dict[str, Any]:
    """Whether what is read of a state has a norm; llama.cpp gates first."""
    has_norm = "blk.0.ssm_norm.weight" in file.entries
    out = mamba2.infer_space(file)["out"]
    return {"mamba_rms_norm": has_norm, "mamba_norm_before_gate": False, "projectors_bias": out}


NORM = "pre_ff_layernorm.weight"
UNENDED = {"ffn_norm": NORM, "ffn_norm.weight": NORM}  # which llama.cpp names without .weight
GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.USUAL_GGUF["keys"], ("mamba_d_ssm", "inner width"), *bamba.SPACE_KEYS),
    "names": bamba.NAMES | name_blocks(UNENDED, f"model.{LAYER}"),
    "infer": ("head", "biases", "rotation", "whole rotation", bamba.infer_space, infer_norm),
    "changes": mamba2.CHANGES,
}


def map_layers(raw: ConfigReader) -> Layers:
    space = bamba.map_space(raw, read_space(raw), raw.get_bool("projectors_bias", False))
    return bamba.map_hybrid(raw, space, NORMS)
