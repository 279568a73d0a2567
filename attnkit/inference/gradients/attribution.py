"""Attributions: how much the embedding of each token of a text contributes to a number that is computed from them.

input-x-gradient  embedding · gradient, summed over the width (Shrikumar et al. 2016)
integrated:N      embedding · mean of the gradients at N points between zeros and the embedding, the middles of N equal
                  parts, summed over the width (Sundararajan, Taly and Yan 2017, with zeros as the baseline); their sum
                  is the output less that of zeros, but for an error of the order of 1/N² where the gradient is smooth
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from attnkit.model import Array
from attnkit.record import Labels, Record, Tensor

BASELINE = "baseline"  # the name of the output of zeros in a record
Embeddings = Mapping[str, Array]
Evaluate = Callable[[Embeddings], tuple[float, Embeddings]]


class Attribution(NamedTuple):
    """The attributions (..., T) of the embeddings of each name, the output, and that of zeros (None: not computed)."""

    values: dict[str, Array]
    output: float
    baseline: float | None = None


def count_points(method: str) -> int:
    """Return the number of points of integrated gradients, 0 for input-x-gradient.

    >>> count_points("integrated:32"), count_points("input-x-gradient")
    (32, 0)
    """
    return int(method.partition(":")[2] or 0)


def attribute(embeddings: Embeddings, evaluate: Evaluate, points: int) -> Attribution:
    """Return the attributions of embeddings (..., T, D): by integrated gradients, or with 0 points by input × gradient.

    evaluate  embeddings -> the output, and its gradients by the names of the embeddings

    >>> square = lambda x: (float((x["x"] ** 2).sum()), {"x": 2 * x["x"]})
    >>> attribute({"x": np.array([[1.0, 2.0], [3.0, 0.0]])}, square, 0).values["x"]  # the gradient is 2 x
    array([10., 18.])
    >>> attribute({"x": np.array([[1.0, 2.0], [3.0, 0.0]])}, square, 2)  # 1 + 4, 9
    Attribution(values={'x': array([5., 9.])}, output=14.0, baseline=0.0)
    """
    output, gradients = evaluate(embeddings)
    if not points:
        return Attribution(sum_products(embeddings, gradients), output)
    baseline, _ = evaluate({name: np.zeros_like(one) for name, one in embeddings.items()})
    totals = {name: np.zeros(one.shape, np.float64) for name, one in embeddings.items()}
    for point in range(points):
        share = (point + 0.5) / points
        for name, one in evaluate({name: one * np.asarray(share, one.dtype) for name, one in embeddings.items()})[
            1
        ].items():
            totals[name] += one
    return Attribution(sum_products(embeddings, {name: one / points for name, one in totals.items()}), output, baseline)


def sum_products(embeddings: Embeddings, gradients: Embeddings) -> dict[str, Array]:
    """Return the sums over the width of embeddings times gradients: (..., T, D) -> (..., T)."""
    return {
        name: (one.astype(np.float64) * gradients[name]).sum(axis=-1).astype(one.dtype)
        for name, one in embeddings.items()
    }


def attribution_record(
    result: Attribution, names: Mapping[str, tuple[str, str]], labels: Mapping[str, Labels]
) -> Record:
    """Return attributions as a record: x and others, each with the axis of its tokens, `output`, and `baseline` if any.

    names  name of the embeddings -> name of the tensor, and of its last axis
    """
    tensors = {}
    for name, (own, axis) in names.items():
        array = result.values[name]
        tensors[own] = Tensor(array, ("batch",) * (array.ndim - 1) + (axis,))
    dtype = next(iter(result.values.values())).dtype
    tensors["output"] = Tensor(np.asarray(result.output, dtype), ())
    if result.baseline is not None:
        tensors[BASELINE] = Tensor(np.asarray(result.baseline, dtype), ())
    return Record({}).with_tensors(tensors, labels)


def read_and_replace(read: dict[str, Array], replaced: Embeddings) -> Callable[[str], Callable[[Array], Array] | None]:
    """Return a hook that replaces some intermediates, and reads those of the names that `read` has.

    >>> read = {"b": np.zeros(0)}
    >>> hook = read_and_replace(read, {"a": np.ones(1)})
    >>> hook("a")(np.zeros(1)), hook("b")(np.zeros(2)), read["b"].tolist(), hook("c")
    (array([1.]), array([0., 0.]), [0.0, 0.0], None)
    """

    def replace_or_read(name: str, array: Array) -> Array:
        if name in replaced:
            return replaced[name]
        read[name] = array
        return array

    return lambda name: (lambda array: replace_or_read(name, array)) if name in replaced or name in read else None
