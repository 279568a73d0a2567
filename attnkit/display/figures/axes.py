"""Labels along an axis: which of them are drawn, how far they are turned, and how much room they take."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from attnkit.display.figures.fonts import clip_text, text_width, visible
from attnkit.display.figures.shapes import SMALL_SIZE, TEXT_SIZE, Shape, Text

MAX_LABEL = 150  # pixels
PITCH = SMALL_SIZE + 1  # least distance of two labels in the direction across them
TURNED = 0.75 * SMALL_SIZE  # from the middle of a cell to the baseline of a turned label, twice
GAP = 6  # between the cells and their labels
STEPS = (1, 2, 5)  # times a power of ten: the distances of indices


class AxisLabels(NamedTuple):
    """The labels of one axis: the index of the cell and the text of each, and how they are drawn."""

    name: str
    texts: list[tuple[int, str]]
    angle: Literal[0, 45, 90]
    extent: float  # the room across the axis, without its name
    every: int = 1  # of so many labels one is drawn, the others left out


class Axis(NamedTuple):
    """An axis of cells: the labels of its indices, and how many of them a cell holds."""

    name: str
    labels: Sequence[str]
    factor: int = 1

    @property
    def cells(self) -> int:
        """The number of cells."""
        return -(-len(self.labels) // self.factor)

    @property
    def is_numbered(self) -> bool:
        """Whether its labels are its indices."""
        return all(label == str(i) for i, label in enumerate(self.labels))


def fit_column_labels(axis: Axis, cell: float) -> AxisLabels:
    """Choose the labels below columns of this width: level where they fit, turned by 45° or 90° where they do not.

    >>> fit_column_labels(Axis("key", ["The", "cat"]), 40)
    AxisLabels(name='key', texts=[(0, 'The'), (1, 'cat')], angle=0, extent=17, every=1)
    >>> [fit_column_labels(Axis("key", ["The", "cat"]), cell).angle for cell in (20, 11)]
    [45, 90]
    """
    if axis.is_numbered:
        return _numbered(axis, cell, text_width(str(len(axis.labels) - 1), SMALL_SIZE) + GAP, SMALL_SIZE + GAP)
    texts = _clipped(axis)
    widest = max(text_width(text, SMALL_SIZE) for text in texts)
    if widest + GAP <= cell:
        return AxisLabels(axis.name, list(enumerate(texts)), 0, SMALL_SIZE + GAP)
    angle: Literal[45, 90] = 45 if cell >= PITCH * math.sqrt(2) else 90
    extent = widest * math.sin(math.radians(angle)) + GAP + (GAP if angle == 45 else 0)
    return _thinned(axis, texts, cell, angle, extent)


def fit_row_labels(axis: Axis, cell: float) -> AxisLabels:
    """Choose the labels left of rows of this height.

    >>> fit_row_labels(Axis("query", ["The", "cat", "sat"]), 7)[:3]
    ('query', [(0, 'The'), (2, 'sat')], 0)
    """
    if axis.is_numbered:
        return _numbered(axis, cell, PITCH, text_width(str(len(axis.labels) - 1), SMALL_SIZE) + GAP)
    texts = _clipped(axis)
    return _thinned(axis, texts, cell, 0, max(text_width(text, SMALL_SIZE) for text in texts) + GAP)


def _clipped(axis: Axis) -> list[str]:
    """Return the label of each cell, the first of its indices, cut to MAX_LABEL."""
    return [clip_text(visible(label), MAX_LABEL, SMALL_SIZE) for label in axis.labels[:: axis.factor]]


def _thinned(axis: Axis, texts: Sequence[str], cell: float, angle: Literal[0, 45, 90], extent: float) -> AxisLabels:
    """Keep every n-th label, so that no two overlap."""
    step = max(math.ceil(PITCH / cell), 1) if angle != 45 else 1
    return AxisLabels(axis.name, list(enumerate(texts))[::step], angle, extent, step * axis.factor)


def _numbered(axis: Axis, cell: float, pitch: float, extent: float) -> AxisLabels:
    """Keep the indices that are multiples of 1, 2, 5, 10 …, so that no two overlap."""
    least = pitch / cell * axis.factor
    power = 10 ** max(math.floor(math.log10(least)), 0)
    step = next(one * power for one in (*STEPS, 10) if one * power >= least or one == 10)
    texts = [(i // axis.factor, str(i)) for i in range(0, len(axis.labels), step)]
    return AxisLabels(axis.name, texts, 0, extent)


def leaning_width(labels: AxisLabels) -> float:
    """Return how far turned labels reach to the left of the first column."""
    if labels.angle != 45:
        return 0
    return max(text_width(text, SMALL_SIZE) for _, text in labels.texts) * math.sin(math.radians(45))


def draw_column_labels(labels: AxisLabels, x: float, y: float, cell: float) -> list[Shape]:
    """Draw the labels below cells that begin at (x, y), the bottom left corner."""
    shapes: list[Shape] = []
    for at, text in labels.texts:
        middle = x + (at + 0.5) * cell
        if labels.angle == 0:
            shapes.append(Text(middle, y + SMALL_SIZE + GAP / 2, text, SMALL_SIZE, "middle"))
        elif labels.angle == 45:
            shapes.append(Text(middle + TURNED / 2, y + GAP + TURNED / 2, text, SMALL_SIZE, "end", -45))
        else:
            shapes.append(Text(middle + TURNED / 2, y + GAP, text, SMALL_SIZE, "end", -90))
    return shapes


def draw_row_labels(labels: AxisLabels, x: float, y: float, cell: float) -> list[Shape]:
    """Draw the labels left of cells that begin at (x, y), the upper left corner."""
    baseline = y + cell / 2 + 0.35 * SMALL_SIZE
    return [Text(x - GAP, baseline + at * cell, text, SMALL_SIZE, "end") for at, text in labels.texts]


def draw_column_name(name: str, x: float, y: float, width: float) -> Shape:
    """Draw the name of an axis below its labels, centred: its baseline is at y."""
    return Text(x + width / 2, y, visible(name), TEXT_SIZE, "middle", color="muted")


def draw_row_name(name: str, x: float, y: float, height: float) -> Shape:
    """Draw the name of an axis left of its labels, turned upwards and centred: its baseline is at x."""
    return Text(x, y + height / 2, visible(name), TEXT_SIZE, "middle", -90, "muted")
