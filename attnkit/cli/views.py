"""Views of a record: tables, heat maps, statistics, a list, and cells for CSV."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from attnkit import display, options
from attnkit.cli.options import complete_tensor_names
from attnkit.cli.output_format import CELL_FORMATS, DISPLAY_FORMATS, DISPLAYED, default_format
from attnkit.cli.stage import Stage
from attnkit.display.blocks import Only, TensorList
from attnkit.display.cells import Cells, format_cells, tensor_cells
from attnkit.display.colors import COLOR_MAPS
from attnkit.display.record_views import computed_names, known_axes, tensor_view
from attnkit.errors import UsageError, flag_name
from attnkit.formats.streams import name_errors
from attnkit.interpret.slices import ALL, Index, Place, check_bound, fill_index, parse_slice
from attnkit.records import (
    Array,
    Labels,
    Record,
    Tensor,
    find_name,
    index_axes,
    join_names,
    shared_labels,
)


def parse_range(value: Any) -> tuple[float, float] | Literal["each"]:
    """Parse the range of a figure: two numbers, the lower one first, or `each`.

    >>> parse_range("0,1"), parse_range("each")
    ((0.0, 1.0), 'each')
    """
    if value == "each":
        return "each"
    try:
        low, high = map(float, options.split_numbers(value))
        if -math.inf < low < high < math.inf:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError("LOW,HIGH with LOW below HIGH, or each")


class ViewOptions(NamedTuple):
    """The views of a record, which are mutually exclusive."""

    heatmap: Annotated[bool, typer.Option(help="draw a heat map for each leading index")] = False
    heads: Annotated[bool, typer.Option(help="draw heat maps of all heads side by side")] = False
    stats: Annotated[
        bool,
        typer.Option(
            help="minimum, maximum, mean, standard deviation, and counts of zeros, NaN and infinity, of every tensor"
        ),
    ] = False
    list: Annotated[bool, typer.Option(help="list the names, shapes and dtypes of all tensors")] = False
    curves: Annotated[
        bool, typer.Option(help="draw curves: one per column, over the rows (such as positions), or one per head")
    ] = False


class LookOptions(NamedTuple):
    """How the heat maps of a figure look."""

    numbers: Annotated[
        bool, typer.Option(help="print the numbers in the cells of a heat-map figure [default: if they fit]")
    ] = False
    no_numbers: Annotated[bool, typer.Option(help="print no numbers in the cells of a heat-map figure")] = False
    range: Annotated[
        tuple[float, float] | Literal["each"] | None,
        typer.Option(
            parser=parse_range,
            metavar="LOW,HIGH|each",
            help="lowest and highest value of the colours or curves of a figure; each: a range of its own for each map "
            "[default: one range for all maps]",
        ),
    ] = None
    cmap: Annotated[
        str | None,
        options.choice(
            tuple(COLOR_MAPS), "colour map of a figure [default: bwr if values have both signs, otherwise viridis]"
        ),
    ] = None


VIEWS: tuple[str, ...] = ViewOptions._fields
MANY = 8  # most tensors, without an x, that are shown one by one: those of a layer


def view_of(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """What is shown of a result of a stage."""
    record = display.with_plain_tokens(record) if style.plain_tokens else record
    return stage.tool.view(record, stage, style) if stage.tool.view else display.computed_view(record, style)


def are_losses(record: Record) -> bool:
    """Decide whether a record holds the losses of a training run: x (step, curve)."""
    return "x" in record and record.axes_of("x") == ("step", "curve")


def requested_view(stage: Stage) -> str:
    """The view that a flag requests, "" for none."""
    return next((name for name, is_requested in stage.collect(ViewOptions)._asdict().items() if is_requested), "")


def view_verdict(report: "display.ComparisonReport", stage: Stage, style: "display.Style") -> "display.ResultView":
    """View the report of a comparison; nothing for --quiet."""
    is_quiet = stage.common.get("quiet") and stage.common.get("output") in (None, "-")
    if is_quiet and stage.format.requested() in (None, "table"):
        return display.ResultView([])  # the exit code is the result
    return report.view(style)


def derived(stage: Stage) -> Callable[[Record], Record | str] | None:
    """The function from a record to the data of the requested view, or None.

    UsageError for a view that the format cannot hold.
    """
    view = requested_view(stage)
    arriving = stage.input_format or (stage.upstream.format if stage.upstream else None)
    if not view or (chosen := stage.format.requested() or arriving or default_format()) in DISPLAY_FORMATS:
        return None
    if view == "stats":
        return statistics_record
    if view == "list" and chosen == "json":
        return describe_json
    held = ("json, " if view == "list" else "") + DISPLAYED
    raise UsageError(f"{chosen} cannot hold what it shows (expected {held})", flag_name(view))


def statistics_record(record: Record) -> Record:
    """Compute the statistics of every tensor, vectors over their names.

    The first four are NaN where a tensor has no finite value.

    >>> record = statistics_record(Record({"x": np.array([1.0, 3.0])}))
    >>> record["mean"], record["zeros"], record.labels
    (array([2.]), array([0]), {'name': ['x']})
    """
    figures = [display.compute_statistics(array) for array in record.arrays().values()]
    values = np.array([numbers or [np.nan] * 4 for numbers, _ in figures], np.float64).reshape(-1, 4)
    counts = np.array([numbers for _, numbers in figures], np.int64).reshape(-1, 3)
    columns = [*values.T, *counts.T]
    names = ("min", "max", "mean", "std", "zeros", "nan", "inf")
    tensors = {name: Tensor(column.copy(), ("name",)) for name, column in zip(names, columns, strict=True)}
    return Record(tensors, {"name": list(record)}, record.history)


def describe_json(record: Record) -> str:
    """Describe the dtype, shape and axes of every tensor in JSON, without data.

    >>> describe_json(Record({"x": np.zeros((2, 3))}))
    '{"tensors":{"x":{"dtype":"float64","shape":[2,3],"axes":["token","model"]}}}'
    """
    facts = {
        name: {"dtype": one.array.dtype.name, "shape": one.shape, "axes": known_axes(record, name)}
        for name, one in record.tensors.items()
    }
    return json.dumps({"tensors": facts}, ensure_ascii=False, separators=(",", ":"))


def selected_view(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View a record as the flags of show or peek request."""
    return display.ResultView(selected_blocks(record, stage, style), lambda: view_cells(record, stage))


def selected_blocks(record: Record, stage: Stage, style: display.Style) -> list[display.Block]:
    view, named = requested_view(stage), named_axes(record)
    if view == "stats":
        return [display.Statistics(record.arrays())]
    names, part = viewed_names(record, stage), slice_of(stage)
    if view == "list":
        return [display.TensorList(named)]
    if not names:
        return [display.TensorList(named, name_hint(record, stage)) if named else Only("figure", TensorList(named))]
    tensors = [tensor_view(record, name, style, part) for name in names]
    if view == "curves":
        maps = [Only("terminal", display.Map(one, is_grid=True)) for one in tensors]
        return [*maps, *(Only("figure", display.Curves(one)) for one in tensors)]
    if view:
        return [display.Map(one, is_grid=view == "heads") for one in tensors]
    others = [name for name in record if name not in names]
    note = display.Note(f"not shown: {join_names(others)}", is_dim=True)
    return [*tensors, *[Only("terminal", note)] * bool(others)]


def viewed_names(record: Record, stage: Stage) -> tuple[str, ...]:
    """The tensors that a view draws one by one; none if they are many and unnamed."""
    chosen, part = view_flag(stage, "name"), slice_of(stage)
    names = ("x",) if "x" in record and not chosen else tuple(record)
    return () if not (requested_view(stage) or chosen or part) and len(names) > MANY else names


def slice_of(stage: Stage) -> str:
    """The slice that a view draws, "" for the whole tensor."""
    return (view_flag(stage, "slice") or "").replace(" ", "")


def view_flag(stage: Stage, name: str) -> Any:
    """The value of a flag of views, a parameter of some tools."""
    return stage.parameters.get(name) or stage.extra.get(name)


def name_hint(record: Record, stage: Stage) -> str:
    """The line that states how to show single tensors of a record."""
    file = stage.operands[0] if stage.operands else "FILE"
    separator = "." if hasattr(record, "checkpoint") else ":"
    return f"attnkit show {file}{separator}NAME shows one of them, --name NAME,NAME several"


def named_axes(record: Record) -> dict[str, tuple[Array, tuple[str, ...]]]:
    """Every array of a record with the names of its axes."""
    return {name: (one.array, known_axes(record, name)) for name, one in record.tensors.items()}


def check_slice(text: str) -> str:
    """Check that a text is a slice, and return the text."""
    parse_slice(text)
    return text


def place_index(record: Record, name: str, index: tuple[Index, ...], flag: str = "--slice") -> tuple[Place, ...]:
    """An index of all dimensions of a tensor; UsageError for one outside."""
    axes, shape = known_axes(record, name), record[name].shape
    with name_errors(flag):
        placed = fill_index(index, axes, lambda at: record.labels_of(name, at), name, shape)
        for part, axis, size in zip(placed, axes, shape, strict=True):
            check_bound(part, axis, size)
    return placed


Name = Annotated[
    tuple[str, ...],
    typer.Option(
        parser=options.NameList(),
        metavar="NAMES",
        help="show only these tensors (comma-separated names or shell patterns: *.weights)",
        autocompletion=complete_tensor_names,
    ),
]
Slice = Annotated[
    str,
    typer.Option(
        parser=check_slice,
        metavar="SLICE",
        help="slice x, or the tensor of --name, as in NumPy: 0,:,2:5 or ...,0 or [1,8],:; a label is also an index: "
        "The,:, and cat#2 the second of several",
    ),
]


def select(record: Record, names: tuple[str, ...], part: str) -> Record:
    """Select tensors of a record, or a slice of one, of x if none is named."""
    if part:
        if len(names) > 1:
            raise UsageError("slices a single tensor", "--slice")
        [name] = names or (["x"] if len(record) > 1 else record) or ["x"]
        return slice_tensor(record, find_name(name, record.tensors), parse_slice(part))
    return record.select(names) if names else record


def slice_tensor(record: Record, name: str, index: tuple[Index, ...]) -> Record:
    """A record of a slice of one tensor; UsageError for an index outside."""
    tensor, axes = record[name], known_axes(record, name)
    whole = place_index(record, name, index)
    labels: dict[str, Labels] = {}
    for dimension, at in enumerate(whole):
        axis_labels = record.labels_of(name, dimension)
        if axis_labels is not None and not isinstance(at, int):
            labels[axes[dimension]] = slice_labels(axis_labels, axes, whole, at)
    for axis in index_axes(name):  # the words that its values are indices of
        if axis in record.labels and axis not in labels:
            words, batch = record.labels[axis], whole[axes.index("batch")] if "batch" in axes else ALL
            labels[axis] = words if shared_labels(words) else pick_labels(words, batch)
    remaining = tuple(axis for axis, at in zip(axes, whole, strict=True) if not isinstance(at, int))
    return Record({name: Tensor(take_cells(tensor, whole), remaining)}, labels, record.history)


def take_cells(array: Array, index: tuple[Place, ...]) -> Array:
    """The cells of an array by an index of every axis, each along its own axis.

    >>> take_cells(np.arange(9).reshape(3, 3), ([2, 0], slice(1, None)))
    array([[7, 8],
           [1, 2]])
    """
    cells: Array = array[tuple(ALL if isinstance(at, list) else at for at in index)]
    remaining = [at for at in index if not isinstance(at, int)]
    for axis, at in enumerate(remaining):
        cells = cells.take(at, axis) if isinstance(at, list) else cells
    return cells


def slice_labels(labels: Labels, axes: tuple[str, ...], index: tuple[Any, ...], at: Any) -> Labels:
    """Slice the labels of an axis, and those of each text by the batch's slice."""
    if not labels or isinstance(labels[0], str):
        own: Labels = pick_labels(labels, at)
        return own
    rows: Any = pick_labels(labels, index[axes.index("batch")]) if "batch" in axes else labels
    cut: Labels = pick_labels(rows, at) if rows and isinstance(rows[0], str) else [pick_labels(row, at) for row in rows]
    return cut


def pick_labels(labels: Any, at: Place) -> Any:
    """The label at a number, or the labels of a range or a list of numbers."""
    return [labels[one] for one in at] if isinstance(at, list) else labels[at]


def encode_cells(stage: Stage, record: Record, format: str) -> bytes:
    """A record as a table: the one of its tool, else the one tensor that it shows."""
    last = stage.extra.get("last", stage)  # of `run` the last stage
    style = display.DEFAULT_STYLE._replace(plain_tokens=last.common.get("tokens") == "plain")
    view = view_of(record, last, style)
    cells = view.cells() if view.cells else computed_cells(record, last)
    if cells is None:
        problem = f"{format} does not hold what it shows (expected {DISPLAYED})"
        raise UsageError(problem, flag_name(requested_view(last)))
    return format_cells(cells, format, last.common.get("precision")).encode("utf-8", "surrogateescape")


def computed_cells(record: Record, stage: Stage) -> Cells:
    """The tensor that a tool computed as a table; UsageError if it computed several."""
    return one_tensor(record, computed_names(record))


def one_tensor(record: Record, names: Sequence[str], part: str = "") -> Cells:
    """The one tensor of that name as a table; UsageError for several."""
    if len(names) != 1:
        raise UsageError(
            f"{', '.join(CELL_FORMATS)} hold one table, and there is {join_names(names)}; name one tensor: "
            "--only NAME, or attnkit show FILE:NAME"
        )
    return tensor_cells(tensor_view(record, names[0], part=part), names[0])


def view_cells(record: Record, stage: Stage) -> Cells | None:
    """What show draws as a table: statistics, a list, one tensor; None for a picture."""
    view = requested_view(stage)
    if view == "stats":
        return column_cells(statistics_record(record), "name")
    if view not in ("", "list"):
        return None
    names = viewed_names(record, stage)
    if view or (not names and len(record)):
        return list_cells(record)
    return one_tensor(record, names, slice_of(stage))


def column_cells(record: Record, axis: str) -> Cells:
    """Vectors over one labelled axis as the columns of a table."""
    columns = [record.labels[axis], *record.arrays().values()]
    return Cells([axis, *record], [list(row) for row in zip(*columns, strict=True)])


def list_cells(record: Record) -> Cells:
    """The name, dtype, shape, axes and bytes of each tensor as a table.

    >>> import numpy as np
    >>> list_cells(Record({"x": np.zeros((2, 3))})).rows
    [['x', 'float64', '2 3', 'token model', 48]]
    """
    rows = [
        [name, array.dtype.name, " ".join(map(str, array.shape)), " ".join(axes), array.nbytes]
        for name, (array, axes) in named_axes(record).items()
    ]
    return Cells(["name", "dtype", "shape", "axes", "bytes"], rows)
