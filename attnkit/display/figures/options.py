"""How a figure looks: its theme, its title, its numbers, its colours."""

from typing import Literal, NamedTuple

Theme = Literal["light", "dark", "transparent"]
THEMES = ("light", "dark", "transparent")


class FigureOptions(NamedTuple):
    """How to draw a figure.

    theme      light, dark or transparent; None: light, on a page whichever the browser prefers
    title      replaces the name and the formula of the tensor; "" for these
    numbers    whether cells show their numbers; None: where they fit
    precision  decimals; None: 2 in cells, 4 in tables
    range      (low, high) of the colours; None: that of all maps together; "each": of each map its own
    colors     the name of a colour map; None: by the signs of the numbers
    """

    theme: Theme | None = None
    title: str = ""
    numbers: bool | None = None
    precision: int | None = None
    range: tuple[float, float] | Literal["each"] | None = None
    colors: str | None = None


DEFAULT_OPTIONS = FigureOptions()
