"""Blocks as text for a terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnkit.display.bars import color_words, draw_curve
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
from attnkit.display.facts import TextTable, format_table, text_lines
from attnkit.display.generation import dim_then_bold
from attnkit.display.heatmaps import heatmap, heatmap_grid
from attnkit.display.slicing import TensorView
from attnkit.display.style import Style
from attnkit.display.summaries import Candidates, candidates_table, norms_table, statistics_table, tensor_list
from attnkit.display.tables import tensor_table
from attnkit.records import shared_labels


def draw_blocks(blocks: Sequence[Block], style: Style) -> str:
    """Draw blocks below one another; texts and notes follow without an empty line.

    >>> draw_blocks([Text("a"), Text("b"), TextTable(["n"], [["1"]]), Note("one")], Style())
    'a\\nb\\n\\nn\\n─\\n1\\none'
    """
    drawn, before = "", None
    for block in drawn_in(blocks, "terminal"):
        if text := DRAW[type(block)](block, style):
            is_next_line = isinstance(block, Note) or (isinstance(block, Text) and isinstance(before, Text))
            drawn += ("\n" if is_next_line else "\n\n") * bool(drawn) + text
            before = block
    return drawn


def draw_curves(view: TensorView, style: Style) -> str:
    """Draw each column as a line of blocks, with its first and its last number."""
    lines = []
    for name, column in zip(shared_labels(view.labels[-1]), view.array.T, strict=True):
        numbers = f"{name}  {column[0]:.{style.precision}f} → {column[-1]:.{style.precision}f}  "
        lines.append(numbers + draw_curve(column, max(style.width - len(numbers), 1), style))
    return "\n".join(lines)


DRAW: Mapping[type, Callable[[Any, Style], str]] = {
    TensorView: lambda block, style: tensor_table(block),
    Map: lambda block, style: (heatmap_grid if block.is_grid else heatmap)(block.view),
    Curves: lambda block, style: draw_curves(block.view, style),
    Overlay: lambda block, style: heatmap_grid(block.view),
    Statistics: lambda block, style: statistics_table(block.named, style),
    TensorList: lambda block, style: tensor_list(block.named, style, footer=block.hint),
    Norms: lambda block, style: norms_table(block.named, style),
    TextTable: format_table,
    Candidates: candidates_table,
    Text: lambda block, style: block.text,
    Note: lambda block, style: dim_then_bold(block.line, "", style) if block.is_dim else text_lines(block.line, style),
    Words: lambda block, style: color_words(block.words, block.values, block.most, style) if style.color else "",
    Charts: lambda block, style: "",
}
