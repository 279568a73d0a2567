"""What is shown of attributions: coloured words, and tables with bars."""

from typing import TYPE_CHECKING

import numpy as np

from attnkit.inputs.padding import find_real_tokens
from attnkit.records import Record, row_labels

if TYPE_CHECKING:
    from attnkit import display

TEXTS = ("source", "x")  # the tensors of attributions, in the order in which they are shown


def attribution_view(record: Record, style: "display.Style") -> "display.ResultView":
    """View the words of each text in colours, above a table with bars and a sum."""
    from attnkit import display

    blocks: list[display.Block] = []
    for row in range(count_texts(record)):
        texts, most = list_texts(record, row), largest_attribution(record, row)
        blocks += [display.Words(words, values, most) for words, values in texts]
        blocks += [display.attributions_table(words, values, most, style) for words, values in texts]
        for line in describe_sum(record, row, style.precision):
            blocks += [display.Only("terminal", display.Text(line)), display.Only("figure", display.Note(line))]
    return display.ResultView(blocks)


def count_texts(record: Record) -> int:
    x = record["x"]
    return len(x) if x.ndim == 2 else 1


def list_texts(record: Record, row: int) -> list[tuple[list[str], list[float]]]:
    """The words of a text and of its source, with their attributions; no padding."""
    texts = []
    for name in TEXTS:
        if name in record:
            array = np.atleast_2d(record[name])[row]
            words = row_labels(record.labels_of(name, -1), row) or [str(at) for at in range(len(array))]
            real = [at for at, is_real in enumerate(unpadded(record, name, row, len(array))) if is_real]
            texts.append(([words[at] for at in real], [float(array[at]) for at in real]))
    return texts


def unpadded(record: Record, name: str, row: int, count: int) -> list[bool]:
    """Which tokens of a text are no padding: of x by the mask of its batch."""
    real = find_real_tokens(record, record["x"].shape) if name == "x" and record["x"].ndim == 2 else None
    return [True] * count if real is None else real[row].tolist()


def largest_attribution(record: Record, row: int) -> float:
    return max((abs(value) for _, values in list_texts(record, row) for value in values), default=0.0)


def describe_sum(record: Record, row: int, precision: int) -> list[str]:
    """Describe the sum of the attributions of a text.

    >>> record = Record({"x": np.array([0.5, 1.0]), "output": np.array(-1.0), "baseline": np.array(-2.5)})
    >>> describe_sum(record, 0, 2)
    ['sum 1.50; output -1.00 less -2.50 of the baseline is 1.50, difference 0']
    """
    is_total, count = not record["output"].ndim, count_texts(record)
    if is_total and row < count - 1:
        return []
    rows = range(count) if is_total else [row]
    total = sum(value for one in rows for _, values in list_texts(record, one) for value in values)
    at = 0 if is_total else row
    output = float(record["output"].reshape(-1)[at])
    line = f"sum {total:.{precision}f}; output {output:.{precision}f}"
    if "baseline" not in record:
        return [line]
    baseline = float(record["baseline"].reshape(-1)[at])
    change = output - baseline
    rest = f"less {baseline:.{precision}f} of the baseline is {change:.{precision}f}, difference {total - change:.2g}"
    return [f"{line} {rest}"]
