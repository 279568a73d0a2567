"""What --explain shows: one cell in words, as the text of the record."""

from typing import TYPE_CHECKING

from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.cli.stage import Stage
    from attnkit.display import ResultView, Style


def explained_view(record: Record, stage: "Stage", style: "Style") -> "ResultView":
    """View an explanation in words, any other record as tables."""
    from attnkit import display
    from attnkit.cli import views  # which load what draws tables

    if text := getattr(record, "text", ""):
        return display.ResultView([display.Text(text)])
    return views.computed_view(record, stage, style)
