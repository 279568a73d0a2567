"""Marian's own format: model.npz, with the options as YAML in one of its arrays."""

import re
from math import sqrt
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Specs, TensorSpec, Weights, embedding_table, single_file
from attnkit.errors import DataError
from attnkit.formats import npz
from attnkit.model.config import Config, PositionConfig, SpecialTokens
from attnkit.model.formulas.positions import base_of_pairs

PREFIXES = ()
OPTIONS = "special:model.yml"
FIELDS = USUAL | {
    "encoder layers": "enc-depth", "decoder layers": "dec-depth", "heads": "transformer-heads", "width": "dim-emb",
    "encoder hidden width": "transformer-dim-ffn", "decoder hidden width": "transformer-decoder-dim-ffn",
    "vocabulary": "dim-vocabs", "activation": "transformer-ffn-activation",
    "head": "tied-embeddings-all tied-embeddings",
}  # fmt: skip
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
EXPECTED = {  # the values that are supported
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-ffn-depth": 2,
    "transformer-train-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-no-affine": False,
    "transformer-rnn-projection": False,
    "lemma-dim-emb": 0,
    "output-omit-bias": False,
}
UNKNOWN = 1  # the id of <unk>, which Marian does not generate
LINE = re.compile(r"""([\w-]+):(?:\s+(.*))?""")
INTEGER, NUMBER = re.compile(r"-?[0-9]{1,18}"), re.compile(r"-?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?")


def _map_linear(prefix: str, letters: str) -> Specs:
    """Map weights (in, out) and biases (1, out) of several linear layers."""
    weights = {f"w{letter}": TensorSpec((f"{prefix}_W{letter}",)) for letter in letters}
    return weights | {f"b{letter}": TensorSpec((f"{prefix}_b{letter}",), leading_ones=1) for letter in letters}


def _map_norm(prefix: str) -> Specs:
    return {
        "gamma": TensorSpec((f"{prefix}_ln_scale",), leading_ones=1),
        "beta": TensorSpec((f"{prefix}_ln_bias",), leading_ones=1),
    }


LAYERS: Layers = {
    "encoder.{n}.self": _map_linear("encoder_l{k}_self", "qkvo"),
    "encoder.{n}.norm1": _map_norm("encoder_l{k}_self_Wo"),
    "encoder.{n}.ffn": _map_linear("encoder_l{k}_ffn", "12"),
    "encoder.{n}.norm2": _map_norm("encoder_l{k}_ffn_ffn"),
    "decoder.{n}.self": _map_linear("decoder_l{k}_self", "qkvo"),
    "decoder.{n}.norm1": _map_norm("decoder_l{k}_self_Wo"),
    "decoder.{n}.cross": _map_linear("decoder_l{k}_context", "qkvo"),
    "decoder.{n}.norm2": _map_norm("decoder_l{k}_context_Wo"),
    "decoder.{n}.ffn": _map_linear("decoder_l{k}_ffn", "12"),
    "decoder.{n}.norm3": _map_norm("decoder_l{k}_ffn_ffn"),
}


def open_marian(path: str) -> tuple[Weights, ConfigReader]:
    """The tensors of model.npz, and its options."""
    weights = single_file(npz.map_tensors(path))
    if OPTIONS not in weights.entries:
        raise DataError(f"no member {OPTIONS!r}: not a model of Marian", path)
    text = weights.tensor(OPTIONS).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    return weights.without(OPTIONS), ConfigReader(parse_options(text, path), path)


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    """The configuration of the model.

    The decoder starts with a vector of zeros. Here that is one more token at the end of the vocabulary, with a row
    of zeros in the table and a logit of minus infinity.
    """
    for key, value in EXPECTED.items():
        if raw.values.get(key, value) != value:
            raise raw.error(f"{key} {str(raw.values[key])[:40]!r} is not supported (expected {value!r})")
    if "n" in raw.get_str("transformer-postprocess-emb", "d"):
        raise raw.error("a norm of the embeddings (transformer-postprocess-emb) is not supported")
    width, (source, target) = raw.get_int("dim-emb"), _read_vocabulary_sizes(raw)
    encoder = raw.get_stack(FIELDS, "encoder", vocab=source)
    hidden = raw.get_int("transformer-decoder-dim-ffn", 0, least=0) or encoder.hidden
    return Config(
        "marian-native",
        width,
        encoder=encoder,
        decoder=raw.get_stack(
            FIELDS | {"decoder hidden width": ""}, "decoder", hidden=hidden, vocab=target + 1, causal=True, cross=True
        ),
        eps=1e-9,
        activation=raw.get_choice("transformer-ffn-activation", ACTIVATIONS, "swish"),
        positions=PositionConfig("sinusoidal", base=base_of_pairs(width // 2), layout="halves"),
        embed_scale=sqrt(width),
        special=SpecialTokens(start=target, eos=(0,), pad=target, banned=(UNKNOWN,)),
    )


def map_layers(raw: ConfigReader) -> Layers:
    ties_all, ties_source, ties_target = (raw.get_bool(f"tied-embeddings{end}", False) for end in ("-all", "-src", ""))
    if not (ties_all or ties_target):
        raise raw.error("an output layer of its own (neither tied-embeddings nor tied-embeddings-all) is not supported")
    source, target = ("Wemb", "Wemb") if ties_all or ties_source else ("encoder_Wemb", "decoder_Wemb")
    return {
        **LAYERS,
        "encoder.embed": embedding_table(source),
        "decoder.embed": {"table": TensorSpec((target,), padding_row=0.0)},
        "head": {
            "w": TensorSpec((target,), transposed=True, padding_row=0.0),
            "b": TensorSpec(("decoder_ff_logit_out_b",), leading_ones=1, padding_row=float("-inf")),
        },
    }


def parse_options(text: str, name: str) -> dict[str, Any]:
    """Parse Marian's YAML: `key: value` lines and lists of scalars.

    >>> parse_options("dim-emb: 8\\nskip: false\\ndim-vocabs:\\n  - 5\\n  - 5", "model.yml")
    {'dim-emb': 8, 'skip': False, 'dim-vocabs': [5, 5]}
    """
    values: dict[str, Any] = {}
    key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content, pair = line.strip(), LINE.fullmatch(line.rstrip())
        if not content or content.startswith(("#", "---")):
            continue
        if pair and pair[1] not in values:
            key = pair[1]
            values[key] = _parse_value(pair[2]) if pair[2] else []
        elif isinstance(values.get(key), list) and (content[:2] == "- " or content[0] + content[-1] == "[]"):
            values[key] += [_parse_value(content[2:])] if content[0] == "-" else _parse_value(content)
        else:
            problem = f"key {pair[1]!r} occurs twice" if pair else "neither `key: value` nor an item of a list"
            raise DataError(f"{OPTIONS}: line {number}: {problem}", name)
    return values


def _parse_value(text: str) -> Any:
    """A scalar, or a list of scalars between brackets."""
    if text[0] + text[-1] == "[]":
        return [_parse_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return _parse_scalar(text)


def _parse_scalar(text: str) -> Any:
    """A boolean, a number, or a string, which may be quoted."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text


def _read_vocabulary_sizes(raw: ConfigReader) -> tuple[int, int]:
    sizes = raw.values.get("dim-vocabs")
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 1 for size in sizes):
        raise raw.error("dim-vocabs is not a list of two whole numbers")
    return sizes[0], sizes[1]
