"""The sheets of a pipeline: the graph of each stage as blocks of cells."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attnkit.display.workbook import Look, SheetCell, Worksheet, sheet_name
from attnkit.errors import DataError, UsageError
from attnkit.interpret.spreadsheet.blocks import (
    FIRST_COLUMN,
    CellBlock,
    Index,
    list_indices,
    list_leads,
    parse_reference,
)
from attnkit.interpret.spreadsheet.formulas import FORMULAS, CellFormula, FormulaOperands
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes import steps, tools
from attnkit.interpret.stage_nodes.stage_graph import ArrayOrigin, StageGraph
from attnkit.model import Array
from attnkit.model.dtypes import is_float
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.parameters import parameter_axes
from attnkit.records import Labels, Record, Tensor, row_labels

MOST_NUMBERS = 100_000  # of a workbook: with more, spreadsheets open it slowly
NODES = {**tools.NODES, **steps.NODES}
KINDS = {**tools.KINDS, **steps.KINDS}
PARAMETERS = {"norm along": ("gamma", "beta"), "words": ("table",)}  # kind -> those that no option names
SHOWN = ("show", "peek")  # tools that compute nothing
WITHOUT_FORMULAS = "values: this computation has no formulas here"


class ShownCall(NamedTuple):
    """A call of a stage, with what its sheet shows.

    command        its command line
    intermediates  the record of the tool with its intermediates, of which the axes and formulas are shown
    """

    call: StageCall
    command: str
    intermediates: Record | None = None

    def describe(self, name: str) -> Tensor | None:
        """A tensor of its result, or else an intermediate, by name."""
        records = [one for one in (self.call.result, self.intermediates) if isinstance(one, Record) and name in one]
        return records[0].tensor(name) if records else None


def make_sheets(calls: Sequence[ShownCall]) -> list[Worksheet]:
    """The sheets of the stages of a pipeline as they ran.

    DataError if they hold more than MOST_NUMBERS numbers.
    """
    made, placed, left = list[Worksheet](), dict[int, dict[str, CellBlock]](), MOST_NUMBERS
    for shown in calls:
        call = shown.call
        if call.tool in SHOWN or not isinstance(call.result, Record):
            continue
        sheet = StageSheet(shown, dict(placed.get(call.part, {})), left)
        sheet.write()
        left = sheet.left
        placed[call.part] = {name: one for name, one in sheet.placed.items() if name in call.result}
        made.append(Worksheet(sheet.name, sheet.cells))
    return made


@dataclass
class StageSheet:
    """The sheet of one stage, written block by block.

    placed  the tensors of the record before the stage; after it those that it returns too
    left    how many numbers the workbook may have from here on
    """

    shown: ShownCall
    placed: dict[str, CellBlock]
    left: int
    cells: dict[tuple[int, int], SheetCell] = field(default_factory=dict)
    row: int = 1

    @property
    def name(self) -> str:
        call = self.shown.call
        return sheet_name(f"{call.number} {call.tool}" + (f" part {call.part}" if call.part else ""))

    def write(self) -> None:
        call = self.shown.call
        self.put_line(self.shown.command, "title")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the pipeline itself has warned
            graph = find_graph(call)
            sites = {} if graph is None else GraphBlocks(self, graph).write()
        passed, results = call.passed(), {} if graph is None else graph.results
        for name in [one for one in call.result if one not in passed]:
            tensor = call.result.tensor(name)
            site = results.get(name) or find_same(tensor.array, sites)
            note = WITHOUT_FORMULAS if is_float(tensor.array.dtype) else ""
            self.placed[name] = sites[site] if site else self.put_tensor(name, tensor.array, tensor, note)

    def put_line(self, text: str, look: Look) -> None:
        self.cells[self.row, 1] = SheetCell(text, look)
        self.row += 1

    def put_tensor(
        self,
        name: str,
        array: Array,
        described: Tensor | None = None,
        note: str = "",
        formula_of: Callable[[CellBlock], CellFormula | None] = lambda own: None,
    ) -> CellBlock:
        """Write a tensor: its name, its labels, and its numbers or formulas.

        described   what it is in a record, with axes, labels and a formula in words
        formula_of  from its own cells
        """
        self.left -= array.size
        if self.left < 0:
            hint = "fewer words, a smaller --dim or fewer stages"
            raise DataError(f"the workbook would have more than {MOST_NUMBERS:,} numbers; {hint}")
        is_alike = described is not None and described.array.ndim == array.ndim
        axes = described.axis_names() if described is not None and is_alike else ("",) * array.ndim
        labels: Mapping[str, Labels] = described.labels if described is not None and is_alike else {}
        sizes = ", ".join(f"{axis} {size}".strip() for axis, size in zip(axes, array.shape, strict=True))
        words = f"   = {described.formula}" if described is not None and described.formula else ""
        self.row += 1
        self.put_line(f"{name} ({sizes}){words}", "title")
        if note:
            self.put_line(note, "note")
        corners = [self.put_labels(array.shape, axes, labels, lead) for lead in list_leads(array.shape)]
        block = CellBlock(array.astype(np.float64) if is_float(array.dtype) else array, tuple(corners))
        self.fill(block, formula_of(block))
        return block._replace(sheet=self.name)

    def put_labels(self, shape: Index, axes: Sequence[str], labels: Mapping[str, Labels], lead: Index) -> int:
        """Write the labels of a matrix; return the row of its first number."""
        if lead:
            self.put_line(", ".join(f"{axis} {at}".strip() for axis, at in zip(axes, lead, strict=False)), "label")
        for column, word in enumerate(axis_words(shape, axes, labels, lead, -1)):
            self.cells[self.row, FIRST_COLUMN + column] = SheetCell(word, "label")
        first = self.row + 1
        rows = axis_words(shape, axes, labels, lead, -2)
        for row, word in enumerate(rows):
            self.cells[first + row, 1] = SheetCell(word, "label")
        self.row = first + max(len(rows), 1)
        return first

    def fill(self, block: CellBlock, formula: CellFormula | None) -> None:
        """Write the numbers of a tensor, and their formulas."""
        array = block.array
        look: Look = "number" if formula else "given"
        for index in np.ndindex(array.shape):
            self.cells[parse_reference(block.cell(index))] = SheetCell(float(array[index]), look)
        if formula is None or not array.size:
            return
        kept = max(array.ndim - {"cell": 0, "row": 1, "matrix": 2}[formula.fills], 0)
        for index in list_indices(array.shape, kept):
            span = {"cell": "", "row": block.row(index), "matrix": block.matrix(index)}[formula.fills]
            place = parse_reference(block.cell(index))
            self.cells[place] = self.cells[place]._replace(formula=formula.text(index), span=span.replace("$", ""))


def axis_words(shape: Index, axes: Sequence[str], labels: Mapping[str, Labels], lead: Index, at: int) -> Sequence[str]:
    """The labels of the rows (-2) or columns (-1) of a matrix, or their numbers.

    >>> axis_words((2, 3), ("token", "model"), {"token": ["a", "b"]}, (), -2), axis_words((3,), ("x",), {}, (), -2)
    (['a', 'b'], [])
    """
    if len(shape) < -at:
        return []
    words = row_labels(labels.get(axes[at]), lead[0] if axes[0] == "batch" and lead else 0)
    return words if len(words) == shape[at] else [*map(str, range(shape[at]))]


def find_same(array: Array, sites: Mapping[str, CellBlock]) -> str:
    """The site that has an array, as of token ids; "" for none."""
    return next((site for site, block in sites.items() if np.array_equal(block.array, array)), "")


def find_graph(call: StageCall) -> StageGraph | None:
    """The nodes of a stage; None if it has none."""
    try:
        return NODES[call.tool](call) if call.tool in NODES else None
    except UsageError:  # as of options that have no gradient
        return None


@dataclass
class GraphBlocks:
    """The sites of the graph of a stage as blocks of its sheet."""

    sheet: StageSheet
    graph: StageGraph
    blocks: dict[str, CellBlock] = field(default_factory=dict)
    parameters: dict[tuple[str, str], CellBlock | None] = field(default_factory=dict)

    def write(self) -> dict[str, CellBlock]:
        """Write what the stage reads, then its nodes; return the block of each site."""
        for site, origin in self.graph.origins.items():
            self.blocks[site] = self.read(site, origin)
        graph = Graph(self.graph.core, Inputs(), self.graph.nodes, KINDS)
        known, memo = {site: block.array for site, block in self.blocks.items()}, dict[str, Array]()
        names = self.graph.names | {site: name for name, site in self.graph.results.items() if site}
        for site, node in self.graph.nodes.items():
            if node.kind == "parameter":
                self.blocks[site] = self.require_parameter(node, node.options["name"])
                continue
            for name in node.options.get("names", PARAMETERS.get(node.kind, ())):
                self.find_parameter(node, name)
            self.blocks[site] = self.put_node(node, names.get(site, site), graph, known, memo)
        return self.blocks

    def put_node(
        self, node: Node, name: str, graph: Graph, known: Mapping[str, Array], memo: dict[str, Array]
    ) -> CellBlock:
        """Write the tensor of a node with its formula, or else its values.

        The values of a formula are those of the graph in float64, so that a spreadsheet computes the same.
        """
        described, formula_of = self.sheet.shown.describe(name), FORMULAS.get(node.kind)
        array = graph.evaluate(node.site, known, memo=memo)
        kinds = [self.graph.nodes[one].kind if one in self.graph.nodes else "" for one in node.inputs]
        inputs = [self.local(self.blocks[one]) for one in node.inputs]

        def formula(own: CellBlock) -> CellFormula | None:
            return formula_of and formula_of(
                FormulaOperands(node, inputs, kinds, lambda name: self.find_parameter(node, name), own)
            )

        has_formula = formula(CellBlock(array, (1,) * len([*list_leads(array.shape)]))) is not None
        if not has_formula and described is not None:  # as the pipeline computed it
            array = memo[node.site] = described.array.reshape(array.shape)
        return self.sheet.put_tensor(name, array, described, "" if has_formula else WITHOUT_FORMULAS, formula)

    def read(self, site: str, origin: ArrayOrigin) -> CellBlock:
        """The block of what the stage reads: of an earlier sheet, or written here."""
        placed = self.sheet.placed.get(origin.name) if not origin.part else None
        if (
            placed is not None
            and placed.array.shape[-2:] == origin.array.shape[-2:]
            and placed.array.size == origin.array.size
        ):
            return placed.reshaped(origin.array.shape)
        before = self.sheet.shown.call.before
        described = before.tensor(origin.name) if origin.name in before else None
        return self.sheet.put_tensor(origin.name or site, origin.array, described)

    def find_parameter(self, node: Node, name: str) -> CellBlock | None:
        """The block of a parameter of a layer, which the first call writes.

        None if the layer has no such parameter.
        """
        key = (node.layer, name)
        if key not in self.parameters:
            array = self.graph.core.params.get(node.layer, {}).get(name)
            self.parameters[key] = None if array is None else self.put_parameter(name, np.asarray(array))
        found = self.parameters[key]
        return None if found is None else self.local(found)

    def require_parameter(self, node: Node, name: str) -> CellBlock:
        found = self.find_parameter(node, name)
        assert found is not None
        return found._replace(sheet=self.sheet.name)

    def put_parameter(self, name: str, array: Array) -> CellBlock:
        """Write a parameter, with the labels that the result has for it."""
        axes = parameter_axes("", name)
        described = Tensor(array, axes if len(axes) == array.ndim else None)
        result = self.sheet.shown.call.result
        return self.sheet.put_tensor(name, array, result.tensor(name) if name in result else described)

    def local(self, block: CellBlock) -> CellBlock:
        """A block as the formulas of this sheet refer to it."""
        return block._replace(sheet="") if block.sheet == self.sheet.name else block
