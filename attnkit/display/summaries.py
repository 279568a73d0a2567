"""Summaries: lists of tensors, their statistics, and the words a decoder would choose."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.display.numbers import brief, plain
from attnkit.display.slicing import Array, elide, shape_text
from attnkit.display.style import Style
from attnkit.display.tables import BETWEEN, MOST_ROWS, grid, widths
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
    wrapped,
)

LONGEST_NAME = 48


def statistics_table(named: Mapping[str, Array], look: Style) -> str:
    """A table of the extremes, the moments and the special values of each tensor.

    Moments and extremes are those of the finite values; the deviation is the population's.

    >>> print(statistics_table({"x": np.array([0.0, 2.0, np.nan])}, Style()))
    name  shape  dtype    min  max  mean  std  zeros  nan  inf
    ──────────────────────────────────────────────────────────
    x     (3)    float64    0    2     1    1      1    1    0
    """
    if not named:
        return "no tensors"
    heads = ["name", "shape", "dtype", "min", "max", "mean", "std", "zeros", "nan", "inf"]
    rows = [[_name(name, look), *_facts(array, look)] for name, array in named.items()]
    return join_lines(_folded(heads, rows, look, left=3))


def _facts(array: Array, look: Style) -> list[str]:
    numbers, counts = measured(array)
    texts = [_brief(number, look) for number in numbers] or ["-"] * 4
    return [f"({', '.join(map(str, array.shape))})", array.dtype.name, *texts, *map(str, counts)]


def measured(array: Array) -> tuple[list[Any], list[int]]:
    """Minimum, maximum, mean and deviation of the finite values; how many are zero, NaN and infinite.

    The first list is empty where no value is finite.

    >>> measured(np.array([0.0, 2.0, np.nan]))[1], measured(np.array([np.inf]))
    ([1, 1, 0], ([], [0, 0, 1]))
    """
    exact = array.dtype.kind in "biu"
    values = array if exact or array.dtype.itemsize > 2 else array.astype(np.float32)
    nans, infs = (0, 0) if exact else (int(np.isnan(values).sum()), int(np.isinf(values).sum()))
    zeros = values.size - int(np.count_nonzero(values))
    finite = values[np.isfinite(values)] if nans or infs else values
    with np.errstate(over="ignore", invalid="ignore"):  # squares of the largest float64
        numbers = [finite.min(), finite.max(), *_moments(finite)] if finite.size else []
    return numbers, [zeros, nans, infs]


def _moments(finite: Array) -> list[np.float64]:
    return [finite.mean(dtype=np.float64), finite.std(dtype=np.float64)]


def _brief(number: np.generic, look: Style) -> str:
    """A number in a few significant digits; a whole number of an exact dtype in all of them."""
    value = plain(np.asarray(number))
    return brief(value, look.precision) if isinstance(value, float) else str(int(value))


def tensor_list(named: Mapping[str, tuple[Array, Sequence[str]]], look: Style, title: str = "", last: str = "") -> str:
    """A table of tensors: name, shape with axis names, dtype, bytes; the totals last.

    With a last line below, the extremes of the finite values stand in place of the bytes.

    >>> print(tensor_list({"x": (np.zeros((3, 4)), ("token", "model"))}, Style()))
    name  shape               dtype    bytes
    ────────────────────────────────────────
    x     (token 3, model 4)  float64   96 B
    1 tensor, 96 B
    """
    top = heading(title, "", "", look) if title else []
    total = sum(array.nbytes for array, _ in named.values())
    totals = f"{len(named)} tensor{'' if len(named) == 1 else 's'}, {human_size(total)}"
    if not named:
        return join_lines([*top, totals])
    heads = ["name", "shape", "dtype", *(["min", "max"] if last else ["bytes"])]
    rows = [
        [_name(name, look), shape_text(array, axes, look), array.dtype.name]
        + (_facts(array, look)[2:4] if last else [human_size(array.nbytes)])
        for name, (array, axes) in named.items()
    ]
    below = [totals, *wrapped(escape(last, look), look)] if last else [totals]
    return join_lines([*top, *_folded(heads, rows, look, left=3), *(ansi(line, "2", look) for line in below)])


def human_size(count: int) -> str:
    """Bytes in decimal units.

    >>> human_size(96), human_size(1_500_000)
    ('96 B', '1.5 MB')
    """
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 5)
    return f"{count / 1000**power:.1f} {'kMGTP'[power - 1]}B"


def candidates_table(
    rows: Sequence[str],
    ids: Array,
    probs: Array,
    words: Sequence[str] | None,
    look: Style,
    title: str = "",
    formula: str = "",
    corner: str = "position",
) -> str:
    """A table of the likeliest words at each position, the likeliest first.

    ids, probs (T, top), rows T labels, words the vocabulary, corner what a row is -> text

    >>> ids, probs = np.array([[1, 0]]), np.array([[0.7, 0.3]])
    >>> print(candidates_table(["The"], ids, probs, ["a", "cat"], Style(precision=2)))
    position  1st       2nd
    ──────────────────────────
    The       cat 0.70  a 0.30
    """
    top = heading(title, "", formula, look) if title or formula else []
    if ids.size == 0:
        return join_lines([*top, "empty"])
    kept = elide(len(rows), MOST_ROWS)
    ranked = [
        _ranked([_word(at, words, look) for at in kept.of(column)], kept.of(chances), look)
        for column, chances in zip(ids.T.tolist(), plain(probs.T), strict=True)
    ]
    names = [label_text(name, look) for name in kept.of(rows)]
    body = [list(row) for row in zip(names, *ranked, strict=True)]
    marks = glyphs(look)
    gap = [f"{marks.ellipsis} {kept.hidden} more", *[marks.ellipsis] * len(ranked)]
    heads = [corner, *(_ordinal(i + 1) for i in range(len(ranked)))]
    return join_lines([*top, *_folded(heads, kept.gap(body, gap), look, left=len(heads))])


def _word(at: int, words: Sequence[str] | None, look: Style) -> str:
    return label_text(words[at], look) if words is not None and 0 <= at < len(words) else str(at)


def _ranked(words: Sequence[str], chances: Sequence[float], look: Style) -> list[str]:
    """The cells of one rank: words, then their probabilities below each other."""
    wide = max(map(display_width, words))
    return [f"{pad(word, wide)} {chance:.{look.precision}f}" for word, chance in zip(words, chances, strict=True)]


def _ordinal(number: int) -> str:
    """The ordinal of a rank.

    >>> [_ordinal(n) for n in (1, 2, 3, 4, 11, 21)]
    ['1st', '2nd', '3rd', '4th', '11th', '21st']
    """
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def _name(name: str, look: Style) -> str:
    """A name at most half the width, its middle left out where it is longer: the end tells most names apart."""
    shown, room = escape(name, look), min(LONGEST_NAME, look.width // 2)
    ending = shown[len(shown) - room // 2 :]
    if display_width(shown) <= room or display_width(ending) > room // 2:
        return clip(shown, room, look)
    return clip(shown, room - room // 2, look) + ending


def _folded(heads: list[str], rows: list[list[str]], look: Style, left: int) -> list[str]:
    """A table whose columns go on below, after the first column again, where they do not fit the width."""
    cells = [heads, *rows]
    wide = widths(cells)
    bands: list[list[int]] = [[0]]
    for i in range(1, len(heads)):
        if len(bands[-1]) > 1 and sum(wide[j] + BETWEEN for j in bands[-1]) + wide[i] > look.width:
            bands.append([0])
        bands[-1].append(i)
    lines: list[str] = []
    for band in bands:
        room = look.width - wide[0] - BETWEEN  # for a column that is alone beside the first
        chosen = [[clip(row[i], room, look) if i else row[i] for i in band] for row in cells]
        flush = [i for i, column in enumerate(band) if column < left]
        lines += [""] if lines else []
        lines += grid(chosen, widths(chosen), look, left=flush).lines
    return lines
