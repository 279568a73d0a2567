"""Stack sections into one drawing: titles, panels side by side as far as the width goes, notes."""

import math
from collections.abc import Sequence

from attnkit.display.figures.fonts import text_width, visible, wrap_text
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.shapes import (
    LINE,
    SMALL_SIZE,
    TAIL_GAP,
    TEXT_SIZE,
    TITLE_SIZE,
    Drawing,
    Panel,
    Placed,
    Preformatted,
    Section,
    Shape,
    Table,
    Text,
)
from attnkit.display.figures.tables import draw_preformatted, draw_table

WIDTH = 1000  # of panels side by side; a wider panel is alone
MIN_TEXT_WIDTH = 560  # of titles and notes above and below a narrow panel
MARGIN = 16
PANEL_GAP = 28
SECTION_GAP = 26
HEADING_GAP = 10
BOLD = 1.1  # width of bold text, relative to other text


def draw_panel(panel: Panel) -> Drawing:
    """Return a panel as a drawing."""
    if isinstance(panel, Table):
        return draw_table(panel)
    return draw_preformatted(panel) if isinstance(panel, Preformatted) else panel


def stack_sections(sections: Sequence[Section], options: FigureOptions) -> Drawing:
    """Return the sections below one another, with a margin; a requested title is above all of them.

    >>> drawing = stack_sections([Section("x", [Table([["0"], ["1.0"]])])], FigureOptions())
    >>> drawing.shapes[0].drawing.shapes[0].text
    'x'
    """
    sections = titled(sections, options)
    drawings = [_draw_section(section) for section in sections]
    shapes: list[Shape] = []
    y = float(MARGIN)
    for drawing in drawings:
        shapes.append(Placed(MARGIN, y, drawing))
        y += drawing.height + SECTION_GAP
    width = max((drawing.width for drawing in drawings), default=0) + 2 * MARGIN
    return Drawing(math.ceil(width), math.ceil(y - SECTION_GAP + MARGIN), shapes)


def titled(sections: Sequence[Section], options: FigureOptions) -> list[Section]:
    """Return the sections with the requested title: in place of that of a single one, else above all.

    >>> titled([Section("x", [], "a + b")], FigureOptions(title="Sum"))
    [Section(title='Sum', panels=[], formula='', description='', notes=())]
    """
    if not options.title:
        return list(sections)
    if len(sections) == 1:
        return [sections[0]._replace(title=options.title, formula="", description="")]
    return [Section(options.title, []), *sections]


def _draw_section(section: Section) -> Drawing:
    """Draw one section: title and formula, description, panels, notes."""
    panels, width, height = _flow([draw_panel(panel) for panel in section.panels])
    room = max(width, MIN_TEXT_WIDTH)
    texts, y = _heading(section, room)
    if panels:
        y += HEADING_GAP if y else 0
        panels = [placed._replace(y=placed.y + y) for placed in panels]
        y += height
    notes, y = _lines(section.notes, y, room, SMALL_SIZE, "muted")
    widest = max((_right_end(text) for text in [*texts, *notes]), default=0)
    return Drawing(max(width, widest), y + SMALL_SIZE / 2, [*texts, *panels, *notes])


def _heading(section: Section, room: float) -> tuple[list[Text], float]:
    """Return the title, the formula beside it or below it, and the description, with the height of all."""
    if not section.title:
        return [], 0
    titles, y = _lines([section.title], 0, room / BOLD, TITLE_SIZE, "ink")
    titles = [text._replace(is_bold=True) for text in titles]
    formula = f"= {visible(section.formula)}" if section.formula else ""
    if formula and len(titles) == 1 and _right_end(titles[0]._replace(tail=formula)) <= room:
        titles, formula = [titles[0]._replace(tail=formula)], ""
    formulas, y = _lines([formula] if formula else [], y, room, TEXT_SIZE, "ink")
    descriptions, y = _lines([section.description] if section.description else [], y, room, TEXT_SIZE, "muted")
    return [*titles, *formulas, *descriptions], y


def _lines(texts: Sequence[str], y: float, room: float, size: float, color: str) -> tuple[list[Text], float]:
    """Return texts, broken into lines of this width, below y, and the height at which they end."""
    lines = [line for text in texts for line in wrap_text(visible(text), room, size)]
    step = size * LINE
    return [Text(0, y + at * step + size, line, size, color=color) for at, line in enumerate(lines)], (
        y + len(lines) * step
    )


def _right_end(text: Text) -> float:
    """Return where a text ends."""
    tail = TAIL_GAP + text_width(text.tail, TEXT_SIZE) if text.tail else 0
    return text.x + text_width(text.text, text.size) * (BOLD if text.is_bold else 1) + tail


def _flow(drawings: Sequence[Drawing]) -> tuple[list[Placed], float, float]:
    """Place drawings left to right, in as many rows as the width requires; return them and the size of all."""
    placed: list[Placed] = []
    x = y = row_height = width = 0.0
    for drawing in drawings:
        if x and x + drawing.width > WIDTH:
            x, y, row_height = 0.0, y + row_height + PANEL_GAP / 2, 0.0
        placed.append(Placed(x, y, drawing))
        width, row_height = max(width, x + drawing.width), max(row_height, drawing.height)
        x += drawing.width + PANEL_GAP
    return placed, width, y + row_height
