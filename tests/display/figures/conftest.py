"""Read figures back: the cells, the texts and the sizes of an SVG."""

import re
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

SVG = "{http://www.w3.org/2000/svg}"


class Word(NamedTuple):
    """A text of a figure with its place and its angle."""

    text: str
    x: float
    y: float
    angle: float
    anchor: str


class Picture:
    """An SVG document that was read back."""

    def __init__(self, document: str) -> None:
        self.root = ElementTree.fromstring(document)
        self.width, self.height = float(self.root.get("width", 0)), float(self.root.get("height", 0))
        self.grids: list[Any] = []  # of each grid of cells the colour of every cell, "" for none
        self.corners: list[tuple[float, float, float, float]] = []  # x, y, cell width, cell height
        self.words: list[Word] = []
        self.fills: list[tuple[str, str, float, float]] = []  # fill and data of each path, x and y of its group
        self._walk(self.root, 0.0, 0.0)

    def _walk(self, parent: Any, x: float, y: float) -> None:
        for node in parent:
            moves = [float(one) for one in re.findall(r"-?[\d.]+", node.get("transform", ""))]
            if node.tag == f"{SVG}text":
                place = moves[:2] if moves else [float(node.get("x")), float(node.get("y"))]
                angle = moves[2] if len(moves) == 3 else 0.0
                anchor = node.get("text-anchor", "start")
                self.words.append(Word("".join(node.itertext()), x + place[0], y + place[1], angle, anchor))
            elif node.tag == f"{SVG}g" and len(moves) == 4:
                self.corners.append((x + moves[0], y + moves[1] - moves[3] / 2, moves[2], moves[3]))
                self.grids.append(self._read_cells(node))
            elif node.tag == f"{SVG}path":
                self.fills.append((node.get("fill"), node.get("d"), x, y))
            elif node.tag == f"{SVG}g":
                self._walk(node, x + moves[0], y + moves[1])

    def _read_cells(self, group: Any) -> Any:
        runs = [
            (int(row), int(start), int(length), path.get("stroke"))
            for path in group
            for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path.get("d"))
        ]
        height = max((row for row, *_ in runs), default=-1) + 1
        width = max((start + length for _, start, length, _ in runs), default=0)
        cells = np.full((height, width), "", object)
        for row, start, length, color in runs:
            assert (cells[row, start : start + length] == "").all(), "two colours for one cell"
            cells[row, start : start + length] = color
        return cells

    def find(self, text: str) -> Word:
        """Return the first text that is this one."""
        return next(word for word in self.words if word.text == text)

    @property
    def texts(self) -> list[str]:
        """All texts, in order."""
        return [word.text for word in self.words]


@pytest.fixture
def read_picture() -> type[Picture]:
    """Return the reader of an SVG document."""
    return Picture
