"""Training by an engine: parameters and the state of their optimizer stay on its devices from step to step."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit import callbacks
from attnkit.checkpoints.publishing import published_tensors
from attnkit.model import Array
from attnkit.training.batches import Batch
from attnkit.training.numpy_state import NumpyState, views_as_model
from attnkit.training.recipe import Recipe
from attnkit.training.step_plan import StepPlan, stack_inputs


class EngineState:
    """A model in training: see `TrainState`. The host counts the updates of each parameter, and holds no parameter."""

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
        """Do what `TrainState.step` does."""
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
            updates={parameter: updates[name] for parameter, name in names.items() if name in updates},
        )
        if np.isfinite(loss) and np.isfinite(norm):
            self._numbers.count(plan.trainable)
        return loss, norm

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """Do what `TrainState.evaluate` does."""
        loss, hits = self._devices.evaluate(stack_inputs(self._table.config, batch), batch.targets)
        return float(loss), int(hits)

    def fetch(self) -> NumpyState:
        """Return the state in NumPy, which is a copy of that on the devices."""
        if self._fetched is None:
            zeros = {name: np.zeros(shape, self._dtype) for name, shape in self._table.shapes.items()}
            self._fetched = NumpyState(self._recipe, self._raw, zeros)
            self._fetched.optimizer.numbers.steps = dict(self._numbers.steps)
            self._devices.fetch(self._buffers(self._fetched))
        return self._fetched

    def load(self, state: NumpyState) -> None:
        """Do what `TrainState.load` does."""
        self._numbers.steps = dict(state.optimizer.numbers.steps)
        self._devices.load(self._buffers(state))

    def _buffers(self, state: NumpyState) -> list[Mapping[str, Mapping[str, Array]]]:
        """Return the parameters of a state by layer, and in the same way what its optimizer has of them."""
        others = [views_as_model(self._raw, buffer).params for buffer in state.optimizer.buffers.values()]
        return [state.model.params, *others]
