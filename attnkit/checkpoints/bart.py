"""BART: a post-norm encoder-decoder with normed embeddings, positions from row 2."""

from math import sqrt
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, find_task, map_head, read_head
from attnkit.checkpoints.weights import (
    Layers,
    Specs,
    TensorSpec,
    Weights,
    embedding_table,
    map_linear,
    norm,
    tied_head,
    tied_table,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("model.",)
FIELDS = USUAL | {
    "width": "d_model", "encoder layers": "encoder_layers", "decoder layers": "decoder_layers",
    "encoder heads": "encoder_attention_heads", "decoder heads": "decoder_attention_heads",
    "encoder hidden width": "encoder_ffn_dim", "decoder hidden width": "decoder_ffn_dim",
    "activation": "activation_function", "embedding factor": "scale_embedding", "heads": "", "hidden width": "",
}  # fmt: skip
TOKENIZER = "BartTokenizer"
SCALES_EMBEDDINGS = True
HEADS = {"sequence": Head("classification_head.out_proj", dense="classification_head.dense", activation="tanh")}
SHARED = "shared.weight"
BIAS, FIRST = "final_logits_bias", 2  # FIRST: the row of the first position
OLDER_KEYS = {  # of older files, which state what the family does: the values that they may have
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "static_position_embeddings": False,
}


def map_attention(prefix: str) -> Specs:
    return map_linear(prefix, wq="q_proj", wk="k_proj", wv="v_proj", wo="out_proj")


LAYERS: Layers = {
    "encoder.{n}.self": map_attention("encoder.layers.{n}.self_attn"),
    "encoder.{n}.norm1": norm("encoder.layers.{n}.self_attn_layer_norm"),
    "encoder.{n}.ffn": map_linear("encoder.layers.{n}", w1="fc1", w2="fc2"),
    "encoder.{n}.norm2": norm("encoder.layers.{n}.final_layer_norm"),
    "decoder.{n}.self": map_attention("decoder.layers.{n}.self_attn"),
    "decoder.{n}.norm1": norm("decoder.layers.{n}.self_attn_layer_norm"),
    "decoder.{n}.cross": map_attention("decoder.layers.{n}.encoder_attn"),
    "decoder.{n}.norm2": norm("decoder.layers.{n}.encoder_attn_layer_norm"),
    "decoder.{n}.ffn": map_linear("decoder.layers.{n}", w1="fc1", w2="fc2"),
    "decoder.{n}.norm3": norm("decoder.layers.{n}.final_layer_norm"),
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    labels = read_head(raw, stored, HEADS) | {"pooling": "last"} if is_classifier(raw) else {}
    positions = read_positions(raw)
    return read_translator(
        raw, "bart", OLDER_KEYS, start=2, embed_norm=True, activation="gelu", positions=positions, **labels
    )


def is_classifier(raw: ConfigReader) -> bool:
    """Whether the head gives labels.

    It reads the last token of the decoder over the shifted source.
    """
    return find_task(raw) == "sequence"


def read_positions(raw: ConfigReader) -> PositionConfig:
    return PositionConfig("learned", size=raw.get_int("max_position_embeddings", 1024) + FIRST, first=FIRST)


def read_translator(
    raw: ConfigReader,
    family: str,
    older: dict[str, bool],
    *,
    start: int | None,
    activation: str,
    scales: bool = False,
    forced_eos: int | None = 2,
    **choices: Any,
) -> Config:
    """Read the configuration of an encoder-decoder whose tensors have BART's names.

    older       keys that state what the family does, with the values that they may have
    start, forced_eos, activation   defaults; scales: whether embeddings are multiplied by the root of the width
    choices     more fields of Config; with norm_first both stacks end with a norm
    """
    for key, value in older.items():
        if raw.get_bool(key, value) is not value:
            raise raw.error(f"{key} {str(not value).lower()} is not supported by family {family}")
    raw.ignore("num_hidden_layers")  # encoder_layers again
    width, words = raw.get_int("d_model"), raw.get_int("vocab_size")
    fields = {"head": has_head(raw)} | choices
    stacks: dict[str, Any] = {"vocab": words, "final_norm": choices.get("norm_first", False)}
    bos = raw.get_token_id("bos_token_id", 0)
    forced_bos = bos if raw.get_bool("force_bos_token_to_be_generated", False) else None
    return Config(
        family,
        width,
        encoder=raw.get_stack(FIELDS, "encoder", **stacks),
        decoder=raw.get_stack(FIELDS, "decoder", causal=True, cross=True, **stacks),
        activation=raw.get_choice("activation_function", PUBLISHED, activation),
        embed_scale=sqrt(width) if raw.get_bool("scale_embedding", scales) else 1.0,
        special=raw.get_special_tokens(
            start=start, eos=(2,), pad=1, bos=bos, forced_bos=forced_bos, forced_eos=forced_eos
        ),
        **fields,
    )


def has_head(raw: ConfigReader) -> bool:
    """Whether there are logits.

    BartModel and the like, which `architectures` names, have none.
    """
    return not raw.has("architectures") or raw.has_architecture("ForConditionalGeneration")


def map_layers(raw: ConfigReader) -> Layers:
    positions = {f"{stack}.positions": f"{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    return {
        **LAYERS,
        **map_words(raw, {"b": TensorSpec((BIAS,), leading_ones=1)}),
        **{layer: embedding_table(name) for layer, name in positions.items()},
        "encoder.embed_norm": norm("encoder.layernorm_embedding"),
        "decoder.embed_norm": norm("decoder.layernorm_embedding"),
        **(map_head(raw, HEADS) if is_classifier(raw) else {}),
    }


def map_words(raw: ConfigReader, bias: Specs) -> Layers:
    """Where embeddings and head are stored: once for all of them if they are tied."""
    is_tied = raw.get_bool("tie_word_embeddings", True)
    tables = {f"{stack}.embed": map_table(stack, is_tied) for stack in ("encoder", "decoder")}
    return {**tables, "head": {**tied_head("lm_head.weight", to=SHARED * is_tied), **bias}}


def map_table(stack: str, is_tied: bool) -> Specs:
    """Map the embeddings of a stack: its own table, or the shared one."""
    own = f"{stack}.embed_tokens.weight"
    return tied_table(own, to=SHARED) if is_tied else embedding_table(own, SHARED)
