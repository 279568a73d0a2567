"""The causes of errors and NaN: the file, the option or the layer."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnkit import formats
from attnkit.cli import options
from attnkit.cli.operands import OperandFiles, is_stdin
from attnkit.cli.tool import Tool
from attnkit.errors import AttnkitError, AttnkitWarning, DataError, FileError, UsageError, flag_name
from attnkit.formats.streams import is_missing
from attnkit.records import Record

# the operand of an error of the arithmetic -> the options whose file it may be
ERROR_OPERANDS = {
    **dict.fromkeys(("length", "lengths"), ("lengths",)),
    "parameter": ("params",),
    "Q": ("query",),
    "K": ("key", "memory"),
    "V": ("value", "key", "memory"),
    **dict.fromkeys(("token", "token id", "token ids"), ("ids", "vocab")),
    **dict.fromkeys(("position", "positions"), ("positions", "table")),
    "residual": ("add",),
}


@contextlib.contextmanager
def error_context(stage: Any) -> Iterator[None]:
    """Attribute the errors of a `with` block to a stage, unless one has them.

    A DataError without a name gets that of the file of its operand, or of the only file in use. A
    missing input gets a hint at what was probably meant.
    """
    files: OperandFiles = stage.files
    try:
        yield
    except AttnkitError as error:
        if error.place:
            raise
        name = error.name or (file_of_error(files, error) if isinstance(error, DataError) else "")
        flag = name[2:].replace("-", "_")
        if name.startswith("--") and flag in files.loaded and not files.options[flag].multiple:
            name = operand_name(files.values[flag])
        problem = error.problem
        if isinstance(error, FileError) and (is_missing(error) or os.path.isdir(name)):
            problem += hint_at_missing(stage, name)
        attributed = type(error)(problem, name)
        attributed.place = f"attnkit {stage.tool.name}"
        raise attributed from error


def hint_at_missing(stage: Any, name: str) -> str:
    """A hint for an operand, or the value of an option, that is no file."""
    from attnkit.cli import hints

    if name in stage.operands:
        return hints.hint_at_input(stage, name)
    files: OperandFiles = stage.files
    named = [files.options[flag] for flag, value in files.values.items() if value == name and files.options[flag].load]
    return hints.hint_at_option_file(name, named[0]) if named else ""


def convert_option(tool: Tool, name: str, value: Any) -> Any:
    """Convert the value of an option, from a command line or from Python.

    UsageError has a hint for a value that stands for something else.
    """
    try:
        return options.convert(tool.options[name], value)
    except UsageError as error:
        from attnkit.cli import hints

        raise UsageError(f"{error.problem}{hints.hint_at_value(tool.name, name, str(value))}", error.name) from None


def file_of_error(files: OperandFiles, error: DataError) -> str:
    """Name the file that an error is about, or the only one read; "" for none."""
    operand = error.operand
    for flag, content in files.loaded.items():
        is_named = flag in (operand, *ERROR_OPERANDS.get(operand, ()))
        if is_named or (isinstance(content, dict) and operand in content):
            return operand_name(files.values[flag])
    if str(files.values.get(operand, "")).startswith(":"):
        return str(files.values[operand])
    names = [*files.digests] if files.source is None else [files.source.name, *files.digests]
    names += [operand_name(files.values[flag]) for flag in files.loaded if is_stdin(files.values.get(flag))]
    return names[0] if len(names) == 1 else ""


def check_range(item: Any, result: Record, files: OperandFiles, layer: str, is_strict: bool) -> None:
    """Warn of an x that is not finite; DataError if the check is strict.

    layer  the first layer whose result is not finite
    """
    before = formats.first_non_finite(item["x"]) if isinstance(item, Record) and "x" in item else ""
    after = "" if before or "x" not in result else formats.first_non_finite(result["x"])
    if not (before or after):
        return
    problem = f"x is {before}"
    if after:
        usual = describe_flaw(item) or f"outside the range of {result['x'].dtype}"
        problem = f"the result is {after}{explain_non_finite(files, layer, usual)}"
    if is_strict:
        raise DataError(problem)
    warnings.warn(problem, AttnkitWarning, stacklevel=2)


def describe_flaw(item: Any) -> str:
    """Which tensor of a record is NaN or infinite, and where; "" for none.

    >>> import numpy as np
    >>> describe_flaw(Record({"x": np.zeros(1), "weights": np.array([0.0, np.nan])}))
    'weights is nan at [1]'
    """
    places = {name: formats.first_non_finite(item[name]) for name in item} if isinstance(item, Record) else {}
    return next((f"{name} is {at}" for name, at in places.items() if at and not at.startswith("-inf")), "")


def explain_non_finite(files: OperandFiles, layer: str, default: str = "") -> str:
    """The first layer with a non-finite result, and the parameter that caused it."""
    contents = (files.values | files.loaded).items()  # Python passes contents, not files
    flaws = (describe_non_finite(name, content, layer) for name, content in contents)
    reason = next(filter(None, flaws), default)
    return (f", first in {layer}" if layer else "") + (f": {reason}" if reason else "")


def describe_non_finite(name: str, content: Any, layer: str) -> str:
    """Which number of a parameter's content is not finite, "" if all are.

    layer  the layer of a model whose weights are checked
    """
    if hasattr(content, "params"):  # a model
        parts = content.towers.values() or [content]
        return next(filter(None, (str(one.params.find_non_finite(layer)) for one in parts)), "")
    if isinstance(content, dict):
        places = {key: formats.first_non_finite(array) for key, array in content.items()}
        return next((f"{key} of {flag_name(name)} is {at}" for key, at in places.items() if at), "")
    array = content["x"] if isinstance(content, Record) and "x" in content else content
    at = formats.first_non_finite(array) if isinstance(array, np.ndarray) else ""
    return f"{flag_name(name)} is {at}" if at and not at.startswith("-inf") else ""  # -inf is usual in a mask


def operand_name(operand: Any) -> str:
    """An operand as an error names it.

    >>> operand_name("a.npz:mask"), operand_name("-"), operand_name("-:mask")
    ('a.npz:mask', '<stdin>', '<stdin>:mask')
    """
    return f"<stdin>{operand[1:]}" if is_stdin(operand) else str(operand)
