"""DeBERTa 2 and 3: a post-norm encoder that attends to contents and distances."""

from collections.abc import Sequence
from dataclasses import replace

from attnkit.checkpoints.bert import LAYERS as BERT
from attnkit.checkpoints.bert import PREDICTIONS, WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, Heads, map_head, read_head
from attnkit.checkpoints.mapping import (
    Layers,
    Specs,
    TensorSpec,
    embedding_table,
    map_linear,
    masked_word_head,
    norm,
    tied_head,
)
from attnkit.checkpoints.weights import Weights
from attnkit.model.activations import PUBLISHED
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("deberta.",)
LAYER, NEWER = "encoder.layer.{n}", "lm_predictions.lm_head"
TERMS = {"c2p": ("k", "pos_key_proj"), "p2c": ("q", "pos_query_proj")}  # scores with distances, their projections


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    if raw.get_int("conv_kernel_size", 0, least=0):
        raise raw.error(f"conv_kernel_size {raw.get_int('conv_kernel_size')} is not supported: no convolution")
    if raw.get_int("embedding_size", raw.get_int("hidden_size")) != raw.get_int("hidden_size"):
        raise raw.error(f"embedding_size {raw.get_int('embedding_size')} other than hidden_size is not supported")
    newer = f"{NEWER}.dense.weight"
    config = read_encoder(
        raw,
        stored,
        head=newer if stored.has(newer) else f"{PREDICTIONS}.transform.dense.weight",
        eps=raw.get_float("layer_norm_eps", 1e-7),
        positions=_read_positions(raw),
        scale=(raw.get_head_dim("hidden_size", "num_attention_heads") * (1 + len(_stated_terms(raw)))) ** -0.5,
        types=raw.get_int("type_vocab_size", 0, least=0),
        pooler=False,
    )
    return replace(config, **read_head(raw, stored, _heads(raw)))


def _heads(raw: ConfigReader) -> Heads:
    activation = raw.get_choice("pooler_hidden_act", PUBLISHED, "gelu")
    return {
        "sequence": Head("classifier", dense="pooler.dense", activation=activation),
        "token": Head("classifier"),
        "question": Head("qa_outputs"),
    }


def map_layers(raw: ConfigReader) -> Layers:
    attention = f"{LAYER}.attention.self"
    terms = _read_terms(raw)
    has_norm = "layer_norm" in raw.get_str("norm_rel_ebd", "none").lower()
    types = {"types": TensorSpec(("embeddings.token_type_embeddings.weight",))}
    return {
        **BERT,
        "encoder.embed": embedding_table(WORDS) | (types if raw.get_int("type_vocab_size", 0, least=0) else {}),
        "encoder.relative": embedding_table("encoder.rel_embeddings.weight")
        | (norm("encoder.LayerNorm") if has_norm else {}),
        "encoder.{n}.relative": _map_distances(attention, terms),
        "encoder.{n}.self": map_linear(attention, wq="query_proj", wk="key_proj", wv="value_proj")
        | map_linear(f"{LAYER}.attention.output", wo="dense"),
        "head.dense": _either(raw, map_linear(w=f"{PREDICTIONS}.transform.dense"), map_linear(w=f"{NEWER}.dense")),
        "head.norm": _either(raw, norm(f"{PREDICTIONS}.transform.LayerNorm"), norm(f"{NEWER}.LayerNorm")),
        "head": _map_words(raw),
        **map_head(raw, _heads(raw)),
    }


def _map_words(raw: ConfigReader) -> Specs:
    """Map the output of the head, which is tied to the words in the newer head."""
    older = masked_word_head(WORDS, PREDICTIONS, raw.get_bool("tie_word_embeddings", True))
    return _either(raw, older, tied_head(WORDS) | {"b": TensorSpec((f"{NEWER}.bias",))})


def _map_distances(prefix: str, terms: Sequence[str]) -> Specs:
    specs: dict[str, TensorSpec] = {}
    for letter, published in map(TERMS.__getitem__, terms):
        specs[f"w{letter}"] = TensorSpec((f"{prefix}.{published}.weight",), transposed=True)
        specs[f"b{letter}"] = TensorSpec((f"{prefix}.{published}.bias",))
    return specs


def _either(raw: ConfigReader, older: Specs, newer: Specs) -> Specs:
    """Map a layer of the head by the names that `legacy` selects, or by the others."""
    first, second = (older, newer) if raw.get_bool("legacy", True) else (newer, older)
    return {
        key: replace(spec, names=tuple(dict.fromkeys(spec.names + second[key].names))) for key, spec in first.items()
    }


def _read_positions(raw: ConfigReader) -> PositionConfig:
    """Distances, and absolute positions unless `position_biased_input` is false."""
    size, buckets = raw.get_int("max_position_embeddings"), raw.get_int("position_buckets", -1, least=-1)
    kind = "learned" if raw.get_bool("position_biased_input", True) else "none"
    longest = raw.get_int("max_relative_positions", -1, least=-1)
    longest = size if longest < 1 else longest
    if not raw.get_bool("relative_attention", False):
        return PositionConfig(kind, size=size if kind == "learned" else 0)
    if buckets > 0 and not 2 <= buckets < 2 * (longest - 1):
        raise raw.error(f"position_buckets {buckets} for {longest} max_relative_positions: too few, or too many")
    return PositionConfig(
        kind,
        size=size if kind == "learned" else 0,
        relative="disentangled",
        buckets=buckets if buckets > 0 else longest,
        max_distance=longest if buckets > 0 else 0,
        terms=_read_terms(raw),
        shares_projections=raw.get_bool("share_att_key", False),
    )


def _read_terms(raw: ConfigReader) -> tuple[str, ...]:
    """Which scores with distances there are: c2p, of queries, and p2c, of keys."""
    return _stated_terms(raw) if raw.get_bool("relative_attention", False) else ()


def _stated_terms(raw: ConfigReader) -> tuple[str, ...]:
    """The terms of `pos_att_type`, which scale the scores even if none is computed."""
    value = raw.values.get("pos_att_type") or []
    terms = [term.strip() for term in value.lower().split("|")] if isinstance(value, str) else value
    if not isinstance(terms, list) or not all(isinstance(term, str) and term in TERMS for term in terms):
        raise raw.error(f"pos_att_type is {str(value)[:40]!r} (expected c2p, p2c or both)")
    return tuple(term for term in TERMS if term in terms)
