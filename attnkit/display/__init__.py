"""Tables, heat maps and figures of tensors, as text and as pictures."""

from attnkit.display.bars import attributions_table, color_words, draw_bar, draw_curve, draw_signed_bars
from attnkit.display.facts import TextTable, format_table, property_list, text_lines, text_table
from attnkit.display.generation import beams_table, choice_table, dim_then_bold, losses_table, scores_table
from attnkit.display.heatmaps import heatmap, heatmap_grid
from attnkit.display.labels import plain_labels
from attnkit.display.slicing import TensorView
from attnkit.display.style import DEFAULT_STYLE, Style, detect_style
from attnkit.display.summaries import (
    Candidates,
    candidates_table,
    compute_statistics,
    human_size,
    norms_table,
    statistics_table,
    tensor_list,
)
from attnkit.display.tables import tensor_table

__all__ = [
    "DEFAULT_STYLE",
    "Candidates",
    "Style",
    "TensorView",
    "TextTable",
    "attributions_table",
    "beams_table",
    "candidates_table",
    "choice_table",
    "color_words",
    "compute_statistics",
    "detect_style",
    "dim_then_bold",
    "draw_bar",
    "draw_curve",
    "draw_signed_bars",
    "format_table",
    "heatmap",
    "heatmap_grid",
    "human_size",
    "losses_table",
    "norms_table",
    "plain_labels",
    "property_list",
    "scores_table",
    "statistics_table",
    "tensor_list",
    "tensor_table",
    "text_lines",
    "text_table",
]
