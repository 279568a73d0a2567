"""A tensor on axes of matplotlib, in a figure of the caller."""

from typing import TYPE_CHECKING, Any

from attnkit.display.figures.canvas import load_matplotlib, pixel_size, quiet
from attnkit.display.figures.charts import orient_curves, paint_bars, paint_curves
from attnkit.display.figures.colors import LIGHT
from attnkit.display.figures.maps import MAP_GAP, find_ranges, make_maps, paint_maps
from attnkit.display.figures.sections import FigureOptions
from attnkit.display.slicing import TensorView, to_matrices
from attnkit.errors import DataError, escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSSES = ("step", "curve")


def plot_tensor(view: TensorView, ax: "Axes | None" = None) -> "Axes":
    """Draw a tensor into axes of matplotlib, or of a new figure, and return the axes.

    Raises UsageError if matplotlib is missing, DataError for a tensor without numbers to draw.
    """
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    if view.array.size == 0 or view.array.ndim == 0:
        raise DataError(f"{view.description()} has no curve and no map", view.title)
    axes: Any = Figure().add_subplot() if ax is None else ax
    rank, is_map = view.array.ndim, view.array.ndim > 1 and tuple(view.axes) != LOSSES
    with quiet(), matplotlib.rc_context({"hatch.color": LIGHT.masked, "text.parse_math": False}):
        if is_map:
            maps, _ = make_maps(view, FigureOptions())
            full, size = maps.grid, pixel_size(axes)
            maps.cell = maps.cell[0] * size[0] / full[0], maps.cell[1] * size[1] / full[1]
            paint_maps(axes, maps, has_legend=False)
        elif rank == 1 and view.labels[0]:
            paint_bars(axes, view.axes[0], list(map(str, view.labels[0])), view.array.astype(float).tolist())
        else:
            view = orient_curves(view)
            [part] = to_matrices(view, 1).matrices
            paint_curves(axes, part, find_ranges([part], FigureOptions())[0], view.axes)
        axes.set_title(escaped(view.title), parse_math=False, pad=MAP_GAP if rank > 2 else None)
    result: Axes = axes
    return result
