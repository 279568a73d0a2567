"""Figures of tensors: heat maps, curves, statistics and tables.

sections    what a figure shows: tables, texts and drawings; blocks: the sections of a result
maps        heat maps; overlays: maps on a picture; charts: curves, bars, statistics and coloured words
canvas      drawing by matplotlib in CSS pixels
pages       sections as SVG, PNG and PDF; html: as HTML and Markdown
"""

from attnkit.display.figures.blocks import block_sections, text_style
from attnkit.display.figures.charts import curves_section, draw_bars, draw_words, plot_tensor, statistics_section
from attnkit.display.figures.maps import heatmap_section
from attnkit.display.figures.overlays import overlay_section
from attnkit.display.figures.pages import render_figure, render_sheet
from attnkit.display.figures.sections import (
    FigureOptions,
    Section,
    Table,
    candidates_section,
    list_section,
    tensor_section,
)
