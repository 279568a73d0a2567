"""attnkit peek: look into the middle of a pipe."""

from attnkit import display
from attnkit.cli import views
from attnkit.cli.stage import Stage
from attnkit.cli.tool import tool
from attnkit.record import Record


def seen(record: Record, call: Stage, look: display.Style) -> str:
    """The part of the record that the flags name."""
    part = views.select(record, call.extra.get("name") or (), call.extra.get("slice") or "")
    return views.render(part, call, look)


@tool(
    exclusive=[views.VIEWS],
    view=seen,
    extra=views.VIEW_FLAGS | {"name": views.NAME, "slice": views.SLICE},
    aside=lambda given: True,
    numeric=lambda given: False,
    verbatim=True,
    names=True,
)
def peek(record: Record) -> Record:
    """Look into the middle of a pipe: the stream passes through untouched and is shown on standard error.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit peek --heatmap | attnkit attend > out.json
    """
    return record
