"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with other positions and head."""

from dataclasses import replace

from attnkit.checkpoints.bert import LAYERS, WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, map_head, read_head
from attnkit.checkpoints.mapping import Layers, map_linear, masked_word_head, norm
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("roberta.",)
HEAD = "lm_head"
HEADS = {
    "sequence": Head("classifier.out_proj", dense="classifier.dense", activation="tanh"),
    "token": Head("classifier"),
    "question": Head("qa_outputs"),
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = read_encoder(
        raw,
        stored,
        head=f"{HEAD}.dense.weight",
        head_activation="gelu",
        positions=read_positions(raw),
    )
    return replace(config, **read_head(raw, stored, HEADS))


def read_positions(raw: ConfigReader) -> PositionConfig:
    """Learned positions. The first row in use follows that of the padding token."""
    size, first = raw.get_int("max_position_embeddings"), 1 + raw.get_int("pad_token_id", 1, least=0)
    if first >= size:
        raise raw.error(f"max_position_embeddings {size}: no positions are left after that of pad_token_id {first - 1}")
    return PositionConfig("learned", size=size, first=first)


def map_layers(raw: ConfigReader) -> Layers:
    return {**LAYERS, **map_words(raw), **map_head(raw, HEADS)}


def map_words(raw: ConfigReader) -> Layers:
    """Where the layers of the head that predicts masked words are stored."""
    return {
        "head.dense": map_linear(w=f"{HEAD}.dense"),
        "head.norm": norm(f"{HEAD}.layer_norm"),
        "head": masked_word_head(WORDS, HEAD, raw.get_bool("tie_word_embeddings", True)),
    }
