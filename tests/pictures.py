"""SVG that attnkit has drawn, read back: its texts, its cells, its lines; and contrast."""

import base64
import io
import re
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"


class Word(NamedTuple):
    """A text of a figure: its place, how far it is turned, where it is aligned, its colour."""

    text: str
    x: float
    y: float
    angle: float
    anchor: str
    color: str


class Picture:
    """An SVG that was read back: its texts, the colours and the rectangle of each grid of cells, its paths."""

    def __init__(self, document):
        self.root = ElementTree.fromstring(document)
        self.width, self.height = map(float, self.root.get("viewBox").split()[2:])
        self.words = [self._read_text(node) for node in self.root.iter(f"{SVG}text")]
        self.texts = [word.text for word in self.words]
        images = [*self.root.iter(f"{SVG}image")]
        self.grids = [self._read_cells(node) for node in images]
        self.places = [[float(one) for one in re.findall(r"[-\d.]+", node.get("transform"))] for node in images]
        self.strokes = {}
        for node in self.root.iter(f"{SVG}path"):
            if found := re.search(r"stroke: (#\w+)", node.get("style") or ""):
                self.strokes.setdefault(found[1], []).append(node.get("d"))

    def _read_text(self, node):
        style = dict(one.split(": ", 1) for one in node.get("style").split("; "))
        turn = re.search(r"rotate\((\S+)", node.get("transform") or "")
        place = float(node.get("x")), float(node.get("y"))
        text = "".join(node.itertext())
        return Word(text, *place, float(turn[1]) if turn else 0, style.get("text-anchor"), style.get("fill"))

    def _read_cells(self, node):
        from PIL import Image

        pixels = Image.open(io.BytesIO(base64.b64decode(node.get(LINK).partition(",")[2]))).convert("RGBA")
        colors = [["#" + bytes(one[:3]).hex() if one[3] else "" for one in row] for row in np.asarray(pixels).tolist()]
        return np.array(colors)

    def box(self, at=0):
        """The left, the top, the width and the height of a cell of a grid."""
        across, _, _, down, left, top = self.places[at]
        return left, top, across, down

    def find(self, text):
        """The first word that is this one."""
        return next(word for word in self.words if word.text == text)

    def line(self, color):
        """The longest line of a colour."""
        return max(self.strokes[color], key=lambda path: path.count("L"))

    def curve(self, color):
        """The points of the longest line of a colour."""
        return [[*map(float, one)] for one in re.findall(r"[ML] (\S+) (\S+)", self.line(color))]


def luminance(color):
    """The relative luminance of #rrggbb, by WCAG."""
    shares = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)


def contrast(a, b):
    """The contrast of two colours, by WCAG; text needs 4.5."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)
