"""Bars of one line, as a column of a table."""

import math
from collections.abc import Sequence

from attnkit.display.style import DEFAULT_STYLE, Style

EIGHTHS = " ▏▎▍▌▋▊▉"
SIGNED_WIDTH = 12  # columns of the longest bar of numbers of both signs, without the sign


def draw_bar(value: float, most: float, width: int, style: Style = DEFAULT_STYLE) -> str:
    """Draw a number from 0 to `most` as a bar of at most so many columns; "" where it is not finite.

    >>> draw_bar(5.0, 8.0, 4), draw_bar(8.0, 8.0, 4), draw_bar(5.0, 8.0, 4, Style(unicode=False))
    ('██▌', '████', '##')
    """
    share = min(value / most, 1.0) if most > 0 and value > 0 and math.isfinite(value) else 0.0
    if not style.unicode:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def draw_signed_bars(values: Sequence[float], most: float, style: Style = DEFAULT_STYLE) -> list[str]:
    """Draw numbers of both signs as bars below each other, a minus before those of negative ones.

    most  the size of the number whose bar is the longest

    >>> draw_signed_bars([0.5, -0.25], 1.0), draw_signed_bars([0.5, -0.25], 1.0, Style(unicode=False))
    ([' ██████', '−███'], [' ######', '-###'])
    """
    minus = "−" if style.unicode else "-"
    indent = " " * any(value < 0 for value in values)
    bars = [draw_bar(abs(value), most, SIGNED_WIDTH, style) for value in values]
    return [bar and f"{minus if value < 0 else indent}{bar}" for value, bar in zip(values, bars, strict=True)]
