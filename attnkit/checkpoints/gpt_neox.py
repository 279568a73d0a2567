"""GPT-NeoX and Pythia: parallel sub-layers with a norm each, partial rotation."""

from dataclasses import replace

from attnkit.checkpoints import llama
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
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("gpt_neox.",)
FIELDS = llama.FIELDS | {
    "key/value heads": "", "head width": "", "norm eps": "layer_norm_eps", "biases": "attention_bias",
    "sub-layers": "use_parallel_residual", "theta": "rope_theta rotary_emb_base",
    "rotated features": "rotary_pct partial_rotary_factor",
}  # fmt: skip
GGUF = llama.USUAL_GGUF | {
    "keys": (
        "width", "layers", "hidden width", "heads", ("num_key_value_heads", "key/value heads"), "longest text",
        ("head_dim", "head width"), "theta", "norm eps", "sub-layers",
    ),
    "names": {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"}
    | name_blocks({
        "attn_norm": "input_layernorm", "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
    }, "gpt_neox.layers.{n}"),
    "infer": ("head", "rotation", ("rotated part", "rotary_pct")),
    "changes": {"blk.{n}.attn_qkv": ("by head", "num_attention_heads", "num_attention_heads")},
}  # fmt: skip
LAYER, WORDS = "layers.{n}", "embed_in.weight"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    size = raw.get_int("max_position_embeddings", 2048)
    raw.ignore("partial_rotary_factor")  # rotary_pct again
    raw.expect(head_dim=raw.get_head_dim("hidden_size", "num_attention_heads"))
    theta = raw.get_float("rotary_emb_base", 10000.0)
    config = Config(
        "gpt_neox",
        raw.get_int("hidden_size"),
        decoder=raw.get_stack(FIELDS, causal=True, final_norm=True),
        eps=raw.get_float("layer_norm_eps", 1e-5),
        norm_first=True,
        parallel=raw.get_bool("use_parallel_residual", True),
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu"),
        positions=PositionConfig("rotary", size=size, rope=llama.read_rotation(raw, size, theta)),
        special=raw.get_special_tokens(),
    )
    has_head = stored.has("embed_out.weight", "lm_head.weight") or raw.get_bool("tie_word_embeddings", False)
    return replace(llama.rotate_partly(raw, config, 0.25, "rotary_pct"), head=has_head)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased, heads = raw.get_bool("attention_bias", True), raw.get_int("num_attention_heads")
    fused, is_tied = f"{LAYER}.attention.query_key_value", raw.get_bool("tie_word_embeddings", False)
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.{n}.norm1": norm(f"{LAYER}.input_layernorm"),
        "decoder.{n}.self": map_fused("qkv", f"{fused}.weight", f"{fused}.bias" * is_biased, groups=heads)
        | map_linear(f"{LAYER}.attention", wo="dense", biased=is_biased),
        "decoder.{n}.norm2": norm(f"{LAYER}.post_attention_layernorm"),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="dense_h_to_4h", w2="dense_4h_to_h"),
        "decoder.norm": norm("final_layer_norm"),
        "head": tied_head("embed_out.weight", "lm_head.weight", to=WORDS * is_tied),
    }
