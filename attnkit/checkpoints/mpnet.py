"""MPNet: RoBERTa without segments, with a relative position bias as in T5."""

from attnkit.checkpoints import bert
from attnkit.checkpoints.bert import LAYERS as BERT
from attnkit.checkpoints.bert import read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import map_head
from attnkit.checkpoints.roberta import HEAD, HEADS, map_words
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, map_linear, norm
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("mpnet.",)
VARIANT_OF = bert
FIELDS = bert.FIELDS | {"buckets": "relative_attention_num_buckets"}
TOKENIZER = "MPNetTokenizer"
LAYER = "encoder.layer.{n}"
FIRST, BUCKETS = 2, 32  # which the reference does not read from the configuration
LAYERS: Layers = {
    **BERT,
    "encoder.embed": embedding_table("embeddings.word_embeddings.weight"),
    "encoder.bias": embedding_table("encoder.relative_attention_bias.weight"),
    "encoder.{n}.self": map_linear(f"{LAYER}.attention.attn", wq="q", wk="k", wv="v", wo="o"),
    "encoder.{n}.norm1": norm(f"{LAYER}.attention.LayerNorm"),
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    size, buckets = raw.get_int("max_position_embeddings"), raw.get_int("relative_attention_num_buckets", BUCKETS)
    if size <= FIRST:
        raise raw.error(f"max_position_embeddings {size}: no positions are left after those of special tokens")
    if buckets != BUCKETS:
        raise raw.error(f"relative_attention_num_buckets {buckets} is not supported (use {BUCKETS})")
    positions = PositionConfig("learned", size=size, first=FIRST, relative="t5", buckets=buckets)
    head = f"{HEAD}.dense.weight"
    return read_encoder(raw, stored, head, HEADS, head_activation="gelu", positions=positions, types=0)


def map_layers(raw: ConfigReader) -> Layers:
    return {**LAYERS, **map_words(raw), **map_head(raw, HEADS)}
