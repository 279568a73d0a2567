"""Views of scores: their table, bars of each class of sentence lengths, a table for other programs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnkit import display
from attnkit.cli import figures
from attnkit.cli.stage import Stage
from attnkit.display.cells import Cells
from attnkit.display.tables import COLUMN_GAP
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.display.figures import FigureOptions, Section

TITLES = {"bleu": "BLEU", "chrf": "chrF", "bits_per_byte": "bits per byte", "loss": "loss (nats per token)"}
BY_LENGTH = "_by_length"  # ends the names of the scores of classes
WITH_BARS = ("bleu", "chrf", "perplexity")
LONGEST_BAR, SHORTEST_BAR = 20, 4  # columns of the bar of the best score
FULL = 100.0  # BLEU and chrF of equal texts


def score_views(record: Record) -> tuple[list[tuple[str, float]], list[str]]:
    """Return the names of the scores of a record with their values, and the classes of --by."""
    scores = [(name, float(record[name])) for name in record if not record[name].ndim]
    return scores, [str(label) for label in record.labels.get("length", [])]


def title_of(name: str, record: Record) -> str:
    """Return the name of a score as tables show it: that of sacrebleu for chrF, whose orders are part of it."""
    metrics = record.labels.get("metric", [])
    return str(metrics[1]) if name == "chrf" and metrics else TITLES.get(name, name)


def render_scores(record: Record, call: Stage, style: display.Style) -> str:
    """Draw the scores of a record as a table; with --by one with a bar for each class of lengths."""
    return "\n\n".join(display.format_table(table, style) for table in score_tables(record, style, bars=True))


def draw_scores(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """Draw the scores of a record as a figure: their table, and bars of each by length."""
    from attnkit.display.figures import Section
    from attnkit.display.figures.axes import Axis
    from attnkit.display.figures.bars import draw_bars

    sections = [figures.table_section(one) for one in score_tables(record, figures.text_style(call), bars=False)]
    _, classes = score_views(record)
    names = [name for name in WITH_BARS if name + BY_LENGTH in record]
    if classes and names:
        axis = Axis("length in words", classes)
        charts = [draw_bars(title_of(name, record), axis, record[name + BY_LENGTH].tolist()) for name in names]
        sections.insert(0, Section("scores by sentence length", charts))
    return sections


def score_tables(record: Record, style: display.Style, bars: bool) -> list[display.TextTable]:
    """Return the table of the scores of a record, and with --by that of the classes of lengths."""
    scores, classes = score_views(record)
    signatures = dict(zip(("bleu", "chrf"), record.labels.get("signature", []), strict=False))
    rows = [
        [title_of(name, record), format_score(record, name, value, style), str(signatures.get(name, ""))]
        for name, value in scores
    ]
    columns = 3 if signatures else 2
    whole = display.TextTable(["score", "value", "signature"][:columns], [row[:columns] for row in rows], [1])
    tables = [whole] if rows else []
    return [*tables, length_table(record, classes, style, bars)] if classes else tables


def length_table(record: Record, classes: Sequence[str], style: display.Style, bars: bool) -> display.TextTable:
    """Return the table of the sentences and scores of each class of lengths, with a bar after each score."""
    names = [name for name in ("sentences", *WITH_BARS) if name + BY_LENGTH in record]
    columns = [["length", *classes], *(number_column(record, name, style) for name in names)]
    taken = sum(max(map(len, column)) + COLUMN_GAP for column in columns)
    room = (style.width - taken) // max(sum(name in WITH_BARS for name in names), 1) - COLUMN_GAP
    if bars and room >= SHORTEST_BAR:
        for at, name in reversed([*enumerate(names, start=2)]):
            if name in WITH_BARS:
                columns.insert(at, bar_column(record, name, min(room, LONGEST_BAR), style))
    heads, *rows = zip(*columns, strict=True)
    return display.TextTable(heads, rows, [at for at, head in enumerate(heads) if head and at])


def number_column(record: Record, name: str, style: display.Style) -> list[str]:
    """Return a score of the classes of lengths as a column of numbers."""
    values = record[name + BY_LENGTH].tolist()
    return [title_of(name, record), *(format_score(record, name + BY_LENGTH, value, style) for value in values)]


def bar_column(record: Record, name: str, width: int, style: display.Style) -> list[str]:
    """Return a score of the classes of lengths as a column of bars; those of BLEU and chrF are of 100."""
    values = record[name + BY_LENGTH].tolist()
    most = max(filter(math.isfinite, values), default=0.0) if name == "perplexity" else FULL
    return ["", *(display.draw_bar(value, most, width, style) for value in values)]


def format_score(record: Record, name: str, value: float, style: display.Style) -> str:
    """Return a number of a table: whole ones in groups of three digits."""
    if record[name].dtype.kind == "i":
        return f"{int(value):,}"
    return f"{value:.{style.precision}f}"


def tabulate_scores(record: Record, call: Stage) -> Cells:
    """Return the scores as a table for other programs: with --by a row for each class, else one row."""
    scores, classes = score_views(record)
    if not classes:
        return Cells([name for name, _ in scores], [[record[name][()] for name, _ in scores]])
    names = [name for name in record if name.endswith(BY_LENGTH)]
    rows = [list(row) for row in zip(classes, *(record[name] for name in names), strict=True)]
    return Cells(["length", *(name.removesuffix(BY_LENGTH) for name in names)], rows)
