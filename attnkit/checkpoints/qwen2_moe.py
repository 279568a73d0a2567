"""Qwen2 with experts, beside a gated network that all tokens share."""

from functools import partial

from attnkit.checkpoints import llama, qwen3_moe
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import map_mixture
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights
from attnkit.model.config import Config

VARIANT_OF = qwen3_moe
FIELDS = qwen3_moe.FIELDS | {"biases": "qkv_bias", "shared width": "shared_expert_intermediate_size"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    shared = raw.get_int("shared_expert_intermediate_size", 5632)
    experts = qwen3_moe.read_experts(raw, count=60, chosen=4, shared=shared)
    config = llama.read_config(raw, stored, size=32768, kv_heads=16, experts=experts)
    layers, full = config.stack("decoder").layers, raw.get_int("max_window_layers", 28, least=0)
    kinds = [llama.FULL if number % 2 or number >= full else llama.SLIDING for number in range(layers)]
    kinds = llama.read_layer_types(raw, kinds)
    window = llama.read_window(raw, 4096, least=0) * raw.get_bool("use_sliding_window", False)
    return llama.limit_window(config, [window if kind == llama.SLIDING else 0 for kind in kinds])


def map_layers(raw: ConfigReader) -> Layers:
    layers = llama.map_llama(raw, qkv_bias=raw.get_bool("qkv_bias", True))
    mixture = dict(map_mixture(layers, qwen3_moe.MIXTURE, qwen3_moe.NAMES, "shared_expert"))
    gate = TensorSpec((f"{qwen3_moe.MIXTURE}.shared_expert_gate.weight",), transposed=True)
    mixture["decoder.{n}.router"] = {**mixture["decoder.{n}.router"], "shared_gate": gate}
    return mixture


GGUF = qwen3_moe.GGUF | {
    "keys": (*qwen3_moe.GGUF["keys"], "shared width"),
    "infer": (*llama.USUAL_GGUF["infer"], partial(qwen3_moe.infer_experts, renormalizes=False)),
    "changes": {
        "blk.{n}.ffn_gate_inp_shexp": (lambda array, values: array.reshape(1, -1), lambda shape: (1, *shape[-1:]))
    },
}
