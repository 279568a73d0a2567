"""Nomic BERT: BERT with rotary positions and a gated network, both without biases.

Other encoders with rotary positions begin with it, and say what differs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from attnkit.checkpoints import bert, llama
from attnkit.checkpoints.bert import PREDICTIONS, WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, Heads, map_head, usual_heads
from attnkit.checkpoints.weights import (
    Layers,
    TensorSpec,
    Weights,
    embedding_table,
    map_fused,
    map_linear,
    masked_word_head,
    name_blocks,
    norm,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("nomic_bert.", "bert.")
VARIANT_OF = bert
FIELDS = bert.FIELDS | {"positions": "", "head width": "head_dim", "theta": "rope_theta", "scaling": "rope_type type"}
LAYER = "encoder.layers.{n}"
HEADS = usual_heads(Head("classifier", pooler="pooler.dense"))
RENAMED_MODULES = (
    (r"^encoder\.layers?\.", "layers."), (r"^emb_ln\.", "embeddings.LayerNorm."),
    (r"\.(attn|mixer)\.out_proj\.", ".self_attn.o_proj."), (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."), (r"\.fc11\.", ".up_proj."), (r"\.fc12\.", ".gate_proj."),
    (r"\.mlp\.fc2\.", ".mlp.down_proj."),
)  # fmt: skip
QKV = {letter: f"self_attn.{letter}_proj" for letter in "qkv"}
SPLIT_MODULES = {"attn.Wqkv": QKV}
OLD = {  # keys of the code that was published with the models -> those of transformers
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
FIXED = {  # other keys of that code, by the only value that is computed here
    "activation_function": "swiglu", "causal": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "moe_every_n_layers": 0, "num_experts": 0, "parallel_block": False, "prenorm": False, "qkv_proj_bias": False,
    "rotary_emb_fraction": 1, "rotary_emb_interleaved": False, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "use_rms_norm": False,
}  # fmt: skip
HARMLESS = (
    "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions", "pad_vocab_size_multiple",
    "parallel_block_tied_norm", "use_flash_attn", "use_xentropy",
)  # fmt: skip
WITHOUT = ("rotary_emb_scale_base", "rotary_scaling_factor")  # keys of that code which have to be null


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.expect(**FIXED)
    for key in filter(raw.has, WITHOUT):
        raise raw.error(f"{key} {raw.values[key]} is not supported (use null)", key)
    raw.ignore(*WITHOUT, *OLD, *HARMLESS)
    plain = raw.values.plain
    renamed = {new: plain[old] for old, new in OLD.items() if raw.values.plain.get(old) is not None}
    if raw.get_object("rope_parameters").values:
        renamed.pop("rope_theta", None)
    return read_rotary(
        raw.replaced({**renamed, **plain}), stored, f"{PREDICTIONS}.transform.dense.weight", HEADS, USUAL
    )


class UsualValues(NamedTuple):
    """What a file means that has no key for it."""

    theta: float
    size: int
    types: int
    activation: str
    eps: float = 1e-12


USUAL = UsualValues(1000.0, 2048, types=2, activation="silu")


def read_rotary(
    raw: ConfigReader, stored: Weights, head: str, heads: Heads, usual: UsualValues, **choices: Any
) -> Config:
    """Read the configuration of a BERT with rotary positions.

    head, heads, choices  as of `read_encoder`
    """
    named = raw.values.plain.get("position_embedding_type")
    raw.ignore("position_embedding_type")
    if named not in (None, "rope", "rotary", "absolute"):  # which the code of transformers does not read
        raise raw.error(f"position_embedding_type {str(named)[:40]!r} is not supported (use rotary)")
    size = raw.get_int("max_position_embeddings", usual.size)
    plain = {key: value for key, value in raw.values.plain.items() if key != "position_embedding_type"}
    return read_encoder(
        raw.replaced(plain),
        stored,
        head,
        heads,
        fields=FIELDS,
        positions=PositionConfig("rotary", size=size, rope=llama.read_rotation(raw, size, usual.theta)),
        types=raw.get_int("type_vocab_size", usual.types, least=0),
        activation=raw.get_choice("hidden_act", PUBLISHED, usual.activation),
        eps=raw.get_float("layer_norm_eps", usual.eps),
        **choices,
    )


def map_layers(raw: ConfigReader) -> Layers:
    predictions = f"{PREDICTIONS}.transform"
    return {
        **map_embeddings("emb_ln"),
        "encoder.{n}.self": map_fused("qkv", f"{LAYER}.attn.Wqkv.weight")
        | map_linear(f"{LAYER}.attn", wo="out_proj", biased=False),
        "encoder.{n}.norm1": norm(f"{LAYER}.norm1"),
        "encoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="fc12", w3="fc11", w2="fc2", biased=False),
        "encoder.{n}.norm2": norm(f"{LAYER}.norm2"),
        "pooler": map_linear(w="pooler.dense"),
        "head.dense": map_linear(w=f"{predictions}.dense"),
        "head.norm": norm(f"{predictions}.layer_norm"),
        "head": masked_word_head(WORDS, PREDICTIONS, raw.get_bool("tie_word_embeddings", True)),
        **map_head(raw, HEADS),
    }


def map_embeddings(normed: str, has_types: bool = True) -> Layers:
    """Map the tables of words and segments, and the norm that reads their sum."""
    types = {"types": TensorSpec(("embeddings.token_type_embeddings.weight",))} if has_types else {}
    return {"encoder.embed": embedding_table(WORDS) | types, "encoder.embed_norm": norm(normed)}


def name_gguf(layer: Mapping[str, str]) -> dict[str, str]:
    """The published names by those of a GGUF file. layer: of the tensors of a layer."""
    names = {
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
    }
    more = {"attn_output_norm": "norm1", "ffn_down": "mlp.fc2", "layer_output_norm": "norm2"}
    return names | name_blocks({**more, **layer}, LAYER)


GGUF: dict[str, Any] = bert.GGUF | {
    "keys": ("width", "layers", "hidden width", "heads", "longest text", "norm eps", "theta"),
    "names": name_gguf({
        "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "ffn_up": "mlp.fc11", "ffn_gate": "mlp.fc12",
    }),
    "infer": (bert.infer_segments, "rotation", "whole rotation"),
}  # fmt: skip
