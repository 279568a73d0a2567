"""Ways to look at a record: a table a tensor, heat maps, statistics, a list."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from attnkit import display
from attnkit.cli import options
from attnkit.cli.output_format import DISPLAY_FORMATS, default_format
from attnkit.cli.stage import Stage
from attnkit.errors import UsageError, flag_name
from attnkit.inference.operands import CheckpointRecord
from attnkit.record import Labels, Record

VIEW_FLAGS = {
    "heatmap": options.switch("a heat map, one map for each leading index"),
    "heads": options.switch("heat maps of all heads side by side"),
    "stats": options.switch("minimum, maximum, mean, spread, zeros and non-finite numbers of every tensor"),
    "list": options.switch("the names, shapes and dtypes of all tensors"),
}
VIEWS = tuple(VIEW_FLAGS)  # they are mutually exclusive
ALL = slice(None)
MANY = 8  # tensors without an x that are shown one by one: those of a layer


def render_tables(record: Record, call: Stage, how: display.Style) -> str:
    """A table for each tensor that the tool made, or for x where it made none."""
    made = [name for name in record.formulas if name in record] or [name for name in ["x"] if name in record]
    return "\n\n".join(render_tensor(record, name, how) for name in made or record.tensors)


def render_tensor(
    record: Record, name: str, how: display.Style, draw: Callable[..., str] = display.tensor_table, part: str = ""
) -> str:
    """One tensor of a record, or what is left of it after a slice, as a table or a heat map, masked cells as masked."""
    array, axes = record[name], record.axes_of(name)
    labels = [record.labels_of(name, dimension) for dimension in range(array.ndim)]
    title = f"{name}[{part}]" if part else name
    mask = unmasked_cells(record, name)
    return draw(display.TensorView(title, array, axes, labels, how, record.formulas.get(name, ""), mask))


def unmasked_cells(record: Record, name: str) -> Any:
    """Which scores and weights over queries are not masked: a masked score is -inf, and its weight nothing at all.

    name  of a tool's result, or of an intermediate in a trace: weights, decoder.0.self.weights
    """
    layer, _, kind = name.rpartition(".")
    if kind not in ("masked", "weights") or "query" not in record.axes_of(name):
        return None
    if kind == "weights" and record[name].dtype == np.float16:  # where a small weight is zero too
        masked = record.tensors.get(f"{layer}.masked" if layer else "masked")
        return None if masked is None or masked.shape != record[name].shape else masked != -np.inf
    return record[name] != (-np.inf if kind == "masked" else 0)


def asked_for(call: Stage) -> list[str]:
    """Return the view that a flag requests, as a list of at most one name."""
    return [name for name in VIEW_FLAGS if call.extra.get(name)]


def derived(call: Stage) -> Callable[[Record], Record | str] | None:
    """What makes of a record the data that a way of looking is, where data are asked for; None: nothing.

    UsageError for a way of looking that the format does not hold.
    """
    asked = asked_for(call)
    arriving = call.arrived or (call.upstream.format if call.upstream else None)
    if not asked or (chosen := call.asked() or arriving or default_format()) in DISPLAY_FORMATS:
        return None
    if asked == ["stats"]:
        return statistics
    if asked == ["list"] and chosen == "json":
        return described
    held = "json, table, svg or html" if asked == ["list"] else "table, svg or html"
    raise UsageError(f"{chosen} does not hold what it shows (expected {held})", flag_name(asked[0]))


def statistics(record: Record) -> Record:
    """The statistics of every tensor: vectors along the names, min, max, mean, std, zeros, nan and inf.

    Those of the values are NaN where a tensor has no finite value.

    >>> record = statistics(Record({"x": np.array([1.0, 3.0])}))
    >>> record["mean"], record["zeros"], record.labels
    (array([2.]), array([0]), {'name': ['x']})
    """
    figures = [display.compute_statistics(array) for array in record.tensors.values()]
    values = np.array([numbers or [np.nan] * 4 for numbers, _ in figures], np.float64).reshape(-1, 4)
    counts = np.array([numbers for _, numbers in figures], np.int64).reshape(-1, 3)
    columns = [*values.T, *counts.T]
    names = ("min", "max", "mean", "std", "zeros", "nan", "inf")
    tensors = {name: column.copy() for name, column in zip(names, columns, strict=True)}
    return Record(tensors, dict.fromkeys(names, ("name",)), {"name": list(record.tensors)}, record.history)


def described(record: Record) -> str:
    """The dtype, shape and axes of every tensor as JSON: a record as it is written, without data.

    >>> described(Record({"x": np.zeros((2, 3))}))
    '{"tensors":{"x":{"dtype":"float64","shape":[2,3],"axes":["token","model"]}}}'
    """
    facts = {
        name: {"dtype": array.dtype.name, "shape": array.shape, "axes": record.axes_of(name)}
        for name, array in record.tensors.items()
    }
    return json.dumps({"tensors": facts}, ensure_ascii=False, separators=(",", ":"))


def render(record: Record, call: Stage, look: display.Style) -> str:
    """The record as the flags ask: one way of looking at its tensors, x first."""
    asked = asked_for(call)
    if "stats" in asked:
        return display.statistics_table(record.tensors, look)
    if "list" in asked:
        return listing(record, look)
    chosen = call.parameters.get("name") or call.extra.get("name")
    names = ("x",) if "x" in record and not chosen else tuple(record.tensors)
    cut = (call.parameters.get("slice") or call.extra.get("slice") or "").replace(" ", "")
    if not (asked or chosen or cut) and len(names) > MANY:
        one = (
            f"{call.operands[0] if call.operands else 'FILE'}{'.' if isinstance(record, CheckpointRecord) else ':'}NAME"
        )
        return listing(record, look, last=f"attnkit show {one} shows one of them, --name NAME,NAME several")
    if asked:
        draw = display.heatmap if "heatmap" in asked else display.heatmap_grid
        return "\n\n".join(render_tensor(record, name, look, draw, cut) for name in names)
    tables = [render_tensor(record, name, look, part=cut) for name in names]
    if len(record.tensors) > len(names):
        tables.append(listing(record, look))
    return "\n\n".join(tables)


def listing(record: Record, look: display.Style, last: str = "") -> str:
    """Every tensor of a record in a line; with a last line also its extremes."""
    return display.tensor_list(
        {name: (record[name], record.axes_of(name)) for name in record.tensors}, look, footer=last
    )


def sliceable(text: str) -> str:
    """A slice as it was written, once it is known to be one."""
    slices(text)
    return text


def slices(text: str) -> tuple[slice | int, ...]:
    """A slice as NumPy writes it.

    >>> slices("0,:,2:5")
    (0, slice(None, None, None), slice(2, 5, None))
    """
    found: list[slice | int] = []
    for part in text.split(","):
        if re.fullmatch(r"\s*-?[0-9]+\s*", part, re.ASCII):
            found.append(int(part))
        elif re.fullmatch(r"\s*(-?[0-9]+)?\s*:\s*(-?[0-9]+)?\s*(:\s*(-?[1-9][0-9]*)?\s*)?", part, re.ASCII):
            found.append(slice(*(int(bound) if bound.strip() else None for bound in part.split(":"))))
        else:
            raise ValueError("a slice such as 0,:,2:5")
    return tuple(found)


NAME = options.names("just these tensors")
SLICE = options.Flag("nothing but a part of x, or of the one tensor named, as in NumPy: 0,:,2:5", "SLICE", sliceable)


def select(record: Record, names: tuple[str, ...], part: str) -> Record:
    """A record of just these tensors, or of just a part of one: of x, where several are there and none is named."""
    if part:
        if len(names) > 1:
            raise UsageError("one tensor is sliced at a time", "--slice")
        [name] = names or (["x"] if len(record) > 1 else record.tensors) or ["x"]
        return sliced(record, name, slices(part))
    return record.only(names) if names else record


def sliced(record: Record, name: str, index: tuple[Any, ...]) -> Record:
    """A record of just this part of one tensor, with the axes and labels that are left; UsageError for one outside."""
    tensor, axes = record[name], record.axes_of(name)
    if len(index) > tensor.ndim:
        raise UsageError(f"{len(index)} indices for {name} of shape {tensor.shape}", "--slice")
    for dimension, at in enumerate(index):
        if isinstance(at, int) and not -tensor.shape[dimension] <= at < tensor.shape[dimension]:
            raise UsageError(
                f"index {at} is outside axis {axes[dimension]} of size {tensor.shape[dimension]}", "--slice"
            )
    whole = index + (ALL,) * (tensor.ndim - len(index))
    labels: dict[str, Labels] = {}
    for dimension, at in enumerate(whole):
        found = record.labels_of(name, dimension)
        if found is not None and not isinstance(at, int):
            labels[axes[dimension]] = part_of(found, axes, whole, at)
    kept = tuple(axis for axis, at in zip(axes, whole, strict=True) if not isinstance(at, int))
    return Record({name: tensor[whole]}, {name: kept}, labels, record.history)


def part_of(labels: Labels, axes: tuple[str, ...], index: tuple[Any, ...], at: Any) -> Labels:
    """The labels of a sliced axis; those of a batch follow the slice of the batch."""
    if not labels or isinstance(labels[0], str):
        return labels[at]
    rows: Any = labels[index[axes.index("batch")]] if "batch" in axes else labels
    return rows[at] if rows and isinstance(rows[0], str) else [row[at] for row in rows]
