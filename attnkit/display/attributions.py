"""Attributions of the tokens of a text: its words coloured by sign and size, and a table of them with bars."""

import math
from collections.abc import Sequence

from attnkit.display.bars import draw_signed_bars
from attnkit.display.colors import SIGNED, color_map
from attnkit.display.facts import TextTable
from attnkit.display.heatmaps import make_ink
from attnkit.display.labels import plain_labels
from attnkit.display.style import Style
from attnkit.display.text import escape
from attnkit.record import shared_labels

FAINT = 0.05  # share of the largest attribution below which a word has no colour


def color_words(words: Sequence[str], values: Sequence[float], most: float, style: Style) -> str:
    """Return words on one line, red where their attribution is positive and blue where it is negative.

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
    """Return the table of the attribution of each token, with a bar of its size, red or blue by its sign.

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
