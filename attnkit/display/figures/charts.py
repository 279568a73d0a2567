"""Charts: curves, bars, the extents of tensors, and words on coloured backgrounds."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.display.colors import LEVELS, LIGHT, SERIES, SIGNED, color_map, contrasting_ink
from attnkit.display.figures.canvas import (
    DIGITS,
    LARGEST,
    SMALL_SIZE,
    TEXT_SIZE,
    Canvas,
    Drawing,
    Ticks,
    clip_text,
    draw_axes,
    fit_ticks,
    load_matplotlib,
    pixel_size,
    quiet,
    set_numbers,
    set_ticks,
    text_width,
)
from attnkit.display.figures.maps import MAP_GAP, find_ranges, make_maps, outside_note, paint_maps
from attnkit.display.figures.sections import FigureOptions, Section, Table
from attnkit.display.slicing import Matrix, TensorView, to_matrices
from attnkit.display.style import DEFAULT_STYLE, Style
from attnkit.display.summaries import STATISTICS, compute_statistics, statistics_texts
from attnkit.display.text import escape
from attnkit.errors import DataError, escaped
from attnkit.records import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PLOTS = 64
ROWS_WITHOUT_ORDER = ("batch", "head")
WIDTH, HEIGHT = 640, 300  # pixels: of a plot of curves
BARS_WIDTH, BARS_HEIGHT, MAX_STEP, FILLED = 440, 220, 88, 0.7  # of bars, from one to the next, and its filled share
MAX_NAME = 120  # of a curve in the legend
ROW, EXTENT_WIDTH, MAX_TENSOR = 20, 480, 320  # of a tensor in the chart of statistics, its scale, its name
WORDS_WIDTH, PADDING, LINE_HEIGHT = 640, 3, 22  # of a line of words
LOSSES = ("step", "curve")  # the axes of a record of training


def curves_section(view: TensorView, options: FigureOptions) -> Section:
    """A tensor as curves: a plot for each matrix, a curve for each of its columns.

    If the rows are heads, or if there is a single row that is no step, each row is a curve over the columns. A plot
    has at most eight curves; a note counts the others. NaN, infinity and masked cells interrupt a curve. Raises
    DataError if the mask does not broadcast.
    """
    if view.array.size == 0 or view.array.ndim == 0:
        reason = "empty" if view.array.size == 0 else "a single number has no curve"
        return Section(view.title, [], view.formula, f"{view.description()}, {reason}")
    description, view = view.description(), orient_curves(view)
    parts = to_matrices(view, MAX_PLOTS)
    count = parts.matrices[0].values.shape[1]
    ranges = find_ranges(parts.matrices, options)
    plots = [
        draw_axes(WIDTH, HEIGHT, partial(paint_curves, part=part, ends=ends, names=view.axes))
        for part, ends in zip(parts.matrices, ranges, strict=True)
    ]
    drawn = f"curves of {len(SERIES)} of the {count} indices of {view.axes[-1]}" if count > len(SERIES) else ""
    notes = [note for note in (parts.hidden, drawn, outside_note(parts.matrices, options)) if note]
    return Section(view.title, plots, view.formula, description, notes)


def orient_curves(view: TensorView) -> TensorView:
    """Make each curve a column of a tensor.

    Transpose one whose rows have no order, or a single row that is no step.
    """
    array, labels, mask = view.array, [*view.labels], view.mask
    axes = [escape(axis, DEFAULT_STYLE) for axis in view.axes]
    if array.ndim == 1:
        array, axes, labels = array[:, None], [*axes, ""], [*labels, [view.title]]
        mask = None if mask is None else mask[:, None]
    elif mask is None and array.shape[-1] > 1 and is_transposed(array.shape[-2], axes[-2]):
        array, axes[-2:], labels[-2:] = array.swapaxes(-1, -2), axes[:-3:-1], labels[:-3:-1]
    return TensorView(view.title, array, axes, labels, view.style, view.formula, mask)


def is_transposed(rows: int, axis: str) -> bool:
    """Whether the rows of an axis are curves, not its columns.

    >>> is_transposed(4, "head"), is_transposed(1, "token"), is_transposed(1, "step"), is_transposed(4, "token")
    (True, True, False, False)
    """
    return axis in ROWS_WITHOUT_ORDER or (rows == 1 and axis != "step")


def paint_curves(axes: Any, part: Matrix, ends: tuple[float, float], names: Sequence[str]) -> None:
    """Paint at most eight columns of a matrix as curves over its rows.

    names  the names of the axes; there is no legend if the last is ""
    """
    count, (low, high) = part.values.shape[1], np.clip(ends, -LARGEST, LARGEST)
    chosen = range(count) if count <= len(SERIES) else [at * count // len(SERIES) for at in range(len(SERIES))]
    lines: dict[str, Any] = {}
    for color, column in zip(SERIES, chosen, strict=False):
        values = part.values[:, column].astype(np.float64)
        is_drawn = np.isfinite(values) & ~part.masked[:, column]
        heights = np.where(is_drawn, np.clip(values, low, high), np.nan)
        around = np.pad(is_drawn, 1)
        points = np.flatnonzero(is_drawn & ~around[:-2] & ~around[2:]).tolist()  # which no line would show
        label = clip_text(escape(part.columns[column], DEFAULT_STYLE), MAX_NAME, SMALL_SIZE)
        lines |= {label: axes.plot(heights, color=color, marker=".", markevery=points, clip_on=False)[0]}
    set_numbers(axes, "y", low, high)
    set_names(axes, part.rows, names[-2])
    axes.set_title(part.title, parse_math=False)
    if names[-1]:
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1), "alignment": "left", "borderpad": 0, "borderaxespad": 1}
        legend = axes.legend([*lines.values()], [*lines], title=names[-1], handlelength=1.5, markerscale=0, **place)
        legend.get_title().set_color(axes.xaxis.label.get_color())


def set_names(axes: Any, names: Sequence[str], title: str) -> None:
    """Set the labels of the x axis of a plot, one for each whole number."""
    axes.set_xlim(-0.5, len(names) - 0.5)
    width, _ = pixel_size(axes)
    set_ticks(axes.xaxis, fit_ticks(names, width / len(names), below=True))
    axes.set_xlabel(title, parse_math=False)


def draw_bars(title: str, name: str, labels: Sequence[str], numbers: Sequence[float]) -> Drawing:
    """Draw a bar for each number, with the numbers above the bars if they fit."""
    step = min(BARS_WIDTH / len(labels), MAX_STEP)

    def paint(axes: Any) -> None:
        paint_bars(axes, name, labels, numbers)
        axes.set_title(title, pad=1.5 * TEXT_SIZE)

    return draw_axes(step * len(labels), BARS_HEIGHT, paint)


def paint_bars(axes: Any, name: str, labels: Sequence[str], numbers: Sequence[float]) -> None:
    """Paint a bar for each finite number, with the numbers above the bars if they fit."""
    from matplotlib import rcParams

    places = [at for at, number in enumerate(numbers) if math.isfinite(number)]
    heights = [numbers[at] for at in places]
    bars = axes.bar(places, heights, FILLED, color=SERIES[0])
    texts = [f"{height:.2f}" for height in heights]
    if max((text_width(text, SMALL_SIZE) for text in texts), default=0) <= pixel_size(axes)[0] / len(labels):
        axes.bar_label(bars, texts, padding=2, fontsize=rcParams["xtick.labelsize"])
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    set_numbers(axes, "y", min([*heights, 0.0]), max([*heights, 0.0]) or float(not any(heights)))
    set_names(axes, labels, name)


def statistics_section(named: Mapping[str, Array], options: FigureOptions) -> Section:
    """The statistics of tensors as a table, and a chart of those with finite values.

    >>> section = statistics_section({"x": np.array([np.nan])}, FigureOptions())
    >>> section.panels[0].rows[1]
    ['x', '(1)', 'float64', '-', '-', '-', '-', '0', '1', '0']
    """
    rows: list[Sequence[str]] = [STATISTICS]
    extents: dict[str, list[float]] = {}  # minimum, maximum, mean, deviation
    style = Style(precision=DIGITS if options.precision is None else options.precision)
    for name, array in named.items():
        rows.append([escape(name, style), *statistics_texts(array, style)])
        if values := compute_statistics(array)[0]:
            extents[rows[-1][0]] = [float(value) for value in values]
    charts = [draw_extents(extents)] if extents else []
    note = "of the finite values: a line from minimum to maximum, on it a bar of mean ± standard deviation"
    return Section("statistics", [Table(rows, (0, 1, 2)), *charts], notes=[note] if charts else [])


def draw_extents(extents: Mapping[str, Sequence[float]]) -> Drawing:
    """Draw the range of each tensor, a bar of its deviation and a mark at its mean."""
    names, rows = [clip_text(name, MAX_TENSOR, SMALL_SIZE) for name in extents], np.arange(len(extents))
    low, high, mean, deviation = np.clip(np.array([*extents.values()]).T, -LARGEST, LARGEST)
    start, end = np.maximum(mean - deviation, low), np.minimum(mean + deviation, high)

    def paint(axes: Any) -> None:
        axes.hlines(rows, low, high, color=axes.xaxis.label.get_color(), linewidth=1.2)
        axes.barh(rows, end - start, 0.4, start, color=SERIES[0], zorder=3)
        axes.vlines(mean, rows - 0.3, rows + 0.3, color=axes.title.get_color(), linewidth=1.5, zorder=4)
        axes.spines[:].set_visible(False)
        axes.set_ylim(len(names) - 0.5, -0.5)
        set_numbers(axes, "x", low.min(), high.max())
        set_ticks(axes.yaxis, Ticks(range(len(names)), names))

    return draw_axes(EXTENT_WIDTH, ROW * len(names), paint)


def draw_words(words: Sequence[str], values: Sequence[float], most: float) -> Drawing:
    """Draw the tokens of a text on the colours of their numbers.

    A positive number is red, a negative one blue. A number that is not finite has no colour.

    most  the magnitude that has the full colour
    """
    colors = color_map(SIGNED)
    placed: list[tuple[float, float, float, str, str]] = []  # x, y, width, text, colour
    x, y = 0.0, 0.0
    for word, value in zip(words, values, strict=True):
        text = clip_text(escape(word, DEFAULT_STYLE), WORDS_WIDTH - 2 * PADDING, TEXT_SIZE)
        width = text_width(text, TEXT_SIZE) + 2 * PADDING
        if x and x + width > WORDS_WIDTH:
            x, y = 0.0, y + LINE_HEIGHT
        share = max(-1.0, min(value / most if most else 0.0, 1.0)) if math.isfinite(value) else math.nan
        color = "" if math.isnan(share) else colors[round((share + 1) / 2 * (LEVELS - 1))]
        placed.append((x, y, width, text, color))
        x += width + 1

    def draw(canvas: Canvas) -> None:
        for x, y, width, text, color in placed:
            if color:
                canvas.rectangle(x, y, width, LINE_HEIGHT - PADDING, color)
            ink = contrasting_ink(color) if color else "ink"
            canvas.text(x + width / 2, y + TEXT_SIZE + 2, text, color=ink, ha="center")

    return Drawing(max((x + width for x, _, width, *_ in placed), default=0.0), y + LINE_HEIGHT, draw)


def plot_tensor(view: TensorView, ax: "Axes | None" = None) -> "Axes":
    """Draw a tensor into axes of matplotlib, or of a new figure, and return the axes.

    Raises UsageError if matplotlib is missing, DataError if the tensor is empty or a single number.
    """
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    if view.array.size == 0 or view.array.ndim == 0:
        raise DataError(f"{view.description()} has no curve and no map", view.title)
    axes: Any = Figure().add_subplot() if ax is None else ax
    rank, is_map = view.array.ndim, view.array.ndim > 1 and tuple(view.axes) != LOSSES
    with quiet(), matplotlib.rc_context({"hatch.color": LIGHT.masked, "text.parse_math": False}):
        if is_map:
            maps, _ = make_maps(view, FigureOptions())
            full, size = maps.grid, pixel_size(axes)
            maps.cell = maps.cell[0] * size[0] / full[0], maps.cell[1] * size[1] / full[1]
            paint_maps(axes, maps, has_legend=False)
        elif rank == 1 and view.labels[0]:
            paint_bars(axes, view.axes[0], list(map(str, view.labels[0])), view.array.astype(float).tolist())
        else:
            view = orient_curves(view)
            [part] = to_matrices(view, 1).matrices
            paint_curves(axes, part, find_ranges([part], FigureOptions())[0], view.axes)
        axes.set_title(escaped(view.title), parse_math=False, pad=MAP_GAP if rank > 2 else None)
    result: Axes = axes
    return result
