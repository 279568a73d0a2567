"""The formulas of nodes in a spreadsheet, by their kinds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from attnkit.inputs.layers import NormOperands
from attnkit.interpret.spreadsheet.blocks import CellBlock, Index
from attnkit.interpret.stage_nodes.steps import KeySpan
from attnkit.model.graph.nodes import Node

BLOCKED = "-1E+300"  # in place of −∞
MOST_UNDER_ROOT = 1 << 20


class CellFormula(NamedTuple):
    """A formula for each cell, each row, or each matrix of a tensor.

    text  from an index, which is 0 along the axes that the formula fills
    """

    fills: Literal["cell", "row", "matrix"]
    text: Callable[[Index], str]


class FormulaOperands(NamedTuple):
    """What the formula of a node refers to.

    inputs     the tensors that it reads, and kinds the kinds of their nodes, "" for what the stage reads
    parameter  name -> a parameter of its layer, None if it has none
    own        the tensor that it fills
    """

    node: Node
    inputs: Sequence[CellBlock]
    kinds: Sequence[str]
    parameter: Callable[[str], CellBlock | None]
    own: CellBlock

    @property
    def shape(self) -> Index:
        """The shape of the tensor that it fills."""
        shape: Index = self.own.array.shape
        return shape

    def option(self, name: str, default: Any = None) -> Any:
        return self.node.options.get(name, default)

    def has_any(self, *names: str) -> bool:
        """Whether any of some options is set, other than to zero."""
        return any(self.option(name) not in (None, 0, (), "") for name in names)


FormulaOf = Callable[[FormulaOperands], CellFormula | None]


def number_text(value: float) -> str:
    """A number as a formula has it.

    >>> number_text(0.5), number_text(3.0), number_text(1e-05)
    ('0.5', '3', '1E-05')
    """
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value)).upper()


def format_factor(factor: float) -> str:
    """A product with a factor, which may be a root or one over it.

    >>> format_factor(1 / math.sqrt(8)), format_factor(math.sqrt(2)), format_factor(0.3), format_factor(1.0)
    ('/SQRT(8)', '*SQRT(2)', '*0.3', '')
    """
    if factor == 1:
        return ""
    for sign, power in (("/", -2), ("*", 2)):
        square = round(factor**power) if factor > 0 else 0
        if 1 < square < MOST_UNDER_ROOT and math.isclose(factor, square ** (1 / power), rel_tol=1e-15):
            return f"{sign}SQRT({square})"
    return f"*{number_text(factor)}"


def sum_formula(operands: FormulaOperands) -> CellFormula:
    """The first input by a factor, plus the others."""
    first, *others = operands.inputs
    factor = format_factor(operands.option("factor", 1.0))
    return CellFormula("cell", lambda index: "+".join([first.cell(index) + factor, *(b.cell(index) for b in others)]))


def product_formula(operands: FormulaOperands) -> CellFormula:
    return CellFormula("cell", lambda index: "*".join(block.cell(index) for block in operands.inputs))


def linear_formula(operands: FormulaOperands) -> CellFormula | None:
    """A product with W, plus b."""
    (x,), (w, b) = operands.inputs, map(operands.parameter, operands.option("names"))
    if operands.has_any("transposed"):
        return None
    if w is None:
        return CellFormula("cell", lambda index: "+".join(block.cell(index) for block in (x, b) if block is not None))
    bias = f"+{b.matrix((0,))}" if b is not None else ""
    return CellFormula("matrix", lambda index: f"MMULT({x.matrix(index)},{w.matrix((0, 0))}){bias}")


def heads_formula(operands: FormulaOperands) -> CellFormula | None:
    """The cells of each head: (..., T, H*K) -> (..., H, T, K)."""
    (x, *fused), width = operands.inputs, operands.shape[-1]
    if fused or operands.has_any("clip", "times", "splits"):
        return None
    return CellFormula("cell", lambda index: x.cell((*index[:-3], index[-2], index[-3] * width + index[-1])))


def joined_formula(operands: FormulaOperands) -> CellFormula:
    """The heads of a token side by side: (..., H, T, K) -> (..., T, H*K)."""
    (x,) = operands.inputs
    width = x.columns
    return CellFormula("cell", lambda index: x.cell((*index[:-2], index[-1] // width, index[-2], index[-1] % width)))


def group_of(index: Index, block: CellBlock, heads: int) -> Index:
    """The index of the keys or values that a query head reads."""
    return (*index[:-3], index[-3] // (heads // block.array.shape[-3]), 0, 0)


def score_formula(operands: FormulaOperands) -> CellFormula:
    """Queries times keys."""
    (q, k), heads = operands.inputs, operands.shape[-3]
    return CellFormula(
        "matrix", lambda index: f"MMULT({q.matrix(index)},TRANSPOSE({k.matrix(group_of(index, k, heads))}))"
    )


def mix_formula(operands: FormulaOperands) -> CellFormula:
    """Weights times values."""
    (weights, v), heads = operands.inputs, operands.shape[-3]
    return CellFormula("matrix", lambda index: f"MMULT({weights.matrix(index)},{v.matrix(group_of(index, v, heads))})")


def cap_formula(operands: FormulaOperands) -> CellFormula:
    (x,), limit = operands.inputs, operands.option("softcap", 0.0)
    if not limit:
        return CellFormula("cell", x.cell)
    return CellFormula("cell", lambda index: f"{number_text(limit)}*TANH({x.cell(index)}/{number_text(limit)})")


def blocked_formula(operands: FormulaOperands) -> CellFormula:
    """Scores plus what is added to them, where every mask allows them."""
    x, *others = operands.inputs
    added = [one for one, is_added in zip(others, operands.option("adds"), strict=True) if is_added]
    masks = [one for one, is_added in zip(others, operands.option("adds"), strict=True) if not is_added]

    def text(index: Index) -> str:
        total = "+".join(one.cell(index) for one in (x, *added))
        return f"IF({'*'.join(one.cell(index) for one in masks)},{total},{BLOCKED})" if masks else total

    return CellFormula("cell", text)


def softmax_row(scores: str, factor: str = "", may_be_blocked: bool = False) -> str:
    """The softmax of a row of scores by a factor; of blocked scores alone zeros."""
    powers = f"EXP(({scores}-MAX({scores})){factor})" if factor else f"EXP({scores}-MAX({scores}))"
    share = f"{powers}/SUM({powers})"
    return f"IF(MAX({scores})<=-1E+299,0*{scores},{share})" if may_be_blocked else share


def softmax_formula(operands: FormulaOperands) -> CellFormula | None:
    (scores,) = operands.inputs
    if operands.option("axis", -1) != -1 or operands.parameter("sinks") is not None:
        return None
    is_masked = operands.kinds[0] == "blocked"
    return CellFormula("row", lambda index: softmax_row(scores.row(index), may_be_blocked=is_masked))


def probability_formula(operands: FormulaOperands) -> CellFormula | None:
    """The softmax of logits by a temperature; filters make it one of values."""
    (logits,), choice = operands.inputs, operands.option("choice")
    if {name for name, _ in choice.filters()} - {"temperature"}:
        return None
    factor = "" if choice.tau == 1 else f"/{number_text(choice.tau)}"
    return CellFormula("row", lambda index: softmax_row(logits.row(index), factor))


def lookup_formula(operands: FormulaOperands) -> CellFormula | None:
    """Rows of a table by their ids."""
    (ids,), table = operands.inputs, operands.parameter("table")
    if table is None or operands.has_any("factor", "transposed"):
        return None
    return CellFormula("cell", lambda index: f"INDEX({table.matrix((0, 0))},{ids.cell(index[:-1])}+1,{index[-1] + 1})")


def one_hot_formula(operands: FormulaOperands) -> CellFormula:
    """1 in the column of an id, else 0."""
    (ids,) = operands.inputs
    return CellFormula("cell", lambda index: f"IF({ids.cell(index[:-1])}={index[-1]},1,0)")


def sinusoid_formula(operands: FormulaOperands) -> CellFormula:
    """Sines and cosines of positions; see sinusoidal_positions for the layouts."""
    (positions,), width = operands.inputs, operands.option("width")
    values = operands.option("options")

    def text(index: Index) -> str:
        *place, column = index
        half = width // 2
        pair, is_cosine = divmod(column, 2) if values["layout"] == "paper" else (column % half, column >= half)
        angle = f"{positions.cell((*place,))}/{number_text(values['base'])}^({2 * pair}/{width})"
        return f"{'COS' if is_cosine else 'SIN'}({angle})"

    return CellFormula("cell", text)


def norm_formula(operands: FormulaOperands) -> CellFormula | None:
    """Layer or RMS norm of rows, or batch norm of columns."""
    (x,) = operands.inputs
    given: NormOperands = operands.option("operands")
    is_batch = given.kind == "batch"
    if is_batch and (x.array.ndim != 2 or given.mean is not None):
        return None
    if not is_batch and given.axis not in (-1, x.array.ndim - 1):
        return None
    gamma, beta, eps = operands.parameter("gamma"), operands.parameter("beta"), number_text(given.eps)

    def text(index: Index) -> str:
        cell, others = x.cell(index), x.column(index) if is_batch else x.row(index)
        if given.kind == "rms":
            normalized = f"{cell}/SQRT(SUMSQ({others})/COUNT({others})+{eps})"
        else:
            normalized = f"({cell}-AVERAGE({others}))/SQRT(DEVSQ({others})/COUNT({others})+{eps})"
        scaled = normalized + (f"*{gamma.cell(index)}" if gamma is not None else "")
        return scaled + (f"+{beta.cell(index)}" if beta is not None else "")

    return CellFormula("cell", text)


# the functions of model/formulas/activations.py
ACTIVATION_FORMULAS: Mapping[str, str] = {
    "relu": "MAX(0,{x})",
    "gelu": "{x}*NORMSDIST({x})",
    "gelu-tanh": "{x}*(1+TANH(SQRT(2/PI())*({x}+0.044715*{x}^3)))/2",
    "quick-gelu": "{x}/(1+EXP(-1.702*{x}))",
    "silu": "{x}/(1+EXP(-{x}))",
    "tanh": "TANH({x})",
    "sigmoid": "1/(1+EXP(-{x}))",
    "identity": "{x}",
}


def activation_formula(operands: FormulaOperands) -> CellFormula | None:
    (x,), formula = operands.inputs, ACTIVATION_FORMULAS.get(operands.option("activation"))
    return None if formula is None else CellFormula("cell", lambda index: formula.format(x=x.cell(index)))


def table_formula(operands: FormulaOperands) -> CellFormula:
    """Hidden states times every row of the table."""
    x, table = operands.inputs
    return CellFormula("matrix", lambda index: f"MMULT({x.matrix(index)},TRANSPOSE({table.matrix((0, 0))}))")


def concat_formula(operands: FormulaOperands) -> CellFormula:
    """The second tensor beside the first, along the last axis."""
    first, second = operands.inputs
    width = first.columns

    def text(index: Index) -> str:
        *lead, column = index
        return first.cell(index) if column < width else second.cell((*lead, column - width))

    return CellFormula("cell", text)


def allowed_formula(operands: FormulaOperands) -> CellFormula:
    """1 for a key that its query may attend to by its position, else 0."""
    span: KeySpan = operands.option("span")
    corner = operands.own.cell((0, 0))
    query, key = f"ROW()-ROW({corner})", f"COLUMN()-COLUMN({corner})"
    bounds = [f"{key}>={query}{span.start - span.left:+d}"] if span.left >= 0 else []
    bounds += [f"{key}<={query}{span.start + span.right:+d}"] if span.right >= 0 else []
    return CellFormula("cell", lambda index: f"IF(AND({','.join(bounds or ['TRUE'])}),1,0)")


def combined_formula(operands: FormulaOperands) -> CellFormula:
    """The product of masks, or their largest, which may be inverted."""

    def text(index: Index) -> str:
        cells = [block.cell(index) for block in operands.inputs]
        joined = f"MAX({','.join(cells)})" if operands.option("union") else "*".join(cells)
        return f"1-{joined}" if operands.option("invert") else joined

    return CellFormula("cell", text)


FORMULAS: Mapping[str, FormulaOf] = {
    "words": lookup_formula,
    "one hot": one_hot_formula,
    "sinusoids": sinusoid_formula,
    "scale": sum_formula,
    "add": sum_formula,
    "multiply": product_formula,
    "linear": linear_formula,
    "heads": heads_formula,
    "scores": score_formula,
    "cap": cap_formula,
    "allowed": allowed_formula,
    "combined": combined_formula,
    "blocked": blocked_formula,
    "softmax": softmax_formula,
    "spread": lambda operands: CellFormula("cell", operands.inputs[0].cell),
    "mix": mix_formula,
    "join": joined_formula,
    "concat": concat_formula,
    "norm along": norm_formula,
    "activate": activation_formula,
    "by table": table_formula,
    "probabilities": probability_formula,
}
