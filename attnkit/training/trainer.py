"""One model in training: the plan of each step, and the state that carries it out."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit import callbacks
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import NotFiniteError, UsageError
from attnkit.model import Array
from attnkit.model.config import Config
from attnkit.model.formulas.loss import IGNORE_INDEX
from attnkit.training.batches import Batch
from attnkit.training.initial_model import InitialModel
from attnkit.training.numpy_state import (
    BufferedParameters,
    NumpyState,
    StepPlan,
    count_places,
    split_rows,
    stack_inputs,
)
from attnkit.training.parameter_groups import match_parameters, tensors_of, unfrozen_parameters
from attnkit.training.recipe import Recipe
from attnkit.training.schedules import SCHEDULES, ScheduleOptions, check_schedule


class EngineState:
    """A `NumpyState` on the devices of an engine; the host only counts its updates."""

    def __init__(self, recipe: Recipe, raw: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self._recipe, self._raw, self._table = recipe, raw, published_tensors(raw)
        state = NumpyState(recipe, raw, tensors)
        self._dtype, self._numbers = state.parameters.flat.dtype, state.optimizer.numbers
        engine: Any = callbacks.current().engine
        self._devices = engine.train_state(
            state.model,
            optimizer=state.optimizer.options,
            states=tuple(state.optimizer.buffers),
            clip=recipe.clip,
            smoothing=recipe.smoothing,
        )
        self._fetched: NumpyState | None = state  # until the next step

    def step(self, plan: StepPlan) -> tuple[float, float]:
        """Do what `NumpyState.step` does."""
        self._fetched = None
        names = self._table.names
        rates = self._recipe.dropout, self._recipe.weight_drop
        updates = self._numbers.of(plan.trainable, plan.factor)
        loss, norm = self._devices.step(
            stack_inputs(self._table.config, plan.batch),
            plan.batch.targets,
            passes=plan.passes,
            count=plan.targets,
            dropouts=tuple([one for one in plan.dropout(rate, self._recipe.seed) if one] for rate in rates),
            updates={parameter: updates[tensors[0]] for parameter, tensors in names.items() if tensors[0] in updates},
        )
        if np.isfinite(loss) and np.isfinite(norm):
            self._numbers.count(plan.trainable)
        return loss, norm

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """Do what `NumpyState.evaluate` does."""
        loss, hits = self._devices.evaluate(stack_inputs(self._table.config, batch), batch.targets)
        return float(loss), int(hits)

    def fetch(self) -> NumpyState:
        """Copy the state from the devices to NumPy; change the copy only to load it."""
        if self._fetched is None:
            zeros = {name: np.zeros(shape, self._dtype) for name, shape in self._table.shapes.items()}
            self._fetched = NumpyState(self._recipe, self._raw, zeros)
            self._fetched.optimizer.numbers.steps = dict(self._numbers.steps)
            buffers = self._buffers(self._fetched)
            self._devices.fetch([buffer.params for buffer in buffers])
            for buffer in buffers:
                buffer.write()
            self._fetched.load(self._fetched)
        return self._fetched

    def load(self, state: NumpyState) -> None:
        """Go on from what `fetch` returned, changed since."""
        self._numbers.steps = dict(state.optimizer.numbers.steps)
        self._devices.load([buffer.params for buffer in self._buffers(state)])

    def _buffers(self, state: NumpyState) -> list[BufferedParameters]:
        """The parameters of a state, then the arrays of its optimizer."""
        slopes = [BufferedParameters(self._table, buffer, is_slope=True) for buffer in state.optimizer.buffers.values()]
        return [BufferedParameters(self._table, state.parameters), *slopes]


class StepResult(NamedTuple):
    """The numbers of a step: mean loss, norm before clipping, learning rate, tokens."""

    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int


def reported_tokens(config: Config, batch: Batch) -> int:
    """The targets of a batch, or the tokens that a classifier reads."""
    if config.patches:
        return count_places(config, batch)
    return int((batch.targets != IGNORE_INDEX).sum() if batch.mask is None else batch.mask.sum())


class Evaluation(NamedTuple):
    """The mean held-out loss, and the share of labels that are predicted right."""

    loss: float
    accuracy: float | None = None


class Trainer:
    """A model in training and its data.

    state   its parameters and their optimizer, in NumPy, or on the devices of the engine that computes
    table   its tensors by their published names
    total   steps of the whole run, None if only time or patience ends it
    """

    def __init__(self, recipe: Recipe, model: InitialModel) -> None:
        self.recipe, self.raw, self.corpus = recipe, model.raw, model.corpus
        self.total = recipe.total_steps(self.corpus.steps_per_epoch)
        self.table = published_tensors(model.raw)
        self.config = self.table.config
        self._schedule = ScheduleOptions(self.total or 0, recipe.warmup)
        check_schedule(recipe.schedule, self._schedule)
        frozen = match_parameters(self.table.names, recipe.freeze)
        self._free = set(self.table.shapes) - tensors_of(self.table, frozen)
        if not self._free:
            raise UsageError("every parameter is frozen (--freeze)")
        engine = callbacks.current().engine
        state: type[NumpyState] | type[EngineState] = NumpyState if engine is None else EngineState
        self.state = state(recipe, model.raw, model.tensors)

    def trainable(self, step: int) -> set[str]:
        """The published names of the tensors that a step changes."""
        if self.recipe.unfreeze_every is None:
            return self._free
        names = unfrozen_parameters(self.table.names, self.config, step, self.recipe.unfreeze_every)
        return self._free & tensors_of(self.table, names)

    def plan(self, number: int) -> StepPlan:
        """Plan a step, from 1: its batch is computed in `accumulate` passes."""
        batch, passes = self.corpus.batch(number), self.recipe.accumulate
        rows, first = split_rows(len(batch.ids), passes), (number - 1) * passes + 1
        factor = SCHEDULES[self.recipe.schedule](number, self._schedule)
        return StepPlan(batch, rows, first, self.trainable(number), factor)

    def step(self, number: int) -> StepResult:
        """Change the parameters by the gradients of the batch of a step, from 1.

        NotFiniteError, before they are changed, if the loss or the gradient is not finite.
        """
        plan = self.plan(number)
        loss, norm = self.state.step(plan)
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise NotFiniteError(f"step {number}: the {'gradient' if np.isfinite(loss) else 'loss'} is not finite")
        return StepResult(loss, norm, self.recipe.lr * plan.factor, reported_tokens(self.config, plan.batch))

    def evaluate(self) -> Evaluation | None:
        """Evaluate the held-out part; None if there is none."""
        if self.corpus.held_out is None:
            return None
        total, count, correct = 0.0, 0, 0
        for batch in self.corpus.held_out():
            loss, hits = self.state.evaluate(batch)
            total, correct = total + loss, correct + hits
            count += int((batch.targets != IGNORE_INDEX).sum())
        return Evaluation(total / count, correct / count if self.config.classes else None)
