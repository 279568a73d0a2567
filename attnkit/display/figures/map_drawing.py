"""Draw heat maps: a grid of them with their labels, the cells of each, and the numbers in the cells."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.display.figures.axes import (
    GAP,
    AxisLabels,
    draw_column_labels,
    draw_column_name,
    draw_row_labels,
    draw_row_name,
    leaning_width,
)
from attnkit.display.figures.colors import LEVELS, contrasting_ink
from attnkit.display.figures.fonts import clip_text
from attnkit.display.figures.legend import MARKS, draw_legend
from attnkit.display.figures.map_layout import Layout
from attnkit.display.figures.pooling import Cellular
from attnkit.display.figures.shapes import (
    SMALL_SIZE,
    TEXT_SIZE,
    Array,
    Cells,
    Drawing,
    Path,
    Placed,
    Shape,
    Text,
    rectangle,
)
from attnkit.display.numbers import format_number, to_python

MAP_GAP = 18  # pixels between two maps


class LabelledMap(NamedTuple):
    """A map with the labels of its rows and columns."""

    cells: Cellular
    rows: AxisLabels
    columns: AxisLabels


class Frame(NamedTuple):
    """The places of the maps in their grid: the corner of the first, the distances of two, the room around each."""

    left: float
    top: float
    pitch_x: float
    pitch_y: float
    below: float


def draw_grid(
    maps: Sequence[LabelledMap], layout: Layout, colors: Sequence[str], shares_labels: bool, has_own_ranges: bool
) -> Drawing:
    """Draw maps in rows of `layout.across`; labels they share are at the left and at the bottom of the grid."""
    count, across = len(maps), layout.across
    frame = _make_frame(maps, layout, shares_labels)
    shapes: list[Shape] = []
    for at, (cells, rows, columns) in enumerate(maps):
        down, over = divmod(at, across)
        x, y = frame.left + over * frame.pitch_x, frame.top + down * frame.pitch_y
        shapes += _draw_map(cells, x, y, layout, colors, has_own_ranges)
        if over == 0 or not shares_labels:
            shapes += draw_row_labels(rows, x, y, layout.cell_height)
        if at + across >= count or not shares_labels:
            shapes += draw_column_labels(columns, x, y + layout.height, layout.cell_width)
    right = frame.left + (across - 1) * frame.pitch_x + layout.width
    bottom = frame.top + (-(-count // across) - 1) * frame.pitch_y + layout.height
    base = bottom + frame.below + TEXT_SIZE + 2
    if layout.rows.name:
        shapes.append(draw_row_name(layout.rows.name, TEXT_SIZE, frame.top, bottom - frame.top))
    shapes.append(draw_column_name(layout.columns.name, frame.left, base, right - frame.left))
    legend = draw_legend([one.cells for one in maps], colors, layout.height, has_own_ranges)
    shapes.append(Placed(right + MAP_GAP, frame.top, legend))
    return Drawing(
        math.ceil(right + MAP_GAP + legend.width), math.ceil(max(base + GAP, frame.top + legend.height)), shapes
    )


def _make_frame(maps: Sequence[LabelledMap], layout: Layout, shares_labels: bool) -> Frame:
    """Return the places of the maps: each has room for its labels, unless all share those of the grid."""
    labels = max(one.rows.extent for one in maps)
    below = max(one.columns.extent for one in maps)
    lean = max(leaning_width(one.columns) for one in maps)
    left = labels + max(TEXT_SIZE * 1.5 if layout.rows.name else 0, lean - labels)
    top = SMALL_SIZE * 2 if any(one.cells.title for one in maps) else 4
    pitch_x = layout.width + MAP_GAP + (0 if shares_labels else labels)
    pitch_y = top + layout.height + (GAP if shares_labels else below + GAP)
    return Frame(left, top, pitch_x, pitch_y, below)


def _draw_map(
    one: Cellular, x: float, y: float, layout: Layout, colors: Sequence[str], has_own_range: bool
) -> list[Shape]:
    """Draw the cells of one map with its title, its masked cells hatched, and the numbers in the cells."""
    shapes: list[Shape] = []
    if one.title:
        ends = f" ({format_number(one.low, 3)} … {format_number(one.high, 3)})" if has_own_range else ""
        shapes.append(Text(x, y - GAP, clip_text(one.title + ends, layout.width + MAP_GAP, TEXT_SIZE), is_bold=True))
    finite = np.where(one.levels < LEVELS, one.levels, -1)
    shapes.append(Cells(x, y, layout.cell_width, layout.cell_height, finite, colors))
    for level, color, _ in MARKS:
        if data := _cover(one.levels == level, x, y, layout):
            shapes.append(Path(data, fill=color))
    shapes.append(Path(rectangle(x, y, layout.width, layout.height), stroke="grid"))
    return shapes + (_draw_numbers(one, x, y, layout, colors) if layout.numbers else [])


def _cover(where: Array, x: float, y: float, layout: Layout) -> str:
    """Return a path over the cells that are true: a rectangle for each run in a row."""
    width, height = layout.cell_width, layout.cell_height
    data = []
    for row, line in enumerate(where):
        edges = np.flatnonzero(np.diff(line.astype(np.int8), prepend=0, append=0)).tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            data.append(rectangle(x + start * width, y + row * height, (end - start) * width, height))
    return "".join(data)


def _draw_numbers(one: Cellular, x: float, y: float, layout: Layout, colors: Sequence[str]) -> list[Shape]:
    """Draw the number of each finite cell in its middle, black or white."""
    shapes: list[Shape] = []
    for row, (values, levels) in enumerate(zip(to_python(one.values), one.levels.tolist(), strict=True)):
        baseline = y + (row + 0.5) * layout.cell_height + 0.35 * SMALL_SIZE
        for column, (value, level) in enumerate(zip(values, levels, strict=True)):
            if level < LEVELS:
                middle, text = x + (column + 0.5) * layout.cell_width, format(value, layout.numbers)
                shapes.append(Text(middle, baseline, text, SMALL_SIZE, "middle", color=contrasting_ink(colors[level])))
    return shapes
