"""Open a published folder by the family that its config.json names."""

import glob
import importlib
import os
import re
from collections.abc import Mapping
from typing import Any, Protocol, cast

from attnkit.checkpoints.checkpoint import Checkpoint
from attnkit.checkpoints.config_reader import ConfigReader, read_json_object
from attnkit.checkpoints.mapping import Layers, expand_layers
from attnkit.checkpoints.parameters import Parameters
from attnkit.checkpoints.weights import Weights, open_weights
from attnkit.errors import AttnkitError, DataError, FileError
from attnkit.formats.streams import exists, name_errors
from attnkit.model.config import Config
from attnkit.model.rotary import rope_frequencies

FAMILIES = ("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "gpt2", "llama", "lstm", "marian",
            "mistral", "modernbert", "mpnet", "openai-gpt", "qwen2", "roberta", "seq2seq", "t5", "transformer", "vit",
            "xlm-roberta")  # fmt: skip
SAME_AS = {"camembert": "roberta", "xlm-roberta": "roberta"}  # families that differ from another by name alone
CONFIG, GENERATION_CONFIG, MARIAN_FILE = "config.json", "generation_config.json", "model.npz"
WHAT_A_MODEL_IS = "a model is a local folder as published: attnkit help models"
LAYER_COUNTS = ("n_layer", "n_layers", "num_hidden_layers", "num_layers", "num_decoder_layers", "num_encoder_layers",
                "encoder_layers", "decoder_layers", "enc-depth", "dec-depth")  # fmt: skip
FEW = 64  # layers, whose tensors are looked up in any case; some may share one
TOKEN_KEY = re.compile(r"_token_id$|^bad_words_ids$")  # keys that generation_config.json may override


class Family(Protocol):
    """The module of a family."""

    PREFIXES: tuple[str, ...]

    def read_config(self, raw: ConfigReader, stored: Weights) -> Config:
        """The configuration of the model."""

    def map_layers(self, raw: ConfigReader) -> Layers:
        """Where the parameters of each layer are stored."""


def open_checkpoint(folder: str) -> Checkpoint:
    """Open the model in a folder: check the shape of every tensor, read none yet.

    FileError if a file is missing; DataError names the file and what is wrong in it.
    """
    if not os.path.isdir(folder):
        above = os.path.dirname(folder)
        hint = f"; did you mean {above}?" if is_model(above) else f"; {WHAT_A_MODEL_IS}"
        raise FileError(f"{'not a folder' if exists(folder) else 'no such folder'}{hint}", folder)
    path = os.path.join(folder, CONFIG)
    if not exists(path):
        return _open_marian(folder)
    raw = read_json_object(path)
    reader, files = ConfigReader(raw, path), [path]
    try:
        family = import_family(reader)
    except DataError as error:
        hint = "" if "model_type" in raw else hint_at_folder(folder)
        raise DataError(f"{error.problem}{hint}", error.name) from None
    generation = os.path.join(folder, GENERATION_CONFIG)
    if exists(generation):
        reader, files = _override_tokens(reader, generation), [path, generation]
    weights = open_weights(folder)
    config, params = read_model(family, reader, weights)
    return Checkpoint(folder, config, raw, params, [*files, *weights.files])


def hint_at_folder(folder: str) -> str:
    """A hint at the model above or below a folder that is none, or ""."""
    above = os.path.normpath(os.path.join(folder, os.pardir))
    if is_model(above):
        return f"; the folder above it looks like the model: {above}"
    names = sorted(glob.glob("*/", root_dir=folder) + glob.glob("snapshots/*/", root_dir=folder))
    below = [path for name in names if is_model(path := os.path.join(folder, name.rstrip(os.sep)))]
    return f"; did you mean {below[0]}?" if below else ""


def is_model(folder: str) -> bool:
    """Whether a folder has a configuration that names a family, or a file of Marian."""
    try:
        return os.path.isfile(os.path.join(folder, MARIAN_FILE)) or "model_type" in read_json_object(
            os.path.join(folder, CONFIG)
        )
    except AttnkitError:
        return False


def import_family(reader: ConfigReader) -> Family:
    """Import the family that a configuration names. DataError if it is unknown."""
    name = reader.get_str("model_type")
    if name not in FAMILIES:
        raise reader.error(f"model_type {name[:40]!r} is not known (expected {', '.join(FAMILIES)})")
    return _import_module(SAME_AS.get(name, name).replace("-", "_"))


def _import_module(name: str) -> Family:
    return cast(Family, importlib.import_module(f"attnkit.checkpoints.{name}"))


def _override_tokens(reader: ConfigReader, path: str) -> ConfigReader:
    """Override the special tokens by those of generation_config.json."""
    values = read_json_object(path).items()
    tokens: Mapping[str, Any] = {key: value for key, value in values if value is not None and TOKEN_KEY.search(key)}
    ConfigReader(tokens, path).get_special_tokens()
    return ConfigReader({**reader.values, **tokens}, reader.name)


def _open_marian(folder: str) -> Checkpoint:
    from attnkit.checkpoints.marian_native import open_marian

    path = os.path.join(folder, MARIAN_FILE)
    if not exists(path):
        hint = hint_at_folder(folder)
        raise FileError(f"no {CONFIG} in this folder, nor a {MARIAN_FILE} of Marian{hint}", folder)
    weights, reader = open_marian(path)
    config, params = read_model(_import_module("marian_native"), reader, weights)
    return Checkpoint(folder, config, reader.values, params, [path])


def read_model(family: Family, reader: ConfigReader, weights: Weights) -> tuple[Config, Parameters]:
    weights.prefixes = family.PREFIXES
    _check_layer_counts(reader, len(weights.entries))
    config = family.read_config(reader, weights)
    _check_start_token(reader, config)
    params = Parameters(config, weights, expand_layers(config, family.map_layers(reader)))
    _check_positions(reader, config)
    return config, params


def _check_layer_counts(reader: ConfigReader, stored: int) -> None:
    """Raise DataError for more layers than tensors, before any tensor is looked up."""
    for key in LAYER_COUNTS:
        count = reader.values.get(key)
        if isinstance(count, int) and count > max(stored, FEW):
            raise reader.error(f"{key} {count}, and only {stored} tensors are stored")


def _check_positions(reader: ConfigReader, config: Config) -> None:
    """DataError for rotary or relative positions that cannot be computed."""
    positions = config.positions
    if positions.kind == "rotary":
        with name_errors(reader.name):
            for rope in (positions.rope, *filter(None, [positions.local_rope])):
                rope_frequencies(config.stack(config.stacks[-1]).head_dim, rope, 1)
    if positions.relative == "t5":
        for name in config.stacks:
            exact = positions.buckets // (2 if config.stack(name).causal else 4)
            if exact < 1 or positions.max_distance <= exact:
                sizes = f"relative_attention_num_buckets {positions.buckets} up to relative_attention_max_distance "
                raise reader.error(f"{sizes}{positions.max_distance}: too few buckets, or too short a distance")


def _check_start_token(reader: ConfigReader, config: Config) -> None:
    """DataError where the token that a decoder starts with is not in its vocabulary."""
    start, vocab = config.special.start, config.decoder.vocab if config.decoder else 0
    if start is not None and vocab and start >= vocab:
        raise reader.error(f"decoder_start_token_id {start} is outside the vocabulary of {vocab}")
