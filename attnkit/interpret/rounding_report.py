"""Two records by three verdicts: identical, the same to rounding, or different."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attnkit import display
from attnkit.display.blocks import Only
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import counted, escaped
from attnkit.interpret.comparison import UNDEFINED, Element, Pair, draw_placed, has_labels, name_place, stack_indices
from attnkit.model.rounding import (
    DIFFERENT,
    EPSILON,
    IDENTICAL,
    ROUNDING,
    Judgement,
    LinearFit,
    gap,
    held_dtype,
    judge_arrays,
)
from attnkit.records import Array, Record, Tensor, find_machine

FIGURES = ("largest", "ulp", "relative", "noise", "beyond")
LINE = LinearFit._fields
HEADINGS = ("tensor", "verdict", "ulp", "of largest", "beyond", "scale", "offset", "rest", "where")
SIDES = ("A", "B")  # what both records are called
DERIVED = "noise derived from dtype, depth and size"


class Noise(NamedTuple):
    """The noise of the tensors of a record, measured by running its history.

    floors  the largest difference of each row, by tensor: (rows, 1)
    ties    the whole numbers that rounding gave, by tensor
    source  how it was measured, in words; "" if it was not, with the reason in `problem`
    dtype   that of the record, whose rounding was measured
    """

    floors: Mapping[str, Array] = {}
    ties: Mapping[str, Sequence[Array]] = {}
    source: str = ""
    problem: str = ""
    dtype: str = "float64"

    def floor_of(self, name: str, *compared: Array) -> Array | None:
        """What rounding explains of each row, by the unit of the coarsest array.

        >>> noise = Noise({"x": np.array([[1e-15]])}, dtype="float64")
        >>> float(noise.floor_of("x", np.array([0.1]), np.float32([0.1]))[0, 0] / 1e-15) == 2.0**29
        True
        """
        if name not in self.floors:
            return None
        coarsest = EPSILON[held_dtype(*compared)]
        return self.floors[name] * max(1.0, coarsest / EPSILON[self.dtype])

    def source_of(self, name: str) -> str:
        """How the noise of a tensor is known, in words."""
        return self.source if name in self.floors or name in self.ties else DERIVED


@dataclass(frozen=True)
class JudgedTensor:
    """The verdict of the tensors of one name.

    problem  why they cannot be compared number by number, "" if they can
    first    the first number beyond rounding; of rounding that of the largest difference
    note     what explains the difference, in words
    noise    how the noise is known, in words
    """

    name: str
    judgement: Judgement
    problem: str = ""
    first: Element | None = None
    note: str = ""
    noise: str = DERIVED

    @property
    def verdict(self) -> str:
        """identical, rounding or different."""
        return self.judgement.verdict

    @property
    def is_float(self) -> bool:
        """Whether rounding is measured of its numbers."""
        return self.judgement.noise > 0 and not self.problem


@dataclass(frozen=True)
class RoundingPair:
    """Two records to judge.

    measure  measures the noise of the first record
    """

    takes: ClassVar[tuple[str, ...]] = ("rounding", "all_")

    pair: Pair
    measure: Callable[[], Noise] = Noise

    def compare(self, rounding: bool = True, all_: bool = False) -> "RoundingReport":
        """Judge all tensors; of traces up to the first that differs, unless all.

        >>> a = Record({"x": np.array([1.0, 2.0], np.float32)})
        >>> report = RoundingPair(Pair(a, Record({"x": np.array([1.0, 2.5], np.float32)}))).compare()
        >>> report.same, report.labels["verdict"], report["beyond"].tolist()
        (False, ['different'], [0.5])
        """
        a, b, noise = self.pair.a, self.pair.b, None
        judged = []
        for name in self.pair.names():
            if noise is None and name in a and name in b and not has_no_gap(a[name], b[name]):
                noise = self.measure()
            judged.append(judge_tensors(a, b, name, noise or Noise()))
            if self.pair.traces and not all_ and judged[-1].verdict == DIFFERENT:
                break
        return make_rounding_report(self.pair, judged, noise or Noise())


@dataclass(frozen=True, repr=False)
class RoundingReport(ComparisonReport):
    """The figures of judged tensors, vectors over names, with the judgements.

    The tensor `same` is one boolean: whether none is different. The labels of `verdict` are identical, rounding and
    different.
    """

    pair: Pair = field(kw_only=True, compare=False)
    judged: tuple[JudgedTensor, ...] = field(kw_only=True, compare=False)
    noise: Noise = field(default=Noise(), kw_only=True, compare=False)

    def blocks(self, style: display.Style) -> list[display.Block]:
        rows, closing = listed_tensors(self), [*rounding_lines(self)]
        table = [draw_placed(HEADINGS, rows, judged_cells, style)] if rows else []
        drawn = "\n".join([*table, *map(escaped, closing)])
        cells = [judged_cells(one, style.precision) for one in rows]
        heads = HEADINGS if rows else ()
        return [
            Only("terminal", display.Text(drawn)),
            Only("figure", display.TextTable(heads, cells, range(2, 8) if rows else (), title="verdicts")),
            *(Only("figure", display.Note(line)) for line in closing),
        ]

    def cells(self) -> Cells:
        names = [*FIGURES, *LINE]
        columns = [self.labels["tensor"], self.labels["verdict"], *(self[name] for name in names), self.labels["first"]]
        rows = [list(row) for row in zip(*columns, strict=True)]
        return Cells(["tensor", "verdict", *names, "first"], rows)


def make_rounding_report(pair: Pair, judged: Sequence[JudgedTensor], noise: Noise) -> RoundingReport:
    """Collect judgements as a record of figures."""
    tensors = {"same": Tensor(np.array(all(one.verdict != DIFFERENT for one in judged)), ())}
    for figure in FIGURES:
        tensors[figure] = Tensor(np.array([getattr(one.judgement, figure) for one in judged], np.float64), ("tensor",))
    for part in LINE:
        column = np.array([getattr(one.judgement.line, part) for one in judged], np.float64)
        tensors[part] = Tensor(column, ("tensor",))
    tensors["verdict"] = Tensor(np.array([one.verdict != IDENTICAL for one in judged], bool), ("verdict",))
    tensors["first"] = Tensor(stack_indices([one.first for one in judged]), ("first", "dimension"))
    labels: dict[str, Any] = {
        "tensor": [one.name for one in judged],
        "verdict": [one.verdict for one in judged],
        "first": [one.first.place if one.first else one.problem for one in judged],
    }
    return RoundingReport(tensors, labels, pair=pair, judged=tuple(judged), noise=noise)


def judge_tensors(a: Record, b: Record, name: str, noise: Noise, sides: tuple[str, str] = SIDES) -> JudgedTensor:
    """Judge the tensors of one name.

    sides  what both records are called in words
    """
    nothing = Judgement(DIFFERENT, np.nan, np.nan, np.nan, np.nan, 1.0, LinearFit(np.nan, np.nan, np.nan))
    if name not in a or name not in b:
        return JudgedTensor(name, nothing, f"only in {'A' if name in a else 'B'}")
    x, y = a[name], b[name]
    if x.shape != y.shape:
        turned = x.ndim > 1 and x.swapaxes(-1, -2).shape == y.shape and is_turned(x, y)
        note = "B is A transposed" if turned else ""
        return JudgedTensor(name, nothing, f"shape {x.shape} in A, {y.shape} in B", note=note)
    judgement = judge_arrays(x, y, noise.floor_of(name, x, y), noise.ties.get(name, ()))
    if judgement.verdict == IDENTICAL:
        return JudgedTensor(name, judgement)
    at = judgement.at
    first = Element(at, *name_place(a if has_labels(a, name) else b, name, at), x[at], y[at])
    note = explain_difference(x, y, judgement, sides) if judgement.verdict == DIFFERENT else ""
    return JudgedTensor(name, judgement, first=first, note=note, noise=noise.source_of(name))


def has_no_gap(a: Array, b: Array) -> bool:
    """Whether two arrays have one shape and equal numbers, or NaN in both."""
    return a.shape == b.shape and not gap(a, b).any()


def is_turned(a: Array, b: Array) -> bool:
    """Whether an array is another one transposed, to rounding."""
    return judge_arrays(a.swapaxes(-1, -2), b).verdict != DIFFERENT


def explain_difference(a: Array, b: Array, judgement: Judgement, sides: tuple[str, str] = SIDES) -> str:
    """What explains a difference, in words; "" if nothing does.

    >>> a = np.array([[1.0, 2.0], [4.0, 8.0]], np.float32)
    >>> [explain_difference(a, b, judge_arrays(a, b)) for b in (1.5 * a, a + np.float32(0.25), a.T)]
    ['B = 1.5 · A; the rest is rounding', 'B = A + 0.25; the rest is rounding', 'B is A transposed']
    """
    bad = ~np.isfinite(b) & np.isfinite(a) if b.dtype.kind not in "iub" else np.zeros(b.shape, bool)
    if bad.any():
        kinds = "NaN" if np.isnan(b[bad]).any() else "infinite"
        verb = "is" if bad.sum() == 1 else "are"
        return f"{counted(int(bad.sum()), 'number')} of {sides[1]} {verb} {kinds}, and finite in {sides[0]}"
    if a.ndim > 1 and a.shape[-1] == a.shape[-2] and is_turned(a, b):
        return f"{sides[1]} is {sides[0]} transposed"
    line, size = judgement.line, judgement.largest
    if a.size >= 3 and judgement.noise and size < np.inf and line.rest <= max(judgement.noise, 0.01 * size):
        rest = "the rest is rounding" if line.rest <= judgement.noise else f"the rest is {line.rest:.2g}"
        return f"{sides[1]} = {describe_line(line, judgement, sides[0])}; {rest}"
    return ""


def describe_line(line: LinearFit, judgement: Judgement, side: str = SIDES[0]) -> str:
    """A line in few digits: 1.5 · A + 0.25.

    A part that changes no number by more than the noise is left out.
    """
    largest = judgement.largest / judgement.relative if judgement.relative else 1.0
    least = min(judgement.noise, 0.1 * judgement.largest)
    factor = f"{line.scale:.6g} · {side}" if abs(line.scale - 1) * largest > least else side
    sign = "+" if line.offset > 0 else "−"
    return factor + (f" {sign} {abs(line.offset):.4g}" if abs(line.offset) > least else "")


def listed_tensors(report: RoundingReport) -> list[JudgedTensor]:
    """The tensors with a line in the table; of traces those that are not identical."""
    return [one for one in report.judged if one.verdict != IDENTICAL or not report.pair.traces]


def judged_cells(one: JudgedTensor, precision: int, is_short: bool = False) -> list[str]:
    """The cells of one tensor.

    >>> judged_cells(JudgedTensor("x", Judgement("rounding", 1e-7, 2.0, 1e-7, 1e-6, 0.0, LinearFit(1.0, 0.0, 1e-7))), 4)
    ['x', 'rounding', '2', '1e-07', '0', '1', '0', '1e-07', '']
    """
    place = one.problem or ("" if one.first is None else one.first.short_place if is_short else one.first.place)
    judgement, line = one.judgement, one.judgement.line
    if one.verdict == IDENTICAL or not one.is_float:
        return [one.name, one.verdict, *[UNDEFINED] * 6, place]
    numbers = [f"{judgement.ulp:.3g}", f"{judgement.relative:.2g}", f"{judgement.beyond:.2g}"]
    small = 0.1 * judgement.largest
    numbers += [f"{line.scale:.{max(precision, 1)}g}", "0" if abs(line.offset) <= small else f"{line.offset:.3g}"]
    return [one.name, one.verdict, *numbers, f"{line.rest:.2g}", place]


def rounding_lines(report: RoundingReport) -> list[str]:
    """The verdict in words, what explains it, and the machines of both sides."""
    judged, a, b = report.judged, report.pair.a, report.pair.b
    differing = [one for one in judged if one.verdict == DIFFERENT]
    rounded = [one for one in judged if one.verdict == ROUNDING]
    lines = []
    if differing:
        lines.append(describe_first(differing[0]))
        lines += [f"{one.name}: {one.note}" for one in differing if one.note]
        lines += describe_histories(a, b)
    elif rounded:
        worst = max(rounded, key=lambda one: one.judgement.relative)
        lines.append(f"rounding: {describe_largest(worst.judgement)} ({worst.name}); {worst.noise}")
        ties = [one.name for one in rounded if not one.is_float]
        lines += [f"a tie that rounding decides: {', '.join(ties)}"] * bool(ties)
    else:
        lines.append(f"identical: {counted(len(judged), 'tensor')}")
    if rounded or differing:
        lines += [f"its history was not run: {report.noise.problem}"] * bool(report.noise.problem)
        lines += describe_machines(find_machine(a.history), find_machine(b.history))
    if report.pair.traces and (later := len(report.pair.names()) - len(judged)):
        lines.append(f"{counted(later, 'later stage')} not compared; --all compares all")
    return lines


def describe_largest(judgement: Judgement) -> str:
    """The largest difference in both units.

    >>> describe_largest(Judgement("rounding", 1e-7, 1.0, 2.5e-8))
    'at most 1 ulp, 2.5e-08 of the largest'
    """
    return f"at most {judgement.ulp:.3g} ulp, {judgement.relative:.2g} of the largest"


def describe_first(one: JudgedTensor) -> str:
    """The sentence on the first tensor that differs."""
    if one.problem:
        return f"different: {one.name} ({one.problem})"
    if one.judgement.is_systematic:
        return f"different: {one.name}; each number is within rounding, all of them together are not"
    share = f"{100 * one.judgement.beyond:.3g} % of its numbers"
    return f"different: first {one.name} {one.first}; {share} beyond rounding"


def describe_histories(a: Record, b: Record) -> list[str]:
    """The first commands that differ in two histories; [] if one has none."""
    if not (a.history and b.history):
        return []
    for at, (one, other) in enumerate(zip(a.history, b.history, strict=False), start=1):
        if one["command"] != other["command"]:
            return [f"the commands differ first in stage {at}: {one['command']} | {other['command']}"]
        if changed := changed_file(one, other):
            return [f"stage {at} read another {changed}"]
    if len(a.history) != len(b.history):
        longer = max(a.history, b.history, key=len)
        return [f"one side has a further stage: {longer[min(len(a.history), len(b.history))]['command']}"]
    return []


def changed_file(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first file of an entry of a history whose digest changed, or ""."""
    files = now.get("files", {})
    return next((file for file, digest in then.get("files", {}).items() if files.get(file, digest) != digest), "")


def describe_machines(a: str, b: str) -> list[str]:
    """The machines of both sides in a line, if they are known.

    >>> describe_machines("OpenBLAS Zen", "OpenBLAS Haswell"), describe_machines("OpenBLAS Zen", "OpenBLAS Zen")
    (['A on OpenBLAS Zen; B on OpenBLAS Haswell'], ['both on OpenBLAS Zen'])
    """
    if a and a == b:
        return [f"both on {a}"]
    known = "; ".join(f"{side} on {machine}" for side, machine in (("A", a), ("B", b)) if machine)
    return [known] if known else []
