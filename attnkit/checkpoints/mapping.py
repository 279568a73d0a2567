"""The words in which a family says where its parameters lie: published names, and how to repair what they hold.

A family maps the names of layers to {parameter: Published}. In both names `{n}` stands for the number of a
layer, in published ones `{k}` for that number counted from 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from attnkit.model.config import Config, layer_plan, parse_layer_name
from attnkit.model.dtypes import Array


@dataclass(frozen=True)
class TensorSpec:
    """A parameter as a published tensor holds it.

    names     of the tensor; the first that is there counts
    turned    the published axes are (out, in)
    part      (i, count): the i-th of so many equal parts of the outputs
    unfolded  sizes that the last axis is published as
    lead      axes of size 1 before the others
    fill      what one more row at the end holds, that the published tensor lacks
    """

    names: tuple[str, ...]
    turned: bool = False
    part: tuple[int, int] = (0, 1)
    unfolded: tuple[int, ...] = ()
    lead: int = 0
    fill: float | None = None

    def numbered(self, number: int | None) -> "TensorSpec":
        """With the number of a layer in its names."""
        if number is None:
            return self
        names = (name.replace("{n}", str(number)).replace("{k}", str(number + 1)) for name in self.names)
        return replace(self, names=tuple(names))

    def shape(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the published tensor, for a parameter of that shape.

        >>> TensorSpec(("qkv",), turned=True, part=(1, 3)).shape((4, 4))
        (12, 4)
        """
        flat = self._flat(wanted, 0 if self.fill is None else 1)
        return (1,) * self.lead + (flat[:-1] + self.unfolded if self.unfolded else flat)

    def parameter(self, whole: Array, wanted: tuple[int, ...]) -> Array:
        """The parameter of that shape out of the whole tensor, rows added, as a view.

        >>> TensorSpec(("qkv",), part=(1, 3)).parameter(np.arange(6.0).reshape(1, 6), (1, 2))
        array([[2., 3.]])
        """
        flat = whole.reshape(self._flat(wanted))
        number, size = self.part[0], wanted[-1]
        return (flat.T if self.turned else flat)[..., number * size : (number + 1) * size]

    def grown(self, whole: Array) -> Array:
        """The tensor with the row that it lacks."""
        if self.fill is None:
            return whole
        rows = whole.reshape(whole.shape[self.lead :])
        return np.concatenate([rows, np.full((1, *rows.shape[1:]), self.fill, rows.dtype)])

    def _flat(self, wanted: tuple[int, ...], missing: int = 0) -> tuple[int, ...]:
        full = (*wanted[:-1], wanted[-1] * self.part[1])
        full = full[::-1] if self.turned else full
        return (full[0] - missing, *full[1:])


Entries = Mapping[str, TensorSpec]
Layers = Mapping[str, Entries]


def embedding_table(*names: str) -> dict[str, TensorSpec]:
    """A table of embeddings or positions."""
    return {"table": TensorSpec(names)}


def linear(name: str, stem: str, biased: bool = True, turned: bool = True) -> dict[str, TensorSpec]:
    """Weight `w` + name and bias `b` + name of one linear layer, (out, in) unless not turned.

    >>> sorted(linear("q", "attn.query"))
    ['bq', 'wq']
    """
    weight = {f"w{name}": TensorSpec((f"{stem}.weight",), turned=turned)}
    return weight | ({f"b{name}": TensorSpec((f"{stem}.bias",))} if biased else {})


def fused_qkv(weight: str, bias: str = "", turned: bool = True) -> dict[str, TensorSpec]:
    """Queries, keys and values that are published as one."""
    parts = {name: (number, 3) for number, name in enumerate("qkv")}
    weights = {f"w{name}": TensorSpec((weight,), turned, part) for name, part in parts.items()}
    return weights | ({f"b{name}": TensorSpec((bias,), part=part) for name, part in parts.items()} if bias else {})


def norm(stem: str, biased: bool = True) -> dict[str, TensorSpec]:
    """The gain and the shift of a norm, which early files call gamma and beta."""
    gamma = {"gamma": TensorSpec((f"{stem}.weight", f"{stem}.gamma"))}
    return gamma | ({"beta": TensorSpec((f"{stem}.bias", f"{stem}.beta"))} if biased else {})


def tied_head(*names: str) -> dict[str, TensorSpec]:
    """The weight of a head that shares a table of embeddings."""
    return {"w": TensorSpec(names, turned=True)}


def layer_names(config: Config) -> list[str]:
    """The names of all layers of a model, in the order of a forward pass."""
    names = []
    for stack in config.stacks:
        layers = [step.layer for step in layer_plan(config, stack)]
        if config.positions.kind == "t5":
            layers.insert(1, f"{stack}.bias")
        names += layers
    transform = ["head.dense", "head.norm"] if config.transform else []
    return names + ["pooler"] * config.pooler + transform + ["head"] * config.head


def expand_layers(config: Config, layers: Layers) -> dict[str, dict[str, TensorSpec]]:
    """For every layer of a model where its parameters lie."""
    found = {}
    for name in layer_names(config):
        stack, number, part = parse_layer_name(name)
        pattern = name if number is None else f"{stack}.{{n}}.{part}"
        found[name] = {key: entry.numbered(number) for key, entry in layers.get(pattern, {}).items()}
    return found
