"""Phi-3 and Phi-4-mini: Llama with fused projections; RoPE depends on length."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, map_fused, map_linear
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.WINDOWED | {"rotated features": "partial_rotary_factor"}
GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.USUAL_GGUF["keys"], "windows", ("original_max_position_embeddings", "shorter text")),
    "names": llama.name_gguf({"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "infer": ("head", "rotation", ("rotated part", llama.PARTIAL)),
}
HAS_OWN_MODULES = False  # known: their columns are of unknown sizes
LAYER = llama.LAYER


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw = _renamed(raw)
    raw.expect(full_attn_mod=1, interpolate_factor=1)
    config = llama.read_config(raw, stored, eps=raw.get_float("rms_norm_eps", 1e-5), size=4096)
    config = llama.rotate_partly(raw, config)
    return llama.limit_layers(raw, config, [llama.SLIDING] * config.stack("decoder").layers)


def map_layers(raw: ConfigReader) -> Layers:
    heads = raw.get_int("num_attention_heads")
    groups = raw.get_int("num_key_value_heads", heads)
    fused = map_fused("qkv", f"{LAYER}.self_attn.qkv_proj.weight", units=(heads, groups, groups))
    gates = map_fused("13", f"{LAYER}.mlp.gate_up_proj.weight")
    return {
        **llama.map_llama(raw),
        "decoder.{n}.self": fused | map_linear(f"{LAYER}.self_attn", wo="o_proj", biased=False),
        "decoder.{n}.ffn": gates | map_linear(f"{LAYER}.mlp", w2="down_proj", biased=False),
    }


def _renamed(raw: ConfigReader) -> ConfigReader:
    """The configuration with today's name for the rotation of older files, su or yarn."""
    values = dict(raw.values.plain)
    for key in ("rope_scaling", "rope_parameters"):
        rope = raw.get_dict(key)
        for name in ("type", "rope_type"):
            if rope.get(name) in ("su", "yarn"):
                values[key] = rope = {**rope, name: "longrope"}
    values.setdefault("original_max_position_embeddings", 4096)
    return raw.replaced(values)
