"""What --explain prints: one cell in words."""

from typing import TYPE_CHECKING

from attnkit.interpret.explanation import Explanation
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.cli.tool import Stage
    from attnkit.display import Style
    from attnkit.display.figures import FigureOptions, Section


def render_explained(record: Record, call: "Stage", style: "Style") -> str:
    """Render an explanation in words, any other record as tables."""
    from attnkit.cli import views  # which load what draws tables

    return record.text if isinstance(record, Explanation) else views.render_tables(record, call, style)


def draw_explained(record: Record, call: "Stage", looks: "FigureOptions") -> "list[Section]":
    """Draw an explanation as text, any other record as tables."""
    from attnkit.cli import figures

    if isinstance(record, Explanation):
        return [figures.text_section(record.text)]
    return figures.tensor_sections(record, call, looks)


def is_explanation(record: Record, call: "Stage") -> bool:
    """Return whether a record is text."""
    return isinstance(record, Explanation)
