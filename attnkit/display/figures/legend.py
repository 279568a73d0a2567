"""The colour bar of heat maps: its ends, and the marks of cells that are masked or not finite."""

import math
from collections.abc import Sequence

import numpy as np

from attnkit.display.figures.colors import LEVELS, NOT_FINITE_COLOR
from attnkit.display.figures.fonts import text_width
from attnkit.display.figures.pooling import MASKED, NOT_FINITE, Cellular
from attnkit.display.figures.shapes import SMALL_SIZE, Cells, Drawing, Path, Shape, Text, rectangle
from attnkit.display.numbers import format_number

BAR = 12  # pixels: the width of the bar
MAX_HEIGHT, MIN_HEIGHT = 240, 3 * SMALL_SIZE
GAP = 6
DIGITS = 3
MARKS = ((MASKED, "hatch", "masked"), (NOT_FINITE, NOT_FINITE_COLOR, "not finite"))


def draw_legend(maps: Sequence[Cellular], colors: Sequence[str], height: float, has_own_ranges: bool) -> Drawing:
    """Draw the colour bar beside maps of this height, and below it the marks that are present.

    >>> ones = np.ones((1, 1))
    >>> legend = draw_legend([Cellular("", ones, ones.astype(int), -1.0, 1.0)], ["#000000"] * LEVELS, 100, False)
    >>> [shape.text for shape in legend.shapes if isinstance(shape, Text)]
    ['1', '0', '-1']
    """
    present = np.unique(np.concatenate([one.levels.ravel() for one in maps]))
    shapes: list[Shape] = []
    bottom = 0.0
    if (present < LEVELS).any():
        bottom = min(max(height, MIN_HEIGHT), MAX_HEIGHT)
        shapes += _draw_bar(maps[0], colors, bottom, has_own_ranges)
        bottom += 2 * GAP
    for level, color, name in MARKS:
        if level in present:
            square = rectangle(0, bottom, BAR, BAR)
            shapes += [Path(square, fill=color), Path(square, stroke="grid")]
            shapes.append(Text(BAR + GAP, bottom + BAR - 2, name, SMALL_SIZE))
            bottom += BAR + GAP
    widest = max((text_width(one.text, SMALL_SIZE) for one in shapes if isinstance(one, Text)), default=0)
    return Drawing(math.ceil(BAR + GAP + widest), bottom, shapes)


def _draw_bar(one: Cellular, colors: Sequence[str], height: float, has_own_ranges: bool) -> list[Shape]:
    """Draw the bar with the numbers at its ends, and at its middle where that is 0."""
    low, high = ("min", "max") if has_own_ranges else (format_number(end, DIGITS) for end in (one.low, one.high))
    marks = [(high, SMALL_SIZE * 0.8), (low, height)]
    if one.low == -one.high and one.low and not has_own_ranges:
        marks.insert(1, ("0", height / 2 + SMALL_SIZE * 0.35))
    levels = np.arange(LEVELS)[::-1, None]
    return [
        Cells(0, 0, BAR, height / LEVELS, levels, colors),
        Path(rectangle(0, 0, BAR, height), stroke="grid"),
        *(Text(BAR + GAP, y, text, SMALL_SIZE) for text, y in marks),
    ]
