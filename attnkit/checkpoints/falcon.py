"""Falcon: serial or parallel sub-layers, fused projections, RoPE or ALiBi.

One norm or two, and projections in three orders.
"""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import (
    Layers,
    TensorSpec,
    Weights,
    embedding_table,
    map_fused,
    map_linear,
    name_blocks,
    norm,
    tied_head,
)
from attnkit.model.config import Config, PositionConfig, StackConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("transformer.",)
FIELDS = llama.FIELDS | {
    "hidden width": "ffn_hidden_size", "key/value heads": "num_kv_heads multi_query", "head width": "",
    "norm eps": "layer_norm_epsilon", "activation": "activation", "biases": "bias",
    "sub-layers": "parallel_attn new_decoder_architecture", "positions": "alibi",
}  # fmt: skip
SECOND_NORM = "blk.0.attn_norm_2.weight"
LAYER, WORDS = "h.{n}", "word_embeddings.weight"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width, size = raw.get_int("hidden_size"), raw.get_int("max_position_embeddings", 2048)
    positions = PositionConfig("rotary", size=size, rope=llama.read_rotation(raw, size, 10000.0))
    if raw.get_bool("alibi", False):
        positions = PositionConfig(relative="alibi", rounds_bias=True)
    raw.ignore("num_kv_heads", "multi_query", "parallel_attn", "num_ln_in_parallel_attn")  # of other generations
    return Config(
        "falcon",
        width,
        decoder=_read_stack(raw, width),
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        norm_first=True,
        parallel=_is_new(raw) or raw.get_bool("parallel_attn", True),
        activation=raw.get_choice("activation", PUBLISHED, "gelu"),
        positions=positions,
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied, is_biased = raw.get_bool("tie_word_embeddings", True), raw.get_bool("bias", False)
    first, second = _norms(raw)
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.{n}.norm1": norm(f"{LAYER}.{first}"),
        "decoder.{n}.self": _map_projections(raw, is_biased)
        | map_linear(f"{LAYER}.self_attention", wo="dense", biased=is_biased),
        "decoder.{n}.norm2": norm(f"{LAYER}.{second}"),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="dense_h_to_4h", w2="dense_4h_to_h", biased=is_biased),
        "decoder.norm": norm("ln_f"),
        "head": tied_head("lm_head.weight", to=WORDS * is_tied),
    }


def _is_new(raw: ConfigReader) -> bool:
    """Whether heads share keys and values in groups, as from Falcon-40B on."""
    return raw.get_bool("new_decoder_architecture", False)


def _read_stack(raw: ConfigReader, width: int) -> StackConfig:
    """The sizes of the stack.

    With `multi_query` before Falcon-40B, all heads share one key and value.
    """
    fields = FIELDS | {"key/value heads": "num_kv_heads" if _is_new(raw) else ""}
    stack = raw.get_stack(fields, hidden=4 * width, causal=True, final_norm=True)
    return replace(stack, kv_heads=1) if not _is_new(raw) and raw.get_bool("multi_query", True) else stack


def _norms(raw: ConfigReader) -> tuple[str, str]:
    """The published names of the norms before attention and network."""
    if not (_is_new(raw) or raw.get_bool("parallel_attn", True)):
        return "input_layernorm", "post_attention_layernorm"
    count = raw.get_int("num_ln_in_parallel_attn", 2 if _is_new(raw) else 1, most=2)
    return ("ln_attn", "ln_mlp") if count == 2 else ("input_layernorm", "input_layernorm")


def _map_projections(raw: ConfigReader, is_biased: bool) -> dict[str, TensorSpec]:
    heads, fused = raw.get_int("num_attention_heads"), f"{LAYER}.self_attention.query_key_value"
    names = f"{fused}.weight", f"{fused}.bias" * is_biased
    if _is_new(raw):
        groups = raw.get_int("num_kv_heads", heads)
        return map_fused("qkv", *names, units=(heads // groups, 1, 1), groups=groups)
    if raw.get_bool("multi_query", True):
        return map_fused("qkv", *names, units=(heads, 1, 1))
    return map_fused("qkv", *names, groups=heads)


def infer_generation(file: Any) -> dict[str, Any]:
    """Infer the generation: one shared key and value, or groups, and its norms."""
    shared, has_two = file.get_int("attention.head_count_kv", 1), SECOND_NORM in file.entries
    groups = {
        "new_decoder_architecture": True,
        "num_kv_heads": shared,
        "num_ln_in_parallel_attn": 2 if has_two else 1,
    }
    of_heads = groups if has_two or shared > 1 else {"multi_query": True}
    return {**of_heads, "bias": "blk.0.attn_output.bias" in file.entries}


GGUF = llama.USUAL_GGUF | {
    "keys": ("width", "layers", "heads", "longest text", "hidden width", "theta", "norm eps"),
    "names": {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}
    | name_blocks({
        "attn_norm": "input_layernorm", "attn_norm_2": "ln_attn", "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense", "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    }, "transformer.h.{n}"),
    "infer": (*llama.USUAL_GGUF["infer"], infer_generation),
    "changes": {"blk.{n}.attn_qkv": ("by head", "num_attention_heads", "num_kv_heads")},
    "instead": {SECOND_NORM: {"blk.{n}.attn_norm": "transformer.h.{n}.ln_mlp"}},
}  # fmt: skip
