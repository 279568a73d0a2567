"""DeBERTa 2 and 3: a post-norm encoder that attends to contents and distances."""

from attnkit.checkpoints import bert
from attnkit.checkpoints.bert import LAYERS as BERT
from attnkit.checkpoints.bert import PREDICTIONS, WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, Heads, map_head, usual_heads
from attnkit.checkpoints.weights import (
    Layers,
    Specs,
    TensorSpec,
    Weights,
    embedding_table,
    map_linear,
    masked_word_head,
    norm,
    tied_head,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("deberta.",)
VARIANT_OF = bert
FIELDS = bert.FIELDS | {
    "embedding width": "embedding_size", "positions": "position_embedding_type pos_att_type relative_attention",
    "buckets": "position_buckets", "largest distance": "max_relative_positions",
}  # fmt: skip
TOKENIZER = "DebertaV2Tokenizer"
SMALLEST = {"relative_attention": True, "pos_att_type": "c2p|p2c"}
LAYER, NEWER = "encoder.layer.{n}", "lm_predictions.lm_head"
TERMS = {"c2p": "k", "p2c": "q"}  # scores with distances, and what these are projected to


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    if raw.get_int("embedding_size", raw.get_int("hidden_size")) != raw.get_int("hidden_size"):
        raise raw.error(f"embedding_size {raw.get_int('embedding_size')} other than hidden_size is not supported")
    raw.expect(attention_head_size=raw.get_head_dim("hidden_size", "num_attention_heads"))
    raw.ignore("pooler_hidden_size")  # the shape of pooler.dense
    newer = f"{NEWER}.dense.weight"
    return read_encoder(
        raw,
        stored,
        newer if stored.has(newer) else f"{PREDICTIONS}.transform.dense.weight",
        _heads(raw),
        eps=raw.get_float("layer_norm_eps", 1e-7),
        positions=_read_positions(raw),
        scale=(raw.get_head_dim("hidden_size", "num_attention_heads") * (1 + len(_stated_terms(raw)))) ** -0.5,
        types=raw.get_int("type_vocab_size", 0, least=0),
        pooler=False,
    )


def _heads(raw: ConfigReader) -> Heads:
    activation = raw.get_choice("pooler_hidden_act", PUBLISHED, "gelu")
    return usual_heads(Head("classifier", dense="pooler.dense", activation=activation))


def map_layers(raw: ConfigReader) -> Layers:
    attention = f"{LAYER}.attention.self"
    distances = map_linear(attention, wk="pos_key_proj", wq="pos_query_proj")
    letters = {TERMS[term] for term in _read_terms(raw)}
    has_norm = "layer_norm" in raw.get_str("norm_rel_ebd", "none").lower()
    types = {"types": TensorSpec(("embeddings.token_type_embeddings.weight",))}
    return {
        **BERT,
        "encoder.embed": embedding_table(WORDS) | (types if raw.get_int("type_vocab_size", 0, least=0) else {}),
        "encoder.relative": embedding_table("encoder.rel_embeddings.weight")
        | (norm("encoder.LayerNorm") if has_norm else {}),
        "encoder.{n}.relative": {key: spec for key, spec in distances.items() if key[1] in letters},
        "encoder.{n}.self": map_linear(attention, wq="query_proj", wk="key_proj", wv="value_proj")
        | map_linear(f"{LAYER}.attention.output", wo="dense"),
        "head.dense": _either(raw, map_linear(w=f"{PREDICTIONS}.transform.dense"), map_linear(w=f"{NEWER}.dense")),
        "head.norm": _either(raw, norm(f"{PREDICTIONS}.transform.LayerNorm"), norm(f"{NEWER}.LayerNorm")),
        "head": _either(
            raw,
            masked_word_head(WORDS, PREDICTIONS, raw.get_bool("tie_word_embeddings", True)),
            tied_head(WORDS) | {"b": TensorSpec((f"{NEWER}.bias",))},
        ),
        **map_head(raw, _heads(raw)),
    }


def _either(raw: ConfigReader, older: Specs, newer: Specs) -> Specs:
    """Map a layer of the head by the names that `legacy` selects, or by the others."""
    first, second = (older, newer) if raw.get_bool("legacy", True) else (newer, older)
    return {
        key: spec._replace(names=tuple(dict.fromkeys(spec.names + second[key].names))) for key, spec in first.items()
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
