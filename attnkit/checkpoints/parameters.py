"""The parameters of a model by layer, converted from stored tensors on first use."""

import re
from collections.abc import Iterable, Iterator, Mapping, Set

import numpy as np

from attnkit import formats
from attnkit.checkpoints.mapping import TensorSpec
from attnkit.checkpoints.weights import Weights
from attnkit.errors import DataError
from attnkit.model.config import Config
from attnkit.model.dtypes import FLOATS, Array
from attnkit.model.linear import to_column_major

BUFFER = re.compile(  # tensors of some files that are not parameters
    r"(^|\.)attn\.(masked_)?bias$|position_ids$|rotary_emb\.inv_freq$|embed_positions\.weights?$|^special:"
)
NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")


def find_unused(stored: Iterable[str], used: Set[str]) -> list[str]:
    """The stored names that are not used, buffers excepted.

    >>> find_unused(["wte.weight", "h.0.attn.bias", "score.weight"], {"wte.weight"})
    ['score.weight']
    """
    return [name for name in stored if name not in used and not BUFFER.search(name)]


def find_unused_layers(stored: Iterable[str], used: Set[str]) -> list[str]:
    """The prefixes of unused layers, whose tensors differ from used ones by number.

    >>> find_unused_layers(["h.0.ln_1.weight", "h.1.ln_1.weight", "score.weight"], {"h.0.ln_1.weight"})
    ['h.1']
    """
    patterns, prefixes = set(map(name_pattern, used)), set(map(layer_prefix, used))
    unused = dict.fromkeys(layer_prefix(name) for name in find_unused(stored, used) if name_pattern(name) in patterns)
    return [prefix for prefix in unused if prefix not in prefixes]


def layer_prefix(name: str) -> str:
    """A published name up to the number of its layer, or "" if it has none.

    >>> layer_prefix("h.12.ln_1.weight"), layer_prefix("wte.weight")
    ('h.12', '')
    """
    number = NUMBER.search(name)
    return name[: number.end()] if number else ""


def name_pattern(name: str) -> str:
    """A published name with `#` for the number of its layer.

    >>> name_pattern("h.12.ln_1.weight")
    'h.#.ln_1.weight'
    """
    return NUMBER.sub("#", name, count=1)


class Parameters(Mapping[str, Mapping[str, Array]]):
    """Parameters by layer, each layer converted on first use.

    weights  the stored tensors
    specs    layer -> {parameter: where it is stored}

    Weights are (in, out), views of the file where it holds float32 or float64. DataError if a tensor is missing,
    has another shape than the configuration says, or holds no floats.
    """

    def __init__(self, config: Config, weights: Weights, specs: Mapping[str, Mapping[str, TensorSpec]]) -> None:
        self.config = config
        self.weights = weights
        self.specs = specs
        self._stored = match_tensors(config, weights, specs)
        self._layers: dict[str, dict[str, Array]] = {}
        self._views: dict[str, dict[str, Array]] = {}  # in the dtype of the file
        self._tensors: dict[tuple[str, float | None], Array] = {}  # one may hold several parameters

    def __getitem__(self, layer: str) -> Mapping[str, Array]:
        if layer not in self._layers:
            self._layers[layer] = {name: self._convert(layer, name) for name in self.specs[layer]}
        return self._layers[layer]

    def __contains__(self, layer: object) -> bool:
        return layer in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def stored(self, layer: str) -> Mapping[str, Array]:
        """The parameters of a layer as views of the file, in 16 bits where it holds these."""
        if layer not in self._views:
            self._views[layer] = {name: self._view(layer, name) for name in self.specs[layer]}
        return self._views[layer]

    def to_column_major(self, layer: str, name: str) -> None:
        """Replace the memory-mapped view of a tall weight by a column-major copy."""
        weight = self[layer][name]
        if weight.flags.c_contiguous and len(weight) > weight.shape[1]:
            self._layers[layer][name] = to_column_major(weight)
            self._tensors.pop(self._key(layer, name), None)
            formats.release_pages(weight)

    def count(self) -> int:
        """The number of elements of all tensors in use."""
        return sum(int(np.prod(self.weights.entries[name][1], dtype=np.int64)) for name in self._used())

    def unused(self) -> list[str]:
        """The stored tensors that no layer uses, buffers excepted."""
        return find_unused(self.weights.entries, self._used())

    def unused_layers(self) -> list[str]:
        """The prefixes of stored layers beyond those of the configuration, as h.12."""
        return find_unused_layers(self.weights.entries, self._used())

    def find_non_finite(self, first: str = "") -> str:
        """Describe the first parameter that is not finite, in layer `first` first.

        "" where all are finite.
        """
        used = self._views | self._layers
        for layer in dict.fromkeys([first, *used]):
            for name, array in used.get(layer, {}).items():
                if value := formats.first_non_finite(array):
                    return f"parameter {layer}.{name} is {value}"
        return ""

    def _convert(self, layer: str, name: str) -> Array:
        spec, key = self.specs[layer][name], self._key(layer, name)
        if key not in self._tensors:
            self._tensors[key] = spec.pad_row(as_float(self.weights.tensor(key[0])))
        return spec.to_parameter(self._tensors[key], self.config.parameter_shape(layer, name))

    def _view(self, layer: str, name: str) -> Array:
        spec = self.specs[layer][name]
        if spec.padding_row is not None:
            return self._convert(layer, name)
        return spec.to_parameter(
            self.weights.tensor(self._key(layer, name)[0]), self.config.parameter_shape(layer, name)
        )

    def _key(self, layer: str, name: str) -> tuple[str, float | None]:
        return self._stored[layer][name], self.specs[layer][name].padding_row

    def _used(self) -> set[str]:
        return {stored for names in self._stored.values() for stored in names.values()}


def match_tensors(
    config: Config, weights: Weights, specs: Mapping[str, Mapping[str, TensorSpec]]
) -> dict[str, dict[str, str]]:
    """The name of the stored tensor of every parameter of each layer.

    DataError if a tensor is missing, has another shape than the configuration says, or holds no floats.
    """
    matches: dict[str, dict[str, str]] = {}
    for layer, parameters in specs.items():
        matches[layer] = {}
        for name, spec in parameters.items():
            stored = weights.find(spec.names)
            if stored is None:
                raise DataError(f"no tensor {spec.names[0]!r} ({name} of {layer})", weights.name)
            expected = spec.stored_shape(config.parameter_shape(layer, name))
            check_tensor(weights, stored, expected, f"{name} of {layer}")
            matches[layer][name] = stored
    return matches


def check_tensor(weights: Weights, stored: str, expected: tuple[int, ...], parameter: str) -> None:
    """Raise DataError for a stored tensor of another shape, or not of floats."""
    dtype, shape = weights.entries[stored]
    tensor = f"tensor {stored!r} ({parameter})"
    if shape != expected:
        raise DataError(f"{tensor} has shape {shape} (expected {expected})", weights.file(stored))
    if dtype not in FLOATS:
        raise DataError(f"{tensor} has dtype {dtype} (expected a float)", weights.file(stored))


def as_float(array: Array) -> Array:
    """The array itself if it is float64 or float32, otherwise a float32 copy.

    >>> as_float(np.array([1.5], np.float16))
    array([1.5], dtype=float32)
    """
    return array if array.dtype in (np.float64, np.float32) else array.astype(np.float32)
