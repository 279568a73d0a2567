"""attnkit cost: what a model costs: FLOPs, bytes, parameters and cache, stage by stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnkit import display
from attnkit.cli import figures, operands, options
from attnkit.cli.constraints import Constraints
from attnkit.cli.tool import PythonForm, Records, ResultViews, Stage, tool
from attnkit.display.cells import Cells
from attnkit.errors import UsageError, counted, format_bytes
from attnkit.interpret import cost as counting
from attnkit.interpret.cost import QUANTITIES, format_count
from attnkit.records import Record, shared_labels

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.display.figures import FigureOptions, Section

MOST = 10_000_000  # tokens
HEADS = ("stage", "shape", "params", "FLOPs", "elementwise", "bytes", "FLOP/B", "KV/token", "share")


@dataclass(frozen=True)
class Models:
    """The models of one call: their folders, and what is counted of them."""

    folders: Sequence[str]
    checkpoints: "Sequence[Checkpoint]"


def read_models(stage: Stage, upstream: Records | None) -> Records:
    """Open the folder of a model."""
    if len(stage.operands) != 1:
        raise UsageError(f"expected the folder of a model, got {counted(len(stage.operands), 'operand')}")
    return Records(None, iter([open_models(stage)]))


def open_models(stage: Stage) -> Models:
    checkpoints = [operands.load_operand(folder, "model")[0] for folder in stage.operands]
    stage.files.loaded |= dict(zip(("folder", "other"), checkpoints, strict=False))
    return Models(stage.operands, checkpoints)


def read_folders(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Open the model of a caller in Python."""
    stage.operands = tuple(str(one) for one in inputs)
    return Records(None, iter([open_models(stage)]))


def render_cost(record: Record, stage: Stage, style: display.Style) -> str:
    return "\n\n".join(display.format_table(table, style) for table in list_tables(record, stage))


def draw_cost(record: Record, stage: Stage, figure_options: "FigureOptions") -> "list[Section]":
    return [figures.table_section(table) for table in list_tables(record, stage)]


def list_tables(record: Record, stage: Stage) -> list[display.TextTable]:
    """A table of each phase: its stages, their total, and what stays in memory."""
    tables = []
    for phase, rows in list_phases(record):
        total = CostRow("total", (), *(sum(getattr(row, name) for row in rows) for name in QUANTITIES))
        cells = [row_texts(row, total) for row in [*rows, total]]
        hidden = [] if stage.parameters["elementwise"] else [HEADS.index("elementwise")]
        hidden += [at for at in (HEADS.index("params"), HEADS.index("KV/token")) if not any(row[at] for row in cells)]
        shown = [at for at in range(len(HEADS)) if at not in hidden]
        picked = [[row[at] for at in shown] for row in [HEADS, *cells]]
        numbers = [at for at, of in enumerate(shown) if of > 1]
        tables.append(display.TextTable(picked[0], picked[1:], numbers, phase))
    tables[-1] = tables[-1]._replace(footer=memory_text(record))
    return tables


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
    """What stays in memory: weights, cache, and the state of training."""
    parts = [f"weights {format_bytes(int(record['weights']))}"]
    parts += [f"{name.replace('_', ' ')} {format_bytes(int(record[name]))}" for name in counting.HELD if name in record]
    return ", ".join(parts)


def list_rows(record: Record, stage: Stage) -> Cells:
    headings = ["phase", "stage", "shape", *shared_labels(record.labels["quantity"])]
    rows = [
        [phase, row.name, " ".join(map(str, row.shape)), *row[2:]]
        for phase, rows in list_phases(record)
        for row in rows
    ]
    return Cells(headings, rows)


@tool(
    operand="DIR",
    reader=read_models,
    gives="answer",
    views=ResultViews(table=render_cost, figure=draw_cost, cells=list_rows),
    check_finite=lambda parameters: False,
    keep_names=True,
    without=("dtype", "check_finite", "tokens", "precision"),
    sections={"What runs": "tokens generate batch train dtype", "Rows": "parts elementwise"},
    rules=Constraints(exclusive=[("train", "generate")]),
    python=PythonForm(inputs={"model": "str | os.PathLike[str]"}, reader=read_folders, result="Record"),
)
def cost(
    models: Models,
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
    generate: Annotated[
        int, typer.Option(min=0, max=1 << 17, metavar="N", help="number of tokens that are generated after the prompt")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, max=1 << 20, metavar="B", help="number of texts of a batch")] = 1,
    train: Annotated[
        bool, typer.Option(help="count a step of training: forward, backward, and what AdamW keeps")
    ] = False,
    dtype: Annotated[
        str,
        options.choice(counting.ITEMSIZES, "dtype of weights, cache and results, by which bytes are counted"),
    ] = "float32",
    parts: Annotated[
        bool, typer.Option(help="a row for each intermediate, such as decoder.#.self.scores, instead of each layer")
    ] = False,
    elementwise: Annotated[
        bool, typer.Option(help="show the FLOPs besides products: norms, softmax, activations, residuals")
    ] = False,
) -> Record:
    """Count what a model costs: FLOPs, bytes read and written, parameters and KV cache, of every stage that runs.

    DIR is the folder of a model; nothing is run. The stages have the names of a trace, equal layers in one row with #
    for their number. FLOPs are those of products, 2 M K N of (M, K) times (K, N), as they run: scores are those of all
    queries and keys, also blocked ones, and where there are so many that they are computed in tiles, those of the tiles
    that are not skipped. With --generate, the prompt and the generated tokens, each of which attends to the cache, are
    two tables. Without it, one pass over the texts computes the logits of every token.

    A table shows bytes read and written together, FLOPs per byte of them (elementwise ones included), the bytes that a
    token adds to the cache of keys and values, and the share of the FLOPs. Training counts two products in the backward
    pass for each of the forward pass, gradients, and two moments of each parameter. The record has x (phase, stage,
    quantity), whole numbers, which csv and markdown list.

    \b
    Examples:
      attnkit cost DIR --tokens 1024
      attnkit cost DIR --tokens 1024 --generate 100 --dtype bfloat16
      attnkit cost DIR --train --batch 8 -f csv
    """
    model = counting.count_model(models.checkpoints[0])
    run = counting.Workload(tokens or counting.default_tokens(model.config), generate, batch, train)
    return counting.cost_record(model, run, dtype, by_layer=not parts)
