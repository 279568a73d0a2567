"""attnkit check: verify an implementation of a stage, and name its slip."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from attnkit import display, options
from attnkit.checking.checks import (
    Assignment,
    CheckRun,
    Conventions,
    Grading,
    Limits,
    find_definition,
    is_python,
    read_points,
    read_seed,
)
from attnkit.checking.definition import Definition
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.grading import write_gradescope, write_junit
from attnkit.checking.report import CheckReport, make_check_report
from attnkit.checking.templates import TEMPLATES, write_template
from attnkit.checking.verdict import StatedTolerance
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.output import Graded, list_text
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm, Records
from attnkit.errors import UsageError

DTYPES = ("float32", "float64", "float16", "bfloat16")


def read_request(stage: Stage, upstream: Records | None) -> Records:
    name, *target = stage.operands or ("",)
    is_alone = not target and is_python(name)
    return Records(None, iter([Assignment("", (name,)) if is_alone else Assignment(name, tuple(target))]))


def read_objects(stage: Stage, inputs: Sequence[Any]) -> Records:
    if len(inputs) != 2 or not isinstance(inputs[0], str):
        raise UsageError('expected a stage and an implementation: attnkit.check("attend", attention)')
    return Records(None, iter([Assignment(inputs[0], (inputs[1],))]))


def find_result(stage: Stage) -> str:
    """What a call gives: the text of a report, a list of stages, or a record."""
    if stage.parameters["report"] is not None:
        return "text" if stage.parameters["report"] == "junit" else "report"
    return "record" if len(stage.operands) > 1 or any(map(is_python, stage.operands)) else "report"


def view_check(report: CheckReport, stage: Stage, style: display.Style) -> display.ResultView:
    return report.view(style)


@tool(
    operand="[STAGE] [IMPLEMENTATION]...",
    reader=read_request,
    view=view_check,
    status=lambda record, stage: int(not record["same"]),
    needs_no_input=lambda parameters: True,
    gives=find_result,
    rules=Constraints(
        exclusive=[("seed", "hidden_seed"), ("case", "report"), ("case", "hidden_seed")],
        requires=[("visibility", "report=gradescope"), ("points", "report")],
    ),
    sections={
        "Cases": "seed dtype case tolerance hide_slip template",
        "Implementation": "conventions limits",
        "Grading": "grading",
    },
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
    template: Annotated[
        str | None, options.choice(TEMPLATES, "print an example to start from, with the signature of the stage")
    ] = None,
    hide_slip: Annotated[bool, typer.Option(help="do not name slips, as in an exam")] = False,
    conventions: Conventions,
    limits: Limits,
    grading: Grading,
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
    if template is not None:
        if request.target or not request.stage:
            raise UsageError("expected a stage alone: attnkit check attend --template numpy > mine.py", "--template")
        return write_template(request.stage, find_definition(request.stage), template)
    if not request.target:
        return explain(find_definition(request.stage), request.stage) if request.stage else list_stages()
    points = read_points(grading.points)
    hidden = read_seed(grading.hidden_seed) if grading.hidden_seed else None
    hides = hidden is not None
    run = CheckRun(request, seed if hidden is None else hidden, dtype, case, tolerance, conventions, limits, hides)
    parts = [replace(part, points=points.get(part.stage, 1.0)) for part in run.check()]
    for name in points:
        if name not in [part.stage for part in parts]:
            raise UsageError(
                f"no {name} was checked; the stages are {', '.join(part.stage for part in parts)}", "--points"
            )
    report = make_check_report(parts, hide_slip or hides, case is not None)
    if grading.report is None:
        return report
    text = write_junit(report) if grading.report == "junit" else write_gradescope(report, grading.visibility)
    return Graded.of(text, int(not report.same))


def list_stages() -> str:
    rows = [{"stage": name, "computes": one.summary} for name, one in DEFINITIONS.items()]
    return list_text("stages", rows, display.TextTable(("stage", "computes"), [[*row.values()] for row in rows]))


def explain(definition: Definition, name: str) -> str:
    """The signature that a stage expects, and the properties that it tests."""
    lines = [f"{name}: {definition.summary}", "", definition.signature(name), ""]
    lines += [f"{at}  {one.name}" for at, one in enumerate(definition.cases, 1)]
    ways = [f"{one}: {', '.join(rows)}" for one, rows in definition.conventions.items()]
    lines += ["", *(f"convention {one}" for one in ways)] * bool(ways)
    return "\n".join([*lines, "", f"{len(definition.slips)} slips have names"])
