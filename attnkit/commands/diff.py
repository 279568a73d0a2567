"""attnkit diff: compare two tensors, records or traces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnkit.cli import figures, views
from attnkit.cli.constraints import Constraints
from attnkit.cli.tool import PAIR, PythonForm, Records, ResultViews, Stage, make_item, named_files, tool
from attnkit.display.cells import Cells
from attnkit.errors import DifferentError, UsageError
from attnkit.formats import Source
from attnkit.inputs.operands import cast_x, select_tensor
from attnkit.interpret.comparison import (
    LEFT,
    DiffReport,
    Pair,
    are_traces,
    compare_records,
    difference_views,
    relabel,
    render_report,
    report_lines,
    report_rows,
)
from attnkit.records import Array, Record, join_names

if TYPE_CHECKING:
    from attnkit.display import Style
    from attnkit.display.figures import FigureOptions, Section


def read_pairs(stage: Stage, upstream: Records | None) -> Records:
    if len(stage.operands) != 2:
        raise UsageError(f"two files to compare, not {len(stage.operands)}: attnkit diff A B")
    return Records(None, pair_records(stage))


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Read two records, arrays or names of files from a caller in Python."""
    if len(inputs) != 2:
        raise UsageError(f"two to compare, not {len(inputs)}: attnkit.diff(a, b)")
    stage.operands = tuple(
        "".join(named_files(stage.tool, one)) or name for one, name in zip(inputs, "AB", strict=True)
    )
    (stream_a, first), (stream_b, _) = (read_value(stage, one) for one in inputs)
    return Records(None, pair_streams(stage, stream_a, stream_b, first))


def read_value(stage: Stage, value: Any) -> tuple[Records, Source | None]:
    """Read a record, an array or a file as a stream; an array is one tensor, as NPY."""
    if paths := named_files(stage.tool, value):
        return stage.read(paths[0]), stage.files.source
    item = make_item(stage.tool, value)
    if not isinstance(item, Record):
        raise UsageError(f"expected a record, an array or the name of a file, got {type(value).__name__}")
    return Records(None if isinstance(value, Record) else "npy", iter([item])), None


def pair_records(stage: Stage) -> Iterator[Pair]:
    stream_a, first = stage.read(stage.operands[0]), stage.files.source
    yield from pair_streams(stage, stream_a, stage.read(stage.operands[1]), first)


def pair_streams(stage: Stage, stream_a: Records, stream_b: Records, first: Source | None) -> Iterator[Pair]:
    """Pair the records of two streams; the shorter continues with empty records.

    first  the source of A, if it is a file
    """
    a_file, b_file = stage.operands
    only, dtype = (stage.common.pop(name, None) for name in ("only", "dtype"))  # of both records, not of the result
    while True:
        a, b = next(stream_a.items, None), next(stream_b.items, None)
        stage.files.add_digest(first)
        if a is None and b is None:
            return
        if a is not None and b is not None:
            b = match_tensor(b, stream_a, b_file)
            a = match_tensor(a, stream_b, a_file)
            check_comparable(a, b, a_file, b_file)
        yield make_pair(a or Record({}), b or Record({}), only, dtype)


def match_tensor(record: Record, other: Records, file: str) -> Record:
    """Select the tensor to compare if the other operand is one tensor: x, or its NAME."""
    if not (other.format == "npy" or other.tensor):
        return record
    has_name = other.tensor in record and "x" not in record
    return select_tensor(record, other.tensor if has_name else "", file)


def check_comparable(a: Record, b: Record, a_file: str, b_file: str) -> None:
    if a.tensors and b.tensors and not any(name in b for name in a):
        names = " and ".join(f"{file} has {join_names([*record], 3)}" for file, record in ((a_file, a), (b_file, b)))
        pair = " ".join(f"{file}:{next(iter(record))}" for file, record in ((a_file, a), (b_file, b)))
        raise DifferentError(f"no name in common: {names}; FILE:NAME compares one tensor of each: attnkit diff {pair}")


def make_pair(a: Record, b: Record, only: tuple[str, ...] | None, dtype: str | None) -> Pair:
    """Pair two records, or the tensors of --only in both, in the dtype of --dtype."""
    if dtype:
        a, b = (cast_x(record, dtype) if "x" in record else record for record in (a, b))
    if only:
        return Pair(a.select(only), b.select(only))
    return Pair(a, b, are_traces(a, b))


def render_differences(report: Record, stage: Stage, style: "Style") -> str:
    """Write the report as a table, with heat maps of the differences on request."""
    if stage.common.get("quiet") and stage.common.get("output") in (None, "-"):
        return ""  # the exit code is the result
    relabelled = spell_tokens(report, stage.common.get("tokens") or "raw")
    return render_report(relabelled, style, heatmap=bool(stage.extra.get("heatmap")))


def draw_differences(report: Record, stage: Stage, figure_options: "FigureOptions") -> "list[Section]":
    """Draw the report as a table, with heat maps of the differences on request."""
    from attnkit.display.figures import Section, Table, heatmap_section

    relabelled, style = spell_tokens(report, stage.common.get("tokens") or "plain"), figures.text_style(stage)
    rows, lines = report_rows(relabelled, style.precision), report_lines(relabelled)
    sections = [Section("differences", [Table(rows, LEFT)] if rows else [], notes=lines or ["no tensors"] * (not rows))]
    if stage.extra.get("heatmap"):
        maps = difference_views(relabelled, style)
        sections += [heatmap_section(view, even_colors(view.array, figure_options)) for view in maps]
    return sections


def spell_tokens(report: Record, spelling: str) -> DiffReport:
    if not isinstance(report, DiffReport):
        raise UsageError(f"takes a report, not {type(report).__name__}")
    return report if spelling == "raw" else relabel(report, lambda record: views.name_tokens(record, spelling))


def with_heatmap(report: DiffReport, stage: Stage) -> DiffReport:
    """The report for a caller in Python, with heat maps on request."""
    return replace(report, heatmap=bool(stage.extra.get("heatmap")))


def list_differences(report: Record, stage: Stage) -> Cells:
    views.refuse_view(stage)
    names = [name for name in report if report.axes_of(name) == ("tensor",)]
    columns = [report.labels["tensor"], *(report[name] for name in names), report.labels["at"], report.labels["first"]]
    return Cells(["tensor", *names, "at", "first"], [list(row) for row in zip(*columns, strict=True)])


def even_colors(difference: Array, figure_options: "FigureOptions") -> "FigureOptions":
    """Options of a figure with colours that are even about 0, unless others are set."""
    peak = float(np.abs(difference[np.isfinite(difference)]).max(initial=0)) or 1.0
    return figure_options._replace(range=figure_options.range or (-peak, peak), colors=figure_options.colors or "bwr")


def check_heatmap(stage: Stage) -> Callable[[Record], Record] | None:
    """Check that the format can show what --heatmap requests."""
    views.derived(stage)
    return None


@tool(
    operand=PAIR,
    reader=read_pairs,
    views=ResultViews(table=render_differences, figure=draw_differences, cells=list_differences),
    status=lambda record, stage: int(not record["same"]),
    derived=check_heatmap,
    sections={"Comparison": "rtol atol all_ heatmap", "Figures": "numbers no_numbers range cmap"},
    rules=Constraints(exclusive=[("numbers", "no_numbers")], requires=[(name, "heatmap") for name in views.LOOK_FLAGS]),
    extra={"heatmap": Annotated[bool, typer.Option(help="draw a heat map of A − B for every tensor that differs")]}
    | views.LOOK_FLAGS,
    without=("check_finite",),
    shows_table=True,
    python=PythonForm(
        inputs={"a": "TensorLike", "b": "TensorLike"},
        reader=read_values,
        options=("heatmap",),
        result="DiffReport",
        present=with_heatmap,
    ),
)
def diff(
    pair: Pair,
    *,
    rtol: Annotated[float, typer.Option(min=0, help="relative tolerance")] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help="absolute tolerance")] = 0.0,
    all_: Annotated[
        bool, typer.Option(help="compare all stages of two traces, not only up to the first that differs")
    ] = False,
) -> DiffReport:
    """Compare two tensors, records or traces: exit code 0 when they are the same, 1 when they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. The table has a line for each
    tensor: how many numbers differ, the largest |a − b| and its index, the largest |a − b| / |b| where b is not 0,
    and the cosine similarity. Dtypes, labels and histories are not compared. -q prints nothing. -f json writes the
    values of the table as a record: `same` is true or false; `at` and `first` are the indices of the largest and of
    the first difference.

    An NPY file or FILE:NAME is a single tensor, which is compared with x of the other file. Two traces (from encode
    --trace) are compared stage by stage, up to the first stage that differs, or, with --all, to the end.

    \b
    Example:
      attnkit embed "a b" --dim 4 -o a.npy --only x && attnkit layernorm a.npy -o b.npy && attnkit diff a.npy b.npy
    """
    if not isinstance(pair, Pair):
        raise UsageError(f"takes a Pair of records, not {type(pair).__name__}")
    return compare_records(pair, rtol, atol, all_)
