"""Results as tables for other programs: CSV, TSV and Markdown, as -f csv and -o FILE.csv write them."""

from typing import TYPE_CHECKING

from attnkit.cli import views
from attnkit.cli.output_format import CELL_FORMATS, DISPLAYED
from attnkit.cli.tool import Stage
from attnkit.display.cells import Cells, format_cells, tensor_cells
from attnkit.errors import UsageError, flag_name
from attnkit.record import Record, join_names

if TYPE_CHECKING:
    from collections.abc import Sequence


def encode_cells(call: Stage, record: Record, format: str) -> bytes:
    """A record as a table: the one of its tool, else the one tensor that it shows."""
    last = call.extra.get("last", call)  # of `run` the last stage
    record = views.name_tokens(record, last.common.get("tokens") or "raw")
    cells = last.tool.views.cells(record, last) if last.tool.views.cells else computed_cells(record, last)
    return format_cells(cells, format, last.common.get("precision")).encode("utf-8", "surrogateescape")


def computed_cells(record: Record, call: Stage) -> Cells:
    """The tensor that a tool computed as a table; UsageError if it computed several."""
    return one_tensor(record, views.computed_names(record, call))


def one_tensor(record: Record, names: "Sequence[str]", part: str = "") -> Cells:
    """The one tensor of that name as a table; UsageError for several."""
    if len(names) != 1:
        raise UsageError(
            f"{', '.join(CELL_FORMATS)} hold one table, and there is {join_names(names)}; name one tensor: "
            "--only NAME, or attnkit show FILE:NAME"
        )
    return tensor_cells(views.tensor_view(record, names[0], part=part), names[0])


def view_cells(record: Record, call: Stage) -> Cells:
    """What show draws as a table: statistics, a list of tensors, or one tensor."""
    refuse_view(call)
    view = views.requested_view(call)
    if view == ["stats"]:
        return column_cells(views.statistics_record(record), "name")
    names = views.viewed_names(record, call)
    if view or (not names and len(record)):
        return list_cells(record)
    return one_tensor(record, names, views.slice_of(call))


def refuse_view(call: Stage) -> None:
    """Raise UsageError for a view that is a picture: a heat map, curves."""
    for view in views.requested_view(call):
        if view not in ("stats", "list"):
            problem = f"{call.format.requested()} does not hold what it shows (expected {DISPLAYED})"
            raise UsageError(problem, flag_name(view))


def select_cells(record: Record, call: Stage) -> Cells:
    """The part of a record that the flags of peek select as a table."""
    part = views.select(record, call.extra.get("name") or (), call.extra.get("slice") or "")
    return view_cells(part, call)


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
        for name, (array, axes) in views.named_axes(record).items()
    ]
    return Cells(["name", "dtype", "shape", "axes", "bytes"], rows)
