"""attnkit train: a model from a text file or a folder of images."""

import contextlib
import hashlib
import os
import shlex
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Annotated, Any

import typer

from attnkit import __version__, callbacks, display, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.operands import read_text, stdin_or_error
from attnkit.cli.output import report_text
from attnkit.cli.stage import Stage, command_line, running_stage, to_unicode
from attnkit.cli.tool import PythonForm, Records
from attnkit.display import Style
from attnkit.errors import AttnkitWarning, DataError, UsageError, escaped, with_article
from attnkit.formats import open_source
from attnkit.generation.options import is_set
from attnkit.training.chosen_recipe import ENDS, choose_recipe
from attnkit.training.families import CHOICES, FAMILIES, SIDES, learns, stated_sizes
from attnkit.training.folder import CONFIG, check_folder, lock_folder
from attnkit.training.images import ImageFolder, find_images
from attnkit.training.initial_model import check_data, check_sample, prepare_model
from attnkit.training.loop import Monitor, Run
from attnkit.training.options import EndOptions, LearningOptions, ModelOptions, ResultOptions
from attnkit.training.recipe import Recipe, changed_values
from attnkit.training.reports import Origin, Report, Speed, read_origin, report_values, table_rows, time_text
from attnkit.training.stop_signals import STOPPED, stop_signals

SIZES = ("layers", "heads", "dim", "hidden", *SIDES, *CHOICES)
CURVE_WIDTH, MAX_CURVE_WIDTH = 10, 24  # columns of a terminal beside the numbers
MODEL = ("family", *SIZES)
CHANGED_BY_RESUME = (*ENDS, "record", "sample", "output")
FIXED = [field.name.rstrip("_") for field in fields(Recipe) if field.name not in (*CHANGED_BY_RESUME, "config")]


def read_operand(stage: Stage, upstream: Records | None) -> Records:
    """Read the name of the text or folder: the operand, or `-` for standard input."""
    if upstream is not None:
        raise UsageError("train reads a text or a folder of images, not the result of a stage")
    return Records(
        None, iter([stage.operands[0] if stage.operands else stdin_or_error("name a text file or a folder of images")])
    )


def read_name(stage: Stage, inputs: Sequence[Any]) -> Records:
    if not inputs or not isinstance(inputs[0], str | os.PathLike):
        raise UsageError("the name of a text file: attnkit.train('tales.txt', output='my-gpt')")
    return Records(None, iter([os.fspath(inputs[0])]))


def _stated_by_run(folder: str) -> dict[str, Any]:
    """What the recipe of a run to resume, and its model, say of the options."""
    _, recipe = read_origin(folder)
    values = {name.rstrip("_"): value for name, value in asdict(recipe).items()}
    return values | stated_sizes(os.path.join(folder, CONFIG))


def present_run(line: str, stage: Stage) -> dict[str, Any]:
    return {**stage.extra["summary"], "reports": stage.extra.get("reports", [])}


@tool(
    operand="[INPUT]",
    reader=read_operand,
    gives="text",
    without=("format", "only", "precision", "theme", "title", "indent", "check_finite"),
    sections={
        "Model": "model",
        "Learning": "learning",
        "End": "end",
        "Results": "output results",
        "Engine": "engine",
    },
    rules=Constraints(
        exclusive=[("from", "config"), ("resume", "config")],
        one_of=[("output", "resume")],
        repeats={
            "from": (" ".join(MODEL), lambda folder, flags: stated_sizes(os.path.join(folder, CONFIG))),
            "config": (" ".join(MODEL), lambda path, flags: stated_sizes(path)),
            "resume": (" ".join(FIXED), lambda folder, flags: _stated_by_run(folder)),
        },
    ),
    extra={"engine": options.EngineOptions},
    python=PythonForm({"text": "Path"}, read_name, options.ENGINE_KEYWORDS, "dict[str, Any]", present_run),
)
def train(
    text: str,
    *,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="DIR", help="folder of the model")] = None,
    model: ModelOptions,
    learning: LearningOptions,
    end: EndOptions,
    results: ResultOptions,
) -> str:
    """Train a model on texts, pairs, labelled texts or images; write its folder.

    The images of a vit are PNG and JPEG files, in a folder for each label.

    The folder that is written has config.json, model.safetensors (the best by the held-out loss, or the last without
    one), the tokenizer or preprocessor_config.json, training.json (how it was made), training.jsonl (its reports) and
    state.safetensors. A run continued with --resume writes the same files as an uninterrupted one, bit for bit. The
    same command gives the same bytes. Ctrl-C saves and ends.

    \b
    Examples:
      attnkit train tales.txt -o my-gpt --layers 4 --heads 4 --dim 128 --minutes 3
      attnkit train tales.txt --resume my-gpt --steps 2000
      attnkit train pairs.tsv -o my-rnn --family seq2seq --cell gru --attention additive
      attnkit train labels.tsv --from my-lstm --classify -o my-critic
      attnkit train shapes -o my-vit --family vit --size 16
      attnkit decode --model my-gpt "Once upon"
    """
    given = model._asdict() | learning._asdict() | end._asdict() | results._asdict()
    chosen = {field.name: given[field.name] for field in fields(Recipe) if is_set(given[field.name])}
    return train_on(text, chosen, output, end.resume, results.sample)


def train_on(path: str, chosen: Mapping[str, Any], output: str | None, resume: str | None, sample: str | None) -> str:
    """Train on a text file or a folder of images; return a line on the result.

    chosen  the options of the recipe that are set
    """
    data, name, digest = read_data(path, chosen, resume)
    recipe = choose_recipe(chosen, resume, name, digest)
    folder = str(resume if output is None else output)
    engine = callbacks.current().engine
    is_writer = engine is None or engine.is_first
    if is_writer:
        check_output(folder, recipe, data)
    changed = changed_values(recipe)
    command = command_line("train", [path] * (path != "-"), [("output", folder), *changed.items()])
    origin = Origin(to_unicode(command), to_unicode(name), digest, __version__)
    model = prepare_model(recipe, data, name)
    if sample:
        check_sample(model, sample, "--sample")
    run = Run(recipe, model, origin, folder, is_writer)
    del model  # with tensors that an engine holds from now on
    with lock_folder(folder) if is_writer else contextlib.nullcontext(), stop_signals() as stop_signal:
        if resume is not None:
            run.resume(resume)
        first = run.progress.step + 1
        stopped = run.train(Monitor(reporter(sample), show_progress, stop_signal))
    if stopped:
        words = shlex.join(["attnkit", "train", path, "--resume", folder])
        raise STOPPED[signal.Signals(stopped)](f"stopped after step {run.progress.step:,} and saved; {words} goes on")
    if missed := [str(step) for step in chosen.get("record", ()) if not first <= step <= run.progress.step]:
        steps = f"steps {first:,} to {run.progress.step:,}"
        warnings.warn(f"--record: this run did {steps}, so there is none of {', '.join(missed)}", AttnkitWarning, 2)
    if stage := running_stage():
        stage.extra["summary"] = run.summary()
    return report_text(run.summary(), lambda style: closing_line(run))


def read_data(path: str, chosen: Mapping[str, Any], resume: str | None) -> tuple[str | ImageFolder, str, str]:
    """Read a text, or find the images of a folder, with its name and its SHA-256."""
    family = chosen.get("family", Recipe.family)
    if os.path.isdir(path):
        if resume is None and not learns(family, "images") and not {"from_", "config"} & set(chosen):
            of_images = " or ".join(f"--family {one}" for one in FAMILIES if learns(one, "images"))
            raise DataError(
                f"a folder, and {with_article(family)} model learns from a text file ({of_images} from images)", path
            )
        images = find_images(path)
        return images, path, images.digest()
    source = open_source(path, hash=True)
    with source:
        check_data(family, "", source.name)
        text = read_text(source).removeprefix("\ufeff")  # the mark of some editors
        digest = source.digest() or hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text, source.name, digest


def closing_line(run: Run) -> str:
    summary = run.summary()
    best = f", held out {summary['held_out_loss']:.4f}" if "held_out_loss" in summary else ""
    result = f"{summary['folder']}: {summary['parameters']:,} parameters after {summary['steps']:,} steps{best}"
    config = run.trainer.config
    tool = "decode" if config.decoder or config.classes else "encode"
    use = f"attnkit {tool} --model {shlex.quote(run.folder)} {'--image FILE' if config.patches else 'TEXT'}"
    return escaped(f"{result}; {use}")


def check_output(folder: str, recipe: Recipe, data: str | ImageFolder) -> None:
    """Check that the folder of the result can be written.

    It may be neither --from nor among the images.
    """
    if folder in ("", "-"):
        raise UsageError(f"expected the name of a folder, got {folder!r}", "--output")
    check_folder(folder)
    if recipe.from_ is not None and os.path.realpath(recipe.from_) == os.path.realpath(folder):
        raise UsageError(f"{folder} is the folder of --from too, and would be lost", "--output")
    if isinstance(data, ImageFolder) and data.encloses(folder):
        raise UsageError(f"{folder} is in the folder of the images, {data.name}", "--output")


def reporter(sample: str | None) -> Callable[[Run, Report, Speed], None]:
    """A callback that passes on each report, with a sample of the model's text."""
    is_first = True

    def report(run: Run, one: Report, speed: Speed) -> None:
        nonlocal is_first
        says = {} if sample is None else {"sample": run.continue_text(sample)}
        losses = [report.loss if report.held_out_loss is None else report.held_out_loss for report in run.curve]
        draw = partial(draw_report, one, speed, losses, says.get("sample"), has_headings=is_first)
        values = report_values(one, speed) | says
        if stage := running_stage():
            stage.extra.setdefault("reports", []).append(values)
        callbacks.current().on_report(values, draw)
        is_first = False

    return report


def draw_report(
    report: Report, speed: Speed, losses: Sequence[float], sample: str | None, style: Style, *, has_headings: bool
) -> str:
    """Draw a report as a row of a table, above the curve of losses and a sample."""
    headings, numbers = table_rows(report, speed, style.width - CURVE_WIDTH)
    curve = display.draw_curve(losses, min(style.width - len(numbers) - 2, MAX_CURVE_WIDTH), style)
    lines = [display.dim_then_bold(headings, "", style)] * has_headings + [f"{numbers}  {curve}"]
    if sample is not None:
        bar = "│" if style.unicode else "|"
        lines += [f"  {bar} {line}" for line in escaped(sample.expandtabs(), "\n").split("\n")]
    return "\n".join(lines)


def show_progress(run: Run, speed: Speed) -> None:
    of = "" if run.trainer.total is None else f" of {run.trainer.total:,}"
    left = "" if speed.left is None else f", {time_text(speed.left)} left"
    callbacks.current().on_progress(f"step {run.progress.step:,}{of}{left}")
