"""ELECTRA: BERT as a generator or a discriminator, with narrower embeddings."""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints import bert
from attnkit.checkpoints.bert import LAYERS, WORDS, read_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, map_head, usual_heads
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_linear, norm, tied_head
from attnkit.model.config import Config

PREFIXES = ("electra.",)
VARIANT_OF = bert
FIELDS = bert.FIELDS | {"embedding width": "embedding_size"}
FORMS = ({"embedding_size": 3}, {"architectures": ["ForPreTraining"]})
GENERATOR, DISCRIMINATOR = "generator_predictions", "discriminator_predictions"
CLASSES = ("replaced", "original")  # of a token; the logit of the second is 0
HEADS = usual_heads(Head("classifier.out_proj", dense="classifier.dense", activation="gelu"))


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width, embed_width = raw.get_int("hidden_size"), raw.get_int("embedding_size", 128)
    embed = 0 if embed_width == width else embed_width
    if _is_discriminator(raw):
        config = read_encoder(raw, stored, f"{DISCRIMINATOR}.dense.weight", embed_width=embed)
        return replace(config, head_norm=False, classes=CLASSES, task="token")
    head: dict[str, Any] = {"head_width": embed_width, "head_activation": "gelu"}
    return read_encoder(raw, stored, f"{GENERATOR}.dense.weight", HEADS, embed_width=embed, **head)


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    words = tied_head("generator_lm_head.weight", to=WORDS * is_tied)
    generator: Layers = {
        "head.dense": map_linear(w=f"{GENERATOR}.dense"),
        "head.norm": norm(f"{GENERATOR}.LayerNorm"),
        "head": words | {"b": TensorSpec(("generator_lm_head.bias",))},
    }
    discriminator: Layers = {
        "head.dense": map_linear(w=f"{DISCRIMINATOR}.dense"),
        "head": {
            key: spec._replace(padding_row=0.0)
            for key, spec in map_linear(w=f"{DISCRIMINATOR}.dense_prediction").items()
        },
    }
    return {
        **LAYERS,
        "encoder.projection": map_linear(w="embeddings_project"),
        **(discriminator if _is_discriminator(raw) else generator),
        **map_head(raw, HEADS),
    }


def _is_discriminator(raw: ConfigReader) -> bool:
    return raw.has_architecture("ForPreTraining")
