"""attnkit heads: what each head of attention attends to in texts; without a text, what its weights say."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import numpy as np

from attnkit.cli import options
from attnkit.cli.head_views import draw_heads, head_cells, render_heads
from attnkit.cli.stage import PythonForm, Records, Stage, read_records
from attnkit.cli.tool import make_item, named_files, tool
from attnkit.errors import DataError, UsageError
from attnkit.inference import head_scoring, head_weights
from attnkit.record import Record, join_names, shared_labels

COLUMNS = tuple(dict.fromkeys((*head_scoring.COLUMNS, *head_weights.COLUMNS)))


def read_traces(call: Stage, upstream: Records | None) -> Records:
    """Read all records of the input as one input."""
    records = read_records(call, upstream)
    return records._replace(items=join_records(records.items))


def read_values(call: Stage, inputs: Sequence[Any]) -> Records:
    """Read a record, several of them, or the name of a file, as a caller in Python passes them, as one input."""
    value = inputs[0] if inputs else None
    if (value is None) != call.tool.needs_no_input(call.parameters):
        raise UsageError("heads needs a trace or a model, not both")
    if paths := named_files(call.tool, value):
        call.operands = paths
        return read_traces(call, None)
    many = value if isinstance(value, Iterable) and not isinstance(value, Record | np.ndarray) else [value]
    return Records(None, join_records(make_item(call.tool, one) for one in many))


def join_records(records: Iterator[Record | None]) -> Iterator[Record | Iterator[Record | None] | None]:
    """Yield one item: the only record, with its history, or the stream of several."""
    first, second = next(records, None), next(records, None)
    yield first if second is None else chain((first, second), records)


@tool(
    reader=read_traces,
    view=render_heads,
    figure=draw_heads,
    cells=head_cells,
    keep_names=True,
    is_answer=True,
    without=("dtype", "check_finite"),
    needs_no_input=lambda parameters: parameters["model_"] is not None,
    python=PythonForm(inputs={"trace": "TensorLike | Sequence[Record] | None"}, reader=read_values),
)
def heads(
    trace: Record | Iterable[Record] | None,
    *,
    model_: Annotated[Any, options.MODEL] = None,
    sort: Annotated[
        str | None,
        options.choice(f"sort by a column, largest first: {', '.join(COLUMNS)}", COLUMNS)._replace(metavar="COLUMN"),
    ] = None,
    top: Annotated[int | None, options.integer("return only the first N rows", least=1)] = None,
) -> Record:
    """Score the attention heads of a trace, or of a stream of records over a corpus: a row for each head.

    The scores are means over the queries of the weight on a target: the token before (previous), the first token, the
    query's own (self), earlier tokens that are the same (duplicate), and the tokens after these (induction); then the
    mean entropy of the weights, their mean span |query − key|, and the largest weight of a query with several keys,
    with its words. Several texts are read one at a time: their scores are averaged, and the largest weight is
    that of all. The scores of targets equal detect_head of TransformerLens. Padding is left out.

    The kind of a head compares the weight w on a target with that of even attention, e: the target with the largest
    (w − e) / (1 − e) is the kind, if this is at least 0.4. Only queries that have the target count, and there must be
    3 or more. Without such a target, a head is broad if its entropy is at least 0.7 of that of even attention, else
    other. `-f csv` lists this number as `measure`.

    With --model alone, what the weights say: copying is Σ λ / Σ |λ| of a head's circuit from words to words,
    W_E W_V W_O W_U, where it has one; q, k and v are its largest composition scores |W_OV W| / (|W_OV| |W|) with a head
    of an earlier layer. Biases, rotations and the scales of norms are left out.

    \b
    Examples:
      attnkit encode --model DIR --lines --keep '*.self.weights' < texts.txt | attnkit heads --sort induction
      attnkit heads --model DIR --sort copying --top 10
    """
    if model_ is not None:
        table = head_weights.describe_weights(model_)
    elif trace is None:
        raise DataError("no record")
    else:
        table = head_scoring.score_records([trace] if isinstance(trace, Record) else trace)
    return select_rows(table, order_rows(table, sort)[:top])


def order_rows(table: Record, column: str | None) -> list[int]:
    """Return the rows in the order of a column, the largest first and NaN last; UsageError for one it does not have."""
    columns = shared_labels(table.labels.get("score"))
    if column is None:
        return [*range(len(table["x"]))]
    if column not in columns:
        raise UsageError(f"{column}: these heads have {join_names(columns)}", "--sort")
    order: list[int] = np.argsort(-table["x"][:, columns.index(column)], kind="stable").tolist()
    return order


def select_rows(table: Record, rows: list[int]) -> Record:
    """Return some heads of a table, in this order.

    >>> from attnkit.record import Tensor
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
