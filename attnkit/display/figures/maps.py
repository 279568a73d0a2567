"""Heat maps: every matrix of a tensor as a grid of coloured cells, with its words, a colour bar and its range."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnkit.display.figures.canvas import GAP, SMALL_SIZE, TEXT_SIZE, clip_text, draw_axes, text_width
from attnkit.display.figures.colors import (
    LEVELS,
    NOT_FINITE_COLOR,
    SIGNED,
    UNSIGNED,
    color_levels,
    color_map,
    contrasting_ink,
)
from attnkit.display.figures.sections import FigureOptions, Section
from attnkit.display.figures.ticks import Ticks, fit_ticks, set_ticks
from attnkit.display.numbers import format_number, number_format
from attnkit.display.slicing import Matrix, TensorView, pluralize, to_matrices
from attnkit.display.style import DEFAULT_STYLE
from attnkit.display.summaries import ordinal
from attnkit.display.text import escape
from attnkit.errors import counted
from attnkit.record import Array

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
MASKED, NOT_FINITE = LEVELS, LEVELS + 1  # the levels of masked cells, and of NaN and infinity


class Cells(NamedTuple):
    """The cells of one map after pooling.

    values   (rows, columns), 0 if a cell is masked or not finite
    levels   (rows, columns), one of LEVELS colours, MASKED or NOT_FINITE
    low      the low end of the range of the colours, `high` its other end
    factors  rows and columns of the matrix in a cell
    """

    title: str
    values: Array
    levels: Array
    low: float
    high: float
    factors: tuple[int, int]


@dataclass
class HeatMaps:
    """Maps in a grid, which share the labels at its left and below it.

    names    the names of the axes
    cell     width and height of a cell in pixels
    numbers  the format of the numbers in the cells, "" for none
    across   maps side by side
    """

    parts: Sequence[Matrix]
    cells: Sequence[Cells]
    colors: Sequence[str]
    names: Sequence[str]
    has_own_ranges: bool
    cell: tuple[float, float] = (0, 0)
    numbers: str = ""
    across: int = 1

    @property
    def size(self) -> tuple[float, float]:
        """The width and height of a map in pixels."""
        rows, columns = self.cells[0].levels.shape
        return self.cell[0] * columns, self.cell[1] * rows

    @property
    def grid(self) -> tuple[float, float]:
        """The width and height of all maps in pixels."""
        (width, height), down = self.size, -(-len(self.cells) // self.across)
        return self.across * (width + MAP_GAP) - MAP_GAP, down * (height + TITLE) - TITLE

    @property
    def ticks(self) -> tuple[Ticks, Ticks]:
        """The labels of the columns and of the rows."""
        (down, over), one = self.cells[0].factors, self.parts[0]
        return fit_ticks(one.columns, self.cell[0], over, below=True), fit_ticks(one.rows, self.cell[1], down)


def heatmap_section(view: TensorView, options: FigureOptions) -> Section:
    """A tensor as heat maps, one for each of its matrices, in a balanced grid with one colour bar.

    Every element is in a cell; if cells would be too many, one shows the largest magnitude of a block of them, and a
    note says so. Masked cells are hatched. Raises DataError if the mask does not broadcast, UsageError for an unknown
    colour map.
    """
    if view.array.size == 0:
        return Section(view.title, [], view.formula, f"{view.description()}, empty")
    maps, hidden = make_maps(view, options)
    fit_cells(maps, options)
    (down, over), count = maps.cells[0].factors, len(maps.cells)
    every = [
        f"every {ordinal(one.every)} {name}" for one, name in zip(maps.ticks, maps.names, strict=True) if one.every > 1
    ]
    kind = pluralize(view.axes[0]) if view.array.ndim == 3 else "maps"
    ranges = "each with its own range of colours" if maps.has_own_ranges else "one range of colours"
    notes = [
        hidden,
        f"each cell shows the number of largest magnitude among {down} × {over}" if down * over > 1 else "",
        f"labels: {', '.join(every[::-1])}" if every else "",
        f"{count} {kind}, {ranges}" if count > 1 else "",
        outside_note(maps.parts, options),
    ]
    drawings = [draw_axes(*grid.grid, partial(paint_maps, maps=grid)) for grid in split_maps(maps)]
    return Section(view.title, drawings, view.formula, view.description(), [note for note in notes if note])


def split_maps(maps: HeatMaps) -> list[HeatMaps]:
    """Return one grid if all maps have the same labels, such as heads, or a grid for each, such as texts of a batch."""
    if all((one.rows, one.columns) == (maps.parts[0].rows, maps.parts[0].columns) for one in maps.parts):
        return [maps]
    return [replace(maps, parts=[part], cells=[one]) for part, one in zip(maps.parts, maps.cells, strict=True)]


def make_maps(view: TensorView, options: FigureOptions) -> tuple[HeatMaps, str]:
    """Pool the matrices of a tensor into maps of cells, and count those that are hidden."""
    parts, hidden, _ = to_matrices(view, MAX_MAPS)
    ranges, factors = find_ranges(parts, options), choose_factors(parts)
    colors = color_map(options.colors or (SIGNED if any(low < 0 < high for low, high in ranges) else UNSIGNED))
    cells = [make_cells(part, factors, ends) for part, ends in zip(parts, ranges, strict=True)]
    axes = ["", "", *(escape(axis, DEFAULT_STYLE) for axis in view.axes)]
    names = (axes[-1], axes[-2] if parts[0].rows else "")
    return HeatMaps(parts, cells, colors, names, options.range == "each" and len(parts) > 1), hidden


def choose_factors(parts: Sequence[Matrix]) -> tuple[int, int]:
    """Choose how many rows and columns make one cell: 1 and 1 unless there are too many cells for a figure.

    >>> choose_factors([Matrix("", np.zeros((600, 64)), np.zeros((600, 64)), [], [], [])])
    (2, 1)
    """
    rows, columns = parts[0].values.shape
    room = (MAX_SIDE if len(parts) > 1 else SIDE) // MIN_CELL
    limit = min(max(int(math.sqrt(MAX_CELLS / len(parts))), 8), room)
    return max(-(-rows // limit), 1), max(-(-columns // limit), 1)


def find_ranges(parts: Sequence[Matrix], options: FigureOptions) -> list[tuple[float, float]]:
    """Find the range of the colours of each map: the requested one, its own, or one range for all maps.

    A range of both signs is symmetric about 0.
    """
    if isinstance(options.range, tuple):
        return [options.range] * len(parts)
    finite = [part.values[~part.masked].astype(np.float64) for part in parts]
    finite = [values[np.isfinite(values)] for values in finite]
    groups = finite if options.range == "each" else [np.concatenate(finite)] * len(parts)
    ends = [(float(one.min()), float(one.max())) if one.size else (0.0, 0.0) for one in groups]
    return [(-max(-low, high), max(-low, high)) if low < 0 < high else (low, high) for low, high in ends]


def make_cells(part: Matrix, factors: tuple[int, int], ends: tuple[float, float]) -> Cells:
    """Pool a matrix into cells, one for each block of `factors` rows and columns.

    A cell has the value of largest magnitude in its block. It is not finite if one value is NaN or infinity, and
    masked if all are masked (or -inf, as in scores).

    >>> x, none = np.array([[1.0, -3.0], [2.0, 0.0]]), np.zeros((2, 2), bool)
    >>> make_cells(Matrix("", x, none, [], [], []), (2, 2), (-3.0, 3.0))[1:3]
    (array([[-3.]]), array([[0]]))
    """
    values = part.values.astype(np.float64)
    is_masked = part.masked | (values == -np.inf)
    is_other = ~np.isfinite(values) & ~is_masked
    finite = np.where(is_masked | is_other, 0.0, values)
    if factors != (1, 1):
        blocks = _to_blocks(finite, factors, 0.0)
        peak = np.abs(blocks).argmax(axis=-1)[..., None]
        finite = np.take_along_axis(blocks, peak, axis=-1)[..., 0]
        is_masked = _to_blocks(is_masked, factors, True).all(axis=-1)
        is_other = _to_blocks(is_other, factors, False).any(axis=-1)
    levels = np.where(is_masked, MASKED, np.where(is_other, NOT_FINITE, color_levels(finite, *ends)))
    return Cells(part.title, finite, levels, *ends, factors)


def _to_blocks(values: Array, factors: tuple[int, int], fill: float) -> Array:
    """Cut a matrix into blocks: (rows, columns) -> (cells down, cells across, elements of a block)."""
    (height, width), (down, across) = values.shape, factors
    padded = np.pad(values, ((0, -height % down), (0, -width % across)), constant_values=fill)
    rows, columns = padded.shape[0] // down, padded.shape[1] // across
    return padded.reshape(rows, down, columns, across).swapaxes(1, 2).reshape(rows, columns, down * across)


def outside_note(parts: Sequence[Matrix], options: FigureOptions) -> str:
    """Count the finite numbers, not masked, outside of the requested range; "" for none."""
    if not isinstance(options.range, tuple):
        return ""
    low, high = options.range
    count = 0
    for part in parts:
        values = part.values[~part.masked].astype(np.float64)
        count += int(((values < low) | (values > high))[np.isfinite(values)].sum())
    return f"{counted(count, 'number')} outside of the range, drawn at its end" if count else ""


def balanced_columns(count: int, aspect: float = 1.0) -> int:
    """Choose how many of `count` maps to place side by side: a grid without holes, not too wide and not too high.

    aspect  width by height of one map

    >>> [balanced_columns(count) for count in (1, 2, 4, 6, 8, 12, 16)]
    [1, 2, 2, 3, 4, 4, 4]
    """

    def cost(across: int) -> float:
        down = -(-count // across)
        return abs(math.log(across * aspect / down / ASPECT)) + 3 * (across * down - count) / count

    return min(range(1, count + 1), key=cost)


def fit_cells(maps: HeatMaps, options: FigureOptions) -> None:
    """Choose the size of a cell, whether it shows its number, and the number of maps side by side."""
    count, (rows, columns) = len(maps.cells), maps.cells[0].levels.shape
    maps.across = balanced_columns(count, columns / rows)
    side = SIDE if count == 1 else min(max(WIDTH // maps.across, MIN_SIDE), MAX_SIDE)
    width, height = (min(max(side // one, MIN_CELL), MAX_CELL) for one in (columns, rows))
    least = max(min(width, height), MIN_LABELLED)
    maps.cell = min(width, least), min(height, least)
    numbers, room = choose_numbers(maps.cells, options)
    fits = rows * columns * count <= MAX_NUMBERED and room * columns * maps.across <= WIDTH
    if options.numbers or (options.numbers is None and fits):
        widest = 0.0
        if count == 1 and columns <= MAX_NAMED:
            widest = math.ceil(max(text_width(label, SMALL_SIZE) for label in maps.parts[0].columns)) + GAP
        maps.numbers = numbers
        maps.cell = max(maps.cell[0], room, min(widest, MAX_CELL * 3 // 2)), max(maps.cell[1], ROW)


def choose_numbers(cells: Sequence[Cells], options: FigureOptions) -> tuple[str, int]:
    """Choose the format of the numbers in cells, and the width of a cell that holds them; whole numbers as such."""
    values = np.concatenate([one.values[one.levels < LEVELS] for one in cells])
    is_whole = options.precision is None and bool((values == np.rint(values)).all())
    numbers = number_format(values, 2 if options.precision is None else options.precision)
    numbers = "z.0f" if is_whole and numbers.endswith("f") else numbers
    texts = [format(end, numbers) for end in (values.min(initial=0), values.max(initial=0))]
    return numbers, math.ceil(max(text_width(text, SMALL_SIZE) for text in texts)) + 8


def paint_maps(axes: Any, maps: HeatMaps, has_legend: bool = True) -> None:
    """Paint a grid of maps on axes of matplotlib."""
    count, (width, height), (map_width, map_height) = len(maps.cells), maps.grid, maps.size
    if count > 1:
        axes.axis("off")
    for at, one in enumerate(maps.cells):
        down, over = divmod(at, maps.across)
        x, y = over * (map_width + MAP_GAP), height - down * (map_height + TITLE) - map_height
        place = (x / width, y / height, map_width / width, map_height / height)
        inner = axes if count == 1 else axes.inset_axes(place)
        paint_map(inner, one, maps.colors, maps.numbers)
        is_bottom, is_left = at + maps.across >= count, over == 0
        for axis, ticks, name, is_labelled in zip(
            (inner.xaxis, inner.yaxis), maps.ticks, maps.names, (is_bottom, is_left), strict=True
        ):
            set_ticks(axis, ticks if is_labelled else Ticks())
            axis.set_label_text(name if is_labelled else "", parse_math=False)
        ends = f" ({format_number(one.low, DIGITS)} … {format_number(one.high, DIGITS)})" * maps.has_own_ranges
        inner.set_title(clip_text(one.title + ends, map_width + MAP_GAP, TEXT_SIZE, "bold"), parse_math=False)
    if has_legend:
        paint_legend(axes, maps)


def paint_map(axes: Any, one: Cells, colors: Sequence[str], numbers: str) -> None:
    """Paint the cells of a map on axes of matplotlib, whose units are the indices of the matrix.

    numbers  the format of the numbers in the cells, "" for none
    """
    from matplotlib import rcParams
    from matplotlib.colors import ListedColormap, Normalize, to_rgba_array

    (rows, columns), (down, over) = one.levels.shape, one.factors
    palette = (to_rgba_array([*colors, "#00000000", NOT_FINITE_COLOR]) * 255).round().astype(np.uint8)
    ends = (-0.5, columns * over - 0.5, rows * down - 0.5, -0.5)
    scale = {"cmap": ListedColormap(colors), "norm": Normalize(one.low, one.high)}  # for a colour bar
    axes.imshow(palette[one.levels], extent=ends, aspect="auto", interpolation="none", **scale)
    if (one.levels == MASKED).any():
        axes.patch.set(hatch=HATCH, linewidth=0, facecolor="none", edgecolor=rcParams["hatch.color"])
    for (row, column), level in np.ndenumerate(one.levels) if numbers else ():
        if level < LEVELS:
            place = (column * over + (over - 1) / 2, row * down + (down - 1) / 2)
            how = {"ha": "center", "va": "center_baseline", "color": contrasting_ink(colors[level])}
            axes.text(*place, format(one.values[row, column], numbers), fontsize=rcParams["xtick.labelsize"], **how)


def paint_legend(axes: Any, maps: HeatMaps) -> None:
    """Paint a colour bar beside a grid of maps, and below it the marks of cells without a colour."""
    from matplotlib import rcParams
    from matplotlib.patches import Patch

    present = np.unique(np.concatenate([one.levels.ravel() for one in maps.cells]))
    (width, height), (low, high), top = maps.grid, maps.cells[0][3:5], 1.0
    if (present < LEVELS).any():
        bar = min(max(maps.size[1], MIN_BAR), MAX_BAR)
        inner = axes.inset_axes((1 + MAP_GAP / width, 1 - bar / height, BAR / width, bar / height))
        scale = maps.cells[0]._replace(levels=np.arange(LEVELS)[::-1, None], factors=(1, 1))
        paint_map(inner, scale, maps.colors, "")
        ends = ["max", "min"] if maps.has_own_ranges else [format_number(end, DIGITS) for end in (high, low)]
        edge = SMALL_SIZE / bar * LEVELS / 2 - 0.5
        labels = {edge: ends[0], LEVELS - 1 - edge: ends[1]}
        labels |= {(LEVELS - 1) / 2: "0"} if low == -high and low and not maps.has_own_ranges else {}
        inner.yaxis.tick_right()
        set_ticks(inner.xaxis, Ticks())
        set_ticks(inner.yaxis, Ticks([*labels], [*labels.values()]))
        top -= (bar + 2 * GAP) / height
    hatch = {"facecolor": "none", "edgecolor": rcParams["hatch.color"], "hatch": HATCH}
    looks = {MASKED: ("masked", hatch), NOT_FINITE: ("not finite", {"color": NOT_FINITE_COLOR})}
    marks = [Patch(label=name, **look) for level, (name, look) in looks.items() if level in present]
    if marks:
        place = {"loc": "upper left", "bbox_to_anchor": (1 + MAP_GAP / width, top), "borderaxespad": 0}
        axes.legend(handles=marks, handlelength=1.1, handleheight=1.1, handletextpad=0.5, borderpad=0, **place)
