"""A run: steps, reports and saves until its end, from its first step or from the state of a folder."""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import orjson

from attnkit.callbacks import SILENT, current, use_callbacks
from attnkit.checkpoints import read_json_object
from attnkit.checkpoints.publishing import assemble_checkpoint
from attnkit.errors import AttnkitError, AttnkitNote, DataError, FileError, NotFiniteError, escaped
from attnkit.formats import npz, safetensors
from attnkit.formats.streams import exists, open_source
from attnkit.generation.options import GenerationOptions
from attnkit.generation.output_head import apply_output_head
from attnkit.generation.text_generation import run_decode
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.interpret.tracer import intermediate_axes
from attnkit.model import Array, softmax
from attnkit.record import Labels, Record, Tensor, join_names
from attnkit.tokenizers.auto import load_tokenizer
from attnkit.training.folder import (
    CURVE,
    ORIGIN,
    STATE,
    TOKENIZER_FILES,
    json_bytes,
    model_files,
    recorded_steps,
    remove_files,
    write_folder,
)
from attnkit.training.initial_model import Files, Start
from attnkit.training.numpy_state import Hooks
from attnkit.training.optimizers import ParameterBuffer
from attnkit.training.recipe import Recipe, from_json, to_json
from attnkit.training.reports import Report, Speed, bits_per_byte, parse_report, report_values
from attnkit.training.state import RunProgress, pack_state, unpack_state
from attnkit.training.trainer import Trainer

MINUTE = 60.0


class Origin(NamedTuple):
    """How a model is made: the command, the name of the text and its SHA-256, and the version of attnkit."""

    command: str
    text: str
    digest: str
    version: str


class Monitor(NamedTuple):
    """What a run calls: with each report, with its progress after each step, and to learn of a signal to stop."""

    on_report: Callable[["Run", Report, Speed], None] = lambda run, report, speed: None
    on_progress: Callable[["Run", Speed], None] = lambda run, speed: None
    stop_signal: Callable[[], int] = lambda: 0


class Run:
    """A trainer, where it is, its curve, and the folder that it is saved to, by process 0 where many train."""

    def __init__(self, recipe: Recipe, start: Start, origin: Origin, folder: str, is_writer: bool = True) -> None:
        self.recipe, self.origin, self.folder, self._files = recipe, origin, folder, start.files
        self._is_writer, self._engine = is_writer, current().engine
        self.trainer = Trainer(recipe, start)
        self.progress = RunProgress()
        self.curve: list[Report] = []
        self._is_new = True  # its first save replaces what an earlier run wrote
        self._recorded: set[int] = set()  # the steps whose records this run wrote
        self._clock, self._first = time.monotonic(), (0, 0)  # of this process: its start, its first step and token

    def resume(self, folder: str) -> None:
        """Go on from the state and the curve of a folder; FileError or DataError where they cannot be read."""
        path = os.path.join(folder, STATE)
        self._is_new = os.path.realpath(folder) != os.path.realpath(self.folder)
        with open_source(path) as source:
            record = next(iter(safetensors.read(source)))
        self.progress = unpack_state(self.trainer, record.arrays(), path)
        known = read_curve(os.path.join(folder, CURVE))
        self.curve = [one for one in known if one.step <= self.progress.step and self._is_regular(one.step)]
        self._first = (self.progress.step, self.progress.tokens)

    def train(self, monitor: Monitor) -> int:
        """Train to the end of the run, with a report and a save after every so many steps, and at the end.

        Return 0, or the number of the signal, to one of all processes, after which all was saved. DataError where a
        number is not finite; FileError where the folder cannot be written, in which case it has the last save.
        """
        self._clock = time.monotonic()
        for _ in self._steps():
            monitor.on_progress(self, self.speed())
            if self._is_regular(self.progress.step):
                self._report(monitor)
            if number := self._highest(monitor.stop_signal()):
                self.save()
                return number
        if self.progress.step == 0:  # an untrained model, which has no report
            self.save()
        elif not self.curve or self.curve[-1].step != self.progress.step:
            self._report(monitor)
        elif self.progress.step == self._first[0]:  # the end was reached before
            self.save()
        return 0

    def speed(self) -> Speed:
        """Return how fast this process trains, and the time that it needs yet where its end is known."""
        seconds = time.monotonic() - self._clock
        steps, tokens = self.progress.step - self._first[0], self.progress.tokens - self._first[1]
        total = self.trainer.total
        left = None if total is None or not steps else (total - self.progress.step) * seconds / steps
        if self.recipe.minutes is not None:
            rest = max(self.recipe.minutes * MINUTE - seconds, 0)
            left = rest if left is None else min(left, rest)
        return Speed(tokens / seconds if seconds else 0.0, seconds, left)

    def save(self, best: ParameterBuffer | None = None) -> None:
        """Write the folder: a model, by default the best so far, and what is needed to go on from the last step."""
        state = self.trainer.state.fetch()  # by all processes together
        if not self._is_writer:
            return
        tensors = best or self.progress.best or state.parameters
        origin = {
            "command": self.origin.command,
            "version": self.origin.version,
            "seed": self.recipe.seed,
            "files": {self.origin.text: self.origin.digest},
            "recipe": to_json(self.recipe),
        }
        curve = b"".join(orjson.dumps(report_values(report)) + b"\n" for report in self.curve)
        progress = safetensors.encode(Record(pack_state(self.trainer, self.progress)))
        files: Files = {ORIGIN: [json_bytes(origin)], CURVE: [curve]}
        files |= {**model_files(self.trainer.raw, tensors, self.recipe.dtype), **self._files, STATE: progress}
        earlier = self._earlier_steps() if self._is_new else []
        write_folder(self.folder, files)
        if self._is_new:
            remove_files(self.folder, (TOKENIZER_FILES - set(files)).union(earlier))
            self._is_new = False
        if earlier:
            note = f"{self.folder}: removed the recorded steps of the earlier run: {join_names(earlier)}"
            warnings.warn(note, AttnkitNote, stacklevel=2)

    def _earlier_steps(self) -> list[str]:
        """Return the names of the recorded steps of the run whose model a save replaces."""
        if not exists(os.path.join(self.folder, ORIGIN)):
            return []
        steps = recorded_steps(self.folder).items()
        return [name for number, name in steps if number not in self._recorded]

    def continue_text(self, text: str) -> str:
        """Return what the model of the last step makes of a text, as `attnkit decode --model` does.

        A classifier gives its most probable label, and the probability.
        """
        parameters = self.trainer.state.fetch().parameters
        copy = parameters.zeros()
        copy.flat[...] = parameters.flat
        checkpoint = assemble_checkpoint(self.trainer.raw, copy, self.folder)
        with use_callbacks(SILENT), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text that ends with the positions is a sample too
            if checkpoint.config.classes:
                return best_label(apply_output_head([text], GenerationOptions(model_=checkpoint)))
            return str(run_decode([text], GenerationOptions(model_=checkpoint, emit="text")))

    def summary(self) -> dict[str, Any]:
        """Return what the run has made: its folder, its steps, its parameters, and the best held-out loss."""
        losses = [report.held_out_loss for report in self.curve if report.held_out_loss is not None]
        sizes = map(math.prod, self.trainer.table.shapes.values())
        best = {"held_out_loss": min(losses)} if losses else {}
        return {"folder": self.folder, "steps": self.progress.step, "parameters": sum(sizes), **best}

    def _steps(self) -> Iterator[int]:
        """Do steps to the end of the run, and yield the number of each once it is done."""
        trainer = self.trainer
        while not self._is_done():
            progress = self.progress
            number = progress.step + 1
            if number in self.recipe.record:
                self._write_record(record_step(trainer, number), number)
            try:
                result = trainer.step(number)
            except NotFiniteError as error:
                raise self._explain(error, number) from None
            progress.step = number
            progress.tokens += result.tokens
            progress.loss_sum += result.loss
            progress.loss_count += 1
            progress.gradient_norm, progress.learning_rate = result.gradient_norm, result.learning_rate
            yield number

    def _is_done(self) -> bool:
        total, patience, minutes = self.trainer.total, self.recipe.patience, self.recipe.minutes
        is_late = minutes is not None and self._highest(time.monotonic() - self._clock >= minutes * MINUTE)
        is_stale = patience is not None and self.progress.stale >= patience
        return bool(is_late) or is_stale or (total is not None and self.progress.step >= total)

    def _highest(self, number: int) -> int:
        """Return the highest of the numbers of all processes, which stop after the same step."""
        return self._engine.highest(number) if self._engine else number

    def _report(self, monitor: Monitor) -> None:
        """Evaluate, save and report the numbers since the last report.

        At the end of a run between two regular reports the model is the better one of the last and of the best before,
        but the state is that of a run that goes on as if it had not ended: without this evaluation.
        """
        progress, corpus = self.progress, self.trainer.corpus
        evaluation = self.trainer.evaluate()
        held_out = None if evaluation is None else evaluation.loss
        bits = None if held_out is None else bits_per_byte(held_out, corpus.bytes_per_token)
        mean = progress.loss_sum / max(progress.loss_count, 1)
        report = Report(
            progress.step, mean, held_out, bits, progress.gradient_norm, progress.learning_rate, progress.tokens,
            None if evaluation is None else evaluation.accuracy,
        )  # fmt: skip
        self.curve.append(report)
        after = progress.evaluated(held_out, self.trainer.state.fetch().parameters)
        if self._is_regular(progress.step):
            self.progress = after
        self.save(after.best)
        monitor.on_report(self, report, self.speed())

    def _is_regular(self, step: int) -> bool:
        return step % self.recipe.every == 0

    def _write_record(self, record: Record, number: int) -> str:
        """Write the record of a step to the folder; return its path."""
        name = f"step-{number}.npz"
        self._recorded.add(number)
        if self._is_writer:
            write_folder(self.folder, {name: npz.encode(record)})
        return os.path.join(self.folder, name)

    def _explain(self, error: NotFiniteError, number: int) -> DataError:
        """Return an error that names the first stage of a step that is not finite, whose record is written."""
        record = record_step(self.trainer, number)
        path = self._write_record(record, number)
        stage = first_non_finite_stage(record)
        return DataError(f"{error.problem}: {stage}; attnkit show {path}" if stage else f"{error.problem} ({path})")


def best_label(output: OutputLogits) -> str:
    """Return the most probable label of one text, and its probability.

    >>> import numpy as np
    >>> best_label(OutputLogits(Record({}), np.array([0.0, np.log(3)]), ["bad", "good"], None))
    'good 75.0%'
    """
    probabilities = softmax(output.logits)
    best = int(probabilities.argmax())
    return f"{output.words[best]} {probabilities[best]:.1%}"


def read_curve(path: str) -> list[Report]:
    """Return the reports of a file of JSON lines; DataError names the line that is none."""
    reports = []
    with open_source(path) as source:
        lines = bytes(source.read_all()).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            reports.append(parse_report(orjson.loads(line)))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise DataError(f"line {number} is not a report", path) from None
    return reports


def read_origin(folder: str) -> tuple[Origin, Recipe]:
    """Return how the model of a folder was made, and by which recipe.

    FileError where the folder has no such file, DataError where it is malformed.
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
    """Return the command that made the model of a folder as a shell script, with the SHA-256 of its text."""
    origin, _ = read_origin(folder)
    comments = [f"# made by attnkit {escaped(origin.version)}", f"# {escaped(f'{origin.digest}  {origin.text}')}"]
    return "\n".join(["#!/bin/sh", *comments, escaped(origin.command)])


GRADIENT = ".grad"  # after the name of what it is the gradient of, as in PyTorch


def record_step(trainer: Trainer, number: int) -> Record:
    """Return every intermediate of a step, and the gradients of intermediates and parameters as NAME.grad.

    Of a batch in several passes they are those of the last; gradients of parameters are those of all. The step itself
    computes large passes in parts at once, which rounds the last bits in another way.
    """
    activations: dict[str, Array] = {}
    slopes: dict[str, Array] = {}
    plan, state = trainer.plan(number), trainer.state.fetch()
    batch = plan.batch
    tensors = {"ids": batch.ids, "target": batch.targets} | ({} if batch.source is None else {"source": batch.source})
    hooks = Hooks(keeping(activations), keeping(slopes))
    try:
        state.collect_gradients(plan, hooks)
        slopes |= {name: state.gradient_of(name) for name in trainer.table.names}
    except AttnkitError:  # an operator refuses what is not finite: what came before it is kept
        pass
    named: dict[str, Tensor] = {
        name: Tensor(array, ("batch", "token")[: array.ndim]) for name, array in tensors.items()
    }
    named |= {name: Tensor(array, intermediate_axes(name, array.ndim)) for name, array in activations.items()}
    for name, array in slopes.items():
        axes = named[name].axes if name in activations else None  # those of a parameter are as in its file
        named[name + GRADIENT] = Tensor(np.array(array), axes)
    return Record(named)


def keeping(arrays: dict[str, Array]) -> Callable[[str], Callable[[Array], Array]]:
    """Return a hook that copies every intermediate to a dictionary, in their order."""

    def visit(name: str) -> Callable[[Array], Array]:
        def keep(array: Array) -> Array:
            arrays[name] = np.array(array)
            return array

        return keep

    return visit


def first_non_finite_stage(record: Record) -> str:
    """Return the name and the value of the first tensor that is not finite, "" where all are.

    >>> first_non_finite_stage(Record({"a": np.ones(2), "b": np.array([1.0, np.inf]), "c": np.array([np.nan])}))
    'b is inf'
    """
    for name, array in record.arrays().items():
        if array.dtype.kind == "f" and not np.isfinite(array).all() and not is_masked(name):
            return f"{name} is {array[~np.isfinite(array)].flat[0]}"
    return ""


def is_masked(name: str) -> bool:
    """Return whether an intermediate has -inf where a query may not attend.

    >>> is_masked("decoder.0.self.masked"), is_masked("decoder.0.self.weights")
    (True, False)
    """
    return name.endswith(".masked")


POINTS = 2000  # most reports of a curve


def find_steps(folder: str) -> dict[int, str]:
    """Return the files of the recorded steps of a folder by their numbers, ascending; DataError where it has none."""
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
    """Return at most so many of some numbers, evenly, the first and the last among them.

    >>> thin([1, 2, 3, 4, 5], 3), thin([1, 2], 3)
    ([1, 3, 5], [1, 2])
    """
    if len(steps) <= most:
        return [*steps]
    return [steps[round(at * (len(steps) - 1) / (most - 1))] for at in range(most)]


def read_reports(folder: str) -> list[dict[str, Any]]:
    """Return the reports of a run, at most POINTS of them; none where the folder has no curve."""
    path = os.path.join(folder, CURVE)
    reports = [report_values(one) for one in read_curve(path)] if exists(path) else []
    return [reports[at] for at in thin(range(len(reports)), POINTS)]


def find_losses(folder: str) -> Record | None:
    """Read the losses of a run that recorded no step; None where it recorded some, or has no reports."""
    path = os.path.join(folder, CURVE)
    return read_losses(path) if exists(path) and not recorded_steps(folder) else None


def read_losses(path: str) -> Record:
    """Read the losses in the reports of a run: x (step, curve), with norms of gradients and learning rates.

    The curves are of the training text, and where there is one of the held-out part.

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
    """Return the record of a step with the words of its ids and the command of its run, as far as a folder has them."""
    labels: dict[str, Labels] = dict(record.labels)
    of_ids = "target" if "source" in record else "source"
    for name, side, axes in (("ids", of_ids, ("token", "query", "key")), ("source", "source", ("source",))):
        words = read_words(folder, side) if name in record and record[name].ndim == 2 else []
        if words:
            labels |= dict.fromkeys(axes, spell_ids(record[name], words))
    try:
        history: Any = [{"command": read_origin(folder)[0].command}]
    except AttnkitError:
        history = []
    return replace(record, labels=labels, history=history)


def read_words(folder: str, side: str) -> list[str]:
    """Return the vocabulary of a side of the model of a folder; [] where it has no tokenizer."""
    try:
        return load_tokenizer(folder, side).vocabulary
    except AttnkitError:
        return []


def spell_ids(ids: Array, words: Sequence[str]) -> list[list[str]]:
    """Return the token strings of ids (B, T); of one that is none of the words its number.

    >>> import numpy as np
    >>> spell_ids(np.array([[1, 2]]), ["a", "b"])
    [['b', '2']]
    """
    return [[words[id] if 0 <= id < len(words) else str(id) for id in row] for row in ids.tolist()]
