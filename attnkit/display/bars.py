"""Bars of one line, as a column of a table."""

import math

from attnkit.display.style import DEFAULT_STYLE, Style

EIGHTHS = " ▏▎▍▌▋▊▉"


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
