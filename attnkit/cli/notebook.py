"""What show and peek give a caller in Python: text on a console, HTML in a notebook; and plot, into a figure."""

from typing import TYPE_CHECKING

from attnkit import display
from attnkit.cli import figures, views
from attnkit.cli.stage import Stage
from attnkit.display.notebook import Rendering, record_html, tensor_html, text_html, view_tensor
from attnkit.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPTIONS = (*views.VIEW_FLAGS, *views.LOOK_FLAGS, "precision", "title", "theme")  # those of a view, in Python too


def present(result: Record | str, call: Stage) -> Rendering:
    """Return what a tool shows for a caller in Python: text on a console, HTML in a notebook."""
    precision = call.common.get("precision")
    style = display.DEFAULT_STYLE if precision is None else display.DEFAULT_STYLE._replace(precision=precision)
    text = result if isinstance(result, str) else (call.tool.view or views.render)(result, call, style)
    return Rendering(text, lambda: draw(result, call, text))


def draw(result: Record | str, call: Stage, text: str) -> str:
    """Return a result as HTML: the figure of a view, its tensors as tables or heat maps, or its text."""
    if isinstance(result, str) or hasattr(result, "checkpoint"):
        return text_html(text)
    if views.requested_view(call):
        return figures.encode_figure(call, result, "svg").decode()
    if not (views.view_flag(call, "name") or views.view_flag(call, "slice")):
        return record_html(result)
    return "".join(tensor_html(view_tensor(result, name), is_map=False) for name in result)


def plot(record: Record, name: str = "x", ax: "Axes | None" = None, *, slice: str = "") -> "Axes":
    """Draw a tensor of a record into axes of matplotlib, and return the axes.

    A matrix is a heat map, as `show --heatmap` draws it; several matrices, such as heads, are maps in a grid inside of
    the axes. A vector is a curve, or bars if it has labels. The losses of a training run are curves. `slice` draws a
    part of the tensor, as `show --slice` does. Without axes there is a new figure:
    `plot(record).figure.savefig("x.png")`. `ax.images[0]` of a single map is for `figure.colorbar`.

    Raises UsageError if matplotlib is missing, DataError for a tensor without numbers to draw.
    """
    from attnkit.display.figures import plot_tensor

    return plot_tensor(views.tensor_view(views.select(record, (name,), slice), name, part=slice), ax)
