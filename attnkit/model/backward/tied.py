"""Tied parameters: one array under several names, perhaps transposed.

As the table of embeddings and the head.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from attnkit.model.dtypes import Array

Name = tuple[str, str]  # a layer, and a parameter of it
Nested = Mapping[str, Mapping[str, Array]]


def tied_parameters(params: Nested) -> list[list[Name]]:
    """Group the names of parameters that share one memory, in order.

    >>> table = np.zeros((3, 2))
    >>> tied_parameters({"decoder.embed": {"table": table}, "head": {"w": table.T, "b": np.zeros(3)}})
    [[('decoder.embed', 'table'), ('head', 'w')]]
    """
    groups = defaultdict(list)
    for layer, names in params.items():
        for name, array in names.items():
            groups[array.__array_interface__["data"][0], array.size, array.ndim].append((layer, name))
    return [group for group in groups.values() if len(group) > 1 and params[group[0][0]][group[0][1]].size]


def cast_parameters(params: Nested, dtype: DTypeLike) -> dict[str, dict[str, Array]]:
    """Copy parameters in a dtype; tied parameters share one memory in the copy too.

    >>> table = np.ones((3, 2), np.float32)
    >>> copy = cast_parameters({"decoder.embed": {"table": table}, "head": {"w": table.T}}, np.float64)
    >>> copy["decoder.embed"]["table"][0, 1] = 5
    >>> copy["head"]["w"].tolist(), table.max()
    ([[1.0, 1.0, 1.0], [5.0, 1.0, 1.0]], np.float32(1.0))
    """
    tied = {name: group[0] for group in tied_parameters(params) for name in group[1:]}
    copies: dict[str, dict[str, Array]] = {}
    for layer, names in params.items():
        copies[layer] = {}
        for name, array in names.items():
            first = tied.get((layer, name))
            copies[layer][name] = (
                np.array(array, dtype, order="C")
                if first is None
                else _turned(copies[first[0]][first[1]], array, params[first[0]][first[1]])
            )
    return copies


def sum_tied(gradients: Nested, params: Nested) -> dict[str, dict[str, Array]]:
    """Sum the gradients of tied parameters; transposed ones are transposed back.

    >>> table, gradient = np.zeros((2, 1)), np.array([[1.0], [2.0]])
    >>> params = {"decoder.embed": {"table": table}, "head": {"w": table.T}}
    >>> sums = sum_tied({"decoder.embed": {"table": gradient}, "head": {"w": 10 * gradient.T}}, params)
    >>> sums["decoder.embed"]["table"].tolist(), sums["head"]["w"].tolist()
    ([[11.0], [22.0]], [[11.0, 22.0]])
    """
    sums = {layer: dict(names) for layer, names in gradients.items()}
    for group in tied_parameters({layer: params[layer] for layer in gradients}):
        present = [(layer, name) for layer, name in group if name in sums[layer]]
        views = {(layer, name): params[layer][name] for layer, name in present}
        first = views[present[0]] if present else None
        parts = [_turned(sums[layer][name], views[layer, name], first) for layer, name in present]
        total = reduce(np.add, parts) if parts else None
        for layer, name in present:
            sums[layer][name] = _turned(total, views[layer, name], first)
    return sums


def _turned(gradient: Any, view: Array, first: Array | None) -> Any:
    """Transpose a gradient if its view is transposed against the first view."""
    is_same = first is None or (view.shape, view.strides) == (first.shape, first.strides)
    return gradient if is_same else gradient.T
