"""What a page explores: records made to traces with the kinds of their heads, and two of them compared."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit import display
from attnkit.display.explore import Attention, Difference, ExploredTrace
from attnkit.errors import DataError, UsageError, escaped
from attnkit.inference.diff_report import Pair, are_traces, compare_records, report_lines, report_rows
from attnkit.inference.head_scoring import WEIGHTS, find_weights, score_layers
from attnkit.model.head_scores import HeadScores
from attnkit.record import Array, Labels, Record, join_names, row_labels

PRECISION = 4


def split_texts(record: Record) -> list[Record]:
    """Return the record of each text of a batch; the record itself where it is one text.

    >>> batch = Record({"weights": np.zeros((2, 1, 3, 3)), "lse": np.zeros((2, 1, 3)), "table": np.zeros((5, 4))})
    >>> [row["weights"].shape for row in split_texts(batch)]
    [(1, 3, 3), (1, 3, 3)]
    """
    names = find_weights(record)
    sizes = {record[name].shape[0] for name in names if record[name].ndim == 4}
    if len(sizes) != 1:
        return [record]
    return [select_row(record, row, sizes.copy().pop()) for row in range(*sizes)]


def select_row(record: Record, row: int, rows: int) -> Record:
    """Return one text of a batch of `rows`: its row of every tensor that has one, and its labels."""
    tensors = {}
    for name, one in record.tensors.items():
        axes = one.axis_names()
        if axes[:1] == ("batch",) and one.shape[0] == rows:
            one = replace(one, array=one.array[row], axes=axes[1:])
        tensors[name] = one
    labels: dict[str, Labels] = {axis: row_labels(names, row) for axis, names in record.labels.items()}
    return replace(record, tensors=tensors, labels=labels)


def make_trace(record: Record, name: str, is_raw: bool = False) -> ExploredTrace:
    """Return a record of one text as a trace to explore; DataError where it keeps no weights of attention.

    is_raw  spell tokens as they are in the vocabulary, not as a reader writes them
    """
    scores = score_layers(record)
    layers = [attention_of(record, f"{layer}.{WEIGHTS}".lstrip("."), one) for layer, one in scores.items()]
    labels = {axis: spell(names, is_raw) for axis, names in record.labels.items() if axis != "vocab"}
    stages = [describe_tensor(record, name) for name in record]
    return ExploredTrace(escaped(name), labels, layers, stages, list_commands(record))


def attention_of(record: Record, name: str, scores: HeadScores) -> Attention:
    """Return the weights of a layer with the kinds of its heads."""
    queries, keys = record.axes_of(name)[-2:]
    layer = name.removesuffix(WEIGHTS).removesuffix(".") or name
    measures = [float(one) for one in scores.kind_measures()]
    return Attention(layer, record[name], queries, keys, scores.kinds(), measures)


def spell(labels: Labels, is_raw: bool = False) -> list[str]:
    r"""Return words as a reader writes them, or raw, with what cannot be printed escaped.

    >>> spell(["Ġfox", "\x00"]), spell(["Ġfox"], is_raw=True)
    (['·fox', '\\x00'], ['Ġfox'])
    """
    words = labels if is_raw else display.plain_labels(labels) or []
    return [escaped(one) for one in row_labels(words, 0)]


def describe_tensor(record: Record, name: str) -> dict[str, Any]:
    """Return the facts of a tensor: name, axes, shape, dtype, and the statistics of its finite values."""
    array = record[name]
    numbers, counts = display.compute_statistics(array)
    return {
        "name": escaped(name),
        "axes": record.axes_of(name),
        "shape": array.shape,
        "dtype": array.dtype.name,
        **dict(zip(("min", "max", "mean", "std"), map(float, numbers), strict=False)),
        **dict(zip(("zeros", "nan", "inf"), counts, strict=True)),
        "norm": norm_of(array),
    }


def norm_of(array: Array) -> float | None:
    """Return the Euclidean norm of all numbers; None where it is not finite.

    >>> norm_of(np.array([3.0, 4.0])), norm_of(np.array([np.nan]))
    (5.0, None)
    """
    norm = float(np.sqrt(np.sum(np.square(array, dtype=np.float64))))
    return norm if np.isfinite(norm) else None


def list_commands(record: Record) -> list[str]:
    """Return the command lines that made a record, oldest first."""
    return [escaped(str(entry.get("command", ""))) for entry in record.history]


def compare_traces(a: Record, b: Record) -> Difference:
    """Return how two records differ, stage by stage, and A - B of the weights that both have in one shape."""
    report = compare_records(Pair(a, b, are_traces(a, b)), all_stages=True)
    names = [name for name in find_weights(a) if name in b and a[name].shape == b[name].shape]
    layers = []
    for name in names:
        queries, keys = a.axes_of(name)[-2:]
        layers.append(Attention(name.removesuffix(WEIGHTS).removesuffix(".") or name, a[name] - b[name], queries, keys))
    rows = [[escaped(cell) for cell in row] for row in report_rows(report, PRECISION)]
    return Difference(rows, [escaped(line) for line in report_lines(report)], layers)


def choose_record(records: Sequence[Record], index: int | None, source: str) -> Sequence[Record]:
    """Return the record of an index, all without one; UsageError where there are not so many."""
    if index is None:
        return records
    if index >= len(records):
        raise UsageError(f"{index}: {source} has {len(records)} record{'s' * (len(records) != 1)}", "--record")
    return [records[index]]


def check_weights(record: Record, source: str) -> None:
    """Raise DataError where a record keeps no weights of attention, with how to keep them."""
    if not find_weights(record):
        raise DataError(
            f"no weights of attention (it has {join_names([*record])}); attend --keep weights, or --trace FILE of "
            "encode, decode or run, keeps them",
            source,
        )
