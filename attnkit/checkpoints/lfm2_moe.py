"""LFM2 with experts: LFM2 with a mixture of experts after some dense layers.

A router takes sigmoids, and a bias corrects its choice, as in DeepSeek-V3.
"""

from typing import Any

from attnkit.checkpoints import lfm2, llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.deepseek_v3 import SIGMOID
from attnkit.checkpoints.mixtral import MOST_EXPERTS, map_mixture
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, name_blocks
from attnkit.model.config import Config
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = lfm2
FIELDS = lfm2.FIELDS | {
    "hidden width": "intermediate_size", "experts": "num_experts", "chosen experts": "num_experts_per_tok",
    "expert width": "moe_intermediate_size", "dense layers": "num_dense_layers",
    "router": "norm_topk_prob use_expert_bias", "expert factor": "routed_scaling_factor",
}  # fmt: skip
MIXTURE = f"{llama.LAYER}.feed_forward"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    layers = raw.get_int("num_hidden_layers")
    experts = ExpertConfig(
        count=raw.get_int("num_experts", 32, most=MOST_EXPERTS),
        chosen=raw.get_int("num_experts_per_tok", 4),
        hidden=raw.get_int("moe_intermediate_size"),
        dense=tuple(range(min(raw.get_int("num_dense_layers", 2, least=0), layers))),
        score="sigmoid",
        renormalizes=raw.get_bool("norm_topk_prob", True),
        scale=raw.get_float("routed_scaling_factor", 1.0),
        eps=1e-6,
    )
    return lfm2.read_lfm2(raw, stored, experts=experts)


def map_layers(raw: ConfigReader) -> Layers:
    layers = dict(map_mixture(lfm2.map_layers(raw), MIXTURE, {"w1": "w1", "w3": "w3", "w2": "w2"}))
    if raw.get_bool("use_expert_bias", True):
        correction = TensorSpec((f"{MIXTURE}.expert_bias",))
        layers["decoder.{n}.router"] = {**layers["decoder.{n}.router"], "correction": correction}
    return layers


def infer_experts(file: Any) -> dict[str, Any]:
    """The rule of the router, which the architecture implies. DataError for another."""
    file.check_gating(SIGMOID)
    return {"use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in file.entries)}


GGUF = lfm2.GGUF | {
    "keys": (*lfm2.GGUF["keys"], "experts", "chosen experts", "expert width", "dense layers", "expert factor"),
    "names": lfm2.GGUF["names"] | name_blocks({
        "ffn_gate_inp": "feed_forward.gate",
        "exp_probs_b.bias": "feed_forward.expert_bias",
        **{f"ffn_{name}_exps": f"feed_forward.experts.{{e}}.{short}"
           for name, short in (("gate", "w1"), ("up", "w3"), ("down", "w2"))},
    }, "model.layers.{n}"),
    "infer": (*lfm2.GGUF["infer"], infer_experts),
}  # fmt: skip
