"""A tensor of a record on axes of matplotlib, in a figure of the caller."""

from typing import TYPE_CHECKING, Any

from attnkit.display.figures.canvas import load_matplotlib, pixel_size, quiet
from attnkit.display.figures.charts import orient_curves, paint_bars, paint_curves
from attnkit.display.figures.colors import LIGHT
from attnkit.display.figures.maps import (
    MAP_GAP,
    ROW,
    TITLE,
    balanced_columns,
    choose_numbers,
    find_ranges,
    make_maps,
    paint_maps,
)
from attnkit.display.figures.sections import FigureOptions
from attnkit.display.notebook import view_tensor
from attnkit.display.slicing import TensorView, to_matrices
from attnkit.errors import DataError, escaped
from attnkit.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSSES = ("step", "curve")


def plot(record: Record, name: str = "x", ax: "Axes | None" = None) -> "Axes":
    """Draw a tensor of a record into axes of matplotlib, and return the axes.

    A matrix is a heat map, as `show --heatmap` draws it; several matrices, such as heads, are maps in a grid inside of
    the axes. A vector is a curve, or bars if it has labels. The losses of a training run are curves. Without axes a
    new figure is made: `plot(record).figure.savefig("x.png")`. `ax.images[0]` of a single map has its colour map and
    its range, for `figure.colorbar`.

    Raises UsageError if matplotlib is missing, DataError for a tensor without numbers to draw.
    """
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with quiet(), matplotlib.rc_context({"hatch.color": LIGHT.masked}):
        axes: Any = Figure().add_subplot() if ax is None else ax
        view = view_tensor(record, name)
        if view.array.size == 0 or view.array.ndim == 0:
            raise DataError(f"{view.description()} has no curve and no map", name)
        if view.array.ndim == 1 and view.labels[0]:
            paint_bars(axes, view.axes[0], list(map(str, view.labels[0])), view.array.astype(float).tolist())
        elif view.array.ndim == 1 or tuple(view.axes) == LOSSES:
            view = orient_curves(view)
            [part] = to_matrices(view, 1).matrices
            paint_curves(axes, part, find_ranges([part], FigureOptions())[0], view.axes)
        else:
            plot_maps(axes, view)
        axes.set_title(escaped(name), parse_math=False, pad=None if view.array.ndim < 3 else MAP_GAP)
    return ax or axes


def plot_maps(axes: Any, view: TensorView) -> None:
    """Paint the matrices of a tensor as heat maps of such a size that they fill axes of matplotlib."""
    maps, _ = make_maps(view, FigureOptions())
    (rows, columns), (width, height) = maps.cells[0].levels.shape, pixel_size(axes)
    maps.across = balanced_columns(len(maps.cells), columns / rows * height / width)
    down = -(-len(maps.cells) // maps.across)
    maps.cell = (
        (width - (maps.across - 1) * MAP_GAP) / maps.across / columns,
        (height - (down - 1) * TITLE) / down / rows,
    )
    numbers, room = choose_numbers(maps.cells, FigureOptions())
    maps.numbers = numbers if maps.cell[0] >= room and maps.cell[1] >= ROW else ""
    paint_maps(axes, maps, has_legend=False)
