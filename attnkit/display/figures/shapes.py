"""What a figure is made of: texts, paths, cells, and drawings of them; sizes are in CSS pixels."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Anchor = Literal["start", "middle", "end"]

TEXT_SIZE, SMALL_SIZE, TITLE_SIZE = 12, 11, 15
TAIL_GAP = 8
LINE = 1.4  # height of a line of text, in its size


class Text(NamedTuple):
    """A text whose baseline begins, is centred or ends at (x, y), turned clockwise about it by `angle` degrees.

    color  a name of the theme (ink, muted) or #rrggbb
    tail   more text after TAIL_GAP, of TEXT_SIZE and not bold
    """

    x: float
    y: float
    text: str
    size: float = TEXT_SIZE
    anchor: Anchor = "start"
    angle: float = 0
    color: str = "ink"
    is_bold: bool = False
    is_mono: bool = False
    tail: str = ""


class Path(NamedTuple):
    """A path in the notation of SVG, filled, stroked, or both; "" for no colour."""

    data: str
    fill: str = ""
    stroke: str = ""
    width: float = 1


class Cells(NamedTuple):
    """A grid of coloured cells with its upper left corner at (x, y).

    levels  (rows, columns), an index into `colors`; below 0 for a cell that is not drawn
    """

    x: float
    y: float
    cell_width: float
    cell_height: float
    levels: Array
    colors: Sequence[str]


class Placed(NamedTuple):
    """A drawing with its upper left corner at (x, y)."""

    x: float
    y: float
    drawing: "Drawing"


Shape = Text | Path | Cells | Placed


class Drawing(NamedTuple):
    """Shapes on an area of this width and height."""

    width: float
    height: float
    shapes: Sequence[Shape]


class Table(NamedTuple):
    """A table of texts, its headings first; the columns in `left` are left-aligned, the others right-aligned."""

    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    title: str = ""


class Preformatted(NamedTuple):
    """Lines of text in a font of one width: a script, a generated text."""

    lines: Sequence[str]


Panel = Drawing | Table | Preformatted


class Section(NamedTuple):
    """Panels under a title, with the formula beside it, a description below it and notes at the end."""

    title: str
    panels: Sequence[Panel]
    formula: str = ""
    description: str = ""
    notes: Sequence[str] = ()


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle.

    >>> rectangle(1, 2, 3.5, 4)
    'M1 2h3.5v4h-3.5z'
    """
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"


def short(value: float) -> str:
    """Return a length in its shortest text, to a hundredth of a pixel.

    >>> short(2.0), short(0.50001), short(-0.001)
    ('2', '.5', '0')
    """
    text = f"{value:z.2f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text
