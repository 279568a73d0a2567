"""Blocks: what a result is shown as, whatever draws them.

Beside those of this file a block is a TensorView (tables of numbers), a TextTable or Candidates.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnkit.display.facts import TextTable
from attnkit.display.slicing import TensorView
from attnkit.display.summaries import Candidates
from attnkit.records import Array

if TYPE_CHECKING:
    from attnkit.display.cells import Cells


class Map(NamedTuple):
    """A tensor as heat maps, in a terminal with many heads side by side as a grid."""

    view: TensorView
    is_grid: bool = False


class Curves(NamedTuple):
    """A tensor as curves, in a terminal a line each."""

    view: TensorView


class Overlay(NamedTuple):
    """Maps (..., row, column) over the patches of a picture.

    picture  (height, width, 3) uint8
    box      left, top, right and bottom edge of the patches, as shares of the picture
    chosen   the token of another axis that the maps are taken at, "" for none
    """

    view: TensorView
    picture: Array
    box: Array
    chosen: str = ""


class Statistics(NamedTuple):
    """Minimum, maximum, mean, deviation and special values of tensors."""

    named: Mapping[str, Array]


class TensorList(NamedTuple):
    """Name, shape, dtype and bytes of tensors; with a hint extremes instead of bytes."""

    named: Mapping[str, tuple[Array, Sequence[str]]]
    hint: str = ""


class Norms(NamedTuple):
    """The Euclidean norms of tensors, with bars."""

    named: Mapping[str, Array]


class Text(NamedTuple):
    """Text that is drawn already, its control characters escaped."""

    text: str


class Note(NamedTuple):
    """A line about the block before it."""

    line: str
    is_dim: bool = False


class Words(NamedTuple):
    """Words on the colours of their numbers; `most` is the number in full colour."""

    words: Sequence[str]
    values: Sequence[float]
    most: float


class Bars(NamedTuple):
    """A chart of bars: a number for each label, on the axis `name`."""

    title: str
    name: str
    labels: Sequence[str]
    numbers: Sequence[float]


class Charts(NamedTuple):
    """Charts side by side."""

    title: str
    charts: Sequence[Bars]


class Only(NamedTuple):
    """A block that one kind of writer draws, where the other has a better one."""

    medium: Literal["terminal", "figure"]
    block: "Block"


Block = (
    TensorView | Map | Curves | Overlay | Statistics | TensorList | Norms | TextTable | Candidates | Text | Note | Words
    | Charts | Only
)  # fmt: skip


class ResultView(NamedTuple):
    """What is shown of a result.

    cells  makes its one table for CSV, TSV and Markdown, or None for a picture; None: the tensor that was computed
    """

    blocks: Sequence[Block]
    cells: "Callable[[], Cells | None] | None" = None

    @property
    def is_text(self) -> bool:
        """Whether it is one text, without an empty line before the next result."""
        return len(self.blocks) == 1 and isinstance(self.blocks[0], Text)


def drawn_in(blocks: Sequence[Block], medium: str) -> list[Block]:
    """The blocks that a kind of writer draws.

    >>> drawn_in([Text("a"), Only("figure", Text("b")), Only("terminal", Text("c"))], "terminal")
    [Text(text='a'), Text(text='c')]
    """
    drawn: list[Block] = []
    for block in blocks:
        if isinstance(block, Only):
            drawn += drawn_in([block.block], medium) if block.medium == medium else []
        else:
            drawn.append(block)
    return drawn
