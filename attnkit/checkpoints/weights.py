"""The tensors of a folder, memory-mapped, and the parameters that they are mapped to.

A family maps the names of layers to {parameter: TensorSpec}. In both names `{n}` is the number of a
layer, from 0; in published ones `{k}` for that number counted from 1.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader, read_json_object
from attnkit.errors import DataError, FileError
from attnkit.formats import pytorch, safetensors
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import exists
from attnkit.model.config import Config, parse_layer_name
from attnkit.model.dtypes import Array

SINGLE = "model.safetensors"
INDEX = ".index.json"  # after the name of the single file, where there are shards
PYTORCH = "pytorch_model.bin"
MAX_NAME_LENGTH = 255


class Weights:
    """Tensors by published name.

    name      the file, or the index of the shards, for errors
    files     all files that the tensors are read from
    entries   the dtype and the shape of each, in stored order
    prefixes  prefixes that published names may or may not have
    """

    def __init__(self, name: str, files: Sequence[str], mapped_files: dict[str, Mapped]) -> None:
        self.name = name
        self.files = files
        self.entries = {tensor: mapped.entries[tensor] for tensor, mapped in mapped_files.items()}
        self.prefixes: tuple[str, ...] = ()
        self._mapped = mapped_files

    def find(self, names: Iterable[str]) -> str | None:
        """The first of several names that is stored, with a prefix or without, or None."""
        candidates = (prefix + name for name in names for prefix in ("", *self.prefixes))
        return next((name for name in candidates if name in self.entries), None)

    def has(self, *names: str) -> bool:
        return self.find(names) is not None

    def file(self, name: str) -> str:
        return self._mapped[name].name

    def tensor(self, name: str) -> Array:
        return self._mapped[name].tensor(name)


def open_weights(folder: str) -> Weights:
    """Open the tensors of a folder: safetensors first, then PyTorch, or their shards.

    FileError if there is none.
    """
    for name, map_tensors in ((SINGLE, safetensors.map_tensors), (PYTORCH, pytorch.map_tensors)):
        single, index = os.path.join(folder, name), os.path.join(folder, name + INDEX)
        if exists(single):
            return single_file(map_tensors(single))
        if exists(index):
            return _open_shards(folder, index, map_tensors)
    raise FileError(f"no weights (looked for {SINGLE}, {PYTORCH}, and their {INDEX})", folder)


def single_file(mapped: Mapped) -> Weights:
    return Weights(mapped.name, [mapped.name], dict.fromkeys(mapped.entries, mapped))


def is_file_name(name: object) -> bool:
    """Whether a value is the name of a file within a folder, not a path elsewhere.

    >>> is_file_name("a.safetensors"), is_file_name("../a"), is_file_name(None)
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and os.path.basename(name) == name
        and name not in ("", ".", "..")
        and len(name) <= MAX_NAME_LENGTH
        and name.isprintable()
    )


def _open_shards(folder: str, index: str, map_tensors: Callable[[str], Mapped]) -> Weights:
    weight_map = ConfigReader(read_json_object(index), index).get_dict("weight_map")
    if not weight_map:
        raise DataError("weight_map is missing or empty", index)
    shards: dict[str, Mapped] = {}
    for tensor, file in weight_map.items():
        if not is_file_name(file):
            raise DataError(f"tensor {tensor!r}: {str(file)[:40]!r} is not the name of a file", index)
        path = os.path.join(folder, file)
        if file not in shards and not exists(path):
            raise FileError(f"no such file, which {os.path.basename(index)} names for tensor {tensor!r}", path)
        if file not in shards:
            shards[file] = map_tensors(path)
        if tensor not in shards[file].entries:
            raise DataError(f"no tensor {tensor!r}, which {os.path.basename(index)} says is here", path)
    files = [index, *(mapped.name for mapped in shards.values())]
    return Weights(index, files, {tensor: shards[file] for tensor, file in weight_map.items()})


@dataclass(frozen=True)
class TensorSpec:
    """The stored form of a parameter.

    names         published names of the tensor; the first one that is stored counts
    transposed    the published axes are (out, in)
    split         (i, count): the i-th of so many equal parts of the outputs
    patch_shape   (C, height, width), which the published tensor has in place of its last axis C*height*width
    leading_ones  number of axes of size 1 before the others
    padding_row   value of one more row at the end, which the published tensor lacks
    """

    names: tuple[str, ...]
    transposed: bool = False
    split: tuple[int, int] = (0, 1)
    patch_shape: tuple[int, ...] = ()
    leading_ones: int = 0
    padding_row: float | None = None

    def with_layer_number(self, number: int | None) -> "TensorSpec":
        if number is None:
            return self
        names = (name.replace("{n}", str(number)).replace("{k}", str(number + 1)) for name in self.names)
        return replace(self, names=tuple(names))

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the published tensor for a parameter of a shape.

        >>> TensorSpec(("qkv",), transposed=True, split=(1, 3)).stored_shape((4, 4))
        (12, 4)
        """
        rows, *others = self._unsplit_shape(shape)
        flat = (rows if self.padding_row is None else rows - 1, *others)
        return (1,) * self.leading_ones + (flat[:-1] + self.patch_shape if self.patch_shape else flat)

    def to_parameter(self, tensor: Array, shape: tuple[int, ...]) -> Array:
        """The parameter of a shape as a view of its tensor, after `pad_row`.

        >>> TensorSpec(("qkv",), split=(1, 3)).to_parameter(np.arange(6.0).reshape(1, 6), (1, 2))
        array([[2., 3.]])
        """
        flat = tensor.reshape(self._unsplit_shape(shape))
        part, size = self.split[0], shape[-1]
        return (flat.T if self.transposed else flat)[..., part * size : (part + 1) * size]

    def pad_row(self, tensor: Array) -> Array:
        """The tensor with its padding row, or as it is.

        >>> TensorSpec(("table",), padding_row=0.0).pad_row(np.ones((1, 2)))
        array([[1., 1.],
               [0., 0.]])
        """
        if self.padding_row is None:
            return tensor
        rows = tensor.reshape(tensor.shape[self.leading_ones :])
        return np.concatenate([rows, np.full((1, *rows.shape[1:]), self.padding_row, rows.dtype)])

    def _unsplit_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        whole = (*shape[:-1], shape[-1] * self.split[1])
        return whole[::-1] if self.transposed else whole


Specs = Mapping[str, TensorSpec]
Layers = Mapping[str, Specs]


def map_linear(
    prefix: str = "", *, biased: bool = True, transposed: bool = True, **weights: str
) -> dict[str, TensorSpec]:
    """Map linear layers and their biases, (out, in) if transposed.

    >>> {key: spec.names for key, spec in map_linear("attn", wq="query").items()}
    {'wq': ('attn.query.weight',), 'bq': ('attn.query.bias',)}
    """
    specs = {}
    for weight, published in weights.items():
        name = f"{prefix}.{published}" if prefix else published
        specs[weight] = TensorSpec((f"{name}.weight",), transposed)
        if biased:
            specs[weight.replace("w", "b", 1)] = TensorSpec((f"{name}.bias",))
    return specs


def map_fused(letters: str, weight: str, bias: str = "", transposed: bool = True) -> dict[str, TensorSpec]:
    """Map weights and biases, such as wq, wk, wv, to the parts of one published tensor.

    >>> map_fused("qkv", "c_attn.weight")["wk"].split
    (1, 3)
    """
    parts = {letter: (number, len(letters)) for number, letter in enumerate(letters)}
    specs = {f"w{letter}": TensorSpec((weight,), transposed, part) for letter, part in parts.items()}
    return specs | ({f"b{letter}": TensorSpec((bias,), split=part) for letter, part in parts.items()} if bias else {})


def norm(name: str, biased: bool = True) -> dict[str, TensorSpec]:
    """Map gamma and beta of a norm to `weight` and `bias`, or to their old names.

    >>> norm("ln_f", biased=False)["gamma"].names
    ('ln_f.weight', 'ln_f.gamma')
    """
    gamma = {"gamma": TensorSpec((f"{name}.weight", f"{name}.gamma"))}
    return gamma | ({"beta": TensorSpec((f"{name}.bias", f"{name}.beta"))} if biased else {})


def embedding_table(*names: str) -> dict[str, TensorSpec]:
    """Map the table of embeddings or positions to the first stored one of some names."""
    return {"table": TensorSpec(names)}


def tied_head(*names: str) -> dict[str, TensorSpec]:
    """Map the weight of a head to the first stored table of embeddings."""
    return {"w": TensorSpec(names, transposed=True)}


def masked_word_head(words: str, head: str, is_tied: bool) -> dict[str, TensorSpec]:
    """Map the output of a head for masked words, tied to the table of words or not.

    A tied head is published with `bias`. An untied one computes with the bias of its `decoder`; transformers 5 stores
    a `bias` beside it that no computation reads. Older files have one of them.

    >>> [spec.names for spec in masked_word_head("words.weight", "lm_head", False).values()]
    [('lm_head.decoder.weight',), ('lm_head.decoder.bias', 'lm_head.bias')]
    """
    own, shared = f"{head}.decoder.bias", f"{head}.bias"
    if is_tied:
        return tied_head(words) | {"b": TensorSpec((shared, own))}
    return map_linear(w=f"{head}.decoder", biased=False) | {"b": TensorSpec((own, shared))}


def expand_layers(config: Config, layers: Layers) -> dict[str, dict[str, TensorSpec]]:
    """The specs of every layer, from a family's specs by name or with `{n}`."""
    specs = {}
    for name in config.layer_names():
        stack, number, part = parse_layer_name(name)
        pattern = name if number is None else f"{stack}.{{n}}.{part}"
        specs[name] = {
            key: spec.with_layer_number(number) for key, spec in layers.get(name, layers.get(pattern, {})).items()
        }
    return specs
