"""What is shown of the labels of texts, tokens, spans and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit import display, tokenizers
from attnkit.display.cells import Cells
from attnkit.display.text import escape
from attnkit.records import Record, row_labels, shared_labels

if TYPE_CHECKING:
    from attnkit.model import Config

LABELLED = {"sequence": "text", "token": "token"}


def view_labels(record: Record, config: Config, count: int | None, style: display.Style) -> display.ResultView:
    """View labels as a table, those of one text as lines.

    count  of the labels of each text or token; None: one, and all of a text if several may hold
    """
    rows = list_labels(record, config, count)
    cells = label_cells(record, config, rows)
    table = label_table(cells, style)
    if record["x"].ndim > 1:
        return display.ResultView([table], lambda: cells)
    lines = "\n".join(f"{escape(row.label, style)}  {row.score:.{style.precision}f}" for row in rows)
    blocks = [display.Only("terminal", display.Text(lines)), display.Only("figure", table)]
    return display.ResultView(blocks, lambda: cells)


class LabelRow(NamedTuple):
    """A label of a text, a token or a span, with its score.

    text        the number of the text in a batch; None for a single one
    part        the words of the text, the token or the span
    start, end  the characters of a span
    """

    text: int | None
    part: str
    label: str
    score: float
    start: int | None = None
    end: int | None = None


def list_labels(record: Record, config: Config, count: int | None) -> list[LabelRow]:
    """The best labels of each text, token or span, best first.

    count  how many; None: one, and all of a text if several may hold
    """
    axes, names = record.axes_of("x"), [str(name) for name in record.labels["label"]]
    if axes[0] == "span":
        texts = record["text"].tolist() if "text" in record else [None] * len(record["x"])
        ends = zip(record["start"].tolist(), record["end"].tolist(), strict=True)
        listed = []
        for text, words, values, (start, end) in zip(texts, record.labels["span"], record["x"], ends, strict=True):
            label = int(values.argmax())
            listed.append(LabelRow(text, str(words), names[label], float(values[label]), start, end))
        return listed
    rows = record["x"] if axes[0] == "batch" else record["x"][None]
    many = len(names) if config.task == "sequence" and config.label_function != "softmax" else 1
    listed = []
    for at, row in enumerate(rows):
        text = at if axes[0] == "batch" else None
        if row.ndim == 1:
            texts = shared_labels(record.labels.get("batch"))
            parts = [str(texts[at])] if texts else [""]
        else:
            parts = [*map(str, row_labels(record.labels.get("token"), at) or range(len(row)))]
        for part, values in zip(parts, row if row.ndim > 1 else row[None], strict=True):
            best = np.argsort(-values, kind="stable")[: count or many]
            if row.ndim == 1 or part not in tokenizers.PADDING:
                listed += [LabelRow(text, part, names[label], float(values[label])) for label in best]
    return listed


def label_table(cells: Cells, style: display.Style) -> display.TextTable:
    """A table of labels: label and score, the characters of a span, what is labelled."""
    texts = [
        [f"{value:.{style.precision}f}" if isinstance(value, float) else str(value) for value in row]
        for row in cells.rows
    ]
    numbers = [at for at, heading in enumerate(cells.heads) if heading in ("batch", "score", "start", "end")]
    return display.TextTable(list(cells.heads), texts, numbers)


def label_cells(record: Record, config: Config, rows: Sequence[LabelRow]) -> Cells:
    """The rows of labels as cells, with the columns that they have."""
    is_span = record.axes_of("x")[0] == "span"
    is_batch = any(row.text is not None for row in rows) and (is_span or config.task == "token")
    part = [] if record["x"].ndim == 1 else ["span" if is_span else LABELLED[config.task]]
    headings = ["batch"] * is_batch + ["label", "score"] + ["start", "end"] * is_span + part
    cells = [
        [row.text] * is_batch + [row.label, row.score] + [row.start, row.end] * is_span + [row.part] * len(part)
        for row in rows
    ]
    return Cells(headings, cells)
