"""attnkit merge: combine attention that was computed over parts of the keys."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import typer

from attnkit import model
from attnkit.cli import operands
from attnkit.cli.calls import tool
from attnkit.cli.stage import Stage
from attnkit.cli.tool import Records
from attnkit.errors import DataError
from attnkit.inputs import intermediates
from attnkit.model.kernels.tiled_attention import merge_partial_attention
from attnkit.model.parameters import OUTPUT_PARAMETERS
from attnkit.records import Array, Record, Tensor, join_names, shared_labels


def read_parts(stage: Stage, upstream: Records | None) -> Records:
    records: list[Record] = []
    formats = []
    for path in stage.operands or ("-" if upstream is not None else operands.stdin_or_error(),):
        flow = stage.read(path)
        for part in flow.items:
            if stage.operands and (problem := find_problem(part, records[0] if records else part)):
                raise DataError(problem, path)
            records.append(part)
        formats.append(flow.format)
        if stage.operands:
            stage.files.add_digest(stage.files.source)
    return Records(formats[0], iter([records]))


@tool(operand="[PART]...", reader=read_parts)
def merge(
    parts: Sequence[Record],
    *,
    join: Annotated[
        bool, typer.Option(help="return the attention output: the heads side by side, times W_O if the parts have it")
    ] = False,
) -> Record:
    """Merge results of attend --partial into attention over all keys.

    A part contains x, the heads (H, T, V) or (B, H, T, V), and lse, the log-sum-exp of each query's scores. The result
    is exact, does not depend on the order of the parts, and is itself a part. --join returns the attention output:
    the heads side by side, times W_O plus b_O if the parts have them. Other tensors that are equal in all parts are
    kept; tensors that differ, such as weights, mask or ids, are removed. Without PART, the records of standard
    input are the parts.

    \b
    Example:
      attnkit merge part1.npz part2.npz part3.npz --join -o output.npz
    """
    if not parts:
        raise DataError("nothing to merge: no record")
    for number, part in enumerate(parts, start=1):
        if problem := find_problem(part, parts[0]):
            raise DataError(f"part {number}: {problem}")
    x, lse = merge_partial_attention([part["x"] for part in parts], [part["lse"] for part in parts])
    lead = ("batch",)[: x.ndim - 3]
    merged = select_common(parts).with_tensors(
        {
            "x": Tensor(x, (*lead, "head", "query", "head_dim"), formula="Σ parts · exp(lse − log Σ exp(lse))"),
            "lse": Tensor(lse, (*lead, "head", "query"), formula="log Σ exp(lse)"),
        }
    )
    return join_heads(merged, *(parts[0].get(name) for name in OUTPUT_PARAMETERS)) if join else merged


def join_heads(merged: Record, wo: Array | None, bo: Array | None) -> Record:
    """Join heads (…, H, T, V) to the output (…, T, H·V), times W_O, plus b_O."""
    x = merged["x"]
    intermediates.warn_fully_masked_rows(np.isneginf(merged["lse"]))
    output = model.linear(model.merge_heads(x), wo, bo, names=("heads", "wo", "bo"))
    formula = "merged heads side by side" + " W_O" * (wo is not None) + " + b_O" * (bo is not None)
    axes = (*("batch",)[: x.ndim - 3], "token", "model")
    tokens = merged.labels.get("query")
    rest = merged.without(("lse", *OUTPUT_PARAMETERS))
    return rest.with_tensors({"x": Tensor(output, axes, formula=formula)}, {"token": tokens} if tokens else {})


def select_common(parts: Sequence[Record]) -> Record:
    """The first part with only what all parts share, and with x, lse, W_O and b_O.

    >>> parts = [Record({"x": np.zeros(1), "ids": np.array([n])}) for n in range(2)]
    >>> list(select_common(parts)), list(select_common(parts[:1]))
    (['x'], ['x', 'ids'])
    """
    first, rest = parts[0], parts[1:]
    if not rest:
        return first
    dropped = set(intermediates.intermediates_in(first)) - {"q", "lse"}
    dropped |= {
        name for name in ("mask", "bias") if name in first and first[name].shape[-1:] != first["x"].shape[-2:-1]
    }
    for name in [name for name in first if name not in ("x", "lse", *OUTPUT_PARAMETERS)]:
        if not all(name in part and is_identical(part[name], first[name]) for part in rest):
            dropped.add(name)
    common = first.without(dropped)
    labels = {
        axis: names
        for axis, names in common.labels.items()
        if all(part.labels.get(axis) in (None, names) for part in rest)
    }
    return replace(common, labels=labels)


def is_identical(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def find_problem(part: Record, first: Record) -> str:
    """Why a part cannot be merged with the first, "" if it can.

    It lacks heads or log-sum-exps, or they are of other queries, or its W_O or b_O differs.
    """
    for tensor in ("x", "lse"):
        if tensor not in part:
            return f"no {tensor}; attend --partial makes x and lse"
    shape = part["x"].shape
    if len(shape) not in (3, 4) or part["lse"].shape != shape[:-1]:
        return f"x {shape} and lse {part['lse'].shape} (expected (…, H, T, V) and (…, H, T))"
    if shape != first["x"].shape:
        return f"x {shape}, but {first['x'].shape} in part 1"
    ours, others = part.labels.get("query"), first.labels.get("query")
    if ours and others and ours != others:
        return f"queries {join_names(shared_labels(ours), 3)}, but {join_names(shared_labels(others), 3)} in part 1"
    for name in OUTPUT_PARAMETERS:
        if name in part and name in first and not is_identical(part[name], first[name]):
            return f"{name} differs from part 1"
    return ""
