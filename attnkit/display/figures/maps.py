"""Heat maps: the matrices of a tensor as coloured cells beside their words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attnkit.display.colors import (
    LEVELS,
    NOT_FINITE_COLOR,
    SIGNED,
    UNSIGNED,
    color_levels,
    color_map,
    contrasting_ink,
)
from attnkit.display.figures.canvas import (
    GAP,
    SMALL_SIZE,
    TEXT_SIZE,
    Ticks,
    clip_text,
    draw_axes,
    fit_ticks,
    set_ticks,
    text_width,
)
from attnkit.display.figures.sections import FigureOptions, Section
from attnkit.display.numbers import format_number, number_format
from attnkit.display.slicing import Matrix, TensorView, pluralize, to_matrices
from attnkit.display.style import DEFAULT_STYLE
from attnkit.display.summaries import ordinal
from attnkit.display.text import escape
from attnkit.errors import counted
from attnkit.records import Array

MAX_MAPS = 256
SIDE, WIDTH = 640, 960  # pixels: of the cells of a single map, of all maps in a row
MIN_SIDE, MAX_SIDE = 100, 420  # of the cells of one of several maps
MIN_CELL, MAX_CELL = 2, 48  # of a side of a cell
MIN_LABELLED = 14  # of a side of a cell whose row or column has its label
MAX_CELLS = 100_000  # of all maps together; more are pooled
MAX_NUMBERED = 600  # cells that show their numbers unless requested
MAX_NAMED = 12  # columns that are widened to hold their labels
ASPECT = 1.4  # width by height that a grid of maps comes close to
MAP_GAP, TITLE = 18, 24  # pixels between two maps, across and down
BAR, MIN_BAR, MAX_BAR = 12, 3 * SMALL_SIZE, 240  # width of the colour bar, and its heights
ROW = 16  # least height of a cell with a number
DIGITS = 3
HATCH = "/////"


@dataclass
class HeatMaps:
    """Heat maps in a grid, which share the labels at its left and below it.

    cells    a masked array for each matrix, in which infinity stands for NaN too
    factors  the rows and columns of a matrix that one cell pools
    names    the names of the axes
    numbers  the format of the numbers in the cells, "" for none
    room     the width of a cell that holds such a number
    across   maps side by side
    cell     width and height of a cell in pixels
    """

    parts: Sequence[Matrix]
    cells: Sequence[Any]
    ranges: Sequence[tuple[float, float]]
    factors: tuple[int, int]
    colors: Sequence[str]
    names: Sequence[str]
    has_own_ranges: bool
    numbers: str
    room: float
    across: int
    cell: tuple[float, float] = (1, 1)

    @property
    def size(self) -> tuple[float, float]:
        """The width and height of a map in pixels."""
        rows, columns = self.cells[0].shape
        return self.cell[0] * columns, self.cell[1] * rows

    @property
    def grid(self) -> tuple[float, float]:
        """The width and height of all maps in pixels."""
        (width, height), down = self.size, -(-len(self.cells) // self.across)
        return self.across * (width + MAP_GAP) - MAP_GAP, down * (height + TITLE) - TITLE

    @property
    def ticks(self) -> tuple[Ticks, Ticks]:
        """The labels of the columns and of the rows."""
        (down, over), one = self.factors, self.parts[0]
        return fit_ticks(one.columns, self.cell[0], over, below=True), fit_ticks(one.rows, self.cell[1], down)


def heatmap_section(view: TensorView, options: FigureOptions) -> Section:
    """A tensor as heat maps: a grid of its matrices, with a colour bar.

    Every element is in a cell. If there are too many, a cell shows the largest magnitude of a block of elements, and a
    note says so. Masked cells are hatched. Matrices whose labels differ, such as texts of a batch, are in grids of
    their own. Raises DataError if the mask does not broadcast, UsageError for an unknown colour map.
    """
    if view.array.size == 0:
        return Section(view.title, [], view.formula, f"{view.description()}, empty")
    maps, hidden = make_maps(view, options)
    (down, over), count, first = maps.factors, len(maps.parts), maps.parts[0]
    thinned = [(one.every, name) for one, name in zip(maps.ticks, maps.names, strict=True) if one.every > 1][::-1]
    kind = pluralize(view.axes[0]) if view.array.ndim == 3 else "maps"
    ranges = "each with its own range of colours" if maps.has_own_ranges else "one range of colours"
    notes = [
        hidden,
        f"each cell shows the number of largest magnitude among {down} × {over}" if down * over > 1 else "",
        f"labels: {', '.join(f'every {ordinal(every)} {name}' for every, name in thinned)}" if thinned else "",
        f"{count} {kind}, {ranges}" if count > 1 else "",
        outside_note(maps.parts, options),
    ]
    grids = [maps]
    if any((one.rows, one.columns) != (first.rows, first.columns) for one in maps.parts):
        each = zip(maps.parts, maps.cells, maps.ranges, strict=True)
        grids = [replace(maps, parts=[part], cells=[cells], ranges=[ends]) for part, cells, ends in each]
    drawings = [draw_axes(*one.grid, partial(paint_maps, maps=one)) for one in grids]
    return Section(view.title, drawings, view.formula, view.description(), [note for note in notes if note])


def make_maps(view: TensorView, options: FigureOptions) -> tuple[HeatMaps, str]:
    """Pool the matrices of a tensor into maps that fit a figure, and count the others."""
    parts, hidden, _ = to_matrices(view, MAX_MAPS)
    ranges, factors = find_ranges(parts, options), choose_factors(parts)
    colors = color_map(options.colors or (SIGNED if any(low < 0 < high for low, high in ranges) else UNSIGNED))
    cells = [pool_cells(part, factors) for part in parts]
    axes = ["", "", *(escape(axis, DEFAULT_STYLE) for axis in view.axes)]
    names = (axes[-1], axes[-2] if parts[0].rows else "")
    has_own_ranges = options.range == "each" and len(parts) > 1
    count, (rows, columns) = len(parts), cells[0].shape
    across, (numbers, room) = balanced_columns(count, columns / rows), choose_numbers(cells, options)
    maps = HeatMaps(parts, cells, ranges, factors, colors, names, has_own_ranges, numbers, room, across)
    side = SIDE if count == 1 else min(max(WIDTH // across, MIN_SIDE), MAX_SIDE)
    width, height = (min(max(side // one, MIN_CELL), MAX_CELL) for one in (columns, rows))
    least = max(min(width, height), MIN_LABELLED)
    width, height = min(width, least), min(height, least)
    fits = rows * columns * count <= MAX_NUMBERED and room * columns * across <= WIDTH
    if options.numbers or (options.numbers is None and fits):
        names_fit = count == 1 and columns <= MAX_NAMED
        widest = (
            max(text_width(escape(label, DEFAULT_STYLE), SMALL_SIZE) for label in parts[0].columns) + GAP
            if names_fit
            else 0
        )
        width, height = max(width, room, min(math.ceil(widest), MAX_CELL * 3 // 2)), max(height, ROW)
    else:
        maps.numbers = ""
    maps.cell = width, height
    return maps, hidden


def choose_factors(parts: Sequence[Matrix]) -> tuple[int, int]:
    """Choose how many rows and columns a cell pools: 1 if there are few enough.

    >>> choose_factors([Matrix("", np.zeros((600, 64)), np.zeros((600, 64)), [], [], [])])
    (2, 1)
    """
    rows, columns = parts[0].values.shape
    room = (MAX_SIDE if len(parts) > 1 else SIDE) // MIN_CELL
    limit = min(max(int(math.sqrt(MAX_CELLS / len(parts))), 8), room)
    return max(-(-rows // limit), 1), max(-(-columns // limit), 1)


def find_ranges(parts: Sequence[Matrix], options: FigureOptions) -> list[tuple[float, float]]:
    """Find the range of the colours of each map.

    A range of both signs is symmetric about 0. It is the requested one, or each map's own, or the same for all maps.
    """
    if isinstance(options.range, tuple):
        return [options.range] * len(parts)
    finite = [part.finite_values() for part in parts]
    groups = finite if options.range == "each" else [np.concatenate(finite)] * len(parts)
    ends = [(float(one.min()), float(one.max())) if one.size else (0.0, 0.0) for one in groups]
    return [(-max(-low, high), max(-low, high)) if low < 0 < high else (low, high) for low, high in ends]


def pool_cells(part: Matrix, factors: tuple[int, int]) -> Any:
    """Pool each block of a matrix into a cell: its value of largest magnitude.

    A cell is infinity if one value of its block is NaN or infinity, and masked if all values are masked or -inf.

    factors  the rows and columns of a block

    >>> x, none = np.array([[1.0, -3.0], [-np.inf, -np.inf]]), np.zeros((2, 2), bool)
    >>> pool_cells(Matrix("", x, none, [], [], []), (1, 2)).tolist()
    [[-3.0], [None]]
    """
    (height, width), (down, across) = part.values.shape, factors

    def blocks(array: Array, fill: float) -> Array:
        padded = np.pad(array, ((0, -height % down), (0, -width % across)), constant_values=fill)
        rows, columns = padded.shape[0] // down, padded.shape[1] // across
        return padded.reshape(rows, down, columns, across).swapaxes(1, 2).reshape(rows, columns, down * across)

    values = part.values.astype(np.float64)
    masked = blocks(part.masked | (values == -np.inf), True)
    values = blocks(np.where(np.isfinite(values), values, np.inf), 0)
    peak = np.where(masked, -1, np.abs(values)).argmax(axis=-1)[..., None]
    values, masked = (np.take_along_axis(one, peak, axis=-1)[..., 0] for one in (values, masked))
    return np.ma.array(values, mask=masked)


def outside_note(parts: Sequence[Matrix], options: FigureOptions) -> str:
    """Count the numbers outside of the requested range; "" for none."""
    if not isinstance(options.range, tuple):
        return ""
    low, high = options.range
    count = sum(int(((values < low) | (values > high)).sum()) for values in (part.finite_values() for part in parts))
    return f"{counted(count, 'number')} outside of the range, drawn at its end" if count else ""


def balanced_columns(count: int, aspect: float = 1.0) -> int:
    """Choose how many maps to place side by side, in a grid without holes.

    aspect  the width of a map divided by its height

    >>> [balanced_columns(count) for count in (1, 2, 4, 6, 8, 12, 16)]
    [1, 2, 2, 3, 4, 4, 4]
    """

    def cost(across: int) -> float:
        down = -(-count // across)
        return abs(math.log(across * aspect / down / ASPECT)) + 3 * (across * down - count) / count

    return min(range(1, count + 1), key=cost)


def choose_numbers(cells: Sequence[Any], options: FigureOptions) -> tuple[str, int]:
    """Choose the format of the numbers in cells, and the width that they need."""
    values = np.concatenate([one.compressed() for one in cells])
    values = values[np.isfinite(values)]
    is_whole = options.precision is None and bool((values == np.rint(values)).all())
    numbers = number_format(values, 2 if options.precision is None else options.precision)
    numbers = "z.0f" if is_whole and numbers.endswith("f") else numbers
    texts = [format(end, numbers) for end in (values.min(initial=0), values.max(initial=0))]
    return numbers, math.ceil(max(text_width(text, SMALL_SIZE) for text in texts)) + 8


def paint_maps(axes: Any, maps: HeatMaps, has_legend: bool = True) -> None:
    count, (width, height), (map_width, map_height) = len(maps.cells), maps.grid, maps.size
    has_room = maps.cell[0] >= maps.room and maps.cell[1] >= ROW
    if count > 1:
        axes.axis("off")
    for at, (part, cells, (low, high)) in enumerate(zip(maps.parts, maps.cells, maps.ranges, strict=True)):
        down, over = divmod(at, maps.across)
        x, y = over * (map_width + MAP_GAP), height - down * (map_height + TITLE) - map_height
        place = (x / width, y / height, map_width / width, map_height / height)
        inner = axes if count == 1 else axes.inset_axes(place)
        paint_map(inner, cells, (low, high), maps.factors, maps.colors, maps.numbers if has_room else "")
        is_labelled = (at + maps.across >= count, over == 0)
        for axis, ticks, name, has in zip((inner.xaxis, inner.yaxis), maps.ticks, maps.names, is_labelled, strict=True):
            set_ticks(axis, ticks if has else Ticks())
            axis.set_label_text(name if has else "", parse_math=False)
        ends = f" ({format_number(low, DIGITS)} … {format_number(high, DIGITS)})" * maps.has_own_ranges
        inner.set_title(clip_text(part.title + ends, map_width + MAP_GAP, TEXT_SIZE, "bold"), parse_math=False)
    if has_legend:
        paint_legend(axes, maps)


def paint_map(
    axes: Any,
    cells: Any,
    ends: tuple[float, float],
    factors: tuple[int, int],
    colors: Sequence[str],
    numbers: str = "",
    opacity: float = 1.0,
) -> None:
    """Paint cells on axes of matplotlib whose units are the indices of the matrix.

    numbers  the format of the numbers in the cells, "" for none
    """
    from matplotlib import rcParams
    from matplotlib.colors import ListedColormap, Normalize, to_rgba_array

    (rows, columns), (down, over), is_infinite = cells.shape, factors, np.isinf(cells.data)
    levels = np.where(cells.mask, LEVELS, np.where(is_infinite, LEVELS + 1, color_levels(cells.data, *ends)))
    palette = (to_rgba_array([*colors, "#00000000", NOT_FINITE_COLOR]) * [255, 255, 255, 255 * opacity]).round()
    sides = (-0.5, columns * over - 0.5, rows * down - 0.5, -0.5)
    scale = {"cmap": ListedColormap(colors), "norm": Normalize(*ends)}  # for a colour bar
    axes.imshow(palette.astype(np.uint8)[levels], extent=sides, aspect="auto", interpolation="none", **scale)
    if cells.mask.any():
        axes.patch.set(hatch=HATCH, linewidth=0, facecolor="none", edgecolor=rcParams["hatch.color"])
    for (row, column), level in np.ndenumerate(levels) if numbers else ():
        if level < LEVELS:
            place = (column * over + (over - 1) / 2, row * down + (down - 1) / 2)
            how = {"ha": "center", "va": "center_baseline", "color": contrasting_ink(colors[level])}
            axes.text(*place, format(cells[row, column], numbers), fontsize=rcParams["xtick.labelsize"], **how)


def paint_legend(axes: Any, maps: HeatMaps) -> None:
    """Paint a colour bar beside a grid of maps, and a legend of masked cells and NaN."""
    from matplotlib import rcParams
    from matplotlib.patches import Patch

    (width, height), (low, high), top = maps.grid, maps.ranges[0], 1.0
    if any(np.isfinite(one.compressed()).any() for one in maps.cells):
        bar = min(max(maps.size[1], MIN_BAR), MAX_BAR)
        inner = axes.inset_axes((1 + MAP_GAP / width, 1 - bar / height, BAR / width, bar / height))
        scale = np.ma.array(np.arange(LEVELS)[::-1, None], mask=False, shrink=False)
        paint_map(inner, scale, (0, LEVELS - 1), (1, 1), maps.colors)
        ends = ("max", "min") if maps.has_own_ranges else (format_number(high, DIGITS), format_number(low, DIGITS))
        has_zero, edge = low == -high and low and not maps.has_own_ranges, SMALL_SIZE / bar * LEVELS / 2 - 0.5
        places = {edge: ends[0], LEVELS - 1 - edge: ends[1]} | ({(LEVELS - 1) / 2: "0"} if has_zero else {})
        inner.yaxis.tick_right()
        set_ticks(inner.xaxis, Ticks())
        set_ticks(inner.yaxis, Ticks([*places], [*places.values()]))
        top -= (bar + 2 * GAP) / height
    marks = []
    if any(one.mask.any() for one in maps.cells):
        marks = [Patch(label="masked", facecolor="none", edgecolor=rcParams["hatch.color"], hatch=HATCH)]
    if any(np.isinf(one.compressed()).any() for one in maps.cells):
        marks.append(Patch(label="not finite", color=NOT_FINITE_COLOR))
    if marks:
        place = {"loc": "upper left", "bbox_to_anchor": (1 + MAP_GAP / width, top), "borderaxespad": 0}
        axes.legend(handles=marks, handlelength=1.1, handleheight=1.1, handletextpad=0.5, borderpad=0, **place)
