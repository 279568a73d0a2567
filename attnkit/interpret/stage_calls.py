"""The stages of a pipeline as they ran: the values and result of each call."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from attnkit import callbacks
from attnkit.errors import UsageError
from attnkit.records import Record

Result = TypeVar("Result")
FILE = -1  # the branch of a record that a stage read from a file of its own


def part_prefix(part: int) -> str:
    """The start of the names of one of several records.

    >>> part_prefix(2), part_prefix(0)
    ('part2.', '')
    """
    return f"part{part}." if part else ""


@dataclass(frozen=True)
class StageCall:
    """A stage that ran: what its tool was called with, and its result.

    number    the number of the stage, from 1
    function  the function of the tool, from an item and values to a record
    item      the record that it read, a list of records, texts, or None
    values    its parameters by name, with the contents of files; of a model of texts and images the tower that ran
    own       parameter -> the tensor of the record that it named as :NAME
    piped     the parameters that named the results of the stage before as `-`
    prepared  what it computed with: its input and its options as the tool prepared them; None: it prepares nothing
    operands  the files that it names as its input
    part      the number of the record among several that a later stage merges, from 1; 0 for the only one
    branches  for each record that a merging stage read, the part whose stages made it; -1 for a file
    """

    number: int
    tool: str
    function: Callable[..., Any]
    item: Any
    values: Mapping[str, Any]
    own: Mapping[str, str]
    piped: tuple[str, ...]
    result: Any
    prepared: Any = None
    operands: tuple[str, ...] = ()
    part: int = 0
    branches: tuple[int, ...] = ()

    @property
    def before(self) -> Record:
        """The first record that the stage read; an empty one if it read none."""
        first = self.item[0] if self.merges else self.item
        return first if isinstance(first, Record) else Record({})

    @property
    def merges(self) -> bool:
        """Whether it read several records for one result."""
        return isinstance(self.item, list)

    @property
    def shared_prefix(self) -> str:
        """The start of the names of what all records share: 2.attend."""
        return f"{self.number}.{self.tool}."

    @property
    def prefix(self) -> str:
        """The start of the names of its tensors: 2.attend. or 2.attend.part1."""
        return self.shared_prefix + part_prefix(self.part)

    def run_again(self, item: Any, values: Mapping[str, Any]) -> "StageCall":
        """Run the stage with another input and other values, without its warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the pipeline itself has warned
            result, prepared = run_noted(self.function, item, values)
        return replace(self, item=item, values=values, result=result, prepared=prepared)

    def parameter_name(self, name: str) -> str:
        """The name of a parameter; all records share it, but for a table of own words."""
        is_own = self.tool == "embed" and self.values["table"] is None
        return (self.prefix if is_own else self.shared_prefix) + name

    def error(self, problem: str) -> UsageError:
        """The error that a pipeline cannot be used as asked, because of this stage."""
        return UsageError(f"stage {self.number}, {self.tool}: {problem}")

    def passed(self) -> set[str]:
        """Name the tensors that the tool passed on unchanged."""
        return {name for name in self.result if self.before.get(name) is self.result[name]}


def run_noted(function: Callable[..., Result], item: Any, values: Mapping[str, Any]) -> tuple[Result, Any]:
    """The result of a tool, and what it prepared to compute with, or None.

    None means that the tool prepares nothing.
    """
    noted: list[Any] = []
    with callbacks.use_callbacks(callbacks.current()._replace(on_operands=noted.append)):
        result = function(item, **values)
    return result, noted[-1] if noted else None


def number_parts(calls: Sequence[StageCall], count: int) -> list[StageCall]:
    """Number the records that the calls of a pipeline ran for.

    UsageError if a result was made of several records that no stage merged.
    """
    numbers = [call.number for call in calls]
    merging = next((call.number for call in calls if call.merges), 1)
    length, before = merging - 1, sum(number < merging for number in numbers)
    parts = before // length if length else 0
    if numbers != [*range(1, merging)] * parts + [*range(merging, count + 1)]:
        raise UsageError("the pipeline reads several records for one result, which has no gradients")
    return [
        replace(call, part=at // length + 1 if parts > 1 and at < before else 0, branches=list_branches(call, parts))
        for at, call in enumerate(calls)
    ]


def list_branches(call: StageCall, parts: int) -> tuple[int, ...]:
    """The part that made each merged record; UsageError if that is not known."""
    if not call.merges:
        return ()
    count = len(call.item)
    if call.number == 1:  # the records are the input of the pipeline
        return tuple(range(1, count + 1)) if count > 1 else (0,)
    if call.operands and "-" not in call.operands:
        raise call.error("this stage ignores the result before it; write `-` where that result belongs")
    piped = tuple(range(1, parts + 1)) if parts > 1 else (0,)
    first = call.operands.index("-") if call.operands else 0
    if first and count != parts + len(call.operands) - 1:
        raise call.error("no gradient of files of several parts before `-`; name `-` first")
    return (*[FILE] * first, *piped, *[FILE] * (count - first - parts))
