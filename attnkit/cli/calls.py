"""A tool as a function of Python: the decorator that declares it, and its calls."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.cli.causes import convert_option
from attnkit.cli.constraints import differs_from_default
from attnkit.cli.operands import array_to_record, check_numbers
from attnkit.cli.output_format import Result
from attnkit.cli.stage import Stage, replace_together
from attnkit.cli.tool import INPUT, PAIR, PARTS, Item, Tool
from attnkit.errors import UsageError
from attnkit.model.arrays import is_foreign
from attnkit.records import Record, Tensor


def tool(**traits: Any) -> Callable[[Callable[..., Result]], Callable[..., Any]]:
    """Declare a function of a record as a tool of the command line and of Python.

    traits  those of Tool: options that exclude or need each other, how the input is read, how the result is shown
    """

    def declare(function: Callable[..., Result]) -> Callable[..., Any]:
        declared = Tool(function, **traits)

        @functools.wraps(function)
        def call(*inputs: Any, **values: Any) -> Any:
            return call_tool(declared, inputs, values)

        call.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("\b\n", "")
        call.__dict__["tool"] = declared
        return call

    return declare


def call_tool(tool: Tool, inputs: Sequence[Any], values: Mapping[str, Any]) -> Any:
    """Run the tool for a caller in Python: one record in, one record out.

    inputs  a record, an array, the texts of a tool that takes text, or the name of a file as on a command line;
            of some tools more than one
    """
    stage = make_stage(tool, values)
    most = max(len(tool.python.inputs), 1)
    if len(inputs) > most:
        raise UsageError(f"{tool.name} takes {most} by position, got {len(inputs)}")
    return tool.python.present(run_stage(stage, inputs), stage)


def run_stage(stage: Stage, inputs: Sequence[Any]) -> Any:
    """Run a stage for a caller in Python; return its result, or a list of several."""
    tool = stage.tool
    if tool.python.reader:
        check_constraints(stage)
        with replace_together():
            results = [stage.apply(item) for item in tool.python.reader(stage, inputs).items]
        return results[0] if len(results) == 1 else results
    item = inputs[0] if inputs else None
    paths = named_files(tool, item)
    item = None if paths else make_item(tool, item)
    if item is None and not paths and tool.operand == INPUT and not tool.needs_no_input(stage.parameters):
        raise UsageError(f"{tool.name} needs a record or an array")
    check_constraints(stage)
    if paths:
        stage.operands = paths
        if not stage.format.shows_table:
            stage.common["format"] = "json"
        return stage.run_files()
    with replace_together():
        return stage.apply(item)


def check_constraints(stage: Stage) -> None:
    """Check the options of a stage by the tables of its tool."""
    stage.tool.constraints.check(stage.parameters | stage.extra, stage.tool.defaults)


def convert_keyword(tool: Tool, name: str, value: Any) -> Any:
    """Convert the value of a keyword. UsageError names it as the caller wrote it."""
    try:
        return convert_option(tool, name, value)
    except UsageError as error:
        raise UsageError(error.problem, name) from None


def make_stage(tool: Tool, values: Mapping[str, Any]) -> Stage:
    """The tool with its parameters and the shared options, of those that are not None."""
    known = tool.python_options
    values = {name if name in known or f"{name}_" not in known else f"{name}_": values[name] for name in values}
    check_names(tool, values, known)
    parsed = {name: convert_keyword(tool, name, value) for name, value in values.items() if value is not None}
    parameters = {name: parsed.get(name, default) for name, default in tool.defaults.items()}
    extra = {name: parsed.get(name) or None for name in tool.extra_names}
    common = {name: value for name, value in parsed.items() if name not in (*tool.flags, *tool.extra_names)}
    passed = tuple(name for name, value in parsed.items() if name in tool.flags and differs_from_default(value))
    return Stage(tool, parameters, common, extra, passed=passed)


def check_names(tool: Tool, names: Iterable[str], known: Sequence[str]) -> None:
    """Check that the names of keywords are parameters of a tool."""
    inputs = tuple(tool.python.inputs) or (tool.input_name,)
    for name in names:
        if name in ("item", tool.input_name, *inputs):
            raise UsageError(f"{tool.name} takes its input by position: {tool.name}({', '.join(inputs)}, …)")
        if name in tool.options and name not in known:
            raise UsageError(f"{tool.name} takes no {name!r} from Python: it is for the command line")
        if name not in known:
            from attnkit.cli import hints

            raise UsageError(f"{tool.name} takes no {name!r}{hints.hint_at_keyword(name, known)}")


def make_item(tool: Tool, item: Item) -> Item:
    """The item that the first argument of a caller in Python stands for."""
    is_list = isinstance(item, list) and not any(isinstance(element, Record) for element in item)
    if isinstance(item, str | list) and tool.operand != INPUT and all(isinstance(text, str) for text in item):
        return (item,) if isinstance(item, str) else tuple(item)
    if isinstance(item, Record):
        item = replace(check_numbers(item).without_formulas(), required=())
    elif isinstance(item, Tensor | np.ndarray | np.generic | int | float) or is_list or is_foreign(item):
        item = array_to_record(item, "x")
    elif not isinstance(item, str | list | tuple | None):
        raise UsageError(f"expected a record, an array or text, got {type(item).__name__}", "x")
    return [item] if tool.operand == PARTS and isinstance(item, Record) else item


def named_files(tool: Tool, item: Item) -> tuple[str, ...]:
    """The files that the first argument names; none if the tool takes text."""
    items = item if isinstance(item, list | tuple) else [item]
    types = (str, os.PathLike) if tool.operand in (INPUT, PARTS, PAIR) else os.PathLike
    return tuple(map(os.fspath, items)) if items and all(isinstance(one, types) for one in items) else ()
