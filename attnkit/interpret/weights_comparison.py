"""Two checkpoints of one architecture compared parameter by parameter.

A row stands for those alike in all layers.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from attnkit.display import Block, Note, Only, Style, TextTable
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import counted
from attnkit.interpret.comparison import EXACT, Tolerance
from attnkit.interpret.model_sheet import layers_text
from attnkit.model import parse_layer_name
from attnkit.records import Array, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint, Parameters
    from attnkit.model import Config

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
BLOCK = 1 << 16  # numbers that are subtracted at a time
ABSENT = {"a": "only in B", "b": "only in A"}
FIGURES = ("layers", "changed", "change", "norm", "relative", "largest")
HEADINGS = ("tensor", "‖a−b‖", "‖a‖", "relative", "largest", "where")


class WeightChange(NamedTuple):
    """What is different in one parameter: the norms of the change and of A.

    verdict  equal, changed, only in A, only in B, or the shapes
    """

    verdict: str
    change: float = math.nan
    norm: float = math.nan

    @property
    def relative(self) -> float:
        """The norm of the change by the norm of A: 0 for no change, infinite beside zeros."""
        return self.change / self.norm if self.norm else math.inf if self.change else 0.0


@dataclass(frozen=True)
class PatternChanges:
    """One parameter of all layers that have it with one verdict, as decoder.#.ffn.w1.

    changes  the number of the layer, None if there is none -> the change
    """

    pattern: str
    changes: dict[int | None, WeightChange]

    @property
    def verdict(self) -> str:
        verdicts = {one.verdict for one in self.changes.values()}
        return "changed" if "changed" in verdicts else verdicts.pop()

    @property
    def changed(self) -> list[int | None]:
        """The layers in which it is changed."""
        return [number for number, one in self.changes.items() if one.verdict == "changed"]

    @property
    def total(self) -> WeightChange:
        """The change of all layers together."""
        norms = (math.hypot(*(getattr(one, name) for one in self.changes.values())) for name in ("change", "norm"))
        return WeightChange(self.verdict, *norms)

    @property
    def worst(self) -> tuple[int | None, float]:
        """The layer with the largest relative change, and that change."""
        ratios = {number: one.relative for number, one in self.changes.items()}
        number = max(ratios, key=lambda one: (math.isnan(ratios[one]), ratios[one]))
        return number, ratios[number]

    @property
    def place(self) -> str:
        """The layers that the verdict is about, in words."""
        numbers = [number for number in (self.changed or self.changes) if number is not None]
        where = layers_text(numbers) if numbers else ""
        if self.verdict != "changed":
            return f"{self.verdict}, {where}" if where else self.verdict
        most = f", most in {self.worst[0]}" if len(numbers) > 1 else ""
        return f"{where}{most}"


@dataclass(frozen=True, repr=False)
class WeightsReport(ComparisonReport):
    """The figures of the parameters of two checkpoints, vectors over their patterns.

    The tensor `same` is one boolean; the labels of `verdict` are equal, changed, only in A, only in B, or two shapes.

    lines  sentences below the table
    """

    groups: tuple[PatternChanges, ...] = field(kw_only=True, compare=False)
    lines: tuple[str, ...] = field(kw_only=True, compare=False)

    def blocks(self, style: Style) -> list[Block]:
        rows = change_rows(self, style.precision)
        table = TextTable(HEADINGS, rows, range(1, 5)) if rows else None
        drawn: list[Block] = [Only("terminal", table)] if table else []
        empty = TextTable((), (), title="parameters")
        drawn += [Only("figure", table._replace(title="parameters") if table else empty)]
        return [*drawn, *map(Note, self.lines)]

    def cells(self) -> Cells:
        columns = [self.labels["tensor"], self.labels["verdict"], *(self[name] for name in FIGURES)]
        return Cells(["tensor", "verdict", *FIGURES], [list(row) for row in zip(*columns, strict=True)])


@dataclass(frozen=True)
class ModelPair:
    """Two models whose parameters are compared."""

    takes: ClassVar[tuple[str, ...]] = ("tolerance",)

    a: "Checkpoint"
    b: "Checkpoint"

    def compare(self, tolerance: Tolerance = EXACT) -> WeightsReport:
        """Compare the parameters, one at a time."""
        a, b = self.a.params, self.b.params
        for one in (a, b):
            one.refuse_unread()
        groups: dict[tuple[str, str], PatternChanges] = {}
        for layer, name in paired_parameters(a, b):
            change = compare_parameter(a, b, layer, name, tolerance)
            pattern = NUMBER.sub("#", f"{layer}.{name}", count=1)
            kind = "both" if change.verdict in ("equal", "changed") else change.verdict
            group = groups.setdefault((pattern, kind), PatternChanges(pattern, {}))
            group.changes[parse_layer_name(layer)[1]] = change
        return make_report(tuple(groups.values()), self.a, self.b)


def paired_parameters(a: "Parameters", b: "Parameters") -> Iterator[tuple[str, str]]:
    """Yield the layers and names of the parameters of A and B, of tied ones the first."""
    layers = [*a, *(layer for layer in b if layer not in a)]
    seen = set()
    for layer in layers:
        sides = [params.specs.get(layer, {}) for params in (a, b)]
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            stored = tuple(
                (name in specs and params.source(layer, name)) for params, specs in zip((a, b), sides, strict=True)
            )
            if stored not in seen:
                seen.add(stored)
                yield layer, name


def compare_parameter(
    a: "Parameters", b: "Parameters", layer: str, name: str, tolerance: Tolerance = EXACT
) -> WeightChange:
    for side, params in (("a", a), ("b", b)):
        if name not in params.specs.get(layer, {}):
            return WeightChange(ABSENT[side])
    x, y = a.read(layer, name), b.read(layer, name)
    if x.shape != y.shape:
        return WeightChange(f"shapes {x.shape} and {y.shape}")
    change = measure_change(x, y, tolerance)
    for params in (a, b):
        params.release(layer, name)
    return change


def measure_change(x: Array, y: Array, tolerance: Tolerance = EXACT) -> WeightChange:
    """The change from one array to another, in float64; NaN equals NaN.

    >>> measure_change(np.array([3.0, 4.0]), np.array([3.0, 7.0]))
    WeightChange(verdict='changed', change=3.0, norm=5.0)
    """
    if x.flags.f_contiguous and not x.flags.c_contiguous:
        x, y = x.T, y.T
    rows = max(BLOCK // max(math.prod(x.shape[1:]), 1), 1)
    is_changed, change, norm = False, 0.0, 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(x), rows):
            left, right = (one[start : start + rows].astype(np.float64) for one in (x, y))
            is_same = (left == right) | (np.isnan(left) & np.isnan(right))
            difference = np.where(is_same, 0.0, left - right)
            is_changed |= not (is_same | tolerance.allows(difference, right)).all()
            change += float(np.square(difference).sum())
            norm += float(np.square(left).sum())
    return WeightChange("changed" if is_changed else "equal", math.sqrt(change), math.sqrt(norm))


def make_report(groups: tuple[PatternChanges, ...], a: "Checkpoint", b: "Checkpoint") -> WeightsReport:
    """Collect the groups as a record, with sentences on what the table does not show."""
    equal = [group.pattern for group in groups if group.verdict == "equal"]
    lines = [f"equal: {join_names(equal, 4)}"] if equal and len(equal) < len(groups) else []
    if len(equal) == len(groups):
        lines = [f"the same ({counted(sum(len(group.changes) for group in groups), 'parameter')})"]
    has_other_rules = without_padding(a.config) != without_padding(b.config)
    if has_other_rules:
        lines.append(f"the configurations differ: attnkit show {a.folder} {b.folder}")
    elif a.config != b.config:
        ids = ["no padding id" if one.config.special.pad is None else str(one.config.special.pad) for one in (a, b)]
        lines.append(f"the padding ids differ, which changes no number of a text: {ids[0]} in A, {ids[1]} in B")
    for side, checkpoint in (("A", a), ("B", b)):
        if unused := checkpoint.params.unused():
            lines.append(f"not compared, since no layer uses them: {join_names(unused, 3)} in {side}")
    is_same = len(equal) == len(groups) and not has_other_rules
    columns = {
        "layers": [len(group.changes) for group in groups],
        "changed": [len(group.changed) for group in groups],
        "change": [group.total.change for group in groups],
        "norm": [group.total.norm for group in groups],
        "relative": [group.total.relative for group in groups],
        "largest": [group.worst[1] for group in groups],
    }
    tensors = {"same": Tensor(np.array(is_same), ())}
    tensors |= {name: Tensor(np.array(columns[name]), ("tensor",)) for name in FIGURES}
    tensors["verdict"] = Tensor(np.array([group.verdict != "equal" for group in groups]), ("verdict",))
    labels = {"tensor": [group.pattern for group in groups], "verdict": [group.verdict for group in groups]}
    return WeightsReport(tensors, dict(labels), groups=groups, lines=tuple(lines))


def without_padding(config: "Config") -> "Config":
    """A configuration without the id of its padding."""
    return replace(config, special=replace(config.special, pad=None))


def change_rows(report: WeightsReport, precision: int) -> list[list[str]]:
    """The rows of the table of the parameters that differ."""
    digits = max(precision, 1)
    rows = []
    for group in report.groups:
        if group.verdict == "equal":
            continue
        figures = (group.total.change, group.total.norm, group.total.relative, group.worst[1])
        texts = ["–" if math.isnan(one) else f"{one:.{digits}g}" for one in figures]
        rows.append([group.pattern, *texts, group.place])
    return rows
