"""The report of a comparison with a model: figures of sites, and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from attnkit import display
from attnkit.debugger.verdict import SiteRow
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import counted, escaped
from attnkit.model.rounding import IDENTICAL, ROUNDING
from attnkit.records import Tensor, join_names

FIGURES = ("largest", "cosine", "inherited", "added", "noise")
WORDS = ("kind", "verdict", "cause")
HEADINGS = ("stage", "max |a−b|", "cosine", "inherited", "added", "noise", "")
MOST = 4  # sites without a named cause that have a sentence
EQUAL = "becomes equal (difference {:.1g} instead of {:.2g})"
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}


@dataclass(frozen=True)
class Facts:
    """What a report states about both sides before any number.

    ids        where the token ids first differ, "" if they are the same
    file       the file of the implementation
    names      the scheme of its names
    found      the number of sites that it has, and of all sites; unknown: its names of no site
    dtype      the dtype that most of its sites have
    notes      layouts and orders that had to be found
    why        whether causes were looked for
    shows_all  whether the table lists the sites that are the same too
    """

    file: str
    names: str = ""
    ids: str = ""
    tokens: int = 0
    found: tuple[int, int] = (0, 0)
    unknown: tuple[str, ...] = ()
    dtype: str = "float32"
    notes: tuple[str, ...] = ()
    why: bool = False
    shows_all: bool = False


@dataclass(frozen=True, repr=False)
class VerdictReport(ComparisonReport):
    """The figures of the sites of an implementation, with their rows.

    The tensor `same` is one boolean. The labels of `kind`, `verdict` and `cause` say of each site what is wrong, how
    sure its cause is, and the cause.
    """

    rows: tuple[SiteRow, ...] = field(kw_only=True, compare=False)
    facts: Facts = field(kw_only=True, compare=False)

    def blocks(self, style: display.Style) -> list[display.Block]:
        heads, *rows = verdict_cells(self, style.precision)
        opening, closing = opening_lines(self), verdict_lines(self)
        table = display.TextTable(heads, rows, range(1, len(heads) - 1))
        above, below = ("\n".join(map(escaped, lines)) for lines in (opening, closing))
        return [
            *[display.Only("terminal", display.Text(above))] * bool(opening),
            *[display.Only("terminal", table)] * bool(rows),
            *[display.Only("terminal", display.Text(below))] * bool(closing),
            display.Only("figure", table._replace(heads=heads if rows else (), title="stages")),
            *(display.Only("figure", display.Note(line)) for line in (*opening, *closing)),
        ]

    def cells(self) -> Cells:
        columns = [*(self[name] for name in FIGURES), *(self.labels[name] for name in WORDS)]
        rows = zip(self.labels["stage"], *columns, strict=True)
        return Cells(["stage", *FIGURES, *WORDS], [list(row) for row in rows])


def make_verdict(rows: Sequence[SiteRow], facts: Facts) -> VerdictReport:
    """Collect the rows of all sites as a record of figures.

    >>> report = make_verdict([SiteRow("decoder.norm", "numeric", 2.0, 0.5, 0.0, 2.0, 1e-6, 9.0)], Facts("mine.npz"))
    >>> report.same, report["added"].tolist(), report.labels["kind"]
    (False, [2.0], ['numeric'])
    """
    tensors = {"same": Tensor(np.array(not (facts.ids or any(row.differs for row in rows))), ())}
    for name in FIGURES:
        tensors[name] = Tensor(np.array([getattr(row, name) for row in rows], np.float64), ("stage",))
    words = {
        "kind": [row.kind for row in rows],
        "verdict": [row.verdict for row in rows],
        "cause": ["; ".join(cause.name for cause in row.causes) for row in rows],
    }
    for name, of_rows in words.items():
        tensors[name] = Tensor(np.array([bool(word) for word in of_rows]), (name,))
    return VerdictReport(tensors, {"stage": [row.site for row in rows], **words}, rows=tuple(rows), facts=facts)


def listed_rows(report: VerdictReport) -> list[SiteRow]:
    """The rows of the table: those that differ, or all."""
    return [row for row in report.rows if row.differs or report.facts.shows_all]


def verdict_cells(report: VerdictReport, precision: int = 4) -> list[list[str]]:
    """The table of the sites, its headings first."""
    digits = max(precision, 1)
    rows = [[*HEADINGS[:5], *HEADINGS[5:6] * report.facts.shows_all, *HEADINGS[6:]]]
    for row in listed_rows(report):
        figures = [f"{row.largest:.{digits}g}", f"{row.cosine:.{digits + 2}g}"]
        figures += [brief(number, row.noise, min(digits, 2)) for number in (row.inherited, row.added)]
        figures += [f"{row.noise:.1g}"] * report.facts.shows_all
        shown = ["–" if text == "nan" else text for text in figures]
        same = ROUNDING if row.largest > 0 else IDENTICAL
        rows.append([row.site, *shown, row.verdict or row.kind or same])
    return rows


def brief(number: float, noise: float, digits: int) -> str:
    """A number in few digits, or that it is noise.

    >>> brief(0.1234, 1e-6, 2), brief(2.3e-7, 1e-6, 2)
    ('0.12', 'noise')
    """
    return f"{number:.{digits}g}" if not 0 < number <= noise else "noise"


def opening_lines(report: VerdictReport) -> list[str]:
    """The lines on token ids, sites by name, and tensors without a site."""
    facts = report.facts
    read = f"{facts.ids}; the stages are judged with those of {facts.file}" if facts.ids else "the same"
    lines = [f"token ids: {read} ({counted(facts.tokens, 'token')})"] if facts.tokens else []
    here, all_sites = facts.found
    lines.append(f"stages: {here} of {all_sites} are in {facts.file}, by {facts.names}; {facts.dtype}")
    if facts.unknown:
        others = counted(len(facts.unknown), "other name")
        lines.append(f"not compared: {others} of no stage, as {join_names(facts.unknown, 2)}")
    return [*lines, *facts.notes]


def verdict_lines(report: VerdictReport) -> list[str]:
    """The first site that adds a difference, and the causes that were found."""
    differing = [row for row in report.rows if row.differs]
    if not differing:
        if not report.rows:
            return ["nothing to compare"]
        worst = max((row for row in report.rows if row.kind != "missing"), key=lambda row: row.largest)
        if not worst.largest > 0:
            return [f"{IDENTICAL}: {counted(len(report.rows), 'stage')}"]
        largest = f"largest difference {worst.largest:.3g}, {worst.site}"
        return [f"{ROUNDING}: the same within the noise of {report.facts.dtype} ({largest})"]
    first = differing[0]
    lines = [f"first stage that adds a difference: {first.site} ({describe_addition(first)})"]
    if not report.facts.why:
        return [*lines, "--why looks for the cause"]
    groups = group_by_cause(differing)
    unexplained = [rows for rows in groups if rows[0].verdict != "named"]
    for rows in groups:
        if rows not in unexplained[MOST:]:
            lines += describe_cause(rows, report.facts.dtype)
    if len(unexplained) > MOST:
        lines.append(f"{counted(len(unexplained) - MOST, 'more stage')} without a named cause")
    return lines


def describe_addition(row: SiteRow) -> str:
    if row.kind in ("shape", "dtype", "not finite"):
        return row.note
    return f"it adds {row.added:.3g}"


def group_by_cause(rows: Sequence[SiteRow]) -> list[list[SiteRow]]:
    """The rows that the same slips explain; a row without a cause is alone."""
    groups: dict[tuple[str, ...], list[SiteRow]] = {}
    for row in rows:
        names = tuple(sorted(cause.name for cause in row.causes)) if row.verdict == "named" else (row.site,)
        groups.setdefault((row.verdict, *names), []).append(row)
    return [*groups.values()]


def describe_cause(rows: Sequence[SiteRow], dtype: str) -> list[str]:
    """Sentences on rows of one cause."""
    row = rows[0]
    if row.verdict == "named":
        best = row.causes[0]
        names = " or ".join(cause.name for cause in row.causes)
        lines = [f"{row.site}: {EQUAL.format(best.remaining, row.added)} if {names}"]
        others = [one.site for one in rows[1:]]
        return lines + [f"  the same explains {counted(len(others), 'more stage')}: {join_names(others, 6)}"] * bool(
            others
        )
    if row.verdict == "undecidable":
        near = f": {join_names([cause.name for cause in row.causes], 3)} would explain it" if row.causes else ""
        advice = f"record in {WIDER[dtype]}" if dtype in WIDER else "take a longer text"
        return [
            f"{row.site}: undecidable at {dtype} (it adds {row.added:.2g}; noise is {row.noise:.1g}){near}; {advice}"
        ]
    if row.verdict == "unknown":
        near = "; ".join(f"{cause.name} leaves {cause.remaining:.2g}" for cause in row.causes)
        return [f"{row.site}: no known slip explains it (it adds {row.added:.2g}); the nearest: {near or 'none'}"]
    return [f"{row.site}: {describe_addition(row)}"]
