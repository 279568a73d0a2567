"""The findings of a check as a record that shows itself."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from attnkit import display
from attnkit.checking.verdict import MISSING, Findings, NamedSlip, Tested
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import escaped
from attnkit.records import Labels, Tensor, join_names

MOST_CAUSES = 3  # slips that explain the differences equally, of which a sentence names so many
ANY_ANSWER = "rounding in this dtype explains any answer"
HIDDEN = "a known slip explains every difference"


@dataclass(frozen=True)
class Checked:
    """An implementation of a stage, with what was found of it.

    stage     the name of the definition
    title     the implementation with its parameters
    findings  None where it could not be called, for the reason `problem`
    again     the command line that writes the inputs of a case, {} for its number
    points    what it counts
    """

    stage: str
    title: str
    findings: Findings | None = None
    problem: str = ""
    library: str = ""
    dtype: str = "float32"
    again: str = ""
    points: float = 1.0

    @property
    def status(self) -> str:
        """ "ok" if all properties are right, else "FAIL"; "skip" if not implemented."""
        if self.findings is None or not self.findings.counted:
            return "skip" if self.findings and self.findings.is_missing else "FAIL"
        return "ok" if self.findings.is_right else "FAIL"

    @property
    def share(self) -> float:
        """The share of the properties that are right, of those that count."""
        counted = self.findings.counted if self.findings else []
        return sum(row.status == "ok" for row in counted) / len(counted) if counted else 0.0

    def count(self) -> str:
        """How many properties are right: "3 of 7 properties right"."""
        counted = self.findings.counted if self.findings else []
        right = sum(row.status == "ok" for row in counted)
        skipped = sum(row.status == "skip" for row in self.findings.rows) if self.findings else 0
        untested = f" ({skipped} not tested)" * bool(skipped)
        return f"{right} of {len(counted)} {'property' if len(counted) == 1 else 'properties'} right{untested}"


@dataclass(frozen=True, repr=False)
class CheckReport(ComparisonReport):
    """The outcome of a check: of one implementation, or of all in a file.

    The tensor `same` is one boolean. Of one implementation the labels of `case` name the cases, those of `status` and
    `words` say what came of each, and the inputs of the smallest case that fails, or of the one that was chosen, are
    tensors, with its answer and what was expected. Of several, the labels of `stage` name them.

    hides  whether the names of slips are hidden
    """

    parts: tuple[Checked, ...] = field(kw_only=True, compare=False)
    hides: bool = field(kw_only=True, default=False, compare=False)

    @property
    def share(self) -> float:
        """The share of the points."""
        points = sum(part.points for part in self.parts)
        return sum(part.share * part.points for part in self.parts) / points if points else 0.0

    def require(self) -> None:
        """Raise AssertionError, whose text is the report, unless every property is right."""
        if not self.same:
            raise AssertionError(f"\n{self!r}")

    def blocks(self, style: display.Style) -> list[display.Block]:
        if len(self.parts) > 1:
            return [display.TextTable(("", "stage", "implementation", ""), summary_rows(self.parts, self.hides))]
        (part,) = self.parts
        lines = [opening_line(part), *concluding_lines(part, self.hides)]
        above, below = escaped(lines[0]), "\n".join(map(escaped, lines[1:]))
        table = display.TextTable(("", "property", "inputs", "largest", ""), property_rows(part), (3,))
        return [display.Text(above), *[table] * bool(part.findings), display.Text(below)]

    def cells(self) -> Cells:
        return Cells(
            ["stage", "property", "status", "inputs", "largest", "noise", "words"],
            [
                [part.stage, row.name, row.status, row.drawn.describe(), row.largest, row.expected.noise, row.words]
                for part in self.parts
                for row in (part.findings.rows if part.findings else ())
            ],
        )


def make_check_report(parts: Sequence[Checked], hides: bool = False, shows_case: bool = False) -> CheckReport:
    """Collect what was found of implementations as a record.

    shows_case  whether the record has the inputs of the first case, and not only of one that fails
    """
    same = all(part.status != "FAIL" for part in parts) and any(part.status == "ok" for part in parts)
    tensors = {"same": Tensor(np.array(same), ())}
    if len(parts) == 1 and parts[0].findings:
        return _report_of_one(parts[0], tensors, hides, shows_case)
    tensors["share"] = Tensor(np.array([part.share for part in parts]), ("stage",))
    tensors["status"] = Tensor(np.array([part.status == "ok" for part in parts]), ("status",))
    labels: dict[str, Labels] = {"stage": [part.stage for part in parts], "status": [part.status for part in parts]}
    return CheckReport(tensors, labels, parts=tuple(parts), hides=hides)


def _report_of_one(part: Checked, tensors: dict[str, Tensor], hides: bool, shows_case: bool) -> CheckReport:
    assert part.findings is not None
    rows = part.findings.rows
    tensors["largest"] = Tensor(np.array([row.largest for row in rows], np.float64), ("case",))
    tensors["noise"] = Tensor(np.array([row.expected.noise for row in rows], np.float64), ("case",))
    words: dict[str, Labels] = {"status": [row.status for row in rows], "words": [row.words for row in rows]}
    for name, texts in words.items():
        tensors[name] = Tensor(np.array([bool(text) for text in texts]), (name,))
    failing = part.findings.smallest or next(iter(part.findings.failing), None)
    shown = rows[0] if shows_case else failing
    if shown and not hides:
        arrays = {name: one for name, one in shown.drawn.given.items() if isinstance(one, np.ndarray)}
        arrays["expected"] = shown.expected.array
        if shown.outcome.array is not None:
            arrays["answer"] = shown.outcome.array
        tensors |= {name: Tensor(one) for name, one in arrays.items()}
    return CheckReport(tensors, {"case": [row.name for row in rows], **words}, parts=(part,), hides=hides)


def summary_rows(parts: Sequence[Checked], hides: bool) -> list[list[str]]:
    """A row for each implementation: how many properties are right, and why not all."""
    return [[part.status, part.stage, part.title.partition("(")[0], describe_outcome(part, hides)] for part in parts]


def describe_outcome(part: Checked, hides: bool) -> str:
    """Describe an implementation in a sentence."""
    if part.status == "skip":
        return MISSING
    reasons = [] if part.status == "ok" else reason_lines(part, hides)[:1]
    return "; ".join([part.count(), *reasons])


def opening_line(part: Checked) -> str:
    """What was checked, and the conventions that were found by value."""
    found = "".join(f", {words} (found)" for words in part.findings.found) if part.findings else ""
    library = f"{part.library}, " if part.library else ""
    return f"{part.stage}: {part.title}   {library}{part.dtype}{found}"


def property_rows(part: Checked) -> list[list[str]]:
    """A row for each property; words that the row before has too are not repeated."""
    rows = part.findings.rows if part.findings else ()
    described = [describe_row(row) for row in rows]
    return [
        [row.status, row.name, row.drawn.describe(), figure(row), "likewise" if is_again and row.words else words]
        for row, words, is_again in zip(
            rows, described, [False, *map(operator.eq, described, described[1:])], strict=True
        )
    ]


def figure(row: Tested) -> str:
    """The largest difference, of the largest number; "" where none was measured."""
    return "" if np.isnan(row.largest) or (row.words and row.status != "ok") else f"{row.largest:.1g}"


def describe_row(row: Tested) -> str:
    """Describe a property: its noise where it is right, else what is wrong."""
    if row.outcome.changed:
        return f"it changes {join_names(row.outcome.changed)} in place"
    if row.status == "ok":
        return f"noise {row.expected.noise / (row.expected.scale or 1):.0e}" if row.expected.noise else ""
    if row.status == "note":
        return f"{row.words or 'another answer'}, not counted ({row.drawn.case.note or ANY_ANSWER})"
    if row.words or row.where:
        return row.words or row.where
    return describe_place(row) if row.expected.array.ndim == 0 else f"first at {list(row.at)}"


def describe_place(row: Tested) -> str:
    """The first wrong number beside what is expected there."""
    if row.where:
        return row.where
    assert row.outcome.array is not None
    got, wanted = (f"{array[row.at]:.6g}" for array in (row.outcome.array, row.expected.array))
    return f"{got}, expected {wanted}"


def concluding_lines(part: Checked, hides: bool) -> list[str]:
    """The count of the properties, why not all are right, and where the inputs are."""
    if part.status == "skip":
        return [MISSING]
    lines = [part.count(), *reason_lines(part, hides)]
    failing = part.findings.failing if part.findings else []
    if failing and part.again and not hides:
        lines.append(f"its inputs: {part.again.format(failing[0].number)}")
    return lines


def reason_lines(part: Checked, hides: bool) -> list[str]:
    """Why an implementation is wrong: its slip, or the smallest case that fails."""
    if part.findings is None:
        return [part.problem]
    if part.findings.causes:
        return [describe_causes(part.findings.causes, part.findings.failing, hides), *part.findings.remarks]
    if hides:
        return []
    lines = describe_smallest(part.findings.smallest) if part.findings.smallest else []
    return [*lines, *part.findings.remarks]


def describe_causes(causes: Sequence[NamedSlip], failing: Sequence[Tested], hides: bool) -> str:
    """A sentence on the slips that explain the differences."""
    if hides:
        return HIDDEN
    largest = max((row.largest for row in failing if not np.isnan(row.largest)), default=np.nan)
    names = " or ".join(dict.fromkeys(cause.slip.name for cause in causes[:MOST_CAUSES]))
    sure = "" if causes[0].is_decisive else "undecidable in this dtype: "
    left = describe_small(causes[0].remaining)
    figures = f" ({left} instead of {largest:.1g})" if causes[0].remaining < largest else ""
    return f"{sure}equal{figures} if {names}"


def describe_small(remaining: float) -> str:
    """A difference that a slip leaves.

    >>> describe_small(2.1e-7), describe_small(0)
    ('2e-07', '0')
    """
    return f"{remaining:.0e}" if remaining else "0"


def describe_smallest(row: Tested) -> list[str]:
    """Sentences on a case that fails without a known slip."""
    lines = [f"no known slip; the smallest case that fails: {row.drawn.describe() or row.name}"]
    if row.at and row.outcome.array is not None:
        return [f"{lines[0]}; its first wrong number is {list(row.at)}: {describe_place(row)}"]
    return [f"{lines[0]}; {row.words}"] if row.words else lines
