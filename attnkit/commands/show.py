"""attnkit show: a tensor, a record or a file as tables and heat maps."""

from typing import Annotated

from attnkit import views
from attnkit.tensors.record import Record
from attnkit.tool import tool


@tool(view=views.seen, extra=views.LOOKS, eyes=True, names=True, numeric=lambda given: False)
def show(
    record: Record,
    *,
    name: Annotated[tuple[str, ...], views.NAME] = (),
    slice: Annotated[str, views.SLICE] = "",
) -> Record:
    """A tensor, a record or a file as tables and heat maps; with -f or -o it converts.

    INPUT may be FILE:NAME. The output is for eyes, on a pipe too, unless -f or -o chooses a format.
    `-o picture.svg` and `-o picture.html` save what is shown.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend --keep weights | attnkit show --name weights --heatmap
    """
    return views.selected(record, name, slice)
