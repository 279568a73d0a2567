"""The tape of a forward pass, and what a backward pass along it accumulates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from attnkit.model.config import Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.linear import projection_backward
from attnkit.model.formulas.recurrent_cells import State
from attnkit.model.hooks import Hook, no_hook

ModelGradients = dict[str, dict[str, Array]]


class Dropout(NamedTuple):
    """Dropout of a training step: rate, seed, number of the step, and first row.

    It applies to the result of every sub-layer before it is added to the residual, and to the embeddings once
    positions are added (Attention Is All You Need, section 5.4). In a recurrent layer it applies to the outputs, not to
    the states. The place of a mask is the name of the layer.
    """

    rate: float
    seed: int
    step: int
    row: int = 0


@dataclass
class Reverse:
    """What a backward pass accumulates.

    gradients  layer -> {parameter: gradient}, added to
    hook       receives the gradient of any intermediate; its result is used instead
    memory     (..., S, D) the gradient of what cross-attention attends to
    biases     stack -> (H, T, S), the gradient of the bias on the scores that positions give all layers of a stack
    states     recurrent layer of the encoder -> the gradient of its last state, which the decoder begins with
    """

    gradients: ModelGradients = field(default_factory=dict)
    hook: Hook = no_hook
    memory: Array | None = None
    biases: dict[str, Array] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)

    def add(self, layer: str, gradients: Mapping[str, Array | None]) -> None:
        """Add the gradients of parameters of a layer to the known ones."""
        for name, gradient in gradients.items():
            if gradient is not None:
                known = self.gradients.setdefault(layer, {})
                known[name] = gradient if name not in known else known[name] + gradient

    def add_memory(self, gradient: Array) -> None:
        """Add a gradient of the memory."""
        self.memory = gradient if self.memory is None else self.memory + gradient


Undo = Callable[[Array, Reverse], Array]  # the gradient of a result -> the gradient of the input


class RecordedStep(NamedTuple):
    """A step, its input, and the function that undoes it."""

    step: Step
    x: Array
    undo: Undo


@dataclass
class Tape:
    """The steps of one forward pass, their context, and dropout."""

    context: Context
    dropout: Dropout | None = None
    dropped: frozenset[str] = frozenset()  # the layers whose results dropout applies to
    steps: list[RecordedStep] = field(default_factory=list)


def undo_projection(model: Model, layer: str, dy: Array, x: Array, reverse: Reverse, suffix: str = "") -> Array:
    """Undo the linear map of a layer, and add the gradients of its parameters.

    dy (..., E), x (..., D) -> (..., D)
    """
    dx, gradients = projection_backward(dy, x, model.params[layer], suffix)
    reverse.add(layer, gradients)
    return dx
