"""What show and peek return in Python, for a console or a notebook; and plot."""

from typing import TYPE_CHECKING

from attnkit import display
from attnkit.cli import figures, views
from attnkit.cli.stage import Stage
from attnkit.display.notebook import Rendering, record_html, tensor_html, text_html, view_tensor
from attnkit.errors import UsageError
from attnkit.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPTIONS = (*views.VIEWS, *views.LookOptions._fields, "precision", "title", "theme")  # those of a view, in Python too


def present(result: Record | str, stage: Stage) -> Rendering:
    """What a tool shows in Python: text on a console, HTML in a notebook."""
    precision = stage.common.get("precision")
    style = display.DEFAULT_STYLE if precision is None else display.DEFAULT_STYLE._replace(precision=precision)
    if isinstance(result, str):
        text = result
    else:
        view = (stage.tool.view or views.selected_view)(result, stage, style)
        text = display.draw_blocks(view.blocks, style)
    return Rendering(text, lambda: draw(result, stage, text))


def draw(result: Record | str, stage: Stage, text: str) -> str:
    """A result as HTML: the figure of a view, tables and heat maps, or its text."""
    if isinstance(result, str) or hasattr(result, "checkpoint"):
        return text_html(text)
    if views.requested_view(stage):
        try:
            return figures.encode_figure(stage, result, "svg").decode()
        except UsageError as error:  # matplotlib is missing
            return text_html(f"{text}\n{error}")
    if not (views.view_flag(stage, "name") or views.view_flag(stage, "slice")):
        return record_html(result)
    return "".join(tensor_html(view_tensor(result, name), is_map=False) for name in result)


def plot(record: Record, name: str = "x", ax: "Axes | None" = None, *, slice: str = "") -> "Axes":
    """Draw a tensor of a record into axes of matplotlib, and return the axes.

    A matrix is a heat map, as `show --heatmap` draws it, and several matrices, such as heads, are a grid of heat maps
    inside the axes. A vector is a curve, or bars if it has labels. The losses of a training run are curves. Without
    `ax` the axes are those of a new figure: `plot(record).figure.savefig("x.png")`. If there is one map,
    `figure.colorbar(axes.images[0])` draws its colour bar.

    slice  the part of the tensor to draw, as `show --slice` takes it

    Raises UsageError if matplotlib is missing, DataError if the tensor is empty or a single number.
    """
    from attnkit.display.figures import plot_tensor

    return plot_tensor(display.tensor_view(views.select(record, (name,), slice), name, part=slice), ax)
