"""Sections as the bytes of an SVG, HTML, PNG or PDF file. PNG and PDF are the SVG, drawn by the typst library."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from attnkit.display.figures.colors import PALETTES
from attnkit.display.figures.html import html_page
from attnkit.display.figures.markdown import markdown_page
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.shapes import Section
from attnkit.display.figures.stack import stack_sections, titled
from attnkit.display.figures.svg import set_scripts, svg_document
from attnkit.libraries import call_library, import_library

Kind = Literal["svg", "html", "png", "pdf", "markdown"]
KINDS = ("svg", "html", "png", "pdf")
PIXELS_PER_INCH = 192  # two pixels of a PNG for each pixel of the SVG
SHEET = """\
#set document(title: sys.inputs.title, date: none)
#set page(paper: "a4", margin: 15mm, numbering: "1 / 1")
#set block(spacing: 0pt)
#for section in json(bytes(sys.inputs.sections)) {
  block(breakable: false, sticky: section.sticky, layout(page => {
    let one = image(bytes(section.svg), format: "svg")
    if measure(one).width > page.width { image(bytes(section.svg), format: "svg", width: 100%) } else { one }
  }))
}
"""
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
    return svg.encode() if kind == "svg" else _typeset(PAGE, {"svg": set_scripts(svg), "title": title}, kind)


def render_sheet(sections: Sequence[Section], options: FigureOptions, kind: Kind, name: str) -> bytes:
    """Render sections as a sheet to print: Markdown, pages of A4 for PDF, else as `render_figure`.

    A section without panels is the heading of those after it, and stays on their page.

    >>> render_sheet([Section("x", [])], FigureOptions(), "markdown", "attnkit ffn")
    b'# attnkit ffn\\n\\n## x\\n'
    """
    title = options.title or name
    if kind == "markdown":
        return markdown_page(sections, title).encode()
    if kind != "pdf":
        return render_figure(sections, options, kind, name)
    palette = PALETTES[options.theme or "light"]
    drawn = [
        (set_scripts(svg_document(stack_sections([one], FigureOptions()), palette, title)), not one.panels)
        for one in titled(sections, options)
    ]
    parts = [{"svg": svg, "sticky": is_heading} for svg, is_heading in drawn]
    return _typeset(SHEET, {"sections": json.dumps(parts), "title": title}, kind)


def _typeset(document: str, inputs: dict[str, str], kind: Kind) -> bytes:
    """Typeset a document as PNG or PDF: its texts in fonts of the machine, else in those of the library."""
    typst: Any = import_library("typst", "figures", f"--format {kind}")
    with call_library(f"cannot draw {kind}", "typst"):
        pages = typst.compile(document.encode(), format=kind, ppi=PIXELS_PER_INCH, sys_inputs=inputs)
    return bytes(pages[0] if isinstance(pages, list) else pages)
