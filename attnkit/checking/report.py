"""The verdict of a check as a record that shows itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from attnkit import display
from attnkit.checking.verdict import Findings, NamedSlip, Tested
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import escaped
from attnkit.records import Tensor, join_names

MOST_CAUSES = 3  # slips that explain the differences equally, of which a sentence names so many
HIDDEN = "a known slip, whose name is hidden"


@dataclass(frozen=True)
class Subject:
    """What was checked, and how.

    stage    the name of the definition
    title    the implementation with its parameters
    again    the command line that checks it again, for one case
    hides    whether the names of slips are hidden
    """

    stage: str
    title: str
    library: str = ""
    dtype: str = "float32"
    again: str = ""
    hides: bool = False


@dataclass(frozen=True, repr=False)
class CheckReport(ComparisonReport):
    """The outcome of every case of a check.

    The tensor `same` is one boolean. The labels of `case` name the cases, those of `status` and `words` say what came
    of each. The inputs of the smallest case that fails, or of the one that was chosen, are tensors, with its answer and
    what was expected.
    """

    verdict: Findings = field(kw_only=True, compare=False)
    subject: Subject = field(kw_only=True, compare=False)

    @property
    def share(self) -> float:
        """The share of the properties that are right, of those that count."""
        counted_rows = self.verdict.counted
        return sum(row.status == "ok" for row in counted_rows) / len(counted_rows) if counted_rows else 0.0

    def require(self) -> None:
        """Raise AssertionError, whose text is the report, unless every property is right."""
        if not self.same:
            raise AssertionError(f"\n{self!r}")

    def blocks(self, style: display.Style) -> list[display.Block]:
        lines = [opening_line(self), *concluding_lines(self)]
        above, below = escaped(lines[0]), "\n".join(map(escaped, lines[1:]))
        table = display.TextTable(("", "property", "inputs", "largest", ""), property_rows(self), (3,))
        return [display.Text(above), table, display.Text(below)]

    def cells(self) -> Cells:
        rows = [
            [row.drawn.case.name, row.status, row.drawn.describe(), row.largest, row.expected.noise, row.words]
            for row in self.verdict.rows
        ]
        return Cells(["property", "status", "inputs", "largest", "noise", "words"], rows)


def make_check_report(verdict: Findings, subject: Subject, shown: Tested | None = None) -> CheckReport:
    """Collect a verdict as a record.

    shown  the case whose inputs the record has; None for the smallest that fails
    """
    rows = verdict.rows
    shown = shown or verdict.smallest or next((row for row in rows if row.status == "FAIL"), None)
    tensors = {"same": Tensor(np.array(verdict.is_right), ())}
    for name, values in {
        "largest": [row.largest for row in rows],
        "noise": [row.expected.noise for row in rows],
    }.items():
        tensors[name] = Tensor(np.array(values, np.float64), ("case",))
    labels = {"case": [row.drawn.case.name for row in rows]}
    words = {"status": [row.status for row in rows], "words": [row.words for row in rows]}
    for name, texts in words.items():
        tensors[name] = Tensor(np.array([bool(text) for text in texts]), (name,))
    if shown:
        arrays = {name: one for name, one in shown.drawn.given.items() if isinstance(one, np.ndarray)}
        arrays["expected"] = shown.expected.array
        if shown.outcome.array is not None:
            arrays["answer"] = shown.outcome.array
        tensors |= {name: Tensor(one) for name, one in arrays.items()}
    return CheckReport(tensors, {**labels, **words}, verdict=verdict, subject=subject)


def opening_line(report: CheckReport) -> str:
    """What was checked, and the conventions that were found by value."""
    subject = report.subject
    found = "".join(f", {words} (found)" for words in report.verdict.found)
    library = f"{subject.library}, " if subject.library else ""
    return f"{subject.stage}: {subject.title}   {library}{subject.dtype}{found}"


def property_rows(report: CheckReport) -> list[list[str]]:
    """A row for each property."""
    return [
        [row.status, row.drawn.case.name, row.drawn.describe(), figure(row), describe_row(row)]
        for row in report.verdict.rows
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
    if row.status == "skip":
        return row.words
    return row.words or f"first at {list(row.at)}"


def concluding_lines(report: CheckReport) -> list[str]:
    """The count of the properties, and the slip or the smallest case that fails."""
    verdict, subject = report.verdict, report.subject
    right, total = sum(row.status == "ok" for row in verdict.counted), len(verdict.counted)
    lines = [f"{right} of {total} {'property' if total == 1 else 'properties'} right"]
    failing = [row for row in verdict.rows if row.status == "FAIL"]
    if verdict.causes:
        lines.append(describe_causes(verdict.causes, failing, subject.hides))
    elif verdict.smallest:
        lines += describe_smallest(verdict.smallest)
    if failing and subject.again:
        number = [row.drawn.case.name for row in verdict.rows].index(failing[0].drawn.case.name) + 1
        lines.append(f"its inputs: {subject.again} --case {number} -o case.npz")
    return lines


def describe_causes(causes: Sequence[NamedSlip], failing: Sequence[Tested], hides: bool) -> str:
    """A sentence on the slips that explain the differences."""
    largest = max((row.largest for row in failing if not np.isnan(row.largest)), default=np.nan)
    names = " or ".join(dict.fromkeys(cause.slip.name for cause in causes[:MOST_CAUSES]))
    sure = "" if causes[0].is_decisive else "undecidable in this dtype: "
    figures = f"{causes[0].remaining:.0e} instead of {largest:.1g}"
    return f"{sure}equal ({figures}) if {HIDDEN if hides else names}"


def describe_smallest(row: Tested) -> list[str]:
    """Sentences on a case that fails without a known slip."""
    lines = [f"no known slip; the smallest case that fails: {row.drawn.describe() or 'one number'}"]
    if row.at and row.outcome.array is not None:
        got, wanted = row.outcome.array[row.at], row.expected.array[row.at]
        lines.append(f"  its first wrong number is {list(row.at)}: {got:.6g}, expected {wanted:.6g}")
    elif row.words:
        lines.append(f"  {row.words}")
    return lines
