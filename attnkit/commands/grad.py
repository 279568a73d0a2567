"""attnkit grad: the gradients of a pipeline."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import callbacks, display, options
from attnkit.cli import pipeline, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.output_format import Result
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm, Records
from attnkit.errors import AttnkitWarning, UsageError, suggest
from attnkit.generation.options import CHECK_TOLERANCE
from attnkit.interpret.gradients.attribution import attribute_pipeline
from attnkit.interpret.gradients.attribution_view import attribution_view
from attnkit.interpret.gradients.check import CHECKED, check_gradients
from attnkit.interpret.gradients.pipeline import pipeline_backward, select_names
from attnkit.interpret.slices import Index, parse_element
from attnkit.interpret.stage_calls import StageCall, number_parts
from attnkit.records import Array, Record, join_names

OF_MODELS = ("encode", "decode")  # the tools whose gradients an engine computes


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline that ran: its calls, its result, and the history of its input."""

    calls: list[StageCall]
    result: Record
    history: list[dict[str, Any]]


def run_recorded_pipeline(stage: Stage, upstream: Records | None) -> Records:
    """Run the pipeline for each record, and record the call of each stage."""
    if len(stage.operands) != 1:
        raise UsageError("one pipeline in quotes: attnkit grad 'embed \"The cat\" --dim 4 | attend'")
    return record_stages(stage, pipeline.parse_stages(stage.operands[0]), upstream)


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    if not inputs or not isinstance(inputs[0], str):
        raise UsageError("one pipeline: attnkit.grad('attend | loss --target 1', record)")
    stage.operands = (inputs[0],)
    stages = pipeline.parse_stages(inputs[0])
    record = inputs[1] if len(inputs) > 1 else None
    return record_stages(stage, stages, pipeline.give_record(stages[0], record, "attnkit.grad(pipeline, record)"))


def record_stages(grad_stage: Stage, stages: list[Stage], upstream: Records | None) -> Records:
    calls: list[StageCall] = []
    pipeline.share_engine(grad_stage, stages, OF_MODELS)
    if grad_stage.parameters["of"] is not None:
        emit(stages[-1], len(stages), grad_stage.parameters["of"][0])
    for number, stage in enumerate(stages, start=1):
        pipeline.keep_calls(stage, number, calls)
        if stage.common.pop("output", None):
            raise UsageError(f"stage {number}, {stage.tool.name}: --output is of grad: attnkit grad '…' -o FILE")
        if stage.returns_text or stage.parameters.get("explain") is not None:
            raise UsageError(f"stage {number}, {stage.tool.name}: text has no gradient")
        if (engine := stage.recorded_engine()) and stage.tool.name not in OF_MODELS:
            raise UsageError(f"stage {number}, {stage.tool.name}: numpy computes its gradients", "--engine")
        if stage.tool.name in OF_MODELS and engine != grad_stage.recorded_engine():
            problem = f"stage {number}, {stage.tool.name}: its engine computes its gradients: grad --engine NAME"
            raise UsageError(problem, "--engine")
    flow = pipeline.chain_stages(stages, upstream=upstream)
    return Records(flow.format, run_items(grad_stage, stages, calls, flow.items))


def emit(stage: Stage, number: int, name: str) -> None:
    """Have the last stage return the tensor of that name as x."""
    flag = stage.tool.flags.get("emit")
    names = ("x", *(flag.choices if flag else ()))
    if name not in names:
        problem = f"stage {number}, {stage.tool.name}, has no {name!r} (expected {join_names(names)})"
        raise UsageError(problem + suggest(name, names), "--of")
    if name != "x":
        stage.parameters["emit"] = name


def choose_elements(record: Record, index: tuple[Index, ...]) -> Array:
    x = record["x"]
    places = views.take_cells(np.arange(x.size).reshape(x.shape), views.place_index(record, "x", index, "--of"))
    chosen: Array = np.zeros(x.size, bool)
    chosen[places.reshape(-1)] = True
    return chosen.reshape(x.shape)


def run_items(
    grad_stage: Stage, stages: list[Stage], calls: list[StageCall], results: Iterator[Result]
) -> Iterator[PipelineRun]:
    for result in results:
        numbered = number_parts(calls, len(stages))
        if not isinstance(result, Record):
            raise calls[-1].error("text has no gradient")
        for stage in stages:
            grad_stage.files.digests |= stage.files.compute_digests(True)
        is_piped = not set(stages[0].operands) - {"-"}  # of a file the digest suffices
        yield PipelineRun(numbered, result, calls[0].before.history if is_piped else [])
        calls.clear()


def view_gradients(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    if stage.parameters["attribute"]:
        return attribution_view(record, style)
    norms = display.Norms({name: record[name] for name in record if name not in ("x", CHECKED)})
    return display.ResultView([display.tensor_view(record, "x", style), norms] if "x" in record else [norms])


@tool(
    operand="PIPELINE",
    reader=run_recorded_pipeline,
    view=view_gradients,
    status=lambda record, stage: int(
        not all(error <= stage.parameters["tolerance"] for error in stage.extra.get("errors", []))
    ),
    rules=Constraints(
        exclusive=[("attribute", "check"), ("attribute", "grad_only"), ("attribute", "of")],
        requires=[("tolerance", "check"), ("seed", "check")],
    ),
    without=("check_finite",),
    extra={"engine": options.EngineOptions},
    python=PythonForm(
        inputs={"pipeline": "str", "record": "TensorLike | None"},
        reader=read_values,
        options=options.ENGINE_KEYWORDS,
    ),
)
def grad(
    ran: PipelineRun,
    *,
    of: Annotated[
        tuple[str, tuple[Index, ...]] | None,
        typer.Option(
            parser=parse_element,
            metavar="NAME[INDEX]",
            help="gradients of these elements of x, or of another tensor that the last stage's --emit returns, instead "
            "of the sum of x: 'x[0,2]', 'probs[1,cat]'",
        ),
    ] = None,
    grad_only: options.GradOnly = (),
    check: Annotated[
        bool,
        typer.Option(help="compare with a finite difference in float64, along a random direction over all of them"),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(click_type=options.ABOVE_0, help="the relative error from which --check fails, with exit code 1"),
    ] = CHECK_TOLERANCE,
    seed: Annotated[int, typer.Option(min=0, help="seed of the direction of --check")] = 0,
    attribute: Annotated[str | None, options.attribution("x, in place of the gradients")] = None,
) -> Record:
    """Compute gradients of a pipeline's last x for its tensors and parameters.

    The stages run as `run` does; then their adjoints, from the last to the first. An x that is not one number counts
    as the sum of its elements; --of 'x[0,2]' chooses one. A gradient has the shape of its tensor, and the name
    STAGE.TOOL.NAME: 2.attend.x is the x that the second stage returns, 2.attend.wq a weight of it, 2.attend.weights
    an intermediate, 2.attend.memory the file of its --memory; 0.input.x is what the first stage read. The parameters
    of a --model, and the intermediates of encode, have its own names, as decoder.0.self.wq. What is used more than
    once, as a table that embeds and decodes, has one gradient, the sum. `x` is the result of the pipeline. With
    --attribute, x is a number for each token, and `output` the result. `attnkit help gradients` says more.

    \b
    Example:
      attnkit grad 'embed "The cat" --dim 8 | attend --seed 1 | decode | loss --target "cat"' -o g.npz
    """
    chosen = None if of is None else choose_elements(ran.result, of[1])
    gradients = pipeline_backward(ran.calls, chosen)
    record = attribute_pipeline(ran.calls, attribute) if attribute else gradients.record(ran.result)
    if grad_only:
        record = select_names(record, grad_only)
    shape = ran.calls[-1].result["x"].shape
    if shape and chosen is None:
        problem = f"x {shape} is not one number: these are gradients of the sum of its elements (--of x[…] chooses one)"
        warnings.warn(problem, AttnkitWarning, 2)
    if not check:
        return record
    result = check_gradients(ran.calls, gradients, seed, chosen)
    callbacks.current().on_check(result.line(), result.error)
    return record.with_tensors({CHECKED: result.tensor()})
