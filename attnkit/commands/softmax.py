"""attnkit softmax: scores to weights that add up to 1."""

from dataclasses import replace
from typing import Annotated

import numpy as np
import typer

from attnkit import callbacks, options
from attnkit.cli.calls import tool
from attnkit.inputs import intermediates
from attnkit.inputs.softmax_stage import STEPS, compute_softmax
from attnkit.records import Record


@tool(
    sections={"Scores": "axis temperature mask log", "Results": "keep steps strict"},
    without=("check_finite",),
    check_finite=lambda parameters: False,  # -inf is a masked score
)
def softmax(
    record: Record,
    *,
    axis: Annotated[int, typer.Option(help="the axis along which weights add up to 1; -1 is the last one")] = -1,
    temperature: Annotated[
        float, typer.Option(click_type=options.ABOVE_0, metavar="T", help="divide the scores by T")
    ] = 1.0,
    mask: Annotated[
        Record | None,
        options.file("tensor", "bool or 0/1: 0 is masked; float: added to the scores [default: the record's mask]"),
    ] = None,
    log: Annotated[bool, typer.Option(help="return the logarithm of the weights, log-softmax")] = False,
    keep: Annotated[tuple[str, ...], options.names("add these steps to the record", (*STEPS, "all"))] = (),
    steps: options.Steps = False,
    strict: Annotated[
        bool, typer.Option(help="stop with an error at a fully masked row, instead of a warning")
    ] = False,
) -> Record:
    """Compute softmax: e^score / Σ e^score along an axis, which adds up to 1.

    x holds scores or logits of any shape. The largest score is subtracted first, which changes no weight and keeps
    e^score finite. −∞ has the weight 0; a row of −∞ alone gets zeros and a warning. --log returns the logarithm, finite
    also where a weight is too small to be a number above 0. With -f json or npz, attend --weights-from takes the result
    as its weights.

    \b
    Example:
      echo '[[3, 2]]' | attnkit softmax --steps
    """
    computed = compute_softmax(record, axis=axis, temperature=temperature, mask=mask, log=log)
    callbacks.current().on_operands(computed)
    intermediates.warn_fully_masked_rows(
        np.isneginf(computed.masked).all(axis=computed.axis) & (record["x"].shape[computed.axis] > 0), strict
    )
    names = STEPS if steps or "all" in keep else keep
    chosen = {name: one for name, one in computed.tensors.items() if name in names or name == "x"}
    if names:
        chosen["x"] = replace(chosen["x"], formula="shifted − ln sum" if log else "exponentials / sum")
    return record.without([name for name in STEPS if name in record]).with_tensors(chosen)
