"""attnkit explore: one page that explores traces."""

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from attnkit import formats
from attnkit.cli import figures, operands, options, views
from attnkit.cli.stage import PythonForm, Records, Stage, running_stage
from attnkit.cli.tool import make_item, tool
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.formats.mapped import map_file
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.display.explore import ExploredTrace
    from attnkit.display.figures import FigureOptions

TOP = 5  # words of each layer, unless --top sets another number
MOST = 16  # records of one page
EXPECTED = "expected a record, the name of a file, or several of them"


class Named(NamedTuple):
    """A record, and the file that it is from; of training, its step, and the reports of the run."""

    record: Record
    file: str
    step: int | None = None
    curve: Sequence[dict[str, Any]] = ()


def read_traces(call: Stage, upstream: Records | None) -> Records:
    """Read the records of all the files, or of standard input, as one input."""
    paths = call.operands or ("-" if upstream is not None else operands.stdin_or_error(),)
    return Records("json", iter([select_tensors(call, [one for path in paths for one in read_file(call, path)])]))


def read_file(call: Stage, path: str) -> Iterator[Named]:
    """Yield the records of a file, or of standard input."""
    if os.path.isdir(path):
        yield from read_steps(call, path)
        return
    if os.path.isfile(path) and os.path.getsize(path):
        source = formats.Source.of(memoryview(map_file(path)), path)
        items = iter(formats.read(source, call.dtype == "bfloat16", lone_is_x=False))
    else:
        items = call.read(path).items
    for record in items:
        yield Named(record, "<stdin>" if path == "-" else path)


def read_steps(call: Stage, folder: str) -> Iterator[Named]:
    """Yield the recorded steps of a run, the first and the last of them among at most MOST; without any its losses."""
    from attnkit.training.recorded import describe_step, find_losses, find_steps, read_reports, thin

    if losses := find_losses(folder):
        yield Named(losses, folder)
        return
    steps = find_steps(folder)
    chosen = thin([*steps], MOST)
    if len(chosen) < len(steps):
        warnings.warn(f"{folder}: the page has {len(chosen)} of {len(steps)} steps", AttnkitNote, stacklevel=2)
    curve = read_reports(folder)
    for step in chosen:
        for one in read_file(call, steps[step]):
            yield Named(describe_step(one.record, folder), folder, step, curve)


def read_values(call: Stage, inputs: Sequence[Any]) -> Records:
    """Return the records that a caller in Python passes: one or a list of them, or the names of files."""
    value = inputs[0] if inputs else None
    traces: list[Named] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, str | os.PathLike):
            traces += read_file(call, os.fspath(one))
        elif isinstance(one, Record):
            traces.append(Named(make_item(call.tool, one), "record"))
        else:
            raise UsageError(f"{EXPECTED}, got {type(one).__name__}", "traces")
    return Records(None, iter([select_tensors(call, traces)]))


def select_tensors(call: Stage, traces: list[Named]) -> list[Named]:
    """Return the records with the tensors of --only alone."""
    only = call.common.pop("only", None)
    return [one._replace(record=one.record.select(only)) for one in traces] if only else traces


@tool(
    operand="[TRACE]...",
    reader=read_traces,
    without=("dtype", "indent", "check_finite"),
    returns_text=lambda parameters: True,
    is_page=True,
    requires=[("top", "model")],
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
        options.integer("show only this record of a batch or a stream, from 0 [default: up to 16 of them]", least=0),
    ] = None,
    model_: Annotated[Any, options.MODEL] = None,
    top: Annotated[int | None, options.integer(f"words of each layer [default: {TOP}]", least=1)] = None,
    exact: Annotated[
        bool, options.switch("keep all numbers as they are [default: of many weights, 8 bits or the largest]")
    ] = False,
) -> str:
    """Write one page that explores traces: an HTML file that loads nothing.

    TRACE is a file of encode, decode or run --trace, or any record with weights (attend --keep weights), or a stream
    or a batch of them; two records are compared. A folder of train has the steps that --record named, or its losses
    alone. The page shows all heads and the kind of each, the text with what each token attends to, where two traces
    differ, the statistics of every tensor, each attention weight step by step, and with --model what lens says of each
    layer. Every view has an address, and is saved as SVG and PNG.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend --heads 2 --keep weights | attnkit explore -o page.html
    """
    from attnkit.display.explore import explore_page, pack_traces
    from attnkit.display.figures import FigureOptions
    from attnkit.interpret.exploration import compare_traces
    from attnkit.interpret.tensor_statistics import map_parallel

    call = running_stage()
    looks = figures.figure_options(call) if call else FigureOptions()
    if [views.are_losses(one.record) for one in traces] == [True]:
        return draw_losses(traces[0], looks)
    chosen = choose_records(traces, record)
    is_raw = call is not None and call.common.get("tokens") == "raw"
    pages = [read_lens(one, model_, top or TOP, is_raw, len(chosen) == 1) for one in chosen]
    difference = compare_traces(chosen[0].record, chosen[1].record, is_raw) if len(traces) == len(chosen) == 2 else None
    curve = [*chosen[0].curve] or None
    return explore_page(
        pack_traces(pages, difference, exact, map_parallel) | {"curve": curve}, looks, "attnkit explore"
    )


def draw_losses(named: Named, looks: "FigureOptions") -> str:
    """Draw the losses of a run that recorded no step as a page of curves."""
    from attnkit.display.figures import curves_section, render_figure

    section = curves_section(views.tensor_view(named.record, "x"), looks)
    return render_figure([section._replace(title=named.file)], looks, "html", "attnkit explore").decode()


def read_lens(named: Named, checkpoint: Any, top: int, is_raw: bool, is_alone: bool) -> "ExploredTrace":
    """Return a record as a trace, of a model with the words that its head reads in the states of the layers.

    is_alone  raise DataError where it lacks them; beside others it may be of an encoder, whose decoder has them
    """
    from attnkit.interpret.exploration import is_lens, make_lens, make_trace
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
    """Return the records of a page, those of one text each, by the names of their files and their numbers in them."""
    from attnkit.interpret.exploration import check_weights

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
    """Return the texts of all records, or of each file the one of an index."""
    from attnkit.interpret.exploration import choose_record, split_texts

    chosen = []
    for file in dict.fromkeys(one.file for one in traces):
        rows = [row for one in traces if one.file == file for row in split_texts(one.record)]
        picked = enumerate(choose_record(rows, index, file), start=index or 0)
        chosen += [Named(row, f"{file} {number}" if len(rows) > 1 else file) for number, row in picked]
    return chosen


def choose_steps(traces: Sequence[Named], index: int) -> list[Named]:
    """Return one text of the batch of each step of a training run, with the step in its name."""
    from attnkit.interpret.exploration import choose_record, split_texts

    if len({(one.file, one.step is None) for one in traces}) > 1:
        raise UsageError("a folder of train is explored alone (expected one folder)", "TRACE")
    rows = [choose_record(split_texts(one.record), index, one.file)[0] for one in traces]
    return [one._replace(record=row, file=f"{one.file} step {one.step}") for one, row in zip(traces, rows, strict=True)]
