"""Optimizers named as in torch.optim, in place and in blocks: adamw, adam, sgd."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike

from attnkit.errors import DataError, UsageError
from attnkit.model import Array
from attnkit.model.checks import as_text
from attnkit.model.processor.threads import run_parallel, split_range
from attnkit.training.parameter_groups import ParameterGroup

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of a processor


class ParameterBuffer(Mapping[str, Array]):
    """Arrays by name as views of one array of zeros: assign to views, not to names.

    flat    all elements, with zeros between the arrays, each of which starts on a cache line
    ranges  name -> its elements in `flat`

    >>> buffer = ParameterBuffer({"w": (2, 3), "b": (3,)})
    >>> buffer["b"][...] = 1
    >>> float(buffer.flat.sum()), buffer.ranges["b"]
    (3.0, slice(16, 19, None))
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: DTypeLike = np.float32) -> None:
        width = ALIGNMENT // np.dtype(dtype).itemsize
        self.ranges: dict[str, slice] = {}
        end = 0
        for name, shape in shapes.items():
            self.ranges[name] = slice(end, end + int(np.prod(shape, dtype=np.int64)))
            end = -(-self.ranges[name].stop // width) * width
        room = np.zeros(end + width, dtype)
        start = -room.ctypes.data % ALIGNMENT // room.itemsize
        self.flat = room[start : start + end]
        self._views = {name: self.flat[self.ranges[name]].reshape(shape) for name, shape in shapes.items()}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], dtype: DTypeLike = np.float32) -> Self:
        """Copy arrays to a new buffer."""
        buffer = cls({name: array.shape for name, array in arrays.items()}, dtype)
        for name, array in arrays.items():
            buffer[name][...] = array
        return buffer

    def zeros(self) -> "ParameterBuffer":
        """A buffer of zeros with the same names, shapes and dtype."""
        return ParameterBuffer(self.shapes(), self.flat.dtype)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: view.shape for name, view in self._views.items()}

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


BLOCK = 1 << 15  # elements that are updated at a time: with gradient and state they stay in a core's cache


def fill_views(views: Mapping[str, Array], tensors: Mapping[str, Array]) -> None:
    """Copy tensors to views of their names, or raise DataError if one does not fit."""
    for name, view in views.items():
        expected = f"{view.dtype} {as_text(view.shape)}"
        if name not in tensors:
            raise DataError(f"no tensor {name!r} (expected {expected})")
        if (stored := f"{tensors[name].dtype} {as_text(tensors[name].shape)}") != expected:
            raise DataError(f"tensor {name!r}: {stored} (expected {expected})")
    for name, view in views.items():
        view[...] = tensors[name]


class OptimizerOptions(NamedTuple):
    """The options of an optimizer; DEFAULTS has those of each."""

    name: str = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0


class Update(NamedTuple):
    """The numbers of one update: learning rate, weight decay, and step from 1."""

    rate: float
    weight_decay: float
    step: int


State = Mapping[str, Array]
Rule = Callable[[Array, Array, State, OptimizerOptions, Update], None]


def adam(parameter: Array, gradient: Array, state: State, options: OptimizerOptions, update: Update) -> None:
    """Update in place by m/(sqrt(v) + eps), corrected means of gradients and squares.

    Weight decay is added to the gradient. In step 0 nothing is corrected, as in ONNX.
    Source: Kingma and Ba 2015, algorithm 1; torch.optim.Adam.

    >>> x, state = np.array([1.0]), {"exp_avg": np.zeros(1), "exp_avg_sq": np.zeros(1)}
    >>> adam(x, np.array([5.0]), state, OptimizerOptions(), Update(0.1, 0.0, 1))
    >>> x.round(4).tolist(), state["exp_avg"].round(4).tolist(), state["exp_avg_sq"].round(4).tolist()
    ([0.9], [0.5], [0.025])
    """
    if update.weight_decay:
        gradient = gradient + update.weight_decay * parameter
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    (beta1, beta2), scratch = options.betas, np.empty_like(parameter)
    np.multiply(gradient, 1 - beta1, out=scratch)
    mean *= beta1
    mean += scratch
    np.multiply(gradient, gradient, out=scratch)
    scratch *= 1 - beta2
    square *= beta2
    square += scratch
    root = _bias_correction(beta2, update.step) ** 0.5
    np.sqrt(square, out=scratch)
    scratch += options.eps * root
    np.divide(mean, scratch, out=scratch)
    scratch *= update.rate * root / _bias_correction(beta1, update.step)
    parameter -= scratch


def adamw(parameter: Array, gradient: Array, state: State, options: OptimizerOptions, update: Update) -> None:
    """Update in place like `adam`, with a separate decay: rate · decay · parameter.

    Source: Loshchilov and Hutter 2019, algorithm 2; torch.optim.AdamW.

    >>> x, state = np.array([1.0]), {"exp_avg": np.zeros(1), "exp_avg_sq": np.zeros(1)}
    >>> adamw(x, np.array([5.0]), state, OptimizerOptions(), Update(0.1, 0.5, 1))
    >>> x.round(4).tolist()
    [0.85]
    """
    if update.weight_decay:
        parameter *= 1 - update.rate * update.weight_decay
    adam(parameter, gradient, state, options, update._replace(weight_decay=0.0))


def sgd(parameter: Array, gradient: Array, state: State, options: OptimizerOptions, update: Update) -> None:
    """Update in place by gradient descent; v = momentum v + (1 - dampening) gradient.

    The first step is not dampened. Weight decay is added to the gradient. Source: torch.optim.SGD.

    >>> x, state = np.array([1.0]), {"momentum_buffer": np.array([1.0])}
    >>> sgd(x, np.array([2.0]), state, OptimizerOptions(momentum=0.5), Update(0.1, 0.0, 2))
    >>> x.round(4).tolist(), state["momentum_buffer"].tolist()
    ([0.75], [2.5])
    """
    if update.weight_decay:
        gradient = gradient + update.weight_decay * parameter
    if options.momentum:
        velocity = state["momentum_buffer"]
        velocity *= options.momentum
        velocity += gradient * (1 - options.dampening) if update.step > 1 else gradient
        gradient = velocity
    parameter -= update.rate * gradient


RULES: dict[str, Rule] = {"adamw": adamw, "adam": adam, "sgd": sgd}
DEFAULTS = {
    "adamw": OptimizerOptions("adamw", weight_decay=1e-2),
    "adam": OptimizerOptions("adam"),
    "sgd": OptimizerOptions("sgd"),
}


def optimizer_options(name: str, **changes: Any) -> OptimizerOptions:
    """The options of an optimizer: the defaults of torch.optim with some changes.

    UsageError for an unknown name, and for a number out of range.

    >>> optimizer_options("adamw", lr=3e-4).weight_decay
    0.01
    """
    if name not in DEFAULTS:
        raise UsageError(f"optimizer {name!r} (expected one of {', '.join(DEFAULTS)})")
    options = DEFAULTS[name]._replace(**changes)
    for key in ("lr", "eps", "weight_decay", "momentum"):
        if not 0 <= getattr(options, key) < np.inf:
            raise UsageError(f"{key} {getattr(options, key):g} (expected 0 or more)")
    for beta in options.betas:
        if not 0 <= beta < 1:
            raise UsageError(f"beta {beta:g} (expected 0 or more, below 1)")
    return options


class UpdateNumbers:
    """The next update of each parameter: its group's rate and decay, and its own step.

    A parameter that is not trained in a step keeps its number of steps, as one without a gradient does in PyTorch.

    >>> numbers = UpdateNumbers(["w", "b"], optimizer_options("adamw", lr=0.5), {})
    >>> numbers.count(["w"])
    >>> numbers.of(["w", "b"], factor=0.1)
    {'w': Update(rate=0.05, weight_decay=0.01, step=2), 'b': Update(rate=0.05, weight_decay=0.01, step=1)}
    """

    def __init__(
        self, names: Iterable[str], options: OptimizerOptions, groups: Mapping[str, ParameterGroup] | None
    ) -> None:
        self.steps = dict.fromkeys(names, 0)
        self._options, self._groups = options, groups or {}

    def of(self, names: Iterable[str], factor: float) -> dict[str, Update]:
        """The numbers of the next update; `factor` comes from the schedule."""
        updates = {}
        for name in names:
            group = self._groups.get(name, ParameterGroup())
            decay = self._options.weight_decay if group.has_weight_decay else 0.0
            updates[name] = Update(self._options.lr * factor * group.rate, decay, self.steps[name] + 1)
        return updates

    def count(self, names: Iterable[str]) -> None:
        for name in names:
            self.steps[name] += 1


class Optimizer:
    """Parameters that are updated in place, and the state of the optimizer.

    groups   name -> the group of a parameter [that with the options' learning rate and weight decay]
    numbers  of the updates of each parameter
    buffers  what is kept of every parameter, named as in torch.optim: exp_avg and exp_avg_sq, or momentum_buffer

    A parameter that is not trained in a step keeps its value, its state and its number of steps. The result depends on
    neither blocks nor threads.

    >>> parameters = ParameterBuffer.of({"w": np.ones((1, 2))})
    >>> optimizer = Optimizer(parameters, optimizer_options("sgd", lr=0.5))
    >>> optimizer.step(ParameterBuffer.of({"w": np.array([[1.0, 2.0]])}))
    >>> parameters["w"].tolist()
    [[0.5, 0.0]]
    """

    def __init__(
        self, parameters: ParameterBuffer, options: OptimizerOptions, groups: Mapping[str, ParameterGroup] | None = None
    ) -> None:
        self.parameters, self.options = parameters, options
        self.numbers = UpdateNumbers(parameters, options, groups)
        of_sgd = ("momentum_buffer",) * bool(options.momentum)
        states = of_sgd if options.name == "sgd" else ("exp_avg", "exp_avg_sq")
        self.buffers = {name: parameters.zeros() for name in states}

    def step(self, gradients: ParameterBuffer, factor: float = 1.0, trainable: Collection[str] | None = None) -> None:
        """Update the trainable parameters [all]; `factor` comes from the schedule.

        DataError for gradients of other names or shapes.
        """
        if gradients.shapes() != self.parameters.shapes():
            raise DataError("the gradients are of other parameters than those of the optimizer")
        names = [name for name in self.parameters if trainable is None or name in trainable]
        updates = self.numbers.of(names, factor)
        self.numbers.count(names)
        tasks = [
            (block, update) for start, stop, update in self._merge(updates) for block in split_range(start, stop, BLOCK)
        ]
        rule, options = RULES[self.options.name], self.options
        parameters, slopes = self.parameters.flat, gradients.flat
        states = {name: buffer.flat for name, buffer in self.buffers.items()}

        def work(tasks: Iterator[tuple[slice, Update]]) -> None:
            for block, update in tasks:
                state = {name: flat[block] for name, flat in states.items()}
                rule(parameters[block], slopes[block], state, options, update)

        run_parallel(work, tasks)

    def state(self) -> dict[str, Array]:
        """The state as named tensors: views, and the steps of each parameter."""
        views = {f"{state}.{name}": view for state, buffer in self.buffers.items() for name, view in buffer.items()}
        return {**views, "step": np.array(list(self.numbers.steps.values()), np.int64)}

    def load_state(self, tensors: Mapping[str, Array]) -> None:
        """Load what `state` returned. DataError if it belongs to other parameters.

        The steps that follow give the bits that they would have given then.
        """
        expected = self.state()
        fill_views(expected, tensors)
        self.numbers.steps = {name: int(step) for name, step in zip(self.numbers.steps, expected["step"], strict=True)}

    def _merge(self, updates: Mapping[str, Update]) -> list[tuple[int, int, Update]]:
        """Merge neighbours with equal updates: start, stop and update of each range."""
        merged: list[tuple[int, int, Update]] = []
        order = {name: index for index, name in enumerate(self.parameters)}
        last = -2
        for name, update in updates.items():
            place = self.parameters.ranges[name]
            if merged and merged[-1][2] == update and order[name] == last + 1:
                merged[-1] = (merged[-1][0], place.stop, update)
            else:
                merged.append((place.start, place.stop, update))
            last = order[name]
        return merged


def _bias_correction(beta: float, step: int) -> float:
    return 1 - beta**step if step else 1.0
