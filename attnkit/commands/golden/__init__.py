"""attnkit golden: named computations against their stored numbers.

cases       the file of cases, in TOML
runs        what a case computes, stage by stage
summaries   a tensor in a few numbers, and the verdict by them
store       the stored numbers: read, compared, written
report      the table, JUnit's XML, annotations of GitHub
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from attnkit import options
from attnkit.cli import views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.options import COMMON, FORMATS, OF_TENSORS
from attnkit.cli.output import Graded
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm, Records
from attnkit.commands.golden.cases import GoldenCase, GoldenFile, read_cases
from attnkit.commands.golden.report import (
    CaseResult,
    GoldenReport,
    make_golden_report,
    write_annotations,
    write_golden_junit,
)
from attnkit.commands.golden.runs import CaseRun, full_tensors, run_case
from attnkit.commands.golden.store import FIRST, Store, bless_case, compare_case, read_store, worst_of, write_store
from attnkit.errors import DataError, UsageError, escaped, suggest
from attnkit.model.rounding import IDENTICAL, ROUNDING
from attnkit.records import Record

JUNIT = "junit"  # the format that this tool has beside those of all


def read_file(stage: Stage, upstream: Records | None) -> Records:
    """Read the file of cases, and take --format, whose junit is text."""
    if len(stage.operands) != 1 or stage.operands[0] == "-":
        raise UsageError("expected the name of one file: attnkit golden numbers.toml")
    chosen = stage.extra.get("format")
    if chosen and chosen != JUNIT:
        stage.common["format"] = chosen
    return Records(None, iter([read_cases(stage.operands[0])]))


def read_path(stage: Stage, inputs: Sequence[Any]) -> Records:
    if len(inputs) != 1 or not isinstance(inputs[0], str | os.PathLike):
        raise UsageError('expected the name of one file: attnkit.golden("numbers.toml")')
    return Records(None, iter([read_cases(os.fspath(inputs[0]))]))


def find_result(stage: Stage) -> str:
    """What a call gives: a record, or the text of JUnit's XML."""
    return "text" if stage.extra.get("format") == JUNIT else "record"


def as_requested(stage: Stage) -> Callable[[Record], str] | None:
    """The function that makes JUnit's XML of the report, if that was requested."""
    if stage.extra.get("format") != JUNIT:
        return None

    def write(report: Record) -> str:
        assert isinstance(report, GoldenReport)
        return Graded.of(write_golden_junit(report), report.status)

    return write


@tool(
    operand="FILE",
    reader=read_file,
    view=views.view_verdict,
    status=lambda report, stage: report.status,
    gives=find_result,
    derived=as_requested,
    needs_no_input=lambda parameters: True,
    rules=Constraints(requires=[("reason", "bless"), ("full", "bless")]),
    sections={"Cases": "case", "Stored numbers": "bless reason full"},
    extra={
        "format": Annotated[
            str,
            typer.Option(
                "--format",
                "-f",
                click_type=typer.main.TyperChoice((*FORMATS, JUNIT)),  # type: ignore[attr-defined]
                metavar="FORMAT",
                help=COMMON["format"].__metadata__[0].help,
            ),
        ]
    },
    without=OF_TENSORS,
    shows_table=True,
    python=PythonForm(inputs={"file": "Path"}, reader=read_path, result="GoldenReport"),
)
def golden(
    file: GoldenFile,
    *,
    case: Annotated[tuple[str, ...], options.names("run these cases alone: comma-separated names")] = (),
    bless: Annotated[
        bool, typer.Option(help="store the numbers of this run where they are new, changed or missing")
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="why changed numbers are right, which is stored with them")
    ] = "",
    full: Annotated[bool, typer.Option(help="store whole tensors too, in FILE.golden.npz")] = False,
) -> Record | str:
    """Compare named computations with stored numbers; exit 1 if one changed.

    FILE is TOML with a table for each case: `pipeline`, tools of attnkit joined by |, `command`, any program that
    writes npz, npy, safetensors or JSON to standard output or to the file of `output`, or `shell`, a line of /bin/sh.
    They run in the folder of FILE, a program for at most `timeout` seconds [60]. `only` names the tensors that count.

    Each stage is identical, the same to rounding, changed, has new NaN, is missing or new. The tolerance is derived:
    --bless runs a pipeline in float64 too and with each stage rounded at random, which measures the noise of its
    numbers; noise of other programs is derived from dtype, depth and size. `rtol` and `atol` of a case replace it.

    --bless writes FILE.golden.json: of each tensor a hash, 64 sums and some samples, with their noise, and the machine.
    Changed numbers need a --reason. Exit code 1 if a case changed, is new or no longer in FILE, 3 if one failed. -f
    markdown writes a table for a summary, -f junit XML for a test report. Under GitHub Actions (GITHUB_ACTIONS=true)
    what is not identical is an annotation too, on standard error.

    \b
    Example:
      echo 'cat.pipeline = "embed cat --dim 4"' > numbers.toml && attnkit golden numbers.toml --bless
    """
    chosen = choose_golden_cases(file, case)
    store = read_store(file)
    runs = {one.name: run_case(one, file.folder, bless) for one in chosen}
    results = [
        CaseResult(
            one,
            compare_case(one, runs[one.name], store),
            runs[one.name].problem,
            store.cases.get(one.name),
        )
        for one in chosen
    ]
    if bless or not case:
        results += list_gone(file, store)
    if bless:
        failed = next((one for one in results if one.problem), None)
        if failed:
            raise DataError(f"[{failed.case.name}] {failed.problem}; nothing is stored", file.path)
        blessed = store_results(file, store, results, runs, escaped(reason.strip(), "\n"), full)
        return make_golden_report(file.path, results, blessed)
    report = make_golden_report(file.path, results)
    if os.environ.get("GITHUB_ACTIONS") == "true" and (lines := write_annotations(report)):
        sys.stderr.write(f"{lines}\n")
    return report


def choose_golden_cases(file: GoldenFile, names: Sequence[str]) -> list[GoldenCase]:
    """The cases of these names, or all."""
    known = {one.name: one for one in file.cases}
    for name in names:
        if name not in known:
            raise UsageError(f"no case {name!r}{suggest(name, known)}", "--case")
    return [known[name] for name in names] if names else [*file.cases]


def list_gone(file: GoldenFile, store: Store) -> list[CaseResult]:
    """The stored cases that are no longer in the file, whose tensors are all missing."""
    known = {one.name for one in file.cases}
    gone = [(name, one) for name, one in store.cases.items() if name not in known]
    cases = [(GoldenCase(name, *next(iter(one.command.items()), ("", ""))), one) for name, one in gone]
    return [CaseResult(case, compare_case(case, CaseRun(), store), stored=one) for case, one in cases]


def store_results(
    file: GoldenFile,
    store: Store,
    results: Sequence[CaseResult],
    runs: Mapping[str, CaseRun],
    reason: str,
    full: bool,
) -> list[str]:
    """Store the numbers of cases that are not the same; return their names.

    UsageError for changed numbers without a reason.
    """
    gone = [one.case.name for one in results if one.is_gone]
    present = [one for one in results if not one.is_gone]
    fresh = [one for one in present if one.stored is None]
    changed = [one for one in present if one.stored is not None and worst_of(one.outcomes) not in (IDENTICAL, ROUNDING)]
    if (changed or gone) and not reason:
        names = ", ".join([*(one.case.name for one in changed), *gone])
        raise UsageError(f"the numbers of {names} changed; --reason TEXT says why that is right", "--bless")
    for name in gone:
        del store.cases[name]
    written = [one.case.name for one in (*fresh, *changed)]
    for one in (*fresh, *changed):
        store.cases[one.case.name] = bless_case(one.case, runs[one.case.name], reason or FIRST)
    if written or gone:
        store.reasons.append({"reason": reason or FIRST, "cases": [*written, *gone]})
    order = [one.name for one in file.cases]
    store.cases = {name: store.cases[name] for name in order if name in store.cases}
    tensors = None
    if full or store.full:
        kept = {name: one for name, one in store.full.items() if name.partition("/")[0] in order}
        fresh_tensors = [
            full_tensors(one.case, runs[one.case.name]) for one in present if full or one.case.name in written
        ]
        tensors = {name: one for name, one in kept.items() if name.partition("/")[0] not in written}
        for part in fresh_tensors:
            tensors |= part
    write_store(file, store, tensors)
    return written
