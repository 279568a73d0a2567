"""attnkit show: tensors, records and models as tables and heat maps."""

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnkit import display, options
from attnkit.cli import notebook, operands, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage, read_records
from attnkit.cli.tool import PythonForm, Records
from attnkit.errors import AttnkitNote, DataError, UsageError, flag_name
from attnkit.formats.gguf import is_gguf
from attnkit.interpret.tensor_statistics import row_statistics
from attnkit.records import Array, Record

if TYPE_CHECKING:
    from attnkit.interpret.model_sheet import FactSheet

Engine = Literal["torch", "transformers", "vllm", "mlx", "jax", "onnx", "llama.cpp"]
CURVE = "training.jsonl"  # the reports of a run, in the folder of train
NO_FOLDER = "needs the folder of a model: attnkit show DIR --pipeline NAME"
NO_MODEL = "needs the folder of a model, or its GGUF file: attnkit show DIR --hooks ENGINE"


@dataclass(frozen=True, eq=False, repr=False)
class CheckpointRecord(Record):
    """Tensors of a model, with its checkpoint.

    whole  whether they are all of its tensors, under their published names
    file   the GGUF file that the model is; its architecture may be none that is known, so that there is no checkpoint
    """

    checkpoint: Any = field(kw_only=True)
    whole: bool = field(kw_only=True)
    file: Any = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        """Keep the tensors as they are: without labels, perhaps read when accessed."""

    def check(self) -> "CheckpointRecord":
        return self


@dataclass(frozen=True, eq=False, repr=False)
class OutlineRecord(Record):
    """What config.json alone says of a model that is not opened."""

    outline: Any = field(kw_only=True)


@dataclass(frozen=True, eq=False, repr=False)
class PatchRecord(Record):
    """Maps (..., row, column) over the patches of a picture.

    picture  (height, width, 3) uint8
    box      left, top, right and bottom edge of the patches, as shares of the picture
    chosen   name -> the token of another axis that the maps of the tensor are taken at, "" for none
    """

    picture: Array = field(kw_only=True)
    box: Array = field(kw_only=True)
    chosen: dict[str, str] = field(kw_only=True)


def read_input(stage: Stage, upstream: Records | None) -> Records:
    """Read the tensors of a model's folder or of a part of it, or other records."""
    if only := stage.common.pop("only", None):  # here it is another word for --name
        if stage.parameters["name"]:
            raise UsageError("cannot be combined with --only, which chooses tensors too", "--name")
        stage.parameters["name"] = only
    if len(stage.operands) > 1:
        return Records(None, iter([read_pair(stage)]))
    folder, name = split_folder(stage.operands[0]) if stage.operands else ("", "")
    pipeline, names = stage.parameters["pipeline"], stage.parameters["name"]
    if (stage.parameters["facts"] or stage.parameters["hooks"]) and folder and not name:
        return Records(None, iter([read_facts(stage) if stage.parameters["facts"] else open_whole(stage)]))
    if not folder:
        if pipeline is not None:
            raise UsageError(NO_FOLDER, "--pipeline")
        if stage.operands and os.path.basename(stage.operands[0]) == CURVE:
            from attnkit.training.reports import read_losses

            return Records(None, iter([read_losses(stage.operands[0])]))
        return read_records_over(stage, upstream)
    flags = [flag_name(flag) for flag in (*views.VIEWS, "name", "slice") if is_flag_set(stage, flag)]
    for flag in ("pipeline", "facts", "hooks"):
        if name and is_flag_set(stage, flag):
            raise UsageError(f"cannot be combined with DIR:{name}", flag_name(flag))
    if not (name or names) and {"--heatmap", "--heads", "--curves", "--slice"} & {*flags}:
        raise UsageError(f"more than one tensor: choose one with --name NAME, or {folder}:NAME", flags[-1])
    if is_gguf(folder):
        return Records(None, iter([read_gguf(stage, folder, name, names)]))
    from attnkit.interpret import model_summary

    checkpoint = operands.load_model(folder)
    stage.files.loaded["folder"] = checkpoint
    tensors = model_summary.checkpoint_record(checkpoint, name, names).tensors
    return Records(None, iter([CheckpointRecord(tensors, checkpoint=checkpoint, whole=not (name or names))]))


def read_facts(stage: Stage) -> "CheckpointRecord | OutlineRecord":
    """Open a model without its tensors, or read what its config.json alone states."""
    from attnkit.checkpoints.outline import Outline, open_outline

    opened = open_outline(stage.operands[0])
    if isinstance(opened, Outline):
        return OutlineRecord({}, outline=opened)
    stage.files.loaded["folder"] = opened
    return CheckpointRecord({}, checkpoint=opened, whole=True)


def open_whole(stage: Stage) -> CheckpointRecord:
    """Open a model without reading its tensors."""
    checkpoint = operands.load_model(stage.operands[0])
    stage.files.loaded["folder"] = checkpoint
    return CheckpointRecord({}, checkpoint=checkpoint, whole=True)


def read_gguf(stage: Stage, path: str, name: str, names: Sequence[str]) -> CheckpointRecord:
    """Read tensors of a GGUF file, and its model unless that is not known."""
    from attnkit.formats.gguf import open_gguf
    from attnkit.interpret.gguf_summary import find_tensors

    file, checkpoint = open_gguf(path), None
    try:
        checkpoint = operands.load_model(path)
        stage.files.loaded["folder"] = checkpoint
    except DataError as error:
        if any(is_flag_set(stage, flag) for flag in ("pipeline", "facts")):
            raise
        warnings.warn(f"{error}; shown as a file of tensors", AttnkitNote, stacklevel=2)
    tensors = find_tensors(file, checkpoint, name, names)
    return CheckpointRecord(tensors, checkpoint=checkpoint, whole=not (name or names), file=file)


def read_records_over(stage: Stage, upstream: Records | None) -> Records:
    """Read records; --over FILE:NAME alone reads that tensor of FILE.

    FILE states where NAME is in the picture.
    """
    file, _, name = stage.operands[0].rpartition(":") if stage.operands else ("", "", "")
    if stage.parameters["over"] is None or not (file and name) or os.path.lexists(stage.operands[0]):
        return read_records(stage, upstream)
    if stage.parameters["name"]:
        raise UsageError(f"cannot be combined with {stage.operands[0]}", "--name")
    stage.parameters["name"] = (name,)
    return stage.read(file)


def are_folders(paths: Sequence[str]) -> bool:
    """Whether two operands are models, which are set side by side."""
    return len(paths) == 2 and all(map(operands.is_model_path, paths))


def read_pair(stage: Stage) -> "FactSheet":
    """Compare the facts of the models in two folders."""
    set_flags = [flag for flag in (*views.VIEWS, *stage.parameters) if is_flag_set(stage, flag)]
    if set_flags:
        raise UsageError("cannot be combined with two models, whose differences it shows", flag_name(set_flags[0]))
    from attnkit.interpret.model_sheet import compare_models

    models = [*map(operands.load_model, stage.operands)]
    stage.files.loaded |= dict(zip(("folder", "other"), models, strict=True))
    return compare_models(*models)


def split_folder(operand: str) -> tuple[str, str]:
    """Split DIR:NAME into DIR and NAME; "" and "" if it names no model.

    >>> split_folder("/:encoder.0"), split_folder("/"), split_folder("no such file")
    (('/', 'encoder.0'), ('/', ''), ('', ''))
    """
    if operand == "-" or os.path.lexists(operand):
        return (operand, "") if operand != "-" and operands.is_model_path(operand) else ("", "")
    from attnkit.checkpoints.checkpoint import is_tower

    if is_tower(operand):
        return operand, ""
    ends = [match.start() for match in re.finditer(":.", operand)]
    return next(((operand[:at], operand[at + 1 :]) for at in ends if operands.is_model_path(operand[:at])), ("", ""))


def is_flag_set(stage: Stage, flag: str) -> bool:
    return bool(stage.parameters.get(flag) or stage.extra.get(flag))


def view_input(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View a folder as its model and layers, other records as requested."""
    if isinstance(record, display.ReportRecord):
        return record.view(style)
    return display.ResultView(list_blocks(record, stage, style), lambda: views.view_cells(record, stage))


def list_blocks(record: Record, stage: Stage, style: display.Style) -> Sequence[display.Block]:
    if isinstance(record, PatchRecord):
        part = views.slice_of(stage)
        return [
            display.Overlay(display.tensor_view(record, name, style, part), record.picture, record.box, chosen)
            for name, chosen in record.chosen.items()
        ]
    if isinstance(record, CheckpointRecord) and record.whole and not is_flag_set(stage, "stats"):
        return [display.Text(draw_checkpoint(record, stage, style))]
    blocks = views.selected_view(record, stage, style).blocks
    if not views.are_losses(record) or views.requested_view(stage):
        return blocks
    curves, tables = display.Curves(display.tensor_view(record, "x")), [display.Only("terminal", one) for one in blocks]
    has_lines = len(record["x"]) > 1 and not is_flag_set(stage, "rows")
    return [curves if has_lines else display.Only("figure", curves), *tables]


def draw_checkpoint(record: CheckpointRecord, stage: Stage, style: display.Style) -> str:
    """Draw a model, or with --list its tensors."""
    is_list = is_flag_set(stage, "list")
    if record.file:
        from attnkit.interpret import gguf_summary

        if is_list:
            return gguf_summary.list_types(record.file, style)
        return gguf_summary.draw_file(record.file, record.checkpoint, style)
    from attnkit.interpret import model_summary

    if is_list:
        return model_summary.tensor_rows(record.checkpoint, style, fold=False)
    return model_summary.draw_model(record.checkpoint, style)


def draw_over(picture: Array, selection: Record, whole: Record) -> PatchRecord:
    """Tensors of a record as maps over the patches of a picture."""
    from attnkit.inputs.patches import BOX, arrange_patches, check_picture, read_box

    check_picture(picture, "--over")
    maps = {name: arrange_patches(selection, whole, name) for name in selection if name != BOX}
    return PatchRecord(
        {name: tensor for name, (tensor, _) in maps.items()},
        selection.labels,
        selection.history,
        picture=picture,
        box=read_box(whole),
        chosen={name: chosen for name, (_, chosen) in maps.items()},
    )


@tool(
    sections={
        "Tensors": "name slice rows",
        "Models": "facts pipeline hooks",
        "Views": "views",
        "Figures": "over look",
    },
    rules=Constraints(
        exclusive=[
            views.VIEWS,
            ("numbers", "no_numbers"),
            *(("pipeline", flag) for flag in ("name", "slice", "rows", *views.VIEWS)),
            *(("hooks", flag) for flag in ("name", "slice", "rows", "facts", "pipeline", *views.VIEWS)),
            *(("rows", flag) for flag in ("heads", "stats", "list")),
            *(("over", flag) for flag in ("pipeline", "facts", "hooks", *views.VIEWS, "numbers", "no_numbers")),
            *(("facts", flag) for flag in ("name", "slice", "rows", "pipeline", *views.VIEWS)),
        ]
    ),
    reader=read_input,
    takes_pair=are_folders,
    view=view_input,
    derived=views.derived,
    extra={"views": views.ViewOptions, "look": views.LookOptions},
    shows_table=True,
    python=PythonForm(options=notebook.OPTIONS, result="Rendering", present=notebook.present),
    keep_names=True,
    without=("check_finite",),
    gives=lambda stage: "text" if stage.parameters["pipeline"] or stage.parameters["hooks"] else "record",
)
def show(
    record: Record,
    *,
    name: views.Name = (),
    slice: views.Slice = "",
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER",
            help="print the shell pipeline of a part of the model: encoder.3, encoder.3.self, encoder, head, or all",
        ),
    ] = None,
    hooks: Annotated[
        Engine | None,
        typer.Option(
            help="print a Python script that records what an engine computes for the model, for `diff --model DIR "
            "MINE.npz --why`",
        ),
    ] = None,
    facts: Annotated[
        bool,
        typer.Option(help="print the facts of a model alone, each with the key of config.json that states it"),
    ] = False,
    rows: Annotated[
        bool,
        typer.Option(help="show the norm, mean, deviation, minimum and maximum of each row instead of its numbers"),
    ] = False,
    over: options.Over = None,
) -> Record | str:
    """Show a tensor, record, file or model as tables and heat maps, or convert it.

    INPUT may be FILE:NAME; every NAME may be a shell pattern in quotes: 'decoder.*.self.weights'. If a file has many
    tensors and no x, such as a trace, show lists them. The output is a table for people, also on a pipe, unless -f
    or -o chooses a format. `-o figure.svg` (or .png, .pdf, .html) draws the tables, heat maps, curves or statistics
    as a figure. --stats -f json writes the statistics as a record; --list -f json describes the tensors without
    their data. INPUT may also be the folder of a model: show then prints its configuration, tensors and layers.
    DIR:NAME is one tensor by its published name, one parameter of a layer (encoder.0.self.wq), or all parameters of
    a layer (encoder.0.self), with the names and shapes of --params. A GGUF file is a model and a file of tensors: show
    prints its metadata too, and FILE:NAME takes the names in the file as well. --over PICTURE arranges the patches of
    an image, such as the keys of weights that encode --image has traced, in rows and columns; a figure draws them over
    the picture.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend --keep weights | attnkit show --name weights --heatmap
    """
    if pipeline is not None:
        if not isinstance(record, CheckpointRecord):
            raise UsageError(NO_FOLDER, "--pipeline")
        from attnkit.inputs.encoding import sentence_modules
        from attnkit.interpret import model_summary

        checkpoint = record.checkpoint
        is_pooled = sentence_modules(checkpoint).is_pooled
        return model_summary.shell_pipeline(checkpoint.config, checkpoint.folder, pipeline, is_pooled)
    if hooks is not None:
        if not isinstance(record, CheckpointRecord):
            raise UsageError(NO_MODEL, "--hooks")
        from attnkit.debugger.hooks import write_hooks

        return write_hooks(record.checkpoint, hooks)
    if facts:
        if isinstance(record, OutlineRecord):
            from attnkit.interpret.model_sheet import describe_outline

            return describe_outline(record.outline)
        if not isinstance(record, CheckpointRecord):
            raise UsageError("needs the folder of a model, or its GGUF file: attnkit show DIR --facts", "--facts")
        from attnkit.interpret.model_sheet import describe_model

        return describe_model(record.checkpoint)
    if over is not None and not (name or slice) and len(record) > 1 and "x" not in record:
        raise UsageError("--over: more than one tensor: choose some with --name, such as --name encoder.0.self.weights")
    selection = views.select(record, name or (("x",) if over is not None and "x" in record else ()), slice)
    if rows:
        selection = row_statistics(selection)
    if over is not None:
        return draw_over(over, selection, record)
    if rows:
        return selection
    return (
        replace(selection) if isinstance(record, CheckpointRecord) else selection
    )  # a copy: the same record would gain no history
