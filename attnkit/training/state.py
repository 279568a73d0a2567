"""What a run needs to go on with the same bits: parameters, the optimizer's state, and where the run was."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from attnkit.errors import DataError
from attnkit.model import Array
from attnkit.model.checks import as_text
from attnkit.training.optimizers import ParameterBuffer
from attnkit.training.trainer import Trainer

PARAMETERS, BEST, OPTIMIZER, PROGRESS = "parameters.", "best.", "optimizer.", "progress."


@dataclass
class RunProgress:
    """Where a run is.

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
        """Return the progress after a report with a held-out loss, if there is one, of some parameters."""
        after = replace(self, loss_sum=0.0, loss_count=0)
        if held_out is None:
            return after
        if held_out >= self.best_loss:
            return replace(after, stale=self.stale + 1)
        best = parameters.zeros()
        best.flat[...] = parameters.flat
        return replace(after, best_loss=held_out, stale=0, best=best)


NUMBERS = ("step", "tokens", "loss_sum", "loss_count", "best_loss", "stale", "gradient_norm", "learning_rate")


def pack_state(trainer: Trainer, progress: RunProgress) -> dict[str, Array]:
    """Return the state of a run as named tensors."""
    state = trainer.state.fetch()
    tensors = {PARAMETERS + name: array for name, array in state.parameters.items()}
    tensors |= {OPTIMIZER + name: array for name, array in state.optimizer.state().items()}
    if progress.best is not None:
        tensors |= {BEST + name: array for name, array in progress.best.items()}
    return tensors | {PROGRESS + name: np.array(getattr(progress, name)) for name in NUMBERS}


def unpack_state(trainer: Trainer, tensors: Mapping[str, Array], name: str) -> RunProgress:
    """Set the parameters and the optimizer of a trainer to a state, and return where that run was.

    DataError where it is the state of another model, `name` being its file.
    """
    state = trainer.state.fetch()
    try:
        state.optimizer.load_state(_without_prefix(tensors, OPTIMIZER))
    except DataError as error:
        raise DataError(error.problem, name) from None
    _fill(state.parameters, _without_prefix(tensors, PARAMETERS), name)
    trainer.state.load(state)
    numbers = _without_prefix(tensors, PROGRESS)
    if set(numbers) != set(NUMBERS):
        raise DataError("not the state of a run", name)
    progress = RunProgress(**{key: array.item() for key, array in numbers.items()})
    if best := _without_prefix(tensors, BEST):
        progress.best = state.parameters.zeros()
        _fill(progress.best, best, name)
    return progress


def _fill(buffer: ParameterBuffer, tensors: Mapping[str, Array], name: str) -> None:
    for key, view in buffer.items():
        if key not in tensors or tensors[key].shape != view.shape:
            shape = as_text(tensors[key].shape) if key in tensors else "none"
            raise DataError(f"tensor {key!r}: {shape} (expected {as_text(view.shape)})", name)
        view[...] = tensors[key]


def _without_prefix(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
