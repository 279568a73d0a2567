"""attnkit heads: the attention of each head and its kind, or its weights."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import display, options
from attnkit.cli.calls import make_item, named_files, tool
from attnkit.cli.stage import Stage, read_records
from attnkit.cli.text_input import is_text_alone, trace_of_text
from attnkit.cli.tool import PythonForm, Records
from attnkit.display.cells import Cells
from attnkit.errors import DataError, UsageError
from attnkit.interpret import head_scores, head_weights
from attnkit.interpret.head_weights import COMPOSITION
from attnkit.model.formulas.head_circuits import MODES
from attnkit.records import Record, join_names, shared_labels

SHORT = {"previous": "prev", "duplicate": "dup", "induction": "ind"}  # in the headings of a narrow table
UNDEFINED = "–"
MANY = 32  # heads of a table, above which a grid of their kinds comes first
TRACE = ("kind", "pair")  # the tensors beside x of a trace, and of a model
MODE_HEADINGS = tuple(f"{mode.upper()} from" for mode in MODES)
TEXT_HEADINGS = ("head", "kind", "largest pair", *MODE_HEADINGS)


def view_head_scores(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    if not has_rows(record):
        return display.computed_view(record, style)
    grids = [display.Only("terminal", table) for table in kind_grids(record)]
    return display.ResultView([*grids, *head_tables(record, style)], lambda: head_cells(record))


def head_tables(record: Record, style: display.Style) -> list[display.TextTable]:
    """A table of the heads of each kind of layer, with rows N:H."""
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(shared_labels(record.labels.get("head"))):
        groups.setdefault(layer_pattern(name), []).append(row)
    describe = trace_cells if "kind" in record else weight_cells
    tables = []
    for pattern, rows in groups.items():
        headings, cells = describe(record, rows, style)
        numbers = [at for at, heading in enumerate(headings) if heading not in TEXT_HEADINGS]
        tables.append(display.TextTable(headings, cells, numbers, table_title(record, pattern)))
    return tables


def kind_grids(record: Record) -> list[display.TextTable]:
    """Draw a grid of each kind of layer with the letter of each head's kind.

    Where a trace has many heads.
    """
    names = shared_labels(record.labels.get("head"))
    if len(names) <= MANY or "kind" not in record:
        return []
    kinds = dict(zip(names, shared_labels(record.labels.get("kind")), strict=True))
    grids: dict[str, dict[str, dict[int, str]]] = {}
    for name in names:
        layer, _, head = name.rpartition(":")
        if layer and head.isdigit():
            grids.setdefault(layer_pattern(name), {}).setdefault(layer, {})[int(head)] = kinds[name][:1]
    tables = []
    for pattern, layers in grids.items():
        columns = range(max(max(heads) for heads in layers.values()) + 1)
        rows = [
            [layer.split(".")[1] if "." in layer else layer, *(heads.get(at, "") for at in columns)]
            for layer, heads in sorted(layers.items(), key=lambda row: natural(row[0]))
        ]
        counts = Counter(kinds[name] for name in names if layer_pattern(name) == pattern)
        footer = ", ".join(f"{kind[:1]} {kind}: {count}" for kind, count in counts.most_common())
        tables.append(display.TextTable(["layer", *map(str, columns)], rows, (), f"kinds of {pattern}", footer))
    return tables


def natural(name: str) -> list[int]:
    """The numbers in a name, by which layers are sorted.

    >>> natural("decoder.10.self")
    [10]
    """
    return [*map(int, re.findall(r"\d+", name))]


def has_rows(record: Record) -> bool:
    """Whether --only left the tensors that the table of heads needs."""
    return any({"x", *names} <= {*record} for names in (TRACE, COMPOSITION))


def layer_pattern(name: str) -> str:
    """The name of a head with N for the number of its layer, and H for its own.

    >>> layer_pattern("decoder.10.self:3"), layer_pattern("3")
    ('decoder.N.self:H', 'H')
    """
    return re.sub(r"\d+$", "H", re.sub(r"\.\d+\.", ".N.", name))


def table_title(record: Record, pattern: str) -> str:
    texts = int(record["texts"]) if "texts" in record else 0
    of = f", mean of {texts} texts" if texts > 1 else ""
    return f"heads N:H of {pattern}{of}" if "N" in pattern else f"heads{of}"


def trace_cells(record: Record, rows: list[int], style: display.Style) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of the scores of heads, without undefined columns."""
    names, kinds, pairs = (shared_labels(record.labels.get(axis)) for axis in ("score", "kind", "pair"))
    defined = [at for at in range(len(names) - 1) if not np.isnan(record["x"][rows, at]).all()]
    cells = []
    for row in rows:
        *numbers, largest = (format_cell(score, style.cell_precision) for score in record["x"][row])
        cells.append([head_name(record, row), kinds[row], *(numbers[at] for at in defined), f"{largest} {pairs[row]}"])
    return ["head", "kind", *(SHORT.get(names[at], names[at]) for at in defined), "largest pair"], cells


def weight_cells(record: Record, rows: list[int], style: display.Style) -> tuple[list[str], list[list[str]]]:
    cells = []
    for row in rows:
        copying, *scores = (format_cell(score, style.precision) for score in record["x"][row])
        sources = [head_name(record, source, "earlier") for source in strongest_heads(record, row)]
        composed = [f"{score} {source}".strip() for score, source in zip(scores, sources, strict=True)]
        cells.append([head_name(record, row), copying, *composed])
    return ["head", "copying", *MODE_HEADINGS], cells


def strongest_heads(record: Record, row: int) -> list[int]:
    """The earlier heads that a head composes with most, by q, k and v; -1: none."""
    scores = [record[name][row] for name in COMPOSITION]
    return [-1 if np.isnan(one).all() else int(np.nanargmax(one)) for one in scores]


def head_name(record: Record, at: int, axis: str = "head") -> str:
    """The name of a head without its stack: `1:3` for decoder.1.self:3; "" for -1."""
    name = shared_labels(record.labels.get(axis))[at] if at >= 0 else ""
    match = re.search(r"\.(\d+)\.[^:]*(:\d+)$", name)
    return match[1] + match[2] if match else name


def format_cell(score: float, precision: int) -> str:
    """A score as text, with a dash if it is not defined.

    >>> format_cell(0.125, 2), format_cell(float("nan"), 2)
    ('0.12', '–')
    """
    return UNDEFINED if np.isnan(score) else f"{score:.{precision}f}"


def head_cells(record: Record) -> Cells:
    names, scores, earlier = (shared_labels(record.labels.get(axis)) for axis in ("head", "score", "earlier"))
    if "kind" in record:
        kinds, pairs = (shared_labels(record.labels.get(axis)) for axis in ("kind", "pair"))
        beside: dict[str, Any] = {"pair": pairs, "kind": kinds, "measure": record["kind"]}
    else:
        sources = [strongest_heads(record, row) for row in range(len(names))]
        columns = ([earlier[at] if at >= 0 else None for at in column] for column in zip(*sources, strict=True))
        beside = {f"{mode}_from": column for mode, column in zip(MODES, columns, strict=True)}
    rows = zip(names, record["x"], *beside.values(), strict=True)
    return Cells(["head", *scores, *beside], [[name, *x, *values] for name, x, *values in rows])


COLUMNS = tuple(dict.fromkeys((*head_scores.COLUMNS, *head_weights.COLUMNS)))


def read_traces(stage: Stage, upstream: Records | None) -> Records:
    folder = stage.files.values.get("model_")
    if isinstance(folder, str) and is_text_alone(stage):
        from attnkit.checkpoints import open_checkpoint

        head_weights.find_attention_layers(open_checkpoint(folder))
    if stage.operands and (trace := trace_of_text(stage, "*.self.weights")) is not None:
        stage.parameters["model_"] = None  # the history of the trace names it
        return Records(None, iter([trace]))
    if stage.operands and stage.parameters["model_"] is not None:
        raise UsageError("a trace in a file needs no model; --model alone describes its weights", "--model")
    records = read_records(stage, upstream)
    return records._replace(items=join_records(records.items))


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Read a record, several of them, or the name of a file from a caller in Python."""
    value = inputs[0] if inputs else None
    if (value is None) != stage.tool.needs_no_input(stage.parameters):
        raise UsageError("heads needs a trace or a model, not both")
    if paths := named_files(stage.tool, value):
        stage.operands = paths
        return read_traces(stage, None)
    many = value if isinstance(value, Iterable) and not isinstance(value, Record | np.ndarray) else [value]
    return Records(None, join_records(make_item(stage.tool, one) for one in many))


def join_records(records: Iterator[Record | None]) -> Iterator[Record | Iterator[Record | None] | None]:
    """Yield one item: the only record, with its history, or the stream of several."""
    first, second = next(records, None), next(records, None)
    yield first if second is None else chain((first, second), records)


@tool(
    reader=read_traces,
    view=view_head_scores,
    keep_names=True,
    gives="answer",
    without=("dtype", "check_finite"),
    needs_no_input=lambda parameters: parameters["model_"] is not None,
    python=PythonForm(inputs={"trace": "TensorLike | Sequence[Record] | None"}, reader=read_values),
)
def heads(
    trace: Record | Iterable[Record] | None,
    *,
    model_: options.Model = None,
    sort: Annotated[
        str | None, options.choice(COLUMNS, f"sort by a column, largest first: {', '.join(COLUMNS)}", metavar="COLUMN")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="return only the first N rows")] = None,
) -> Record:
    """Score the attention heads of a trace, or of a corpus: a row for each head.

    The scores are means over the queries of the weight on a target: the token before (previous), the first token, the
    query's own (self), earlier tokens that are the same (duplicate), and the tokens after these (induction); then the
    mean entropy of the weights, their mean span |query − key|, and the largest weight of a query with several keys,
    with its words. Several texts are read one at a time: their scores are averaged, and the largest weight is
    the largest of all. The scores of targets equal detect_head of TransformerLens. Padding is left out.

    The kind of a head compares the weight w on a target with the weight e of even attention: the target with the
    largest (w − e) / (1 − e) is the kind, if this is at least 0.4. Only queries that have the target count, and there
    must be 3 or more. Without such a target, a head is broad if its entropy is at least 0.7 of the entropy of even
    attention, else other. `-f csv` lists this number as `measure`.

    A text of several words, with --model, is read by the model now. With --model alone, what the weights say: copying
    is Σ λ / Σ |λ| of a head's circuit from words to words, W_E W_V W_O W_U, where it has one; q, k and v are its
    largest composition scores |W_OV W| / (|W_OV| |W|) with a head of an earlier layer. Biases, rotations and the scales
    of norms are left out.

    \b
    Examples:
      attnkit encode --model DIR --lines --keep '*.self.weights' < texts.txt | attnkit heads --sort induction
      attnkit heads --model DIR "The cat sat on the mat because the cat was tired"
      attnkit heads --model DIR --sort copying --top 10
    """
    if trace is not None:
        table = head_scores.score_records([trace] if isinstance(trace, Record) else trace)
    elif model_ is not None:
        table = head_weights.describe_weights(model_)
    else:
        raise DataError("no record")
    return select_rows(table, order_rows(table, sort)[:top])


def order_rows(table: Record, column: str | None) -> list[int]:
    columns = shared_labels(table.labels.get("score"))
    if column is None:
        return [*range(len(table["x"]))]
    if column not in columns:
        raise UsageError(f"{column}: these heads have {join_names(columns)}", "--sort")
    order: list[int] = np.argsort(-table["x"][:, columns.index(column)], kind="stable").tolist()
    return order


def select_rows(table: Record, rows: list[int]) -> Record:
    """Some heads of a table, in this order.

    >>> from attnkit.records import Tensor
    >>> table = Record({"x": Tensor(np.array([[1.0], [2.0]]), ("head", "score"))}, {"head": ["0", "1"]})
    >>> select_rows(table, [1])["x"].tolist(), select_rows(table, [1]).labels
    ([[2.0]], {'head': ['1']})
    """
    chosen = {
        name: replace(one, array=one.array[rows]) if one.axis_names()[:1] in (("head",), ("kind",), ("pair",)) else one
        for name, one in table.tensors.items()
    }
    labels = {
        axis: [shared_labels(names)[row] for row in rows] if axis in ("head", "kind", "pair") else names
        for axis, names in table.labels.items()
    }
    return replace(table, tensors=chosen, labels=labels)
