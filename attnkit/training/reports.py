"""Reports, recorded steps and the origin of a model, written and read again."""

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import orjson

from attnkit.checkpoints import read_json_object
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import AttnkitError, DataError, FileError, escaped
from attnkit.formats.streams import exists, open_source
from attnkit.interpret.tracer import intermediate_axes
from attnkit.model import Array
from attnkit.model.hooks import Hook
from attnkit.records import Labels, Record, Tensor
from attnkit.training.folder import CURVE, ORIGIN, recorded_steps
from attnkit.training.numpy_state import Hooks
from attnkit.training.recipe import Recipe, from_json
from attnkit.training.trainer import Trainer


class Report(NamedTuple):
    """The numbers of a run at a step.

    loss           mean over the steps since the last report
    held_out_loss  of the held-out part; None if there is none
    bits_per_byte  the same loss in bits, for each byte of the text
    gradient_norm  of the last step, before clipping
    learning_rate  of the last step
    tokens         predicted so far; of labelled texts and images those read
    accuracy       of the labels of the held-out part
    """

    step: int
    loss: float
    held_out_loss: float | None
    bits_per_byte: float | None
    gradient_norm: float
    learning_rate: float
    tokens: int
    accuracy: float | None = None


class Speed(NamedTuple):
    """The speed of a run: tokens per second, seconds so far, and those left if known."""

    tokens_per_second: float
    seconds: float
    left: float | None = None


def report_values(report: Report, speed: Speed | None = None) -> dict[str, Any]:
    """The known values of a report for a JSON line, with the speed if given.

    >>> report_values(Report(10, 2.5, None, None, 1.0, 0.001, 640))["loss"]
    2.5
    """
    values = {key: value for key, value in report._asdict().items() if value is not None}
    if speed is None:
        return values
    return {**values, "tokens_per_second": round(speed.tokens_per_second, 1), "seconds": round(speed.seconds, 2)}


def table_rows(report: Report, speed: Speed, width: int) -> tuple[str, str]:
    """Headings and a row of a table; the last columns go if the width is too small.

    >>> for line in table_rows(Report(10, 2.5, 2.75, 3.968, 1.0, 0.001, 640), Speed(4321.0, 2.0), 70):
    ...     print(line)
        step     loss  held out  bits/byte  gradient      rate  tokens/s
          10   2.5000    2.7500      3.968         1     0.001     4,321
    """
    cells = {"step": f"{report.step:8,}", "loss": f"{report.loss:7.4f}"}
    if report.held_out_loss is not None:
        cells["held out"] = f"{report.held_out_loss:8.4f}"
    if report.accuracy is not None:
        cells["accuracy"] = f"{report.accuracy:8.1%}"
    if report.bits_per_byte is not None:
        cells["bits/byte"] = f"{report.bits_per_byte:9.3f}"
    cells |= {"gradient": f"{report.gradient_norm:8.3g}", "rate": f"{report.learning_rate:8.3g}"}
    cells["tokens/s"] = f"{speed.tokens_per_second:8,.0f}"
    headings = numbers = ""
    for heading, number in cells.items():
        if len(numbers) + len(number) + 2 > width:
            break
        headings += f"{heading:>{len(number) + 2}}"
        numbers += f"  {number}"
    return headings[2:], numbers[2:]


def bits_per_byte(loss: float, bytes_per_token: float | None) -> float | None:
    """Convert a loss per token in nats to bits per byte of the text."""
    return None if bytes_per_token is None else loss / math.log(2) / bytes_per_token


def time_text(seconds: float) -> str:
    """A time in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Origin(NamedTuple):
    """How a model is made: command, name and SHA-256 of the text, version of attnkit."""

    command: str
    text: str
    digest: str
    version: str


def read_curve(path: str) -> list[Report]:
    """Read a file of JSON lines. DataError names the line that is not a report."""
    reports, optional = [], dict.fromkeys(("held_out_loss", "bits_per_byte", "accuracy"))
    with open_source(path) as source:
        lines = bytes(source.read_all()).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            values = optional | orjson.loads(line)
            reports.append(Report(**{name: values[name] for name in Report._fields}))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise DataError(f"line {number} is not a report", path) from None
    return reports


def read_origin(folder: str) -> tuple[Origin, Recipe]:
    """Read how the model of a folder was made, and by which recipe.

    FileError if the folder has no such file, DataError if it is malformed.
    """
    path = os.path.join(folder, ORIGIN)
    if not os.path.isdir(folder):
        raise FileError("no such folder", folder)
    if not exists(path):
        raise FileError(f"no {ORIGIN} in this folder: it was not made by attnkit train", folder)
    values = read_json_object(path)
    try:
        ((text, digest),) = values["files"].items()
        origin = Origin(str(values["command"]), text, str(digest), str(values["version"]))
        return origin, from_json(values["recipe"], path)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError("not the origin of a trained model", path) from None


def training_script(folder: str) -> str:
    """A shell script that made the model of a folder, with the SHA-256 of its text."""
    origin, _ = read_origin(folder)
    comments = [f"# made by attnkit {escaped(origin.version)}", f"# {escaped(f'{origin.digest}  {origin.text}')}"]
    return "\n".join(["#!/bin/sh", *comments, escaped(origin.command)])


GRADIENT = ".grad"  # after the name of what it is the gradient of, as in PyTorch


def record_step(trainer: Trainer, number: int) -> Record:
    """Record the intermediates of a step, and gradients as NAME.grad.

    A batch in several passes shows the last pass; gradients of parameters come from all passes. The step itself
    computes large passes in parts at once, which rounds the last bits in another way.
    """
    activations: dict[str, Array] = {}
    slopes: dict[str, Array] = {}
    plan, state = trainer.plan(number), trainer.state.fetch()
    batch = plan.batch
    inputs = {"image" if batch.ids.ndim == 4 else "ids": batch.ids}
    tensors = {**inputs, "target": batch.targets} | ({} if batch.source is None else {"source": batch.source})
    hooks = Hooks(keeping(activations), keeping(slopes))
    with contextlib.suppress(AttnkitError):  # an operator refuses what is not finite: what came before it is kept
        state.collect_gradients(plan, hooks)
        slopes |= {name: state.gradient_of(name) for name in trainer.table.names}
    axes = ("batch", "token"), ("batch", "channel", "row", "column")
    named = {name: Tensor(array, axes[array.ndim == 4][: array.ndim]) for name, array in tensors.items()}
    named |= {name: Tensor(array, intermediate_axes(name, array.ndim)) for name, array in activations.items()}
    for name, array in slopes.items():
        own = named[name].axes if name in activations else None  # a parameter is as in its file
        named[name + GRADIENT] = Tensor(np.array(array), own)
    return Record(named)


def keeping(arrays: dict[str, Array]) -> Hook:
    """A hook that copies every intermediate to a dictionary, in order."""

    def visit(name: str) -> Callable[[Array], Array]:
        def keep(array: Array) -> Array:
            arrays[name] = np.array(array)
            return array

        return keep

    return visit


def first_non_finite_stage(record: Record) -> str:
    """The name and value of the first tensor that is not finite, or "".

    Masked scores do not count: they are -inf for keys that a query may not attend to.

    >>> first_non_finite_stage(Record({"a": np.ones(2), "b": np.array([1.0, np.inf]), "c": np.array([np.nan])}))
    'b is inf'
    """
    for name, array in record.arrays().items():
        if array.dtype.kind == "f" and not np.isfinite(array).all() and not name.endswith(".masked"):
            return f"{name} is {array[~np.isfinite(array)].flat[0]}"
    return ""


POINTS = 2000  # most reports of a curve


def find_steps(folder: str) -> dict[int, str]:
    """The recorded steps of a folder: number -> path. DataError if there are none."""
    try:
        steps = {number: os.path.join(folder, name) for number, name in recorded_steps(folder).items()}
    except OSError as error:
        raise FileError(error.strerror or "cannot be read", folder) from None
    if not steps:
        raise DataError(
            "a folder without recorded steps (expected step-N.npz); train --record STEPS writes them", folder
        )
    return steps


def thin(steps: Sequence[int], most: int) -> list[int]:
    """A given number of some numbers, evenly spaced, first and last included.

    >>> thin([1, 2, 3, 4, 5], 3), thin([1, 2], 3)
    ([1, 3, 5], [1, 2])
    """
    if len(steps) <= most:
        return [*steps]
    return [steps[round(at * (len(steps) - 1) / (most - 1))] for at in range(most)]


def read_reports(folder: str) -> list[dict[str, Any]]:
    """At most POINTS reports of a run; [] if the folder has no curve."""
    path = os.path.join(folder, CURVE)
    reports = [report_values(one) for one in read_curve(path)] if exists(path) else []
    return [reports[at] for at in thin(range(len(reports)), POINTS)]


def find_losses(folder: str) -> Record | None:
    """Read the losses of a run that recorded no step; None if it did or has none."""
    path = os.path.join(folder, CURVE)
    return read_losses(path) if exists(path) and not recorded_steps(folder) else None


def read_losses(path: str) -> Record:
    """Read the losses of a run: x (step, curve), with gradient norms and rates.

    The curves are the training text and, if there is one, the held-out part.

    DataError for a file that holds no report.
    """
    reports = read_curve(path)
    if not reports:
        raise DataError("no report of a run", path)
    curves = {"loss": [one.loss for one in reports]}
    if any(one.held_out_loss is not None for one in reports):
        curves["held_out_loss"] = [np.nan if one.held_out_loss is None else one.held_out_loss for one in reports]
    tensors = {"x": Tensor(np.array([*curves.values()]).T, ("step", "curve"), formula="the loss since the row before")}
    for name in ("gradient_norm", "learning_rate"):
        tensors[name] = Tensor(np.array([getattr(one, name) for one in reports]), ("step",))
    return Record(tensors, {"step": [str(one.step) for one in reports], "curve": [*curves]})


def describe_step(record: Record, folder: str) -> Record:
    """Label the record of a step with the words of its ids and its run's command."""
    labels: dict[str, Labels] = dict(record.labels)
    of_ids = "target" if "source" in record else "source"
    history: list[Any] = []
    for name, side, axes in (("ids", of_ids, ("token", "query", "key")), ("source", "source", ("source",))):
        if name in record and record[name].ndim == 2:
            with contextlib.suppress(AttnkitError):  # a folder without a tokenizer
                words = open_tokenizer(folder, side).vocabulary
                labels |= dict.fromkeys(axes, spell_ids(record[name], words))
    with contextlib.suppress(AttnkitError):  # or without its origin
        history.append({"command": read_origin(folder)[0].command})
    return replace(record, labels=labels, history=history)


def spell_ids(ids: Array, words: Sequence[str]) -> list[list[str]]:
    """The token strings of ids (B, T); the number of an id outside of the words."""
    return [[words[id] if 0 <= id < len(words) else str(id) for id in row] for row in ids.tolist()]
