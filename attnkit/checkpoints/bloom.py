"""BLOOM: a pre-norm decoder with ALiBi, normed embeddings, projections by head."""

from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import (
    Layers,
    Weights,
    embedding_table,
    map_fused,
    map_linear,
    name_blocks,
    norm,
    tied_head,
)
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("transformer.",)
FIELDS = USUAL | {  # the sizes with the key of the file, and the other that published files have
    "layers": "n_layer num_hidden_layers", "heads": "n_head num_attention_heads", "width": "n_embed hidden_size",
    "hidden width": "", "norm eps": "layer_norm_epsilon",
}  # fmt: skip
GGUF: dict[str, Any] = {
    "keys": (("hidden_size", "width"), ("n_layer", "layers"), ("n_head", "heads"), "norm eps"),
    "names": {
        "token_embd": "word_embeddings", "token_embd_norm": "word_embeddings_layernorm", "output_norm": "ln_f",
        "output": "lm_head",
    }
    | name_blocks({
        "attn_norm": "input_layernorm", "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense", "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    }, "h.{n}"),
    "infer": ("head",),
    "changes": {"blk.{n}.attn_qkv": ("by head", "n_head", "n_head")},
}  # fmt: skip
LAYER, WORDS = "h.{n}", "word_embeddings.weight"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    if raw.get_bool("apply_residual_connection_post_layernorm", False):
        raise raw.error("apply_residual_connection_post_layernorm is not supported")
    width = raw.get_int(raw.find_key(FIELDS, "width"))
    return Config(
        "bloom",
        width,
        decoder=raw.get_stack(FIELDS, hidden=4 * width, causal=True, final_norm=True),
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        norm_first=True,
        activation="gelu-tanh",
        positions=PositionConfig(relative="alibi"),
        embed_norm=True,
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied, fused = raw.get_bool("tie_word_embeddings", True), f"{LAYER}.self_attention.query_key_value"
    heads = raw.get_int(raw.find_key(FIELDS, "heads"))
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.embed_norm": norm("word_embeddings_layernorm"),
        "decoder.{n}.norm1": norm(f"{LAYER}.input_layernorm"),
        "decoder.{n}.self": map_fused("qkv", f"{fused}.weight", f"{fused}.bias", groups=heads)
        | map_linear(f"{LAYER}.self_attention", wo="dense"),
        "decoder.{n}.norm2": norm(f"{LAYER}.post_attention_layernorm"),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="dense_h_to_4h", w2="dense_4h_to_h"),
        "decoder.norm": norm("ln_f"),
        "head": tied_head("lm_head.weight", to=WORDS * is_tied),
    }
