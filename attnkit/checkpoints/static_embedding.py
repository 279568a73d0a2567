"""StaticEmbedding and model2vec: a table of vectors of tokens, without layers.

The vector of a text is the mean of those of its tokens. Both are folders of sentence-transformers; model2vec stores the
table as `embeddings`, perhaps with a `mapping` of the ids to its rows and `weights` of the ids.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader, read_json, read_json_object
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, open_weights
from attnkit.errors import AttnkitWarning, DataError, counted
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import exists
from attnkit.model.config import Config, StackConfig
from attnkit.model.dtypes import Array
from attnkit.tokenizers.tokens import Tokenizer, Tokens

STATIC, MODEL2VEC = "StaticEmbedding", "model2vec"
PREFIXES = ()
FIELDS: dict[str, str] = {"family": "model_type"}
HAS_OWN_MODULES = False
TABLE, OLD_TABLE = "embedding.weight", "embeddings"  # of sentence-transformers, and of model2vec
MAPPING, WEIGHTS = "mapping", "weights"
MOST = 512  # tokens that model2vec reads of a text, where its configuration states no max_length


def find_static(folder: str, raw: Mapping[str, Any]) -> str | None:
    """The folder of the table of a static model; None for another model.

    raw  config.json, {} without one
    """
    path = os.path.join(folder, "modules.json")
    if exists(path):
        entries = read_json(path)
        first = entries[0] if isinstance(entries, list) and entries else None
        if isinstance(first, dict) and str(first.get("type")).rpartition(".")[2] == STATIC:
            return os.path.join(folder, str(first.get("path") or ""))
    return folder if raw.get("model_type") == MODEL2VEC else None


def open_static(folder: str) -> Weights:
    """The table of a folder, with one row for each id."""
    weights = open_weights(folder)
    if weights.find([TABLE]):
        return weights
    if OLD_TABLE not in weights.entries:
        raise DataError(f"no tensor {TABLE!r}, nor {OLD_TABLE!r} of model2vec", weights.name)
    return fold_rows(weights)


def fold_rows(weights: Weights) -> Weights:
    """Weights whose table has a row for each id.

    The row is embeddings[mapping[id]] * weights[id]. The weights belong to ids, not to rows. Integers count as they
    are, without a scale, as in model2vec.

    DataError for a mapping or weights that do not fit.
    """
    kind, shape = weights.entries[OLD_TABLE]
    parts = [name for name in (MAPPING, WEIGHTS) if name in weights.entries]
    if len(shape) != 2 or (kind != "int8" and not kind.startswith(("float", "bfloat"))):
        raise weights.error(OLD_TABLE, f"is {kind} {shape} (expected floats or int8 (rows, D))")
    if not parts and kind != "int8":
        return weights
    mapping = np.asarray(weights.tensor(MAPPING)) if MAPPING in parts else np.arange(shape[0])
    if mapping.ndim != 1 or mapping.dtype.kind not in "iu" or not (mapping.size and mapping.min() >= 0):
        raise weights.error(MAPPING, "is no list of numbers of rows")
    if mapping.max() >= shape[0]:
        raise weights.error(MAPPING, f"names row {mapping.max()}, and {OLD_TABLE} has {shape[0]} rows")
    factors = np.asarray(weights.tensor(WEIGHTS)) if WEIGHTS in parts else None
    if factors is not None and (factors.shape != mapping.shape or factors.dtype.kind not in "fV"):
        raise weights.error(WEIGHTS, f"has shape {factors.shape} (expected {mapping.shape}, a number for each id)")

    def read_rows(name: str, ids: Any) -> Array:
        rows = weights.rows(OLD_TABLE, mapping[ids]).astype(np.float32)
        return rows if factors is None else rows * factors[ids].astype(np.float32)[..., None]

    entries: dict[str, tuple[str, tuple[int, ...]]] = {OLD_TABLE: ("float32", (len(mapping), shape[1]))}
    packed = {OLD_TABLE: f"{kind} {shape}" + "".join(f", {name}" for name in parts)}
    mapped = Mapped(weights.name, entries, lambda name: read_rows(name, slice(None)), packed, read_rows)
    return weights.joined_with(mapped, without={OLD_TABLE, *parts})


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore(*raw.values.plain)
    name = stored.find([TABLE, OLD_TABLE]) or TABLE
    shape = stored.entries[name][1]
    if len(shape) != 2:
        raise stored.error(name, f"has shape {shape} (expected (ids, D))")
    stack = StackConfig(layers=0, heads=1, hidden=shape[1], kv_heads=1, head_dim=shape[1], vocab=shape[0])
    return Config("static_embedding", shape[1], encoder=stack, head=False)


def map_layers(raw: ConfigReader) -> Layers:
    return {"encoder.embed": embedding_table(TABLE, OLD_TABLE)}


@dataclass(frozen=True)
class StaticTokens:
    """Which tokens of a text a static model reads. It adds no special tokens.

    most        tokens at most; None: all
    characters  that are read at most, before the text is split; None: all
    unknown     the id of the unknown token, which is left out; None: it counts
    cuts_left   whether the last `most` tokens are read, not the first
    """

    most: int | None = None
    characters: int | None = None
    unknown: int | None = None
    cuts_left: bool = False

    def of(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of these tokens alone."""

        def encode(text: str, *arguments: Any, **options: Any) -> Tokens:
            if self.characters is not None and len(text) > self.characters:
                _warn(f"a text is cut to {counted(self.characters, 'character')}, of {len(text)}, as in model2vec")
            found = tokenizer.encode(text[: self.characters], *arguments, **options | {"with_special": False})
            spellings, ids = found.spellings, found.ids or []
            if self.most is not None and len(ids) > self.most:
                _warn(f"a text is cut to {counted(self.most, 'token')}, of {len(ids)}")
                read = slice(-self.most, None) if self.cuts_left else slice(self.most)
                spellings, ids = spellings[read], ids[read]
            if count := ids.count(-1 if self.unknown is None else self.unknown):
                _warn(f"{count} of {counted(len(ids), 'token')} not in the vocabulary left out, as in model2vec")
                kept = [at for at, id in enumerate(ids) if id != self.unknown]
                spellings, ids = [spellings[at] for at in kept], [ids[at] for at in kept]
            return Tokens(spellings, ids)

        return replace(tokenizer, encode=encode, locate=None, truncate=None)


def _warn(problem: str) -> None:
    warnings.warn(problem, AttnkitWarning, stacklevel=2)


def restrict_tokenizer(folder: str, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer of a static model: sentence-transformers' rules, or model2vec's.

    sentence-transformers keeps unknown tokens, and cuts texts where tokenizer.json says so. model2vec leaves unknown
    tokens out, and reads `max_length` tokens [512] of as many characters as these usually have.
    """
    own = os.path.join(folder, "config.json")
    raw = ConfigReader(read_json_object(own) if exists(own) else {}, own)
    document = ConfigReader(read_json_object(os.path.join(folder, "tokenizer.json")), "tokenizer.json")
    if open_weights(folder).find([TABLE]):
        cut = document.get_dict("truncation")
        most, side = cut.get("max_length"), cut.get("direction")
        return StaticTokens(most if isinstance(most, int) else None, cuts_left=side == "Left").of(tokenizer)
    most = None if raw.values.get("max_length", MOST) is None else raw.get_int("max_length", MOST)
    median = int(np.median([len(word) for word in tokenizer.vocabulary if word]))
    unknown = _find_unknown(document.get_dict("model"), tokenizer)
    return StaticTokens(most, None if most is None else most * median, unknown).of(tokenizer)


def _find_unknown(model: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """The id of the unknown token, which a model names by its number or its spelling."""
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    word = model.get("unk_token")
    return tokenizer.id_of_token.get(word) if isinstance(word, str) else None
