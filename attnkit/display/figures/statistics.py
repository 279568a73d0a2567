"""Statistics of tensors: a table of their numbers, and a chart of their extent, mean and deviation."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attnkit.display.figures.axes import GAP
from attnkit.display.figures.colors import SERIES
from attnkit.display.figures.fonts import clip_text, text_width, visible
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.scales import linear_ticks, place
from attnkit.display.figures.shapes import (
    SMALL_SIZE,
    TEXT_SIZE,
    Array,
    Drawing,
    Path,
    Section,
    Shape,
    Table,
    Text,
    rectangle,
    short,
)
from attnkit.display.numbers import format_number
from attnkit.display.summaries import compute_statistics

HEADS = ("name", "shape", "dtype", "min", "max", "mean", "std", "zeros", "nan", "inf")
LEFT = (0, 1, 2)
ROW, WIDTH = 20, 480  # pixels: of a tensor in the chart, and of its scale
MAX_NAME = 220
DIGITS = 4


class Extent(NamedTuple):
    """The statistics of the finite values of a tensor."""

    name: str
    low: float
    high: float
    mean: float
    deviation: float


def statistics_section(named: Mapping[str, Array], options: FigureOptions) -> Section:
    """Return the statistics of tensors as a table, and below it a chart of those that have finite values.

    >>> import numpy as np
    >>> section = statistics_section({"x": np.array([0.0, 2.0])}, FigureOptions())
    >>> section.panels[0].rows[1]
    ['x', '(2)', 'float64', '0', '2', '1', '1', '1', '0', '0']
    """
    rows: list[Sequence[str]] = [HEADS]
    extents = []
    digits = DIGITS if options.precision is None else options.precision
    for name, array in named.items():
        numbers, counts = compute_statistics(array)
        values = [float(number) for number in numbers]
        texts = [format_number(value, digits) for value in values] or ["-"] * 4
        rows.append(
            [visible(name), f"({', '.join(map(str, array.shape))})", array.dtype.name, *texts, *map(str, counts)]
        )
        extents += [Extent(name, *values)] if values else []
    charts = [_draw_chart(extents)] if extents else []
    note = "of the finite values: a line from minimum to maximum, on it a bar of mean ± standard deviation"
    return Section("statistics", [Table(rows, LEFT), *charts], notes=[note] if charts else [])


def _draw_chart(extents: Sequence[Extent]) -> Drawing:
    """Draw a line from the minimum to the maximum of each tensor, a bar of its deviation and a mark at its mean."""
    names = [clip_text(visible(one.name), MAX_NAME, TEXT_SIZE) for one in extents]
    left = max(text_width(name, TEXT_SIZE) for name in names) + 2 * GAP
    low, high = min(one.low for one in extents), max(one.high for one in extents)
    ticks, bottom = linear_ticks(low, high), ROW * len(extents)
    ends = min(low, ticks[0]), max(high, ticks[-1])
    shapes: list[Shape] = []
    for tick in ticks:
        x = left + place(tick, *ends) * WIDTH
        shapes += [
            Path(f"M{short(x)} 0V{bottom}", stroke="grid"),
            Text(x, bottom + SMALL_SIZE + GAP, format_number(tick, DIGITS), SMALL_SIZE, "middle", color="muted"),
        ]
    for at, (name, one) in enumerate(zip(names, extents, strict=True)):
        middle = (at + 0.5) * ROW
        start, end, mean = (left + place(value, *ends) * WIDTH for value in (one.low, one.high, one.mean))
        from_, to = (left + place(one.mean + sign * one.deviation, *ends) * WIDTH for sign in (-1, 1))
        from_, to = max(from_, start), min(to, end)
        shapes += [
            Text(left - 2 * GAP, middle + 4, name, anchor="end"),
            Path(f"M{short(start)} {short(middle)}H{short(end)}", stroke="muted", width=1.5),
            Path(rectangle(from_, middle - 4, max(to - from_, 1), 8), fill=SERIES[0]),
            Path(rectangle(mean - 1, middle - 6, 2, 12), fill="ink"),
        ]
    return Drawing(left + WIDTH + 3 * GAP, bottom + SMALL_SIZE + 2 * GAP, shapes)
