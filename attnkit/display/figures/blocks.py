"""Blocks as sections of a figure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.display.blocks import (
    Block,
    Charts,
    Curves,
    Map,
    Norms,
    Note,
    Overlay,
    Statistics,
    TensorList,
    Text,
    Words,
    drawn_in,
)
from attnkit.display.facts import TextTable
from attnkit.display.figures.charts import curves_section, draw_bars, draw_words, statistics_section
from attnkit.display.figures.maps import heatmap_section
from attnkit.display.figures.overlays import overlay_section
from attnkit.display.figures.sections import (
    PRECISION,
    FigureOptions,
    Section,
    Table,
    candidates_section,
    list_section,
    tensor_section,
)
from attnkit.display.slicing import TensorView
from attnkit.display.style import Style
from attnkit.display.summaries import Candidates, norms_table

TEXT_WIDTH = 120  # characters of a line of text in a figure


def block_sections(blocks: Sequence[Block], options: FigureOptions) -> list[Section]:
    """Make a section of each block; join texts, and words, that follow one another.

    >>> block_sections([Text("a"), Text("b"), TextTable(["n"], [["1"]], (0,)), Note("one")], FigureOptions())[0].panels
    ['a\\nb']
    """
    sections: list[Section] = []
    before: Block | None = None
    for block in drawn_in(blocks, "figure"):
        if isinstance(block, Note):
            sections = sections or [Section("", [])]
            sections[-1] = sections[-1]._replace(notes=[*sections[-1].notes, block.line])
        elif isinstance(block, Text) and isinstance(before, Text):
            sections[-1] = sections[-1]._replace(panels=[f"{sections[-1].panels[0]}\n{text_panel(block.text)}"])
        elif isinstance(block, Words) and isinstance(before, Words):
            sections[-1] = sections[-1]._replace(panels=[*sections[-1].panels, draw_words(*block)])
        else:
            sections.append(SECTION[type(block)](block, options))
        before = block
    return sections


def text_style(options: FigureOptions, plain_tokens: bool) -> Style:
    """The style of the texts in a figure."""
    style = Style(TEXT_WIDTH, plain_tokens=plain_tokens)
    return style if options.precision is None else style._replace(precision=options.precision)


def text_panel(text: str) -> str:
    return text.rstrip("\n").expandtabs()


def table_section(table: TextTable) -> Section:
    panels = [Table([table.heads, *table.rows], table.left)] if table.heads else []
    return Section(table.title, panels, notes=[table.footer] if table.footer else [])


def map_section(view: TensorView, options: FigureOptions) -> Section:
    """A section of heat maps, whose colours are even about 0 where the view says so."""
    if not view.is_signed:
        return heatmap_section(view, options)
    peak = float(np.abs(view.array[np.isfinite(view.array)]).max(initial=0)) or 1.0
    looks = options._replace(range=options.range or (-peak, peak), colors=options.colors or "bwr")
    return heatmap_section(view, looks)


SECTION: Mapping[type, Callable[[Any, FigureOptions], Section]] = {
    TensorView: tensor_section,
    Map: lambda block, options: map_section(block.view, options),
    Curves: lambda block, options: curves_section(block.view, options),
    Overlay: lambda block, options: overlay_section(block.view, block.picture, block.box, options, block.chosen),
    Statistics: lambda block, options: statistics_section(block.named, options),
    TensorList: lambda block, options: list_section(block.named),
    Norms: lambda block, options: Section("", [text_panel(norms_table(block.named, text_style(options, True)))]),
    TextTable: lambda block, options: table_section(block),
    Candidates: lambda block, options: candidates_section(
        block, PRECISION if options.precision is None else options.precision
    ),
    Text: lambda block, options: Section("", [text_panel(block.text)]),
    Words: lambda block, options: Section("", [draw_words(*block)]),
    Charts: lambda block, options: Section(block.title, [draw_bars(*chart) for chart in block.charts]),
}
