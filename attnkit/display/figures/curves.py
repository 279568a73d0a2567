"""Curves: the numbers of each column of a matrix over its rows, as encodings over their positions; or of each head."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.display.figures.axes import (
    GAP,
    Axis,
    draw_column_labels,
    draw_column_name,
    fit_column_labels,
    leaning_width,
)
from attnkit.display.figures.colors import SERIES
from attnkit.display.figures.fonts import clip_text, text_width, visible
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.pooling import find_ranges, outside_note
from attnkit.display.figures.scales import linear_ticks, place
from attnkit.display.figures.shapes import (
    SMALL_SIZE,
    TEXT_SIZE,
    Array,
    Drawing,
    Path,
    Section,
    Shape,
    Text,
    rectangle,
    short,
)
from attnkit.display.numbers import format_number
from attnkit.display.slicing import Matrix, TensorView, to_matrices

MAX_PLOTS = 64
ROWS_WITHOUT_ORDER = ("batch", "head")
WIDTH, HEIGHT = 640, 300  # pixels: of the plot
MAX_LABEL = 120
LINE_LENGTH = 16  # of a line in the legend


class Plot(NamedTuple):
    """What a plot of curves shows: its rows on the horizontal axis, some of its columns, its vertical range."""

    part: Matrix
    rows: Axis
    columns: list[int]
    low: float
    high: float


def curves_section(view: TensorView, options: FigureOptions) -> Section:
    """Return a tensor as curves, a plot for each of its matrices: a curve for each column, over the rows.

    Of heads and of a single row (a sum of weights by head and key) it is a curve for each row, over the columns.
    Of more than eight columns eight are drawn, evenly chosen, and a note says so. NaN, infinity and masked cells
    interrupt a curve. Raises DataError where the mask does not broadcast.

    >>> import numpy as np
    >>> section = curves_section(TensorView("x", np.eye(2), ("token", "model"), (None, None)), FigureOptions())
    >>> section.notes, len(section.panels)
    ([], 1)
    """
    if view.array.size == 0 or view.array.ndim == 0:
        reason = "empty" if view.array.size == 0 else "a single number has no curve"
        return Section(view.title, [], view.formula, f"{view.description()}, {reason}")
    if view.array.ndim == 1:
        view = _as_column(view)
    description = view.description()
    if _has_curves_in_rows(view):
        view = _transpose(view)
    parts = to_matrices(view, MAX_PLOTS)
    count = parts.matrices[0].values.shape[1]
    columns = [at * count // len(SERIES) for at in range(len(SERIES))] if count > len(SERIES) else list(range(count))
    axis = Axis(view.axes[-2], [])
    plots = [
        _draw_plot(Plot(part, axis._replace(labels=part.rows), columns, *ends), view.axes[-1])
        for part, ends in zip(parts.matrices, find_ranges(parts.matrices, options), strict=True)
    ]
    drawn = (
        f"curves of {len(columns)} of the {count} indices of {visible(view.axes[-1])}" if len(columns) < count else ""
    )
    notes = [note for note in (parts.hidden, drawn, outside_note(parts.matrices, options)) if note]
    return Section(view.title, plots, view.formula, description, notes)


def _as_column(view: TensorView) -> TensorView:
    """Return the view of a vector as a matrix of one column."""
    mask = None if view.mask is None else view.mask[:, None]
    labels = [view.labels[0], [view.title]]
    return TensorView(view.title, view.array[:, None], (*view.axes, ""), labels, view.style, view.formula, mask)


def _has_curves_in_rows(view: TensorView) -> bool:
    """Return whether the rows are the curves: where they have no order, or there is but one."""
    rows, columns = view.array.shape[-2:]
    return view.mask is None and columns > 1 and (rows == 1 or view.axes[-2] in ROWS_WITHOUT_ORDER)


def _transpose(view: TensorView) -> TensorView:
    """Return the view with its last two axes exchanged."""
    axes, labels = (*view.axes[:-2], view.axes[-1], view.axes[-2]), [*view.labels[:-2], *view.labels[:-3:-1]]
    return TensorView(view.title, view.array.swapaxes(-1, -2), axes, labels, view.style, view.formula)


def _draw_plot(plot: Plot, name: str) -> Drawing:
    """Draw the curves of one matrix with both axes, and a legend of its columns named `name`."""
    count = len(plot.rows.labels)
    step = WIDTH / max(count, 1)
    labels = fit_column_labels(plot.rows, step)
    ticks = linear_ticks(plot.low, plot.high)
    low, high = min(plot.low, ticks[0]), max(plot.high, ticks[-1])
    texts = [format_number(tick, 4) for tick in ticks]
    left = max([text_width(text, SMALL_SIZE) for text in texts] + [leaning_width(labels) - GAP]) + 2 * GAP
    top = TEXT_SIZE * 2 if plot.part.title else GAP
    shapes: list[Shape] = [Text(left, TEXT_SIZE, plot.part.title, is_bold=True)] if plot.part.title else []
    for tick, text in zip(ticks, texts, strict=True):
        y = top + (1 - place(tick, low, high)) * HEIGHT
        shapes.append(Path(f"M{short(left)} {short(y)}h{WIDTH}", stroke="grid"))
        shapes.append(Text(left - GAP, y + 4, text, SMALL_SIZE, "end"))
    shapes.append(Path(rectangle(left, top, WIDTH, HEIGHT), stroke="grid"))
    for color, column in zip(SERIES, plot.columns, strict=False):
        values = np.where(plot.part.masked[:, column], np.nan, plot.part.values[:, column].astype(np.float64))
        values = np.where(np.isfinite(values), np.clip(values, low, high), np.nan)
        points = [top + (1 - place(value, low, high)) * HEIGHT for value in values.tolist()]
        heights = np.where(np.isfinite(values), points, np.nan)
        shapes.append(Path(_curve(heights, left + step / 2, step), stroke=color, width=1.75))
    bottom = top + HEIGHT
    shapes += draw_column_labels(labels, left, bottom, step)
    base = bottom + labels.extent + TEXT_SIZE + 2
    shapes.append(draw_column_name(plot.rows.name, left, base, WIDTH))
    legend = _draw_legend([plot.part.columns[at] for at in plot.columns], name, left + WIDTH + 2 * GAP, top)
    widest = max((text_width(one.text, SMALL_SIZE) for one in legend if isinstance(one, Text)), default=0)
    return Drawing(left + WIDTH + 4 * GAP + LINE_LENGTH + widest, base + GAP, [*shapes, *legend])


def _curve(heights: Array, x: float, step: float) -> str:
    """Return the path through points at these heights, one a step; it is interrupted where one is not finite.

    >>> _curve(np.array([5.0, 4.0, np.nan, 3.0]), 0, 10)
    'M0 5L10 4M30 3h0'
    """
    data = ""
    is_open = is_single = False
    for at, height in enumerate(heights.tolist()):
        if np.isfinite(height):
            data += f"{'L' if is_open else 'M'}{short(x + at * step)} {short(height)}"
            is_open, is_single = True, not is_open
        else:
            data += "h0" if is_open and is_single else ""  # a point
            is_open = False
    return data + ("h0" if is_open and is_single else "")


def _draw_legend(labels: Sequence[str], name: str, x: float, y: float) -> list[Shape]:
    """Draw the colour of each curve beside its label, under the name of the axis."""
    if not name:
        return []
    shapes: list[Shape] = [Text(x, y + SMALL_SIZE, visible(name), TEXT_SIZE, color="muted")]
    for at, (label, color) in enumerate(zip(labels, SERIES, strict=False)):
        baseline = y + SMALL_SIZE + (at + 1) * 18
        text = clip_text(visible(label), MAX_LABEL, SMALL_SIZE)
        shapes += [
            Path(f"M{short(x)} {short(baseline - 4)}h{LINE_LENGTH}", stroke=color, width=1.75),
            Text(x + LINE_LENGTH + GAP, baseline, text, SMALL_SIZE),
        ]
    return shapes
