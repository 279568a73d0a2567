"""Heat maps: every matrix of a tensor as a grid of coloured cells, with its words, a colour bar and its range."""

from attnkit.display.figures.axes import Axis, AxisLabels, fit_column_labels, fit_row_labels
from attnkit.display.figures.colors import SIGNED, UNSIGNED, color_map
from attnkit.display.figures.map_drawing import LabelledMap, draw_grid
from attnkit.display.figures.map_layout import Layout, choose_factors, choose_layout
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.pooling import find_ranges, make_cells, outside_note
from attnkit.display.figures.shapes import Section
from attnkit.display.slicing import Matrix, TensorView, pluralize, to_matrices
from attnkit.display.summaries import ordinal

MAX_MAPS = 256


def heatmap_section(view: TensorView, options: FigureOptions) -> Section:
    """Return a tensor as heat maps, one for each of its matrices, in a balanced grid with one colour bar.

    Every element is in a cell; where cells would be too many, one shows the largest magnitude of a block of them,
    and a note says so. Masked cells are hatched. Raises DataError where the mask does not broadcast, UsageError for
    an unknown colour map.

    >>> import numpy as np
    >>> view = TensorView("x", np.eye(2), ("token", "model"), (["The", "cat"], None))
    >>> section = heatmap_section(view, FigureOptions())
    >>> [one.text for one in section.panels[0].shapes if hasattr(one, "text")]
    ['1', '0', '0', '1', 'The', 'cat', '0', '1', 'token', 'model']
    """
    if view.array.size == 0:
        return Section(view.title, [], view.formula, f"{view.description()}, empty")
    parts = to_matrices(view, MAX_MAPS)
    first, factors = parts.matrices[0], choose_factors(parts.matrices)
    ranges = find_ranges(parts.matrices, options)
    colors = color_map(options.colors or (SIGNED if any(low < 0 < high for low, high in ranges) else UNSIGNED))
    cells = [make_cells(part, factors, ends) for part, ends in zip(parts.matrices, ranges, strict=True)]
    row_name, column_name = ("", "", *view.axes)[-2:] if first.rows else ("", ("", *view.axes)[-1])
    rows = Axis(row_name, first.rows or [""] * len(first.values), factors[0])
    layout = choose_layout(rows, Axis(column_name, first.columns, factors[1]), cells, options)
    maps = [LabelledMap(one, *_labels(part, layout)) for one, part in zip(cells, parts.matrices, strict=True)]
    shares_labels = all((part.rows, part.columns) == (first.rows, first.columns) for part in parts.matrices)
    has_own_ranges = options.range == "each" and len(maps) > 1
    drawing = draw_grid(maps, layout, colors, shares_labels, has_own_ranges)
    notes = [
        parts.hidden,
        _pooling_note(factors),
        _labels_note(maps[0].rows, maps[0].columns),
        _range_note(view, len(maps), has_own_ranges),
        outside_note(parts.matrices, options),
    ]
    return Section(view.title, [drawing], view.formula, view.description(), [note for note in notes if note])


def _labels(part: Matrix, layout: Layout) -> tuple[AxisLabels, AxisLabels]:
    """Return the labels of the rows and the columns of one map; of a single row without an axis there are none."""
    columns = fit_column_labels(layout.columns._replace(labels=part.columns), layout.cell_width)
    if not part.rows:
        return AxisLabels("", [], 0, 0, 1), columns
    return fit_row_labels(layout.rows._replace(labels=part.rows), layout.cell_height), columns


def _pooling_note(factors: tuple[int, int]) -> str:
    """Return the note on pooled cells.

    >>> _pooling_note((3, 1)), _pooling_note((1, 1))
    ('each cell shows the number of largest magnitude among 3 × 1', '')
    """
    down, across = factors
    return f"each cell shows the number of largest magnitude among {down} × {across}" if down * across > 1 else ""


def _labels_note(rows: AxisLabels, columns: AxisLabels) -> str:
    """Return the note on labels that are left out."""
    thinned = [one for one in (rows, columns) if one.every > 1]
    if len({one.every for one in thinned}) == 1:
        return f"labels: every {ordinal(thinned[0].every)} {' and '.join(dict.fromkeys(one.name for one in thinned))}"
    return f"labels: {', '.join(f'every {ordinal(one.every)} {one.name}' for one in thinned)}" if thinned else ""


def _range_note(view: TensorView, count: int, has_own_ranges: bool) -> str:
    """Return the note on the colours of several maps."""
    if count == 1:
        return ""
    kind = pluralize(view.axes[0]) if view.array.ndim == 3 else "maps"
    return f"{count} {kind}, {'each with its own range of colours' if has_own_ranges else 'one range of colours'}"
