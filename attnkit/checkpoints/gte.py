"""GTE: BERT with rotary positions, and a gated network in one fused matrix.

The code that was published with the models calls the family `new`.
"""

from collections.abc import Mapping
from typing import Any

from attnkit.checkpoints import nomic_bert
from attnkit.checkpoints.bert import WORDS
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, map_head, usual_heads
from attnkit.checkpoints.nomic_bert import UsualValues, map_embeddings, read_rotary
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_fused, map_linear, norm, tied_head
from attnkit.model.config import Config

PREFIXES = ("gte.", "new.")
VARIANT_OF = nomic_bert
LAYER, HEAD = "encoder.layer.{n}", "lm_head"
HEADS = usual_heads(Head("classifier", pooler="pooler.dense"))
USUAL = UsualValues(160000.0, 8192, types=1, activation="gelu")
RENAMED_MODULES = (
    (r"^encoder\.layer\.", "layers."), (r"\.attention\.o_proj\.", ".self_attn.o_proj."),
    (r"\.attn_ln\.", ".post_attention_layernorm."), (r"\.mlp_ln\.", ".post_mlp_layernorm."),
    (r"^lm_head\.norm\.", "lm_head.layer_norm."),
)  # fmt: skip
SPLIT_MODULES = {
    "attention.qkv_proj": nomic_bert.QKV,
    "mlp.up_gate_proj": {"1": "mlp.gate_proj", "3": "mlp.up_proj"},
}
FIXED = {  # keys of the code of `new`, by the only value that is computed here
    "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False, "pack_qkv": True,
}  # fmt: skip


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.expect(**FIXED)
    raw.ignore("unpad_inputs", "use_memory_efficient_attention")
    scaling = raw.get_object("rope_scaling")
    if raw.get_str("model_type") == "new":
        rope = read_scaling(raw, scaling.values)
        raw = raw.replaced(
            {
                **raw.values.plain,
                "model_type": "gte",
                "rope_scaling": None,
                "rope_theta": None,
                "rope_parameters": rope,
            }
        )
    return read_rotary(raw, stored, f"{HEAD}.dense.weight", HEADS, USUAL, head_activation="gelu")


def read_scaling(raw: ConfigReader, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """The rotation of a `new` model, in the form of transformers.

    Its `ntk` multiplies theta by a factor, and divides each frequency by factor^(2/width) besides.

    >>> raw = ConfigReader({"rope_theta": 100.0, "hidden_size": 8, "num_attention_heads": 2}, "config.json")
    >>> read_scaling(raw, {"type": "ntk", "factor": 4.0})
    {'rope_type': 'linear', 'rope_theta': 400.0, 'factor': 2.0}
    """
    theta, inner = raw.get_float("rope_theta", 10000.0), ConfigReader(scaling, raw.name)
    if not scaling:
        return {"rope_type": "default", "rope_theta": theta}
    kind, factor = inner.get_str("type", ""), inner.get_float("factor")
    inner.expect(mixed_b=0)
    if kind != "ntk":
        raise raw.error(f"rope_scaling type {kind[:40]!r} is not supported (use ntk)")
    width = raw.get_head_dim("hidden_size", "num_attention_heads")
    return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / width)}


def map_layers(raw: ConfigReader) -> Layers:
    attention = f"{LAYER}.attention"
    return {
        **map_embeddings("embeddings.LayerNorm", bool(raw.get_int("type_vocab_size", 1, least=0))),
        "encoder.{n}.self": map_fused("qkv", f"{attention}.qkv_proj.weight", f"{attention}.qkv_proj.bias")
        | map_linear(attention, wo="o_proj"),
        "encoder.{n}.norm1": norm(f"{LAYER}.attn_ln"),
        "encoder.{n}.ffn": map_fused("31", f"{LAYER}.mlp.up_gate_proj.weight")
        | map_linear(f"{LAYER}.mlp", w2="down_proj"),
        "encoder.{n}.norm2": norm(f"{LAYER}.mlp_ln"),
        "pooler": map_linear(w="pooler.dense"),
        "head.dense": map_linear(w=f"{HEAD}.dense"),
        "head.norm": norm(f"{HEAD}.norm"),
        "head": tied_head(f"{HEAD}.decoder.weight", to=WORDS * raw.get_bool("tie_word_embeddings", True))
        | {"b": TensorSpec((f"{HEAD}.decoder.bias",))},
        **map_head(raw, HEADS),
    }
