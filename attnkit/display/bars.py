"""Bars of one line, as a column of a table."""

import math
from collections.abc import Sequence

import numpy as np

from attnkit.display.colors import SIGNED, color_map
from attnkit.display.facts import TextTable
from attnkit.display.heatmaps import make_ink
from attnkit.display.labels import plain_labels
from attnkit.display.style import DEFAULT_STYLE, Style
from attnkit.display.text import escape
from attnkit.records import shared_labels

EIGHTHS = " ▏▎▍▌▋▊▉"
SIGNED_WIDTH = 12  # columns of the longest bar of numbers of both signs, without the sign


def draw_bar(value: float, most: float, width: int, style: Style = DEFAULT_STYLE) -> str:
    """Draw a number from 0 to `most` as a bar, or "" if it is not finite.

    >>> draw_bar(5.0, 8.0, 4), draw_bar(8.0, 8.0, 4), draw_bar(5.0, 8.0, 4, Style(unicode=False))
    ('██▌', '████', '##')
    """
    share = min(value / most, 1.0) if most > 0 and value > 0 and math.isfinite(value) else 0.0
    if not style.unicode:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def draw_signed_bars(values: Sequence[float], most: float, style: Style = DEFAULT_STYLE) -> list[str]:
    """Draw numbers of both signs as bars, with a minus before negative ones.

    most  the size of the number whose bar is the longest

    >>> draw_signed_bars([0.5, -0.25], 1.0), draw_signed_bars([0.5, -0.25], 1.0, Style(unicode=False))
    ([' ██████', '−███'], [' ######', '-###'])
    """
    minus = "−" if style.unicode else "-"
    indent = " " * any(value < 0 for value in values)
    bars = [draw_bar(abs(value), most, SIGNED_WIDTH, style) for value in values]
    return [bar and f"{minus if value < 0 else indent}{bar}" for value, bar in zip(values, bars, strict=True)]


BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=*#@"


def draw_curve(values: Sequence[float], width: int, style: Style = DEFAULT_STYLE) -> str:
    """Draw numbers as blocks, the smallest lowest. A column may show a mean.

    >>> draw_curve([4.0, 2.0, 1.0], 10), draw_curve([4.0, 4.0, 2.0, 1.0, 1.0, 0.5], 3)
    ('█▃▁', '█▃▁')
    """
    if not len(values):
        return ""
    columns = [part.mean() for part in np.array_split(np.asarray(values, np.float64), min(width, len(values)))]
    blocks = BLOCKS if style.unicode else ASCII_BLOCKS
    least, most = min(columns), max(columns)
    scale = (len(blocks) - 1) / (most - least) if most > least else 0.0
    return "".join(blocks[round((column - least) * scale)] for column in columns)


FAINT = 0.05  # share of the largest attribution below which a word has no colour


def color_words(words: Sequence[str], values: Sequence[float], most: float, style: Style) -> str:
    """Words on one line, red for a positive attribution and blue for a negative.

    most  the size of an attribution in full colour

    >>> color_words(["The", "cat"], [1.0, -0.5], 1.0, Style(color=True)).replace(chr(27), "^").count("^[48;2")
    2
    """
    spellings = [escape(word, style) for word in shared_labels(plain_labels(list(words)))]
    gap = "" if any(spelling != word for spelling, word in zip(spellings, words, strict=True)) else " "
    colors, parts = color_map(SIGNED), []
    for word, value in zip(spellings, values, strict=True):
        share = value / most if most and math.isfinite(value) else 0.0
        if abs(share) < FAINT:
            parts.append(word)
            continue
        before, _, after = make_ink(colors[round((max(-1.0, min(share, 1.0)) + 1) / 2 * (len(colors) - 1))])
        parts.append(f"{before}{word}{after}")
    return gap.join(parts)


def attributions_table(
    words: Sequence[str], values: Sequence[float], most: float, style: Style, title: str = ""
) -> TextTable:
    """The attribution of each token, with a bar, red or blue by its sign.

    >>> from attnkit.display.facts import format_table
    >>> print(format_table(attributions_table(["The", "cat"], [0.5, -1.0], 1.0, Style()), Style()))
    token  attribution
    ─────────────────────────────────
    The         0.5000   ██████
    cat        -1.0000  −████████████
    """
    spellings = shared_labels(plain_labels(list(words))) if style.plain_tokens else words
    numbers = [f"{value:.{style.precision}f}" for value in values]
    rows = list(zip(spellings, numbers, draw_signed_bars(values, most, style), strict=True))
    return TextTable(["token", "attribution", ""], rows, (1,), title, signed=(2,))
