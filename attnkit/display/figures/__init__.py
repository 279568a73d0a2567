"""Figures of tensors: heat maps, curves, statistics and typeset tables, as SVG, HTML, PNG and PDF."""

from attnkit.display.figures.colors import COLOR_MAPS
from attnkit.display.figures.curves import curves_section
from attnkit.display.figures.maps import heatmap_section
from attnkit.display.figures.options import THEMES, FigureOptions
from attnkit.display.figures.render import KINDS, Kind, render_figure, render_sheet
from attnkit.display.figures.shapes import Preformatted, Section, Table
from attnkit.display.figures.statistics import statistics_section
from attnkit.display.figures.tensors import candidates_section, list_section, tensor_section
from attnkit.display.figures.words import draw_words

__all__ = [
    "COLOR_MAPS",
    "KINDS",
    "THEMES",
    "FigureOptions",
    "Kind",
    "Preformatted",
    "Section",
    "Table",
    "candidates_section",
    "curves_section",
    "draw_words",
    "heatmap_section",
    "list_section",
    "render_figure",
    "render_sheet",
    "statistics_section",
    "tensor_section",
]
