"""EuroBERT: Llama as an encoder, whose tokens attend in both directions."""

from dataclasses import replace

from attnkit.checkpoints import llama
from attnkit.checkpoints.bidirectional import as_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import Head, Heads, map_head, read_head
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.FIELDS | {"pooling": "classifier_pooling"}
HAS_OWN_MODULES = False  # but those of Llama
POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}  # of a head of whole texts


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("bos_token", "eos_token", "mask_token", "pad_token")
    config = as_encoder(llama.read_config(raw, stored, eps=raw.get_float("rms_norm_eps", 1e-5), size=8192), [])
    return replace(config, **read_head(raw, stored, _heads(raw)))


def _heads(raw: ConfigReader) -> Heads:
    """The published names of the heads. That of whole texts has a dense layer before."""
    older = raw.get_str("clf_pooling", "late")  # of the code that was published with the models
    pooling = raw.get_choice("classifier_pooling", POOLINGS, older)
    whole = Head("classifier", dense="dense", activation="gelu", pooling=pooling)
    return {"sequence": whole, "token": Head("classifier"), "question": Head("qa_outputs")}


def map_layers(raw: ConfigReader) -> Layers:
    layers, bias = llama.map_layers(raw), {"b": TensorSpec(("lm_head.bias",))}
    head = {**layers["head"], **(bias if raw.get_bool("mlp_bias", False) else {})}  # for masked words
    return {**layers, "head": head, **map_head(raw, _heads(raw))}


GGUF = llama.USUAL_GGUF | {"infer": ("biases", "rotation", "whole rotation")}
