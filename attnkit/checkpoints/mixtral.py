"""Mixtral: Llama with a mixture of experts in every layer."""

from collections.abc import Mapping
from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Specs, TensorSpec, Weights, map_linear
from attnkit.model.config import Config
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = llama
FIELDS = llama.WINDOWED | {
    "experts": "num_local_experts",
    "chosen experts": "num_experts_per_tok",
    "expert width": "intermediate_size",
}
RENAMED_MODULES = ((r"block_sparse_moe\.", "mlp."),)
LAYER = llama.LAYER
MOST_EXPERTS = 4096  # of a layer; the names of so many are still read at once


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = llama.read_config(
        raw,
        stored,
        theta=1e6,
        size=131072,
        kv_heads=8,
        eps=raw.get_float("rms_norm_eps", 1e-5),
        experts=ExpertConfig(
            count=raw.get_int("num_local_experts", 8, most=MOST_EXPERTS),
            chosen=raw.get_int("num_experts_per_tok", 2),
            hidden=raw.get_int("intermediate_size"),
            renormalizes=True,
        ),
    )
    return llama.limit_layers(raw, config, [llama.SLIDING] * config.stack("decoder").layers)


def map_layers(raw: ConfigReader) -> Layers:
    names = {"w1": "w1", "w3": "w3", "w2": "w2"}
    return map_mixture(llama.map_llama(raw), f"{LAYER}.block_sparse_moe", names)


def map_mixture(layers: Layers, prefix: str, names: Mapping[str, str], shared: str = "") -> Layers:
    """Map routers and experts, and the networks of layers without experts.

    prefix  of the published names of a mixture; names: w1, w3 and w2 of an expert; shared: the shared network
    """
    router = {"router": TensorSpec((f"{prefix}.gate.weight",), transposed=True)}
    weights: Any = {"biased": False, **names}
    expert = map_linear(f"{prefix}.experts.{{e}}", **weights)
    network: Specs = map_linear(f"{prefix}.{shared}", **weights) if shared else {}
    return {**layers, "decoder.{n}.router": router, "decoder.{n}.expert": expert, "decoder.{n}.shared": network}
