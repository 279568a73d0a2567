"""Tables: one tensor as matrices of numbers with their labels."""

import io
from collections.abc import Sequence

import numpy as np

from attnkit.display.numbers import plain, style
from attnkit.display.slicing import Array, Elision, Labels, Matrix, describe_tensor, elide, to_matrices
from attnkit.display.style import Style
from attnkit.display.text import (
    Block,
    ansi,
    block,
    display_width,
    glyphs,
    heading,
    join_lines,
    label_text,
    side_by_side,
    wrapped,
)

MOST_ROWS = 30
MOST_PANELS = 8
BETWEEN = 2  # spaces between two columns
TIGHT = 1  # where that is what it takes to show them all


def tensor_table(
    name: str,
    array: Array,
    axes: Sequence[str],
    labels: Sequence[Labels | None],
    look: Style,
    *,
    formula: str = "",
    mask: Array | None = None,
) -> str:
    r"""A tensor as text: what it is, then a table for each of its matrices.

    array (..., rows, columns), mask broadcastable to it, True = may attend -> text
    Rows and columns that do not fit are left out between head and tail, and counted.
    Raises DataError where the mask does not broadcast.

    >>> print(tensor_table("x", np.eye(2), ("token", "model"), (["The", "cat"], None), Style()))
    x (token 2, model 2) float64
    token\model       0       1
    ───────────────────────────
    The          1.0000  0.0000
    cat          0.0000  1.0000
    """
    lines = heading(name, describe_tensor(array, axes, look), formula, look)
    if array.size == 0:
        return join_lines([*lines, "empty"])
    if array.ndim == 0:
        return join_lines([*lines, format(plain(array), style(array, look.precision))])
    parts = to_matrices(array, axes, labels, look, mask, MOST_PANELS)
    lines += side_by_side(_blocks(parts.shown, parts.corner, look), look)
    lines += [ansi(line, "2", look) for line in wrapped(parts.hidden, look)]
    if any(part.masked.any() for part in parts.shown):
        lines.append(ansi(f"{glyphs(look).masked} masked", "2", look))
    return join_lines(lines)


def _blocks(parts: Sequence[Matrix], corner: str, look: Style) -> list[Block]:
    """A table for each panel, all with the same rows and columns shown, the same widths and one style."""
    rows = elide(parts[0].values.shape[0], MOST_ROWS)
    wanted = elide(parts[0].values.shape[1], look.width)  # more could not fit
    at = np.ix_(rows.where(), wanted.where())
    form = style(np.concatenate([part.values[at][~part.masked[at]] for part in parts]), look.precision)
    tables = [_texts(part, corner, rows, wanted, form, look) for part in parts]
    wide = widths([row for table in tables for row in table])
    stub = 1 if parts[0].rows else 0
    whole = [spaces for spaces in (BETWEEN, TIGHT) if sum(wide) + spaces * (len(wide) - 1) <= look.width]
    between = whole[0] if whole and not wanted.hidden else BETWEEN
    kept = _fitting(wide[stub:], wanted, look.width - sum(wide[:stub]) - stub * between, between, look)
    tables = [_opened(table, kept, stub, look) for table in tables]
    wide = widths([row for table in tables for row in table])
    return [
        grid(table, wide, look, left=range(stub), title=part.title, between=between)
        for part, table in zip(parts, tables, strict=True)
    ]


def _opened(table: list[list[str]], kept: Elision, stub: int, look: Style) -> list[list[str]]:
    """The table with only the columns to keep after its first `stub`, and the count of the others."""
    shown = kept._replace(size=len(table[0]) - stub)
    marks = [_gap(kept.hidden, look)] + [glyphs(look).ellipsis] * (len(table) - 1)
    return [row[:stub] + kept.gap(shown.of(row[stub:]), mark) for row, mark in zip(table, marks, strict=True)]


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """How wide each column of these rows is."""
    return [max(map(display_width, column)) for column in zip(*rows, strict=True)]


def _texts(part: Matrix, corner: str, rows: Elision, shown: Elision, form: str, look: Style) -> list[list[str]]:
    """The panel as text, its headings first and its row labels before each row."""
    marks = glyphs(look)
    at = np.ix_(rows.where(), shown.where())
    cells = [
        [marks.masked if blocked else format(value, form) for value, blocked in zip(*pair, strict=True)]
        for pair in zip(plain(part.values[at]), part.masked[at].tolist(), strict=True)
    ]
    heads = [label_text(name, look) for name in shown.of(part.columns)]
    if part.rows:
        stubs = [label_text(name, look) for name in rows.of(part.rows)]
        cells = [[stub, *row] for stub, row in zip(stubs, cells, strict=True)]
        heads = [label_text(corner, look), *heads]
    gap = [label_text(f"{marks.ellipsis} {rows.hidden} more", look), *[marks.ellipsis] * (len(heads) - 1)]
    return [heads, *rows.gap(cells, gap)]


def _gap(hidden: int, look: Style) -> str:
    """The heading of the columns left out; short where every column is dear."""
    return f"{glyphs(look).ellipsis} {hidden} more" if look.width >= 60 else f"+{hidden}"


def _fitting(wide: Sequence[int], wanted: Elision, room: int, between: int, look: Style) -> Elision:
    """The most columns of these widths that fit the room, at least one; `wanted` tells how many there are."""
    if not wanted.hidden and sum(wide) + between * (len(wide) - 1) <= room:
        return wanted
    gap = display_width(_gap(wanted.size, look))
    for most in range(len(wide) - 1, 1, -1):
        kept = elide(wanted.size, most)
        taken = sum(wide[: kept.head]) + sum(wide[len(wide) - kept.tail :]) + gap
        if taken + between * most <= room:
            return kept
    return elide(wanted.size, 1)


def grid(
    rows: Sequence[Sequence[str]],
    wide: Sequence[int],
    look: Style,
    *,
    left: Sequence[int] = (0,),
    title: str = "",
    between: int = BETWEEN,
) -> Block:
    """A table of texts, its headings first; the columns in `left` start at their left edge."""
    from rich.box import SIMPLE_HEAD, Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ruled = SIMPLE_HEAD if look.unicode else Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True)
    table = Table(box=ruled, show_edge=False, pad_edge=False, padding=(0, between - 1, 0, 0))
    for i, (text, width) in enumerate(zip(rows[0], wide, strict=True)):
        justify = "left" if i in left else "right"
        table.add_column(Text(text, "cyan"), justify=justify, width=width, no_wrap=True)  # type: ignore[arg-type]
    for row in rows[1:]:
        table.add_row(*[Text(text, _ink(text, i in left, look)) for i, text in enumerate(row)])
    total = sum(wide) + between * (len(wide) - 1)
    file = io.StringIO()
    Console(
        file=file,
        width=total,
        force_terminal=look.color,
        color_system="standard" if look.color else None,
        legacy_windows=False,
        _environ={},  # the look has decided, not the environment
    ).print(table)
    return block(file.getvalue().splitlines(), total, title, look)


def _ink(text: str, is_label: bool, look: Style) -> str:
    marks = glyphs(look)
    if text in (marks.masked, marks.ellipsis, "-inf"):
        return "dim"
    return "cyan" if is_label else "red" if text in ("nan", "inf") else ""
