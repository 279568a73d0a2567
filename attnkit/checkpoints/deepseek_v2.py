"""DeepSeek-V2: latent attention, and experts chosen by softmax.

Experts may be chosen in groups, and come after some dense layers.
"""

from attnkit.checkpoints import deepseek_v3
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.deepseek_v3 import map_deepseek, read_deepseek, read_experts
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = deepseek_v3
METHODS = {"greedy": False, "group_limited_greedy": True}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    for key in ("norm_topk_prob", "mlp_bias"):
        if raw.get_bool(key, False):
            raise raw.error(f"{key} true is not supported")
    raw.get_choice("scoring_func", {"softmax": ""}, "softmax")
    has_groups = raw.get_choice("topk_method", METHODS, "greedy")
    groups, chosen_groups = raw.get_int("n_group", 1), raw.get_int("topk_group", 1)
    experts = read_experts(
        raw,
        count=64,
        chosen=6,
        shared=2,
        dense=0,
        scale=raw.get_float("routed_scaling_factor", 1.0),
        groups=groups if has_groups else 1,
        chosen_groups=chosen_groups if has_groups else 1,
    )
    return read_deepseek(raw, stored, experts, size=2048, interleaved=True)


def map_layers(raw: ConfigReader) -> Layers:
    return map_deepseek(raw)
