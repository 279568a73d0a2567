"""Heat maps: matrices as coloured blocks, or as shades where there are no colours.

The escape codes are written directly: a 64 × 64 map through rich takes twenty times as long.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.display.colors import SIGNED, UNSIGNED, color_levels, color_map, contrasting_ink
from attnkit.display.numbers import format_number, number_format, to_python
from attnkit.display.slicing import Elision, Matrix, TensorView, elide, elide_rows, to_matrices
from attnkit.display.style import Style
from attnkit.display.text import (
    BLOCK_GAP,
    MAX_LABEL_WIDTH,
    Block,
    ansi,
    block,
    clip,
    display_width,
    escape,
    glyphs,
    join_lines,
    label_text,
    pad,
    side_by_side,
    wrap,
)

MAX_ROWS = 64
MAX_MAPS = 16
MAX_HEADS = 256
MAX_LABELLED_COLUMNS = 24  # of the maps of all heads; above it they have ticks
SHORT_LABEL_WIDTH = 8  # of columns, and of the rows of several maps
LEGEND_DIGITS = 4


class Scale(NamedTuple):
    """From values to inks: 0 … n - 1 for low … high, n masked, n + 1 not finite."""

    low: float
    high: float
    inks: list[tuple[str, str, str]]  # the text before a cell, the character that fills it, the text after

    @property
    def top(self) -> int:
        return len(self.inks) - 3

    def levels(self, part: Matrix, rows: Elision, columns: Elision) -> list[list[int]]:
        """The level of each cell that is shown; -inf is masked, as in scores."""
        at = np.ix_(rows.indices(), columns.indices())
        values = part.values[at].astype(np.float64)
        is_finite, is_masked = np.isfinite(values), part.masked[at] | (values == -np.inf)
        finite = color_levels(np.where(is_finite, values, self.low), self.low, self.high, self.top + 1)
        levels: list[list[int]] = np.where(is_masked, self.top + 1, np.where(is_finite, finite, self.top + 2)).tolist()
        return levels


class Layout(NamedTuple):
    """The layout that all maps of a display share."""

    label_width: int  # of the row labels, 0 for none
    cell_width: int
    rows: Elision
    columns: Elision
    numbers: str  # the format of the numbers in the cells, "" for none
    is_compact: bool  # ticks instead of labels


def heatmap(view: TensorView) -> str:
    """Draw a tensor as heat maps side by side, all on one scale.

    The scale is symmetric about 0 where there are both signs. Few columns show their numbers too.
    Raises DataError if the mask does not broadcast.

    >>> print(heatmap(TensorView("x", np.eye(2), ("token", "model"), (["The", "cat"], None))))
    x (token 2, model 2) float64
         0   1
    The ████
    cat     ████
    0  ░▒▓█ 1
    """
    return _draw_maps(view, MAX_MAPS, is_compact=False)


def heatmap_grid(view: TensorView) -> str:
    """Draw all heads as small maps, with ticks if there are many columns.

    Raises DataError if the mask does not broadcast.

    >>> labels = [None, ["a", "b"], ["a", "b"]]
    >>> print(heatmap_grid(TensorView("weights", np.eye(2)[None], ("head", "query", "key"), labels)))
    weights (head 1, query 2, key 2) float64
    head 0
      a b
    a ██
    b   ██
    0  ░▒▓█ 1
    """
    return _draw_maps(view, MAX_HEADS, view.array.ndim > 0 and view.array.shape[-1] > MAX_LABELLED_COLUMNS)


def _draw_maps(view: TensorView, limit: int, is_compact: bool) -> str:
    """Draw at most `limit` maps, a note of what is hidden, and the legend."""
    lines, style = view.heading(), view.style
    if view.array.size == 0:
        return join_lines([*lines, "empty"])
    parts = to_matrices(view, limit)
    scale = make_scale(parts.matrices, style, view.is_signed)
    layout = _choose_layout(parts.matrices, limit == MAX_MAPS and len(parts.matrices) == 1, is_compact, style)
    levels = [scale.levels(part, layout.rows, layout.columns) for part in parts.matrices]
    blocks = [_draw_map(part, level, scale, layout, style) for part, level in zip(parts.matrices, levels, strict=True)]
    lines += side_by_side(blocks, style)
    axes = {"rows": layout.rows, "columns": layout.columns}
    hidden = [f"{axis.hidden} of {axis.size} {name}" for name, axis in axes.items() if axis.hidden]
    for note in (parts.hidden, f"not shown: {', '.join(hidden)}" if hidden else ""):
        lines += [ansi(line, "2", style) for line in wrap(note, style)]
    present = {level for map_levels in levels for row in map_levels for level in row}
    return join_lines([*lines, *_legend(scale, present, style)])


def make_scale(parts: Sequence[Matrix], style: Style, is_signed: bool) -> Scale:
    """The scale of the finite values that are not masked, even about 0.

    is_signed  whether it is even about 0 with one sign too
    """
    finite = np.concatenate([part.finite_values() for part in parts])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    is_diverging = is_signed or low < 0 < high
    if is_diverging:
        low, high = -max(-low, high), max(-low, high)
    marks = glyphs(style)
    if style.color:
        inks = [make_ink(color) for color in color_map(SIGNED if is_diverging else UNSIGNED)]
        special = ("\x1b[2m", marks.masked_mark, "\x1b[0m"), ("\x1b[31m", marks.non_finite_mark, "\x1b[0m")
    else:
        inks = [("", shade, "") for shade in marks.shades]
        special = ("", marks.masked_mark, ""), ("", marks.non_finite_mark, "")
    return Scale(low, high, [*inks, *special])


def make_ink(color: str) -> tuple[str, str, str]:
    """A background of this colour, with black or white on it, whichever is legible."""
    (red, green, blue), text = bytes.fromhex(color[1:]), 0 if contrasting_ink(color) == "#000000" else 255
    return f"\x1b[48;2;{red};{green};{blue};38;2;{text};{text};{text}m", " ", "\x1b[0m"


def _choose_layout(parts: Sequence[Matrix], is_single: bool, is_compact: bool, style: Style) -> Layout:
    """Choose the widest cells that fit: with numbers, of two columns, of one."""
    height, width = parts[0].values.shape
    rows, columns = elide_rows(height, MAX_ROWS), elide(width, width)
    labels = 0
    if parts[0].rows:
        longest = MAX_LABEL_WIDTH if is_single else SHORT_LABEL_WIDTH
        named = [label_text(name, style, longest) for part in parts for name in rows.pick(part.rows)]
        labels = max(map(display_width, _ticks(rows) if is_compact else named))
    room = style.width - labels - (1 if labels else 0)
    if is_compact or 2 * width > room:
        if width > room:
            columns = elide(width, max(room - display_width(glyphs(style).ellipsis), 1))
        return Layout(labels, 1, rows, columns, "", is_compact)
    if is_single and 4 * width <= room:
        names = [label_text(name, style, SHORT_LABEL_WIDTH) for part in parts for name in part.columns]
        numbers, cell = _number_cells(parts, rows, max(map(display_width, names)), style)
        if (cell + 1) * width <= room:
            return Layout(labels, cell + 1, rows, columns, numbers, is_compact)
    return Layout(labels, 2, rows, columns, "", is_compact)


def _number_cells(parts: Sequence[Matrix], rows: Elision, width: int, style: Style) -> tuple[str, int]:
    """The format of numbers in cells of at least `width`, and their width."""
    if not style.color:
        return "", max(width, 3)  # shades leave no room for numbers
    at = rows.indices()
    values = np.concatenate([part.values[at][~part.masked[at]] for part in parts])
    numbers = number_format(values, style.cell_precision)
    return numbers, max([width, *(len(format(value, numbers)) + 1 for value in to_python(values))])


def _draw_map(part: Matrix, levels: list[list[int]], scale: Scale, layout: Layout, style: Style) -> Block:
    ellipsis = glyphs(style).ellipsis
    lines = ["".join(layout.columns.with_gap(row, ellipsis)) for row in _fill_cells(part, levels, scale, layout)]
    width = layout.cell_width * len(levels[0]) + (display_width(ellipsis) if layout.columns.hidden else 0)
    indent = layout.label_width + 1 if layout.label_width else 0
    if indent:
        names = [clip(escape(name, style), layout.label_width, style) for name in layout.rows.pick(part.rows)]
        names = _ticks(layout.rows) if layout.is_compact else names
        lines = [ansi(pad(name, indent), "36", style) + line for name, line in zip(names, lines, strict=True)]
    hidden = pad(clip(f"{ellipsis} {layout.rows.hidden} more", indent + width, style), indent + width)
    above = [ansi(" " * indent + line, "36", style) for line in _column_header(part, layout, width, style)]
    body = layout.rows.with_gap(lines, ansi(hidden, "2", style))
    return block([*above, *body], indent + width, part.title, style)


def _fill_cells(part: Matrix, levels: list[list[int]], scale: Scale, layout: Layout) -> list[list[str]]:
    """Each cell in its ink, with its number where there is room."""
    width = layout.cell_width
    cells = [
        before + (fill * width if level <= scale.top else fill.center(width)) + after
        for level, (before, fill, after) in enumerate(scale.inks)
    ]
    rows = [[cells[level] for level in row] for row in levels]
    if layout.numbers:
        values = to_python(part.values[np.ix_(layout.rows.indices(), layout.columns.indices())])
        for i, row in enumerate(levels):
            for j, level in enumerate(row):
                if level <= scale.top:
                    before, _, after = scale.inks[level]
                    rows[i][j] = before + format(values[i][j], layout.numbers).center(width) + after
    return rows


def _ticks(elision: Elision) -> list[str]:
    """Every tenth index and the last, "" between them."""
    last = elision.size - 1
    return [str(i) if i % 10 == 0 or (i == last and i % 10 > 1) else "" for i in elision.indices().tolist()]


def _column_header(part: Matrix, layout: Layout, width: int, style: Style) -> list[str]:
    """The lines above a map: horizontal labels, vertical labels, or ticks."""
    names, room = layout.columns.pick(part.columns), layout.cell_width
    if room > 2:
        texts = [label_text(name, style, room - 1) for name in names]
        return ["".join(pad(" " * ((room - display_width(text)) // 2) + text, room) for text in texts)]
    if layout.cell_width == 2:
        return _vertical_labels([label_text(name, style, SHORT_LABEL_WIDTH) for name in names])
    return [_ruler(layout.columns, width, display_width(glyphs(style).ellipsis))]


def _ruler(elision: Elision, width: int, gap: int) -> str:
    line = ""
    for i, mark in enumerate(_ticks(elision)):
        at = i + (gap if i >= elision.head else 0)
        start = max(min(at, width - len(mark)), 0)  # the last one ends where the map ends
        if mark and (not line or start > len(line)):
            line = line.ljust(start) + mark
    return line[:width].ljust(width)


def _vertical_labels(names: Sequence[str]) -> list[str]:
    """The names written downwards in columns of two, all ending on one line."""
    stacks = []
    for name in names:
        stack: list[str] = []
        for character in name:
            if display_width(character) == 0 and stack:
                stack[-1] += character
            else:
                stack.append(character)
        stacks.append(stack)
    height = max(len(stack) for stack in stacks)
    return [
        "".join(pad(stack[i - height] if height - i <= len(stack) else "", 2) for stack in stacks)
        for i in range(height)
    ]


def _legend(scale: Scale, present: set[int], style: Style) -> list[str]:
    marks = glyphs(style)
    words = [f"{marks.masked_mark} masked"] if scale.top + 1 in present else []
    words += [f"{marks.non_finite_mark} not finite"] if scale.top + 2 in present else []
    notes = (" " * BLOCK_GAP).join(words)
    if not any(level <= scale.top for level in present):
        return [notes]
    low, high = (format_number(end, LEGEND_DIGITS) for end in (scale.low, scale.high))
    bar = scale.inks[: scale.top + 1 : 4 if style.color else 1]
    room = max(style.width - len(low) - len(high) - 2, 1)
    bar = bar[:: -(-len(bar) // room)]
    line = f"{low} {''.join(''.join(ink) for ink in bar)} {high}"
    if not notes:
        return [line]
    width = len(low) + len(bar) + len(high) + 2 + BLOCK_GAP + len(notes)
    return [f"{line}{' ' * BLOCK_GAP}{notes}"] if width <= style.width else [line, notes]
