"""Qwen3 with experts: Qwen3 with a mixture of experts in some layers."""

from functools import partial
from typing import Any

from attnkit.checkpoints import llama, qwen3
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import MOST_EXPERTS, map_mixture
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = qwen3
FIELDS = llama.WINDOWED | {
    "experts": "num_experts num_local_experts", "chosen experts": "num_experts_per_tok",
    "expert width": "moe_intermediate_size", "dense layers": "mlp_only_layers decoder_sparse_step",
    "router": "norm_topk_prob",
}  # fmt: skip
GGUF_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{name}_exps": f"mlp.experts.{{e}}.{name}_proj" for name in ("gate", "up", "down")},
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{name}_shexp": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
}
MIXTURE = f"{llama.LAYER}.mlp"
NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    head_dim = None if raw.has("head_dim") else raw.get_head_dim("hidden_size", "num_attention_heads")
    config = llama.read_config(
        raw,
        stored,
        size=32768,
        head_dim=head_dim,
        kv_heads=4,
        qk_norm="head",
        experts=read_experts(raw, count=128, chosen=8),
    )
    raw.ignore("max_window_layers")  # all layers have the window, or none
    raw.expect(use_qk_norm=True)
    window = llama.read_window(raw, 4096) * raw.get_bool("use_sliding_window", False)
    return llama.limit_window(config, [window] * config.stack("decoder").layers)


def read_experts(
    raw: ConfigReader, count: int, chosen: int, default_renormalizes: bool = False, **choices: Any
) -> ExpertConfig:
    """Read the experts of a Qwen.

    count, chosen, default_renormalizes: where the file does not say; choices: fields of ExpertConfig
    """
    layers, step = raw.get_int("num_hidden_layers"), raw.get_int("decoder_sparse_step", 1)
    plain = raw.values.get("mlp_only_layers") or []
    if not isinstance(plain, list) or not all(type(number) is int for number in plain):
        raise raw.error("mlp_only_layers is not a list of numbers of layers")
    dense = tuple(number for number in range(layers) if number in plain or (number + 1) % step)
    renormalizes = raw.get_bool("norm_topk_prob", default_renormalizes)
    return read_mixture(raw, count, chosen, dense=dense, renormalizes=renormalizes, **choices)


def read_mixture(raw: ConfigReader, count: int, chosen: int, hidden: int | None = None, **choices: Any) -> ExpertConfig:
    """Read the sizes of experts.

    count, chosen, hidden: where the file does not say; choices: the other fields of ExpertConfig
    """
    return ExpertConfig(
        count=raw.get_int("num_experts", raw.get_int("num_local_experts", count), most=MOST_EXPERTS),
        chosen=raw.get_int("num_experts_per_tok", chosen),
        hidden=raw.get_int("moe_intermediate_size", hidden),
        **choices,
    )


def map_layers(raw: ConfigReader) -> Layers:
    return map_mixture(qwen3.map_layers(raw), MIXTURE, NAMES)


def infer_experts(file: Any, renormalizes: bool) -> dict[str, Any]:
    """The rule of the router, which the architecture implies.

    DataError if the file states another.
    """
    file.check_gating(llama.SOFTMAX)
    return {"norm_topk_prob": renormalizes}


GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.USUAL_GGUF["keys"], "experts", "chosen experts", "expert width"),
    "names": llama.name_gguf(GGUF_EXPERTS),
    "infer": (*llama.BIASED, "whole rotation", partial(infer_experts, renormalizes=True)),
}
