"""Compare two tensors: how many numbers differ, the largest difference, cosine."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attnkit import display
from attnkit.display.blocks import Only
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.display.tables import COLUMN_GAP, column_widths
from attnkit.errors import DifferentError, counted, escaped
from attnkit.records import Array, Record, Tensor, join_names, row_labels, shared_labels


class Tolerance(NamedTuple):
    """Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|.

    >>> Tolerance(rtol=0.1).allows(np.array([0.1, -0.3]), np.array([1.0, 2.0]))
    array([ True, False])
    """

    rtol: float = 0.0
    atol: float = 0.0

    def allows(self, difference: Array, b: Array) -> Array:
        """Whether each difference a − b is within the tolerance."""
        is_allowed: Array = np.abs(difference) <= self.atol + self.rtol * np.abs(b)
        return is_allowed


EXACT = Tolerance()


@dataclass(frozen=True)
class Element:
    """One element of two tensors: its index, its place, and both numbers."""

    index: tuple[int, ...]
    place: str
    short_place: str
    a: Any
    b: Any

    def __str__(self) -> str:
        """The place with both numbers in the fewest digits that show the difference.

        >>> print(Element((0,), "model 0", "0", np.float16(0.1), np.float64(0.1)))
        [model 0]: 0.0999755859375 and 0.1
        """
        a, b = str(self.a), str(self.b)
        return f"[{self.place}]: " + (f"{float(self.a)!r} and {float(self.b)!r}" if a == b else f"{a} and {b}")


@dataclass(frozen=True)
class Comparison:
    """How the tensors of one name differ.

    differing  how many of `size` numbers differ: all of them if the tensors cannot be compared number by number
    max_abs    the largest |a − b|; NaN if one number is NaN and the other is not
    max_rel    the largest |a − b| / |b| where b is not 0; NaN if b is 0 wherever a and b are not equal
    cosine     of both tensors as vectors, without the NaN and infinities that they share
    problem    why they cannot be compared, "" if they can
    first      the first element that differs; largest: the one with the largest |a − b|; None if none differs
    """

    name: str
    differing: int
    size: int
    max_abs: float = np.nan
    max_rel: float = np.nan
    cosine: float = np.nan
    problem: str = ""
    first: Element | None = None
    largest: Element | None = None


def compare_tensors(a: Record, b: Record, name: str, tolerance: Tolerance = EXACT) -> Comparison:
    """Compare the tensors of one name if both records have them in one shape."""
    if name not in a or name not in b:
        side, x = ("A", a[name]) if name in a else ("B", b[name])
        return Comparison(name, max(x.size, 1), x.size, problem=f"only in {side}")
    x, y = a[name], b[name]
    if x.shape != y.shape:
        size = max(x.size, y.size)
        return Comparison(name, max(size, 1), size, problem=f"shape {x.shape} in A, {y.shape} in B")
    left, right, difference = subtract(x, y)
    with np.errstate(all="ignore"):
        equal = (x == y).ravel() | (np.isnan(left) & np.isnan(right))
        absolute = np.where(equal, 0.0, np.abs(difference))
        near = tolerance.allows(absolute, right) & np.isfinite(left) & np.isfinite(right)
        differing = ~equal & ~near if any(tolerance) else ~equal
    labelled = a if has_labels(a, name) else b

    def element(rank: Array) -> Element:
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(rank)), x.shape))
        return Element(index, *name_place(labelled, name, index), x[index], y[index])

    sizes = np.where(differing, np.where(np.isnan(absolute), np.inf, absolute), -1)  # NaN is the largest
    first, largest = (element(differing), element(sizes)) if differing.any() else (None, None)
    shared = equal & ~np.isfinite(left)
    return Comparison(
        name,
        int(differing.sum()),
        x.size,
        float(absolute.max(initial=0)),
        max_relative(absolute, right, equal),
        1.0 if equal.all() else cosine_similarity(left[~shared], right[~shared]),
        first=first,
        largest=largest,
    )


def subtract(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Two tensors of one shape as vectors of a common type, and their difference."""
    is_integer = x.dtype.kind in "iu" and y.dtype.kind in "iu"  # a long double may hold every 64-bit integer
    wide: Any = np.longdouble if is_integer else np.float64
    left, right = (array.astype(wide).ravel() for array in (x, y))
    with np.errstate(all="ignore"):
        return left, right, subtract_integers(x, y).ravel() if is_integer else left - right


def max_relative(absolute: Array, right: Array, equal: Array) -> float:
    """The largest |a − b| / |b| of unequal numbers: (N), (N), (N) -> scalar.

    Where b is 0 it is not defined; NaN if it is defined for none.

    >>> x, y = np.array([1.0, 3.0, 5.0]), np.array([0.0, 2.0, 5.0])
    >>> max_relative(np.abs(x - y), y, x == y), max_relative(np.array([1.0]), np.array([0.0]), np.array([False]))
    (0.5, nan)
    """
    if equal.all():
        return 0.0
    with np.errstate(all="ignore"):
        relative = absolute / np.abs(right)
    is_defined = ~equal & (right != 0) & ~np.isnan(relative)
    return float(relative[is_defined].max()) if is_defined.any() else np.nan


def compare_ids(own: Array, expected: Array, mask: Array | None) -> str:
    """Say where token ids first differ, "" if they are the same.

    >>> compare_ids(np.array([[1, 5, 6]]), np.array([[5, 6]]), None)
    '3 tokens, expected 2; the first that differs is 1, expected 5 (token 0); the rest agrees with the first 1 left out'
    """
    rows = [row if mask is None else row[np.asarray(mask, bool).reshape(own.shape)[at]] for at, row in enumerate(own)]
    for at, (row, wanted) in enumerate(itertools.zip_longest(rows, expected, fillvalue=np.array([], np.int64))):
        if np.array_equal(row, wanted):
            continue
        shared = min(len(row), len(wanted))
        place = next((i for i in range(shared) if row[i] != wanted[i]), shared)
        words = [f"{len(row)} tokens, expected {len(wanted)}"] if len(row) != len(wanted) else []
        if place < shared:
            text = f" of text {at}" if len(own) > 1 else ""
            words.append(f"the first that differs is {row[place]}, expected {wanted[place]} (token {place}{text})")
        extra = len(row) - len(wanted)
        if extra > 0 and np.array_equal(row[extra:], wanted):
            words.append(f"the rest agrees with the first {extra} left out")
        if extra < 0 and np.array_equal(row, wanted[-extra:]):
            words.append(f"they lack the first {-extra}")
        return "; ".join(words)
    return ""


def name_place(labelled: Record, name: str, index: tuple[int, ...]) -> tuple[str, str]:
    """The place of an element in words: by axes and labels, and by labels alone.

    >>> name_place(Record({"x": np.zeros((2, 2))}, {"token": ["The", "cat"]}), "x", (1, 0))
    ("token 1 'cat', model 0", "1 'cat', 0")
    """
    parts = label_index(labelled, name, index)
    return ", ".join(" ".join(part) for part in parts), ", ".join(part for _, part in parts)


def has_labels(record: Record, name: str) -> bool:
    """Whether an axis of a tensor has labels.

    >>> has_labels(Record({"x": np.zeros((1, 2))}, {"token": ["a"]}), "x"), has_labels(Record({"x": np.zeros(1)}), "x")
    (True, False)
    """
    return any(record.labels_of(name, dimension) for dimension in range(record[name].ndim))


def subtract_integers(x: Array, y: Array) -> Array:
    """Subtract integers of any width in two halves, rounding once.

    >>> print(subtract_integers(np.array([2**63 - 1]), np.array([2**63 - 3], np.uint64)))
    [2.]
    """
    wide = [array if array.dtype == np.uint64 else array.astype(np.int64) for array in (x, y)]
    (high_x, low_x), (high_y, low_y) = (
        ((array >> 32).astype(np.longdouble), (array & 0xFFFFFFFF).astype(np.longdouble)) for array in wide
    )
    difference: Array = (high_x - high_y) * 2.0**32 + (low_x - low_y)
    return difference


def cosine_similarity(left: Array, right: Array) -> float:
    """Cosine similarity of vectors (N): NaN if one is not finite, 0 if one is 0.

    >>> cosine_similarity(np.array([3.0, 4.0]), np.array([6.0, 8.0]))
    1.0
    >>> cosine_similarity(np.array([1e300]), np.array([-1e300]))
    -1.0
    """
    with np.errstate(all="ignore"):
        scaled = [x / max(np.abs(x).max(initial=0), np.finfo(x.dtype).tiny) for x in (left, right)]
        norms = np.linalg.norm(scaled[0]) * np.linalg.norm(scaled[1])
        return float(np.clip(scaled[0] @ scaled[1] / norms, -1, 1)) if norms else 0.0


def label_index(record: Record, name: str, index: tuple[int, ...]) -> list[tuple[str, str]]:
    """The axes of a tensor with the indices of an element, and their labels.

    >>> label_index(Record({"x": np.zeros((2, 3))}, labels={"token": ["The", "cat"]}), "x", (1, 2))
    [('token', "1 'cat'"), ('model', '2')]
    """
    axes, parts = record.axes_of(name), []
    for dimension, at in enumerate(index):
        labels = record.labels_of(name, dimension)
        row = row_labels(labels, index[axes.index("batch")]) if "batch" in axes else shared_labels(labels)
        parts.append((axes[dimension], f"{at} {row[at]!r}" if at < len(row) else str(at)))
    return parts


SITE = re.compile(
    r"(encoder|decoder|vector)\.([0-9]+\.)?(self|cross|ffn|norm[0-9]?|rnn|bridge|bridge_cell|readout|embed|embed_norm|positions"
    r"|projection)(\.[\w.]+)?|head\.(dense|norm)|pooler|logits|modules\.[0-9]+"
    r"|[0-9]+\.[a-z]+\..+"  # of a pipeline
)
HEADINGS = ("tensor", "differing", "max |a−b|", "max rel", "cosine", "where")
UNDEFINED = "–"


@dataclass(frozen=True)
class Pair:
    """Two records to compare.

    traces   whether they are traces of a model
    heatmap  whether heat maps of A − B are shown below the table
    """

    takes: ClassVar[tuple[str, ...]] = ("tolerance", "all_")

    a: Record
    b: Record
    traces: bool = False
    heatmap: bool = False

    def names(self) -> list[str]:
        """The names to compare in order: of traces the shared ones, otherwise all."""
        if self.traces:
            return [name for name in self.a if name in self.b]
        return [*self.a, *(name for name in self.b if name not in self.a)]

    def compare(self, tolerance: Tolerance = EXACT, all_: bool = False) -> "DiffReport":
        """Compare them; traces up to the first site that differs, unless all.

        >>> a, b = (Record({"x": np.array([0.0, 1.0, 2.0]), "y": np.ones(1)}) for _ in "ab")
        >>> b["x"][2] = 2.5
        >>> report = Pair(a, b).compare()
        >>> report.same, report["differing"], report["max_abs"], report["max_rel"]
        (False, array([1, 0]), array([0.5, 0. ]), array([0.2, 0. ]))
        """
        comparisons = []
        for name in self.names():
            comparisons.append(compare_tensors(self.a, self.b, name, tolerance))
            if self.traces and not all_ and comparisons[-1].differing:
                break
        return make_report(self, tuple(comparisons), all_)


@dataclass(frozen=True, repr=False)
class DiffReport(ComparisonReport):
    """The figures of compared tensors, vectors over names, with the comparisons.

    The tensor `same` is one boolean. `at` and `first` are the indices of the largest difference and of the first
    element that differs, filled up with -1; the labels of their first axis are these places in words, or why the
    tensors cannot be compared.

    all_sites   whether of traces the sites after the first that differs are compared too
    """

    pair: Pair = field(kw_only=True, compare=False)
    comparisons: tuple[Comparison, ...] = field(kw_only=True, compare=False)
    all_sites: bool = field(default=False, kw_only=True, compare=False)

    def blocks(self, style: display.Style) -> list[display.Block]:
        report = relabel(self, display.with_plain_tokens) if style.plain_tokens else self
        rows, closing = listed_comparisons(report), [escaped(line) for line in closing_lines(report)]
        table = [draw_placed(HEADINGS, rows, row_cells, style)] if rows else []
        drawn = "\n".join([*summarize_equal(report), *table, *closing]) or "no tensors"
        lines = report_lines(report) or ["no tensors"] * (not rows)
        return [
            Only("terminal", display.Text(drawn)),
            Only("figure", display.TextTable(*report_table(report, style.precision), title="differences")),
            *(Only("figure", display.Note(line)) for line in lines),
            *(display.Map(view) for view in difference_views(report, style) if self.pair.heatmap),
        ]

    def cells(self) -> Cells | None:
        if self.pair.heatmap:
            return None
        names = [name for name in self if self.axes_of(name) == ("tensor",)]
        columns = [self.labels["tensor"], *(self[name] for name in names), self.labels["at"], self.labels["first"]]
        return Cells(["tensor", *names, "at", "first"], [list(row) for row in zip(*columns, strict=True)])


def are_traces(a: Record, b: Record) -> bool:
    """Whether all names of two records are sites, and they share at least one."""
    return all(SITE.fullmatch(name) for record in (a, b) for name in record) and any(name in b for name in a)


def check_comparable(a: Record, b: Record, a_name: str, b_name: str) -> None:
    """Raise DifferentError for records, of files of these names, that share no name."""
    if a.tensors and b.tensors and not any(name in b for name in a):
        names = " and ".join(f"{file} has {join_names([*record], 3)}" for file, record in ((a_name, a), (b_name, b)))
        pair = " ".join(f"{file}:{next(iter(record))}" for file, record in ((a_name, a), (b_name, b)))
        raise DifferentError(f"no name in common: {names}; FILE:NAME compares one tensor of each: attnkit diff {pair}")


def make_report(pair: Pair, comparisons: tuple[Comparison, ...], all_sites: bool = False) -> DiffReport:
    """Collect comparisons as a record of figures."""
    tensors = {"same": Tensor(np.array(not any(one.differing for one in comparisons)), ())}
    for figure in ("differing", "size", "max_abs", "max_rel", "cosine"):
        column = np.array([getattr(one, figure) for one in comparisons], dtype=np.float64)
        tensors[figure] = Tensor(column.astype(np.int64) if figure in ("differing", "size") else column, ("tensor",))
    labels: dict[str, Any] = {"tensor": [one.name for one in comparisons]}
    for name, field_name in (("at", "largest"), ("first", "first")):
        elements = [getattr(one, field_name) for one in comparisons]
        tensors[name] = Tensor(stack_indices(elements), (name, "dimension"))
        labels[name] = [at.place if at else one.problem for one, at in zip(comparisons, elements, strict=True)]
    return DiffReport(tensors, labels, pair=pair, comparisons=comparisons, all_sites=all_sites)


def stack_indices(elements: Sequence[Element | None]) -> Array:
    """The indices of elements as rows, filled up with -1.

    >>> stack_indices([Element((2, 1), "", "", 0, 0), Element((3,), "", "", 0, 0), None])
    array([[ 2,  1],
           [ 3, -1],
           [-1, -1]])
    """
    width = max((len(element.index) for element in elements if element), default=1)
    rows = [[*element.index] if element else [] for element in elements]
    return np.array([row + [-1] * (width - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), width)


def listed_comparisons(report: DiffReport) -> list[Comparison]:
    """The comparisons with a line in the table; of traces those that differ."""
    is_short = report.pair.traces and not report.all_sites
    return [one for one in report.comparisons if one.differing or not is_short]


def report_table(report: DiffReport, precision: int) -> tuple[Sequence[str], list[list[str]], Sequence[int]]:
    """The headings, rows and number columns of the table; all empty without rows."""
    rows = [row_cells(one, precision) for one in listed_comparisons(report)]
    return (HEADINGS, rows, range(1, 5)) if rows else ((), [], ())


def report_lines(report: DiffReport) -> list[str]:
    """The sentences above and below the table."""
    return [*summarize_equal(report), *closing_lines(report)]


def closing_lines(report: DiffReport) -> list[str]:
    """Lines on the first difference, on dtypes that differ, and what is not compared."""
    a, b = report.pair.a, report.pair.b
    lines = []
    if one := next((one for one in report.comparisons if one.first), None):
        lines = [f"first difference: {one.name} {one.first}", f"largest: {one.name} {one.largest}"]
        lines = [f"first and largest difference: {one.name} {one.first}"] if one.first == one.largest else lines
    shared = [one.name for one in report.comparisons if one.name in a and one.name in b]
    names_of: dict[str, list[str]] = {}
    for name in shared:
        if a[name].dtype != b[name].dtype:
            names_of.setdefault(f"{a[name].dtype} and {b[name].dtype}", []).append(name)
    texts = [
        f"all {dtypes}" if len(names) == len(shared) > 1 else f"{join_names(names)} {dtypes}"
        for dtypes, names in names_of.items()
    ]
    lines += [f"dtypes of A and B: {'; '.join(texts)}"] * bool(texts)
    if report.pair.traces:
        if later := len(report.pair.names()) - len(report.comparisons):
            lines.append(f"{counted(later, 'later stage')} not compared; --all compares all, --only NAME one")
        for side, record, other in (("A", a, b), ("B", b, a)):
            if alone := [name for name in record if name not in other]:
                lines.append(f"only in {side}: {join_names(alone)}")
    return lines


def relabel(report: DiffReport, change: Callable[[Record], Record]) -> DiffReport:
    """A report with the labels of both records changed, in its places too."""
    a, b = change(report.pair.a), change(report.pair.b)
    comparisons = []
    for one in report.comparisons:
        labelled = a if one.name in a and has_labels(a, one.name) else b
        first, largest = (
            at and Element(at.index, *name_place(labelled, one.name, at.index), at.a, at.b)
            for at in (one.first, one.largest)
        )
        comparisons.append(replace(one, first=first, largest=largest))
    return replace(report, pair=replace(report.pair, a=a, b=b), comparisons=tuple(comparisons))


def draw_placed(
    headings: Sequence[str], rows: Sequence[Any], cells_of: Callable[..., list[str]], style: display.Style
) -> str:
    """Draw a table whose last column is a place, shortened or moved if too wide.

    cells_of  (row, precision, whether places are short) -> its cells
    """
    for is_short in (False, True):
        cells = align_numbers([list(headings), *(cells_of(one, style.precision, is_short) for one in rows)])
        if table_width(cells) <= style.width:
            break
    above, *body = [row[:-1] for row in cells]
    if table_width(cells) <= style.width or table_width([above, *body]) > style.width:
        return display.format_table(display.TextTable(cells[0], cells[1:]), style)
    heads, rule, *lines = display.format_table(display.TextTable(above, body), style).split("\n")
    parts = [heads, rule]
    for line, one in zip(lines, rows, strict=True):
        place = cells_of(one, style.precision)[-1]
        parts += [line, f"  {escaped(place)}"] if place else [line]
    return "\n".join(parts)


def table_width(cells: Sequence[Sequence[str]]) -> int:
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
    """The cells of one tensor; the cosine has more digits, since it is near 1.

    A ratio of small numbers has one digit less: it differs by processor if they are rounded.

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
    """The line on the equal sites of traces, unless each has a line."""
    if not report.pair.traces or report.all_sites:
        return []
    same = [one for one in report.comparisons if not one.differing]
    if not same:
        return []
    largest = max(one.max_abs for one in same)
    within = f", largest difference {largest:.3g}" if largest else ""
    extent = "all the same" if len(same) == len(report.pair.names()) else f"the same up to {escaped(same[-1].name)}"
    return [f"{extent} ({counted(len(same), 'stage')}{within})"]


def difference_views(report: DiffReport, style: display.Style) -> list[display.TensorView]:
    """Views of A − B of all tensors that differ; colours are even about 0."""
    a, b = report.pair.a, report.pair.b
    views = []
    for name in [one.name for one in report.comparisons if one.differing and not one.problem]:
        difference, labelled = subtract_tensors(a[name], b[name]), a if has_labels(a, name) else b
        labels = [labelled.labels_of(name, dimension) for dimension in range(difference.ndim)]
        title = f"{name}: A − B" if style.unicode else f"{name}: A - B"
        views.append(display.TensorView(title, difference, labelled.axes_of(name), labels, style, is_signed=True))
    return views


def subtract_tensors(x: Array, y: Array) -> Array:
    """Subtract tensors of one shape; 0 if both are the same infinity, or NaN.

    >>> subtract_tensors(np.array([3, -np.inf]), np.array([1, -np.inf]))
    array([2., 0.])
    """
    left, right, difference = subtract(x, y)
    is_equal = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(is_equal, 0, difference).astype(np.float64).reshape(x.shape)
