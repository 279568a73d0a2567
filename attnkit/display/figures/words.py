"""Words in colours: each token of a text on the colour of a number that it has."""

import math
from collections.abc import Sequence

from attnkit.display.figures.colors import LEVELS, SIGNED, color_map, contrasting_ink
from attnkit.display.figures.fonts import clip_text, text_width, visible
from attnkit.display.figures.shapes import TEXT_SIZE, Drawing, Path, Shape, Text, rectangle

WIDTH = 640  # pixels of a line
PADDING, LINE_HEIGHT = 3, 22


def draw_words(words: Sequence[str], values: Sequence[float], most: float) -> Drawing:
    """Draw the tokens of a text on lines, red where their number is positive, blue where it is negative.

    most  the number in full colour

    A number that is not finite has no colour.

    >>> drawing = draw_words(["The", "cat"], [1.0, math.nan], 1.0)
    >>> [shape.fill if isinstance(shape, Path) else shape.text for shape in drawing.shapes]
    ['#b2182b', 'The', 'cat']
    """
    colors, shapes = color_map(SIGNED), list[Shape]()
    x, y, widest = 0.0, 0.0, 0.0
    for word, value in zip(words, values, strict=True):
        text = clip_text(visible(word), WIDTH - 2 * PADDING, TEXT_SIZE)
        width = text_width(text, TEXT_SIZE) + 2 * PADDING
        if x and x + width > WIDTH:
            x, y = 0.0, y + LINE_HEIGHT
        ink = "ink"
        if math.isfinite(value):
            share = max(-1.0, min(value / most if most else 0.0, 1.0))
            color = colors[round((share + 1) / 2 * (LEVELS - 1))]
            shapes.append(Path(rectangle(x, y, width, LINE_HEIGHT - PADDING), fill=color))
            ink = contrasting_ink(color)
        shapes.append(Text(x + width / 2, y + TEXT_SIZE + 2, text, anchor="middle", color=ink))
        x += width + 1
        widest = max(widest, x)
    return Drawing(widest, y + LINE_HEIGHT, shapes)
