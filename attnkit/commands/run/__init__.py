"""attnkit run: a whole pipeline in one process."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit import formats, options
from attnkit.cli import operands, output, pipeline, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.output_format import DISPLAY_FORMATS, SHEET_FORMATS, WORKBOOK, Result, requests_workbook
from attnkit.cli.stage import Stage
from attnkit.cli.text_input import is_pipe
from attnkit.cli.tool import INPUT, PythonForm, Records
from attnkit.errors import FileError, UsageError, flag_name
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.commands.run.sheet import Sheet
    from attnkit.commands.run.workbook import PipelineWorkbook

EXAMPLE = "attnkit run 'embed \"The cat\" --dim 4 | posenc'"
PATH = re.compile(r"\.{0,2}/")  # how a path starts that no command line starts with


def names_pipeline_file(operand: str) -> bool:
    """Whether the operand of run names a file, and is not a pipeline itself.

    A pipe, a blank or the name of a tool make a pipeline of it, unless it is a path, or a word that names a file.

    >>> [names_pipeline_file(operand) for operand in ("-", "./my layer", "layer.attnkit", "posenc", "a | b.c")]
    [True, True, True, False, False]
    """
    if "|" in operand or (re.search(r"\s", operand) and not PATH.match(operand)):
        return False
    return operand == "-" or os.path.isfile(operand) or is_pipe(operand) or bool({".", "/"} & set(operand))


def read_pipeline(stage: Stage) -> str:
    if not stage.operands:
        raise UsageError(f"one pipeline in quotes, or its file: {EXAMPLE}; attnkit run FILE")
    operand = stage.operands[0]
    if not names_pipeline_file(operand):
        return operand
    with formats.open_source(operand) as source:
        return operands.read_text(source)


def set_input(first: Stage, inputs: tuple[str, ...]) -> None:
    """Give the operands after the pipeline to its first stage."""
    if not inputs:
        return
    if first.operands:
        raise UsageError(f"{first.tool.name} has the input {first.operands[0]} in the pipeline", inputs[0])
    if first.tool.operand == INPUT and len(inputs) > 1:
        raise UsageError(
            f"expected one INPUT, got {len(inputs)}: {' '.join(inputs)}; a pipeline is one word, in quotes"
        )
    first.operands = inputs


def run_pipeline(stage: Stage, upstream: Records | None) -> Records:
    """Run the pipeline; options of output apply to the last stage."""
    stages = pipeline.parse_stages(read_pipeline(stage))
    pipeline.share_engine(stage, stages)
    set_input(stages[0], stage.operands[1:])
    stage.extra["last"] = last = stages[-1]
    give_options(last, stage.common)
    save = stage.extra.get("save")
    if save:
        make_folder(save)
    counts, trace, sheet = [0] * len(stages), trace_stages(stage, stages), make_sheet(stage, stages)

    def after_stage(at: int, done: Stage, result: Result) -> None:
        counts[at] += 1
        trace(at, done, result)
        if save:
            save_result(save, at, counts[at], done, result)
        if sheet:
            sheet.add_stage(at, done, result)
        elif done is not last or stage.common["format"] not in DISPLAY_FORMATS:
            output.show_aside(done, result, with_command=bool(stage.extra.get("steps")))

    for one in stages:
        one.has_table_aside = bool(stage.extra.get("steps"))
    flow = pipeline.chain_stages(stages, after_stage, upstream=upstream)
    for name in stage.common.keys() - last.common.keys():
        del stage.common[name]  # the last stage writes a folder itself
    stage.common |= last.common | {"format": output.format_for(last, flow.format)}
    items = sheet.follow(flow.items) if sheet else flow.items
    format, items = last.format.settle(stage.common["format"], items)
    stage.common["format"] = format
    for name in ("only", "dtype"):
        stage.common.pop(name, None)  # the last stage applies it
    stage.format.is_noted = True  # the last stage prints the notes
    return Records(format, pipeline.convert_all(last, items, format))


def make_sheet(stage: Stage, stages: Sequence[Stage]) -> "Sheet | PipelineWorkbook | None":
    """Make the worked sheet of --steps if the output is a figure or Markdown.

    If the output is a workbook, make that.
    """
    blank = stage.extra.get("blank") or ()
    if requests_workbook(stages[-1].common) and not blank:
        from attnkit.commands.run.workbook import PipelineWorkbook

        stage.extra[WORKBOOK] = workbook = PipelineWorkbook(stages)
        return workbook
    if not stage.extra.get("steps") or stages[-1].format.requested() not in SHEET_FORMATS:
        if blank:
            raise UsageError("needs a sheet: -o FILE.html, .pdf, .md, .svg or .png", "--blank")
        return None
    from attnkit.commands.run.sheet import Sheet

    stage.extra["sheet"] = sheet = Sheet(stages, blank)
    return sheet


def give_options(last: Stage, values: Mapping[str, Any]) -> None:
    for name in values:
        if name in last.tool.without:
            raise UsageError(f"{last.tool.name}, the last stage, has no such option", flag_name(name))
    last.common |= values


def trace_stages(stage: Stage, stages: list[Stage]) -> Callable[[int, Stage, Result], None]:
    """A callback after each stage, so that --trace writes a trace of every result."""
    path, patterns = stage.parameters["trace"], stage.parameters["trace_only"]
    if path is None:
        return lambda at, done, result: None
    from attnkit.commands.run.trace import PipelineTrace

    trace = PipelineTrace(path, patterns, stages)
    return lambda at, done, result: trace.write() if done is stages[-1] else None


def make_folder(name: str) -> None:
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {name}: {error.strerror}") from None


def save_result(folder: str, at: int, count: int, stage: Stage, result: Result) -> None:
    """Write a result to the folder of --save: 1-embed.npz, then 1-embed-2.npz."""
    name = f"{at + 1}-{stage.tool.name}" + (f"-{count}" if count > 1 else "")
    if isinstance(result, Record):
        path, data = Path(folder, f"{name}.npz"), formats.encode(result, "npz")
    else:
        path, data = Path(folder, f"{name}.txt"), [(result + "\n").encode()]
    with formats.Sink(str(path)) as sink:
        sink.write(data)


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    if not inputs or not isinstance(inputs[0], str | os.PathLike):
        raise UsageError("one pipeline: attnkit.run('posenc | attend', record)")
    if isinstance(inputs[0], os.PathLike):
        with formats.open_source(os.fspath(inputs[0])) as source:
            text = operands.read_text(source)
    else:
        text = inputs[0]
    stages = pipeline.parse_stages(text)
    pipeline.share_engine(stage, stages)
    stage.extra["last"] = last = stages[-1]
    give_options(
        last, {name: stage.common.pop(name) for name in ("only", "dtype", "check_finite") if name in stage.common}
    )
    if last.common.get("output"):
        raise UsageError("Python writes no result to a file: attnkit.formats.save(record, FILE)", "--output")
    record = inputs[1] if len(inputs) > 1 else None
    upstream = pipeline.give_record(stages[0], record, "attnkit.run(pipeline, record)")
    return pipeline.chain_stages(stages, trace_stages(stage, stages), upstream=upstream)


@tool(
    operand="PIPELINE|FILE [INPUT]",
    sections={"Stages": "trace trace_only steps blank save", "Engine": "engine"},
    reader=run_pipeline,
    view=lambda record, stage, style: views.view_of(record, stage.extra["last"], style),
    status=lambda record, stage: stage.extra["last"].tool.status(record, stage.extra["last"]),
    rules=Constraints(requires=[("trace_only", "trace"), ("blank", "steps")]),
    extra={
        "steps": Annotated[
            bool,
            typer.Option(
                help="show a table after each stage, on standard error; with -o FILE.html (.pdf, .md, .svg, .png) "
                "write a sheet of all steps of all stages, with their parameters and formulas"
            ),
        ],
        "blank": Annotated[
            tuple[str, ...],
            options.names(
                "leave these tensors of the sheet, and what is computed from them, empty, for students: weights,4.ffn.*"
            ),
        ],
        "save": Annotated[
            str, typer.Option(metavar="DIR", help="write the record of each stage to DIR: 1-embed.npz, 2-posenc.npz, …")
        ],
        "engine": options.EngineOptions,
    },
    check_finite=lambda parameters: False,
    python=PythonForm(
        inputs={"pipeline": "Path", "record": "TensorLike | None"},
        reader=read_values,
        result="Any",
        present=lambda result, stage: stage.extra["last"].tool.python.present(result, stage.extra["last"]),
        options=options.ENGINE_KEYWORDS,
    ),
)
def run(
    result: Any,
    *,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="write all that each stage computes, with its intermediates, to FILE: 1.embed.x, 2.attend.weights, …",
        ),
    ] = None,
    trace_only: options.TraceOnly = (),
) -> Any:
    """Run a whole pipeline in one process.

    The pipeline is one quoted argument: 'embed "The cat" --dim 4 | posenc | attend'.

    Stages are separated by |; quotes and # comments work as in a shell. Tensors stay in memory between the stages. The
    result is byte for byte the result of a shell pipe. The pipeline may also be in a FILE: an operand that
    names a file, without | and blanks, or that is a path (./my layer). A file that begins with #!/usr/bin/env -S
    attnkit run is a command of its own. INPUT is the input of the first stage. --trace writes one record for each
    result: `attnkit help traces` says how its tensors are named. -o FILE.xlsx writes a workbook with a sheet for each
    stage, whose cells are live formulas: `attnkit help figures`.

    \b
    Example:
      attnkit run 'embed "The cat sat" --dim 8 | posenc | mask --causal | attend --heads 2' --steps -o out.npz
    """
    return result
