"""Published folders as models: a configuration, and parameters by the name of a layer.

bert.py gpt2.py …   one file per published `model_type`: its choices, and its mapping of names
marian_native.py    the NumPy file that Marian itself writes
names.py            the words of those mappings
settings.py         config.json, each value checked when it is asked for
weights.py          stored tensors, in one file or in shards
documents.py        JSON files
"""

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, reduce
from typing import Any

import numpy as np

from attnkit import formats
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.json_file import read_json_object
from attnkit.checkpoints.mapping import TensorSpec, expand_layers
from attnkit.checkpoints.weights import Weights, open_weights
from attnkit.errors import DataError, FileError
from attnkit.formats.streams import exists, name_errors
from attnkit.model.config import Config, parameter_shape
from attnkit.model.dtypes import Array
from attnkit.model.linear import to_column_major
from attnkit.model.rotary import rope_frequencies

__all__ = ["FAMILIES", "Checkpoint", "open_checkpoint"]

FAMILIES = ("bert", "gpt2", "llama", "marian", "mistral", "openai-gpt", "qwen2", "t5", "transformer", "vit")
CONFIG, GENERATION, NATIVE = "config.json", "generation_config.json", "model.npz"
DEPTHS = ("n_layer", "num_hidden_layers", "num_layers", "num_decoder_layers", "num_encoder_layers",
          "encoder_layers", "decoder_layers", "enc-depth", "dec-depth")  # fmt: skip
TOKEN = re.compile(r"_token_id$|^bad_words_ids$")  # what the generation's own file may say anew
FLOATS = ("float64", "float32", "float16", "bfloat16")
BUFFER = re.compile(  # what some files hold of a model besides what it has learned
    r"(^|\.)attn\.(masked_)?bias$|position_ids$|rotary_emb\.inv_freq$|embed_positions\.weights?$|^special:"
)
NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")


class Checkpoint:
    """A folder as published.

    config  the model; raw: its config.json as it stands; params: layer -> {parameter: array}
    """

    def __init__(
        self, folder: str, config: Config, raw: Mapping[str, Any], params: "Parameters", files: list[str]
    ) -> None:
        self.folder = folder
        self.config = config
        self.raw = raw
        self.params = params
        self._files = files
        self._beside: dict[str, Any] = {}

    def beside(self, name: str, read: Callable[[str, str], Any]) -> Any:
        """What `read` makes of (folder, name), read once; its `files` are then those of the model too."""
        if name not in self._beside:
            self._beside[name] = read(self.folder, name)
            self._files = [*dict.fromkeys([*self._files, *self._beside[name].files])]
        return self._beside[name]

    def layers(self) -> list[str]:
        """The names of all layers, in the order of a forward pass."""
        return list(self.params)

    def tensors(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """The dtype and the shape of every tensor by its published name, as stored."""
        return self.params.weights.entries

    def tensor(self, name: str) -> Array:
        """A tensor as stored by its published name, or a parameter by ours, as encoder.0.self.wq."""
        weights = self.params.weights
        if found := weights.find([name]):
            return weights.tensor(found)
        layer, _, parameter = name.rpartition(".")
        if parameter in self.params.entries.get(layer, {}):
            return self.params[layer][parameter]
        raise DataError(f"no tensor {name!r}{self._near(name)}", self.folder)

    @cached_property
    def parameter_count(self) -> int:
        """How many numbers the model has learned: each tensor that a layer uses, counted once."""
        return self.params.count()

    def flaw(self, first: str = "") -> str:
        """The first parameter in use that is not finite, in the layer named if there is one; "" where all are."""
        return self.params.flaw(first)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that the model was read from, by path."""
        return {path: file_digest(path, *file_stamp(path)) for path in self._files}

    def _near(self, name: str) -> str:
        """What the user may have meant."""
        import difflib

        ours = [f"{layer}.{key}" for layer, keys in self.params.entries.items() for key in keys]
        layer = self.params.entries.get(name, {})
        unsaid = [prefix for prefix in self.params.weights.prefixes if not name.startswith(prefix)]
        published = [reduce(str.removeprefix, unsaid, stored) for stored in self.tensors()]
        near = [f"{name}.{key}" for key in layer] or difflib.get_close_matches(name, [*published, *ours], 4)
        return f" (near: {', '.join(near)})" if near else ""


def file_stamp(path: str) -> tuple[int, int, int]:
    """What tells whether a file is still the same: its number, its size and when it was written."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@cache
def file_digest(path: str, *marks: int) -> str:
    """The SHA-256 of a file, computed once while its marks stay."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Parameters(Mapping[str, Mapping[str, Array]]):
    """Parameters by layer, each layer brought into shape when it is first asked for.

    Arrays are (in, out), and views of the file where it holds float32 or float64.
    """

    def __init__(self, config: Config, weights: Weights, entries: Mapping[str, Mapping[str, TensorSpec]]) -> None:
        self.config = config
        self.weights = weights
        self.entries = entries
        self._ready: dict[str, dict[str, Array]] = {}
        self._whole: dict[tuple[str, float | None], Array] = {}  # of several parameters perhaps
        self._check()

    def __getitem__(self, layer: str) -> Mapping[str, Array]:
        if layer not in self._ready:
            self._ready[layer] = {name: self._parameter(layer, name) for name in self.entries[layer]}
        return self._ready[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def by_columns(self, layer: str, name: str) -> None:
        """Lay a weight of more rows than columns by columns, unless it lies so; then it is no view of the file."""
        weight = self[layer][name]
        if weight.flags.c_contiguous and len(weight) > weight.shape[1]:
            self._ready[layer][name] = to_column_major(weight)
            self._whole.pop((self._stored(layer, name), self.entries[layer][name].fill), None)
            formats.release_pages(weight)

    def count(self) -> int:
        """The elements of all tensors in use."""
        return sum(int(np.prod(self.weights.entries[name][1], dtype=np.int64)) for name in self._used())

    def unread(self) -> list[str]:
        """The stored tensors that no layer uses, buffers aside."""
        used = self._used()
        return [name for name in self.weights.entries if name not in used and not BUFFER.search(name)]

    def unread_layers(self) -> list[str]:
        """What the names of stored layers begin with that the configuration leaves out, as h.12."""
        used = self._used()
        known, read = set(map(name_pattern, used)), set(map(layer_prefix, used))
        found = dict.fromkeys(layer_prefix(name) for name in self.unread() if name_pattern(name) in known)
        return [stem for stem in found if stem not in read]

    def flaw(self, first: str = "") -> str:
        """The first parameter that is not finite, of the layer named and then of all others that a run has asked for.

        "" where all are finite.
        """
        for layer in dict.fromkeys([first, *self._ready]):
            for name, array in self._ready.get(layer, {}).items():
                if found := formats.first_non_finite(array):
                    return f"parameter {layer}.{name} is {found}"
        return ""

    def _parameter(self, layer: str, name: str) -> Array:
        entry, stored = self.entries[layer][name], self._stored(layer, name)
        key = stored, entry.fill
        if key not in self._whole:
            self._whole[key] = entry.grown(as_float(self.weights.tensor(stored)))
        return entry.parameter(self._whole[key], parameter_shape(self.config, layer, name))

    def _stored(self, layer: str, name: str) -> str:
        names = self.entries[layer][name].names
        found = self.weights.find(names)
        if found is None:
            raise DataError(f"no tensor {names[0]!r} ({name} of {layer})", self.weights.name)
        return found

    def _used(self) -> set[str]:
        return {self._stored(layer, name) for layer, names in self.entries.items() for name in names}

    def _check(self) -> None:
        """DataError where a tensor is missing, no float, or of another shape than the configuration says."""
        for layer, names in self.entries.items():
            for name, entry in names.items():
                stored = self._stored(layer, name)
                dtype, shape = self.weights.entries[stored]
                expected = entry.shape(parameter_shape(self.config, layer, name))
                where = f"tensor {stored!r} ({name} of {layer})"
                if shape != expected:
                    raise DataError(f"{where} has shape {shape} (expected {expected})", self.weights.file(stored))
                if dtype not in FLOATS:
                    raise DataError(f"{where} has dtype {dtype} (expected a float)", self.weights.file(stored))


def layer_prefix(name: str) -> str:
    """A published name as far as the number of its layer; "" where it has none.

    >>> layer_prefix("h.12.ln_1.weight"), layer_prefix("wte.weight")
    ('h.12', '')
    """
    found = NUMBER.search(name)
    return name[: found.end()] if found else ""


def name_pattern(name: str) -> str:
    """A published name without the number of its layer, so that those of all layers are one.

    >>> name_pattern("h.12.ln_1.weight")
    'h.#.ln_1.weight'
    """
    return NUMBER.sub("#", name, count=1)


def as_float(array: Array) -> Array:
    """The array itself if it is float64 or float32, else as float32, exactly.

    >>> as_float(np.array([1.5], np.float16))
    array([1.5], dtype=float32)
    """
    return array if array.dtype in (np.float64, np.float32) else array.astype(np.float32)


def open_checkpoint(folder: str) -> Checkpoint:
    """The model in a folder, every tensor known to be there and of the right shape, none of them read yet.

    FileError where something is missing; DataError names the file and what is wrong in it.
    """
    if not os.path.isdir(folder):
        raise FileError("not a folder" if exists(folder) else "no such folder", folder)
    path = os.path.join(folder, CONFIG)
    if not exists(path):
        return _open_marian(folder)
    raw = read_json_object(path)
    settings, files = ConfigReader(raw, path), [path]
    family = _family(settings)
    generation = os.path.join(folder, GENERATION)
    if exists(generation):
        said = {
            key: value for key, value in read_json_object(generation).items() if value is not None and TOKEN.search(key)
        }
        ConfigReader(said, generation).special()  # what is wrong there is not in config.json
        settings, files = ConfigReader({**raw, **said}, path), [path, generation]
    weights = open_weights(folder)
    weights.prefixes = family.PREFIXES
    _check_depth(settings, len(weights.entries))
    config: Config = family.config(settings, weights)
    _check_tokens(settings, config)
    params = Parameters(config, weights, expand_layers(config, family.layers(settings, config)))
    _check_positions(settings, config)
    return Checkpoint(folder, config, raw, params, [*files, *weights.files])


def _family(settings: ConfigReader) -> Any:
    """The module of the family that a configuration names."""
    name = settings.text("model_type")
    if name not in FAMILIES:
        raise settings.wrong(f"model_type {name[:40]!r} is not known (expected {', '.join(FAMILIES)})")
    return importlib.import_module(f"attnkit.checkpoints.{name.replace('-', '_')}")


def _open_marian(folder: str) -> Checkpoint:
    """A folder with the NumPy file of Marian."""
    from attnkit.checkpoints import marian_native

    path = os.path.join(folder, NATIVE)
    if not exists(path):
        raise FileError(f"no {CONFIG} in this folder, nor a {NATIVE} of Marian", folder)
    weights, settings = marian_native.open_marian(path)
    _check_depth(settings, len(weights.entries))
    config = marian_native.config(settings, weights)
    params = Parameters(config, weights, expand_layers(config, marian_native.layers(settings, config)))
    return Checkpoint(folder, config, settings.values, params, [path])


def _check_depth(settings: ConfigReader, stored: int) -> None:
    """DataError where there are more layers than tensors, before so many are looked for."""
    for key in DEPTHS:
        count = settings.values.get(key)
        if isinstance(count, int) and count > stored:
            raise settings.wrong(f"{key} {count}, and only {stored} tensors are stored")


def _check_positions(settings: ConfigReader, config: Config) -> None:
    """DataError for rotary or relative positions that cannot be computed."""
    positions = config.positions
    if positions.kind == "rotary":
        with name_errors(settings.name):
            rope_frequencies(config.stack(config.stacks[-1]).head_dim, positions.rope, 1)
    if positions.kind == "t5":
        for name in config.stacks:
            exact = positions.buckets // (2 if config.stack(name).causal else 4)
            if exact < 1 or positions.max_distance <= exact:
                wrong = f"relative_attention_num_buckets {positions.buckets} up to relative_attention_max_distance "
                raise settings.wrong(f"{wrong}{positions.max_distance}: too few buckets, or too short a distance")


def _check_tokens(settings: ConfigReader, config: Config) -> None:
    """DataError where the token that a decoder starts with is not in its vocabulary."""
    start, vocab = config.special.start, config.decoder.vocab if config.decoder else 0
    if start is not None and vocab and start >= vocab:
        raise settings.wrong(f"decoder_start_token_id {start} is outside the vocabulary of {vocab}")
