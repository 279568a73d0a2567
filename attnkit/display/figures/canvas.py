"""Drawing by matplotlib in CSS pixels: style, texts, axes and their labels."""

import contextlib
import functools
import importlib
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.sax.saxutils import escape as escape_xml

import numpy as np

from attnkit.display.colors import LIGHT, Palette
from attnkit.display.numbers import format_number
from attnkit.display.style import DEFAULT_STYLE
from attnkit.display.text import escape
from attnkit.errors import escaped
from attnkit.libraries import call_library, import_library

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
MAX_LABEL = 150  # pixels
MAX_NUMBERS, DIGITS = 6, 4  # on an axis of numbers
LARGEST = 1e300  # the extent of an axis of numbers, twice this, is finite
PNG_SCALE = 2  # pixels of a PNG in a CSS pixel
NO_METADATA: Mapping[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "png": {"Software": None},
    "pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
}


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
    """Silence the warnings of matplotlib about missing glyphs and unwritable folders."""
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
    """Draw in the style of a theme, whatever the user's settings of matplotlib are.

    salt  distinguishes the ids of one SVG from the ids of others on the same page
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
    """Part of a figure of matplotlib, in CSS pixels from its upper left corner (x, y).

    Whatever is higher is drawn first.

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
        """Draw a text whose baseline begins at (x, y); `ha` centres it or ends it there."""
        look = {"fontsize": size * POINT * self.scale, "color": getattr(self.palette, color, color), "va": "baseline"}
        left, bottom, *_ = self._place(x, y)
        order = {"transform": self.figure.dpi_scale_trans, "zorder": -bottom}
        self.figure.text(left, bottom, escaped(text), **look | order | how)

    def rectangle(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Draw a rectangle in a colour, given as #rrggbb or by its name in the palette."""
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
        """Convert a place and a size to inches from the lower left corner of the figure."""
        inches = [(self.x + x * self.scale) / INCH, self.figure.get_size_inches()[1] - (self.y + y * self.scale) / INCH]
        return (*inches, width * self.scale / INCH, height * self.scale / INCH)


class Drawing(NamedTuple):
    """An area of this width and height in CSS pixels, and the function that draws it."""

    width: float
    height: float
    draw: Callable[[Canvas], None]


def make_figure(width: float, height: float, palette: Palette) -> Any:
    from matplotlib.figure import Figure

    return Figure((width / INCH, height / INCH), dpi=INCH, facecolor=palette.background or "none")


def draw_axes(width: float, height: float, paint: Callable[[Any], None]) -> Drawing:
    """Draw axes of this size, on which `paint` paints, with the labels around them."""
    with drawing_style(LIGHT):
        figure = make_figure(width, height, LIGHT)
        paint(figure.add_axes((0, 0, 1, 1)))
        box = figure.get_tightbbox()
    left, top = math.ceil(max(-box.x0 * INCH, 0)), math.ceil(max(box.y1 * INCH - height, 0))
    right, bottom = max(box.x1 * INCH, width), max(height - box.y0 * INCH, height)
    return Drawing(left + right, top + bottom, lambda canvas: paint(canvas.axes(left, top, width, height)))


def pixel_size(axes: Any) -> tuple[float, float]:
    """The width and height of axes of matplotlib in CSS pixels, as they are now."""
    box, pixel = axes.get_window_extent(), axes.figure.dpi / INCH
    return box.width / pixel, box.height / pixel


class Ticks(NamedTuple):
    """The labels that are drawn along an axis, turned by 0, 45 or 90 degrees.

    every  how many labels there are for each one that is drawn
    """

    places: Sequence[float] = ()
    texts: Sequence[str] = ()
    angle: int = 0
    every: int = 1


def fit_ticks(labels: Sequence[str], cell: float, factor: int = 1, below: bool = False) -> Ticks:
    """Choose labels beside cells of this height, or below cells of this width.

    No two labels overlap: below narrow columns they are turned, and some are left out. Labels that are the indices
    themselves become the multiples of 1, 2, 5, 10 …

    factor  the number of indices in a cell

    >>> [fit_ticks(["The", "cat"], cell, below=True).angle for cell in (40, 20, 11)]
    [0, 45, 90]
    >>> fit_ticks(["The", "cat", "sat"], 7).texts, fit_ticks([str(i) for i in range(30)], 2).texts
    (['The', 'sat'], ['0', '10', '20'])
    """
    pitch = SMALL_SIZE + 1  # least distance of two labels across them
    if all(label == str(i) for i, label in enumerate(labels)):
        least = (text_width(labels[-1], SMALL_SIZE) + GAP if below else pitch) / cell * factor if labels else 1
        power = 10 ** max(math.floor(math.log10(least)), 0)
        step = next(one * power for one in (1, 2, 5, 10) if one * power >= least or one == 10)
        return Ticks(range(0, len(labels), step), labels[::step])
    texts = [clip_text(escape(label, DEFAULT_STYLE), MAX_LABEL, SMALL_SIZE) for label in labels[::factor]]
    places = [at * factor + (factor - 1) / 2 for at in range(len(texts))]
    if below and max(text_width(text, SMALL_SIZE) for text in texts) + GAP <= cell:
        return Ticks(places, texts)
    if below and cell >= pitch * math.sqrt(2):
        return Ticks(places, texts, 45)
    step = max(math.ceil(pitch / cell), 1)
    return Ticks(places[::step], texts[::step], 90 if below else 0, step * factor)


def set_ticks(axis: Any, ticks: Ticks) -> None:
    turned = {"rotation": ticks.angle, "ha": "right", "rotation_mode": "anchor"} if ticks.angle else {}
    turned |= {45: {"va": "top"}, 90: {"va": "center"}}.get(ticks.angle, {})
    axis.set_ticks(ticks.places, ticks.texts, parse_math=False, **turned)


def set_numbers(axes: Any, which: str, low: float, high: float) -> None:
    """Set the range of the x or y axis of a plot, and draw lines at round numbers."""
    from matplotlib.ticker import MaxNLocator

    low, high = np.clip((low, high), -LARGEST, LARGEST).tolist()
    places, room = [low], abs(high) / 2 or 0.5
    if high - low > abs(high) * 1e-12:
        slack, room = (high - low) * 1e-9, 0.0
        every = MaxNLocator(MAX_NUMBERS, steps=[1, 2, 5, 10]).tick_values(low, high)
        places = [float(place) for place in every if low - slack <= place <= high + slack]
    axes.set(**{f"{which}lim": (low - room, high + room)})
    set_ticks(getattr(axes, f"{which}axis"), Ticks(places, [format_number(place, DIGITS) for place in places]))
    axes.grid(axis=which)


def save_drawing(drawing: Drawing, palette: Palette, kind: str, title: str = "", salt: str = "attnkit") -> bytes:
    """Write a drawing as SVG, PNG or PDF, the same bytes each time."""
    data, titles = io.BytesIO(), {"Title": title} if kind == "pdf" else {}
    with drawing_style(palette, salt=salt), call_library(f"cannot draw {kind}", "matplotlib"):
        figure = make_figure(drawing.width, drawing.height, palette)
        drawing.draw(Canvas(figure, palette))
        figure.savefig(data, format=kind, dpi=INCH * PNG_SCALE, metadata=NO_METADATA[kind] | titles)
    if kind != "svg":
        return data.getvalue()
    svg = re.sub(r'(<\w[^<>]*?) id="[\w.]+_\d+"', r"\1", data.getvalue().decode())  # the same in every drawing
    head = f'<svg xml:space="preserve"{svg.partition("<svg")[2]}'  # keeps the spaces of texts
    return (head.replace(">", f">\n <title>{escape_xml(title)}</title>", 1) if title else head).encode()
