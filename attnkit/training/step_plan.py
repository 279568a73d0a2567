"""What a step of training does: its batch, the passes that it is worked on in, and what it changes."""

from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

from attnkit.model import Array
from attnkit.model.backward.tape import Dropout
from attnkit.model.backward.whole_models import StackInputs
from attnkit.model.config import Config
from attnkit.model.loss import IGNORE_INDEX
from attnkit.training.batches import Batch


class StepPlan(NamedTuple):
    """What a step does.

    batch      what it learns from
    passes     the rows of the batch that are worked on together; the gradients of all passes are added up
    first      the number of the first of these passes in the run, by which dropout is drawn
    trainable  the tensors that it changes, by their published names
    factor     that of the schedule on the learning rate
    """

    batch: Batch
    passes: list[slice]
    first: int
    trainable: Collection[str]
    factor: float

    @property
    def targets(self) -> int:
        """How many targets there are, of whose losses the mean is taken."""
        return int((self.batch.targets != IGNORE_INDEX).sum())

    def dropout(self, rate: float, seed: int) -> list[Dropout | None]:
        """Return the dropout of each pass, None at a rate of 0."""
        numbers = range(self.first, self.first + len(self.passes))
        return [Dropout(rate, seed, number) if rate else None for number in numbers]


def split_rows(count: int, parts: int) -> list[slice]:
    """Return the rows of each part of a batch; there are fewer parts where there are fewer rows.

    >>> split_rows(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = [part * count // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def take_rows(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch.

    >>> import numpy as np
    >>> take_rows(Batch(np.eye(2), np.ones((2, 2))), slice(1, 2)).ids.tolist()
    [[0.0, 1.0]]
    """
    return Batch(*(None if part is None else part[rows] for part in batch))  # type: ignore[arg-type]


def stack_inputs(config: Config, batch: Batch) -> dict[str, StackInputs]:
    """Return what each stack of a model computes from, of a batch."""
    inputs = {config.stacks[-1]: StackInputs(batch.ids, batch_mask(batch.mask))}
    if batch.source is not None:
        inputs["encoder"] = StackInputs(batch.source, batch_mask(batch.source_mask))
    return inputs


def batch_mask(real: Array | None) -> Array | None:
    """Return which tokens of a batch are no padding as a mask (B, 1, T), None where all are: real (B, T)."""
    return None if real is None or real.all() else real[:, None, :]
