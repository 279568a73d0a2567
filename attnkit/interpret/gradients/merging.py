"""The adjoint of merge, and which of several records each stage before it ran for."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnkit import model
from attnkit.errors import UsageError
from attnkit.interpret.gradients.stages import Outer, StageCall, StageGradients
from attnkit.model import Array
from attnkit.model.backward.attention_backward import merge_partial_attention_backward
from attnkit.model.kernels.tiled_attention import merge_partial_attention
from attnkit.model.linear import linear_backward
from attnkit.model.parameters import OUTPUT_PARAMETERS

FILE = -1  # the branch of a record that a stage read from a file of its own


def number_parts(calls: Sequence[StageCall], count: int) -> list[StageCall]:
    """Return the calls of a pipeline of so many stages, with the number of the record that each ran for.

    UsageError where a result was made of several records that no stage merged.
    """
    numbers = [call.number for call in calls]
    merging = next((call.number for call in calls if call.merges), 1)
    length, before = merging - 1, sum(number < merging for number in numbers)
    parts = before // length if length else 0
    if numbers != [*range(1, merging)] * parts + [*range(merging, count + 1)]:
        raise UsageError("the pipeline reads several records for one result, which has no gradients")
    return [
        replace(call, part=at // length + 1 if parts > 1 and at < before else 0, branches=list_branches(call, parts))
        for at, call in enumerate(calls)
    ]


def list_branches(call: StageCall, parts: int) -> tuple[int, ...]:
    """Return for each record that a stage merges the part that made it; UsageError where that is not known."""
    if not call.merges:
        return ()
    count = len(call.item)
    if call.number == 1:  # the records are the input of the pipeline
        return tuple(range(1, count + 1)) if count > 1 else (0,)
    if call.operands and "-" not in call.operands:
        raise call.error("it does not read the stage before; name that as `-` among its parts")
    piped = tuple(range(1, parts + 1)) if parts > 1 else (0,)
    first = call.operands.index("-") if call.operands else 0
    if first and count != parts + len(call.operands) - 1:
        raise call.error("no gradient of files of several parts before `-`; name `-` first")
    return (*[FILE] * first, *piped, *[FILE] * (count - first - parts))


def undo_merge(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of heads and log-sum-exp of every part; with --join, also those of W_O and b_O."""
    outputs, lses = [part["x"] for part in call.item], [part["lse"] for part in call.item]
    dlse = outer.pop("lse", np.zeros(lses[0].shape))
    dx = outer.pop("x", np.zeros(call.result["x"].shape, model.working(outputs[0])))
    if call.values["join"]:
        dx = undo_join(call, dx, merge_partial_attention(outputs, lses)[0], into)
    first, *rest = merge_partial_attention_backward(dx, dlse, outputs, lses)
    for name, gradient in zip(("x", "lse"), first, strict=True):
        into.add_input(name, gradient)
    into.others = [{"x": output, "lse": lse} for output, lse in rest]


def undo_join(call: StageCall, dx: Array, heads: Array, into: StageGradients) -> Array:
    """Return the gradient of merged heads (..., H, T, V), and add those of W_O and b_O of the first part."""
    wo, bo = (call.before.get(name) for name in OUTPUT_PARAMETERS)
    gradients = linear_backward(dx, model.merge_heads(heads), wo, bo)
    for name, gradient in zip(OUTPUT_PARAMETERS, (gradients.weight, gradients.bias), strict=True):
        if gradient is not None:
            into.add_input(name, gradient)
    return model.split_heads(gradients.x, heads.shape[-3])
