"""Tables, heat maps and figures of tensors, as text and as pictures."""

from attnkit.display.bars import attributions_table, draw_bar, draw_curve, draw_signed_bars
from attnkit.display.blocks import (
    Bars,
    Block,
    Charts,
    Curves,
    Map,
    Norms,
    Note,
    Only,
    Overlay,
    ResultView,
    Statistics,
    TensorList,
    Text,
    Words,
)
from attnkit.display.facts import TextTable, format_table, property_list, text_lines
from attnkit.display.generation import beams_table, choice_table, dim_then_bold, losses_table, scores_table
from attnkit.display.heatmaps import heatmap, heatmap_grid
from attnkit.display.labels import plain_labels, with_plain_tokens
from attnkit.display.record_views import computed_view, tensor_view
from attnkit.display.report import ReportRecord
from attnkit.display.slicing import TensorView
from attnkit.display.style import DEFAULT_STYLE, Style, detect_style
from attnkit.display.summaries import (
    Candidates,
    candidates_table,
    compute_statistics,
    statistics_table,
    tensor_list,
)
from attnkit.display.tables import tensor_table
from attnkit.display.terminal import draw_blocks
