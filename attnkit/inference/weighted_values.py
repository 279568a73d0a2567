"""Attention from weights that are given: what attend --weights-from computes, and what its gradient reads again."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import DataError
from attnkit.inference.attention_inputs import split_parameters
from attnkit.model.checks import as_text
from attnkit.model.scores import product
from attnkit.record import Array, Record, Tensor

WEIGHTED = ("v", "weights", "heads")  # the steps from given weights to the output


class WeightedValues(NamedTuple):
    """Values, split into heads, and their sums by given weights.

    value    the tensor that the values come from; projections: of wv, bv, wo, bo what there is
    weights  (..., H, T, S), v (..., H, S, K), heads (..., H, T, K), output (..., T, D)
    """

    value: Array
    projections: Mapping[str, Array]
    weights: Array
    v: Array
    heads: Array
    output: Array

    def describe(self, record: Record) -> dict[str, Tensor]:
        """Describe v, weights, heads and the output x, with their axes and formulas."""
        lead = ("batch", "head")[4 - self.v.ndim :]
        has_value, has_output = "wv" in self.projections, "wo" in self.projections
        is_self = self.output.shape == self.value.shape
        own = record.tensor("x").axes_like(self.output.shape) if is_self and "x" in record else None
        axes = own or ("batch", "query", "model")[3 - self.output.ndim :]
        formula = "heads side by side W_O" if has_output else "heads side by side"
        return {
            "v": Tensor(self.v, (*lead, "key", "head_dim"), formula="x W_V" if has_value else "x"),
            "weights": Tensor(self.weights, (*lead, "query", "key"), formula="as given"),
            "heads": Tensor(self.heads, (*lead, "query", "head_dim"), formula="weights V"),
            "x": Tensor(self.output, axes, formula=formula),
        }


def weigh_values(record: Record, flags: Mapping[str, Any]) -> WeightedValues:
    """Sum values by the weights of --weights-from: those of --value or --memory, else x.

    Weights are (T, S) for all heads, (H, T, S), or (B, T, S) and (B, H, T, S) for a batch of values. DataError where
    their shape does not fit the values.
    """
    source = next((flags[name] for name in ("value", "memory") if flags[name] is not None), record)
    value, weights = source["x"], flags["weights_from"]["x"]
    if value.ndim not in (2, 3) or weights.ndim < 2:
        expected = "values (S, D) or (B, S, D) and weights (T, S), (H, T, S) or (B, H, T, S)"
        raise DataError(f"values {as_text(value.shape)} and weights {as_text(weights.shape)}: expected {expected}")
    params = {} if flags["params"] is None else split_parameters(flags["params"], "scaled-dot")[1]
    projections = {name: one for name, one in params.items() if name in ("wv", "bv", "wo", "bo")}
    v = model.split_heads(model.linear(value, projections.get("wv"), projections.get("bv")), flags["heads"])
    lead = (*value.shape[:-2], flags["heads"])
    shape = (*lead, *weights.shape[-2:])
    if weights.ndim == 3 and value.ndim == 3:
        weights = weights[:, None]
    if weights.ndim > len(shape) or weights.shape[-1] != value.shape[-2] or not broadcasts(weights.shape, shape):
        expected = f"({','.join(map(str, lead))},T,{value.shape[-2]})"
        stated = f"weights {as_text(flags['weights_from']['x'].shape)} for values {as_text(value.shape)}"
        raise DataError(f"{stated} and --heads {flags['heads']}: expected (T,{value.shape[-2]}) or {expected}")
    weights = np.broadcast_to(weights.astype(model.working(v, weights), copy=False), shape)
    heads = product(weights, v)
    output = model.linear(model.merge_heads(heads), projections.get("wo"), projections.get("bo"))
    dtype = model.output_dtype(value)
    return WeightedValues(value, projections, *(one.astype(dtype, copy=False) for one in (weights, v, heads, output)))


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Decide whether an array of a shape broadcasts to a target of at least as many axes.

    >>> broadcasts((1, 3), (2, 4, 3)), broadcasts((5, 3), (2, 4, 3))
    (True, False)
    """
    return all(size in (1, other) for size, other in zip(shape[::-1], target[::-1], strict=False))
