"""The inputs of a case, drawn from a seed."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, find_shape
from attnkit.model.dtypes import rounded


class Drawn(NamedTuple):
    """A case with its inputs.

    sizes  of its axes, lead those of its leading axes
    given  its arrays and numbers by argument
    axes   those that some argument has
    """

    case: Case
    sizes: Mapping[str, int]
    lead: tuple[int, ...]
    given: Mapping[str, Any]
    axes: Collection[str]

    def describe(self) -> str:
        """The sizes of the inputs: "2×3 T5 S7 K4"."""
        lead = "×".join(map(str, self.lead))
        sizes = [f"{axis}{size}" for axis, size in self.sizes.items() if axis in self.axes]
        return " ".join([*[lead] * bool(lead), *sizes])


def draw_case(definition: Definition, case: Case, seed: int, dtype: str) -> Drawn:
    """Draw the inputs of a case, each argument from a generator of its own.

    Numbers are rounded to the dtype, so that every implementation reads the same numbers. A generator is Philox with
    the seed, the number of the argument and the number of the case.
    """
    sizes = {**definition.sizes, **case.sizes}
    number = [one.name for one in definition.cases].index(case.name)
    given: dict[str, Any] = {}
    for at, (name, argument) in enumerate(definition.arguments.items()):
        generator = np.random.Generator(np.random.Philox(key=[seed, number << 32 | at]))
        if argument.joins:
            parts = [given[one] for one in argument.joins.split() if one in given]
            given |= {name: np.concatenate(parts, -1)} if parts else {}
            continue
        value = case.given.get(name, definition.defaults.get(name))
        if callable(value):
            value = value(given, generator)
        elif value is None and argument.axes and (name not in find_optional(definition) or name in case.needs):
            value = draw_array(argument, sizes, case.lead, generator)
        if value is not None:
            is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
            given[name] = rounded(value, dtype) if is_float else value
    axes = {axis for one in definition.arguments.values() for axis in one.axes.split()}
    return Drawn(case, sizes, case.lead, given, axes)


def draw_array(
    argument: Argument, sizes: Mapping[str, int], lead: tuple[int, ...], generator: np.random.Generator
) -> Any:
    """Draw normal numbers, ids below a size, or a mask with a key for every query.

    Weights (I, O) are divided by √I, so that no softmax saturates.
    """
    shape = find_shape(argument.axes, sizes, lead)
    kind, _, size = argument.draw.partition(" ")
    if kind == "ids":
        return generator.integers(0, sizes[size], shape)
    if kind == "mask":
        mask = generator.random(shape) < 0.6
        mask[..., 0] |= ~mask.any(axis=-1)
        return mask
    is_weight = argument.role == "parameter" and len(shape) == 2 and kind == "normal"
    return generator.standard_normal(shape) / (math.sqrt(shape[0]) if is_weight else 1)


def find_optional(definition: Definition) -> set[str]:
    """The arguments that some cases have and others lack."""
    return {name for case in definition.cases for name in case.needs}
