"""The tree of module calls that transformers writes as JSON.

It is written by model_addition_debugger_context. Each node has the path of a module, its inputs, its outputs and the
calls inside it. A tensor is printed, with five digits and shortened above 1,000 elements, or in a safetensors file
beside the tree (with use_repr=False).
"""

import glob
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.formats import safetensors
from attnkit.formats.dtypes import NAMES, check_shape, dtype_of, is_float_dtype, round_to
from attnkit.formats.json_text import parse_json
from attnkit.formats.streams import name_errors, prefix_errors
from attnkit.libraries import quote_error
from attnkit.records import Array

TREE = re.compile(r"_FULL_TENSORS\.json$")
TREE_START = re.compile(rb'\s*\{\s*"module_path"\s*:')
PRINTED = 5  # digits of a printed float
DEEPEST = 64
NUMBER = re.compile(r"True|False|[-+]?(?:nan|inf|\d+\.?\d*(?:e[-+]?\d+)?)")


class DumpEntry(NamedTuple):
    """A tensor of a dump.

    read    reads the array
    digits  how many significant digits of its numbers the dump has, 0 for all
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]
    digits: int = 0


def read_tree(path: str, text: bytes) -> tuple[dict[str, DumpEntry], dict[str, str]]:
    """The tensors of a tree in the order of computation, and those left out -> why."""
    with name_errors(path):
        root = parse_json(text)
        counts: Counter[str] = Counter()
        tensors = []
        for name, value in _walk(root, root.get("module_path"), Counter(), 0):
            tensors.append((f"{name}#{counts[name]}" if counts[name] else name, value))
            counts[name] += 1
        last = {_file_of(value): name for name, value in tensors}
        found: dict[str, DumpEntry] = {}
        left_out: dict[str, str] = {}
        for name, value in tensors:
            with prefix_errors(f"tensor {name[:100]!r}"):
                file = _file_of(value)
                entry = _describe(path, value)
                if isinstance(entry, str):
                    left_out[name] = entry
                elif file and last[file] != name:
                    left_out[name] = f"overwritten by {last[file]}, which transformers writes to the same file"
                else:
                    found[name] = entry
        if any(last):
            found |= _read_outputs(os.path.dirname(path), root["module_path"])
        return found, left_out


def _read_outputs(folder: str, root: str) -> dict[str, DumpEntry]:
    """What the model returned, in files that the tree does not mention."""
    found = {}
    start = os.path.join(folder, f"{root}_outputs")
    for path in sorted(glob.glob(f"{glob.escape(start)}*.safetensors")):
        key = path.removeprefix(start).removesuffix(".safetensors").replace("_", ".", 1)
        dtype, shape = next(iter(safetensors.map_tensors(path).entries.values()))
        found[f"output{key}"] = DumpEntry(dtype, shape, partial(_read_file, path, dtype, shape))
    return found


def _walk(node: Any, root: Any, counts: Counter[str], depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensors of a call: its inputs, those of the calls inside, its outputs."""
    children = node.get("children") or [] if isinstance(node, dict) else None
    if not isinstance(children, list) or not isinstance(node.get("module_path"), str) or depth > DEEPEST:
        raise DataError(f"a call of a module without a path or a list of calls, or more than {DEEPEST} deep")
    path = node["module_path"].removesuffix(" (top-level)").removeprefix(root).removeprefix(".")
    number = counts[path]
    counts[path] += 1
    name = f"{path}#{number}" if number else path
    name = f"{name}." if name else ""
    inputs = node.get("inputs") or {}
    if isinstance(inputs, dict) and {*inputs} <= {"args", "kwargs"}:
        positional = inputs.get("args", [])
        lone = isinstance(positional, list) and len(positional) == 1
        yield from _tensors_in(positional[0] if lone else positional, f"{name}input")
        yield from _tensors_in(inputs.get("kwargs", {}), f"{name}input")
    for child in children:
        yield from _walk(child, root, counts, depth + 1)
    yield from _tensors_in(node.get("outputs"), f"{name}output")


def _tensors_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    if depth > DEEPEST:
        raise DataError(f"values nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        if isinstance(value.get("shape"), str) and isinstance(value.get("dtype"), str):
            yield name, value
        else:
            for key, part in value.items():
                yield from _tensors_in(part, f"{name}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _tensors_in(part, f"{name}.{number}", depth + 1)


def _file_of(value: dict[str, Any]) -> str:
    """The file that a tensor is in, "" if it is printed."""
    return value["value"] if isinstance(value.get("value"), str) else ""


def _describe(path: str, value: dict[str, Any]) -> DumpEntry | str:
    """A tensor of the tree, or why it is left out."""
    dtype, shape = value["dtype"].removeprefix("torch."), _parse_shape(value["shape"])
    if dtype not in NAMES:
        return f"dtype {dtype[:40]} is not supported"
    if "value" not in value:
        return "only its statistics are written here; give the file whose name ends in _FULL_TENSORS.json"
    if file := _file_of(value):
        name = file.removeprefix("./")
        if os.path.basename(name) != name or not name.endswith(".safetensors"):
            raise DataError(f"{file[:100]!r} is no safetensors file beside the tree")
        return DumpEntry(dtype, shape, partial(_read_file, os.path.join(os.path.dirname(path), name), dtype, shape))
    lines = value["value"]
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise DataError("a value that is neither printed nor in a file")
    text = "\n".join(lines)
    if "..." in text:
        return "printed with its first and last numbers only; record with use_repr=False"
    digits = PRINTED if is_float_dtype(dtype_of(dtype)) else 0
    return DumpEntry(dtype, shape, partial(_parse_printed, path, text, dtype, shape), digits)


def _parse_shape(text: str) -> tuple[int, ...]:
    match = re.fullmatch(r"torch\.Size\(\[(|\d{1,18}(?:, \d{1,18})*)\]\)", text)
    if not match:
        raise DataError(f"shape {text[:100]!r} (expected torch.Size([2, 3]))")
    return check_shape([int(size) for size in match[1].split(", ") if size])


def _read_file(path: str, dtype: str, shape: tuple[int, ...]) -> Array:
    mapped = safetensors.map_tensors(path)
    name, *others = mapped.entries
    if others or mapped.entries[name] != (dtype, shape):
        raise DataError(f"expected one tensor, {dtype} {shape}, as the tree says", path)
    return mapped.tensor(name)


def _parse_printed(path: str, text: str, dtype: str, shape: tuple[int, ...]) -> Array:
    """The numbers of `tensor([[1.0000e+00, …]], dtype=…)`."""
    _, _, inside = text.partition("tensor(")
    end = inside.rfind("]") + 1 if inside.lstrip().startswith("[") else re.search(r"[,)]|$", inside).start()  # type: ignore[union-attr]
    words = NUMBER.findall(inside[:end])
    if len(words) != math.prod(shape):
        raise DataError(f"{len(words)} numbers are printed for shape {shape}", path)
    convert: Callable[[str], Any] = float if is_float_dtype(dtype_of(dtype)) else int
    try:
        numbers = [word == "True" if dtype == "bool" else convert(word) for word in words]
        array = np.array(numbers, np.float64 if convert is float else dtype_of(dtype))
    except (ValueError, OverflowError) as error:
        raise DataError(f"a number that is no {dtype}: {quote_error(error)}", path) from None
    return round_to(array, dtype).reshape(shape) if convert is float else array.reshape(shape)
