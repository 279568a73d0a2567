"""RoBERTa: BERT with other positions and head."""

from attnkit.checkpoints import bert
from attnkit.checkpoints.bert import LAYERS, WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, map_head, usual_heads
from attnkit.checkpoints.weights import Layers, Weights, map_linear, masked_word_head, norm
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("roberta.",)
VARIANT_OF = bert
TOKENIZER = "RobertaTokenizer"
HEAD = "lm_head"
HEADS = usual_heads(Head("classifier.out_proj", dense="classifier.dense", activation="tanh"))


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    size, padding = raw.get_int("max_position_embeddings"), raw.get_int("pad_token_id", 1, least=0)
    if padding + 1 >= size:
        raise raw.error(f"max_position_embeddings {size}: no positions are left after that of pad_token_id {padding}")
    positions = PositionConfig("learned", size=size, first=padding + 1)
    return read_encoder(raw, stored, f"{HEAD}.dense.weight", HEADS, head_activation="gelu", positions=positions)


def map_layers(raw: ConfigReader) -> Layers:
    return {**LAYERS, **map_words(raw), **map_head(raw, HEADS)}


def map_words(raw: ConfigReader) -> Layers:
    """Where the layers of the head that predicts masked words are stored."""
    return {
        "head.dense": map_linear(w=f"{HEAD}.dense"),
        "head.norm": norm(f"{HEAD}.layer_norm"),
        "head": masked_word_head(WORDS, HEAD, raw.get_bool("tie_word_embeddings", True)),
    }
