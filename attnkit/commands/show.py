"""attnkit show: a tensor, a record, a file or a published model as tables and heat maps."""

import os
import re
from dataclasses import replace
from typing import Annotated

from attnkit import display
from attnkit.cli import operands, options, views
from attnkit.cli.stage import Records, Stage, read_records
from attnkit.cli.tool import tool
from attnkit.errors import UsageError
from attnkit.inference.operands import CheckpointRecord
from attnkit.record import Record

NO_FOLDER = "needs the folder of a model: attnkit show DIR --pipeline NAME"


def found(call: Stage, upstream: Records | None) -> Records:
    """Feed: the tensors of a folder, of a part of it, or what any other input holds."""
    folder, name = folder_of(call.operands[0]) if call.operands else ("", "")
    pipeline, names = call.parameters["pipeline"], call.parameters["name"]
    if not folder:
        if pipeline is not None:
            raise UsageError(NO_FOLDER, "--pipeline")
        return read_records(call, upstream)
    asked = [options.flag_name(flag) for flag in (*views.VIEW_FLAGS, "name", "slice") if given(call, flag)]
    if pipeline is not None and name:
        raise UsageError(f"cannot be combined with DIR:{name}", "--pipeline")
    if not (name or names) and {"--heatmap", "--heads", "--slice"} & {*asked}:
        raise UsageError(f"which tensor? --name NAME, or {folder}:NAME", asked[-1])
    from attnkit.inference import model_summary

    checkpoint, _ = operands.load_operand(folder, "model")
    call.loaded["folder"] = checkpoint
    return Records(None, iter([model_summary.checkpoint_record(checkpoint, name, names)]))


def folder_of(operand: str) -> tuple[str, str]:
    """DIR and NAME of DIR:NAME, "" and "" where the operand names no folder.

    >>> folder_of("/:encoder.0"), folder_of("/"), folder_of("no such file")
    (('/', 'encoder.0'), ('/', ''), ('', ''))
    """
    if operand == "-" or os.path.lexists(operand):
        return (operand, "") if operand != "-" and os.path.isdir(operand) else ("", "")
    ends = [found.start() for found in re.finditer(":.", operand)]
    return next(((operand[:at], operand[at + 1 :]) for at in ends if os.path.isdir(operand[:at])), ("", ""))


def given(call: Stage, flag: str) -> bool:
    """Whether a flag of show was given."""
    return bool(call.parameters.get(flag) or call.extra.get(flag))


def seen(record: Record, call: Stage, look: display.Style) -> str:
    """A folder as its model, its tensors and its layers; anything else as the flags ask."""
    if not isinstance(record, CheckpointRecord) or not record.whole or "only" in call.common or given(call, "stats"):
        return views.render(record, call, look)
    from attnkit.inference import model_summary

    if given(call, "list"):
        return model_summary.tensor_rows(record.checkpoint, look, fold=False)
    return model_summary.model_facts(record.checkpoint, look)


@tool(
    exclusive=[views.VIEWS, *(("pipeline", flag) for flag in ("name", "slice", *views.VIEWS))],
    feed=found,
    view=seen,
    derived=views.derived,
    extra=views.VIEW_FLAGS,
    eyes=True,
    names=True,
    numeric=lambda given: False,
    prints=lambda given: given["pipeline"] is not None,
)
def show(
    record: Record,
    *,
    name: Annotated[tuple[str, ...], views.NAME] = (),
    slice: Annotated[str, views.SLICE] = "",
    pipeline: Annotated[
        str | None,
        options.text(
            "the shell pipeline that equals this part of a model: encoder.3, encoder.3.self, encoder, head; "
            "all: its stacks and its head",
            "LAYER",
        ),
    ] = None,
) -> Record | str:
    """A tensor, a record, a file or a published model as tables and heat maps; with -f or -o it converts.

    INPUT may be FILE:NAME. A file of many tensors without an x, such as a trace, is shown as a list of them. The
    output is for eyes, on a pipe too, unless -f or -o chooses a format.
    `-o picture.svg` and `-o picture.html` save what is shown. --stats -f json makes a record of the figures,
    --list -f json describes the tensors without their data. INPUT may also be the folder of a model: its
    sizes, tensors and layers. DIR:NAME is one tensor by its published name, one parameter of a layer
    (encoder.0.self.wq), or all of them (encoder.0.self), named and shaped as --params takes them.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend --keep weights | attnkit show --name weights --heatmap
    """
    if pipeline is not None:
        if not isinstance(record, CheckpointRecord):
            raise UsageError(NO_FOLDER, "--pipeline")
        from attnkit.inference import shell_pipeline

        return shell_pipeline.shell_pipeline(record.checkpoint.config, record.checkpoint.folder, pipeline)
    chosen = views.select(record, name, slice)
    return (
        replace(chosen) if isinstance(record, CheckpointRecord) else chosen
    )  # a record just made, which has its history
