"""What --explain prints: one cell in words, as the text of the record."""

from typing import TYPE_CHECKING

from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.cli.stage import Stage
    from attnkit.display import Style
    from attnkit.display.figures import FigureOptions, Section


def render_explained(record: Record, stage: "Stage", style: "Style") -> str:
    """Render an explanation in words, any other record as tables."""
    from attnkit.cli import views  # which load what draws tables

    return getattr(record, "text", "") or views.render_tables(record, stage, style)


def draw_explained(record: Record, stage: "Stage", options: "FigureOptions") -> "list[Section]":
    """Draw an explanation as text, any other record as tables."""
    from attnkit.cli import figures

    if is_explanation(record, stage):
        return [figures.text_section(getattr(record, "text", ""))]
    return figures.tensor_sections(record, stage, options)


def is_explanation(record: Record, stage: "Stage") -> bool:
    """Whether a record carries its text."""
    return hasattr(record, "text")
