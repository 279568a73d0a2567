"""What a definition states: arguments, steps, cases, conventions and slips.

The steps are those of `attnkit.model.exercises.worked_steps`: formulas of the steps before, so that a slip is one step
with another formula. A convention is a choice that right implementations make differently, such as the layout of a
weight; each of its ways says how the arguments are handed over, and which steps it changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from attnkit.model.exercises.worked_steps import Formula, Steps
from attnkit.model.slips import Slip

Given = Mapping[str, Any]  # the values of a case by argument: arrays and numbers
Role = Literal["input", "parameter", "number"]


class Argument(NamedTuple):
    """An argument of a definition.

    axes   its axes by the names of sizes, "... T K": "..." are the leading axes of the case; "" is a number
    names  the names that implementations give it, in lower case, its own among them
    role   an input, a parameter of a class, or a number
    draw   what its numbers are: "normal", those of a weight (I, O) divided by √I; "table", those of no weight; "ids N",
           whole numbers below a size; or "mask", of which each row has a key
    is_shared  whether several parameters may take it, as queries, keys and values of self-attention
    joins  the arguments whose columns it has side by side, which it may stand for
    collects  the arguments that it holds by published names, which it may stand for
    """

    axes: str
    names: str
    role: Role = "input"
    draw: str = "normal"
    is_shared: bool = False
    joins: str = ""
    collects: Mapping[str, str] = {}

    @property
    def parts(self) -> list[str]:
        """The arguments that it may stand for."""
        return [*self.joins.split(), *self.collects]


class Case(NamedTuple):
    """A property that a definition tests: a kind of input.

    sizes    sizes of this case that differ from those of the definition
    lead     the sizes of the leading axes
    given    numbers, or functions (given, generator) -> array, by argument, in place of what is drawn
    needs    the arguments that only some implementations take, and this case needs
    note     what right implementations answer that differ here, so that the outcome does not count; "" where it counts
    """

    name: str
    sizes: Mapping[str, int] = {}
    lead: tuple[int, ...] = (2,)
    given: Mapping[str, Any] = {}
    needs: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Way:
    """One way of a convention.

    words     what is printed where it was found; "" for the usual way
    send      how an argument is handed over, by its name
    steps     the steps that are computed otherwise
    exchange  the argument whose value is handed over instead, by its name
    """

    words: str = ""
    send: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    steps: Steps = field(default_factory=dict)
    exchange: Mapping[str, str] = field(default_factory=dict)


class Definition(NamedTuple):
    """What a stage computes, with all that verifies an implementation of it.

    summary      one line
    arguments    by name, in the order of the template
    steps        the computation; the last step is the answer
    sizes        the sizes of its axes, pairwise different
    cases        the properties that it tests, in their order
    slips        other formulas for steps, with their sentences
    conventions  by name, the ways of each by name, the usual way first
    functions    the names that implementations have
    defaults     numbers of all cases
    construct    what a class is constructed with: sizes and numbers by the names of its parameters
    answer       the axes of the answer
    drive        the driver by which an implementation is used that is no function of arrays
    expects      what an implementation looks like, where its arguments do not tell
    measure      (given, arrays) -> what is compared of the answer, where many answers are right
    is_exact     whether the answer has whole numbers, which are compared exactly
    place        (answer, index) -> what an answer has there, in words
    """

    summary: str
    arguments: Mapping[str, Argument]
    steps: Steps
    sizes: Mapping[str, int]
    cases: Sequence[Case]
    answer: str
    slips: Sequence[Slip[Formula]] = ()
    conventions: Mapping[str, Mapping[str, Way]] = {}
    functions: str = ""
    defaults: Mapping[str, Any] = {}
    construct: Mapping[str, str] = {}
    drive: str = ""
    expects: str = ""
    measure: Callable[[Given, Sequence[Any]], Any] | None = None
    is_exact: bool = False
    place: Callable[[Any, tuple[int, ...]], str] | None = None

    def signature(self, name: str) -> str:
        """The signature that an implementation has, with the axes of each argument.

        >>> row = Argument("... D", "x")
        >>> Definition("", {"x": row, "eps": Argument("", "eps")}, {}, {}, (), "... D").signature("rms")
        'rms(x, eps)   x (..., D) → (..., D)'
        """
        if self.expects:
            return f"{name}: {self.expects}"
        shapes = [f"{one} {describe_axes(row.axes)}" for one, row in self.arguments.items() if row.axes]
        return f"{name}({', '.join(self.arguments)})   {', '.join(shapes)} → {describe_axes(self.answer)}"


def describe_axes(axes: str) -> str:
    """Axes as a shape.

    >>> describe_axes("... T K"), describe_axes("D"), describe_axes("")
    ('(..., T, K)', '(D,)', '()')
    """
    words = axes.split()
    return f"({words[0]},)" if len(words) == 1 and words[0] != "..." else f"({', '.join(words)})"


def find_shape(axes: str, sizes: Mapping[str, int], lead: Sequence[int]) -> tuple[int, ...]:
    """The shape of axes in a case.

    >>> find_shape("... T K", {"T": 5, "K": 4}, (2, 3))
    (2, 3, 5, 4)
    """
    return tuple(size for axis in axes.split() for size in (lead if axis == "..." else (sizes[axis],)))
