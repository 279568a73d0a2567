"""Labels along an axis: which of them are drawn, how far they are turned, and how much room they take."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.display.figures.canvas import GAP, SMALL_SIZE, clip_text, text_width
from attnkit.display.numbers import format_number
from attnkit.display.style import DEFAULT_STYLE
from attnkit.display.text import escape

MAX_LABEL = 150  # pixels
MAX_NUMBERS, DIGITS = 6, 4  # on an axis of numbers
LARGEST = 1e300  # the extent of an axis of numbers, twice this, is finite


class Ticks(NamedTuple):
    """The labels of an axis that are drawn, each at its place; turned by 0, 45 or 90 degrees.

    every  one of so many labels is drawn
    """

    places: Sequence[float] = ()
    texts: Sequence[str] = ()
    angle: int = 0
    every: int = 1


def fit_ticks(
    labels: Sequence[str], cell: float, factor: int = 1, below: bool = False, size: float = SMALL_SIZE
) -> Ticks:
    """Choose the labels beside cells of this height, or below cells of this width, so that no two overlap.

    Below narrow columns they are turned. Of indices the multiples of 1, 2, 5, 10 … are chosen.

    factor  indices in a cell

    >>> [fit_ticks(["The", "cat"], cell, below=True).angle for cell in (40, 20, 11)]
    [0, 45, 90]
    >>> fit_ticks(["The", "cat", "sat"], 7).texts, fit_ticks([str(i) for i in range(30)], 2).texts
    (['The', 'sat'], ['0', '10', '20'])
    """
    pitch = size + 1  # least distance of two labels across them
    if all(label == str(i) for i, label in enumerate(labels)):
        least = (text_width(labels[-1], size) + GAP if below else pitch) / cell * factor if labels else 1
        power = 10 ** max(math.floor(math.log10(least)), 0)
        step = next(one * power for one in (1, 2, 5, 10) if one * power >= least or one == 10)
        return Ticks(range(0, len(labels), step), labels[::step])
    texts = [clip_text(escape(label, DEFAULT_STYLE), MAX_LABEL, size) for label in labels[::factor]]
    places = [at * factor + (factor - 1) / 2 for at in range(len(texts))]
    if below and max(text_width(text, size) for text in texts) + GAP <= cell:
        return Ticks(places, texts)
    if below and cell >= pitch * math.sqrt(2):
        return Ticks(places, texts, 45)
    step = max(math.ceil(pitch / cell), 1)
    return Ticks(places[::step], texts[::step], 90 if below else 0, step * factor)


def set_ticks(axis: Any, ticks: Ticks) -> None:
    """Set the labels of an axis of matplotlib."""
    turned = {"rotation": ticks.angle, "ha": "right", "rotation_mode": "anchor"} if ticks.angle else {}
    turned |= {45: {"va": "top"}, 90: {"va": "center"}}.get(ticks.angle, {})
    axis.set_ticks(ticks.places, ticks.texts, parse_math=False, **turned)


def set_numbers(axes: Any, which: str, low: float, high: float) -> None:
    """Set the range of the x or y axis of a plot of matplotlib, with lines across it at round numbers."""
    from matplotlib.ticker import MaxNLocator

    low, high = np.clip((low, high), -LARGEST, LARGEST).tolist()
    places, room = [low], abs(high) / 2 or 0.5
    if high - low > abs(high) * 1e-12:
        slack, room = (high - low) * 1e-9, 0.0
        every = MaxNLocator(MAX_NUMBERS, steps=[1, 2, 5, 10]).tick_values(low, high)
        places = [float(place) for place in every if low - slack <= place <= high + slack]
    axes.set(**{f"{which}lim": (low - room, high + room)})
    set_ticks(getattr(axes, f"{which}axis"), Ticks(places, [format_number(place, DIGITS) for place in places]))
    axes.grid(axis=which)
