"""Summaries: tensors, their statistics, and the most probable tokens."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.display.numbers import format_number, to_python
from attnkit.display.slicing import Array, elide_rows, format_shape
from attnkit.display.style import Style
from attnkit.display.tables import COLUMN_GAP, MAX_ROWS, column_widths, grid
from attnkit.display.text import (
    ansi,
    clip,
    display_width,
    escape,
    glyphs,
    heading,
    join_lines,
    label_text,
    pad,
    wrap,
)
from attnkit.errors import counted, format_bytes

MAX_NAME_WIDTH = 48
STATISTICS = ("name", "shape", "dtype", "min", "max", "mean", "std", "zeros", "nan", "inf")
BAR = 20  # columns of the longest bar


class Candidates(NamedTuple):
    """The most probable tokens at each of T positions, the most probable first.

    ids, probs  (T, top)
    words       the vocabulary
    corner      the heading of the rows
    """

    rows: Sequence[str]
    ids: Array
    probs: Array
    words: Sequence[str] | None
    title: str = ""
    formula: str = ""
    corner: str = "position"


def statistics_table(named: Mapping[str, Array], style: Style) -> str:
    """Draw minimum, maximum, mean, deviation and special values.

    All but the counts are of the finite values; the deviation is the population's. Where the width is too small,
    dtypes, shapes and columns of counts that are all 0 are left out, in this order.

    >>> print(statistics_table({"x": np.array([0.0, 2.0, np.nan])}, Style()))
    name  shape  dtype    min  max  mean  std  zeros  nan  inf
    ──────────────────────────────────────────────────────────
    x     (3)    float64    0    2     1    1      1    1    0
    """
    if not named:
        return "no tensors"
    heads = [*STATISTICS]
    rows = [[_clip_name(name, style), *statistics_texts(array, style)] for name, array in named.items()]
    sizes, columns = column_widths([heads, *rows]), list(range(len(heads)))
    for i in (2, 1, *(i for i in (8, 9, 7) if all(row[i] == "0" for row in rows))):
        if sum(sizes[j] for j in columns) + COLUMN_GAP * (len(columns) - 1) > style.width:
            columns.remove(i)
    cells = [[row[i] for i in columns] for row in (heads, *rows)]
    return join_lines(_fold_columns(cells[0], cells[1:], style, left=sum(i < 3 for i in columns)))


def statistics_texts(array: Array, style: Style) -> list[str]:
    """Shape, dtype, statistics and counts of a tensor as texts."""
    numbers, counts = compute_statistics(array)
    values = [to_python(np.asarray(number)) for number in numbers]
    texts = [format_number(one, style.precision) if isinstance(one, float) else str(int(one)) for one in values]
    return [f"({', '.join(map(str, array.shape))})", array.dtype.name, *(texts or ["-"] * 4), *map(str, counts)]


def compute_statistics(array: Array) -> tuple[list[Any], list[int]]:
    """Compute statistics of the finite values, and count the special ones.

    The first list is empty where no value is finite.

    >>> compute_statistics(np.array([0.0, 2.0, np.nan]))[1], compute_statistics(np.array([np.inf]))
    ([1, 1, 0], ([], [0, 0, 1]))
    """
    is_exact = array.dtype.kind in "biu"
    values = array if is_exact or array.dtype.itemsize > 2 else array.astype(np.float32)
    nans, infs = (0, 0) if is_exact else (int(np.isnan(values).sum()), int(np.isinf(values).sum()))
    zeros = values.size - int(np.count_nonzero(values))
    finite = values[np.isfinite(values)] if nans or infs else values
    with np.errstate(over="ignore", invalid="ignore"):  # squares of the largest float64
        least = [finite.min(), finite.max()] if finite.size else []
        means = [finite.mean(dtype=np.float64), finite.std(dtype=np.float64)] if finite.size else []
    return [*least, *means], [zeros, nans, infs]


def tensor_list(
    named: Mapping[str, tuple[Array, Sequence[str]]], style: Style, title: str = "", footer: str = ""
) -> str:
    """Draw name, shape, dtype and bytes of tensors, then the totals.

    With a `footer`, the minimum and maximum of the finite values replace the bytes.

    >>> print(tensor_list({"x": (np.zeros((3, 4)), ("token", "model"))}, Style()))
    name  shape               dtype    bytes
    ────────────────────────────────────────
    x     (token 3, model 4)  float64   96 B
    1 tensor, 96 B
    """
    above = heading(title, "", "", style) if title else []
    totals = count_tensors(named)
    if not named:
        return join_lines([*above, totals])
    heads = ["name", "shape", "dtype", *(["min", "max"] if footer else ["bytes"])]
    rows = [
        [_clip_name(name, style), format_shape(array, axes, style), array.dtype.name]
        + (statistics_texts(array, style)[2:4] if footer else [format_bytes(array.nbytes)])
        for name, (array, axes) in named.items()
    ]
    below = [totals, *wrap(escape(footer, style), style)] if footer else [totals]
    return join_lines([*above, *_fold_columns(heads, rows, style, left=3), *(ansi(line, "2", style) for line in below)])


def count_tensors(named: Mapping[str, tuple[Array, Sequence[str]]]) -> str:
    """The number of tensors, and the size of all."""
    return f"{counted(len(named), 'tensor')}, {format_bytes(sum(array.nbytes for array, _ in named.values()))}"


def norms_table(named: Mapping[str, Array], style: Style) -> str:
    """Draw the Euclidean norm of each tensor, with a bar.

    >>> print(norms_table({"1.embed.x": np.array([3.0, 4.0]), "2.attend.x": np.array([2.5])}, Style()))
    name        shape  norm
    ─────────────────────────────────────────────
    1.embed.x   (2)       5  ████████████████████
    2.attend.x  (1)     2.5  ██████████
    """
    norms = [float(np.linalg.norm(array.astype(np.float64).ravel())) for array in named.values()]
    finite = [norm for norm in norms if math.isfinite(norm)]
    largest, full = max(finite, default=0.0) or 1.0, glyphs(style).shades[-1]
    bars = [full * round(BAR * norm / largest) if math.isfinite(norm) else "" for norm in norms]
    rows = [
        [_clip_name(name, style), f"({', '.join(map(str, array.shape))})", format_number(norm, style.precision), bar]
        for (name, array), norm, bar in zip(named.items(), norms, bars, strict=True)
    ]
    table = [["name", "shape", "norm", ""], *rows]
    return join_lines(grid(table, column_widths(table), style, left=[0, 1, 3]).lines)


def candidates_table(candidates: Candidates, style: Style) -> str:
    """Draw the most probable tokens at each position.

    >>> candidates = Candidates(["The"], np.array([[1, 0]]), np.array([[0.7, 0.3]]), ["a", "cat"])
    >>> print(candidates_table(candidates, Style(precision=2)))
    position  1st       2nd
    ──────────────────────────
    The       cat 0.70  a 0.30
    """
    rows, ids, probs, words, title, formula, corner = candidates
    above = heading(title, "", formula, style) if title or formula else []
    if ids.size == 0:
        return join_lines([*above, "empty"])
    elision = elide_rows(len(rows), MAX_ROWS)
    known, columns = words or (), []
    for rank, chances in zip(ids.T.tolist(), to_python(probs.T), strict=True):
        tokens = elision.pick(rank)
        texts = [label_text(known[at], style) if 0 <= at < len(known) else str(at) for at in tokens]
        size, pairs = max(map(display_width, texts)), zip(texts, elision.pick(chances), strict=True)
        columns.append([f"{pad(text, size)} {chance:.{style.precision}f}" for text, chance in pairs])
    names = [label_text(name, style) for name in elision.pick(rows)]
    body = [list(row) for row in zip(names, *columns, strict=True)]
    marks = glyphs(style)
    gap = [f"{marks.ellipsis} {elision.hidden} more", *[marks.ellipsis] * len(columns)]
    heads = [corner, *(ordinal(i + 1) for i in range(len(columns)))]
    return join_lines([*above, *_fold_columns(heads, elision.with_gap(body, gap), style, left=len(heads))])


def ordinal(number: int) -> str:
    """The ordinal of a rank.

    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 21)]
    ['1st', '2nd', '3rd', '4th', '11th', '21st']
    """
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def _clip_name(name: str, style: Style) -> str:
    escaped_name, room = escape(name, style), min(MAX_NAME_WIDTH, style.width // 2)
    ending = escaped_name[len(escaped_name) - room // 2 :]
    if display_width(escaped_name) <= room or display_width(ending) > room // 2:
        return clip(escaped_name, room, style)
    return clip(escaped_name, room - room // 2, style) + ending


def _fold_columns(heads: list[str], rows: list[list[str]], style: Style, left: int) -> list[str]:
    cells = [heads, *rows]
    sizes = column_widths(cells)
    bands: list[list[int]] = [[0]]
    for i in range(1, len(heads)):
        if len(bands[-1]) > 1 and sum(sizes[j] + COLUMN_GAP for j in bands[-1]) + sizes[i] > style.width:
            bands.append([0])
        bands[-1].append(i)
    lines: list[str] = []
    for band in bands:
        room = style.width - sizes[0] - COLUMN_GAP  # for a column that is alone beside the first
        texts = [[clip(row[i], room, style) if i else row[i] for i in band] for row in cells]
        aligned = [i for i, column in enumerate(band) if column < left]
        lines += [""] if lines else []
        lines += grid(texts, column_widths(texts), style, left=aligned).lines
    return lines
