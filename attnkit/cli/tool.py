"""The decorator `@tool`: one typed function as a command, as a stage of a pipe, and as a function of Python.

A tool is a function of a record and some parameters, and gives the same record each way.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.cli import operands, options
from attnkit.cli.output_format import Result
from attnkit.cli.side_outputs import replace_together
from attnkit.cli.stage import INPUT, PARTS, Item, Stage, Tool
from attnkit.errors import UsageError, suggest
from attnkit.record import Record, Tensor

# the options of all tools that Python may pass, with their types and defaults
PYTHON_FLAGS: Mapping[str, tuple[Any, Any]] = {
    "only": (tuple[str, ...], None),
    "dtype": (str, None),
    "check_finite": (bool, False),
}


def tool(**traits: Any) -> Callable[[Callable[..., Result]], Callable[..., Any]]:
    """Declare a function of a record as a tool: a function for Python, with its `tool` for the command line.

    traits  those of Tool: options that exclude or need each other, how the input is read, how the result is shown
    """

    def declare(function: Callable[..., Result]) -> Callable[..., Any]:
        declared = Tool(function, **traits)

        @functools.wraps(function)
        def call(item: Item = None, /, **values: Any) -> Any:
            return call_tool(declared, item, values)

        call.__doc__ = (function.__doc__ or "").replace("    \b\n", "")
        call.__dict__["tool"] = declared
        return call

    return declare


def call_tool(tool: Tool, item: Item, values: Mapping[str, Any]) -> Any:
    """Run the tool for a caller in Python: one record in, one record out, its history included.

    item  a record, an array, the texts of a tool that takes text, or the name of a file as on a command line
    """
    parameters, common = parse_values(tool, values)
    paths = named_files(tool, item)
    item = None if paths else make_item(tool, item)
    if item is None and not paths and tool.operand == INPUT and not tool.needs_no_input(parameters):
        raise UsageError(f"{tool.name} needs a record or an array")
    tool.constraints.check(parameters, tool.defaults)
    if paths:
        return Stage(tool, parameters, common | {"format": "json"}, operands=paths).run_files()
    with replace_together():
        return Stage(tool, parameters, common).apply(item)


def parse_values(tool: Tool, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of the tool, and the values of the flags of all tools; UsageError for other names."""
    known = tool.flags | {name: options.COMMON[name] for name in PYTHON_FLAGS}
    values = {name if name in known or f"{name}_" not in known else f"{name}_": values[name] for name in values}
    for name in values:
        if name in ("item", tool.input_name):
            raise UsageError(f"{tool.name} takes its input by position: {tool.name}({tool.input_name}, …)")
        if name in (tool.extra | options.COMMON) and name not in known:
            raise UsageError(f"{tool.name} takes no {name!r} from Python: it is for the command line")
        if name not in known:
            raise UsageError(f"{tool.name} takes no {name!r}{suggest(name, known)}")
    parsed = {name: options.parse_value(name, known[name], value) for name, value in values.items()}
    parameters = {name: parsed.get(name, default) for name, default in tool.defaults.items()}
    return parameters, {name: value for name, value in parsed.items() if name not in tool.flags}


def make_item(tool: Tool, item: Item) -> Item:
    """Return the item that the function is called with for the first argument of a caller in Python."""
    is_list = isinstance(item, list) and not any(isinstance(element, Record) for element in item)
    if isinstance(item, str | list) and tool.operand != INPUT and all(isinstance(text, str) for text in item):
        return (item,) if isinstance(item, str) else tuple(item)
    if isinstance(item, Record):
        item = replace(operands.check_numbers(item).without_formulas(), required=())
    elif isinstance(item, Tensor | np.ndarray | np.generic | int | float) or is_list:
        item = operands.array_to_record(item, "x")
    elif not isinstance(item, str | list | tuple | None):
        raise UsageError(f"expected a record, an array or text, got {type(item).__name__}", "x")
    return [item] if tool.operand == PARTS and isinstance(item, Record) else item


def named_files(tool: Tool, item: Item) -> tuple[str, ...]:
    """Return the files that the first argument names; text names none where the tool takes text."""
    items = item if isinstance(item, list | tuple) else [item]
    types = (str, os.PathLike) if tool.operand in (INPUT, PARTS) else os.PathLike
    return tuple(map(os.fspath, items)) if items and all(isinstance(one, types) for one in items) else ()
