"""attnkit merge: attention over parts of the keys put together."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from attnkit import attending, layers, model, operands, options
from attnkit.errors import DataError, UsageError
from attnkit.tensors.record import Array, Record
from attnkit.tool import Call, Flow, tool


def parts(call: Call, upstream: Flow | None) -> Flow:
    """Feed: the records of all the files, or of standard input, at once."""
    found: list[Record] = []
    formats = []
    for path in call.operands or ("-" if upstream is not None else operands.piped(),):
        flow = call.read(path)
        found += flow.items
        formats.append(flow.format)
        if call.operands and call.source is not None and call.source.digest():
            call.files[call.source.name] = call.source.digest()
    return Flow(formats[0], iter([found]))


@tool(operand="[PART]...", feed=parts)
def merge(
    parts: Sequence[Record],
    *,
    join: Annotated[
        bool, options.switch("x is the output: the heads side by side, times W_O where one is given")
    ] = False,
    params: Annotated[Mapping[str, Array] | None, options.tensors("weights, of which wo and bo are used")] = None,
    model_: Annotated[Any, options.MODEL] = None,
    layer: Annotated[str | None, options.LAYER] = None,
) -> Record:
    """Attention over all keys from attention over parts of them, as attend --partial makes it.

    A part is x, the heads (H, T, V) or (B, H, T, V), and lse, the logarithm of the sum of each query's
    exponentials. The result is the same for the keys of all parts, exact and in any order, and again a part;
    --join makes of it what attend gives. What else the first part carries passes through. Without PART the
    records of standard input are the parts.

    \b
    Example:
      attnkit merge part1.npz part2.npz part3.npz --join -o output.npz
    """
    if not join and (params is not None or model_ is not None):
        raise UsageError("--params and --model go with --join")
    if params is not None and model_ is not None:
        raise UsageError("--params FILE and --model DIR: one or the other")
    if layer is not None and model_ is None:
        raise UsageError("goes with --model DIR", "--layer")
    if not parts:
        raise DataError("nothing to merge: no record")
    for number, part in enumerate(parts, start=1):
        for name in ("x", "lse"):
            if name not in part:
                raise DataError(f"part {number} has no {name}; attend --partial makes x and lse")
        if part["x"].ndim not in (3, 4):
            raise DataError(f"part {number}: x {part['x'].shape} is no heads (H, T, V) or (B, H, T, V)")
    x, lse = model.merge([part["x"] for part in parts], [part["lse"] for part in parts])
    attending.warn_of_blind(np.isneginf(lse))
    lead = ("batch",)[: x.ndim - 3]
    axes = {"x": (*lead, "head", "query", "head_dim"), "lse": (*lead, "head", "query")}
    formulas = {"x": "Σ parts · exp(lse − log Σ exp(lse))", "lse": "log Σ exp(lse)"}
    if not join:
        return parts[0].put({"x": x, "lse": lse}, axes, formulas=formulas)
    weights = params or {}
    if model_ is not None:
        weights = model_.params[layers.chosen(model_, layer, "attend")]
    names = ("heads", "wo", "bo")
    output = model.linear(model.merge_heads(x), weights.get("wo"), weights.get("bo"), names=names)
    formula = "merged heads side by side" + " W_O" * ("wo" in weights) + " + b_O" * ("bo" in weights)
    first = parts[0]
    tokens = first.labels.get("query")
    rest = first.only([name for name in first if name not in ("x", "lse")])
    labels = {"token": tokens} if tokens else {}
    return rest.put({"x": output}, {"x": (*lead, "token", "model")}, labels, {"x": formula})
