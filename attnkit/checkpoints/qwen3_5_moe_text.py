"""Qwen3.5 with the experts of Qwen2, whose gates always have the sum 1."""

from functools import partial

from attnkit.checkpoints import llama, qwen3_5_text, qwen3_moe, qwen3_next
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_fused
from attnkit.model.config import Config

VARIANT_OF = qwen3_next
FIELDS = {key: value for key, value in qwen3_next.FIELDS.items() if key not in ("dense layers", "router")}
FIELDS |= {"hidden width": "moe_intermediate_size"}
TOKENIZER = "Qwen3_5Tokenizer"
PREFIXES = qwen3_5_text.PREFIXES


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    shared = raw.get_int("shared_expert_intermediate_size", 512)
    raw.expect(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    experts = qwen3_moe.read_mixture(raw, count=256, chosen=8, hidden=512, renormalizes=True, shared=shared)
    return qwen3_next.read_hybrid(raw, stored, kv_heads=2, hidden=experts.hidden, experts=experts)


def map_layers(raw: ConfigReader) -> Layers:
    """Map experts that are stored one by one or, as published, all in one tensor."""
    layers, count = qwen3_next.add_experts(qwen3_5_text.map_layers(raw)), raw.get_int("num_experts", 256)
    gates, down = (f"{qwen3_moe.MIXTURE}.experts.{name}_proj" for name in ("gate_up", "down"))
    packed = {**map_fused("13", gates), "w2": TensorSpec((down,), transposed=True)}
    experts = {
        name: spec._replace(other=packed[name]._replace(stacked=count))
        for name, spec in layers["decoder.{n}.expert"].items()
    }
    return {**layers, "decoder.{n}.expert": experts}


EXPERTS = llama.name_gguf({**qwen3_moe.GGUF_EXPERTS, "ffn_norm": ""})
GGUF = {
    "keys": qwen3_next.GGUF["keys"],
    "names": {**EXPERTS, **qwen3_5_text.NAMES},
    "infer": (*qwen3_next.INFER, partial(qwen3_moe.infer_experts, renormalizes=True)),
    "changes": qwen3_5_text.CHANGES,
}
