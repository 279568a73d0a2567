"""The stored numbers of a file of cases: read, compared, and written anew."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnkit import __version__, formats
from attnkit.commands.golden.cases import GoldenCase, GoldenFile, stored_command
from attnkit.commands.golden.runs import CaseRun, join_stages
from attnkit.commands.golden.summaries import (
    MISSING,
    NEW,
    VERDICTS,
    Summary,
    TensorOutcome,
    compare_full,
    compare_stored,
    digest_of,
    read_summary,
    summarize_tensor,
    write_summary,
)
from attnkit.errors import DataError, FileError, counted
from attnkit.formats.json_text import parse_json
from attnkit.model.processor.machine import count_threads, describe_machine
from attnkit.model.rounding import IDENTICAL
from attnkit.records import Record

FIRST = "first numbers"  # the reason of what is stored first
NOT_GOLDEN = "not a file of golden numbers; attnkit golden FILE --bless writes one"
LONGEST = 64 << 20  # bytes of a file of stored numbers


@dataclass(frozen=True)
class StoredCase:
    """What is stored of a case.

    command  what it ran, by its way
    machine  where it ran: the loops of BLAS, NumPy, the threads of BLAS
    reason   why these numbers are right, as their author says
    tensors  by stage and name, as 3.attend/x
    """

    command: Mapping[str, str]
    machine: str
    reason: str
    tensors: Mapping[str, Summary]


@dataclass
class Store:
    """The stored cases, the reasons for their numbers, and whole tensors."""

    cases: dict[str, StoredCase] = field(default_factory=dict)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    full: Mapping[str, Any] = field(default_factory=dict)


def state_machine() -> str:
    """This machine with its threads: OpenBLAS Zen, NumPy 2.4.6, 2 threads."""
    threads = count_threads()
    return f"{describe_machine()}, {counted(threads, 'thread')}" if threads else describe_machine()


def read_store(file: GoldenFile) -> Store:
    """Read what is stored beside a file of cases; an empty store if nothing is."""
    if not os.path.exists(file.stored):
        return Store()
    try:
        with open(file.stored, "rb") as opened:
            data = opened.read(LONGEST + 1)
    except OSError as error:
        raise FileError(error.strerror or "cannot be read", file.stored) from None
    try:
        values = parse_json(data[:LONGEST])
        cases = {name: read_stored(case, file.stored) for name, case in values["cases"].items()}
        reasons = [dict(one) for one in values["reasons"]]
    except DataError as error:
        raise DataError(error.problem, file.stored) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(NOT_GOLDEN, file.stored) from None
    full = formats.load(file.tensors).arrays() if os.path.exists(file.tensors) else {}
    return Store(cases, reasons, full)


def read_stored(values: Mapping[str, Any], path: str) -> StoredCase:
    """A stored case from JSON values."""
    tensors = {str(name): read_summary(one, path) for name, one in values["tensors"].items()}
    command = {str(way): str(text) for way, text in values["command"].items()}
    return StoredCase(command, str(values["machine"]), str(values["reason"]), tensors)


def compare_case(case: GoldenCase, run: CaseRun, store: Store) -> dict[str, TensorOutcome]:
    """The outcome of every tensor of a case, by stage and name."""
    stored = store.cases.get(case.name)
    now = join_stages(run.stages)
    then = stored.tensors if stored else {}
    outcomes = {}
    for name in now:
        if name not in then:
            outcomes[name] = TensorOutcome(NEW)
            continue
        full, tolerance = store.full.get(f"{case.name}/{name}"), (case.rtol, case.atol)
        if full is not None and digest_of(full) == then[name].digest:
            outcomes[name] = compare_full(full, now[name], then[name], *tolerance)
        else:
            outcomes[name] = compare_stored(then[name], now[name], *tolerance)
    return outcomes | {name: TensorOutcome(MISSING) for name in then if name not in now}


def worst_of(outcomes: Mapping[str, TensorOutcome]) -> str:
    """The verdict that counts of several.

    >>> worst_of({"a": TensorOutcome("rounding"), "b": TensorOutcome("missing")}), worst_of({})
    ('missing', 'identical')
    """
    return max((one.verdict for one in outcomes.values()), key=VERDICTS.index, default=IDENTICAL)


def bless_case(case: GoldenCase, run: CaseRun, reason: str) -> StoredCase:
    """What is stored of a run that measured its noise."""
    joined = join_stages(run.stages)
    tensors = {
        name: summarize_tensor(joined[name], run.noise.floors.get(name), run.noise.ties.get(name, ()))
        for name in joined
    }
    return StoredCase(stored_command(case), state_machine(), reason, tensors)


def write_store(file: GoldenFile, store: Store, full: Mapping[str, Any] | None) -> None:
    """Write what is stored, both files in one step.

    full  the tensors of --full, None for none
    """
    with formats.write_together() as opened:
        opened(file.stored).write([lay_out(store).encode()])
        if full is not None:
            opened(file.tensors).write(formats.encode(Record(dict(full)), "npz"))


def lay_out(store: Store) -> str:
    """JSON with a line for each tensor, so that a change is a few lines of a diff."""
    reasons = ",\n".join(f"  {compact(one)}" for one in store.reasons)
    cases = ",\n".join(lay_out_case(name, one) for name, one in store.cases.items())
    head = f'{{\n "version": {compact(__version__)},\n "reasons": [\n{reasons}\n ],\n "cases": {{\n'
    return f"{head}{cases}\n }}\n}}\n"


def lay_out_case(name: str, case: StoredCase) -> str:
    """The lines of a case."""
    facts = {"command": dict(case.command), "machine": case.machine, "reason": case.reason}
    lines = [f"   {compact(key)}: {compact(value)}," for key, value in facts.items()]
    tensors = [f"    {compact(one)}: {compact(write_summary(summary))}" for one, summary in case.tensors.items()]
    return "\n".join([f"  {compact(name)}: {{", *lines, '   "tensors": {', ",\n".join(tensors), "   }", "  }"])


def compact(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
