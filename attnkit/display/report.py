"""A record that shows itself: the report of a comparison, the facts of a model."""

from dataclasses import dataclass

from attnkit.display.blocks import Block, ResultView
from attnkit.display.cells import Cells
from attnkit.display.style import DEFAULT_STYLE, Style
from attnkit.display.terminal import draw_blocks
from attnkit.records import Record


@dataclass(frozen=True, repr=False)
class ReportRecord(Record):
    """A record with the blocks that show it, in Python's console and notebooks too."""

    def blocks(self, style: Style) -> list[Block]:
        """The blocks that show the record."""
        raise NotImplementedError

    def cells(self) -> Cells | None:
        """The table for CSV, TSV and Markdown; None for a picture."""
        raise NotImplementedError

    def view(self, style: Style) -> ResultView:
        """The view of the record: its blocks and its table."""
        return ResultView(self.blocks(style), self.cells)

    def __repr__(self) -> str:
        return draw_blocks(self.blocks(DEFAULT_STYLE), DEFAULT_STYLE)

    def _repr_html_(self) -> str:
        from attnkit.display.notebook import blocks_html

        return blocks_html(self.blocks(DEFAULT_STYLE))


@dataclass(frozen=True, repr=False)
class ComparisonReport(ReportRecord):
    """The report of a comparison, whose tensor `same` is one boolean."""

    @property
    def same(self) -> bool:
        """Whether both sides are the same."""
        return bool(self["same"])
