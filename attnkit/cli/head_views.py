"""Views of heads: a table for the self-attention, and one for the cross-attention, of each stack; one of all rows."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import display
from attnkit.cli import figures, views
from attnkit.cli.cells import computed_cells
from attnkit.cli.stage import Stage
from attnkit.display.cells import Cells
from attnkit.model.head_circuits import MODES
from attnkit.record import Record, shared_labels

if TYPE_CHECKING:
    from attnkit.display.figures import FigureOptions, Section

SHORT = {"previous": "prev", "duplicate": "dup", "induction": "ind"}  # in the headings of a narrow table
UNDEFINED = "–"
TRACE = ("kind", "pair")  # the tensors beside x of a trace, and of a model
COMPOSITION = tuple(f"composition.{mode}" for mode in MODES)


def render_heads(record: Record, call: Stage, look: display.Style) -> str:
    """Draw the rows of the heads as tables."""
    if not has_rows(record):
        return views.render_tables(record, call, look)
    return "\n\n".join(display.format_table(table, look) for table in head_tables(record, look))


def draw_heads(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """Draw the tables of the heads as a figure."""
    if not has_rows(record):
        return figures.tensor_sections(record, call, looks)
    return [figures.table_section(table) for table in head_tables(record, figures.text_style(call))]


def head_tables(record: Record, look: display.Style) -> list[display.TextTable]:
    """Return a table for the heads of all layers of each kind: `decoder.N.self:H`, whose rows are N:H."""
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(shared_labels(record.labels.get("head"))):
        groups.setdefault(layer_pattern(name), []).append(row)
    describe = trace_cells if "kind" in record else weight_cells
    tables = []
    for pattern, rows in groups.items():
        heads, cells = describe(record, rows, look)
        tables.append(display.TextTable(heads, cells, number_columns(heads), title_of(record, pattern)))
    return tables


def has_rows(record: Record) -> bool:
    """Return whether a record has what the rows of heads are made of, which --only may leave out."""
    return any({"x", *names} <= {*record} for names in (TRACE, COMPOSITION))


def layer_pattern(name: str) -> str:
    """Return the name of a head with N for the number of its layer, and H for its own.

    >>> layer_pattern("decoder.10.self:3"), layer_pattern("3")
    ('decoder.N.self:H', 'H')
    """
    return re.sub(r"\d+$", "H", re.sub(r"\.\d+\.", ".N.", name))


def title_of(record: Record, pattern: str) -> str:
    """Return the title of a table: what its rows are, and of how many texts."""
    texts = int(record["texts"]) if "texts" in record else 0
    of = f", mean of {texts} texts" if texts > 1 else ""
    return f"heads N:H of {pattern}{of}" if "N" in pattern else f"heads{of}"


def number_columns(heads: list[str]) -> list[int]:
    """Return which columns are right-aligned: the scores."""
    return [at for at, head in enumerate(heads) if head not in ("head", "kind", "largest pair", *MODE_HEADS)]


MODE_HEADS = tuple(f"{mode.upper()} from" for mode in MODES)


def trace_cells(record: Record, rows: list[int], look: display.Style) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of the scores of heads; columns that are defined in no row are left out."""
    names, kinds, pairs = (shared_labels(record.labels.get(axis)) for axis in ("score", "kind", "pair"))
    defined = [at for at in range(len(names) - 1) if not np.isnan(record["x"][rows, at]).all()]
    cells = []
    for row in rows:
        *numbers, largest = (format_cell(score, look.cell_precision) for score in record["x"][row])
        cells.append([head_name(record, row), kinds[row], *(numbers[at] for at in defined), f"{largest} {pairs[row]}"])
    return ["head", "kind", *(SHORT.get(names[at], names[at]) for at in defined), "largest pair"], cells


def weight_cells(record: Record, rows: list[int], look: display.Style) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of what weights say of heads."""
    cells = []
    for row in rows:
        copying, *scores = (format_cell(score, look.precision) for score in record["x"][row])
        sources = [head_name(record, source, "earlier") for source in strongest_heads(record, row)]
        composed = [f"{score} {source}".strip() for score, source in zip(scores, sources, strict=True)]
        cells.append([head_name(record, row), copying, *composed])
    return ["head", "copying", *MODE_HEADS], cells


def strongest_heads(record: Record, row: int) -> list[int]:
    """Return the earlier head that a head composes with most, by its queries, its keys and its values; -1: none."""
    scores = [record[name][row] for name in COMPOSITION]
    return [-1 if np.isnan(one).all() else int(np.nanargmax(one)) for one in scores]


def head_name(record: Record, at: int, axis: str = "head") -> str:
    """Return the name of a head without that of its stack: `1:3` for decoder.1.self:3; "" for -1."""
    name = shared_labels(record.labels.get(axis))[at] if at >= 0 else ""
    match = re.search(r"\.(\d+)\.[^:]*(:\d+)$", name)
    return match[1] + match[2] if match else name


def format_cell(score: float, precision: int) -> str:
    """Return a score as text, with a dash where it is not defined.

    >>> format_cell(0.125, 2), format_cell(float("nan"), 2)
    ('0.12', '–')
    """
    return UNDEFINED if np.isnan(score) else f"{score:.{precision}f}"


def head_cells(record: Record, call: Stage) -> Cells:
    """Return the rows of all heads as one table."""
    if not has_rows(record):
        return computed_cells(record, call)
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
