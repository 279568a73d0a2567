"""attnkit peek: look into the middle of a pipe."""

from attnkit import display, views
from attnkit.tensors.record import Record
from attnkit.tool import Call, tool


def seen(record: Record, call: Call, look: display.Look) -> str:
    """The part of the record that the flags name."""
    part = views.selected(record, call.extra.get("name") or (), call.extra.get("slice") or "")
    return views.seen(part, call, look)


@tool(
    view=seen,
    extra=views.LOOKS | {"name": views.NAME, "slice": views.SLICE},
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
