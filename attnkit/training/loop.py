"""The training loop: steps, reports and saves of a run, new or resumed."""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import orjson

from attnkit.callbacks import SILENT, current, use_callbacks
from attnkit.checkpoints.publishing import assemble_checkpoint
from attnkit.errors import AttnkitNote, DataError, NotFiniteError
from attnkit.formats import npz, safetensors
from attnkit.formats.streams import exists, open_source
from attnkit.generation.options import DecodeOptions
from attnkit.generation.output_head import apply_output_head
from attnkit.generation.text_generation import run_decode
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.model import Array, softmax
from attnkit.records import Record, join_names
from attnkit.training.folder import (
    CURVE,
    INPUT_FILES,
    ORIGIN,
    STATE,
    json_bytes,
    model_files,
    recorded_steps,
    remove_files,
    write_folder,
)
from attnkit.training.initial_model import Files, InitialModel
from attnkit.training.optimizers import ParameterBuffer, fill_views
from attnkit.training.recipe import Recipe, to_json
from attnkit.training.reports import (
    Origin,
    Report,
    Speed,
    bits_per_byte,
    first_non_finite_stage,
    read_curve,
    record_step,
    report_values,
)
from attnkit.training.trainer import Trainer

MINUTE = 60.0
PARAMETERS, BEST, OPTIMIZER, PROGRESS = "parameters.", "best.", "optimizer.", "progress."


@dataclass
class RunProgress:
    """The progress of a run.

    step       steps that are done; tokens: those predicted so far
    loss_sum   of the steps since the last report, of which there are `loss_count`
    best_loss  the least held-out loss of all evaluations; stale: evaluations since that one
    gradient_norm, learning_rate  of the last step
    best       the tensors at the time of the best loss; None where nothing is evaluated
    """

    step: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best_loss: float = float("inf")
    stale: int = 0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    best: ParameterBuffer | None = field(default=None, repr=False)

    def evaluated(self, held_out: float | None, parameters: ParameterBuffer) -> "RunProgress":
        """The progress after a report, with a held-out loss if there is one."""
        after = replace(self, loss_sum=0.0, loss_count=0)
        if held_out is None:
            return after
        if held_out >= self.best_loss:
            return replace(after, stale=self.stale + 1)
        best = ParameterBuffer.of(parameters, parameters.flat.dtype)
        return replace(after, best_loss=held_out, stale=0, best=best)


class Monitor(NamedTuple):
    """What a run calls: with each report, after each step, and to learn of signals."""

    on_report: Callable[["Run", Report, Speed], None] = lambda run, report, speed: None
    on_progress: Callable[["Run", Speed], None] = lambda run, speed: None
    stop_signal: Callable[[], int] = lambda: 0


class Run:
    """A trainer with its progress, its curve and its folder, which process 0 writes."""

    def __init__(
        self, recipe: Recipe, model: InitialModel, origin: Origin, folder: str, is_writer: bool = True
    ) -> None:
        self.recipe, self.origin, self.folder, self._files = recipe, origin, folder, model.files
        self._is_writer, self._engine = is_writer, current().engine
        self.trainer = Trainer(recipe, model)
        self.progress = RunProgress()
        self.curve: list[Report] = []
        self._is_new = True  # its first save replaces what an earlier run wrote
        self._recorded: set[int] = set()  # the steps whose records this run wrote
        self._clock, self._first = time.monotonic(), (0, 0)  # of this process: its start, its first step and token

    def resume(self, folder: str) -> None:
        """Continue from the state and the curve of a folder. Errors are those of reading."""
        path = os.path.join(folder, STATE)
        self._is_new = os.path.realpath(folder) != os.path.realpath(self.folder)
        with open_source(path) as source:
            record = next(iter(safetensors.read(source)))
        self.progress = unpack_state(self.trainer, record.arrays(), path)
        known = read_curve(os.path.join(folder, CURVE))
        self.curve = [one for one in known if one.step <= self.progress.step and self._is_regular(one.step)]
        self._first = (self.progress.step, self.progress.tokens)

    def train(self, monitor: Monitor) -> int:
        """Train to the end of the run, with reports and saves at intervals and at the end.

        Returns 0, or the number of a signal to any of the processes, after which all was saved. DataError if a number
        is not finite, FileError if the folder cannot be written; it then keeps the last save.
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
        """The speed of this process, and the time left if the end is known."""
        seconds = time.monotonic() - self._clock
        steps, tokens = self.progress.step - self._first[0], self.progress.tokens - self._first[1]
        total = self.trainer.total
        left = None if total is None or not steps else (total - self.progress.step) * seconds / steps
        if self.recipe.minutes is not None:
            rest = max(self.recipe.minutes * MINUTE - seconds, 0)
            left = rest if left is None else min(left, rest)
        return Speed(tokens / seconds if seconds else 0.0, seconds, left)

    def save(self, best: ParameterBuffer | None = None) -> None:
        """Write the folder: a model [the best so far], and the state to continue from."""
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
        earlier = list[str]()  # the recorded steps of the run whose model this save replaces
        if self._is_new and exists(os.path.join(self.folder, ORIGIN)):
            known = recorded_steps(self.folder).items()
            earlier = [name for number, name in known if number not in self._recorded]
        write_folder(self.folder, files)
        if self._is_new:
            remove_files(self.folder, (INPUT_FILES - set(files)).union(earlier))
            self._is_new = False
        if earlier:
            note = f"{self.folder}: removed the recorded steps of the earlier run: {join_names(earlier)}"
            warnings.warn(note, AttnkitNote, stacklevel=2)

    def continue_text(self, text: str) -> str:
        """Continue a text by the model of the last step, as `attnkit decode --model`.

        A classifier gives its most probable label, and the probability.
        """
        parameters = self.trainer.state.fetch().parameters
        copy = ParameterBuffer.of(parameters, parameters.flat.dtype)
        checkpoint = assemble_checkpoint(self.trainer.raw, copy, self.folder)
        with use_callbacks(SILENT), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text that ends with the positions is a sample too
            if checkpoint.config.classes:
                return best_label(apply_output_head([text], DecodeOptions(model_=checkpoint)))
            return str(run_decode([text], DecodeOptions(model_=checkpoint, emit="text")))

    def summary(self) -> dict[str, Any]:
        """The folder, the steps, the parameters and the best held-out loss of the run."""
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
        """The highest number of all processes, which stop after the same step."""
        return self._engine.highest(number) if self._engine else number

    def _report(self, monitor: Monitor) -> None:
        """Evaluate, save and report the numbers since the last report.

        At the end of a run between two regular reports the model is the better one of the last and of the best before,
        but the state is that of a run without this end, and so without this evaluation.
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
        name = f"step-{number}.npz"
        self._recorded.add(number)
        if self._is_writer:
            write_folder(self.folder, {name: npz.encode(record)})
        return os.path.join(self.folder, name)

    def _explain(self, error: NotFiniteError, number: int) -> DataError:
        """Record a step that is not finite, and name the first such stage in the error."""
        record = record_step(self.trainer, number)
        path = self._write_record(record, number)
        stage = first_non_finite_stage(record)
        return DataError(f"{error.problem}: {stage}; attnkit show {path}" if stage else f"{error.problem} ({path})")


def best_label(output: OutputLogits) -> str:
    """The most probable label of one text, and its probability: good 75.0%."""
    probabilities = softmax(output.logits)
    best = int(probabilities.argmax())
    return f"{output.words[best]} {probabilities[best]:.1%}"


NUMBERS = [one.name for one in fields(RunProgress) if one.name != "best"]


def pack_state(trainer: Trainer, progress: RunProgress) -> dict[str, Array]:
    state = trainer.state.fetch()
    tensors = {PARAMETERS + name: array for name, array in state.parameters.items()}
    tensors |= {OPTIMIZER + name: array for name, array in state.optimizer.state().items()}
    if progress.best is not None:
        tensors |= {BEST + name: array for name, array in progress.best.items()}
    return tensors | {PROGRESS + name: np.array(getattr(progress, name)) for name in NUMBERS}


def unpack_state(trainer: Trainer, tensors: Mapping[str, Array], name: str) -> RunProgress:
    """Set the parameters and the optimizer of a trainer to a state with its progress.

    DataError if it is the state of another model; `name` is its file.
    """
    state, parts = trainer.state.fetch(), dict[str, dict[str, Array]]()
    for prefix in (PARAMETERS, BEST, OPTIMIZER, PROGRESS):
        parts[prefix] = {key.removeprefix(prefix): one for key, one in tensors.items() if key.startswith(prefix)}
    if set(parts[PROGRESS]) != set(NUMBERS):
        raise DataError("not the state of a run", name)
    progress = RunProgress(**{key: array.item() for key, array in parts[PROGRESS].items()})
    try:
        state.optimizer.load_state(parts[OPTIMIZER])
        fill_views(state.parameters, parts[PARAMETERS])
        if parts[BEST]:
            progress.best = state.parameters.zeros()
            fill_views(progress.best, parts[BEST])
    except DataError as error:
        raise DataError(error.problem, name) from None
    trainer.state.load(state)
    return progress
