"""A tensor as blocks of cells, a matrix below the other, and references to them."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnkit.display.workbook import column_name
from attnkit.model import Array

Index = tuple[int, ...]
FIRST_COLUMN = 2  # of numbers: a column of labels stands before them


class CellBlock(NamedTuple):
    """A tensor on a sheet.

    array    its numbers, in float64
    corners  the row of the first number of each matrix, in the order of the axes before the last two
    sheet    the name of the sheet where a reference to it stands on another sheet, or ""

    >>> block = CellBlock(np.zeros((2, 3, 4)), (3, 8))
    >>> block.cell((1, 0, 2)), block.row((1, 0, 2)), block.column((1, 0, 2)), block.matrix((1, 0, 2))
    ('$D$8', '$B$8:$E$8', '$D$8:$D$10', '$B$8:$E$10')
    """

    array: Array
    corners: tuple[int, ...]
    sheet: str = ""

    @property
    def rows(self) -> int:
        """The rows of a matrix; a vector is one row."""
        return self.array.shape[-2] if self.array.ndim > 1 else 1

    @property
    def columns(self) -> int:
        return self.array.shape[-1] if self.array.ndim else 1

    def reshaped(self, shape: Index) -> "CellBlock":
        """The same cells, with other axes before the last two."""
        return self._replace(array=self.array.reshape(shape))

    def cell(self, index: Index) -> str:
        """The cell of an index of a tensor that this one broadcasts to."""
        corner, row, column = self._place(index)
        return self._refer(corner + row, column)

    def row(self, index: Index) -> str:
        """The row of the cell of an index."""
        corner, row, _ = self._place(index)
        return self._refer(corner + row, 0, corner + row, self.columns - 1)

    def column(self, index: Index) -> str:
        """The column of the cell of an index."""
        corner, _, column = self._place(index)
        return self._refer(corner, column, corner + self.rows - 1, column)

    def matrix(self, index: Index) -> str:
        """The matrix of the cell of an index."""
        corner, _, _ = self._place(index)
        return self._refer(corner, 0, corner + self.rows - 1, self.columns - 1)

    def _place(self, index: Index) -> tuple[int, int, int]:
        """The first row of the matrix of an index, and its row and column there."""
        shape = self.array.shape
        own = index[len(index) - len(shape) :]
        *lead, row, column = (0, 0, *(0 if size == 1 else at for at, size in zip(own, shape, strict=True)))
        lead = lead[len(lead) - max(len(shape) - 2, 0) :]
        number = int(np.ravel_multi_index(lead, shape[:-2])) if lead else 0
        return self.corners[number], row, column

    def _refer(self, row: int, column: int, last_row: int = 0, last_column: int = 0) -> str:
        """Absolute references to a cell, or from a cell to another."""
        sheet = f"'{self.sheet}'!" if self.sheet else ""
        first = f"${column_name(FIRST_COLUMN + column)}${row}"
        if not last_row:
            return sheet + first
        return f"{sheet}{first}:${column_name(FIRST_COLUMN + last_column)}${last_row}"


def list_leads(shape: Index) -> Iterator[Index]:
    """Yield the indices of the matrices of a tensor, in order.

    >>> [*list_leads((2, 3, 4))], [*list_leads((4,))]
    ([(0,), (1,)], [()])
    """
    return itertools.product(*map(range, shape[:-2]))


def list_indices(shape: Index, kept: int) -> Iterator[Index]:
    """Yield indices along the first axes of a tensor, zeros along the last ones.

    >>> [*list_indices((2, 2), 1)]
    [(0, 0), (1, 0)]
    """
    for index in np.ndindex(shape[:kept]):
        yield (*index, *[0] * (len(shape) - kept))


def parse_reference(reference: str) -> tuple[int, int]:
    """The row and column of a reference to a cell of the same sheet.

    >>> parse_reference("$AB$12")
    (12, 28)
    """
    _, letters, row = reference.split("$")
    column = 0
    for letter in letters:
        column = 26 * column + ord(letter) - 64
    return int(row), column
