"""A stage of a pipeline that ran, and the gradients that its adjoint returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnkit.errors import UsageError
from attnkit.inputs.masking import AttendedTensor
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.hooks import Hook
from attnkit.model.parameters import parameter_axes
from attnkit.record import Labels, Record, Tensor

Axes = tuple[str, ...]
IMAGE_AXES: Axes = ("channel", "row", "column")


def part_prefix(part: int) -> str:
    """Return the start of the names of one of several records.

    >>> part_prefix(2), part_prefix(0)
    ('part2.', '')
    """
    return f"part{part}." if part else ""


@dataclass(frozen=True)
class StageCall:
    """A stage that ran: what its tool was called with, and its result.

    number    of the stage, from 1
    function  of the tool, from an item and values to a record
    item      the record that it read, texts, or None
    values    its parameters by name, with the contents of files
    own       parameter -> the tensor of the record that it named as :NAME
    piped     the parameters that named the results of the stage before as `-`
    operands  the files that it names as its input
    part      the number of the record among several that a later stage merges, from 1; 0 for the only one
    branches  of a stage that merges: for each record that it read, the part whose stages made it; -1 for a file
    """

    number: int
    tool: str
    function: Callable[..., Any]
    item: Any
    values: Mapping[str, Any]
    own: Mapping[str, str]
    piped: tuple[str, ...]
    result: Any
    operands: tuple[str, ...] = ()
    part: int = 0
    branches: tuple[int, ...] = ()

    @property
    def before(self) -> Record:
        """The record that the stage read, the first of several; an empty one where it read none."""
        first = self.item[0] if self.merges else self.item
        return first if isinstance(first, Record) else Record({})

    @property
    def merges(self) -> bool:
        """Whether it read several records for one result."""
        return isinstance(self.item, list)

    @property
    def stage(self) -> str:
        """The start of the names of what all records share, as weights: 2.attend. for the second stage."""
        return f"{self.number}.{self.tool}."

    @property
    def prefix(self) -> str:
        """The start of the names of its tensors: 2.attend., or 2.attend.part1. where a later stage merges several."""
        return self.stage + part_prefix(self.part)

    def parameter_name(self, name: str) -> str:
        """Return the name of a parameter, which all records share unless it is the random table of their own words."""
        is_own = self.tool == "embed" and self.values["table"] is None
        return (self.prefix if is_own else self.stage) + name

    def error(self, problem: str) -> UsageError:
        """Return the error that this stage has no gradient, and why."""
        return UsageError(f"stage {self.number}, {self.tool}: {problem}")

    def passed(self) -> set[str]:
        """Return the names of the tensors that the tool passed on unchanged."""
        return {name for name in self.result if self.before.get(name) is self.result[name]}


@dataclass
class StageGradients:
    """What the adjoint of one stage adds up.

    inputs      gradients of the tensors of the record that it read, by their names
    tensors     gradients of its parameters, of the files of its flags, and of intermediates
    parameters  the names among `tensors` of what the result depends on: all but intermediates
    layers      gradients of the parameters of a model's layers
    traced      gradients of the intermediates of a whole model, under the names of a trace
    others      of a stage that merges: what `inputs` is of the first record that it read, for each of the others
    """

    call: StageCall
    inputs: dict[str, Array] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    layers: Reverse = field(default_factory=Reverse)
    traced: dict[str, Tensor] = field(default_factory=dict)
    others: list[dict[str, Array]] = field(default_factory=list)

    def add_input(self, name: str, gradient: Array) -> None:
        """Add the gradient of a tensor of the record that the stage read."""
        self.inputs[name] = self.inputs[name] + gradient if name in self.inputs else gradient

    def add_operand(self, flag: str, gradient: Array) -> None:
        """Add the gradient of the operand of a flag: of its file, or of the tensor of the record that it names."""
        if flag in self.call.piped:
            raise self.call.error(f"its --{flag.replace('_', '-')} is the whole stage before; pass it on in the record")
        operand = self.call.values[flag]
        if isinstance(operand, AttendedTensor) and operand.is_given:
            self.add_input(operand.name, gradient)
        elif flag in self.call.own:
            self.add_input(self.call.own[flag], gradient)
        else:
            labels = {} if operand.tensors["x"].axes is None else operand.labels
            self.add_parameter(flag, gradient, operand.axes_of("x"), labels)

    def add_parameter(
        self, name: str, gradient: Array | None, axes: Axes | None = None, labels: Mapping[str, Labels] | None = None
    ) -> None:
        """Add the gradient of a parameter of the stage, if there is one."""
        if gradient is None:
            return
        if name in self.tensors:
            gradient = gradient + self.tensors[name].array
        axes = axes or parameter_axes("", name) or None
        fits = axes is not None and len(axes) == gradient.ndim
        self.tensors[name] = Tensor(gradient, axes if fits else None, labels or {})
        self.parameters += [name] * (name not in self.parameters)


Outer = dict[str, Array]  # gradients of the tensors that a stage computed; an adjoint removes those it has used
Adjoint = Callable[[StageCall, Outer, StageGradients], None]


def collect_gradients(
    collected: dict[str, Array], outer: Outer, is_kept: Callable[[str], bool] = lambda name: True
) -> Hook:
    """Return a hook that keeps the gradient of every intermediate, and adds what comes from later stages to it."""

    def hook(name: str) -> Callable[[Array], Array] | None:
        def visit(gradient: Array) -> Array:
            more = outer[name].reshape(gradient.shape).astype(gradient.dtype, copy=False) if name in outer else None
            collected[name] = gradient if more is None else gradient + more
            return collected[name]

        return visit if is_kept(name) else None

    return hook
