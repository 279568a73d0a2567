"""attnkit check: verify an implementation of a stage, and name its slip."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import typer

from attnkit import display, options
from attnkit.checking.callees import Callee, closing, open_file, open_object
from attnkit.checking.definition import Definition
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.programs import SENT, ProgramCallee
from attnkit.checking.report import CheckReport, Subject, make_check_report
from attnkit.checking.verdict import Examiner, StatedTolerance
from attnkit.cli.calls import tool
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.output import list_text
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm, Records
from attnkit.errors import UsageError, suggest

DTYPES = ("float32", "float64", "float16", "bfloat16")
LIBRARIES = ("torch", "numpy", "jax")


@dataclass(frozen=True)
class Assignment:
    """The name of a definition, and the words or the object of an implementation."""

    stage: str
    target: tuple[Any, ...]


class Conventions(NamedTuple):
    """What an implementation expects, where it is not to be found."""

    bind: Annotated[
        tuple[str, ...],
        options.names("the argument that a parameter takes: --bind hidden=x,theta=eps", metavar="PARAMETER=ARGUMENT"),
    ] = ()
    convention: Annotated[
        tuple[str, ...],
        options.names("the way of a convention: --convention mask=block, weights=in-out", metavar="NAME=WAY"),
    ] = ()
    as_: Annotated[str | None, options.choice(LIBRARIES, "whose arrays it takes [default: what its file imports]")] = (
        None
    )


class Limits(NamedTuple):
    """How an implementation runs, and what it may use."""

    send: Annotated[
        str,
        options.choice(
            SENT,
            "what a program reads: a record of its inputs by name as NPZ or JSON, tensors as NPY one after another, or "
            "their bare float32 numbers",
        ),
    ] = "npz"

    python: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="interpreter that runs a file: .venv/bin/python [default: that of attnkit]"),
    ] = None
    timeout: Annotated[
        float, typer.Option(click_type=options.ABOVE_0, metavar="SECONDS", help="seconds that each case may take")
    ] = 10.0
    memory: Annotated[
        float | None,
        typer.Option(click_type=options.ABOVE_0, metavar="GIB", help="address space of its process, in GiB"),
    ] = None


def read_request(stage: Stage, upstream: Records | None) -> Records:
    name, *target = stage.operands or ("",)
    return Records(None, iter([Assignment(name, tuple(target))]))


def read_objects(stage: Stage, inputs: Sequence[Any]) -> Records:
    if len(inputs) != 2 or not isinstance(inputs[0], str):
        raise UsageError('expected a stage and an implementation: attnkit.check("attend", attention)')
    return Records(None, iter([Assignment(inputs[0], (inputs[1],))]))


def view_check(report: CheckReport, stage: Stage, style: display.Style) -> display.ResultView:
    return report.view(style)


@tool(
    operand="[STAGE] [IMPLEMENTATION]...",
    reader=read_request,
    view=view_check,
    status=lambda record, stage: int(not record["same"]),
    needs_no_input=lambda parameters: True,
    gives=lambda stage: "record" if len(stage.operands) != 1 and stage.operands else "report",
    sections={"Cases": "seed dtype case tolerance hide_slip", "Implementation": "conventions limits"},
    without=OF_TENSORS,
    shows_table=True,
    python=PythonForm(inputs={"stage": "str", "implementation": "Any"}, reader=read_objects, result="CheckReport"),
)
def check(
    request: Assignment,
    *,
    seed: Annotated[int, typer.Option(min=0, help="draw the inputs from this seed")] = 0,
    dtype: Annotated[str, options.choice(DTYPES, "dtype of the inputs")] = "float32",
    case: Annotated[
        int | None,
        typer.Option(min=1, help="check this case alone; -o FILE writes its inputs, the answer and the right one"),
    ] = None,
    tolerance: Annotated[
        StatedTolerance,
        options.OptionsOf(
            rtol=typer.Option(min=0, help="tolerance of the largest number, in place of measured noise"),
            atol=typer.Option(min=0, help="absolute tolerance, in place of measured noise"),
        ),
    ],
    hide_slip: Annotated[bool, typer.Option(help="do not name slips, as in an exam")] = False,
    conventions: Conventions,
    limits: Limits,
) -> CheckReport | str:
    """Verify an implementation by tensors that pass through it, and name its slip.

    IMPLEMENTATION is a function or a class of Python, FILE.py:NAME or MODULE:NAME; a graph, FILE.onnx; or after -- a
    program that reads its inputs on standard input and writes its answer. Without one, the stage is explained: the
    signature that it expects, and the properties that are tested; without a stage, all are listed.

    Each property is a kind of input, drawn from a seed. The answer may differ by what rounding explains, which is
    measured. Conventions in which right implementations differ, such as the layout of a weight or what True means in
    a mask, are found by value and printed; one is accepted only if it explains every case. Where a known slip explains
    every difference, it is named; otherwise the smallest case that fails is shown. The exit code is 0 if every property
    is right, 1 if not, and 3 if the implementation cannot be loaded.

    A file runs in a process of its own, with limits of time and memory, but not in a sandbox (`attnkit help checking`).

    \b
    Examples:
      attnkit check attend mine.py:attention
      attnkit check layernorm mine.py:LayerNorm --python .venv/bin/python
      attnkit check softmax --send npy -- ./my_program
    """
    if not request.stage:
        rows = [{"stage": name, "computes": one.summary} for name, one in DEFINITIONS.items()]
        return list_text("stages", rows, display.TextTable(("stage", "computes"), [[*row.values()] for row in rows]))
    definition = find_definition(request.stage)
    if not request.target:
        return explain(request.stage, definition)
    chosen = choose_cases(definition, case)
    fixed = read_conventions(definition, conventions.convention)
    with closing(open_callee(definition, request.target, conventions, limits)) as callee:
        judge = Examiner(definition, callee, seed, dtype, fixed, tolerance)
        verdict = judge.judge(chosen)
        subject = Subject(request.stage, callee.title, callee.library, dtype, command_again(request), hide_slip)
    return make_check_report(verdict, subject, verdict.rows[0] if case else None)


def find_definition(name: str) -> Definition:
    if name not in DEFINITIONS:
        raise UsageError(f"no stage {name!r}{suggest(name, DEFINITIONS) or '; attnkit check lists them'}")
    return DEFINITIONS[name]


def explain(name: str, definition: Definition) -> str:
    """The signature that a stage expects, and the properties that it tests."""
    lines = [f"{name}: {definition.summary}", "", definition.signature(name), ""]
    lines += [f"{at}  {one.name}" for at, one in enumerate(definition.cases, 1)]
    ways = [f"{one}: {', '.join(rows)}" for one, rows in definition.conventions.items()]
    lines += ["", *(f"convention {one}" for one in ways)] * bool(ways)
    return "\n".join([*lines, "", f"{len(definition.slips)} slips have names"])


def choose_cases(definition: Definition, number: int | None) -> Sequence[Any]:
    if number is None:
        return definition.cases
    if number > len(definition.cases):
        raise UsageError(f"it has {len(definition.cases)} cases, no case {number}", "--case")
    return definition.cases[number - 1 : number]


def read_conventions(definition: Definition, stated: Sequence[str]) -> dict[str, str]:
    """The way of each convention that is stated."""
    fixed = split_pairs(stated, "--convention")
    for name, way in fixed.items():
        if name not in definition.conventions:
            known = ", ".join(definition.conventions) or "none"
            raise UsageError(f"no convention {name!r}; this stage has {known}", "--convention")
        if way not in definition.conventions[name]:
            raise UsageError(f"expected {'|'.join(definition.conventions[name])}, got {way!r}", "--convention")
    return fixed


def split_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Split texts at their equals sign; UsageError where one has none.

    >>> split_pairs(["a=b"], "--bind")
    {'a': 'b'}
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"expected NAME=VALUE, got {text!r}", flag)
        pairs[name] = value
    return pairs


def open_callee(definition: Definition, target: Sequence[Any], conventions: Conventions, limits: Limits) -> Callee:
    """Open the implementation that words of a command line name, or an object."""
    stated = split_pairs(conventions.bind, "--bind")
    library = conventions.as_ or ""
    first, *more = target
    if not isinstance(first, str):
        return open_object(definition, first, library, stated)
    memory = int((limits.memory or 0) * 2**30)
    if more or not is_python(first):
        return ProgramCallee(definition, target, limits.send, limits.timeout, memory)
    python = limits.python or sys.executable
    return open_file(definition, first, python, limits.timeout, memory, library, stated)


def is_python(target: str) -> bool:
    """Whether a word names Python: FILE.py, FILE.py:NAME or MODULE:NAME.

    >>> is_python("mine.py"), is_python("mine.py:f"), is_python("package.module:f"), is_python("./mine")
    (True, True, True, False)
    """
    path, colon, _ = target.partition(":")
    return path.endswith((".py", ".onnx")) or (bool(colon) and "/" not in path)


def command_again(request: Assignment) -> str:
    """The command line that checks it again; "" for an object of Python."""
    words = [one for one in request.target if isinstance(one, str)]
    return shlex.join(["attnkit", "check", request.stage, *words]) if words else ""
