"""Figures of results, as `-o FILE.svg` and `-f svg` write them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnkit.cli import views
from attnkit.cli.stage import Stage
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.display import Style, TextTable
    from attnkit.display.figures import FigureOptions, Section

TEXT_WIDTH = 120  # characters of a line of text in a figure


def encode_figure(call: Stage, result: Record | str, kind: str) -> bytes:
    """Write a result as a figure, below what its stage reported beside it."""
    from attnkit.display import figures

    last = call.extra.get("last", call)  # of `run` the last stage
    looks = figure_options(last)
    if "sheet" in call.extra:
        return figures.render_sheet(call.extra["sheet"].sections, looks, kind, f"attnkit {call.tool.name}")
    name = f"attnkit {last.tool.name}"
    beside = [*call.sections, *(last.sections if last is not call else [])]
    return figures.render_figure([*beside, *make_sections(result, last, looks)], looks, kind, name)


def figure_options(call: Stage) -> "FigureOptions":
    """Read the flags of a stage that change the looks of its figure."""
    from attnkit.display.figures import FigureOptions

    flags: Mapping[str, Any] = call.common | call.extra
    numbers = True if flags.get("numbers") else False if flags.get("no_numbers") else None
    theme, precision, ends, colors = (flags.get(name) for name in ("theme", "precision", "range", "cmap"))
    return FigureOptions(theme, flags.get("title") or "", numbers, precision, ends, colors)


def make_sections(result: Record | str, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """The sections of a result: the figure of its tool, its view as text, or tables."""
    if isinstance(result, str):
        return [text_section(result)]
    record = views.name_tokens(result, call.common.get("tokens") or "plain")
    if call.tool.views.figure:
        return call.tool.views.figure(record, call, looks)
    if call.tool.views.table:
        return [text_section(call.tool.views.table(record, call, text_style(call)))]
    return tensor_sections(record, call, looks)


def text_style(call: Stage) -> "Style":
    """The style of the texts in the figure of a stage."""
    from attnkit.display import Style

    precision = call.common.get("precision")
    style = Style(TEXT_WIDTH, plain_tokens=call.common.get("tokens") != "raw")
    return style if precision is None else style._replace(precision=precision)


def text_section(text: str) -> "Section":
    """A text as a section."""
    from attnkit.display.figures import Section

    return Section("", [text.rstrip("\n").expandtabs()])


def table_section(table: "TextTable") -> "Section":
    """A table of texts as a section."""
    from attnkit.display.figures import Section, Table

    left = [at for at in range(len(table.heads)) if at not in table.numbers]
    return Section(table.title, [Table([table.heads, *table.rows], left)], notes=[table.footer] if table.footer else [])


def tensor_sections(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """A table of each tensor that the tool computed, or of x if it computed none."""
    from attnkit.display.figures import tensor_section

    return [tensor_section(views.tensor_view(record, name), looks) for name in views.computed_names(record, call)]


def view_sections(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """A record in the view that is requested of show or peek."""
    from attnkit.display import figures

    view = views.requested_view(call)
    if "stats" in view:
        return [figures.statistics_section(record.arrays(), looks)]
    names = views.viewed_names(record, call)
    if "list" in view or not names:
        return [figures.list_section(views.named_axes(record))]
    draw = figures.tensor_section
    if view:
        draw = figures.curves_section if "curves" in view else figures.heatmap_section
    part = views.slice_of(call)
    return [draw(views.tensor_view(record, name, part=part), looks) for name in names]


def select_sections(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """The part of a record that the flags of peek select, in the view they request."""
    part = views.select(record, call.extra.get("name") or (), call.extra.get("slice") or "")
    return view_sections(part, call, looks)
