"""The softmax of given scores step by step, for the tool and for its gradient."""

import warnings
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, UsageError
from attnkit.inputs.intermediates import statistic_axes
from attnkit.inputs.operands import add_query_axis, broadcast_over_heads
from attnkit.model.checks import as_text
from attnkit.model.dtypes import cast, quiet
from attnkit.model.formulas.dense_attention import mask_scores
from attnkit.model.formulas.softmax import shifted as subtract_largest
from attnkit.records import Array, Record, Tensor

STEPS = ("scaled", "masked", "shifted", "exponentials", "sum")


class SoftmaxSteps(NamedTuple):
    """The softmax of scores along an axis.

    axis     from 0; masked: the scores that the softmax reads, -inf if they are masked
    cells    the mask that was applied
    tensors  the steps with their formulas, then x, the weights or their logarithms
    """

    axis: int
    masked: Array
    tensors: dict[str, Tensor]
    cells: Array | None = None


@quiet
def compute_softmax(
    record: Record, *, axis: int, temperature: float, mask: Record | None, log: bool = False
) -> SoftmaxSteps:
    """Compute the softmax of x along an axis, step by step.

    UsageError for an axis that x lacks, DataError for a mask that does not broadcast.
    """
    x, axes = record["x"], record.axes_of("x")
    if not -x.ndim <= axis < x.ndim:
        raise UsageError(f"axis {axis} for x of shape {as_text(x.shape)}", "--axis")
    scaled = cast(x, model.working(x)) / temperature
    cells = find_cells(record, mask)
    masked = scaled if cells is None else mask_scores(scaled, cells)
    shifted = subtract_largest(masked, axis)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=axis, keepdims=True)
    over, scale = statistic_axes(axes, total.shape, x.shape), f"{temperature:g}"
    source, tensors = "x", {}
    if temperature != 1:
        source, tensors["scaled"] = "scaled", Tensor(scaled, axes, formula=f"x / {scale}")
    if cells is not None:
        tensors["masked"] = Tensor(masked, axes, formula=f"{source}, −∞ where it is masked")
        source = "masked"
    tensors["shifted"] = Tensor(shifted, axes, formula=f"{source} − its largest along {axes[axis]}")
    tensors["exponentials"] = Tensor(exponentials, axes, formula="e^shifted")
    tensors["sum"] = Tensor(total, over, formula=f"sum of the exponentials along {axes[axis]}")
    nonzero = np.where(total == 0, 1, total)
    result = (shifted - np.log(nonzero) if log else exponentials / nonzero).astype(model.output_dtype(x), copy=False)
    formula = f"{'log-' * log}softmax of {'x' if temperature == 1 else f'x / {scale}'} along {axes[axis]}"
    return SoftmaxSteps(axis % x.ndim, masked, tensors | {"x": Tensor(result, axes, formula=formula)}, cells)


def find_cells(record: Record, operand: Record | None) -> Array | None:
    """Find the mask of the scores: an operand, or the mask of the record if it fits.

    A mask (batch, query, key) is for all heads. Warn of a mask of the record that is not used.
    """
    if operand is None and "mask" not in record:
        return None
    given, shape = operand or Record({"x": record.tensors["mask"]}), record["x"].shape
    if len(shape) == 4:
        given = Record({"x": add_query_axis(given.tensors["x"], shape[0], *shape[2:])})
    mask = given["x"] if len(shape) != 4 else np.asarray(broadcast_over_heads(given, shape[0]))
    if operand is None and (mask.shape[-1:] != shape[-1:] or mask.shape[-2:-1] not in ((), (1,), shape[-2:-1])):
        problem = f"the mask of the record {as_text(mask.shape)} does not fit x {as_text(shape)}: it is not used"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
        return None
    return mask
