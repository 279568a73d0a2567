"""The context of an error: the tool that it is of, the file or option, and where a result ceased to be finite."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from attnkit import formats
from attnkit.cli.operands import OperandFiles, is_stdin
from attnkit.errors import AttnkitError, AttnkitWarning, DataError, FileError, flag_name
from attnkit.formats.streams import is_missing
from attnkit.record import Record

# first word of an error of the arithmetic -> the options whose file it may be
ERROR_OPERANDS = {
    "length": ("lengths",),
    "parameter": ("params",),
    "Q": ("query",),
    "K": ("key", "memory"),
    "V": ("value", "key", "memory"),
    "token": ("ids", "vocab"),
    "position": ("positions", "table"),
    "residual": ("add",),
}


@contextlib.contextmanager
def error_context(stage: Any) -> Iterator[None]:
    """Attribute the errors of a `with` block to a stage, unless an earlier one has claimed them.

    A DataError without a name gets that of the file whose tensor it begins with, or of the only file in use. A
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
        if name.startswith("--") and flag in files.loaded and files.options[flag].load != "patches":
            name = operand_name(files.values[flag])
        problem = error.problem
        if isinstance(error, FileError) and (is_missing(error) or os.path.isdir(name)):
            problem += hint_at_missing(stage, name)
        attributed = type(error)(problem, name)
        attributed.place = f"attnkit {stage.tool.name}"
        raise attributed from error


def hint_at_missing(stage: Any, name: str) -> str:
    """Return a hint for an operand, or the value of an option, that is no file."""
    from attnkit.cli import hints

    if name in stage.operands:
        return hints.hint_at_input(stage, name)
    files: OperandFiles = stage.files
    named = [files.options[flag] for flag, value in files.values.items() if value == name and files.options[flag].load]
    return hints.hint_at_option_file(name, named[0]) if named else ""


def file_of_error(files: OperandFiles, error: DataError) -> str:
    """Return the file of the option or weight that an error begins with, else the only one read, else ""."""
    first = error.problem.split(" ")[0]
    for flag, content in files.loaded.items():
        is_named = first == flag or flag in ERROR_OPERANDS.get(first, ())
        if is_named or (isinstance(content, dict) and first in content):
            return operand_name(files.values[flag])
    if str(files.values.get(first, "")).startswith(":"):
        return str(files.values[first])
    names = [*files.digests] if files.source is None else [files.source.name, *files.digests]
    names += [operand_name(files.values[flag]) for flag in files.loaded if is_stdin(files.values.get(flag))]
    return names[0] if len(names) == 1 else ""


def check_range(item: Any, result: Record, files: OperandFiles, layer: str, is_strict: bool) -> None:
    """Warn of an x that is not finite, that of the item, else that of the result; DataError where it is strict.

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
    """Return which tensor of a record is NaN or infinite, and where; "" for none.

    >>> import numpy as np
    >>> describe_flaw(Record({"x": np.zeros(1), "weights": np.array([0.0, np.nan])}))
    'weights is nan at [1]'
    """
    places = {name: formats.first_non_finite(item[name]) for name in item} if isinstance(item, Record) else {}
    return next((f"{name} is {at}" for name, at in places.items() if at and not at.startswith("-inf")), "")


def explain_non_finite(files: OperandFiles, layer: str, default: str = "") -> str:
    """Return the first layer with a non-finite result and the parameter that caused it, else the default reason."""
    contents = (files.values | files.loaded).items()  # Python passes contents, not files
    flaws = (describe_non_finite(name, content, layer) for name, content in contents)
    reason = next(filter(None, flaws), default)
    return (f", first in {layer}" if layer else "") + (f": {reason}" if reason else "")


def describe_non_finite(name: str, content: Any, layer: str) -> str:
    """Return which number of a parameter's content is not finite, "" where all are.

    layer  the layer of a model whose weights are checked
    """
    if hasattr(content, "find_non_finite"):  # a model
        return str(content.find_non_finite(layer))
    if isinstance(content, dict):
        places = {key: formats.first_non_finite(array) for key, array in content.items()}
        return next((f"{key} of {flag_name(name)} is {at}" for key, at in places.items() if at), "")
    at = formats.first_non_finite(content["x"]) if isinstance(content, Record) and "x" in content else ""
    return f"{flag_name(name)} is {at}" if at and not at.startswith("-inf") else ""  # -inf is usual in a mask


def operand_name(operand: Any) -> str:
    """Return an operand as an error names it.

    >>> operand_name("a.npz:mask"), operand_name("-"), operand_name("-:mask")
    ('a.npz:mask', '<stdin>', '<stdin>:mask')
    """
    return f"<stdin>{operand[1:]}" if is_stdin(operand) else str(operand)
