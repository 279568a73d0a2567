"""The decorator `@tool`: one typed function as a command, as a stage of a pipe, and as a function of Python.

A tool is a function of a record and some parameters, and gives the same record each way.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

import numpy as np

from attnkit.cli import constraints, operands, options
from attnkit.cli.options import Flag
from attnkit.cli.side_outputs import replace_together
from attnkit.cli.signature import PYTHON_FLAGS, make_signature
from attnkit.cli.stage import (
    Item,
    Reader,
    Result,
    Stage,
    View,
    read_records,
)
from attnkit.errors import UsageError, suggest
from attnkit.record import Record, Tensor

INPUT, PARTS = "[INPUT]", "[PART]..."  # the input of a tool: one file or pipe, or several
Parameters = Mapping[str, Any]  # the values of a tool's parameters, by name


@dataclass(frozen=True)
class Tool:
    """A function of a record, and what the command line and the pipe need to know of it.

    operand         the name of the arguments in the help
    exclusive       rows of terms (those of cli/constraints.py) of which at most one may be met
    requires        pairs of a term and the term it needs
    one_of          rows of terms of which one must be met
    reader          (stage, upstream) -> the stream of items that the function is called with
    view            (record, stage, style) -> text for a terminal; None: tables of its tensors
    status          (record, stage) -> exit code
    extra           flags that only reader and view use: they are not parameters of the function
    needs_no_input  (parameters) -> whether it reads no input
    record_defaults (parameters) -> the defaults that the history must show: the seed in use
    returns_text    (parameters) -> whether its result is text, not a record
    check_finite    (parameters) -> whether NaN and infinity in x are reported, because it computes with x
    table_on_stderr (parameters) -> whether a table goes to standard error where its output is not one
    shows_table     whether its output is a table unless a format is requested
    passthrough     whether it passes its input through byte for byte
    keep_names      whether the only tensor of an input keeps its own name, and is not called x
    derived         (stage) -> the function that makes another result of its result, by flags of `extra`, or None
    plain_text      (record, stage) -> whether its view is text, without an empty line before the next record
    computes_x_last whether the tensors that it adds are steps before x, and are shown before it
    adds            (parameters) -> whether the tensors it adds beside x were requested, so that no format may lose them
    """

    function: Callable[..., Result]
    operand: str = INPUT
    exclusive: constraints.Exclusive = ()
    requires: constraints.Requires = ()
    one_of: constraints.OneOf = ()
    reader: Reader = read_records
    view: View | None = None
    status: Callable[[Record, Stage], int] = lambda record, stage: 0
    extra: dict[str, Flag] = field(default_factory=dict)
    needs_no_input: Callable[[Parameters], bool] = lambda parameters: False
    record_defaults: Callable[[Parameters], dict[str, Any]] = lambda parameters: {}
    returns_text: Callable[[Parameters], bool] = lambda parameters: False
    check_finite: Callable[[Parameters], bool] = lambda parameters: True
    table_on_stderr: Callable[[Parameters], bool] = lambda parameters: False
    shows_table: bool = False
    passthrough: bool = False
    keep_names: bool = False
    derived: Callable[[Stage], Callable[[Record], Result] | None] = lambda stage: None
    plain_text: Callable[[Record, Stage], bool] = lambda record, stage: False
    computes_x_last: bool = False
    adds: Callable[[Parameters], bool] = lambda parameters: True

    @functools.cached_property
    def name(self) -> str:
        """The name of the function, the command and its file."""
        return self.function.__name__

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The default of every parameter."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}

    @functools.cached_property
    def flags(self) -> dict[str, Flag]:
        """The flag of every parameter, from its annotation."""
        return {name: self.hints[name].__metadata__[0] for name in self.defaults}

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations of the function."""
        return get_type_hints(self.function, include_extras=True)

    def call(self, item: Item = None, **values: Any) -> Any:
        """Run the tool for a caller in Python: one record in, one record out, its history included.

        item  a record, an array, the texts of a tool that takes text, or the name of a file as on a command line
        """
        parameters, common = self._parse_values(values)
        paths = self._paths(item)
        item = None if paths else self._item(item)
        if item is None and not paths and self.operand == INPUT and not self.needs_no_input(parameters):
            raise UsageError(f"{self.name} needs a record or an array")
        constraints.check_flags(self, parameters)
        if paths:
            return Stage(self, parameters, common | {"format": "json"}, operands=paths).run_files()
        with replace_together():
            return Stage(self, parameters, common).apply(item)

    def _parse_values(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of the tool, and the values of the flags of all tools; UsageError for other names."""
        known = self.flags | {name: options.COMMON[name] for name in PYTHON_FLAGS}
        values = {name if name in known or f"{name}_" not in known else f"{name}_": values[name] for name in values}
        for name in values:
            if name in (self.extra | options.COMMON) and name not in known:
                raise UsageError(f"{self.name} takes no {name!r} from Python: it is for the command line")
            if name not in known:
                raise UsageError(f"{self.name} takes no {name!r}{suggest(name, known)}")
        values = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in values.items()}
        parsed = {name: options.parse_value(name, known[name], value) for name, value in values.items()}
        parameters = {name: parsed.get(name, default) for name, default in self.defaults.items()}
        return parameters, {name: value for name, value in parsed.items() if name not in self.flags}

    def _item(self, item: Item) -> Item:
        """Return the item that the function is called with for the first argument of a caller in Python."""
        is_list = isinstance(item, list) and not any(isinstance(element, Record) for element in item)
        if isinstance(item, str | list) and self.operand != INPUT and all(isinstance(text, str) for text in item):
            return (item,) if isinstance(item, str) else tuple(item)
        if isinstance(item, Record):
            item = replace(operands.check_numbers(item).without_formulas(), required=())
        elif isinstance(item, Tensor | np.ndarray | np.generic | int | float) or is_list:
            item = operands.array_to_record(item, "x")
        elif not isinstance(item, str | list | tuple | None):
            raise UsageError(f"expected a record, an array or text, got {type(item).__name__}", "x")
        return [item] if self.operand == PARTS and isinstance(item, Record) else item

    def _paths(self, item: Item) -> tuple[str, ...]:
        """Return the files that the first argument names; text names none where the tool takes text."""
        items = item if isinstance(item, list | tuple) else [item]
        types = (str, os.PathLike) if self.operand in (INPUT, PARTS) else os.PathLike
        return tuple(map(os.fspath, items)) if items and all(isinstance(one, types) for one in items) else ()


def tool(**traits: Any) -> Callable[[Callable[..., Result]], Callable[..., Any]]:
    """Declare a function of a record as a tool: a function for Python, with its `tool` for the command line.

    traits  those of Tool: flags that exclude or need each other, how the input is read, how the result is shown
    """

    def declare(function: Callable[..., Result]) -> Callable[..., Any]:
        declared = Tool(function, **traits)

        @functools.wraps(function)
        def call(item: Item = None, /, **values: Any) -> Any:
            return declared.call(item, **values)

        call.__doc__ = (function.__doc__ or "").replace("    \b\n", "")
        call.__dict__ |= {"tool": declared, "__signature__": make_signature(declared)}
        return call

    return declare
