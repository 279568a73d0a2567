"""gpt-oss: experts with bounded gates, sinks in attention, biases and windows.

Every other layer has a window.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import MOST_EXPERTS
from attnkit.checkpoints.weights import Layers, Share, TensorSpec, Weights
from attnkit.model.config import Config
from attnkit.model.dtypes import Array
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = llama
FIELDS = llama.WINDOWED | {
    "experts": "num_local_experts", "chosen experts": "num_experts_per_tok", "expert width": "intermediate_size",
    "gate bound": "swiglu_limit",
}  # fmt: skip
GGUF_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
    "ffn_up_exps.weight": "",
    "ffn_up_exps.bias": "",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
SOFTMAX_OF_CHOSEN = 3  # the rule of the router: expert_gating_func
MIXTURE = f"{llama.LAYER}.mlp"
ALPHA = 1.702  # of the activation, as in quick-GELU


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    if raw.get_float("swiglu_alpha", ALPHA) != ALPHA:
        raise raw.error(f"swiglu_alpha {raw.values['swiglu_alpha']} is not supported (use {ALPHA})")
    packing = raw.get_object("quantization_config")
    packing.get_choice("quant_method", {"mxfp4": ""}, "mxfp4")
    packing.ignore("modules_to_not_convert")  # which the tensors state
    raw.get_choice("hidden_act", {"silu": "silu"}, "silu")  # which names no activation of this family
    chosen = raw.get_int("num_experts_per_tok", 4)
    raw.ignore("initial_context_length")
    raw.expect(experts_per_token=chosen)  # stated twice
    config = llama.read_config(
        raw,
        stored,
        theta=150000.0,
        size=131072,
        head_dim=64,
        kv_heads=8,
        eps=raw.get_float("rms_norm_eps", 1e-5),
        activation="quick-gelu",
        ffn_limit=raw.get_float("swiglu_limit", 7.0),
        experts=ExpertConfig(
            count=raw.get_int("num_local_experts", 128, most=MOST_EXPERTS),
            chosen=chosen,
            hidden=raw.get_int("intermediate_size"),
            score="chosen",
        ),
    )
    layers = config.stack("decoder").layers
    kinds = [llama.FULL if number % 2 else llama.SLIDING for number in range(layers)]
    return llama.limit_layers(raw, config, kinds, window=128)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased, count = raw.get_bool("attention_bias", True), raw.get_int("num_local_experts", 128)
    hidden = raw.get_int("intermediate_size")
    layers = llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased)
    sinks = {"sinks": TensorSpec((f"{llama.LAYER}.self_attn.sinks",))}

    def spec(name: str, share: Share) -> TensorSpec:
        return TensorSpec((f"{MIXTURE}.experts.{name}",), share=share, stacked=count)

    # the columns of gate and linear part take turns
    shares = {"1": Share(0, 1, 2, groups=hidden), "3": Share(1, 1, 2, groups=hidden), "2": Share()}
    files = {"1": "gate_up_proj", "3": "gate_up_proj", "2": "down_proj"}
    expert = {f"w{digit}": spec(files[digit], share) for digit, share in shares.items()}
    expert |= {f"b{digit}": spec(f"{files[digit]}_bias", share) for digit, share in shares.items()}
    router = {
        "router": TensorSpec((f"{MIXTURE}.router.weight",), transposed=True),
        "router_bias": TensorSpec((f"{MIXTURE}.router.bias",)),
    }
    return {
        **layers,
        "decoder.{n}.self": {**layers["decoder.{n}.self"], **sinks},
        "decoder.{n}.router": router,
        "decoder.{n}.expert": expert,
    }


def infer_rotation(file: Any) -> dict[str, Any]:
    """The rotation, whose ramp may begin and end between whole numbers.

    DataError for another rule of the router.
    """
    found = file.rotation()
    rope = {**found["rope_scaling"], "truncate": False} if found else {}
    file.check_gating(SOFTMAX_OF_CHOSEN)
    return {"rope_scaling": rope} if rope else {}


def take_turns(gates: Array, linear: Array, values: Mapping[str, Any]) -> Array:
    """Interleave gates and linear parts (experts, ...) on the last axis.

    >>> take_turns(np.array([[1, 2]]), np.array([[3, 4]]), {})
    array([[1, 3, 2, 4]])
    """
    both = np.stack([part if part.ndim < 3 else part.swapaxes(-1, -2) for part in (gates, linear)], axis=-1)
    return both.reshape(*both.shape[:-2], -1)


def turns_shape(gates: tuple[int, ...], linear: tuple[int, ...]) -> tuple[int, ...]:
    if gates != linear:
        raise ValueError
    experts, outputs, *inputs = gates
    return (experts, *inputs, 2 * outputs)


GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.USUAL_GGUF["keys"], "windows", "experts", "chosen experts", "expert width"),
    "names": llama.name_gguf(GGUF_NAMES),
    "infer": ("head", "biases", infer_rotation, "whole rotation"),
    "changes": {
        **{
            f"blk.{{n}}.ffn_gate_exps.{ending}": (take_turns, turns_shape, f"blk.{{n}}.ffn_up_exps.{ending}")
            for ending in ("weight", "bias")
        },
        "blk.{n}.ffn_down_exps.weight": (
            lambda array, values: array.swapaxes(-1, -2),
            lambda shape: (shape[0], shape[2], shape[1]),
        ),
    },
}
