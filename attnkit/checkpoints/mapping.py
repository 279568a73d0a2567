"""Map published tensor names to parameters, with their transposes and splits.

A family maps the names of layers to {parameter: TensorSpec}. In both names `{n}` is the number of a
layer, from 0; in published ones `{k}` for that number counted from 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from attnkit.model.config import Config, parse_layer_name
from attnkit.model.dtypes import Array


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


def fused_qkv(weight: str, bias: str = "", transposed: bool = True) -> dict[str, TensorSpec]:
    """Map wq, wk, wv (and bq, bk, bv) to the three parts of one published tensor.

    >>> fused_qkv("c_attn.weight")["wk"].split
    (1, 3)
    """
    parts = {letter: (number, 3) for number, letter in enumerate("qkv")}
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
