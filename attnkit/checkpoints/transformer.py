"""The original Transformer, with the names and arguments of torch.nn.Transformer.

With `num_decoder_layers` 0 it is a torch.nn.TransformerEncoder, whose names may stand alone, and whose norm may be
absent. By itself it maps vectors to vectors. With `vocab_size` there is an `embed.weight` too, one table for both
stacks and the head, scaled by sqrt(d_model), and sinusoidal positions as in the paper.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Specs, Weights, embedding_table, map_fused, map_linear, norm, tied_head
from attnkit.model.config import Config, PositionConfig, StackConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("transformer.", "model.", "encoder.", "transformer.encoder.", "model.encoder.")
WRITES_PREFIX = False
FIELDS = USUAL | {
    "encoder layers": "num_encoder_layers", "decoder layers": "num_decoder_layers", "heads": "nhead",
    "hidden width": "dim_feedforward", "width": "d_model", "norm places": "norm_first", "activation": "activation",
    "biases": "bias", "dropout": "dropout", "layers": "",
}  # fmt: skip
LEARNS, TEMPLATE, POSITIONS, DISTRIBUTION = ("pairs",), "$A </s>", "sinusoidal", "xavier"
TOKENS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width, vocab = raw.get_int("d_model"), raw.get_int("vocab_size", 0, least=0)
    raw.ignore("max_position_embeddings")  # sines and cosines have no limit
    return Config(
        "transformer",
        width,
        encoder=_read_stack(raw, stored, "encoder", vocab),
        decoder=_read_stack(raw, stored, "decoder", vocab, causal=True, cross=True),
        eps=raw.get_float("layer_norm_eps", 1e-5),
        norm_first=raw.get_bool("norm_first", False),
        activation=raw.get_choice("activation", PUBLISHED, "relu"),
        positions=PositionConfig("sinusoidal" if vocab else "none"),
        embed_scale=sqrt(width) if vocab else 1.0,
        head=vocab > 0,
        special=raw.get_special_tokens(start=raw.get_token_id("bos_token_id")),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("bias", True)
    stem = "" if is_encoder(raw) else "encoder."
    encoder, decoder = f"{stem}layers.{{n}}", "decoder.layers.{n}"
    return {
        "encoder.embed": embedding_table("embed.weight"),
        "encoder.{n}.self": _map_attention(f"{encoder}.self_attn", is_biased),
        "encoder.{n}.norm1": norm(f"{encoder}.norm1", is_biased),
        "encoder.{n}.ffn": map_linear(encoder, w1="linear1", w2="linear2", biased=is_biased),
        "encoder.{n}.norm2": norm(f"{encoder}.norm2", is_biased),
        "encoder.norm": norm(f"{stem}norm", is_biased),
        "decoder.embed": embedding_table("embed.weight"),
        "decoder.{n}.self": _map_attention(f"{decoder}.self_attn", is_biased),
        "decoder.{n}.norm1": norm(f"{decoder}.norm1", is_biased),
        "decoder.{n}.cross": _map_attention(f"{decoder}.multihead_attn", is_biased),
        "decoder.{n}.norm2": norm(f"{decoder}.norm2", is_biased),
        "decoder.{n}.ffn": map_linear(decoder, w1="linear1", w2="linear2", biased=is_biased),
        "decoder.{n}.norm3": norm(f"{decoder}.norm3", is_biased),
        "decoder.norm": norm("decoder.norm", is_biased),
        "head": tied_head("embed.weight"),
    }


def _read_stack(raw: ConfigReader, stored: Weights, name: str, vocab: int, **choices: Any) -> StackConfig | None:
    """The stack of a name, or None if it has no layers."""
    if raw.get_int(FIELDS[f"{name} layers"], least=0) == 0:
        return None
    has_norm = not is_encoder(raw) or not stored.entries or stored.has("norm.weight")
    return raw.get_stack(FIELDS, name, vocab=vocab, final_norm=has_norm, **choices)


def is_encoder(raw: ConfigReader) -> bool:
    """Whether it is a torch.nn.TransformerEncoder: no decoder, and perhaps no norm."""
    return raw.get_int("num_decoder_layers", least=0) == 0


def _map_attention(prefix: str, is_biased: bool) -> Specs:
    bias = f"{prefix}.in_proj_bias" if is_biased else ""
    return map_fused("qkv", f"{prefix}.in_proj_weight", bias) | map_linear(prefix, wo="out_proj", biased=is_biased)


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "activation": "relu",
        "decoder_start_token_id": special["pad"],
        "layer_norm_eps": 1e-5,
        "norm_first": False,
    }
