"""Bars: a number for each class, as the score of sentences over their length."""

import math
from collections.abc import Sequence

from attnkit.display.figures.axes import (
    GAP,
    Axis,
    draw_column_labels,
    draw_column_name,
    fit_column_labels,
    leaning_width,
)
from attnkit.display.figures.colors import SERIES
from attnkit.display.figures.fonts import text_width
from attnkit.display.figures.scales import linear_ticks, place
from attnkit.display.figures.shapes import SMALL_SIZE, TEXT_SIZE, Drawing, Path, Shape, Text, rectangle, short
from attnkit.display.numbers import format_number

WIDTH, HEIGHT = 440, 220  # pixels: of the plot
MAX_STEP = 88  # from one bar to the next
FILLED = 0.7  # of a step


def draw_bars(title: str, axis: Axis, values: Sequence[float], precision: int = 2) -> Drawing:
    """Draw a bar for each label of an axis from 0 to its value, which is above it where it fits.

    What is not finite or negative has no bar.

    >>> drawing = draw_bars("BLEU", Axis("length", ["1-10", "11-20"]), [40.0, 30.0])
    >>> [shape.text for shape in drawing.shapes if isinstance(shape, Text)][-5:]
    ['40.00', '30.00', '1-10', '11-20', 'length']
    """
    step = min(WIDTH / max(len(values), 1), MAX_STEP)
    width, labels = step * len(values), fit_column_labels(axis, step)
    finite = [value for value in values if math.isfinite(value)]
    ticks = linear_ticks(0.0, max([*finite, 0.0]) or 1.0)
    high = max([ticks[-1], *finite])
    texts = [format_number(tick, 4) for tick in ticks]
    left = max([text_width(text, SMALL_SIZE) for text in texts] + [leaning_width(labels) - GAP]) + 2 * GAP
    top, numbers = TEXT_SIZE * 2.0 + SMALL_SIZE, [f"{value:.{precision}f}" for value in values]
    bottom = top + HEIGHT
    shapes: list[Shape] = [Text(left, TEXT_SIZE, title, is_bold=True)]
    for tick, text in zip(ticks, texts, strict=True):
        y = bottom - place(tick, 0.0, high) * HEIGHT
        shapes += [Path(f"M{short(left)} {short(y)}h{short(width)}", stroke="grid")]
        shapes += [Text(left - GAP, y + 4, text, SMALL_SIZE, "end")]
    fits = all(text_width(number, SMALL_SIZE) <= step for number in numbers)
    for at, (value, number) in enumerate(zip(values, numbers, strict=True)):
        if not math.isfinite(value) or value < 0:
            continue
        height, x = place(value, 0.0, high) * HEIGHT, left + (at + (1 - FILLED) / 2) * step
        shapes.append(Path(rectangle(x, bottom - height, FILLED * step, height), fill=SERIES[0]))
        if fits:
            shapes.append(Text(left + (at + 0.5) * step, bottom - height - 4, number, SMALL_SIZE, "middle"))
    base = bottom + labels.extent + TEXT_SIZE + 2
    shapes += [*draw_column_labels(labels, left, bottom, step), draw_column_name(axis.name, left, base, width)]
    return Drawing(max(left + width + GAP, left + text_width(title, TEXT_SIZE) * 1.1), base + GAP, shapes)
