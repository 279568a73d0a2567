"""Values that a call from Python passes where the command line reads a file: arrays, records, lists of words."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.record import Array, Record, Tensor


def array_to_record(value: Any, name: str) -> Record:
    """Convert a tensor, an array, a number or a list of numbers to a record with x; UsageError for anything else."""
    if isinstance(value, Tensor):
        return check_numbers(Record({"x": value}), name)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unlike lengths
        raise UsageError("expected an array of numbers, got lists of unequal lengths", name) from None
    return check_numbers(Record({"x": array}), name)


def check_numbers(record: Record, name: str = "") -> Record:
    """Check that the tensors of a record are arrays of numbers; UsageError names the flag, else the tensor."""
    for tensor, array in record.arrays().items():
        if not isinstance(array, np.ndarray | np.generic):
            raise UsageError(f"expected an array, got {type(array).__name__}", name or tensor)
        if array.dtype.kind not in "fiubV":
            raise UsageError(f"expected an array of numbers, got dtype {array.dtype}", name or tensor)
    return record


SINGLE = ("tensor", "index", "ids", "targets", "image")  # kinds of content that are a record with x

# kind of content -> whether a value of Python is of that kind, and the name of the kind
CONTENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tensors": (lambda value: isinstance(value, Mapping), "a dict of arrays"),
    "memory": (lambda value: isinstance(value, Mapping | Record), "an array, a record or a dict of arrays"),
    "attended": (lambda value: isinstance(value, Record), "an array or a record"),
    "words": (lambda value: isinstance(value, list | tuple), "a list of words"),
    "tokenizer": (lambda value: hasattr(value, "encode"), "a tokenizer"),
    "model": (lambda value: hasattr(value, "params"), "a folder or a model"),
    "patches": (lambda value: isinstance(value, Mapping), "a dict of arrays"),
    "lines": (lambda value: bool(value) and all(map(is_text_list, value)), "a list of lines, or of lists of lines"),
}


def is_text_list(value: Any) -> bool:
    """Decide whether a value is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def check_operand(value: Any, load: str, flag: str) -> Any:
    """Check a value passed from Python in place of a file, and return the content that the file would have."""
    if load == "patches" and isinstance(value, Mapping):
        return check_patches(value, flag)
    if isinstance(value, dict) and any(isinstance(one, Tensor) for one in value.values()):
        value = Record(value).arrays()
    if load in (*SINGLE, "memory", "attended") and not isinstance(value, Mapping | Record):
        value = array_to_record(value, flag)
    if load in SINGLE:
        return check_single(value, load, flag)
    if load == "means":
        return check_means(value, flag)
    if load == "tensors" and isinstance(value, Record):
        return value.arrays()
    return check_kind([value] if load == "lines" and is_text_list(value) else value, load, flag)


def check_single(value: Any, load: str, flag: str) -> Any:
    """Return a record with x, of an image its array; UsageError for another value."""
    if not isinstance(value, Record) or "x" not in value:
        raise UsageError(f"expected an array or a record with x, got {type(value).__name__}", flag)
    return value["x"] if load == "image" else check_numbers(value, flag)


def check_kind(value: Any, load: str, flag: str) -> Any:
    """Return a value of the kind that files of an option hold; UsageError for another one."""
    fits, expected = CONTENTS[load]
    if not fits(value):
        raise UsageError(f"expected {expected}, got {type(value).__name__}", flag)
    return value


def check_patches(patches: Mapping[str, Any], flag: str) -> dict[str, Array]:
    """Return the array of each NAME or NAME[SLICE]; of a record that is its tensor NAME, or its x.

    >>> check_patches({"decoder.0.ffn[2]": Record({"decoder.0.ffn": np.ones((3, 1))})}, "--patch")
    {'decoder.0.ffn[2]': array([[1.],
           [1.],
           [1.]])}
    """
    from attnkit.interpret.edits import parse_target

    arrays: dict[str, Array] = {}
    for target, value in patches.items():
        name, *_ = parse_target(target)
        if isinstance(value, Record):
            value = value["x" if name not in value and "x" in value else name]
        arrays[target] = array_to_record(value, flag)["x"]
    return arrays


def check_means(value: Any, flag: str) -> dict[str, Array]:
    """Return the means of the heads of a record, or of a dict of arrays."""
    from attnkit.interpret.edits import mean_heads

    if not isinstance(value, Mapping | Record):
        raise UsageError(f"expected a dict of arrays or a record, got {type(value).__name__}", flag)
    return mean_heads([value if isinstance(value, Record) else Record(value)], flag)
