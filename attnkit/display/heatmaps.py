"""Heat maps: matrices as coloured blocks, or as shades where there are no colours.

The escape codes are written directly: a 64 × 64 map through rich takes twenty times as long.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.display.numbers import brief, plain, style
from attnkit.display.slicing import Array, Elision, Labels, Matrix, describe_tensor, elide, to_matrices
from attnkit.display.style import Style
from attnkit.display.text import (
    GUTTER,
    LONGEST_LABEL,
    Block,
    ansi,
    block,
    clip,
    display_width,
    escape,
    glyphs,
    heading,
    join_lines,
    label_text,
    pad,
    side_by_side,
    wrapped,
)

MOST_ROWS = 64
MOST_MAPS = 16
MOST_HEADS = 256
FEW = 24  # columns up to which the maps of all heads have their labels
SHORT_LABEL = 8  # of columns, and of the rows of small multiples
LEVELS = 64  # steps of colour
LEGEND_DIGITS = 4

# Anchors of the colour scales, low to high: viridis (CC0), and ColorBrewer's RdBu turned about (Apache 2.0).
SEQUENTIAL = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
DIVERGING = ((33, 102, 172), (146, 197, 222), (247, 247, 247), (244, 165, 130), (178, 24, 43))


class Scale(NamedTuple):
    """From values to inks: level 0 … n - 1 for low … high, n for masked, n + 1 for NaN and infinity."""

    low: float
    high: float
    inks: list[tuple[str, str, str]]  # what comes before a cell, what fills it, what comes after

    def levels(self, part: Matrix, rows: Elision, shown: Elision) -> list[list[int]]:
        """The level of each cell that is shown; -inf is how scores say masked."""
        at = np.ix_(rows.where(), shown.where())
        values = part.values[at].astype(np.float64)
        most, peak = len(self.inks) - 2, max(abs(self.low), abs(self.high)) or 1.0
        low, high = self.low / peak, self.high / peak  # of the order of 1: no overflow in high - low
        finite = np.isfinite(values)
        share = (np.where(finite, values, self.low) / peak - low) / (high - low) if high > low else 0.5
        level = np.rint(share * np.ones(values.shape) * (most - 1))
        level = np.where(finite, level, most + 1)
        masked = part.masked[at] | (values == -np.inf)
        levels: list[list[int]] = np.where(masked, most, level).astype(int).tolist()
        return levels


def heatmap(
    name: str,
    array: Array,
    axes: Sequence[str],
    labels: Sequence[Labels | None],
    look: Style,
    *,
    formula: str = "",
    mask: Array | None = None,
    grid: bool = True,
) -> str:
    """A tensor as heat maps, one for each of its matrices and all on one scale, side by side with `grid`.

    array (..., rows, columns), mask broadcastable to it, True = may attend -> text
    The scale is symmetric about 0 where there are both signs. Few columns show their numbers too.
    Raises DataError where the mask does not broadcast.

    >>> print(heatmap("x", np.eye(2), ("token", "model"), (["The", "cat"], None), Style()))
    x (token 2, model 2) float64
         0   1
    The ████
    cat     ████
    0  ░▒▓█ 1
    """
    return _maps(name, array, axes, labels, look, formula, mask, grid, most=MOST_MAPS, compact=False)


def heatmap_grid(
    name: str,
    array: Array,
    axes: Sequence[str],
    labels: Sequence[Labels | None],
    look: Style,
    *,
    formula: str = "",
    mask: Array | None = None,
    grid: bool = True,
) -> str:
    """All heads of a tensor at a glance: maps of one column a cell, every tenth index at their edges, once they
    have more columns than a label for each would suit.

    array (..., head, rows, columns), mask broadcastable to it, True = may attend -> text
    Raises DataError where the mask does not broadcast.

    >>> labels = [None, ["a", "b"], ["a", "b"]]
    >>> print(heatmap_grid("weights", np.eye(2)[None], ("head", "query", "key"), labels, Style()))
    weights (head 1, query 2, key 2) float64
    head 0
      a b
    a ██
    b   ██
    0  ░▒▓█ 1
    """
    compact = array.ndim > 0 and array.shape[-1] > FEW
    return _maps(name, array, axes, labels, look, formula, mask, grid, most=MOST_HEADS, compact=compact)


class Layout(NamedTuple):
    """What all maps of a display share: width of the row labels and of a cell, and what is shown."""

    stub: int
    cell: int
    rows: Elision
    columns: Elision
    form: str  # of the numbers in the cells, "" for none
    compact: bool


def _maps(
    name: str,
    array: Array,
    axes: Sequence[str],
    labels: Sequence[Labels | None],
    look: Style,
    formula: str,
    mask: Array | None,
    grid: bool,
    *,
    most: int,
    compact: bool,
) -> str:
    lines = heading(name, describe_tensor(array, axes, look), formula, look)
    if array.size == 0:
        return join_lines([*lines, "empty"])
    parts = to_matrices(array, axes, labels, look, mask, most)
    scale = _scale(parts.shown, look)
    layout = _layout(parts.shown, most == MOST_MAPS and (len(parts.shown) == 1 or not grid), compact, look)
    levels = [scale.levels(part, layout.rows, layout.columns) for part in parts.shown]
    blocks = [_map(part, level, scale, layout, look) for part, level in zip(parts.shown, levels, strict=True)]
    lines += side_by_side(blocks, look, grid)
    for note in (parts.hidden, _cut_note(layout)):
        lines += [ansi(line, "2", look) for line in wrapped(note, look)]
    used = {level for map_levels in levels for row in map_levels for level in row}
    return join_lines([*lines, *_legend(scale, used, look)])


def _scale(parts: Sequence[Matrix], look: Style) -> Scale:
    """From the least to the greatest finite value that is not masked; even about 0 with both signs."""
    ends: list[float] = []
    for part in parts:
        kept = part.values[~part.masked].astype(np.float64)
        kept = kept[np.isfinite(kept)]
        ends += [float(kept.min()), float(kept.max())] if kept.size else []
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    diverging = low < 0 < high
    if diverging:
        low, high = -max(-low, high), max(-low, high)
    marks = glyphs(look)
    if look.color:
        inks = [_ink(color) for color in _colors(DIVERGING if diverging else SEQUENTIAL)]
        odd = ("\x1b[2m", marks.masked, "\x1b[0m"), ("\x1b[31m", marks.odd, "\x1b[0m")
    else:
        inks = [("", shade, "") for shade in marks.shades]
        odd = ("", marks.masked, ""), ("", marks.odd, "")
    return Scale(low, high, [*inks, *odd])


def _colors(anchors: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """LEVELS colours through the anchors, evenly spaced."""
    at = np.linspace(0, len(anchors) - 1, LEVELS)
    channels = [np.interp(at, range(len(anchors)), channel) for channel in zip(*anchors, strict=True)]
    colors: list[list[int]] = np.stack(channels, axis=-1).round().astype(int).tolist()
    return colors


def _ink(color: Sequence[int]) -> tuple[str, str, str]:
    """A background of this colour, and black or white on it, whichever can be read (Rec. 601 luma)."""
    red, green, blue = color
    text = 0 if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else 255
    return f"\x1b[48;2;{red};{green};{blue};38;2;{text};{text};{text}m", " ", "\x1b[0m"


def _layout(parts: Sequence[Matrix], roomy: bool, compact: bool, look: Style) -> Layout:
    """The widest cells that fit: with labels across and numbers, of two columns, of one."""
    height, width = parts[0].values.shape
    rows, every = elide(height, MOST_ROWS), elide(width, width)
    stub = _stub(parts, rows, roomy, compact, look) if parts[0].rows else 0
    room = look.width - stub - (1 if stub else 0)
    if compact or 2 * width > room:
        shown = every if width <= room else elide(width, max(room - display_width(glyphs(look).ellipsis), 1))
        return Layout(stub, 1, rows, shown, "", compact)
    if roomy and 4 * width <= room:
        across = max(display_width(label_text(name, look, SHORT_LABEL)) for part in parts for name in part.columns)
        form, across = _numbers(parts, rows, across, look)
        if (across + 1) * width <= room:
            return Layout(stub, across + 1, rows, every, form, compact)
    return Layout(stub, 2, rows, every, "", compact)


def _stub(parts: Sequence[Matrix], rows: Elision, roomy: bool, compact: bool, look: Style) -> int:
    """The width of the row labels of all maps."""
    if compact:
        return max(map(len, _ticks(rows)))
    longest = LONGEST_LABEL if roomy else SHORT_LABEL
    return max(display_width(label_text(name, look, longest)) for part in parts for name in rows.of(part.rows))


def _numbers(parts: Sequence[Matrix], rows: Elision, across: int, look: Style) -> tuple[str, int]:
    """How to write numbers in cells at least `across` wide, and how wide the cells then are."""
    if not look.color:
        return "", max(across, 3)  # a shade leaves no room for them
    values = np.concatenate([part.values[rows.where()][~part.masked[rows.where()]] for part in parts])
    form = style(values, min(look.precision, 2))
    return form, max([across, *(len(format(value, form)) + 1 for value in plain(values))])


def _map(part: Matrix, levels: list[list[int]], scale: Scale, layout: Layout, look: Style) -> Block:
    """One map: column labels, then its rows with theirs."""
    ellipsis = glyphs(look).ellipsis
    lines = ["".join(layout.columns.gap(row, ellipsis)) for row in _cells(part, levels, scale, layout)]
    width = layout.cell * len(levels[0]) + (display_width(ellipsis) if layout.columns.hidden else 0)
    stub = layout.stub + 1 if layout.stub else 0
    if stub:
        names = (
            _ticks(layout.rows)
            if layout.compact
            else [clip(escape(name, look), layout.stub, look) for name in layout.rows.of(part.rows)]
        )
        lines = [ansi(pad(name, stub), "36", look) + line for name, line in zip(names, lines, strict=True)]
    gap = pad(clip(f"{ellipsis} {layout.rows.hidden} more", stub + width, look), stub + width)
    above = [ansi(" " * stub + line, "36", look) for line in _above(part, layout, width, look)]
    return block([*above, *layout.rows.gap(lines, ansi(gap, "2", look))], stub + width, part.title, look)


def _cells(part: Matrix, levels: list[list[int]], scale: Scale, layout: Layout) -> list[list[str]]:
    """Each cell in its ink, with its number where there is room."""
    last, size = len(scale.inks) - 3, layout.cell
    plain_cells = [
        before + (fill * size if level <= last else fill.center(size)) + after
        for level, (before, fill, after) in enumerate(scale.inks)
    ]
    rows = [[plain_cells[level] for level in row] for row in levels]
    if layout.form:
        values = plain(part.values[np.ix_(layout.rows.where(), layout.columns.where())])
        for i, row in enumerate(levels):
            for j, level in enumerate(row):
                if level <= last:
                    before, _, after = scale.inks[level]
                    rows[i][j] = before + format(values[i][j], layout.form).center(size) + after
    return rows


def _ticks(shown: Elision) -> list[str]:
    """Every tenth index and the last, "" for those between."""
    last = shown.size - 1
    return [str(i) if i % 10 == 0 or (i == last and i % 10 > 1) else "" for i in shown.where().tolist()]


def _above(part: Matrix, layout: Layout, width: int, look: Style) -> list[str]:
    """The lines above a map: labels across, labels downwards, or every tenth index."""
    names = layout.columns.of(part.columns)
    if layout.cell > 2:
        return ["".join(_centred(label_text(name, look, layout.cell - 1), layout.cell) for name in names)]
    if layout.cell == 2:
        return _downwards([label_text(name, look, SHORT_LABEL) for name in names])
    return [_ruler(layout.columns, width, display_width(glyphs(look).ellipsis))]


def _ruler(shown: Elision, width: int, gap: int) -> str:
    """The ticks above the columns they count, as far as they do not run into each other."""
    line = ""
    for i, mark in enumerate(_ticks(shown)):
        at = i + (gap if i >= shown.head else 0)
        start = max(min(at, width - len(mark)), 0)  # the last one ends where the map ends
        if mark and (not line or start > len(line)):
            line = line.ljust(start) + mark
    return line[:width].ljust(width)


def _centred(text: str, width: int) -> str:
    return pad(" " * ((width - display_width(text)) // 2) + text, width)


def _downwards(names: Sequence[str]) -> list[str]:
    """The names in columns of two, written downwards and ending on one line."""
    stacks = []
    for name in names:
        stack: list[str] = []
        for character in name:
            if display_width(character) == 0 and stack:
                stack[-1] += character
            else:
                stack.append(character)
        stacks.append(stack)
    tall = max(len(stack) for stack in stacks)
    return ["".join(pad(stack[i - tall] if tall - i <= len(stack) else "", 2) for stack in stacks) for i in range(tall)]


def _cut_note(layout: Layout) -> str:
    """What of the rows and columns is not shown, "" when all is."""
    hidden = {"rows": layout.rows, "columns": layout.columns}
    parts = [f"{each.hidden} of {each.size} {what}" for what, each in hidden.items() if each.hidden]
    return f"not shown: {', '.join(parts)}" if parts else ""


def _legend(scale: Scale, used: set[int], look: Style) -> list[str]:
    """The scale from its low to its high end, and the marks that occur."""
    marks, last = glyphs(look), len(scale.inks) - 3
    words = [f"{marks.masked} masked"] if last + 1 in used else []
    words += [f"{marks.odd} not finite"] if last + 2 in used else []
    notes = (" " * GUTTER).join(words)
    if not any(level <= last for level in used):
        return [notes]
    low, high = (brief(end, min(look.precision, LEGEND_DIGITS)) for end in (scale.low, scale.high))
    bar = scale.inks[: last + 1 : 4 if look.color else 1]
    line = f"{low} {''.join(''.join(ink) for ink in bar)} {high}"
    if not notes:
        return [line]
    fits = len(low) + len(bar) + len(high) + 2 + GUTTER + len(notes) <= look.width
    return [f"{line}{' ' * GUTTER}{notes}"] if fits else [line, notes]
