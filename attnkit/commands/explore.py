"""attnkit explore: one page that explores traces."""

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from attnkit import display, formats
from attnkit.cli import figures, operands, options, views
from attnkit.cli.calls import make_item, tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage, running_stage
from attnkit.cli.text_input import trace_of_text
from attnkit.cli.tool import PythonForm, Records
from attnkit.display.explore import Attention, Difference, ExploredTrace, Lens, Picture
from attnkit.errors import AttnkitNote, DataError, UsageError, counted, escaped
from attnkit.formats.mapped import map_file
from attnkit.inputs.patches import LABELLED, WHOLE, check_picture, find_box, find_grid, read_box
from attnkit.interpret.comparison import Pair, are_traces, compare_tensors, make_report, report_lines, report_table
from attnkit.interpret.head_scores import WEIGHTS, find_weights, score_layers
from attnkit.interpret.tensor_statistics import describe_tensors, map_parallel
from attnkit.model.head_scores import HeadScores
from attnkit.model.intermediates import ATTENTION, PARTS
from attnkit.records import Array, Labels, Record, Tensor, index_axes, join_names, row_labels

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
    from attnkit.interpret.tensor_statistics import map_parallel

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

    section = curves_section(views.tensor_view(named.record, "x"), figure_options)
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


def add_picture(trace: "ExploredTrace", record: Record, pixels: Array | None) -> "ExploredTrace":
    """Add the patches of an image and its picture to a trace with such tokens."""
    names = row_labels(record.labels.get("key") or record.labels.get("token"), 0)
    patches, grid = find_grid(names)
    if not patches:
        return trace
    box = WHOLE if pixels is None else read_box(record)
    return trace._replace(picture=Picture(len(names), patches, grid, box, pixels))


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


PRECISION = 4
WORDED = ("token", "query", "key")  # the axes of a text
TOP_ENDING, KEYS_ENDING = ".top", ".keys"  # the ends of the names of --weights topk:K


def split_texts(record: Record) -> list[Record]:
    """The record of each text of a batch; the record itself if it is one text.

    >>> batch = Record({"weights": np.zeros((2, 1, 3, 3)), "lse": np.zeros((2, 1, 3)), "table": np.zeros((5, 4))})
    >>> [row["weights"].shape for row in split_texts(batch)]
    [(1, 3, 3), (1, 3, 3)]
    """
    if is_lens(record):
        return split_lens(record)
    names = [*find_weights(record), *(name for name in record if name.endswith(f"{WEIGHTS}{TOP_ENDING}"))]
    sizes = {record[name].shape[0] for name in names if record[name].ndim == 4}
    rows = max(sizes, default=0)
    return [select_row(record, row, rows) for row in range(rows)] if rows and len(sizes) == 1 else [record]


def select_row(record: Record, row: int, rows: int) -> Record:
    """One text of a batch of `rows` texts: its row of each tensor, and its labels."""
    tensors = {}
    for name, one in record.tensors.items():
        axes = one.axis_names()
        if axes[:1] == ("batch",) and one.shape[0] == rows:
            one = replace(one, array=one.array[row], axes=axes[1:])
        tensors[name] = one
    labels: dict[str, Labels] = {axis: row_labels(names, row) for axis, names in record.labels.items()}
    return replace(record, tensors=tensors, labels=labels)


def make_trace(record: Record, name: str, is_raw: bool = False) -> ExploredTrace:
    """A record of one text as a trace to explore.

    is_raw  spell tokens as they are in the vocabulary, not as a reader writes them
    """
    if is_lens(record):
        labels = {"token": spell(record.labels.get("token", []), is_raw)}
        return ExploredTrace(escaped(name), labels, [], [], list_commands(record), lens=make_lens(record, is_raw))
    scores = score_layers(record) if find_weights(record) else {}
    layers = [describe_attention(record, f"{layer}.{WEIGHTS}".lstrip("."), one) for layer, one in scores.items()]
    layers += [top_attention(record, name) for name in find_top(record)]
    labels = id_words(record) | {axis: spell(names, is_raw) for axis, names in record.labels.items() if axis != "vocab"}
    stages = [facts | {"name": escaped(facts["name"])} for facts in describe_tensors(record)]
    return ExploredTrace(escaped(name), labels, layers, stages, list_commands(record))


def id_words(record: Record) -> dict[str, list[str]]:
    """Token ids as words of the axes of a record that has no words.

    >>> id_words(Record({"ids": np.array([5, 2])}))["key"]
    ['#5', '#2']
    """
    ids = record.get("ids")
    return {axis: [f"#{one}" for one in ids] for axis in WORDED} if ids is not None and ids.ndim == 1 else {}


def describe_attention(record: Record, name: str, scores: HeadScores) -> Attention:
    queries, keys = record.axes_of(name)[-2:]
    measures = [float(one) for one in scores.kind_measures()]
    parts = find_parts(record, name.removesuffix(WEIGHTS), record[name].shape)
    return Attention(layer_name(name), record[name], queries, keys, scores.kinds(), measures, parts=parts)


def find_parts(record: Record, prefix: str, shape: tuple[int, ...]) -> dict[str, Array]:
    """The other intermediates of attention that a record keeps for weights (H, T, S).

    >>> record = Record({"weights": np.ones((2, 1, 3)), "k": np.ones((1, 3, 4)), "q": np.ones((1, 2, 1, 4))})
    >>> [*find_parts(record, "", (2, 1, 3))]
    ['k']
    """
    heads, queries, keys = shape[-3:]
    rows = {name: queries if "query" in (ATTENTION[name].axes or ()) else keys for name in PARTS}
    parts = {name: record[prefix + name] for name in PARTS if prefix + name in record}
    fits = {name: one.ndim == 3 and one.shape[1] == rows[name] for name, one in parts.items()}
    return {name: one for name, one in parts.items() if fits[name] and one.shape[0] and heads % one.shape[0] == 0}


def layer_name(name: str) -> str:
    """The layer that weights are of; their own name if it has none.

    >>> layer_name("decoder.0.self.weights"), layer_name("weights")
    ('decoder.0.self', 'weights')
    """
    return name.removesuffix(WEIGHTS).removesuffix(".") or name


def find_top(record: Record) -> list[str]:
    """The names of weights whose largest alone, in each row, a record keeps.

    >>> find_top(Record({"weights.top": np.ones((1, 2, 1)), "weights.keys": np.ones((1, 2, 1), int)}))
    ['weights']
    """
    names = [name.removesuffix(TOP_ENDING) for name in record if f".{name}".endswith(f".{WEIGHTS}{TOP_ENDING}")]
    return [
        name
        for name in names
        if name not in record and f"{name}{KEYS_ENDING}" in record and record[name + TOP_ENDING].ndim == 3
    ]


def top_attention(record: Record, name: str) -> Attention:
    """The largest weights of each row of a layer; the kinds of its heads are unknown."""
    weights, indices = record[f"{name}{TOP_ENDING}"], record[f"{name}{KEYS_ENDING}"]
    axis = index_axes(f"{name}{KEYS_ENDING}")[0]
    words = record.labels.get(axis) or []
    size = max(len(words), int(indices.max(initial=-1)) + 1, 1)
    heads = len(weights)
    return Attention(layer_name(name), weights, "query", axis, [""] * heads, [np.nan] * heads, indices, size)


def is_lens(record: Record) -> bool:
    """Whether a record contains the likely words of layers, as `lens` returns them.

    >>> is_lens(Record({"x": np.ones((2, 3, 1))}))
    False
    """
    if not {"x", "ids"} <= {*record} or record["ids"].shape != record["x"].shape or not record["x"].size:
        return False
    return record.axes_of("x")[-3:] == ("layer", "token", "rank")


def split_lens(record: Record) -> list[Record]:
    """Split the likely words of layers by the texts of a batch."""
    if record["x"].ndim == 3:
        return [record]
    x, words = record["x"], record.labels.get("ids", [])
    states = x.shape[1] * x.shape[2]
    rows = []
    for row in range(len(x)):
        tensors = {name: Tensor(record[name][row], record.axes_of(name)[1:]) for name in ("x", "ids")}
        labels: dict[str, Labels] = {axis: row_labels(names, row) for axis, names in record.labels.items()}
        labels["ids"] = words[row * states : (row + 1) * states]
        rows.append(Record(tensors, {axis: names for axis, names in labels.items() if names}, record.history))
    return rows


def make_lens(record: Record, is_raw: bool = False) -> Lens:
    ids, names = record["ids"], record.labels.get("ids", [])
    flat = [word for row in names for word in ([row] if isinstance(row, str) else row)]
    words = dict(zip(ids.reshape(-1).tolist(), spell(flat, is_raw), strict=False))
    layers = row_labels(record.labels.get("layer"), 0) or [str(at) for at in range(len(ids))]
    position = row_labels(record.labels.get("position"), 0) or ["0"]
    return Lens([escaped(one) for one in layers], ids, record["x"], words, int(position[0]))


def spell(labels: Labels, is_raw: bool = False) -> list[str]:
    r"""Words as a reader writes them, or raw, with what cannot be printed escaped.

    >>> spell(["Ġfox", "\x00"]), spell(["Ġfox"], is_raw=True)
    (['·fox', '\\x00'], ['Ġfox'])
    """
    words = labels if is_raw else display.plain_labels(labels) or []
    return [escaped(one) for one in row_labels(words, 0)]


def spell_labels(record: Record, is_raw: bool) -> Record:
    words = {axis: spell(names, is_raw) for axis, names in record.labels.items() if axis in WORDED}
    return replace(record, labels={**record.labels, **words})


def list_commands(record: Record) -> list[str]:
    return [escaped(str(entry.get("command", ""))) for entry in record.history]


def compare_traces(a: Record, b: Record, is_raw: bool = False) -> Difference | None:
    """How two records differ stage by stage, and A - B of equally shaped weights.

    None if they have no tensor of one name, such as an encoder and its decoder.
    """
    if not any(name in b for name in a):
        return None
    a, b = spell_labels(a, is_raw), spell_labels(b, is_raw)
    pair = Pair(a, b, are_traces(a, b))
    comparisons = map_parallel(lambda name: compare_tensors(a, b, name, 0.0, 0.0), pair.names())
    report = make_report(pair, tuple(comparisons), all_sites=True)
    names = [name for name in find_weights(a) if name in b and a[name].shape == b[name].shape]
    layers = []
    for name in names:
        queries, keys = a.axes_of(name)[-2:]
        layers.append(Attention(layer_name(name), a[name] - b[name], queries, keys))
    heads, body, _ = report_table(report, PRECISION)
    rows = [[escaped(cell) for cell in row] for row in ([heads, *body] if body else [])]
    return Difference(rows, [escaped(line) for line in report_lines(report)], layers)


def choose_record(records: Sequence[Record], index: int | None, source: str) -> Sequence[Record]:
    if index is None:
        return records
    if index >= len(records):
        raise UsageError(f"{index}: {source} has {counted(len(records), 'record')}", "--record")
    return [records[index]]


def check_weights(record: Record, source: str) -> None:
    """Raise DataError if a record keeps no weights of attention."""
    if is_lens(record):
        return
    names = [*find_weights(record), *(f"{name}{TOP_ENDING}" for name in find_top(record))]
    if names and not any(record[name].size for name in names):
        raise DataError("weights of attention of no token, no head or no text", source)
    if not names:
        keeps = "attend --keep weights, or --trace FILE of encode, decode or run, keeps them"
        if state := next((name for name in record if name.endswith(".rnn.state")), ""):
            keeps = f"a recurrent layer has none; attnkit show FILE:{state} --heatmap draws its states"
        raise DataError(f"no weights of attention (it has {join_names([*record])}); {keeps}", source)
