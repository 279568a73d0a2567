"""DeepSeek-V3: latent attention, and experts in groups chosen by sigmoids.

They come after some dense layers.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import MOST_EXPERTS, map_mixture
from attnkit.checkpoints.qwen3_moe import MIXTURE, NAMES
from attnkit.checkpoints.weights import Layers, Share, TensorSpec, Weights, map_linear, norm
from attnkit.errors import DataError
from attnkit.model.config import Config
from attnkit.model.dtypes import Array
from attnkit.model.formulas.dense_attention import LatentConfig
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = llama
FIELDS = llama.FIELDS | {
    "experts": "n_routed_experts", "chosen experts": "num_experts_per_tok", "expert width": "moe_intermediate_size",
    "shared width": "n_shared_experts", "dense layers": "first_k_dense_replace",
    "router": "norm_topk_prob scoring_func", "expert factor": "routed_scaling_factor", "expert groups": "n_group",
}  # fmt: skip
SIGMOID = 2  # the rule of the router: expert_gating_func
SMALLEST = {
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 2),
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
}  # fmt: skip
ATTENTION = f"{llama.LAYER}.self_attn"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.get_choice("scoring_func", {"sigmoid": ""}, "sigmoid")
    raw.get_choice("topk_method", {"noaux_tc": ""}, "noaux_tc")
    experts = read_experts(
        raw,
        count=256,
        chosen=8,
        shared=1,
        dense=3,
        score="sigmoid",
        renormalizes=raw.get_bool("norm_topk_prob", True),
        scale=raw.get_float("routed_scaling_factor", 2.5),
        groups=raw.get_int("n_group", 8),
        chosen_groups=raw.get_int("topk_group", 4),
        group_best=2,
    )
    return read_deepseek(raw, stored, experts, size=4096, interleaved=raw.get_bool("rope_interleave", True))


def read_experts(raw: ConfigReader, count: int, chosen: int, shared: int, dense: int, **choices: Any) -> ExpertConfig:
    """Read the experts of a DeepSeek.

    numbers: where the file has none; choices: fields of ExpertConfig
    """
    if raw.get_int("moe_layer_freq", 1) != 1:
        raise raw.error(f"moe_layer_freq {raw.values['moe_layer_freq']} is not supported (use 1)")
    hidden = raw.get_int("moe_intermediate_size")
    experts = ExpertConfig(
        count=raw.get_int("n_routed_experts", count, most=MOST_EXPERTS),
        chosen=raw.get_int("num_experts_per_tok", chosen),
        hidden=hidden,
        shared=hidden * raw.get_int("n_shared_experts", shared),
        dense=tuple(range(min(raw.get_int("first_k_dense_replace", dense, least=0), raw.get_int("num_hidden_layers")))),
        **choices,
    )
    if experts.count % experts.groups or not experts.chosen <= experts.count // experts.groups * experts.chosen_groups:
        raise raw.error(f"n_group {experts.groups} and topk_group {experts.chosen_groups} of {experts.count} experts")
    return experts


def read_deepseek(raw: ConfigReader, stored: Weights, experts: ExpertConfig, size: int, interleaved: bool) -> Config:
    """Read the configuration of a DeepSeek with these experts.

    size: the longest text where the file has none
    """
    latent = LatentConfig(
        rank=raw.get_int("kv_lora_rank", 512),
        query_rank=0 if raw.values.get("q_lora_rank", 1536) is None else raw.get_int("q_lora_rank", 1536),
        content=raw.get_int("qk_nope_head_dim", 128),
        rotary=raw.get_int("qk_rope_head_dim", 64),
        value=raw.get_int("v_head_dim", 128),
    )
    width = latent.content + latent.rotary
    if raw.get_int("qk_head_dim", width) != width:
        raise raw.error(
            f"qk_head_dim {raw.values['qk_head_dim']} (expected qk_nope_head_dim + qk_rope_head_dim, {width})"
        )
    if raw.get_int("head_dim", latent.rotary) not in (latent.rotary, width):
        raise raw.error(f"head_dim {raw.get_int('head_dim')} is not qk_rope_head_dim, {latent.rotary}")
    config = llama.read_config(raw, stored, size=size, head_dim=width, latent=latent, experts=experts)
    stack = config.stack("decoder")
    if stack.kv_heads != stack.heads:
        raise raw.error(f"num_key_value_heads {stack.kv_heads} is not supported (use {stack.heads}, all heads)")
    positions = replace(config.positions, rotary_dim=latent.rotary, interleaved=interleaved)
    scale = width**-0.5 * _growth(ConfigReader(positions.rope, raw.name)) ** 2
    return replace(config, positions=positions, scale=scale, decoder=replace(stack, head_dim=width))


def _growth(rope: ConfigReader) -> float:
    """The factor of queries and of keys that a longer context brings.

    0.1 m ln(factor) + 1.
    """
    if rope.get_str("rope_type") == "default" or not rope.values.get("mscale_all_dim"):
        return 1.0
    return 0.1 * rope.get_float("mscale_all_dim") * log(max(rope.get_float("factor", 1.0), 1.0)) + 1


def map_layers(raw: ConfigReader) -> Layers:
    layers = dict(map_deepseek(raw))
    correction = TensorSpec((f"{MIXTURE}.gate.e_score_correction_bias",))
    layers["decoder.{n}.router"] = {**layers["decoder.{n}.router"], "correction": correction}
    return layers


def map_deepseek(raw: ConfigReader) -> Layers:
    """Map the parameters of a DeepSeek, but for what corrects the choice of experts."""
    is_biased, has_latent = raw.get_bool("attention_bias", False), raw.values.get("q_lora_rank", 1536) is not None
    heads, rank = raw.get_int("num_attention_heads"), raw.get_int("kv_lora_rank", 512)
    content, value = raw.get_int("qk_nope_head_dim", 128), raw.get_int("v_head_dim", 128)
    rotary = raw.get_int("qk_rope_head_dim", 64)
    both, expanded = f"{ATTENTION}.kv_a_proj_with_mqa", f"{ATTENTION}.kv_b_proj.weight"
    down = {"kv_latent": Share(0, rank, rank + rotary), "k_rotary": Share(rank, rotary, rank + rotary)}
    up = {"wk": Share(0, content, content + value, heads), "wv": Share(content, value, content + value, heads)}
    attention = {
        **{f"w{name}": TensorSpec((f"{both}.weight",), transposed=True, share=share) for name, share in down.items()},
        **(
            {f"b{name}": TensorSpec((f"{both}.bias",), share=share) for name, share in down.items()}
            if is_biased
            else {}
        ),
        "gamma_kv_latent": norm(f"{ATTENTION}.kv_a_layernorm")["gamma"],
        **{name: TensorSpec((expanded,), transposed=True, share=share) for name, share in up.items()},
        **map_linear(ATTENTION, wo="o_proj", biased=is_biased),
    }
    if is_biased:
        attention |= {f"b{name}": TensorSpec((f"{both}.bias",), share=share) for name, share in down.items()}
    if has_latent:
        attention |= map_linear(ATTENTION, wq_latent="q_a_proj", biased=is_biased)
        attention |= map_linear(ATTENTION, wq="q_b_proj", biased=False)
        attention["gamma_q_latent"] = norm(f"{ATTENTION}.q_a_layernorm")["gamma"]
    else:
        attention |= map_linear(ATTENTION, wq="q_proj", biased=False)
    layers = llama.map_llama(raw)
    return map_mixture({**layers, "decoder.{n}.self": attention}, MIXTURE, NAMES, "shared_experts")


def infer_generation(file: Any) -> dict[str, Any]:
    """Infer the generation by the router, the head widths and the context growth."""
    rotary = file.get_int("rope.dimension_count")
    whole = {name: file.get_int(f"attention.{name}_length") for name in ("key", "value")}  # that of the latent vectors
    key, value = (file.get_int(f"attention.{name}_length_mla", width) for name, width in whole.items())
    file.used.add("attention.head_count_kv")  # 1: that of the latent vectors, too
    has_correction = any(name.endswith(".exp_probs_b.bias") for name in file.entries)
    softmax, rules = llama.SOFTMAX, (llama.SOFTMAX, SIGMOID)
    rule = file.get_int("expert_gating_func", SIGMOID if has_correction else softmax)
    if rule not in rules:
        raise DataError(f"expert_gating_func {rule} is not supported here (expected {softmax} or {SIGMOID})", file.name)
    groups = file.get_int("expert_group_count", 1)
    limited = "group_limited_greedy" if groups > 1 else "greedy"
    rope = file.rotation().get("rope_scaling", {})
    growth = file.get("rope.scaling.yarn_log_multiplier")
    if rope and growth:
        rope |= dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * growth, 6))
    return {
        "model_type": "deepseek_v3" if rule == SIGMOID else "deepseek_v2",
        "topk_method": "noaux_tc" if rule == SIGMOID else limited,
        "norm_topk_prob": file.get("expert_weights_norm", False),
        "q_lora_rank": file.get("attention.q_lora_rank"),
        "num_key_value_heads": file.get("attention.head_count"),
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": value,
        "attention_bias": "blk.0.attn_kv_a_mqa.bias" in file.entries,
        "rope_scaling": rope,
        "n_group": groups,
        "topk_group": file.get_int("expert_group_used_count", 1),
    }


def join_latent(keys: Array, contents: Array, values: Mapping[str, Any]) -> Array:
    """The rows of keys (H, rank, K) and those of values (H, V, rank), by head.

    >>> join_latent(np.array([[[1, 2]], [[3, 4]]]), np.array([[[5]], [[6]]]), {}).ravel()
    array([1, 2, 5, 3, 4, 6])
    """
    return np.concatenate([keys.swapaxes(1, 2), contents], axis=1).reshape(-1, keys.shape[1])


def latent_shape(keys: tuple[int, ...], contents: tuple[int, ...]) -> tuple[int, ...]:
    (heads, rank, width), (also_heads, value, also_rank) = keys, contents
    if (heads, rank) != (also_heads, also_rank):
        raise ValueError
    return heads * (width + value), rank


GGUF: dict[str, Any] = {
    "keys": (
        "width", "layers", "heads", "longest text", "hidden width", ("rms_norm_eps", "rms norm eps"), "theta",
        ("kv_lora_rank", "latent width"), ("qk_rope_head_dim", "rotated width"), "experts", "chosen experts",
        ("n_shared_experts", "shared experts"), "expert width", "dense layers", "expert factor",
    ),
    "names": llama.name_gguf({
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",  # of older files; newer ones have the parts
        "attn_k_b": "self_attn.kv_b_proj",
        "attn_v_b": "",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        "ffn_gate_inp": "mlp.gate",
        **{f"ffn_{name}_exps": f"mlp.experts.{{e}}.{name}_proj" for name in ("gate", "up", "down")},
        **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    }),
    "infer": ("head", infer_generation),
    "changes": {
        "blk.{n}.attn_k_b": (
            join_latent, latent_shape, "blk.{n}.attn_v_b.weight"
        )
    },
}  # fmt: skip
