"""Curves of one line: a block of eight heights for each number."""

from collections.abc import Sequence

import numpy as np

from attnkit.display.style import DEFAULT_STYLE, Style

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=*#@"


def draw_curve(values: Sequence[float], width: int, style: Style = DEFAULT_STYLE) -> str:
    """Draw numbers as blocks, the least one lowest; of more numbers than columns each column shows a mean.

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
