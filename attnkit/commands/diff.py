"""attnkit diff: compare two tensors, records or traces."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from attnkit.cli import options
from attnkit.cli.stage import Records, Stage, cast_x
from attnkit.cli.tool import tool
from attnkit.errors import UsageError, escaped
from attnkit.record import Array, Record, Tensor, join_names, row_labels, shared_labels

FIGURES = ("differing", "max_abs", "max_rel", "cosine")
STAGE = re.compile(
    r"(encoder|decoder)\.([0-9]+\.(self|cross|ffn|norm[0-9])(\.\w+)?|embed|positions|embed_norm|norm)"
    r"|head\.(dense|norm)|pooler|logits"
)


@dataclass(frozen=True)
class Pair:
    """Two records to compare; traces of a model, as far as they are the same."""

    a: Record
    b: Record
    traces: bool = False

    def names(self) -> list[str]:
        """Return the names to compare, in order: of traces those of both, else those of either."""
        if self.traces:
            return [name for name in self.a if name in self.b]
        return [*self.a, *(name for name in self.b if name not in self.a)]


@dataclass(frozen=True)
class Element:
    """One element of two tensors: its place by axes and labels, both numbers, and how much they differ."""

    place: str
    a: Any
    b: Any
    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.place} {format_pair(self.a, self.b)}"


@dataclass(frozen=True)
class Comparison:
    """How the tensors of one name differ.

    differing  how many numbers differ: all of them where the tensors cannot be compared number by number
    problem    why they cannot, "" where they can
    elements   the first that differs, and those with the largest absolute and the largest relative difference
    """

    name: str
    differing: int
    max_abs: float = np.nan
    max_rel: float = np.nan
    cosine: float = np.nan
    problem: str = ""
    elements: tuple[Element, ...] = ()


@dataclass(frozen=True, repr=False)
class DiffReport(Record):
    """The figures of tensors compared, vectors over their names, with the comparisons that they are of."""

    pair: Pair = field(kw_only=True, compare=False)
    comparisons: tuple[Comparison, ...] = field(kw_only=True, compare=False)


def read_pairs(call: Stage, upstream: Records | None) -> Records:
    """Read the records of A and of B as pairs."""
    if len(call.operands) != 2:
        raise UsageError(f"two files to compare, not {len(call.operands)}: attnkit diff A B")
    return Records(None, pair_records(call))


def pair_records(call: Stage) -> Iterator[Pair]:
    """Yield the records of two streams in pairs; the shorter stream continues with empty records."""
    name_a, name_b = call.operands
    records_a, first = call.read(name_a).items, call.files.source
    records_b = call.read(name_b).items
    only, dtype = (
        call.common.pop("only", None),
        call.common.pop("dtype", None),
    )  # they apply to both records, not to the result
    while True:
        a, b = next(records_a, None), next(records_b, None)
        call.files.add_digest(first)
        if a is None and b is None:
            return
        a, b = a or Record({}), b or Record({})
        if dtype:
            a, b = (cast_x(record, dtype) if "x" in record else record for record in (a, b))
        yield Pair(a.select(only), b.select(only)) if only else Pair(a, b, are_traces(a, b))


def are_traces(a: Record, b: Record) -> bool:
    """Return whether all names of two records are stages of a model, and they share at least one."""
    return all(STAGE.fullmatch(name) for record in (a, b) for name in record) and any(name in b for name in a)


@tool(
    operand="A B",
    reader=read_pairs,
    view=lambda report, call, look: render_report(report),
    status=lambda record, call: int(record["differing"].any()),
    check_finite=lambda parameters: False,
    shows_table=True,
)
def diff(
    pair: Pair,
    *,
    rtol: Annotated[float, options.number("relative difference to tolerate", least=0)] = 0.0,
    atol: Annotated[float, options.number("absolute difference to tolerate", least=0)] = 0.0,
) -> DiffReport:
    """Compare two tensors, records or traces: exit code 0 when they are the same, 1 when they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. For every tensor:
    how many numbers differ, the labels and sizes of the largest absolute and relative differences, and the cosine
    similarity. Dtypes, labels and histories are not compared. -f json prints the figures for a script. Of two
    traces, as encode --trace writes them, the stages of both are compared in their order, up to the first that
    differs.

    \b
    Example:
      attnkit embed "a b" --dim 4 -o a.npy --only x && attnkit layernorm a.npy -o b.npy && attnkit diff a.npy b.npy
    """
    if not isinstance(pair, Pair):
        raise UsageError(f"takes a Pair of records, not {type(pair).__name__}")
    comparisons = []
    for name in pair.names():
        comparisons.append(compare_tensors(pair.a, pair.b, name, rtol, atol))
        if pair.traces and comparisons[-1].differing:
            break
    return make_report(pair, tuple(comparisons))


def make_report(pair: Pair, comparisons: tuple[Comparison, ...]) -> DiffReport:
    """Return the figures of every tensor compared as a record, with what is written of them."""
    tensors = {}
    for figure in FIGURES:
        column = np.array([getattr(one, figure) for one in comparisons], dtype=np.float64)
        tensors[figure] = Tensor(column.astype(np.int64) if figure == "differing" else column, ("tensor",))
    return DiffReport(tensors, {"tensor": [one.name for one in comparisons]}, pair=pair, comparisons=comparisons)


def compare_tensors(a: Record, b: Record, name: str, rtol: float, atol: float) -> Comparison:
    """Compare the tensors of one name number by number, as far as both records have them in one shape."""
    if name not in a or name not in b:
        side, x = ("A", a[name]) if name in a else ("B", b[name])
        return Comparison(name, max(x.size, 1), problem=f"only in {side}")
    x, y = a[name], b[name]
    if x.shape != y.shape:
        return Comparison(name, max(x.size, y.size, 1), problem=f"shape {x.shape} in A, {y.shape} in B")
    is_integer = x.dtype.kind in "iu" and y.dtype.kind in "iu"  # a long double may hold every 64-bit integer
    wide: Any = np.longdouble if is_integer else np.float64
    left, right = (array.astype(wide).ravel() for array in (x, y))
    with np.errstate(all="ignore"):
        equal = (x == y).ravel() | (np.isnan(left) & np.isnan(right))
        absolute = np.where(equal, 0.0, np.abs(subtract_integers(x, y).ravel() if is_integer else left - right))
        relative = np.where(equal, 0.0, absolute / np.abs(right))
        near = (absolute <= atol + rtol * np.abs(right)) & np.isfinite(left) & np.isfinite(right)
        cosine = 1.0 if equal.all() else cosine_similarity(left, right)
    differing = ~equal & ~near if rtol or atol else ~equal
    return Comparison(
        name, int(differing.sum()), float(absolute.max(initial=0)), float(relative.max(initial=0)), cosine,
        elements=find_elements(a, b, name, absolute, relative, differing) if differing.any() else (),
    )  # fmt: skip


def find_elements(
    a: Record, b: Record, name: str, absolute: Array, relative: Array, differing: Array
) -> tuple[Element, Element, Element]:
    """Return the first element that differs, and those with the largest absolute and the largest relative difference.

    absolute, relative  differences of two tensors (N); differing (N) whether they are outside the tolerance
    """
    x, y = a[name], b[name]

    def element(rank: Array) -> Element:
        at = int(np.argmax(rank))
        index = tuple(int(i) for i in np.unravel_index(at, x.shape))
        return Element(format_element(a, name, index), x[index], y[index], float(absolute[at]), float(relative[at]))

    worst, worst_relative = (element(rank_differences(ranked, differing)) for ranked in (absolute, relative))
    return element(differing), worst, worst_relative


def subtract_integers(x: Array, y: Array) -> Array:
    """Subtract integers of any width, rounding once: in two halves, since a long double may be no more than a double.

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
    """Return the cosine similarity of two vectors: (N), (N) -> scalar; NaN where one is not finite, 0 where one is 0.

    >>> cosine_similarity(np.array([3.0, 4.0]), np.array([6.0, 8.0]))
    1.0
    >>> cosine_similarity(np.array([1e300]), np.array([-1e300]))
    -1.0
    """
    scaled = [x / max(np.abs(x).max(initial=0), np.finfo(x.dtype).tiny) for x in (left, right)]
    norms = np.linalg.norm(scaled[0]) * np.linalg.norm(scaled[1])
    return float(np.clip(scaled[0] @ scaled[1] / norms, -1, 1)) if norms else 0.0


def rank_differences(differences: Array, differing: Array) -> Array:
    """Return the differences for argmax: -1 within the tolerance, infinity where one number is NaN."""
    return np.where(differing, np.where(np.isnan(differences), np.inf, differences), -1)


def format_pair(x: Any, y: Any) -> str:
    """Write two numbers that differ in the fewest digits that show the difference.

    >>> format_pair(np.float16(0.1), np.float64(0.1))
    '0.0999755859375 and 0.1'
    """
    short, full = f"{x!s} and {y!s}", f"{float(x)!r} and {float(y)!r}"
    return full if str(x) == str(y) else short


def format_element(record: Record, name: str, index: tuple[int, ...]) -> str:
    """Name an element by its axes and labels.

    >>> format_element(Record({"x": np.zeros((2, 3))}, labels={"token": ["The", "cat"]}), "x", (1, 2))
    "[token 1 'cat', model 2]"
    """
    parts = []
    for dimension, at in enumerate(index):
        labels, axes = record.labels_of(name, dimension), record.axes_of(name)
        row = row_labels(labels, index[axes.index("batch")]) if "batch" in axes else shared_labels(labels)
        parts.append(f"{axes[dimension]} {at}" + (f" {row[at]!r}" if at < len(row) else ""))
    return f"[{', '.join(parts)}]"


def render_report(report: DiffReport) -> str:
    """Write a comparison as text: a line for each tensor; of traces one for all stages that are the same."""
    comparisons = report.comparisons
    lines = [
        f"{one.name}: {describe(report.pair, one)}" for one in comparisons if one.differing or not report.pair.traces
    ]
    if report.pair.traces:
        lines = [*summarize_equal(report), *lines, *describe_rest(report)]
    return "\n".join(escaped(line) for line in lines)


def describe(pair: Pair, comparison: Comparison) -> str:
    """Describe how two tensors differ, in one line."""
    if comparison.problem:
        return comparison.problem
    x, y = pair.a[comparison.name], pair.b[comparison.name]
    kinds = f"shape {x.shape}" + (f", {x.dtype} and {y.dtype}" if x.dtype != y.dtype else f", {x.dtype}")
    if not comparison.elements:
        within = f", largest difference {comparison.max_abs:.3g}" if comparison.max_abs else ""
        return f"the same ({kinds}{within})"
    first, worst, worst_relative = comparison.elements
    elsewhere = f"; worst relative at {worst_relative}: {worst_relative.relative:.3g}" * (
        worst_relative.place != worst.place
    )
    return (
        f"{comparison.differing} of {x.size} differ ({kinds}), first at {first}; "
        f"worst at {worst}: {worst.absolute:.3g} absolute, {worst.relative:.3g} relative{elsewhere}; "
        f"cosine {comparison.cosine:.9g}"
    )


def summarize_equal(report: DiffReport) -> list[str]:
    """Return the line on the stages that are the same in both traces; none where there are none."""
    same = [one for one in report.comparisons if not one.differing]
    if not same:
        return []
    largest = max(one.max_abs for one in same)
    within = f", largest difference {largest:.3g}" if largest else ""
    extent = "all the same" if len(same) == len(report.pair.names()) else f"the same up to {same[-1].name}"
    return [f"{extent} ({count_stages(len(same))}{within})"]


def describe_rest(report: DiffReport) -> list[str]:
    """Return the lines on the stages of traces that were not compared: the later ones, and those of one trace alone."""
    a, b = report.pair.a, report.pair.b
    later = len(report.pair.names()) - len(report.comparisons)
    lines = [f"{count_stages(later, 'later ')} not compared; --only NAME compares one"] * bool(later)
    for side, record, other in (("A", a, b), ("B", b, a)):
        alone = [name for name in record if name not in other]
        lines += [f"only in {side}: {join_names(alone)}"] * bool(alone)
    return lines


def count_stages(number: int, kind: str = "") -> str:
    """Return a number of stages in words.

    >>> count_stages(1), count_stages(2, "later ")
    ('1 stage', '2 later stages')
    """
    return f"{number} {kind}stage{'s' * (number != 1)}"
