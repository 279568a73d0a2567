"""The report of `diff` on the tensors of two records, or the stages of two traces: its figures and its table."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnkit import display
from attnkit.display.notebook import rows_html, tensor_html
from attnkit.display.tables import COLUMN_GAP, column_widths
from attnkit.errors import counted, escaped
from attnkit.inference.comparison import Comparison, Element, compare_tensors, has_labels, name_place, subtract
from attnkit.record import Array, Record, Tensor, join_names

FIGURES = ("differing", "size", "max_abs", "max_rel", "cosine")
STAGE = re.compile(
    r"(encoder|decoder)\.([0-9]+\.)?(self|cross|ffn|norm[0-9]?|rnn|bridge|bridge_cell|readout|embed|embed_norm|positions"
    r"|projection)(\.[\w.]+)?|head\.(dense|norm)|pooler|logits|modules\.[0-9]+"
    r"|[0-9]+\.[a-z]+\..+"  # of a pipeline
)
HEADS = ("tensor", "differing", "max |a−b|", "max rel", "cosine", "where")
LEFT = (0, 5)  # the columns of words
UNDEFINED = "–"


@dataclass(frozen=True)
class Pair:
    """Two records to compare, and whether they are traces of a model."""

    a: Record
    b: Record
    traces: bool = False

    def names(self) -> list[str]:
        """Return the names to compare, in order: of traces those of both, else those of either."""
        if self.traces:
            return [name for name in self.a if name in self.b]
        return [*self.a, *(name for name in self.b if name not in self.a)]


@dataclass(frozen=True, repr=False)
class DiffReport(Record):
    """The figures of tensors compared, vectors over their names, with the comparisons that they are of.

    The tensor `same` is one boolean. `at` and `first` are the indices of the largest difference and of the first
    element that differs, filled up with -1; the labels of their first axis are these places in words, or why the
    tensors cannot be compared.

    all_stages  whether of traces the stages after the first that differs are compared too
    heatmap     whether a caller in Python sees heat maps of A − B below the table
    """

    pair: Pair = field(kw_only=True, compare=False)
    comparisons: tuple[Comparison, ...] = field(kw_only=True, compare=False)
    all_stages: bool = field(default=False, kw_only=True, compare=False)
    heatmap: bool = field(default=False, kw_only=True, compare=False)

    @property
    def same(self) -> bool:
        """Whether no tensor differs."""
        return not any(one.differing for one in self.comparisons)

    def __repr__(self) -> str:
        return render_report(self, heatmap=self.heatmap)

    def _repr_html_(self) -> str:
        rows, lines = report_rows(self, display.DEFAULT_STYLE.precision), report_lines(self)
        views = difference_views(self, display.DEFAULT_STYLE) if self.heatmap else []
        return rows_html(rows, LEFT, lines) + "".join(tensor_html(view, is_map=True) for view in views)


def are_traces(a: Record, b: Record) -> bool:
    """Return whether all names of two records are stages of a model or of a pipeline, and they share at least one."""
    return all(STAGE.fullmatch(name) for record in (a, b) for name in record) and any(name in b for name in a)


def compare_records(pair: Pair, rtol: float = 0.0, atol: float = 0.0, all_stages: bool = False) -> DiffReport:
    """Compare the tensors of two records; of traces up to the first stage that differs, or all of them.

    >>> a, b = (Record({"x": np.array([0.0, 1.0, 2.0]), "y": np.ones(1)}) for _ in "ab")
    >>> b["x"][2] = 2.5
    >>> report = compare_records(Pair(a, b))
    >>> report.same, report["differing"], report["max_abs"], report["max_rel"]
    (False, array([1, 0]), array([0.5, 0. ]), array([0.2, 0. ]))
    """
    comparisons = []
    for name in pair.names():
        comparisons.append(compare_tensors(pair.a, pair.b, name, rtol, atol))
        if pair.traces and not all_stages and comparisons[-1].differing:
            break
    return make_report(pair, tuple(comparisons), all_stages)


def make_report(pair: Pair, comparisons: tuple[Comparison, ...], all_stages: bool = False) -> DiffReport:
    """Return the figures of every tensor compared as a record, with the comparisons that they are of."""
    tensors = {"same": Tensor(np.array(not any(one.differing for one in comparisons)), ())}
    for figure in FIGURES:
        column = np.array([getattr(one, figure) for one in comparisons], dtype=np.float64)
        tensors[figure] = Tensor(column.astype(np.int64) if figure in ("differing", "size") else column, ("tensor",))
    labels: dict[str, Any] = {"tensor": [one.name for one in comparisons]}
    for name, elements in (
        ("at", [one.largest for one in comparisons]),
        ("first", [one.first for one in comparisons]),
    ):
        tensors[name] = Tensor(stack_indices(elements), (name, "dimension"))
        labels[name] = [
            element.place if element else one.problem for one, element in zip(comparisons, elements, strict=True)
        ]
    return DiffReport(tensors, labels, pair=pair, comparisons=comparisons, all_stages=all_stages)


def stack_indices(elements: Sequence[Element | None]) -> Array:
    """Return the indices of elements as rows, filled up with -1.

    >>> stack_indices([Element((2, 1), "", "", 0, 0), Element((3,), "", "", 0, 0), None])
    array([[ 2,  1],
           [ 3, -1],
           [-1, -1]])
    """
    width = max((len(element.index) for element in elements if element), default=1)
    rows = [[*element.index] if element else [] for element in elements]
    return np.array([row + [-1] * (width - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), width)


def render_report(report: DiffReport, style: display.Style = display.DEFAULT_STYLE, heatmap: bool = False) -> str:
    """Write a comparison as text: a line for each tensor; of traces one for all stages before the first difference.

    heatmap  whether a heat map of A − B follows for every tensor that differs
    """
    rows = listed_comparisons(report)
    lines = summarize_equal(report)
    lines += [draw_comparisons(rows, style)] if rows else []
    lines += [escaped(line) for line in closing_lines(report)]
    maps = [display.heatmap(view) for view in difference_views(report, style)] if heatmap else []
    return "\n\n".join(["\n".join(lines) or "no tensors", *maps])


def listed_comparisons(report: DiffReport) -> list[Comparison]:
    """Return the comparisons that have a line in the table: of traces without --all those that differ."""
    is_short = report.pair.traces and not report.all_stages
    return [one for one in report.comparisons if one.differing or not is_short]


def report_rows(report: DiffReport, precision: int) -> list[list[str]]:
    """Return the table of a report, its headings first; [] where no tensor has a line."""
    rows = [row_cells(one, precision) for one in listed_comparisons(report)]
    return [list(HEADS), *rows] if rows else []


def report_lines(report: DiffReport) -> list[str]:
    """Return the lines of a report beside its table."""
    return [*summarize_equal(report), *closing_lines(report)]


def closing_lines(report: DiffReport) -> list[str]:
    """Return the lines below the table: the first difference, dtypes that differ, and what is not compared."""
    return [*describe_first(report), *describe_dtypes(report), *describe_rest(report)]


def relabel(report: DiffReport, change: Callable[[Record], Record]) -> DiffReport:
    """Return a report with the labels of both records changed, in its places too."""
    a, b = change(report.pair.a), change(report.pair.b)
    comparisons = [
        relabel_places(one, a if one.name in a and has_labels(a, one.name) else b) for one in report.comparisons
    ]
    return replace(report, pair=replace(report.pair, a=a, b=b), comparisons=tuple(comparisons))


def relabel_places(one: Comparison, labelled: Record) -> Comparison:
    """Return a comparison with its places named by the labels of a record."""
    first, largest = (
        element and Element(element.index, *name_place(labelled, one.name, element.index), element.a, element.b)
        for element in (one.first, one.largest)
    )
    return replace(one, first=first, largest=largest)


def draw_comparisons(rows: Sequence[Comparison], style: display.Style) -> str:
    """Draw the table of comparisons; where it is too wide, with places that are short, or on lines of their own."""
    for is_short in (False, True):
        cells = align_numbers([list(HEADS), *(row_cells(one, style.precision, is_short) for one in rows)])
        if table_width(cells) <= style.width:
            break
    above, *body = [row[:-1] for row in cells]
    if table_width(cells) <= style.width or table_width([above, *body]) > style.width:
        return display.text_table(cells[0], cells[1:], style)
    heads, rule, *lines = display.text_table(above, body, style).split("\n")
    places = [
        [f"  {escaped(place)}"] if place else [] for place in (row_cells(one, style.precision)[-1] for one in rows)
    ]
    return "\n".join(
        [heads, rule, *itertools.chain(*([line, *place] for line, place in zip(lines, places, strict=True)))]
    )


def table_width(cells: Sequence[Sequence[str]]) -> int:
    """Return the width of a table of texts."""
    sizes = column_widths(cells)
    return sum(sizes) + COLUMN_GAP * (len(sizes) - 1)


def align_numbers(cells: Sequence[list[str]]) -> list[list[str]]:
    """Align the columns between the first and the last one at their right.

    >>> align_numbers([["tensor", "max", "where"], ["x", "1", ""]])
    [['tensor', 'max', 'where'], ['x', '  1', '']]
    """
    sizes = column_widths(cells)[1:-1]
    middle = ([text.rjust(size) for text, size in zip(row[1:-1], sizes, strict=True)] for row in cells)
    return [[row[0], *texts, row[-1]] for row, texts in zip(cells, middle, strict=True)]


def row_cells(one: Comparison, precision: int, is_short: bool = False) -> list[str]:
    """Return the cells of one tensor; the cosine has more digits, since it is near 1.

    A ratio of small numbers has one digit less: it differs by processor where they are rounded.

    >>> row_cells(Comparison("x", 1, 2, 0.25, 249.04, 0.98765432101), 4)
    ['x', '1 of 2', '0.25', '249', '0.987654', '']
    """
    if one.problem:
        return [one.name, *[UNDEFINED] * 4, one.problem]
    digits = max(precision, 1)
    return [
        one.name,
        f"{one.differing} of {one.size}",
        f"{one.max_abs:.{digits}g}",
        UNDEFINED if np.isnan(one.max_rel) else f"{one.max_rel:.{min(digits, max(digits - 1, 3))}g}",
        UNDEFINED if np.isnan(one.cosine) else f"{one.cosine:.{digits + 2}g}",
        "" if one.largest is None else one.largest.short_place if is_short else one.largest.place,
    ]


def summarize_equal(report: DiffReport) -> list[str]:
    """Return the line on the stages that are the same in both traces; none where each has a line, or none is."""
    if not report.pair.traces or report.all_stages:
        return []
    same = [one for one in report.comparisons if not one.differing]
    if not same:
        return []
    largest = max(one.max_abs for one in same)
    within = f", largest difference {largest:.3g}" if largest else ""
    extent = "all the same" if len(same) == len(report.pair.names()) else f"the same up to {escaped(same[-1].name)}"
    return [f"{extent} ({count_stages(len(same))}{within})"]


def describe_first(report: DiffReport) -> list[str]:
    """Return the lines on the first tensor that differs: both numbers at its first and at its largest difference."""
    one = next((one for one in report.comparisons if one.first), None)
    if one is None:
        return []
    if one.first == one.largest:
        return [f"first and largest difference: {one.name} {one.first}"]
    return [f"first difference: {one.name} {one.first}", f"largest: {one.name} {one.largest}"]


def describe_dtypes(report: DiffReport) -> list[str]:
    """Return the line on tensors of two dtypes, which are not compared; none where there are none."""
    a, b = report.pair.a, report.pair.b
    shared = [one.name for one in report.comparisons if one.name in a and one.name in b]
    names_of: dict[str, list[str]] = {}
    for name in shared:
        if a[name].dtype != b[name].dtype:
            names_of.setdefault(f"{a[name].dtype} and {b[name].dtype}", []).append(name)
    texts = [
        f"all {dtypes}" if len(names) == len(shared) > 1 else f"{join_names(names)} {dtypes}"
        for dtypes, names in names_of.items()
    ]
    return [f"dtypes of A and B: {'; '.join(texts)}"] if texts else []


def describe_rest(report: DiffReport) -> list[str]:
    """Return the lines on the stages of traces that were not compared: the later ones, and those of one trace alone."""
    if not report.pair.traces:
        return []
    a, b = report.pair.a, report.pair.b
    later = len(report.pair.names()) - len(report.comparisons)
    lines = [f"{count_stages(later, 'later ')} not compared; --all compares all, --only NAME one"] * bool(later)
    for side, record, other in (("A", a, b), ("B", b, a)):
        alone = [name for name in record if name not in other]
        lines += [f"only in {side}: {join_names(alone)}"] * bool(alone)
    return lines


def count_stages(number: int, kind: str = "") -> str:
    """Return a number of stages in words.

    >>> count_stages(1), count_stages(2, "later ")
    ('1 stage', '2 later stages')
    """
    return counted(number, f"{kind}stage")


def difference_views(report: DiffReport, style: display.Style) -> list[display.TensorView]:
    """Return the tensors A − B to draw, of all that differ and have one shape; colours are even about 0."""
    a, b = report.pair.a, report.pair.b
    names = [one.name for one in report.comparisons if one.differing and not one.problem]
    differences = {name: subtract_tensors(a[name], b[name]) for name in names}
    return [difference_view(a if has_labels(a, name) else b, name, one, style) for name, one in differences.items()]


def subtract_tensors(x: Array, y: Array) -> Array:
    """Subtract tensors of one shape; 0 where both are the same infinity, or NaN.

    >>> subtract_tensors(np.array([3, -np.inf]), np.array([1, -np.inf]))
    array([2., 0.])
    """
    left, right, difference = subtract(x, y)
    is_equal = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(is_equal, 0, difference).astype(np.float64).reshape(x.shape)


def difference_view(labelled: Record, name: str, difference: Array, style: display.Style) -> display.TensorView:
    """Return a difference of tensors to draw, with the axes and labels that one of both records has."""
    labels = [labelled.labels_of(name, dimension) for dimension in range(difference.ndim)]
    title = f"{name}: A − B" if style.unicode else f"{name}: A - B"
    return display.TensorView(title, difference, labelled.axes_of(name), labels, style, is_signed=True)
