"""attnkit explore: one page that explores traces."""

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnkit import display, formats, options
from attnkit.cli import figures, operands, views
from attnkit.cli.calls import make_item, tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage, running_stage
from attnkit.cli.text_input import trace_of_text
from attnkit.cli.tool import PythonForm, Records
from attnkit.display.explore import ExploredTrace
from attnkit.errors import AttnkitNote, DataError, UsageError, counted
from attnkit.formats.mapped import map_file
from attnkit.inputs.patches import LABELLED, check_picture, find_box
from attnkit.interpret.explored_traces import (
    add_picture,
    check_weights,
    compare_traces,
    is_lens,
    make_lens,
    make_trace,
    split_texts,
)
from attnkit.interpret.tensor_statistics import map_parallel
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.display.figures import FigureOptions


TOP = 5  # words of each layer, unless --top sets another number
MOST = 16  # records of one page
EXPECTED = "expected a record, the name of a file, or several of them"


class Named(NamedTuple):
    """A record and its file; of training also its step and the reports of the run."""

    record: Record
    file: str
    step: int | None = None
    curve: Sequence[dict[str, Any]] = ()


def read_traces(stage: Stage, upstream: Records | None) -> Records:
    if (trace := trace_of_text(stage, "*")) is not None:
        return Records("json", iter([select_tensors(stage, [Named(trace, stage.operands[0])])]))
    paths = stage.operands or ("-" if upstream is not None else operands.stdin_or_error(),)
    return Records("json", iter([select_tensors(stage, [one for path in paths for one in read_file(stage, path)])]))


def read_file(stage: Stage, path: str) -> Iterator[Named]:
    if os.path.isdir(path):
        yield from read_steps(stage, path)
        return
    if os.path.isfile(path) and os.path.getsize(path):
        source = formats.Source.of(memoryview(map_file(path)), path)
        items = iter(formats.read(source, stage.dtype == "bfloat16", lone_is_x=False))
    else:
        items = stage.read(path).items
    for record in items:
        yield Named(record, "<stdin>" if path == "-" else path)


def read_steps(stage: Stage, folder: str) -> Iterator[Named]:
    """Yield at most MOST recorded steps of a run; without any step, its losses."""
    from attnkit.training.reports import describe_step, find_losses, find_steps, read_reports, thin

    if losses := find_losses(folder):
        yield Named(losses, folder)
        return
    steps = find_steps(folder)
    chosen = thin([*steps], MOST)
    if len(chosen) < len(steps):
        warnings.warn(f"{folder}: the page has {len(chosen)} of {len(steps)} steps", AttnkitNote, stacklevel=2)
    curve = read_reports(folder)
    for step in chosen:
        for one in read_file(stage, steps[step]):
            yield Named(describe_step(one.record, folder), folder, step, curve)


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Read records or names of files from a caller in Python."""
    value = inputs[0] if inputs else None
    traces: list[Named] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, str | os.PathLike):
            traces += read_file(stage, os.fspath(one))
        elif isinstance(one, Record):
            traces.append(Named(make_item(stage.tool, one), "record"))
        else:
            raise UsageError(f"{EXPECTED}, got {type(one).__name__}", "traces")
    return Records(None, iter([select_tensors(stage, traces)]))


def select_tensors(stage: Stage, traces: list[Named]) -> list[Named]:
    only = stage.common.pop("only", None)
    return (
        [one._replace(record=one.record.select(only).merge(find_box(one.record))) for one in traces] if only else traces
    )


@tool(
    operand="[TRACE]...",
    reader=read_traces,
    without=("dtype", "indent", "check_finite"),
    gives="page",
    rules=Constraints(requires=[("top", "model")]),
    keep_names=True,
    python=PythonForm(
        inputs={"traces": "Sequence[Record | Path] | Record | Path"},
        reader=read_values,
        options=("theme", "title", "tokens"),
    ),
)
def explore(
    traces: Sequence[Named],
    *,
    record: Annotated[
        int | None,
        typer.Option(min=0, help="show only this record of a batch or a stream, from 0 [default: up to 16 of them]"),
    ] = None,
    model_: options.Model = None,
    top: Annotated[int | None, typer.Option(min=1, help=f"words of each layer [default: {TOP}]")] = None,
    over: options.Over = None,
    exact: Annotated[
        bool, typer.Option(help="keep all numbers as they are [default: of many weights, 8 bits or the largest]")
    ] = False,
) -> str:
    """Write an HTML page for exploring traces: one file that works offline.

    TRACE is a file of encode, decode or run --trace, a text of several words that --model reads now, or any record with
    weights (attend --keep weights), or a stream or a batch of them; two records are compared. A folder of train has the
    steps that --record named, or its losses alone. The page shows all heads and the kind of each, the text with what
    each token attends to, where two traces differ, the statistics of every tensor, each attention weight step by step,
    with --model what lens says of each layer, and with --over the attention of an image over its picture. Every view
    has an address, and is saved as SVG and PNG.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend --heads 2 --keep weights | attnkit explore -o page.html
    """
    from attnkit.display.explore import explore_page, pack_traces
    from attnkit.display.figures import FigureOptions

    if over is not None:
        check_picture(over, "--over")
    stage = running_stage()
    figure_options = figures.figure_options(stage) if stage else FigureOptions()
    if [views.are_losses(one.record) for one in traces] == [True]:
        return draw_losses(traces[0], figure_options)
    chosen = choose_records(traces, record)
    is_raw = stage is not None and stage.common.get("tokens") == "raw"
    pages = [read_lens(one, model_, top or TOP, is_raw, len(chosen) == 1) for one in chosen]
    pages = [add_picture(page, one.record, over) for page, one in zip(pages, chosen, strict=True)]
    if over is not None and not any(page.picture for page in pages):
        raise DataError(f"no trace has patches; {LABELLED}", chosen[0].file)
    difference = compare_traces(chosen[0].record, chosen[1].record, is_raw) if len(traces) == len(chosen) == 2 else None
    curve = [*chosen[0].curve] or None
    return explore_page(
        pack_traces(pages, difference, exact, map_parallel) | {"curve": curve}, figure_options, "attnkit explore"
    )


def draw_losses(named: Named, figure_options: "FigureOptions") -> str:
    from attnkit.display.figures import curves_section, render_figure

    section = curves_section(display.tensor_view(named.record, "x"), figure_options)
    return render_figure([section._replace(title=named.file)], figure_options, "html", "attnkit explore").decode()


def read_lens(named: Named, checkpoint: Any, top: int, is_raw: bool, is_alone: bool) -> "ExploredTrace":
    """Make a trace of a record, with the likely words of its layers by a model.

    is_alone  raise DataError if it lacks them; beside others it may be of an encoder, whose decoder has them
    """
    from attnkit.interpret.lens import apply_lens

    trace = make_trace(named.record, named.file, is_raw)._replace(step=named.step)
    if checkpoint is None or is_lens(named.record):
        return trace
    try:
        words = apply_lens(named.record, checkpoint, top, None)
    except DataError as error:
        if is_alone:
            raise
        warnings.warn(f"{named.file}: no words of its layers: {error.problem}", AttnkitNote, stacklevel=2)
        return trace
    return trace._replace(lens=make_lens(words, is_raw))


def choose_records(traces: Sequence[Named], index: int | None) -> list[Named]:
    """Choose the records of a page, one text each, named by file and number."""

    if not traces:
        raise DataError("nothing to explore: no record")
    is_training = any(one.step is not None for one in traces)
    chosen = choose_steps(traces, index or 0) if is_training else choose_texts(traces, index)
    if len(chosen) > MOST:
        note = f"the page has the first {MOST} of {len(chosen)} records; --record N chooses one"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    for one in chosen[:MOST]:
        check_weights(one.record, one.file)
    return chosen[:MOST]


def choose_texts(traces: Sequence[Named], index: int | None) -> list[Named]:
    """The texts of all records, or of each file the one of an index."""

    chosen = []
    for file in dict.fromkeys(one.file for one in traces):
        rows = [row for one in traces if one.file == file for row in split_texts(one.record)]
        picked = enumerate(choose_record(rows, index, file), start=index or 0)
        chosen += [Named(row, f"{file} {number}" if len(rows) > 1 else file) for number, row in picked]
    return chosen


def choose_steps(traces: Sequence[Named], index: int) -> list[Named]:
    if len({(one.file, one.step is None) for one in traces}) > 1:
        raise UsageError("a folder of train is explored alone (expected one folder)", "TRACE")
    rows = [choose_record(split_texts(one.record), index, one.file)[0] for one in traces]
    return [one._replace(record=row, file=f"{one.file} step {one.step}") for one, row in zip(traces, rows, strict=True)]


def choose_record(records: Sequence[Record], index: int | None, source: str) -> Sequence[Record]:
    if index is None:
        return records
    if index >= len(records):
        raise UsageError(f"{index}: {source} has {counted(len(records), 'record')}", "--record")
    return [records[index]]
