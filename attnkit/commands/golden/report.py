"""The report of golden numbers: a row for each stage; JUnit's XML; annotations."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

import numpy as np

from attnkit import display
from attnkit.checking.grading import clean
from attnkit.commands.golden.cases import GoldenCase
from attnkit.commands.golden.store import StoredCase, state_machine, worst_of
from attnkit.commands.golden.summaries import MISSING, NEW, VERDICTS, TensorOutcome
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import counted, escaped
from attnkit.model.rounding import IDENTICAL, ROUNDING
from attnkit.records import Labels, Tensor, join_names

FAILED = "failed"
UNDEFINED = "–"
HEADINGS = ("case", "stage", "verdict", "ulp", "of largest", "")
SAME = (IDENTICAL, ROUNDING)  # verdicts that are no change


@dataclass(frozen=True)
class StageRow:
    """The verdict of a stage of a case, or of several that are identical.

    outcomes  of its tensors, by their names
    """

    case: str
    stage: str
    verdict: str
    outcomes: Mapping[str, TensorOutcome] = field(default_factory=dict)
    words: str = ""

    @property
    def worst(self) -> tuple[str, TensorOutcome] | None:
        """The tensor that differs most, and its outcome; None if all are identical."""
        found = [(name, one) for name, one in self.outcomes.items() if one.verdict == self.verdict]
        return max(found, key=lambda one: one[1].judgement.relative if one[1].judgement else 0.0, default=None)

    def figures(self) -> tuple[float, float]:
        """The largest difference in units in the last place, and of the largest number."""
        worst = self.worst
        judgement = worst[1].judgement if worst else None
        return (judgement.ulp, judgement.relative) if judgement else (np.nan, np.nan)

    def describe(self) -> str:
        """The tensor that differs most and how, in words."""
        if self.words or self.verdict == IDENTICAL or not self.worst:
            return self.words
        name, outcome = self.worst
        others = [one for one, found in self.outcomes.items() if found.verdict != IDENTICAL and one != name]
        more = f" (also {join_names(others, 3)})" if others else ""
        return f"{name}{': ' if outcome.words else ''}{outcome.words}{more}"


@dataclass(frozen=True)
class CaseResult:
    """What came of a case.

    outcomes  of its tensors, by stage and name
    problem   why it computed nothing, or ""
    stored    what is stored of it, or None
    """

    case: GoldenCase
    outcomes: Mapping[str, TensorOutcome]
    problem: str = ""
    stored: StoredCase | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the case is stored, and no longer in the file."""
        return bool(self.outcomes) and all(one.verdict == MISSING for one in self.outcomes.values())

    @property
    def verdict(self) -> str:
        """The verdict of the case: that of its worst tensor, or failed."""
        return FAILED if self.problem else worst_of(self.outcomes)

    def rows(self) -> list[StageRow]:
        """A row for each stage."""
        if self.problem:
            return [StageRow(self.case.name, "", FAILED, words=self.problem)]
        if self.is_gone:
            return [StageRow(self.case.name, "", MISSING, words="stored, and no longer a case")]
        stages: dict[str, dict[str, TensorOutcome]] = {}
        for name, outcome in self.outcomes.items():
            stage, _, tensor = name.partition("/")
            stages.setdefault(stage, {})[tensor] = outcome
        return [StageRow(self.case.name, stage, worst_of(found), found) for stage, found in stages.items()]

    def listed(self) -> list[StageRow]:
        """The rows of the table: one if all its stages are identical or new."""
        rows = self.rows()
        if len(rows) > 1 and self.verdict in (IDENTICAL, NEW) and len({row.verdict for row in rows}) == 1:
            return [StageRow(self.case.name, counted(len(rows), "stage"), self.verdict)]
        return rows


@dataclass(frozen=True, repr=False)
class GoldenReport(ComparisonReport):
    """The outcome of a file of cases.

    The tensor `same` is one boolean: whether nothing changed and nothing failed. The labels of `stage` and `verdict`
    say what came of each stage.

    path    the file; blessed: the names of the cases whose numbers were written
    """

    path: str = field(kw_only=True, compare=False)
    results: tuple[CaseResult, ...] = field(kw_only=True, compare=False)
    blessed: tuple[str, ...] | None = field(default=None, kw_only=True, compare=False)

    @property
    def status(self) -> int:
        """The exit code: 3 if a case failed, 1 if one changed, else 0."""
        return 3 if any(one.problem for one in self.results) else int(not self.same)

    def blocks(self, style: display.Style) -> list[display.Block]:
        rows = [[escaped(one) for one in row_cells_of(row)] for result in self.results for row in result.listed()]
        closing = "\n".join(map(escaped, closing_sentences(self)))
        return [display.TextTable(HEADINGS, rows, (3, 4)), display.Text(closing)]

    def cells(self) -> Cells:
        rows = [[*row_cells_of(row)] for result in self.results for row in result.rows()]
        return Cells([*HEADINGS[:-1], "words"], rows)


def make_golden_report(path: str, results: Sequence[CaseResult], blessed: Sequence[str] | None = None) -> GoldenReport:
    """Collect the results of cases as a record."""
    rows = [row for result in results for row in result.rows()]
    is_same = blessed is not None or all(row.verdict in SAME for row in rows)
    is_same = is_same and not any(result.problem for result in results)
    figures = np.array([row.figures() for row in rows], np.float64).reshape(len(rows), 2)
    tensors = {
        "same": Tensor(np.array(is_same), ()),
        "ulp": Tensor(figures[:, 0], ("stage",)),
        "relative": Tensor(figures[:, 1], ("stage",)),
        "verdict": Tensor(np.array([row.verdict not in SAME for row in rows], bool), ("verdict",)),
        "words": Tensor(np.array([bool(row.describe()) for row in rows], bool), ("words",)),
    }
    labels: dict[str, Labels] = {
        "stage": [f"{row.case}: {row.stage}" if row.stage else row.case for row in rows],
        "verdict": [row.verdict for row in rows],
        "words": [row.describe() for row in rows],
    }
    chosen = None if blessed is None else tuple(blessed)
    return GoldenReport(tensors, labels, path=path, results=tuple(results), blessed=chosen)


def row_cells_of(row: StageRow) -> list[str]:
    """The cells of a stage."""
    ulp, relative = (UNDEFINED if np.isnan(one) else f"{one:.2g}" for one in row.figures())
    return [row.case, row.stage, row.verdict, ulp, relative, row.describe()]


def closing_sentences(report: GoldenReport) -> list[str]:
    """The verdict in words, the machines, and what to do."""
    counts = {verdict: sum(one.verdict == verdict for one in report.results) for verdict in (*VERDICTS, FAILED)}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    lines = [f"{counted(len(report.results), 'case')}: {', '.join(parts)}"]
    if report.blessed is not None:
        names = f": {join_names(report.blessed)}" if report.blessed else ""
        gone = [one.case.name for one in report.results if one.is_gone]
        removed = [f"removed: {counted(len(gone), 'case')}: {join_names(gone)}"] * bool(gone)
        return [*lines, f"stored: {counted(len(report.blessed), 'case')}{names}", *removed]
    lines += describe_changes(report.results)
    moved = {one.verdict for one in report.results} - {*SAME, FAILED}
    if moved:
        reason = "" if moved == {NEW} else " --reason '…'"
        lines.append(f"attnkit golden {shlex.quote(report.path)} --bless{reason} stores the numbers of this run")
    return lines


def describe_changes(results: Sequence[CaseResult]) -> list[str]:
    """What is known of cases that are not identical: another command, another machine."""
    lines, here = [], state_machine()
    for result in results:
        stored = result.stored
        if result.verdict in (*SAME, NEW, FAILED) or stored is None or result.is_gone:
            continue
        if first := next((row.stage for row in result.rows() if row.verdict not in SAME), ""):
            lines.append(f"{result.case.name}: the first stage that moved is {first}")
        then = next(iter(stored.command.values()), "")
        if then != result.case.text:
            lines.append(f"{result.case.name}: the command was: {then}")
        lines.append(f"{result.case.name}: stored because: {stored.reason}")
    others = dict.fromkeys(one.stored.machine for one in results if one.stored and one.verdict != IDENTICAL)
    return [*lines, *(f"stored on {then}; this is {here}" for then in others if then != here)]


def write_golden_junit(report: GoldenReport) -> str:
    """A test suite for each case, with a test for each stage."""
    suites = ElementTree.Element("testsuites", name="attnkit golden")
    for result in report.results:
        rows = result.rows()
        failures = [row for row in rows if row.verdict not in (*SAME, FAILED)]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=result.case.name,
            tests=str(len(rows)),
            failures=str(len(failures)),
            errors=str(int(bool(result.problem))),
        )
        for row in rows:
            case = ElementTree.SubElement(suite, "testcase", classname=row.case, name=row.stage or "run")
            message = clean(f"{row.verdict}: {row.describe()}".removesuffix(": "))
            if row in failures or result.problem:
                ElementTree.SubElement(case, "error" if result.problem else "failure", message=message)
            elif row.verdict == ROUNDING:
                ElementTree.SubElement(case, "system-out").text = message
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def write_annotations(report: GoldenReport) -> str:
    """The stages that are not identical as workflow commands of GitHub.

    Source: "Workflow commands for GitHub Actions".
    """
    lines = []
    for result in report.results:
        for row in result.rows():
            if row.verdict == IDENTICAL:
                continue
            level = "notice" if row.verdict == ROUNDING else "error"
            place = (
                f"file={as_property(report.path)},line={result.case.line},title={as_property(f'golden: {row.case}')}"
            )
            words = f"{row.stage} {row.verdict}: {row.describe()}".strip().removesuffix(": ")
            lines.append(f"::{level} {place}::{as_data(words)}")
    return "\n".join(lines)


def as_data(text: str) -> str:
    """A text as the message of a workflow command.

    >>> as_data("50 %\\n::error::")
    '50 %25%0A::error::'
    """
    return escaped(text, "\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_property(text: str) -> str:
    """A text as a property of a workflow command.

    >>> as_property("a:b,c")
    'a%3Ab%2Cc'
    """
    return as_data(text).replace(":", "%3A").replace(",", "%2C")
