"""GPT-2: a pre-norm decoder. Weights are (in, out), and q, k and v are fused."""

from collections.abc import Mapping
from math import sqrt
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
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("transformer.",)
FIELDS = USUAL | {
    "layers": "n_layer", "width": "n_embd", "heads": "n_head", "hidden width": "n_inner", "longest text": "n_positions",
    "norm eps": "layer_norm_epsilon", "activation": "activation_function", "score scale": "scale_attn_weights",
    "scores by layer": "scale_attn_by_inverse_layer_idx", "dropout": "attn_pdrop embd_pdrop resid_pdrop",
}  # fmt: skip
GGUF: dict[str, Any] = {
    "keys": ("width", "layers", "heads", "hidden width", "longest text", "norm eps"),
    "names": {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"}
    | name_blocks({
        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    }, "h.{n}"),
    "infer": ("head",),
    "changes": dict.fromkeys(
        (f"blk.{{n}}.{name}" for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")), "transposed"
    ),
}  # fmt: skip
LEARNS, TEMPLATE = ("causal",), "$A"
TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<unk>"}
LAST_KEYS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
WORDS = "wte.weight"
LAYERS: Layers = {
    "decoder.embed": embedding_table(WORDS),
    "decoder.positions": embedding_table("wpe.weight"),
    "decoder.{n}.norm1": norm("h.{n}.ln_1"),
    "decoder.{n}.self": map_fused("qkv", "h.{n}.attn.c_attn.weight", "h.{n}.attn.c_attn.bias", transposed=False)
    | map_linear("h.{n}.attn", wo="c_proj", transposed=False),
    "decoder.{n}.norm2": norm("h.{n}.ln_2"),
    "decoder.{n}.ffn": map_linear("h.{n}.mlp", w1="c_fc", w2="c_proj", transposed=False),
    "decoder.norm": norm("ln_f"),
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    if raw.get_bool("add_cross_attention", False):
        raise raw.error("add_cross_attention is not supported")
    width = raw.get_int("n_embd")
    return Config(
        "gpt2",
        width,
        decoder=raw.get_stack(FIELDS, hidden=4 * width, causal=True, final_norm=True),
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        norm_first=True,
        activation=raw.get_choice("activation_function", PUBLISHED, "gelu_new"),
        positions=PositionConfig("learned", size=raw.get_int("n_positions", raw.get_int("n_ctx", 1024))),
        scale=None if raw.get_bool("scale_attn_weights", True) else 1.0,
        scale_by_layer=raw.get_bool("scale_attn_by_inverse_layer_idx", False),
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    return {**LAYERS, "head": tied_head("lm_head.weight", to=WORDS * is_tied)}


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "n_inner": recipe.hidden,
    }


def draw_initial(
    config: Config, raw: Mapping[str, Any], part: str, name: str, usual: tuple[str, float]
) -> tuple[str, float]:
    """Divide deviations of projections to the residual by sqrt(2 layers) (GPT-2, 2.3)."""
    kind, scale = usual
    return kind, scale / sqrt(2 * config.stack("decoder").layers) if name in ("wo", "w2") else scale
