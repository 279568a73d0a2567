"""The memory-mapped tensors of a folder, and the parameters mapped to them.

A family maps the names of layers to {parameter: TensorSpec}. In both names `{n}` is the number of a layer, from 0; in
published ones `{k}` for that number counted from 1, and `{e}` for the number of an expert. The router of a mixture of
experts has the name `STACK.{n}.router` there, as other layers may have a plain `STACK.{n}.ffn`.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader, read_json_object
from attnkit.errors import DataError, FileError
from attnkit.formats import safetensors
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
    is_strict whether each tensor counts for what the model computes, as in the files of llama.cpp
    """

    def __init__(self, name: str, files: Sequence[str], mapped_files: dict[str, Mapped]) -> None:
        self.name = name
        self.files = files
        self.entries = {tensor: mapped.entries[tensor] for tensor, mapped in mapped_files.items()}
        self.prefixes: tuple[str, ...] = ()
        self.is_strict = False
        self._mapped = mapped_files

    def find(self, names: Iterable[str]) -> str | None:
        """The first of several names that is stored, with a prefix or without, or None."""
        return next((name for name in self.candidates(names) if name in self.entries), None)

    def candidates(self, names: Iterable[str]) -> Iterator[str]:
        """Several names, each without a prefix and with each prefix."""
        return (prefix + name for name in names for prefix in ("", *self.prefixes))

    def has(self, *names: str) -> bool:
        return self.find(names) is not None

    def file(self, name: str) -> str:
        return self._mapped[name].name

    def tensor(self, name: str) -> Array:
        return self._mapped[name].tensor(name)

    def rows(self, name: str, index: Any) -> Array:
        """The rows of a tensor that an index selects."""
        return self._mapped[name].rows(name, index)

    def joined_with(self, mapped: Mapped, without: Collection[str]) -> "Weights":
        """These weights, with the tensors of another file in place of some."""
        kept = {name: one for name, one in self._mapped.items() if name not in without}
        return Weights(self.name, self.files, kept | dict.fromkeys(mapped.entries, mapped))

    def without(self, *prefixes: str) -> "Weights":
        """These weights but those whose names begin with a prefix."""
        kept = {name: one for name, one in self._mapped.items() if not name.startswith(prefixes)}
        return Weights(self.name, self.files, kept)

    def error(self, name: str, problem: str) -> DataError:
        return DataError(f"tensor {name!r} {problem}", self.file(name) if name in self.entries else self.name)

    def kind(self, name: str) -> str:
        """How the numbers of a tensor are stored: by its dtype, or quantized, as Q4_K."""
        return self._mapped[name].packed.get(name, self.entries[name][0])

    def is_in_place(self, name: str) -> bool:
        """Whether the tensor is a view of its file in float32 or float64."""
        return self.entries[name][0] in ("float32", "float64") and name not in self._mapped[name].packed


def open_weights(folder: str) -> Weights:
    """Open the tensors of a folder: safetensors first, then PyTorch, or their shards.

    FileError if there is none.
    """
    for name, map_tensors in ((SINGLE, safetensors.map_tensors), (PYTORCH, _map_pytorch)):
        single, index = os.path.join(folder, name), os.path.join(folder, name + INDEX)
        if exists(single):
            return single_file(map_tensors(single))
        if exists(index):
            return _open_shards(folder, index, map_tensors)
    raise FileError(f"no weights (looked for {SINGLE}, {PYTORCH}, and their {INDEX})", folder)


def _map_pytorch(path: str) -> Mapped:
    from attnkit.formats.pytorch import map_tensors  # most folders have safetensors

    return map_tensors(path)


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
    unlisted = {tensor: mapped for mapped in shards.values() for tensor in mapped.entries if tensor not in weight_map}
    return Weights(index, files, {tensor: shards[file] for tensor, file in weight_map.items()} | unlisted)


class Share(NamedTuple):
    """The part of the outputs of a published tensor that a parameter is.

    The outputs are `groups` groups of `total` units; the parameter is `units` units of each group, from unit `first`.
    So q, k and v one after another are the shares (0, 1, 3), (1, 1, 3) and (2, 1, 3); by head, with H groups.
    """

    first: int = 0
    units: int = 1
    total: int = 1
    groups: int = 1

    @property
    def is_whole(self) -> bool:
        return self.units == self.total

    def of_outputs(self, size: int) -> int:
        """The number of outputs of the published tensor of a parameter.

        >>> Share(1, 1, 3).of_outputs(4)
        12
        """
        return size // self.units * self.total

    def select(self, tensor: Array, size: int) -> Array:
        """View the part of a tensor (outputs, ...) that is a parameter.

        -> (groups, units, outputs of a unit, ...)

        >>> Share(1, 1, 2, groups=2).select(np.arange(4), 2).ravel().tolist()
        [1, 3]
        """
        each = size // (self.units * self.groups)
        cut = tensor.reshape(self.groups, self.total, each, *tensor.shape[1:])
        return cut[:, self.first : self.first + self.units]


WHOLE = Share()


class TensorSpec(NamedTuple):
    """The stored form of a parameter.

    names         published names of the tensor; the first one that is stored counts
    transposed    the published axes are (out, in)
    share         the part of the outputs that the parameter is
    stacked       number of tensors along a first axis that the parameter lacks, of which it is one; 0: there is none
    entry         its number among them
    joined        number of tensors that are joined along the first axis, `{h}` in their names is their number; 0: one
    rows          number of rows of the published tensor, if the parameter is one vector of them; 0: it is as published
    offset        added to the published numbers
    patch_shape   (C, height, width), which the published tensor has in place of its last axis C*height*width
    leading_ones  number of axes of size 1 before the others
    padding_row   value of one more row at the end, which the published tensor lacks
    tied          the one of `names` that the parameter is tied to, and is published as; one before it that is stored is
                  a copy of it, or has other numbers, which count, with a warning; "": the parameter is not tied
    other         another form, of files that store its tensor and none of `names`; None: there is none
    """

    names: tuple[str, ...]
    transposed: bool = False
    share: Share = WHOLE
    stacked: int = 0
    entry: int = 0
    joined: int = 0
    rows: int = 0
    offset: float = 0.0
    patch_shape: tuple[int, ...] = ()
    leading_ones: int = 0
    padding_row: float | None = None
    tied: str = ""
    other: "TensorSpec | None" = None

    def in_files(self, weights: Weights) -> "TensorSpec":
        """The form that the parameter has in files, without another one."""
        has_other = self.other is not None and not weights.has(*self.names) and weights.has(*self.other.names)
        return self.other if self.other is not None and has_other else self._replace(other=None)

    def tied_to(self, name: str) -> "TensorSpec":
        """The spec of a parameter tied to a tensor, unless it has its own; "": to none."""
        return self._replace(names=(*self.names, name), tied=name) if name else self

    def with_numbers(self, number: int | None, expert: int | None) -> "TensorSpec":
        """The spec of one layer, and of one of its experts."""
        if number is None:
            return self
        if self.other is not None:
            other = self.other.with_numbers(number, expert)
            return self._replace(other=None).with_numbers(number, expert)._replace(other=other)
        names = [name.replace("{n}", str(number)).replace("{k}", str(number + 1)) for name in self.names]
        if expert is None:
            return self._replace(names=tuple(names))
        return self._replace(names=tuple(name.replace("{e}", str(expert)) for name in names), entry=expert)

    def of_entry(self) -> "TensorSpec":
        """The spec of a tensor that is read alone, out of those that are stacked."""
        return self._replace(stacked=0) if self.stacked else self

    def joined_names(self) -> list[tuple[str, ...]]:
        """The names of each tensor that the parameter consists of.

        >>> TensorSpec(("norms.{h}.weight",), joined=2).joined_names()
        [('norms.0.weight',), ('norms.1.weight',)]
        """
        if not self.joined:
            return [self.names]
        return [tuple(name.replace("{h}", str(at)) for name in self.names) for at in range(self.joined)]

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the published tensor for a parameter of a shape.

        >>> TensorSpec(("qkv",), transposed=True, share=Share(1, 1, 3)).stored_shape((4, 4))
        (12, 4)
        """
        rows, *others = self._whole_shape(shape)
        rows = rows if self.padding_row is None else rows - 1
        flat = (self.rows, rows // self.rows) if self.rows else (rows // (self.joined or 1), *others)
        lead = (1,) * self.leading_ones + (self.stacked,) * bool(self.stacked)
        return lead + (flat[:-1] + self.patch_shape if self.patch_shape else flat)

    def to_parameter(self, tensor: Array, shape: tuple[int, ...]) -> Array:
        """The parameter of a shape, after `join`.

        A view of its tensor if its outputs are adjacent.

        >>> TensorSpec(("qkv",), share=Share(1, 1, 3)).to_parameter(np.arange(6.0).reshape(1, 6), (1, 2))
        array([[2., 3.]])
        """
        part = self._select(tensor, shape)
        outputs_first = part.reshape(shape[-1], *part.shape[3:])
        parameter = outputs_first.T if len(shape) > 1 else outputs_first
        return parameter if not self.offset else parameter + np.asarray(self.offset, parameter.dtype)

    def store(self, tensors: Sequence[Array], parameter: Array) -> None:
        """Write a parameter into its published tensors.

        The inverse of `join` and `to_parameter`.

        >>> tensor = np.zeros((1, 4))
        >>> TensorSpec(("qk",), share=Share(1, 1, 2)).store([tensor], np.array([[7.0, 8.0]]))
        >>> tensor.tolist()
        [[0.0, 0.0, 7.0, 8.0]]
        """
        whole = self.join(tensors)
        part = self._select(whole, parameter.shape)
        part[...] = (parameter.T - self.offset if self.offset else parameter.T).reshape(part.shape)
        if whole is not tensors[0]:
            ends = np.cumsum([tensor.size for tensor in tensors])
            for tensor, numbers in zip(tensors, np.split(whole.reshape(-1), ends), strict=False):
                tensor[...] = numbers.reshape(tensor.shape)

    def _select(self, tensor: Array, shape: tuple[int, ...]) -> Array:
        """View the part of a tensor that is a parameter, outputs first."""
        one = tensor[self.entry] if self.stacked else tensor
        whole = one.reshape(self._whole_shape(shape))
        return self.share.select(whole if self.transposed or len(shape) < 2 else whole.T, shape[-1])

    def is_matrix(self, shape: tuple[int, ...]) -> bool:
        """Whether a parameter of a shape is a published matrix as it is, or transposed.

        >>> TensorSpec(("table",)).is_matrix((5, 2)), TensorSpec(("table",), padding_row=0.0).is_matrix((5, 2))
        (True, False)
        """
        return len(shape) == 2 and self == TensorSpec(self.names, self.transposed, tied=self.tied)

    def join(self, tensors: Sequence[Array]) -> Array:
        """Join the published tensors of a parameter to one, with its padding row.

        A single one stays as it is.

        >>> TensorSpec(("table",), padding_row=0.0).join([np.ones((1, 2))])
        array([[1., 1.],
               [0., 0.]])
        """
        tensor = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        if self.padding_row is None:
            return tensor
        rows = tensor.reshape(tensor.shape[self.leading_ones :])
        return np.concatenate([rows, np.full((1, *rows.shape[1:]), self.padding_row, rows.dtype)])

    def _whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the published tensor of a parameter, without leading axes."""
        whole = (*shape[:-1], self.share.of_outputs(shape[-1]))
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


def map_fused(
    letters: str,
    weight: str,
    bias: str = "",
    transposed: bool = True,
    units: Sequence[int] = (),
    groups: int = 1,
) -> dict[str, TensorSpec]:
    """Map weights and biases, as wq, wk, wv, to parts of one published tensor.

    units   the relative sizes of the parts [all equal]
    groups  the outputs are so many groups, each of which has all parts

    >>> map_fused("qkv", "c_attn.weight")["wk"].share[:3]
    (1, 1, 3)
    >>> map_fused("qkv", "qkv_proj.weight", units=(4, 1, 1))["wv"].share[:3]
    (5, 1, 6)
    """
    sizes = units or (1,) * len(letters)
    shares = {letter: Share(sum(sizes[:at]), sizes[at], sum(sizes), groups) for at, letter in enumerate(letters)}
    specs = {f"w{letter}": TensorSpec((weight,), transposed, share) for letter, share in shares.items()}
    biases = {f"b{letter}": TensorSpec((bias,), share=share) for letter, share in shares.items()}
    return specs | (biases if bias else {})


def name_blocks(names: Mapping[str, str], prefix: str, stored: str = "blk.{n}") -> dict[str, str]:
    """The published names of the tensors of a layer, by their names in a GGUF file.

    >>> name_blocks({"attn_q": "self_attn.q_proj"}, "model.layers.{n}")
    {'blk.{n}.attn_q': 'model.layers.{n}.self_attn.q_proj'}
    """
    return {f"{stored}.{name}": published and f"{prefix}.{published}" for name, published in names.items()}


def norm(name: str, biased: bool = True, offset: float = 0.0) -> dict[str, TensorSpec]:
    """Map gamma and beta of a norm to `weight` and `bias`, or to their old names.

    offset  added to the published weight, as 1 by models that multiply by 1 + weight

    >>> norm("ln_f", biased=False)["gamma"].names
    ('ln_f.weight', 'ln_f.gamma')
    """
    gamma = {"gamma": TensorSpec((f"{name}.weight", f"{name}.gamma"), offset=offset)}
    return gamma | ({"beta": TensorSpec((f"{name}.bias", f"{name}.beta"))} if biased else {})


def embedding_table(*names: str) -> dict[str, TensorSpec]:
    """Map the table of embeddings or positions to the first stored one of some names."""
    return {"table": TensorSpec(names)}


def tied_table(*own: str, to: str) -> dict[str, TensorSpec]:
    """Map a table of embeddings to its own tensor or, tied, to a shared one.

    >>> tied_table("decoder.embed_tokens.weight", to="shared.weight")["table"][:1]
    (('decoder.embed_tokens.weight', 'shared.weight'),)
    """
    return {"table": TensorSpec(own).tied_to(to)}


def tied_head(*own: str, to: str = "") -> dict[str, TensorSpec]:
    """Map the weight of a head to its own tensor or, if it is tied, to a table.

    to  the table of embeddings; "": the head is not tied

    >>> tied_head("lm_head.weight", to="wte.weight")["w"].names, tied_head("lm_head.weight")["w"].names
    (('lm_head.weight', 'wte.weight'), ('lm_head.weight',))
    """
    return {"w": TensorSpec(own, transposed=True).tied_to(to)}


def masked_word_head(words: str, head: str, is_tied: bool) -> dict[str, TensorSpec]:
    """Map the output of a head for masked words, tied to the table of words or not.

    A tied head is published with `bias`. An untied one computes with the bias of its `decoder`; transformers 5 stores
    a `bias` beside it that no computation reads. Older files have one of them.

    >>> [spec.names for spec in masked_word_head("words.weight", "lm_head", False).values()]
    [('lm_head.decoder.weight',), ('lm_head.decoder.bias', 'lm_head.bias')]
    """
    own, shared = f"{head}.decoder.bias", f"{head}.bias"
    bias = TensorSpec((own,)).tied_to(shared) if is_tied else TensorSpec((own, shared))
    return tied_head(f"{head}.decoder.weight", to=words * is_tied) | {"b": bias}


def expand_layers(config: Config, layers: Layers) -> dict[str, dict[str, TensorSpec]]:
    """The specs of every layer, from a family's specs by name or with `{n}`."""
    specs = {}
    for name in config.layer_names():
        stack, number, part = parse_layer_name(name)
        pattern = name if number is None else f"{stack}.{{n}}.{part}"
        expert = int(name.rpartition(".")[2]) if part == "expert" else None
        pattern = pattern.replace(".ffn", ".router") if config.mixture(name) else pattern
        found = layers.get(name, layers.get(pattern, {}))
        specs[name] = {key: spec.with_numbers(number, expert) for key, spec in found.items()}
    return specs
