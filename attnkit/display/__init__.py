"""Tables, heat maps and figures of tensors, as text and as pictures.

What is shown:
blocks          what a result is shown as, whatever draws it: tables, maps, curves, words, notes
record_views    the view of a record; report: a record that shows itself
slicing         an array as matrices with labels, and the part to show
labels          tokens as a reader writes them

What draws it:
terminal        blocks as text
tables          matrices of numbers; heatmaps, bars: as colours and lengths; cells: as CSV, TSV and Markdown
facts           lists of properties, and tables of text
summaries       lists of tensors, statistics, candidates
generation      choices, beams and scores of texts
notebook        records as HTML for notebooks
figures/        blocks as SVG, HTML, PNG and PDF
explore/        the page that explores traces
workbook        cells with formulas as an XLSX file
documents/      pages of help as one HTML page, and as a notebook

How it looks:
style           width, colour, encoding and decimals of a terminal
colors          colour maps and themes
numbers         numbers as text, one format for a table
text            text in columns, escaped and clipped
"""

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
from attnkit.display.report import ComparisonReport, ReportRecord
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
