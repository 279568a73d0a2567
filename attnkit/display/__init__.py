"""Tables, heat maps and pictures of tensors: arrays in, text for a terminal out; nothing here prints."""

from attnkit.display.export import export_picture
from attnkit.display.facts import facts, facts_table
from attnkit.display.generation import beams_table, choice_table, dim_then_bold, scores_table
from attnkit.display.heatmaps import heatmap, heatmap_grid
from attnkit.display.style import Style, detect_style
from attnkit.display.summaries import candidates_table, human_size, measured, statistics_table, tensor_list
from attnkit.display.tables import tensor_table

__all__ = [
    "Style",
    "beams_table",
    "candidates_table",
    "choice_table",
    "detect_style",
    "dim_then_bold",
    "export_picture",
    "facts",
    "facts_table",
    "heatmap",
    "heatmap_grid",
    "human_size",
    "measured",
    "scores_table",
    "statistics_table",
    "tensor_list",
    "tensor_table",
]
