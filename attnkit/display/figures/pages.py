"""Sections laid out below one another or on pages of A4, and the files of them."""

import io
import math
import textwrap
from collections.abc import Sequence

from attnkit.display.colors import PALETTES
from attnkit.display.figures.canvas import (
    INCH,
    MONO,
    NO_METADATA,
    SMALL_SIZE,
    TEXT_SIZE,
    TITLE_SIZE,
    Canvas,
    Drawing,
    drawing_style,
    make_figure,
    save_drawing,
    text_width,
)
from attnkit.display.figures.html import html_page, markdown_page
from attnkit.display.figures.sections import FigureOptions, Panel, Section, Table
from attnkit.errors import escaped

LINE = 1.4  # height of a line of text, in its size
CHARACTER = 0.53  # width of one, in its size, to break lines by
MARGIN, SECTION_GAP, PANEL_GAP, HEADING_GAP, NOTE_GAP, FORMULA_GAP = 16, 26, 28, 12, 4, 8
WIDTH = 1000  # of panels side by side; a wider panel is alone
MIN_TEXT_WIDTH = 560  # of titles and notes above and below a narrow panel
ROW, COLUMN_GAP = 19, 16  # of a table
MAX_CHARACTERS = 130  # in a line of preformatted text
A4, A4_MARGIN = (8.27 * INCH, 11.69 * INCH), 57


def render_figure(sections: Sequence[Section], options: FigureOptions, kind: str, name: str) -> bytes:
    """Write sections as SVG, PNG, PDF or HTML.

    name  the title of the file, unless the options have one

    Raises UsageError if matplotlib is missing, which a page of HTML without a drawing does not need.

    >>> render_figure([Section("x", [])], FigureOptions(), "svg", "attnkit show")[:4]
    b'<svg'
    """
    title, palette, sections = options.title or name, PALETTES[options.theme or "light"], titled(sections, options)
    if kind == "html":
        return html_page(sections, options, title).encode()
    return save_drawing(stack_sections(sections), palette, kind, escaped(title))


def render_sheet(sections: Sequence[Section], options: FigureOptions, kind: str, name: str) -> bytes:
    """Write sections as a sheet to print: Markdown, PDF in pages of A4, or any figure.

    >>> render_sheet([Section("x", [])], FigureOptions(), "markdown", "attnkit ffn")
    b'# attnkit ffn\\n\\n## x\\n'
    """
    title, palette, data = options.title or name, PALETTES[options.theme or "light"], io.BytesIO()
    if kind == "markdown":
        return markdown_page(sections, title).encode()
    if kind != "pdf":
        return render_figure(sections, options, kind, name)
    pages = paginate(titled(sections, options))
    from matplotlib.backends.backend_pdf import PdfPages

    with drawing_style(palette), PdfPages(data, metadata=NO_METADATA["pdf"] | {"Title": escaped(title)}) as file:
        for number, page in enumerate(pages, start=1):
            figure = make_figure(*A4, palette)
            for y, scale, drawing in page:
                with drawing_style(palette, scale):
                    drawing.draw(Canvas(figure, palette, A4_MARGIN, y, scale))
            foot = (A4[0] / 2, A4[1] - A4_MARGIN / 2, f"{number} / {len(pages)}")
            Canvas(figure, palette).text(*foot, SMALL_SIZE, "muted", ha="center")
            file.savefig(figure)
    return data.getvalue()


def titled(sections: Sequence[Section], options: FigureOptions) -> list[Section]:
    """Put the requested title in place of the title of one section, or above several.

    >>> titled([Section("x", [], "a + b")], FigureOptions(title="Sum"))
    [Section(title='Sum', panels=[], formula='', description='', notes=())]
    """
    if not options.title:
        return list(sections)
    if len(sections) == 1:
        return [sections[0]._replace(title=options.title, formula="", description="")]
    return [Section(options.title, []), *sections]


def stack_sections(sections: Sequence[Section]) -> Drawing:
    drawings = [draw_section(section) for section in sections]

    def draw(canvas: Canvas) -> None:
        y = float(MARGIN)
        for one in drawings:
            one.draw(canvas.at(MARGIN, y))
            y += one.height + SECTION_GAP

    width = max((one.width for one in drawings), default=0) + 2 * MARGIN
    height = sum(one.height for one in drawings) + max(len(drawings) - 1, 0) * SECTION_GAP + 2 * MARGIN
    return Drawing(math.ceil(width), math.ceil(height), draw)


def paginate(sections: Sequence[Section]) -> list[list[tuple[float, float, Drawing]]]:
    """Place sections on pages of A4: a list of (y, scale, drawing) for each page.

    A section that is too large is drawn smaller. A section without panels is a heading, which stays on the page of
    the next section.
    """
    width, height = (size - 2 * A4_MARGIN for size in A4)
    pages: list[list[tuple[float, float, Drawing]]] = [[]]
    together: list[tuple[float, Drawing]] = []
    y = 0.0
    for at, section in enumerate(sections, start=1):
        drawing = draw_section(section)
        together.append((min(1.0, width / max(drawing.width, 1), (height - 3 * ROW) / drawing.height), drawing))
        if not section.panels and at < len(sections):
            continue
        extent = sum(scale * one.height + SECTION_GAP for scale, one in together)
        if y and y + extent - SECTION_GAP > height:
            pages.append([])
            y = 0.0
        for scale, one in together:
            pages[-1].append((A4_MARGIN + y, scale, one))
            y += scale * one.height + SECTION_GAP
        together = []
    return pages


def draw_section(section: Section) -> Drawing:
    """Draw a section: its title and formula, its description, its panels, its notes."""
    placed: list[tuple[float, float, Drawing]] = []
    x = y = bottom = width = 0.0
    for panel in map(draw_panel, section.panels):
        if x and x + panel.width > WIDTH:
            x, y = 0.0, bottom + PANEL_GAP / 2
        placed.append((x, y, panel))
        width, bottom = max(width, x + panel.width), max(bottom, y + panel.height)
        x += panel.width + PANEL_GAP
    room = max(width, MIN_TEXT_WIDTH)

    def lines(text: str, size: int, color: str = "muted", weight: str = "normal") -> list[tuple[str, int, str, str]]:
        pieces = textwrap.wrap(escaped(text), int(room / size / CHARACTER), break_long_words=False)
        return [(line, size, color, weight) for line in pieces]

    title = lines(section.title, TITLE_SIZE, "ink", "bold")
    formula = escaped(f"= {section.formula}") if title and section.formula else ""
    beside = text_width(title[0][0], TITLE_SIZE, "bold") + FORMULA_GAP if title else 0.0
    end = beside + text_width(formula, TEXT_SIZE) if formula and len(title) == 1 else math.inf
    above = [*title, *(lines(formula, TEXT_SIZE, "ink") if end > room else []), *lines(section.description, TEXT_SIZE)]
    below = [line for note in section.notes for line in lines(note, SMALL_SIZE)]
    heights = [sum(size * LINE for _, size, *_ in part) for part in (above, below)]
    top = heights[0] + (HEADING_GAP if above and placed else 0)
    bottom += NOTE_GAP if below and placed else 0
    widest = max((text_width(text, size, weight) for text, size, _, weight in above + below), default=0.0)

    def draw(canvas: Canvas) -> None:
        for y, part in ((0.0, above), (top + bottom, below)):
            for text, size, color, weight in part:
                canvas.text(0, y + size, text, size, color, weight=weight)
                y += size * LINE
        if end <= room:
            canvas.text(beside, TITLE_SIZE, formula)
        for x, y, one in placed:
            one.draw(canvas.at(x, top + y))

    return Drawing(max(width, widest, end if end <= room else 0), top + bottom + heights[1] + SMALL_SIZE / 2, draw)


def draw_panel(panel: Panel) -> Drawing:
    """Draw a panel: a table, a drawing, or lines of text in a monospaced font."""
    if isinstance(panel, Table):
        return _draw_table(panel)
    if isinstance(panel, Drawing):
        return panel
    wrapper = textwrap.TextWrapper(MAX_CHARACTERS, drop_whitespace=False, break_on_hyphens=False)
    lines = [part for line in panel.split("\n") for part in wrapper.wrap(escaped(line)) or [""]]
    width = max((text_width(line, TEXT_SIZE, family=MONO) for line in lines), default=1)

    def draw(canvas: Canvas) -> None:
        for at, line in enumerate(lines):
            canvas.text(0, TEXT_SIZE * (at * LINE + 1), line, family="monospace")

    return Drawing(width, len(lines) * TEXT_SIZE * LINE, draw)


def _draw_table(table: Table) -> Drawing:
    rows = [[escaped(text) for text in row] for row in table.rows]
    sizes = [max(text_width(text, TEXT_SIZE) for text in column) for column in zip(*rows, strict=True)]
    starts = [sum(sizes[:at]) + COLUMN_GAP * at for at in range(len(sizes))]
    top = ROW if table.title else 0
    width = max(starts[-1] + sizes[-1], text_width(escaped(table.title), TEXT_SIZE, "bold"))

    def draw(canvas: Canvas) -> None:
        canvas.text(0, TEXT_SIZE, table.title, weight="bold")
        for at, row in enumerate(rows):
            baseline = top + ROW * (at + 0.7) + (4 if at else 0)
            for column, (text, start, size) in enumerate(zip(row, starts, sizes, strict=True)):
                x, side = (start, "left") if column in table.left else (start + size, "right")
                canvas.text(x, baseline, text, color="ink" if at else "muted", ha=side)
        canvas.rectangle(0, top + ROW, width, 1, "grid")

    return Drawing(width, top + ROW * len(rows) + 6, draw)
