"""attnkit peek: show the records in the middle of a pipe, and pass them on."""

import sys

from attnkit import display
from attnkit.cli import notebook, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm
from attnkit.records import Record


def view_part(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    part = views.select(record, stage.extra.get("name") or (), stage.extra.get("slice") or "")
    return views.selected_view(part, stage, style)


def show_and_return(record: Record, stage: Stage) -> Record:
    """Show a record on Python's standard error, and return it."""
    sys.stderr.write(f"{notebook.present(record, stage)}\n")
    return record


@tool(
    sections={
        "Tensors": "name slice",
        "Views": "views",
        "Figures": "look",
    },
    rules=Constraints(exclusive=[views.VIEWS, ("numbers", "no_numbers")]),
    view=view_part,
    extra={"views": views.ViewOptions, "look": views.LookOptions, "name": views.Name, "slice": views.Slice},
    tables_aside=lambda stage: True,
    without=("check_finite",),
    passthrough=True,
    python=PythonForm(options=(*notebook.OPTIONS, "name", "slice"), present=show_and_return),
    keep_names=True,
)
def peek(record: Record) -> Record:
    """Show records in the middle of a pipe on stderr, and pass them on unchanged.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit peek --heatmap | attnkit attend > out.json
    """
    return record
