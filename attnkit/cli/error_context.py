"""The context of an error: the tool that it is of, the file or flag, and where a result ceased to be finite."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnkit import formats
from attnkit.errors import AttnkitError, DataError, flag_name
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.cli.stage import Stage

# first word of an error of the arithmetic -> the flags whose file it may be
ERROR_OPERANDS = {
    "length": ("lengths",),
    "parameter": ("params",),
    "Q": ("query",),
    "K": ("key", "memory"),
    "V": ("value", "key", "memory"),
    "token": ("ids", "vocab"),
    "position": ("positions", "table"),
}


@contextlib.contextmanager
def error_context(stage: "Stage") -> Iterator[None]:
    """Attribute the errors of a `with` block to the tool of a stage, unless an earlier stage has claimed them.

    A DataError without a name gets that of the file whose tensor it begins with, or of the only file in use.
    """
    try:
        yield
    except AttnkitError as error:
        if error.place:
            raise
        name = error.name or (file_of_error(stage, error) if isinstance(error, DataError) else "")
        flag = name[2:].replace("-", "_")
        if name.startswith("--") and flag in stage.loaded and stage.tool.flags[flag].load != "patches":
            name = operand_name(stage.parameters[flag])
        attributed = type(error)(error.problem, name)
        attributed.place = f"attnkit {stage.tool.name}"
        raise attributed from error


def file_of_error(stage: "Stage", error: DataError) -> str:
    """Return the file of the flag or weight that an error begins with, else the only one read, else ""."""
    first = error.problem.split(" ")[0]
    for flag, content in stage.loaded.items():
        is_named = first == flag or flag in ERROR_OPERANDS.get(first, ())
        if is_named or (isinstance(content, dict) and first in content):
            return operand_name(stage.parameters[flag])
    if str(stage.parameters.get(first, "")).startswith(":"):
        return str(stage.parameters[first])
    files = [*stage.files] if stage.source is None else [stage.source.name, *stage.files]
    files += [operand_name(stage.parameters[flag]) for flag in stage.loaded if is_stdin(stage.parameters.get(flag))]
    return files[0] if len(files) == 1 else ""


def explain_non_finite(stage: "Stage", default: str = "") -> str:
    """Return the first layer with a non-finite result and the parameter that caused it, else the default reason."""
    contents = (stage.parameters | stage.loaded).items()  # Python passes contents, not files
    flaws = (describe_non_finite(name, content, stage.non_finite_layer) for name, content in contents)
    reason = next(filter(None, flaws), default)
    layer = f", first in {stage.non_finite_layer}" if stage.non_finite_layer else ""
    return layer + (f": {reason}" if reason else "")


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


def is_stdin(operand: Any) -> bool:
    """Decide whether an operand is standard input, or a tensor of the record there."""
    return isinstance(operand, str) and (operand == "-" or operand.startswith("-:"))


def operand_name(operand: Any) -> str:
    """Return an operand as an error names it.

    >>> operand_name("a.npz:mask"), operand_name("-"), operand_name("-:mask")
    ('a.npz:mask', '<stdin>', '<stdin>:mask')
    """
    return f"<stdin>{operand[1:]}" if is_stdin(operand) else str(operand)
