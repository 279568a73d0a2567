"""BERT: a post-norm encoder with token types, an optional pooler and head."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader, Fields
from attnkit.checkpoints.label_heads import Head, Heads, map_head, read_head, usual_heads
from attnkit.checkpoints.weights import (
    Layers,
    TensorSpec,
    Weights,
    embedding_table,
    map_linear,
    masked_word_head,
    name_blocks,
    norm,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("bert.",)
FIELDS = USUAL | {
    "positions": "position_embedding_type", "segments": "type_vocab_size",
    "dropout": "attention_probs_dropout_prob hidden_dropout_prob",
}  # fmt: skip
LEARNS, TEMPLATE = ("masked",), "[CLS] $A [SEP]"
TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORDS, PREDICTIONS = "embeddings.word_embeddings.weight", "cls.predictions"
LAYER = "encoder.layer.{n}"
LAYERS: Layers = {
    "encoder.embed": embedding_table(WORDS) | {"types": TensorSpec(("embeddings.token_type_embeddings.weight",))},
    "encoder.positions": embedding_table("embeddings.position_embeddings.weight"),
    "encoder.embed_norm": norm("embeddings.LayerNorm"),
    "encoder.{n}.self": map_linear(f"{LAYER}.attention.self", wq="query", wk="key", wv="value")
    | map_linear(f"{LAYER}.attention.output", wo="dense"),
    "encoder.{n}.norm1": norm(f"{LAYER}.attention.output.LayerNorm"),
    "encoder.{n}.ffn": map_linear(LAYER, w1="intermediate.dense", w2="output.dense"),
    "encoder.{n}.norm2": norm(f"{LAYER}.output.LayerNorm"),
    "pooler": map_linear(w="pooler.dense"),
    "head.dense": map_linear(w=f"{PREDICTIONS}.transform.dense"),
    "head.norm": norm(f"{PREDICTIONS}.transform.LayerNorm"),
}
HEADS = usual_heads(Head("classifier", pooler="pooler.dense"))


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return read_encoder(raw, stored, f"{PREDICTIONS}.transform.dense.weight", HEADS)


def read_encoder(
    raw: ConfigReader,
    stored: Weights,
    head: str,
    heads: Heads | None = None,
    fields: Fields = FIELDS,
    **choices: Any,
) -> Config:
    """The configuration of a model with the keys of BERT.

    head     the tensor that a model with a head for masked words stores
    heads    its heads for labels, if it may have one
    fields   the keys of its sizes
    choices  fields of Config that differ from BERT's
    """
    if raw.get_str("position_embedding_type", "absolute") != "absolute":
        raise raw.error(f"position_embedding_type {raw.get_str('position_embedding_type')[:40]!r} is not supported")
    if raw.get_bool("is_decoder", False):
        raise raw.error("is_decoder is not supported")
    has_head = stored.has(head)
    config = Config(
        raw.get_str("model_type"),
        raw.get_int("hidden_size"),
        encoder=raw.get_stack(fields),
        eps=raw.get_float("layer_norm_eps", 1e-12),
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu"),
        positions=PositionConfig("learned", size=raw.get_int("max_position_embeddings")),
        embed_norm=True,
        types=raw.get_int("type_vocab_size", 2, least=0),
        pooler=stored.has("pooler.dense.weight"),
        head=has_head,
        transform=has_head,
        special=raw.get_special_tokens(),
    )
    return replace(config, **choices | (read_head(raw, stored, heads) if heads else {}))


def map_layers(raw: ConfigReader) -> Layers:
    head = masked_word_head(WORDS, PREDICTIONS, raw.get_bool("tie_word_embeddings", True))
    return {**LAYERS, "head": head, **map_head(raw, HEADS)}


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "architectures": ["BertForMaskedLM"],
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }


def infer_segments(file: Any) -> dict[str, Any]:
    types = file.entries.get("token_types.weight", ("", (0,)))[1]
    return {"type_vocab_size": types[0]}


GGUF: dict[str, Any] = {
    "keys": (
        "width", "layers", "hidden width", "heads", ("num_key_value_heads", "key/value heads"), "longest text",
        "norm eps",
    ),
    "names": {
        "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
        "position_embd": "embeddings.position_embeddings", "token_embd_norm": "embeddings.LayerNorm",
    }
    | name_blocks({
        "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
    }, "encoder.layer.{n}"),
    "infer": (infer_segments,),
}  # fmt: skip
