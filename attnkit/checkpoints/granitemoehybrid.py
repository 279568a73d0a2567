"""Granite 4: Granite with state spaces in most layers, mostly without positions.

Every token passes a shared network. A model with experts adds them to it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.checkpoints import bamba, granite, llama, mamba2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import MOST_EXPERTS
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_fused, map_linear
from attnkit.model.config import Config, PositionConfig
from attnkit.model.dtypes import Array
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = granite
FIELDS = granite.FIELDS | bamba.SPACE | {
    "biases": "attention_bias mamba_proj_bias mamba_conv_bias", "mixers": "layer_types layers_block_type",
    "positions": "position_embedding_type", "hidden width": "shared_intermediate_size", "experts": "num_local_experts",
    "chosen experts": "num_experts_per_tok", "expert width": "intermediate_size",
    "shared width": "shared_intermediate_size",
}  # fmt: skip
SMALLEST = bamba.SMALLEST
FORMS = ({"num_local_experts": 0},)
RENAMED_MODULES = (
    (r"block_sparse_moe\.router\.layer", "block_sparse_moe.router"),
    (r"block_sparse_moe\.(input|output)_linear", "block_sparse_moe.experts"),
)
MIXERS = {"mamba": "recall", "linear_attention": "recall", "attention": "self", llama.FULL: "self"}
POSITIONS = {"rope": True, "nope": False}
LAYER = llama.LAYER
MIXTURE, SHARED = f"{LAYER}.block_sparse_moe", f"{LAYER}.shared_mlp"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("router_aux_loss_coef", "mlp_bias", "num_experts_per_tok", "intermediate_size", "init_method")
    raw.expect(normalization_function="rmsnorm")
    config = replace(granite.read_config(raw, stored), recall=bamba.read_space(raw), experts=read_experts(raw))
    stack = replace(
        config.stack("decoder"),
        hidden=raw.get_int("shared_intermediate_size", 1024),
        mixers=read_mixers(raw, config.stack("decoder").layers),
    )
    if not raw.get_choice("position_embedding_type", POSITIONS, "nope"):
        config = replace(config, positions=PositionConfig(size=config.positions.size))
    return replace(config, decoder=stack)


def read_experts(raw: ConfigReader) -> ExpertConfig | None:
    """The experts beside the shared network; None if there are none."""
    if not (count := raw.get_int("num_local_experts", 8, least=0, most=MOST_EXPERTS)):
        return None
    return ExpertConfig(
        count=count,
        chosen=raw.get_int("num_experts_per_tok", 2),
        hidden=raw.get_int("intermediate_size"),
        shared=raw.get_int("shared_intermediate_size", 1024),
        score="chosen",
    )


def read_mixers(raw: ConfigReader, layers: int) -> tuple[str, ...]:
    """What mixes the tokens of each layer: a state space unless the file says."""
    older = raw.values.get("layers_block_type") or ["mamba"] * layers
    kinds = raw.values.get("layer_types") or older
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in MIXERS for kind in kinds):
        raise raw.error(f"layer_types is not a list of {layers} times {' or '.join(MIXERS)}")
    return tuple(MIXERS[kind] for kind in kinds)


def map_layers(raw: ConfigReader) -> Layers:
    experts = read_experts(raw)
    space = bamba.map_space(raw, bamba.read_space(raw), raw.get_bool("mamba_proj_bias", False))
    shared = map_gated(SHARED)
    layers = {**llama.map_layers(raw), "decoder.{n}.recall": space}
    if experts is None:
        return {**layers, "decoder.{n}.ffn": shared}
    router = {"router": TensorSpec((f"{MIXTURE}.router.layer.weight",), transposed=True)}
    expert = {name: spec._replace(stacked=experts.count) for name, spec in map_gated(MIXTURE).items()}
    mixture = {"decoder.{n}.router": router, "decoder.{n}.expert": expert, "decoder.{n}.shared": shared}
    return {**{name: one for name, one in layers.items() if name != "decoder.{n}.ffn"}, **mixture}


def infer_mixers(file: Any) -> dict[str, Any]:
    """Which layers have attention, and its heads of keys."""
    groups = file.get_counts("attention.head_count_kv")
    kinds = ["attention" if count else "mamba" for count in groups]
    return {"num_key_value_heads": max(groups, default=0), "layer_types": kinds}


def infer_positions(file: Any) -> dict[str, Any]:
    """Whether attention rotates, as it does in a model without state spaces."""
    return {"position_embedding_type": "rope" if file.get("rope.scaling.finetuned") else "nope"}


def infer_experts(file: Any) -> dict[str, Any]:
    """How many experts a file has; DataError for another rule of the router."""
    file.check_gating(llama.SOFTMAX)
    return {"num_local_experts": file.get_int("expert_count")}


def join_gates(gate: Array, up: Array, values: Mapping[str, Any]) -> Array:
    """Join gate and what it multiplies: (..., F, D), (..., F, D) -> (..., 2F, D)."""
    return np.concatenate([gate, up], axis=-2)


def join_shapes(gate: tuple[int, ...], up: tuple[int, ...]) -> tuple[int, ...]:
    if gate != up:
        raise ValueError
    *before, rows, columns = gate
    return (*before, 2 * rows, columns)


PLACES = {"": SHARED, "_shexp": SHARED, "_exps": MIXTURE}  # endings of names in a file -> modules of networks
NETWORKS = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **{f"ffn_gate{ending}": f"{place.removeprefix(f'{LAYER}.')}.input_linear" for ending, place in PLACES.items()},
    **{f"ffn_up{ending}": "" for ending in PLACES},
    **{f"ffn_down{ending}": f"{place.removeprefix(f'{LAYER}.')}.output_linear" for ending, place in PLACES.items()},
}
GGUF: dict[str, Any] = granite.GGUF | {
    "keys": (
        "width", "layers", ("intermediate_size", "hidden width"), "heads", "longest text", "theta",
        ("rms_norm_eps", "rms norm eps"), "score scale", "embedding factor", "residual factor", "logit factor",
        ("shared_intermediate_size", "shared width"), "chosen experts", *bamba.SPACE_KEYS,
    ),
    "names": llama.name_gguf({**mamba2.name_space("mamba"), **NETWORKS}),
    "infer": ("head", "biases", infer_mixers, bamba.infer_inner, bamba.infer_space, infer_positions,
              infer_experts),
    "changes": {
        **llama.UNROTATED, **mamba2.CHANGES,
        **{f"blk.{{n}}.ffn_gate{ending}": (join_gates, join_shapes, f"blk.{{n}}.ffn_up{ending}.weight")
           for ending in PLACES},
    },
}  # fmt: skip


def map_gated(prefix: str) -> Mapping[str, TensorSpec]:
    """Map a network whose first matrix is the gate, then what it multiplies."""
    return map_fused("13", f"{prefix}.input_linear.weight") | map_linear(prefix, w2="output_linear", biased=False)
