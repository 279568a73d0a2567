"""A spreadsheet for tests: it reads an XLSX file and computes its formulas, with the functions that attnkit writes."""

import math
import re
import zipfile
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
TOKEN = re.compile(
    r"""(?P<reference>(?:'(?:[^'])+'!)?\$[A-Z]+\$\d+(?::\$[A-Z]+\$\d+)?)
      | (?P<number>\d+(?:\.\d+)?(?:E[-+]?\d+)?) | (?P<name>[A-Z]+)(?=\() | (?P<sign><=|>=|<>|[-+*/^(),<>=])""",
    re.VERBOSE,
)
COMPARE = {"<=": np.less_equal, ">=": np.greater_equal, "<": np.less, ">": np.greater, "=": np.equal}
LEVELS = ({**COMPARE}, {"+": np.add, "-": np.subtract}, {"*": np.multiply, "/": np.divide}, {"^": np.power})
FUNCTIONS = {
    "SUM": np.sum,
    "MAX": lambda *given: max(float(np.max(one)) for one in given),
    "AVERAGE": np.mean,
    "COUNT": np.size,
    "DEVSQ": lambda x: np.sum((x - np.mean(x)) ** 2),
    "SUMSQ": lambda x: np.sum(x**2),
    "MMULT": np.matmul,
    "TRANSPOSE": np.transpose,
    "EXP": np.exp,
    "SQRT": np.sqrt,
    "TANH": np.tanh,
    "SIN": np.sin,
    "COS": np.cos,
    "NORMSDIST": lambda x: math.erfc(-x / math.sqrt(2)) / 2,
    "PI": lambda: math.pi,
    "AND": lambda *given: all(bool(np.all(one)) for one in given),
    "INDEX": lambda table, row, column: table[int(row) - 1, int(column) - 1],
    "ROW": lambda place: place.row,
    "COLUMN": lambda place: place.column,
}


class Place(NamedTuple):
    sheet: str
    row: int
    column: int


class StoredCell(NamedTuple):
    """What a file has of a cell: its value, its formula, and the range that this fills."""

    value: float | str
    formula: str = ""
    span: str = ""


def place_of(text, sheet=""):
    """The place of A1 or $A$1."""
    letters, row = re.fullmatch(r"\$?([A-Z]+)\$?(\d+)", text).groups()
    column = 0
    for letter in letters:
        column = 26 * column + ord(letter) - 64
    return Place(sheet, int(row), column)


class Workbook:
    """The cells of an XLSX file; `set` changes one, and `value` computes what depends on it.

    No stored value of a cell with a formula is used.
    """

    def __init__(self, path):
        self.cells, self.filled, self._known = {}, {}, {}
        with zipfile.ZipFile(path) as archive:
            parts = {name: ElementTree.fromstring(archive.read(name)) for name in archive.namelist()}
        self.sheets = [one.get("name") for one in parts["xl/workbook.xml"].iter(f"{MAIN}sheet")]
        for number, sheet in enumerate(self.sheets, start=1):
            for cell in parts[f"xl/worksheets/sheet{number}.xml"].iter(f"{MAIN}c"):
                self._add(place_of(cell.get("r"), sheet), cell)

    def _add(self, place, cell):
        formula = cell.find(f"{MAIN}f")
        if cell.get("t") == "inlineStr":
            value = "".join(cell.itertext())
        else:
            value = math.nan if cell.get("t") == "e" else float(cell.find(f"{MAIN}v").text)
        text, span = ("", "") if formula is None else (formula.text, formula.get("ref") or "")
        self.cells[place] = StoredCell(value, text, span)
        if span:
            first, last = (place_of(one, place.sheet) for one in span.split(":"))
            for row in range(first.row, last.row + 1):
                for column in range(first.column, last.column + 1):
                    self.filled[Place(place.sheet, row, column)] = place

    def set(self, place, value):
        self.cells[place], self._known = StoredCell(value), {}

    def is_computed(self, place):
        return place in self.filled or self.cells[place].formula != ""

    def value(self, place):
        """The number of a cell."""
        if place in self.filled:
            first = self.filled[place]
            array = np.atleast_2d(self._computed(first))
            row, column = place.row - first.row, place.column - first.column
            last = place_of(self.cells[first].span.split(":")[1])
            assert array.shape == (last.row - first.row + 1, last.column - first.column + 1), self.cells[first]
            return float(array[row, column])
        return float(self._computed(place) if self.cells[place].formula else self.cells[place].value)

    def _computed(self, place):
        if place not in self._known:
            formula = self.cells[place].formula
            self._known[place] = Formula(self, place, formula).compute()
        return self._known[place]

    def block(self, title, sheet):
        """The computed numbers below a title that begins so, the last one of the sheet: rows of one matrix."""
        rows = [place.row for place, cell in self.cells.items() if place.sheet == sheet and place.column == 1
                and isinstance(cell.value, str) and cell.value.startswith(title)]  # fmt: skip
        place, found = Place(sheet, max(rows) + 1, 2), []
        while place in self.cells or not found:
            if place in self.cells and isinstance(self.cells[place].value, float):
                found.append([])
                while place in self.cells:
                    found[-1].append(self.value(place))
                    place = place._replace(column=place.column + 1)
            place = Place(sheet, place.row + 1, 2)
        return np.array(found)


class Formula:
    """A formula, computed by recursive descent."""

    def __init__(self, workbook, place, text):
        self._workbook, self._cell, self._sheet, self._at = workbook, place, place.sheet, 0
        self._tokens = [(match.lastgroup, match[0]) for match in TOKEN.finditer(text)]
        assert "".join(token for _, token in self._tokens) == text, f"not understood: {text}"

    def compute(self):
        with np.errstate(all="ignore"):
            result = self._level(0)
        assert self._at == len(self._tokens), self._tokens[self._at :]
        return result

    def _next(self):
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _take(self):
        self._at += 1
        return self._tokens[self._at - 1]

    def _level(self, number):
        if number == len(LEVELS):
            return self._operand()
        left = self._level(number + 1)
        while self._next()[1] in LEVELS[number]:
            combine = LEVELS[number][self._take()[1]]
            left = combine(left, self._level(number + 1))
        return left

    def _operand(self):
        kind, text = self._take()
        if kind == "number":
            return float(text)
        if kind == "reference":
            return self._read(text)
        if kind == "name":
            return self._call(text)
        if text == "-":
            return -self._operand()
        assert text == "(", text
        inside = self._level(0)
        assert self._take()[1] == ")"
        return inside

    def _call(self, name):
        assert self._take()[1] == "("
        if name in ("ROW", "COLUMN"):
            place = self._cell
            if self._next()[0] == "reference":
                place = place_of(self._take()[1])
            assert self._take()[1] == ")"
            return FUNCTIONS[name](place)
        given = []
        while self._next()[1] != ")":
            given.append(self._level(0))
            if self._next()[1] == ",":
                self._take()
        self._take()
        if name == "IF":
            return given[1] if given[0] else given[2]
        return FUNCTIONS[name](*given)

    def _read(self, text):
        sheet, _, area = text.rpartition("!")
        sheet = sheet.strip("'") or self._sheet
        first, _, last = area.partition(":")
        start = place_of(first, sheet)
        if not last:
            return self._workbook.value(start)
        end = place_of(last, sheet)
        return np.array(
            [[self._workbook.value(Place(sheet, row, column)) for column in range(start.column, end.column + 1)]
             for row in range(start.row, end.row + 1)]
        )  # fmt: skip
