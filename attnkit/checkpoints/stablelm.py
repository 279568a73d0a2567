"""StableLM: Llama with layer norms, partial rotation, perhaps parallel."""

from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
IS_CAUSAL = "unclear"  # read in eager attention, not in sdpa
FIELDS = llama.FIELDS | {
    "norm eps": "layer_norm_eps", "biases": "use_qkv_bias", "sub-layers": "use_parallel_residual",
    "query-key norm": "qk_layernorm", "rotated features": "partial_rotary_factor",
}  # fmt: skip


KV_HEADS = 32  # where the key is absent


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("use_norm_bias")  # norms have biases in every file
    raw.expect(rotary_scaling_factor=1.0)
    config = llama.read_config(
        raw,
        stored,
        size=4096,
        kv_heads=KV_HEADS,
        norm="layer",
        eps=raw.get_float("layer_norm_eps", 1e-5),
        parallel=raw.get_bool("use_parallel_residual", False),
        qk_norm="heads" if raw.get_bool("qk_layernorm", False) else "",
    )
    return llama.rotate_partly(raw, config, 0.25)


def map_layers(raw: ConfigReader) -> Layers:
    norms = {**llama.NORMS, "norm2": "input_layernorm"} if raw.get_bool("use_parallel_residual", False) else llama.NORMS
    layers = dict(llama.map_llama(raw, qkv_bias=raw.get_bool("use_qkv_bias", False), norms=norms, norm_bias=True))
    if raw.get_bool("qk_layernorm", False):
        heads = raw.get_int("num_attention_heads")
        counts = {"q": heads, "k": raw.get_int("num_key_value_heads", KV_HEADS)}
        layers["decoder.{n}.self"] = {
            **layers["decoder.{n}.self"],
            **{f"gamma_{letter}": _map_norms(letter, count) for letter, count in counts.items()},
        }
    return layers


def _map_norms(letter: str, heads: int) -> TensorSpec:
    """The norms of the heads of queries or keys, each a tensor of its own."""
    return TensorSpec((f"{llama.LAYER}.self_attn.{letter}_layernorm.norms.{{h}}.weight",), joined=heads)


def infer_parts(file: Any) -> dict[str, Any]:
    """Infer the parts that the tensors state.

    The key use_parallel_residual is true in files of either kind, and llama.cpp ignores it.
    """
    file.get("use_parallel_residual")
    return {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.entries,
        "use_qkv_bias": "blk.0.attn_q.bias" in file.entries,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in file.entries,
    }


GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.GGUF_SIZES, "norm eps"),
    "names": llama.name_gguf({f"attn_{letter}_norm": f"self_attn.{letter}_layernorm.norms.{{h}}" for letter in "qk"}),
    "infer": ("head", infer_parts, ("rotated part", llama.PARTIAL)),
}
