"""DistilBERT: BERT without segments and pooler, under names of its own."""

from dataclasses import replace

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, map_head, read_head, usual_heads
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("distilbert.",)
FIELDS = USUAL | {
    "layers": "n_layers", "heads": "n_heads", "hidden width": "hidden_dim", "width": "dim", "activation": "activation",
}  # fmt: skip
WORDS, LAYER = "embeddings.word_embeddings.weight", "transformer.layer.{n}"
LAYERS: Layers = {
    "encoder.embed": embedding_table(WORDS),
    "encoder.positions": embedding_table("embeddings.position_embeddings.weight"),
    "encoder.embed_norm": norm("embeddings.LayerNorm"),
    "encoder.{n}.self": map_linear(f"{LAYER}.attention", wq="q_lin", wk="k_lin", wv="v_lin", wo="out_lin"),
    "encoder.{n}.norm1": norm(f"{LAYER}.sa_layer_norm"),
    "encoder.{n}.ffn": map_linear(f"{LAYER}.ffn", w1="lin1", w2="lin2"),
    "encoder.{n}.norm2": norm(f"{LAYER}.output_layer_norm"),
    "head.dense": map_linear(w="vocab_transform"),
    "head.norm": norm("vocab_layer_norm"),
}
HEADS = usual_heads(Head("classifier", dense="pre_classifier", activation="relu"))


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    has_head = stored.has("vocab_transform.weight")
    config = Config(
        "distilbert",
        raw.get_int("dim"),
        encoder=raw.get_stack(FIELDS),
        eps=1e-12,
        activation=raw.get_choice("activation", PUBLISHED, "gelu"),
        positions=PositionConfig("learned", size=raw.get_int("max_position_embeddings")),
        embed_norm=True,
        head=has_head,
        transform=has_head,
        special=raw.get_special_tokens(),
    )
    return replace(config, **read_head(raw, stored, HEADS))


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    head = tied_head("vocab_projector.weight", to=WORDS * is_tied)
    return {**LAYERS, "head": head | {"b": TensorSpec(("vocab_projector.bias",))}, **map_head(raw, HEADS)}
