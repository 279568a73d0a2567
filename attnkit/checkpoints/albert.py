"""ALBERT: BERT whose layers share weights, with narrower embeddings."""

from dataclasses import replace

from attnkit.checkpoints import bert
from attnkit.checkpoints.bert import LAYERS as BERT
from attnkit.checkpoints.bert import WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, map_head, usual_heads
from attnkit.checkpoints.weights import Layers, Weights, map_linear, masked_word_head, norm
from attnkit.model.config import Config
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("albert.",)
VARIANT_OF = bert
FIELDS = bert.FIELDS | {"embedding width": "embedding_size"}
TOKENIZER = "AlbertTokenizer"
HEAD = "predictions"
HEADS = usual_heads(Head("classifier", pooler="pooler"))
LARGEST_DEPTH = 1 << 12  # layers in all


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width = raw.get_int("embedding_size", 128)
    config = read_encoder(
        raw,
        stored,
        f"{HEAD}.dense.weight",
        HEADS,
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu_new"),
        pooler=stored.has("pooler.weight"),
        embed_width=width,
        head_width=width,
    )
    return replace(config, encoder=replace(config.stack("encoder"), layers=len(_groups(raw))))


def map_layers(raw: ConfigReader) -> Layers:
    layers = {**BERT, "encoder.projection": map_linear(w="encoder.embedding_hidden_mapping_in")}
    for number, (group, inner) in enumerate(_groups(raw)):
        layer = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        layers |= {
            f"encoder.{number}.self": map_linear(f"{layer}.attention", wq="query", wk="key", wv="value", wo="dense"),
            f"encoder.{number}.norm1": norm(f"{layer}.attention.LayerNorm"),
            f"encoder.{number}.ffn": map_linear(layer, w1="ffn", w2="ffn_output"),
            f"encoder.{number}.norm2": norm(f"{layer}.full_layer_layer_norm"),
        }
    return {
        **layers,
        "pooler": map_linear(w="pooler"),
        "head.dense": map_linear(w=f"{HEAD}.dense"),
        "head.norm": norm(f"{HEAD}.LayerNorm"),
        "head": masked_word_head(WORDS, HEAD, raw.get_bool("tie_word_embeddings", True)),
        **map_head(raw, HEADS),
    }


def _groups(raw: ConfigReader) -> list[tuple[int, int]]:
    """The group of every layer, and its number within the group."""
    depth, groups = raw.get_int("num_hidden_layers"), raw.get_int("num_hidden_groups", 1)
    inner = raw.get_int("inner_group_num", 1)
    if depth * inner > LARGEST_DEPTH:
        raise raw.error(f"num_hidden_layers {depth} of inner_group_num {inner}: more than {LARGEST_DEPTH} layers")
    return [(int(number / (depth / groups)), part) for number in range(depth) for part in range(inner)]
