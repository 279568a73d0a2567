"""One model in training: what each step learns from and changes, which a state in NumPy or of an engine does."""

from typing import NamedTuple, Protocol

import numpy as np

from attnkit import callbacks
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import NotFiniteError, UsageError
from attnkit.model.loss import IGNORE_INDEX
from attnkit.training.batches import Batch
from attnkit.training.engine_state import EngineState
from attnkit.training.numpy_state import NumpyState
from attnkit.training.parameter_groups import match_parameters, tensors_of, unfrozen_parameters
from attnkit.training.recipe import Recipe
from attnkit.training.schedules import SCHEDULES
from attnkit.training.start import Start
from attnkit.training.step_plan import StepPlan, split_rows


class StepResult(NamedTuple):
    """The numbers of a step: the mean loss of its tokens, the norm of the gradients before clipping, and the rate."""

    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int


class Evaluation(NamedTuple):
    """The numbers of the held-out part: the mean loss, and of labelled texts the part whose label is most probable."""

    loss: float
    accuracy: float | None = None


class TrainState(Protocol):
    """The parameters of a model in training and the state of their optimizer, wherever they are."""

    def step(self, plan: StepPlan) -> tuple[float, float]:
        """Change the parameters; return the mean loss, and the norm of the gradients before clipping.

        Where one of them is not finite, nothing is changed.
        """

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """Return the sum of the losses of a batch, and how many of its targets are the most probable ones."""

    def fetch(self) -> NumpyState:
        """Return the same state in NumPy; it may be changed only to be loaded."""

    def load(self, state: NumpyState) -> None:
        """Go on from what `fetch` returned, which was changed since."""


class Trainer:
    """A model in training and its data.

    state   its parameters and their optimizer, in NumPy, or on the devices of the engine that computes
    table   its tensors by their published names
    total   steps of the whole run, None where only time or patience ends it
    """

    def __init__(self, recipe: Recipe, start: Start) -> None:
        self.recipe, self.raw, self.corpus = recipe, start.raw, start.corpus
        self.total = recipe.total_steps(self.corpus.steps_per_epoch)
        self.table = published_tensors(start.raw)
        self.config = self.table.config
        self._schedule = recipe.schedule_options(self.total)
        frozen = match_parameters(self.table.names, recipe.freeze)
        self._free = set(self.table.shapes) - tensors_of(self.table, frozen)
        if not self._free:
            raise UsageError("every parameter is frozen (--freeze)")
        engine = callbacks.current().engine
        state: type[NumpyState] | type[EngineState] = NumpyState if engine is None else EngineState
        self.state: TrainState = state(recipe, start.raw, start.tensors)

    def trainable(self, step: int) -> set[str]:
        """Return the tensors that are changed in a step, by their published names."""
        if self.recipe.unfreeze_every is None:
            return self._free
        names = unfrozen_parameters(self.table.names, self.config, step, self.recipe.unfreeze_every)
        return self._free & tensors_of(self.table, names)

    def plan(self, number: int) -> StepPlan:
        """Return what a step does, from 1: its batch is worked on in `accumulate` passes."""
        batch, passes = self.corpus.batch(number), self.recipe.accumulate
        rows, first = split_rows(len(batch.ids), passes), (number - 1) * passes + 1
        return StepPlan(batch, rows, first, self.trainable(number), self._factor(number))

    def step(self, number: int) -> StepResult:
        """Change the parameters by the gradients of the batch of a step, from 1.

        NotFiniteError, before they are changed, where the loss or the gradient is not finite.
        """
        plan = self.plan(number)
        loss, norm = self.state.step(plan)
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise NotFiniteError(f"step {number}: the {'gradient' if np.isfinite(loss) else 'loss'} is not finite")
        mask = plan.batch.mask
        return StepResult(loss, norm, self.recipe.lr * plan.factor, plan.targets if mask is None else int(mask.sum()))

    def evaluate(self) -> Evaluation | None:
        """Return the numbers of the held-out part, None where there is none."""
        if self.corpus.held_out is None:
            return None
        total, count, correct = 0.0, 0, 0
        for batch in self.corpus.held_out():
            loss, hits = self.state.evaluate(batch)
            total, correct = total + loss, correct + hits
            count += int((batch.targets != IGNORE_INDEX).sum())
        return Evaluation(total / count, correct / count if self.config.classes else None)

    def _factor(self, number: int) -> float:
        return SCHEDULES[self.recipe.schedule](number, self._schedule)
