"""attnkit cost: FLOPs, bytes, parameters and cache of a model, by stage."""

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from attnkit import display, formats, options
from attnkit.cli import operands, pipeline, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm, Records
from attnkit.display.cells import Cells
from attnkit.errors import AttnkitNote, DataError, UsageError, counted, format_bytes
from attnkit.formats.streams import name_errors
from attnkit.interpret import cost as counting
from attnkit.interpret.cost import QUANTITIES, format_count
from attnkit.interpret.stage_calls import StageCall
from attnkit.model.graph.costs import Cost, ModelShapes
from attnkit.records import Labels, Record, Tensor, join_names, shared_labels

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

MOST, MOST_GENERATED, MOST_TEXTS = 10_000_000, 1 << 17, 1 << 20  # tokens, tokens after them, texts
HEADS = ("stage", "shape", "params", "FLOPs", "elementwise", "bytes", "FLOP/B", "KV/token", "share")
TIMES = ("bound", "predicted", "measured")
PAIRED = ("params", "FLOPs", "bytes", "KV/token")  # of each of two models
SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)
SWEEP = re.compile(r"(tokens|generate|batch)=([1-9][0-9]{0,7}):([1-9][0-9]{0,7})", re.ASCII)


@dataclass(frozen=True)
class Models:
    """The models of one call, their folders, and what marks one that is not opened."""

    folders: Sequence[str]
    checkpoints: "Sequence[Checkpoint]"
    marks: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The last parts of the folders, whole paths if these are the same, and marks."""
        short = [os.path.basename(os.path.normpath(folder)) for folder in self.folders]
        names = short if len({*short}) == len(short) else [*self.folders]
        return [name + f" ({mark})" * bool(mark) for name, mark in zip(names, self.marks, strict=True)]


@dataclass(frozen=True)
class Ran:
    """The stages of a pipeline or of a trace, which state their own tokens.

    kind    pipeline or trace
    dtype   of their numbers
    runs    tokens -> the stages, of a pipeline that is swept
    """

    kind: str
    title: str
    rows: list[Cost]
    dtype: str
    runs: Mapping[int, Sequence[Cost]] = field(default_factory=dict)


def read_counted(stage: Stage, upstream: Records | None) -> Records:
    """Open the folders of one model or two, read a trace, or run a pipeline."""
    if not 1 <= len(stage.operands) <= 2:
        problem = "expected the folder of a model or of two, a trace, or a pipeline in quotes"
        raise UsageError(f"{problem}, got {counted(len(stage.operands), 'operand')}")
    return Records(None, iter([read_operands(stage, upstream)]))


def read_operands(stage: Stage, upstream: Records | None) -> "Models | Ran":
    first = stage.operands[0]
    if len(stage.operands) == 1 and not operands.is_model_path(first):
        if first == "-" or os.path.lexists(first):
            return read_trace(stage, first)
        if pipeline.is_pipeline(first):
            is_swept = stage.parameters["sweep"]
            return sweep_pipeline(stage, first, upstream) if is_swept else run_pipeline(stage, first, upstream)
    if len({os.path.realpath(folder) for folder in stage.operands}) < len(stage.operands):
        raise UsageError(f"expected two models, got {first} twice")
    opened = [*map(open_counted, stage.operands)]
    checkpoints = [one for one, _ in opened]
    stage.files.loaded |= dict(zip(("folder", "other"), checkpoints, strict=False))
    return Models(stage.operands, checkpoints, [mark for _, mark in opened])


def open_counted(folder: str) -> "tuple[Checkpoint, str]":
    """Open a model, or count one by its config.json alone, with a note and a mark."""
    from attnkit.checkpoints.outline import Outline, open_outline

    opened = open_outline(folder)
    if not isinstance(opened, Outline):
        return opened, ""
    if opened.model is None:
        raise DataError(f"{opened.problem}; attnkit show {folder} --facts prints what it states", folder)
    without = f", without {join_names(opened.left_out, 6)}" if opened.left_out else ""
    warnings.warn(f"{folder}: {opened.problem}{without}", AttnkitNote, stacklevel=2)
    return opened.model, opened.mark


def run_pipeline(stage: Stage, text: str, upstream: Records | None) -> Ran:
    """Run a pipeline, and count its stages for all of its records."""
    from attnkit.generation.generation_cost import count_decoded
    from attnkit.interpret.pipeline_cost import COUNTERS, count_call, shorten_names

    counters = {**COUNTERS, "decode": count_decoded}
    calls: list[StageCall] = []
    stages = pipeline.parse_stages(text)
    for number, one in enumerate(stages, start=1):
        if one.common.pop("output", None):
            raise UsageError(f"stage {number}, {one.tool.name}: --output is of cost: attnkit cost '…' -o FILE")
        if one.recorded_engine():
            raise UsageError(f"stage {number}, {one.tool.name}: what numpy computes is counted", "--engine")
        pipeline.keep_calls(one, number, calls)
    counts: list[Cost] = []
    records, dtype = 0, "float32"
    for result in pipeline.chain_stages(stages, upstream=upstream).items:
        counts = counting.sum_costs([*counts, *(one for call in calls for one in count_call(call, counters))])
        records += 1
        if isinstance(result, Record) and "x" in result and result["x"].dtype.name in counting.ITEMSIZES:
            dtype = result["x"].dtype.name
        calls.clear()
    for one in stages:
        stage.files.digests |= one.files.compute_digests(True)
    return Ran("pipeline", f"pipeline: {counted(records, 'record')}", shorten_names(counts), dtype)


def sweep_pipeline(stage: Stage, text: str, upstream: Records | None) -> Ran:
    """Run a pipeline for x of standard input at several lengths, its tokens repeated."""
    name, numbers = sweep_values(stage.parameters["sweep"])
    if name != "tokens":
        raise UsageError(f"a pipeline has lengths of texts: tokens=A:B, got {name}", "--sweep")
    if upstream is None:
        source, _ = operands.open_operand("-")
        with source:
            items = [*formats.read(source)]
    else:
        items = [*upstream.items]
    records = [one for one in items if isinstance(one, Record)]
    if len(items) != 1 or not records or records[0]["x"].ndim < 2 or not records[0]["x"].shape[-2]:
        raise UsageError("needs one record with x (T, D) or (B, T, D) on standard input", "--sweep")
    x, runs, dtype = records[0]["x"], dict[int, Sequence[Cost]](), "float32"
    for number in numbers:
        longer = Record({"x": x.take(np.arange(number) % x.shape[-2], axis=-2)})
        ran = run_pipeline(stage, text, Records("npz", iter([longer])))
        runs[number], dtype = ran.rows, ran.dtype
    return Ran("pipeline", "pipeline", [], dtype, runs)


def swept_stages(ran: Ran, dtype: str) -> Record:
    """The FLOPs and the bytes of each stage at each length: x (run, curve)."""
    totals = {number: counting.total_stages(rows) for number, rows in ran.runs.items()}
    stages = [*dict.fromkeys(stage for one in totals.values() for stage in one)]
    size = counting.ITEMSIZES[dtype]
    curves = [f"{stage} {unit}" for unit in ("FLOPs", "bytes") for stage in stages]
    rows = [
        [one[stage].flops for stage in stages] + [size * (one[stage].read + one[stage].written) for stage in stages]
        for one in totals.values()
    ]
    runs = [f"{number} tokens" for number in totals]
    return Record({"x": Tensor(np.array(rows, np.int64), ("run", "curve"))}, {"run": runs, "curve": curves})


def read_trace(stage: Stage, path: str) -> Ran:
    """Read a trace, and count the layers that it has by the model that made it."""
    from attnkit.interpret.trace_cost import count_trace, model_of_history

    source, _ = operands.open_operand(path, hash=True)
    with source:
        records = [*formats.read(source, lone_is_x=False, maps=True)]
        if len(records) != 1:
            raise DataError(f"expected one trace, got {counted(len(records), 'record')}", source.name)
        with name_errors(source.name):
            folder = model_of_history(records[0].history)
            checkpoint = operands.load_model(folder)
            counts = count_trace(records[0], checkpoint)
        if source.name != "<stdin>":
            stage.files.digests |= {source.name: source.digest()}
    names = [tensor.array.dtype.name for tensor in records[0].tensors.values()]
    dtype = next((name for name in names if name in counting.ITEMSIZES), "float32")
    return Ran("trace", f"trace of {folder}", counts, dtype)


def read_given(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Open the models, or run the pipeline, of a caller in Python."""
    stage.operands = tuple(os.fspath(one) for one in inputs if one is not None)
    return read_counted(stage, None)


def parse_sweep(value: str) -> str:
    """Check NAME=A:B."""
    match = SWEEP.fullmatch(value)
    most = {"tokens": MOST, "generate": MOST_GENERATED, "batch": MOST_TEXTS}
    if not match or not int(match[2]) <= int(match[3]) <= most[match[1]]:
        limits = f"{MOST} tokens, {MOST_GENERATED} generated tokens or {MOST_TEXTS} texts"
        raise ValueError(f"tokens=A:B, generate=A:B or batch=A:B, with A at most B, and at most {limits}")
    return value


def parse_size(value: str) -> str:
    """Check WIDTHxHEIGHT.

    >>> parse_size("640x480")
    '640x480'
    """
    if not SIZE.fullmatch(value):
        raise ValueError("WIDTHxHEIGHT in pixels, each up to 99999, such as 640x480")
    return value


def sweep_values(text: str) -> tuple[str, list[int]]:
    """The name of a sweep and its numbers, doubled from one to the next.

    The last one is always there.

    >>> sweep_values("tokens=100:500")
    ('tokens', [100, 200, 400, 500])
    """
    name, _, span = text.partition("=")
    first, last = map(int, span.split(":"))
    numbers = [first << power for power in range((last // first).bit_length())]
    return name, numbers if numbers[-1] == last else [*numbers, last]


def view_cost(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    tables = list_tables(record, stage)
    if tables is None:
        return display.computed_view(record, style)
    curves = [display.Only("figure", one) for one in list_curves(record)] if is_sweep(record) else []
    return display.ResultView([*tables, *curves], lambda: list_rows(record, stage))


def is_sweep(record: Record) -> bool:
    return "x" in record and record.axes_of("x") == ("run", "curve")


def list_curves(record: Record) -> list[display.Curves]:
    """Curves of FLOPs, and of bytes."""
    names, curves = shared_labels(record.labels["curve"]), []
    for unit in ("FLOPs", "bytes"):
        columns = [at for at, name in enumerate(names) if unit in name]
        tensor = Tensor(record["x"][:, columns].astype(np.float64), ("run", "curve"))
        labels: dict[str, Labels] = {"run": record.labels["run"], "curve": [names[at] for at in columns]}
        curves.append(display.Curves(display.tensor_view(Record({unit: tensor}, labels), unit)))
    return curves


def list_tables(record: Record, stage: Stage) -> list[display.TextTable] | None:
    """The tables of a record; None if --only left out what they show."""
    if "x" not in record:
        return None
    axes = record.axes_of("x")
    if axes == ("run", "curve"):
        return [sweep_table(record)]
    if axes == ("tokens", "layer", "quantity"):
        return [paper_table(record)]
    if "shape" not in record or "weights" not in record:
        return None
    return pair_tables(record) if len(record["weights"]) > 1 else stage_tables(record, stage)


def stage_tables(record: Record, stage: Stage) -> list[display.TextTable]:
    """A table of each phase: its stages, their total, and what stays in memory."""
    tables, seconds = [], record.get("seconds")
    for number, (phase, rows) in enumerate(list_phases(record)):
        total = add_rows(rows)
        cells = [row_texts(row, total) for row in [*rows, total]]
        hidden = [] if stage.parameters["elementwise"] else [HEADS.index("elementwise")]
        hidden += [at for at in (HEADS.index("params"), HEADS.index("KV/token")) if not any(row[at] for row in cells)]
        heads = [*HEADS]
        if seconds is not None:
            names = shared_labels(record.labels["stage"])
            times = dict(zip(names, seconds[number].tolist(), strict=True))
            times["total"] = [float(np.nansum([times[row.name][at] for row in rows])) for at in (0, 1)]
            cells = [[*row, *time_texts(row[0], times[row[0]], record)] for row in cells]
            heads += [*TIMES]
            hidden += [HEADS.index("params"), HEADS.index("KV/token"), HEADS.index("share")]
        shown = [at for at in range(len(heads)) if at not in hidden]
        picked = [[row[at] for at in shown] for row in [heads, *cells]]
        numbers = [at for at, of in enumerate(shown) if of > 1]
        tables.append(display.TextTable(picked[0], picked[1:], numbers, phase))
    tables[-1] = tables[-1]._replace(footer=memory_text(record))
    return tables


def time_texts(name: str, times: Sequence[float], record: Record) -> list[str]:
    """What bounds a stage, and its milliseconds as predicted and as measured."""
    bound = "" if name == "total" else "products" if is_bound_by_products(name, record) else "memory"
    return [bound, *("" if np.isnan(one) else f"{1000 * one:.3f} ms" for one in times)]


def is_bound_by_products(name: str, record: Record) -> bool:
    at = shared_labels(record.labels["stage"]).index(name)
    _, flops, _, read, written, _ = record["x"][0, at].tolist()
    return bool(flops * float(record["bandwidth"]) > (read + written) * float(record["flops"]))


def pair_tables(record: Record) -> list[display.TextTable]:
    """Two models side by side: a table of each phase, with a row for each stage."""
    phases, names = list(list_phases(record)), shared_labels(record.labels["model"])
    half, tables = len(phases) // 2, []
    for (title, first), (_, second) in zip(phases[:half], phases[half:], strict=True):
        sides = [{row.name: row for row in [*rows, add_rows(rows)]} for rows in (first, second)]
        rows = [name for name in dict.fromkeys([*sides[0], *sides[1]]) if name != "total"]
        total = add_rows(first)
        cells = []
        for name in [*rows, "total"]:
            texts = [row_texts(side[name], total) if name in side else [""] * len(HEADS) for side in sides]
            cells.append([name, *(text[HEADS.index(head)] for head in PAIRED for text in texts)])
        heads = ["stage", *(f"{head} {side}" for head in PAIRED for side in "AB")]
        shown = [0, *(at for at in range(1, len(heads)) if any(row[at] for row in cells))]
        phase = title.partition(": ")[2]
        picked = [[row[at] for at in shown] for row in [heads, *cells]]
        title = f"{phase}, A {names[0]}, B {names[1]}"
        tables.append(display.TextTable(picked[0], picked[1:], range(1, len(shown)), title))
    tables[-1] = tables[-1]._replace(footer=memory_text(record))
    return tables


def sweep_table(record: Record) -> display.TextTable:
    """What each run of a sweep costs, and where scores cost more than projections."""
    names, runs = shared_labels(record.labels["curve"]), shared_labels(record.labels["run"])
    cells = []
    for run, numbers in zip(runs, record["x"].tolist(), strict=True):
        texts = [
            format_bytes(number) if "bytes" in name else format_count(number)
            for name, number in zip(names, numbers, strict=True)
        ]
        cells.append([run, *texts])
    footer = describe_crossing(names, runs, record["x"].tolist())
    return display.TextTable(["run", *names], cells, range(1, len(names) + 1), footer=footer)


def describe_crossing(names: Sequence[str], runs: Sequence[str], rows: Sequence[Sequence[int]]) -> str:
    """The run from which on scores cost more than weights, or a stage than another.

    >>> names = ["1.a FLOPs", "2.b FLOPs", "1.a bytes", "2.b bytes"]
    >>> describe_crossing(names, ["2", "4"], [[1, 3, 0, 0], [5, 3, 0, 0]])
    'from 4 on 1.a has more FLOPs than 2.b'
    """
    kinds = [next((at for at, name in enumerate(names) if of in name), -1) for of in ("of weights", "of scores")]
    if len(names) == len(counting.CURVES) and min(kinds) >= 0:
        passed = [run for run, row in zip(runs, rows, strict=True) if row[kinds[1]] > row[kinds[0]]]
        return f"from {passed[0]} on scores cost more than products with weights" if passed else ""
    if len(names) != 4 or not names[1].endswith(" FLOPs"):
        return ""
    for more, less in ((0, 1), (1, 0)):
        passed = [run for run, row in zip(runs, rows, strict=True) if row[more] > row[less]]
        if passed and len(passed) < len(runs) and passed[0] != runs[0]:
            stages = [names[at].removesuffix(" FLOPs") for at in (more, less)]
            return f"from {passed[0]} on {stages[0]} has more FLOPs than {stages[1]}"
    return ""


def paper_table(record: Record) -> display.TextTable:
    """Table 1 of the paper, in numbers, for each length."""
    lengths, layers = shared_labels(record.labels["tokens"]), shared_labels(record.labels["layer"])
    seconds, cells = record.get("seconds"), []
    heads = ["n", "layer", "operations", "one after another", "longest path"] + ["measured"] * (seconds is not None)
    for at, length in enumerate(lengths):
        for number, layer in enumerate(layers):
            row = [format_count(one) for one in record["x"][at, number].tolist()]
            time = float("nan") if seconds is None else float(seconds[at, number])
            measured = [] if seconds is None else ["–" if np.isnan(time) else f"{1000 * time:.3f} ms"]
            cells.append([length, layer, *row, *measured])
    width, window, kernel = record["sizes"].tolist()
    footer = f"d = {width}, r = {window}, k = {kernel}; where n > d, attention has more operations than recurrence"
    return display.TextTable(heads, cells, [0, *range(2, len(heads))], "Table 1: n² d, r n d, n d², k n d²", footer)


class CostRow(NamedTuple):
    """A stage of a phase: its shape and its quantities."""

    name: str
    shape: tuple[int, ...]
    parameters: int
    flops: int
    elementwise: int
    read: int
    written: int
    cached: int


def add_rows(rows: Sequence[CostRow]) -> CostRow:
    """The total of some stages."""
    return CostRow("total", (), *(sum(getattr(row, name) for row in rows) for name in QUANTITIES))


def row_texts(row: CostRow, total: CostRow) -> list[str]:
    moved, flops = row.read + row.written, row.flops + row.elementwise
    share = f"{100 * row.flops / total.flops:.1f} %" if row.flops else ""
    return [
        row.name,
        " ".join(map(str, row.shape)),
        format_count(row.parameters),
        format_count(row.flops),
        format_count(row.elementwise),
        format_bytes(moved),
        f"{flops / moved:.2f}" if moved and flops else "",
        format_bytes(row.cached) if row.cached else "",
        share,
    ]


def list_phases(record: Record) -> Iterator[tuple[str, list[CostRow]]]:
    """Yield each phase and its rows, without those that it does not run."""
    names = shared_labels(record.labels["stage"])
    phases = shared_labels(record.labels["phase"]), record["x"].tolist(), record["shape"].tolist()
    for phase, numbers, sizes in zip(*phases, strict=True):
        shapes = [tuple(size for size in shape if size) for shape in sizes]
        rows = [CostRow(name, shape, *row) for name, shape, row in zip(names, shapes, numbers, strict=True)]
        yield phase, [row for row in rows if any(row[2:])]


def memory_text(record: Record) -> str:
    """The memory for weights, cache and training; and the speed of the machine."""
    names = [*counting.HELD, "weights"]
    sides = shared_labels(record.labels["model"])
    parts = []
    for side, model in enumerate(sides):
        held = [f"{name.replace('_', ' ')} {format_bytes(int(record[name][side]))}" for name in names[::-1]
                if name in record and record[name][side]]  # fmt: skip
        is_named = len(sides) > 1 or model.endswith(")")  # one that is marked
        parts.append(f"{model}: {', '.join(held)}" if is_named else ", ".join(held))
    if "flops" in record:
        rates = f"{float(record['flops']) / 1e9:.1f} GFLOP/s", f"{float(record['bandwidth']) / 1e9:.1f} GB/s"
        parts.append(f"this machine: {rates[0]}, {rates[1]}")
    return "; ".join(parts)


def list_rows(record: Record, stage: Stage) -> Cells:
    if list_tables(record, stage) is None:
        return views.computed_cells(record, stage)
    if is_sweep(record):
        names, runs = shared_labels(record.labels["curve"]), shared_labels(record.labels["run"])
        return Cells(["run", *names], [[run, *row] for run, row in zip(runs, record["x"].tolist(), strict=True)])
    headings = shared_labels(record.labels["quantity"])
    if "layer" in record.labels:
        lengths, layers = shared_labels(record.labels["tokens"]), shared_labels(record.labels["layer"])
        seconds = record.get("seconds")
        cells = []
        for at, length in enumerate(lengths):
            for number, layer in enumerate(layers):
                times = [] if seconds is None else [seconds[at, number]]
                cells.append([length, layer, *record["x"][at, number].tolist(), *times])
        return Cells(["tokens", "layer", *headings, *["seconds"] * (seconds is not None)], cells)
    seconds, names = record.get("seconds"), shared_labels(record.labels["stage"])
    rows = []
    for number, (phase, listed) in enumerate(list_phases(record)):
        for row in listed:
            times = [] if seconds is None else seconds[number, names.index(row.name)].tolist()
            rows.append([phase, row.name, " ".join(map(str, row.shape)), *row[2:], *times])
    timed_heads = [] if seconds is None else ["seconds predicted", "seconds measured"]
    return Cells(["phase", "stage", "shape", *headings, *timed_heads], rows)


@tool(
    operand="DIR [DIR] | PIPELINE | TRACE",
    reader=read_counted,
    gives="answer",
    view=view_cost,
    check_finite=lambda parameters: False,
    keep_names=True,
    without=("dtype", "check_finite", "tokens", "precision"),
    sections={
        "What runs": "tokens image generate batch train dtype sweep",
        "Rows": "parts elementwise measure",
        "Table 1": "paper window kernel",
    },
    rules=Constraints(
        exclusive=[
            *(("generate", name) for name in ("train", "measure", "paper")),
            *(("train", name) for name in ("measure", "paper")),
            *(("parts", name) for name in ("measure", "paper", "sweep")),
            *(("elementwise", name) for name in ("paper", "sweep")),
            *(("paper", name) for name in ("batch", "dtype")),
            *(("image", name) for name in ("train", "sweep", "measure", "paper")),
        ],
        requires=[("window", "paper"), ("kernel", "paper")],
    ),
    python=PythonForm(
        inputs={"model": "str | os.PathLike[str]", "other": "str | os.PathLike[str] | None"},
        reader=read_given,
        result="Record",
    ),
)
def cost(
    models: Models | Ran,
    *,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            metavar="T",
            help="number of tokens of each text, or of the prompt [default: 128, or the longest text of the model]",
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            parser=parse_size,
            metavar="WxH",
            help="a picture of this width and height in each text, of a model that reads pictures: its tiles, its "
            "tower, and its tokens, beside those of --tokens",
        ),
    ] = "",
    generate: Annotated[
        int,
        typer.Option(
            min=0, max=MOST_GENERATED, metavar="N", help="number of tokens that are generated after the prompt"
        ),
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, max=MOST_TEXTS, metavar="B", help="number of texts of a batch")] = 1,
    train: Annotated[
        bool, typer.Option(help="count a step of training: forward, backward, and what AdamW keeps")
    ] = False,
    dtype: Annotated[
        str | None,
        options.choice(
            counting.ITEMSIZES,
            "dtype of weights, cache and results, by which bytes are counted [default: float32; of a pipeline or a "
            "trace its own]",
        ),
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            parser=parse_sweep,
            metavar="NAME=A:B",
            help="totals for tokens, generate or batch from A to B, each twice the one before: tokens=128:131072; of a "
            "pipeline each stage, for x of standard input repeated to so many tokens",
        ),
    ] = "",
    parts: Annotated[
        bool, typer.Option(help="a row for each intermediate, such as decoder.#.self.scores, instead of each layer")
    ] = False,
    elementwise: Annotated[
        bool, typer.Option(help="show the FLOPs besides products: norms, softmax, activations, residuals")
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            help="measure this machine and a pass over random tokens: what bounds each stage, and its predicted and "
            "measured time; with --paper the time of each layer"
        ),
    ] = False,
    paper: Annotated[
        bool,
        typer.Option(help="Table 1 of the paper in numbers for the width of the model, and the lengths of --sweep"),
    ] = False,
    window: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="R", help="keys of each query of restricted self-attention")
    ] = 64,
    kernel: Annotated[int, typer.Option(min=2, max=1000, metavar="K", help="width of the convolution")] = 3,
) -> Record:
    """Count what a model costs: FLOPs, bytes, parameters and cache of every stage.

    DIR is the folder of a model; nothing is run without --measure. Two models are set side by side. A PIPELINE in
    quotes is run once, for what standard input holds, and its stages are counted for all records together. A TRACE of
    encode or decode is counted by the model that its history names: one pass over its tokens, through the layers that
    it has. The stages have the names of a trace, equal layers in one row with # for their number.

    FLOPs are those of products, 2 M K N of (M, K) times (K, N), as they run: scores are those of all queries and keys,
    also blocked ones, and where there are so many that they are computed in tiles, those of the tiles that are not
    skipped. With --generate, the prompt and the generated tokens, each of which attends to the cache, are two tables.
    Without it, one pass over the texts computes the logits of every token; the decoder of an encoder-decoder model
    reads as many tokens as its encoder, which for Whisper always reads a whole sound.

    A table shows bytes read and written together, FLOPs per byte of them (elementwise ones included), the bytes that a
    token adds to the cache of keys and values, and the share of the FLOPs. Training counts two products in the
    backward pass for each of the forward pass, gradients, and two moments of each parameter. The record has x (phase,
    stage, quantity), whole numbers, which csv and markdown list. The least cache is that of the keys in windows, or of
    latent vectors.

    With --image WIDTHxHEIGHT, the tower of pictures is a table of its own, whose title says how many tiles the picture
    is cut into and how many tokens it becomes; the text has these and those of --tokens [none].

    With --sweep tokens=A:B, a PIPELINE is run at each length: x of standard input is cut or repeated, and the table has
    the FLOPs and the bytes of each stage.

    --measure predicts the time of a stage by the slower of its products and its bytes, at the rates of a large product
    and of a copy. --paper has the operations of a layer, the steps that must follow one another, and the longest path
    between two tokens: self-attention that is called O(1) has one such step, and n² d operations.

    \b
    Examples:
      attnkit cost 'embed "The cat sat" --dim 8 | attend --heads 2 --seed 1 | ffn --hidden 32' --parts
      attnkit cost DIR --tokens 1024
      attnkit cost DIR --tokens 1024 --generate 100 --dtype bfloat16
      attnkit cost DIR OTHER --sweep tokens=128:131072 -o cost.svg
      attnkit cost DIR --paper --sweep tokens=128:4096 --measure
    """
    if isinstance(models, Ran):
        given = {"tokens": tokens, "generate": generate, "batch": batch > 1, "train": train}
        given |= {"image": bool(image), "sweep": bool(sweep) and not models.runs, "measure": measure, "paper": paper}
        return ran_record(models, given, dtype or models.dtype, parts)
    if measure and dtype not in (None, "float32"):
        raise UsageError(f"measures a pass in float32, not in {dtype}", "--measure")
    dtype = dtype or "float32"
    shapes = [counting.count_model(checkpoint) for checkpoint in models.checkpoints]
    if image:
        return picture_record(models, image, counting.Workload(tokens or 0, generate, batch), dtype, not parts)
    name, numbers = sweep_values(sweep) if sweep else ("", [])
    if {"tokens": tokens is not None, "generate": generate > 0, "batch": batch > 1}.get(name):
        raise UsageError(f"--sweep {sweep} states it already", f"--{name}")
    most = numbers[-1] if name == "generate" else generate
    usual = min(counting.default_tokens(one.config, most) for one in shapes)
    run = counting.Workload(tokens or usual, generate, batch, train)
    name, numbers = (name, numbers) if sweep else ("tokens", [run.tokens])
    for flag, is_set in (("--measure", measure), ("--paper", paper)):
        if is_set and len(shapes) > 1:
            raise UsageError("needs one model, not two", flag)
    if paper:
        if name != "tokens":
            raise UsageError(f"--paper needs lengths of texts: --sweep tokens=A:B, got {sweep}", "--sweep")
        from attnkit.interpret.roofline import paper_record

        return paper_record(shapes[0], numbers, window, kernel, measure)
    if sweep:
        if measure:
            raise UsageError("cannot be combined with --sweep without --paper", "--measure")
        stated = run._asdict()
        runs = {f"{number} {SPELLED[name]}": counting.Workload(**stated | {name: number}) for number in numbers}
        return swept_record(dict(zip(models.names, shapes, strict=True)), runs, name, dtype)
    record = counting.cost_record(dict(zip(models.names, shapes, strict=True)), run, dtype, by_layer=not parts)
    if not measure:
        return record
    from attnkit.interpret.roofline import measured_record

    return measured_record(record, models.checkpoints[0], run)


def picture_record(models: Models, image: str, run: counting.Workload, dtype: str, by_layer: bool) -> Record:
    """The cost of texts with a picture: its tower, then the text with its tokens.

    UsageError for two models, or for a model whose texts hold no pictures.
    """
    if len(models.checkpoints) > 1:
        raise UsageError("needs one model, not two", "--image")
    from attnkit.inputs import picture_prompts

    width, height = map(int, image.split("x"))
    (checkpoint,), (name,) = models.checkpoints, models.names
    picture_prompts.require_pictures(checkpoint)
    tiles = picture_prompts.find_tiles(checkpoint, (height, width))
    text, tower = (counting.count_model(checkpoint.tower(part)) for part in ("text", "vision"))
    run = run._replace(tokens=run.tokens + tiles.tokens)
    seen = counting.count_picture(tower, run.batch * tiles.number, tiles.edge)
    phases = {f"picture of {image}: {tiles.describe()}": seen}
    phases |= {counting.describe_phase(phase, run): rows for phase, rows in counting.count_phases(text, run).items()}
    held = {name: {"weights": text.parameters + tower.parameters} | counting.count_held(text, run)}
    return counting.phases_record(phases, held, dtype, by_layer)


def ran_record(ran: Ran, given: Mapping[str, Any], dtype: str, parts: bool) -> Record:
    """The record of stages that ran.

    UsageError for an option of models among those that are given.
    """
    if flag := next((name for name, value in given.items() if value), None):
        raise UsageError(f"needs the folder of a model, not a {ran.kind}", f"--{flag}")
    if ran.runs:
        return swept_stages(ran, dtype)
    held = {ran.title: {"weights": sum(one.parameters for one in ran.rows)}}
    return counting.phases_record({ran.title: ran.rows}, held, dtype, by_layer=not parts)


SPELLED = {"tokens": "tokens", "generate": "generated", "batch": "texts"}


def swept_record(
    models: Mapping[str, ModelShapes], runs: Mapping[str, counting.Workload], name: str, dtype: str
) -> Record:
    """The totals of runs; UsageError for a number that --sweep gives to an option."""
    try:
        return counting.sweep_record(models, runs, dtype)
    except UsageError as error:
        raise UsageError(error.problem, "--sweep" if error.name == f"--{name}" else error.name) from None
