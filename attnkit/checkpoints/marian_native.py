"""Marian as Marian writes it: `model.npz`, weights (in, out), its options as YAML among the tensors."""

import re
from math import sqrt
from typing import Any

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mapping import Entries, Layers, TensorSpec, embedding_table
from attnkit.checkpoints.weights import Weights, single_file
from attnkit.errors import DataError
from attnkit.formats import npz
from attnkit.model.config import Config, PositionConfig, SpecialTokens, StackConfig

OPTIONS = "special:model.yml"
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
EXPECTED = {  # what these options must be for the arithmetic to be that of the other Transformers
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


def open_marian(path: str) -> tuple[Weights, ConfigReader]:
    """The tensors of the file, and its options."""
    weights = single_file(npz.mapped(path))
    if OPTIONS not in weights.entries:
        raise DataError(f"no member {OPTIONS!r}: not a model of Marian", path)
    text = weights.tensor(OPTIONS).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    return weights, ConfigReader(options(text, path), path)


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of the options.

    The decoder begins with a vector of zeros: the token after the last one of the vocabulary, with a row of
    zeros in the table, and minus infinity as its logit.
    """
    for key, value in EXPECTED.items():
        if raw.values.get(key, value) != value:
            raise raw.wrong(f"{key} {str(raw.values[key])[:40]!r} is not supported (expected {value!r})")
    if "n" in raw.text("transformer-postprocess-emb", "d"):
        raise raw.wrong("a norm of the embeddings (transformer-postprocess-emb) is not supported")
    width, (source, target) = raw.whole("dim-emb"), _vocabularies(raw)
    half = width // 2
    return Config(
        "marian-native",
        width,
        encoder=_stack(raw, "encoder", raw.whole("enc-depth"), source),
        decoder=_stack(raw, "decoder", raw.whole("dec-depth"), target + 1),
        eps=1e-9,
        activation=raw.choice("transformer-ffn-activation", ACTIVATIONS, "swish"),
        positions=PositionConfig("sinusoidal", base=10000 ** (half / max(half - 1, 1)), layout="halves"),
        embed_scale=sqrt(width),
        special=SpecialTokens(start=target, eos=(0,), pad=target, banned=(UNKNOWN,)),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    together = raw.flag("tied-embeddings-all", False) or raw.flag("tied-embeddings-src", False)
    if not (raw.flag("tied-embeddings-all", False) or raw.flag("tied-embeddings", False)):
        raise raw.wrong("an output layer of its own (neither tied-embeddings nor tied-embeddings-all) is not supported")
    target = "Wemb" if together else "decoder_Wemb"
    start = TensorSpec((target,), fill=0.0)
    bias = TensorSpec(("decoder_ff_logit_out_b",), lead=1, fill=float("-inf"))
    found: dict[str, Entries] = {
        "encoder.embed": embedding_table("Wemb" if together else "encoder_Wemb"),
        "decoder.embed": {"table": start},
        "head": {"w": TensorSpec((target,), turned=True, fill=0.0), "b": bias},
    }
    for stack, parts in (("encoder", ["self"]), ("decoder", ["self", "context"])):
        at = f"{stack}_l{{k}}"
        for order, part in enumerate(parts, start=1):
            name = {"self": "self", "context": "cross"}[part]
            found[f"{stack}.{{n}}.{name}"] = _parameters(f"{at}_{part}", "qkvo")
            found[f"{stack}.{{n}}.norm{order}"] = _norm(f"{at}_{part}_Wo")
        found[f"{stack}.{{n}}.ffn"] = _parameters(f"{at}_ffn", "12")
        found[f"{stack}.{{n}}.norm{len(parts) + 1}"] = _norm(f"{at}_ffn_ffn")
    return found


def options(text: str, name: str) -> dict[str, Any]:
    """`key: value` lines and lists of values, the part of YAML that Marian writes; DataError names the line.

    >>> options("dim-emb: 8\\nskip: false\\ndim-vocabs:\\n  - 5\\n  - 5", "model.yml")
    {'dim-emb': 8, 'skip': False, 'dim-vocabs': [5, 5]}
    """
    found: dict[str, Any] = {}
    key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content, pair = line.strip(), LINE.fullmatch(line.rstrip())
        if not content or content.startswith(("#", "---")):
            continue
        if pair and pair[1] not in found:
            key = pair[1]
            found[key] = _value(pair[2]) if pair[2] else []
        elif isinstance(found.get(key), list) and (content[:2] == "- " or content[0] + content[-1] == "[]"):
            found[key] += [_value(content[2:])] if content[0] == "-" else _value(content)
        else:
            fault = f"key {pair[1]!r} occurs twice" if pair else "neither a key with its value nor an item of a list"
            raise DataError(f"{OPTIONS}: line {number}: {fault}", name)
    return found


def _value(text: str) -> Any:
    """A scalar, or a list of scalars between brackets."""
    if text[0] + text[-1] == "[]":
        return [_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return _scalar(text)


def _scalar(text: str) -> Any:
    """A truth value, a number, or a text, which may stand in quotes."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text


def _vocabularies(raw: ConfigReader) -> tuple[int, int]:
    sizes = raw.values.get("dim-vocabs")
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 1 for size in sizes):
        raise raw.wrong("dim-vocabs is not a list of two whole numbers")
    return sizes[0], sizes[1]


def _stack(raw: ConfigReader, name: str, depth: int, vocab: int) -> StackConfig:
    decodes, hidden = name == "decoder", raw.whole("transformer-dim-ffn")
    wider = raw.whole("transformer-decoder-dim-ffn", 0, least=0) if decodes else 0
    return StackConfig(
        layers=depth,
        heads=raw.whole("transformer-heads"),
        hidden=wider or hidden,
        kv_heads=raw.whole("transformer-heads"),
        head_dim=raw.head_dim("dim-emb", "transformer-heads"),
        vocab=vocab,
        causal=decodes,
        cross=decodes,
    )


def _parameters(stem: str, letters: str) -> Entries:
    """The weights (in, out) and the biases (1, out) of several linear layers."""
    weights = {f"w{letter}": TensorSpec((f"{stem}_W{letter}",)) for letter in letters}
    return weights | {f"b{letter}": TensorSpec((f"{stem}_b{letter}",), lead=1) for letter in letters}


def _norm(stem: str) -> Entries:
    return {
        "gamma": TensorSpec((f"{stem}_ln_scale",), lead=1),
        "beta": TensorSpec((f"{stem}_ln_bias",), lead=1),
    }
