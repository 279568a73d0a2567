"""Sections as the bytes of an SVG, HTML, PNG or PDF file. PNG and PDF are the SVG, drawn by the typst library."""

from collections.abc import Sequence
from typing import Any, Literal

from attnkit.display.figures.colors import PALETTES
from attnkit.display.figures.html import html_page
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.shapes import Section
from attnkit.display.figures.stack import stack_sections
from attnkit.display.figures.svg import set_scripts, svg_document
from attnkit.libraries import call_library, import_library

Kind = Literal["svg", "html", "png", "pdf"]
KINDS = ("svg", "html", "png", "pdf")
PIXELS_PER_INCH = 192  # two pixels of a PNG for each pixel of the SVG
PAGE = """\
#set document(title: sys.inputs.title, date: none)
#set page(width: auto, height: auto, margin: 0pt, fill: none)
#image(bytes(sys.inputs.svg), format: "svg")
"""


def render_figure(sections: Sequence[Section], options: FigureOptions, kind: Kind, name: str) -> bytes:
    """Return sections as a file of a kind; `name` is the title of the file where the options have none.

    UsageError where PNG or PDF is requested without the typst library.

    >>> render_figure([Section("x", [])], FigureOptions(), "svg", "attnkit show")[:28]
    b'<svg xmlns="http://www.w3.or'
    """
    if kind == "html":
        return html_page(sections, options, name).encode()
    title = options.title or name
    svg = svg_document(stack_sections(sections, options), PALETTES[options.theme or "light"], title)
    return svg.encode() if kind == "svg" else _typeset(set_scripts(svg), title, kind)


def _typeset(svg: str, title: str, kind: Kind) -> bytes:
    """Return an SVG document as PNG or PDF: its texts in fonts of the machine, else in those of the library."""
    typst: Any = import_library("typst", "figures", f"--format {kind}")
    with call_library(f"cannot draw {kind}", "typst"):
        pages = typst.compile(PAGE.encode(), format=kind, ppi=PIXELS_PER_INCH, sys_inputs={"svg": svg, "title": title})
    return bytes(pages[0] if isinstance(pages, list) else pages)
