"""Marian by Hugging Face: BART with sinusoids and no norm of the embeddings."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from attnkit.checkpoints.bart import BIAS, LAYERS, map_words
from attnkit.checkpoints.bart import FIELDS as BART
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, tied_head
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("model.",)
FIELDS = BART | {"decoder vocabulary": "decoder_vocab_size", "dropout": "dropout"}
LEARNS, TEMPLATE, POSITIONS, DISTRIBUTION = ("pairs",), "$A </s>", "sinusoidal", "xavier"
TOKENS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
LAST_KEYS = tuple(
    BART[f"{stack} {size}"] for stack in ("encoder", "decoder") for size in ("heads", "hidden width", "layers")
)
TOKENIZER = "MarianTokenizer"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width, source = raw.get_int("d_model"), raw.get_int("vocab_size")
    target = raw.get_int("decoder_vocab_size", source)
    raw.ignore("num_hidden_layers")  # encoder_layers again
    return Config(
        "marian",
        width,
        encoder=raw.get_stack(FIELDS, "encoder", vocab=source),
        decoder=raw.get_stack(FIELDS, "decoder", vocab=target, causal=True, cross=True),
        activation=raw.get_choice("activation_function", PUBLISHED, "gelu"),
        positions=PositionConfig("sinusoidal", size=raw.get_int("max_position_embeddings", 1024), layout="halves"),
        embed_scale=sqrt(width) if raw.get_bool("scale_embedding", False) else 1.0,
        head=stored.has(BIAS) or raw.has_architecture("MTModel"),
        special=raw.get_special_tokens(start=raw.get_token_id("pad_token_id"), eos=(0,)),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    bias = {"b": TensorSpec((BIAS,), leading_ones=1)}
    if raw.get_bool("share_encoder_decoder_embeddings", True):
        return {**LAYERS, **map_words(raw, bias)}
    target = "decoder.embed_tokens.weight"
    return {
        **LAYERS,
        "encoder.embed": embedding_table("encoder.embed_tokens.weight"),
        "decoder.embed": embedding_table(target),
        "head": tied_head("lm_head.weight", to=target * is_tied) | bias,
    }


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "architectures": ["MarianMTModel"],
        "activation_function": "swish",
        "bad_words_ids": [[special["pad"]]],
        "decoder_start_token_id": special["pad"],
        "forced_eos_token_id": special["eos"],
        "is_encoder_decoder": True,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
    }
