"""A canvas of matplotlib in CSS pixels: its style, its fonts, the widths of texts, and drawings on it."""

import contextlib
import functools
import importlib
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnkit.display.figures.colors import LIGHT, Palette
from attnkit.errors import escaped
from attnkit.libraries import import_library

TEXT_SIZE, SMALL_SIZE, TITLE_SIZE = 12, 11, 15  # pixels
POINT, INCH = 0.75, 96  # points in a pixel, pixels in an inch
GAP = 6
FONT, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # come with matplotlib; the others if they are installed
OTHERS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC", "Arial Unicode MS")
SIZES: Mapping[str, float] = {
    "font.size": TEXT_SIZE, "axes.titlesize": TEXT_SIZE, "axes.labelsize": TEXT_SIZE,
    "legend.title_fontsize": TEXT_SIZE, "legend.fontsize": SMALL_SIZE, "xtick.labelsize": SMALL_SIZE,
    "ytick.labelsize": SMALL_SIZE, "xtick.major.size": 0, "ytick.major.size": 0, "xtick.major.pad": 5,
    "ytick.major.pad": 6, "axes.titlepad": 6, "axes.labelpad": 4, "axes.linewidth": 1, "grid.linewidth": 1,
    "hatch.linewidth": 1, "lines.linewidth": 1.75,
}  # fmt: skip
COLORS = {
    "text.color": "ink", "xtick.labelcolor": "ink", "ytick.labelcolor": "ink", "axes.labelcolor": "muted",
    "axes.edgecolor": "grid", "grid.color": "grid", "hatch.color": "masked",
}  # fmt: skip
STYLE: Mapping[str, Any] = {
    "font.family": ["sans-serif"], "font.monospace": [MONO], "text.parse_math": False, "legend.frameon": False,
    "axes.facecolor": "none", "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.axisbelow": True,
    "svg.fonttype": "none", "pdf.fonttype": 42,
}  # fmt: skip
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # of an SVG


@functools.cache
def load_matplotlib() -> Any:
    """Import matplotlib; UsageError says what to install if it is missing."""
    with quiet():
        matplotlib = import_library("matplotlib", "figures", "a figure")
        for part in ("backends.backend_agg", "font_manager"):
            importlib.import_module(f"matplotlib.{part}")
    return matplotlib


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence matplotlib, which warns of characters without a glyph and of folders that it cannot write."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def drawing_style(palette: Palette, scale: float = 1.0, salt: str = "attnkit") -> Iterator[None]:
    """Set the style of what is drawn, whatever the user's settings of matplotlib are.

    salt  makes the ids of an SVG, which differ from the ids of others on the same page
    """
    matplotlib = load_matplotlib()
    style = {**STYLE} | {name: size * POINT * scale for name, size in SIZES.items()} | {"font.sans-serif": _fonts()}
    style |= {name: getattr(palette, color) for name, color in COLORS.items()} | {"svg.hashsalt": salt}
    with quiet(), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        yield


@functools.cache
def _fonts() -> list[str]:
    installed = load_matplotlib().font_manager.fontManager.get_font_names()
    return [FONT, *(font for font in OTHERS if font in installed)]


@functools.cache
def _renderer() -> Any:
    return load_matplotlib().backends.backend_agg.RendererAgg(1, 1, 72)  # in which a point is a pixel


@functools.lru_cache(maxsize=10_000)
def text_width(text: str, size: float, weight: str = "normal", family: str = "") -> float:
    """Measure a text in pixels."""
    properties = load_matplotlib().font_manager.FontProperties
    font = properties(family=[family] if family else _fonts(), size=size, weight=weight)
    with quiet():
        return float(_renderer().get_text_width_height_descent(text, font, False)[0])


def clip_text(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Cut a text to a width in pixels, with an ellipsis at its end if it is longer.

    >>> clip_text("attention", 1000, 12), clip_text("attention", 40, 12)
    ('attention', 'atte…')
    """
    if text_width(text, size, weight) <= width:
        return text
    ends = range(len(text) - 1, 1, -1)
    return next((f"{text[:at]}…" for at in ends if text_width(f"{text[:at]}…", size, weight) <= width), f"{text[:1]}…")


@dataclass
class Canvas:
    """A part of a figure of matplotlib, in CSS pixels from its upper left corner (x, y), drawn from top to bottom.

    scale  pixels of the figure in a pixel of the canvas
    """

    figure: Any
    palette: Palette
    x: float = 0.0
    y: float = 0.0
    scale: float = 1.0

    def at(self, x: float, y: float) -> "Canvas":
        """A canvas with its corner at (x, y) of this one."""
        return Canvas(self.figure, self.palette, self.x + x * self.scale, self.y + y * self.scale, self.scale)

    def text(self, x: float, y: float, text: str, size: float = TEXT_SIZE, color: str = "ink", **how: Any) -> None:
        """Draw a text whose baseline begins at (x, y), or with `ha` ends there or is centred."""
        look = {"fontsize": size * POINT * self.scale, "color": getattr(self.palette, color, color), "va": "baseline"}
        left, bottom, *_ = self._place(x, y)
        order = {"transform": self.figure.dpi_scale_trans, "zorder": -bottom}
        self.figure.text(left, bottom, escaped(text), **look | order | how)

    def rectangle(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Draw a rectangle in a colour, or in the colour of the palette with this name."""
        from matplotlib.patches import Rectangle

        left, bottom, width, height = self._place(x, y + height, width, height)
        how = {"color": getattr(self.palette, color, color), "transform": self.figure.dpi_scale_trans}
        self.figure.add_artist(Rectangle((left, bottom), width, height, linewidth=0, zorder=-bottom - height, **how))

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Add axes of matplotlib, which fill a rectangle."""
        full_width, full_height = self.figure.get_size_inches()
        left, bottom, width, height = self._place(x, y + height, width, height)
        sides = (left / full_width, bottom / full_height, width / full_width, height / full_height)
        return self.figure.add_axes(sides, zorder=-bottom - height)

    def _place(self, x: float, y: float, width: float = 0, height: float = 0) -> tuple[float, float, float, float]:
        """A place and a size in inches, from the bottom of the figure."""
        inches = [(self.x + x * self.scale) / INCH, self.figure.get_size_inches()[1] - (self.y + y * self.scale) / INCH]
        return (*inches, width * self.scale / INCH, height * self.scale / INCH)


class Drawing(NamedTuple):
    """An area of this width and height in CSS pixels, and the function that draws it."""

    width: float
    height: float
    draw: Callable[[Canvas], None]


def make_figure(width: float, height: float, palette: Palette) -> Any:
    """An empty figure of matplotlib of this size."""
    from matplotlib.figure import Figure

    return Figure((width / INCH, height / INCH), dpi=INCH, facecolor=palette.background or "none")


def draw_axes(width: float, height: float, paint: Callable[[Any], None]) -> Drawing:
    """Draw axes of matplotlib of this size, on which `paint` paints, with all that is around them."""
    with drawing_style(LIGHT):
        figure = make_figure(width, height, LIGHT)
        paint(figure.add_axes((0, 0, 1, 1)))
        box = figure.get_tightbbox()
    left, top = math.ceil(max(-box.x0 * INCH, 0)), math.ceil(max(box.y1 * INCH - height, 0))
    right, bottom = max(box.x1 * INCH, width), max(height - box.y0 * INCH, height)
    return Drawing(left + right, top + bottom, lambda canvas: paint(canvas.axes(left, top, width, height)))


def pixel_size(axes: Any) -> tuple[float, float]:
    """The width and height of axes of matplotlib in CSS pixels, as they are now."""
    box, pixel = axes.get_window_extent(), axes.get_figure(root=True).dpi / INCH
    return box.width / pixel, box.height / pixel


def draw_svg(drawing: Drawing, palette: Palette, salt: str = "attnkit") -> str:
    """Draw an SVG element, which refers to nothing outside of it."""
    data = io.BytesIO()
    with drawing_style(palette, salt=salt):
        figure = make_figure(drawing.width, drawing.height, palette)
        drawing.draw(Canvas(figure, palette))
        figure.savefig(data, format="svg", metadata=NO_METADATA)
    svg = re.sub(r'(<\w[^<>]*?) id="[\w.]+_\d+"', r"\1", data.getvalue().decode())  # the same in every drawing
    return svg[svg.index("<svg") :].replace("<svg", '<svg xml:space="preserve"', 1)  # the spaces of texts
