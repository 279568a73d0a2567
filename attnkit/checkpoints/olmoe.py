"""OLMoE: Llama with experts in every layer, and norms of whole queries and keys."""

from typing import Any

from attnkit.checkpoints import llama, qwen3_moe
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import MOST_EXPERTS, map_mixture
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config
from attnkit.model.formulas.experts import ExpertConfig

VARIANT_OF = llama
FIELDS = llama.FIELDS | {
    "q k v bound": "clip_qkv", "experts": "num_experts num_local_experts", "chosen experts": "num_experts_per_tok",
    "expert width": "intermediate_size", "router": "norm_topk_prob",
}  # fmt: skip


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return llama.read_config(
        raw,
        stored,
        size=4096,
        eps=raw.get_float("rms_norm_eps", 1e-5),
        qk_norm="projection",
        clip=raw.get_float("clip_qkv") if raw.has("clip_qkv") else 0.0,
        experts=ExpertConfig(
            count=raw.get_int("num_experts", raw.get_int("num_local_experts", 64), most=MOST_EXPERTS),
            chosen=raw.get_int("num_experts_per_tok", 8),
            hidden=raw.get_int("intermediate_size"),
            renormalizes=raw.get_bool("norm_topk_prob", False),
        ),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    layers = llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, qk_norm=True)
    return map_mixture(layers, qwen3_moe.MIXTURE, qwen3_moe.NAMES)


def infer_clip(file: Any) -> dict[str, Any]:
    clip = file.get("attention.clamp_kqv")
    return {**qwen3_moe.infer_experts(file, False), **({"clip_qkv": clip} if clip else {})}


GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.USUAL_GGUF["keys"], "experts", "chosen experts"),
    "names": llama.name_gguf(qwen3_moe.GGUF_EXPERTS),
    "infer": (*llama.USUAL_GGUF["infer"], infer_clip),
}
