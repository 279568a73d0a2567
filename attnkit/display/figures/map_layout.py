"""The layout of heat maps: the size of a cell, how many maps are side by side, which cells show numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.display.figures.axes import GAP, Axis
from attnkit.display.figures.colors import LEVELS
from attnkit.display.figures.fonts import text_width, visible
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.pooling import Cellular
from attnkit.display.figures.shapes import LINE, SMALL_SIZE
from attnkit.display.numbers import number_format
from attnkit.display.slicing import Matrix

SIDE, WIDTH = 640, 960  # pixels: of the cells of a single map, of all maps in a row
MIN_SIDE, MAX_SIDE = 100, 420  # of the cells of one of several maps
MIN_CELL, MAX_CELL = 2, 48  # of a side of a cell
MIN_LABELLED = 14  # of a side of a cell whose row or column has its label
MAX_CELLS = 100_000  # of all maps together; more are pooled
MAX_NUMBERED = 600  # cells that show their numbers unless requested
MAX_NAMED = 12  # columns that are widened to hold their labels
ASPECT = 1.4  # width by height that a grid of maps comes close to


class Layout(NamedTuple):
    """The sizes that all maps of a figure share.

    numbers  the format of the numbers in the cells, "" for none
    across   maps side by side
    """

    rows: Axis
    columns: Axis
    cell_width: int
    cell_height: int
    numbers: str
    across: int

    @property
    def width(self) -> int:
        """The width of the cells of a map."""
        return self.cell_width * self.columns.cells

    @property
    def height(self) -> int:
        """The height of the cells of a map."""
        return self.cell_height * self.rows.cells


def choose_factors(parts: Sequence[Matrix]) -> tuple[int, int]:
    """Return how many rows and columns make one cell: 1 and 1 unless there are too many cells for a figure.

    >>> choose_factors([Matrix("", np.zeros((600, 64)), np.zeros((600, 64)), [], [], [])])
    (2, 1)
    """
    rows, columns = parts[0].values.shape
    room = (MAX_SIDE if len(parts) > 1 else SIDE) // MIN_CELL
    limit = min(max(int(math.sqrt(MAX_CELLS / len(parts))), 8), room)
    return max(-(-rows // limit), 1), max(-(-columns // limit), 1)


def balanced_columns(count: int, aspect: float = 1.0) -> int:
    """Return how many of `count` maps to place side by side: a grid without holes, not too wide and not too high.

    aspect  width by height of one map

    >>> [balanced_columns(count) for count in (1, 2, 4, 6, 8, 12, 16)]
    [1, 2, 2, 3, 4, 4, 4]
    """

    def cost(across: int) -> float:
        down = -(-count // across)
        return abs(math.log(across * aspect / down / ASPECT)) + 3 * (across * down - count) / count

    return min(range(1, count + 1), key=cost)


def choose_layout(rows: Axis, columns: Axis, maps: Sequence[Cellular], options: FigureOptions) -> Layout:
    """Choose the size of a cell, whether it shows its number, and the number of maps side by side."""
    count = len(maps)
    across = balanced_columns(count, columns.cells / rows.cells)
    side = SIDE if count == 1 else min(max(WIDTH // across, MIN_SIDE), MAX_SIDE)
    height, width = (min(max(side // axis.cells, MIN_CELL), MAX_CELL) for axis in (rows, columns))
    least = max(min(width, height), MIN_LABELLED)
    width, height = min(width, least), min(height, least)
    numbers, room = _number_format(maps, options)
    fits = rows.cells * columns.cells * count <= MAX_NUMBERED and room * columns.cells * across <= WIDTH
    if options.numbers or (options.numbers is None and fits):
        width, height = max(width, room), max(height, math.ceil(SMALL_SIZE * LINE))
        if count == 1 and columns.cells <= MAX_NAMED:
            width = max(width, min(_widest_label(columns) + GAP, MAX_CELL * 3 // 2))
    else:
        numbers = ""
    return Layout(rows, columns, width, height, numbers, across)


def _widest_label(axis: Axis) -> int:
    """Return the width of the widest label of an axis."""
    return math.ceil(max(text_width(visible(label), SMALL_SIZE) for label in axis.labels))


def _number_format(maps: Sequence[Cellular], options: FigureOptions) -> tuple[str, int]:
    """Return the format of the numbers in cells, and the width of a cell that holds them: whole numbers as such."""
    values = np.concatenate([one.values[one.levels < LEVELS] for one in maps])
    is_whole = options.precision is None and bool((values == np.rint(values)).all())
    numbers = number_format(values, 2 if options.precision is None else options.precision)
    numbers = "z.0f" if is_whole and numbers.endswith("f") else numbers
    texts = [format(end, numbers) for end in (values.min(initial=0), values.max(initial=0))]
    return numbers, math.ceil(max(text_width(text, SMALL_SIZE) for text in texts)) + 8
