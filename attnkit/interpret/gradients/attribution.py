"""Attributions: how much the embedding of each token contributes to a number.

input-x-gradient  embedding · gradient, summed over the width (Shrikumar et al. 2016)
integrated:N      embedding · mean of the gradients at N points between zeros and the embedding, the middles of N equal
                  parts, summed over the width (Sundararajan, Taly and Yan 2017, with zeros as the baseline); their sum
                  is the output less the output of zeros, but for an error of the order of 1/N² if the gradient is
                  smooth
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import UsageError
from attnkit.inputs import layers
from attnkit.interpret.gradients.check import replace_arrays, replace_operand
from attnkit.interpret.gradients.pipeline import INPUT, pipeline_backward, undo_stage
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.texts import encode_nodes
from attnkit.model import Array
from attnkit.model.dtypes import is_float
from attnkit.model.hooks import Hook
from attnkit.records import Labels, Record, Tensor

BASELINE = "baseline"  # the name of the output of zeros in a record
Embeddings = Mapping[str, Array]
Evaluate = Callable[[Embeddings], tuple[float, Embeddings]]


class Attribution(NamedTuple):
    """The attributions (..., T) of embeddings, the output, and the output of zeros."""

    values: dict[str, Array]
    output: float
    baseline: float | None = None


def count_points(method: str) -> int:
    """The number of points of integrated gradients, 0 for input-x-gradient.

    >>> count_points("integrated:32"), count_points("input-x-gradient")
    (32, 0)
    """
    return int(method.partition(":")[2] or 0)


def attribute(embeddings: Embeddings, evaluate: Evaluate, points: int) -> Attribution:
    """Attribute an output to embeddings (..., T, D).

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
        _, gradients = evaluate({name: one * np.asarray(share, one.dtype) for name, one in embeddings.items()})
        for name, one in gradients.items():
            totals[name] += one
    return Attribution(sum_products(embeddings, {name: one / points for name, one in totals.items()}), output, baseline)


def sum_products(embeddings: Embeddings, gradients: Embeddings) -> dict[str, Array]:
    return {
        name: (one.astype(np.float64) * gradients[name]).sum(axis=-1).astype(one.dtype)
        for name, one in embeddings.items()
    }


def attribution_record(
    result: Attribution, names: Mapping[str, tuple[str, str]], labels: Mapping[str, Labels]
) -> Record:
    """The record of attributions: x and others, `output`, and `baseline` if any.

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


def replacing(arrays: Embeddings) -> Hook:
    """A hook that replaces intermediates by other arrays.

    >>> hook = replacing({"a": np.ones(1)})
    >>> hook("a")(np.zeros(1)), hook("b")
    (array([1.]), None)
    """
    return lambda name: (lambda _: arrays[name]) if name in arrays else None


SIDE_OUTPUTS = ("trace", "state_out")  # flags whose files the first run has written
VECTORS = "x"  # the name of the embeddings of a pipeline


class TokenSource(NamedTuple):
    """The stage that embeds tokens, a record of their vectors, and the later stages.

    embedding  the name of the vectors among the intermediates of the stage, if that is encode
    """

    call: StageCall
    source: Record
    rest: list[StageCall]
    embedding: str = ""


def attribute_pipeline(calls: Sequence[StageCall], method: str) -> Record:
    """Attribute the sum of the last x of a pipeline to its tokens: x (..., T).

    The tokens are what encode embeds, else what the first stage embeds, or the vectors that it reads.
    UsageError for a pipeline of several records, or without tokens.
    """
    if any(call.part or call.merges for call in calls):
        raise UsageError("no attributions of several records that a stage merges", "--attribute")
    tokens = find_tokens(calls)

    def evaluate(embeddings: Embeddings) -> tuple[float, dict[str, Array]]:
        if not tokens.embedding:
            output, gradients = run_and_reverse(tokens.rest, replace_arrays(tokens.source, embeddings))
            return output, {VECTORS: gradients.get(VECTORS, np.zeros_like(tokens.source[VECTORS]))}
        call, replaced = tokens.call, {tokens.embedding: embeddings[VECTORS]}
        again = run_call(call, call.item, {"patch": replaced})
        output, outer = run_and_reverse(tokens.rest, again.result)
        into = undo_stage(again, outer, lambda call: encode_nodes(call, replacing(replaced)))
        return output, {VECTORS: into.traced[tokens.embedding].array}

    result = attribute({VECTORS: tokens.source[VECTORS]}, evaluate, count_points(method))
    words = tokens.source.labels_of(VECTORS, -2)
    return attribution_record(result, {VECTORS: ("x", "token")}, {"token": words} if words else {})


def find_tokens(calls: Sequence[StageCall]) -> TokenSource:
    """Find the tokens that a pipeline begins with; UsageError if it reads none."""
    for at, call in enumerate(calls):
        encoded = call.prepared if call.tool == "encode" else None
        if encoded and encoded.steps and encoded.steps[0].op == "embed":  # others read hidden states
            context = layers.context_from(encoded.base, dtype=call.values["dtype"])
            x = model.run(encoded.core, encoded.steps[:1], encoded.inputs, context)
            labels = {"token": encoded.base.labels["token"]} if "token" in encoded.base.labels else {}
            embedded = Record({VECTORS: Tensor(x, ("batch", "token", "model")[3 - x.ndim :])}, labels)
            return TokenSource(call, embedded, renumber(calls[at + 1 :]), encoded.steps[0].layer)
    first, rest = calls[0], calls[1:] if calls[0].tool == "embed" else calls
    source = rest[0].before if rest else first.result
    if VECTORS not in source or source[VECTORS].ndim not in (2, 3) or not is_float(source[VECTORS].dtype):
        raise UsageError(
            "the pipeline reads no tokens: neither text nor vectors of floats x, (T, D) or (B, T, D)", "--attribute"
        )
    return TokenSource(first, source, renumber(rest))


def renumber(calls: Sequence[StageCall]) -> list[StageCall]:
    return [replace(call, number=call.number - calls[0].number + 1) for call in calls]


def run_and_reverse(rest: Sequence[StageCall], record: Record) -> tuple[float, dict[str, Array]]:
    """Run later stages on a record: the sum of the last x, and its gradients."""
    if not rest:
        return float(record[VECTORS].sum(dtype=np.float64)), {VECTORS: np.ones_like(record[VECTORS])}
    again: list[StageCall] = []
    for call in rest:
        item = replace_arrays(call.before, record.arrays())
        again.append(run_call(call, item, {flag: replace_operand(call, flag, item, {}) for flag in call.own}))
        record = again[-1].result
    tensors = pipeline_backward(again).tensors
    gradients = {name.removeprefix(INPUT): one.array for name, one in tensors.items() if name.startswith(INPUT)}
    return float(record[VECTORS].sum(dtype=np.float64)), gradients


def run_call(call: StageCall, item: Any, changed: Mapping[str, Any]) -> StageCall:
    """Run a stage once more, without its warnings and side outputs."""
    values = {**call.values, **changed, **{name: None for name in SIDE_OUTPUTS if name in call.values}}
    return call.run_again(item, values)
