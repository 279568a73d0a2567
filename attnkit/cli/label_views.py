"""The views of labels: of texts, tokens and spans as lines, tables and cells."""

from typing import TYPE_CHECKING

from attnkit import display
from attnkit.cli.stage import Stage
from attnkit.display.cells import Cells
from attnkit.display.text import escape
from attnkit.inference.labels import LabelRow, list_labels
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.display.figures import Section

HEADS = {"sequence": "text", "token": "token"}


def shown_labels(record: Record, call: Stage) -> list[LabelRow]:
    """Return the labels to show of a record."""
    return list_labels(record, call.files.loaded["model_"].config, call.parameters["top"])


def render_labels(record: Record, call: Stage, look: display.Style) -> str:
    """Render the label of one text as a line, and labels of several texts, of tokens or of spans as a table."""
    rows = shown_labels(record, call)
    if record["x"].ndim == 1:
        return "\n".join(f"{escape(row.label, look)}  {row.score:.{look.precision}f}" for row in rows)
    return display.format_table(label_table(record, call, look), look)


def label_table(record: Record, call: Stage, look: display.Style) -> display.TextTable:
    """Return the table of labels: label and score, the characters of a span, then what is labelled."""
    cells = list_cells(record, call)
    texts = [
        [f"{value:.{look.precision}f}" if isinstance(value, float) else str(value) for value in row]
        for row in cells.rows
    ]
    numbers = [at for at, head in enumerate(cells.heads) if head in ("batch", "score", "start", "end")]
    return display.TextTable(list(cells.heads), texts, numbers)


def list_cells(record: Record, call: Stage) -> Cells:
    """Return labels as a table, a row for each."""
    rows, is_span = shown_labels(record, call), record.axes_of("x")[0] == "span"
    task = call.files.loaded["model_"].config.task
    is_batch = any(row.text is not None for row in rows) and (is_span or task == "token")
    part = [] if record["x"].ndim == 1 else ["span" if is_span else HEADS[task]]
    heads = ["batch"] * is_batch + ["label", "score"] + ["start", "end"] * is_span + part
    cells = [
        [row.text] * is_batch + [row.label, row.score] + [row.start, row.end] * is_span + [row.part] * len(part)
        for row in rows
    ]
    return Cells(heads, cells)


def draw_labels(record: Record, call: Stage) -> "list[Section]":
    """Draw labels as a table."""
    from attnkit.cli import figures

    return [figures.table_section(label_table(record, call, figures.text_style(call)))]
