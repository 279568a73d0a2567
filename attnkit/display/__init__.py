"""Tables, heat maps and pictures of tensors: arrays to text for a terminal; nothing here prints."""

from attnkit.display.export import export_picture
from attnkit.display.facts import property_list, text_table
from attnkit.display.generation import beams_table, choice_table, dim_then_bold, losses_table, scores_table
from attnkit.display.heatmaps import heatmap, heatmap_grid
from attnkit.display.slicing import TensorView
from attnkit.display.style import Style, detect_style
from attnkit.display.summaries import (
    candidates_table,
    compute_statistics,
    human_size,
    statistics_table,
    tensor_list,
)
from attnkit.display.tables import tensor_table

__all__ = [
    "Style",
    "TensorView",
    "beams_table",
    "candidates_table",
    "choice_table",
    "compute_statistics",
    "detect_style",
    "dim_then_bold",
    "export_picture",
    "heatmap",
    "heatmap_grid",
    "human_size",
    "losses_table",
    "property_list",
    "scores_table",
    "statistics_table",
    "tensor_list",
    "tensor_table",
    "text_table",
]
