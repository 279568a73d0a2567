"""JSON: one document per record, several in a row; numbers keep every bit."""

import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np

from attnkit.errors import DataError, counted
from attnkit.formats.dtypes import (
    FLOATS,
    NAMES,
    PRECISION,
    byte_count,
    check_empty,
    check_shape,
    dtype_of,
    integer_bounds,
    is_float_dtype,
    name_of,
    out_of_range,
    round_to,
    to_contiguous,
    unsupported_dtype,
)
from attnkit.formats.json_text import DEPTH_LIMIT, Document, Documents, dumps, line_and_column
from attnkit.formats.metadata import check_axis_names, check_history, check_keys, check_labels
from attnkit.formats.streams import Buffer, Source, name_errors, prefix_errors
from attnkit.records import Array, Record, Tensor

RECORD_KEYS = ("tensors", "labels", "history")
TENSOR_KEYS = ("dtype", "shape", "axes", "data")
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
Exact = Callable[[], Any]  # the same value with every number exactly as written: whole ones int, others Decimal


def read(source: Source, maps: bool = False) -> Iterator[Record]:
    """Yield the records of a stream, each as soon as its last byte has arrived.

    maps  accept an object without the keys of a record as a map of names to tensors: {"w": [[1, 0], [0, 1]]}

    >>> [r["x"].tolist() for r in read(Source.of(b"[[1, 2]] 3.5"))]
    [[[1, 2]], 3.5]
    """
    with name_errors(source.name):
        documents, is_empty = Documents(source.read_available), True
        for document in documents:
            is_empty = False
            yield to_record(document, maps)
        if is_empty:
            raise DataError(
                f"{line_and_column(b'', documents.place)}: unexpected end of input, expected a JSON document"
            )


def to_record(document: Document, maps: bool) -> Record:
    value = document.parse()

    def exact() -> Any:
        return json.loads(document.text, parse_float=Decimal)

    if not isinstance(value, dict):
        return Record({"x": to_array(value, None, exact)})
    if maps and value and next(iter(value)) not in RECORD_KEYS:
        return Record({name: to_tensor(name, part, exact) for name, part in value.items()}).check()
    for key, part in value.items():
        if key not in RECORD_KEYS and key.isidentifier() and len(key) < 20 and isinstance(part, list):
            known = ", ".join(RECORD_KEYS)
            raise DataError(f'unknown key "{key}" (expected {known}); as a tensor: {{"tensors": {{"{key}": …}}}}')
    check_keys(value, RECORD_KEYS)
    tensors = value.get("tensors", {})
    if not isinstance(tensors, dict):
        raise DataError('key "tensors" is not an object')
    if not tensors:
        raise DataError(f'key "tensors" is {"empty" if "tensors" in value else "missing"}')
    read = {name: to_tensor(name, part, lambda: exact()["tensors"]) for name, part in tensors.items()}
    return Record(read, check_labels(value.get("labels", {})), check_history(value.get("history", []))).check()


def to_tensor(name: str, value: Any, exact: Exact) -> Tensor:
    """The tensor of a list, or of an object with data, dtype, shape and axes."""
    parts = value if isinstance(value, dict) else {"data": value}
    check_keys(parts, TENSOR_KEYS)

    def exact_data() -> Any:
        written = exact()[name]
        return written["data"] if isinstance(written, dict) else written

    with prefix_errors(f'tensor "{name[:40]}"'):
        if "data" not in parts:
            raise DataError('key "data" is missing')
        dtype = parts.get("dtype", "")
        if dtype not in ("", *NAMES):
            raise unsupported_dtype(str(dtype)[:40])
        array = to_array(parts["data"], dtype or None, exact_data)
        axes = check_axis_names(parts["axes"]) if "axes" in parts else None
        return Tensor(reshape(array, parts["shape"]) if "shape" in parts else array, axes)


def reshape(array: Array, shape: object) -> Array:
    """The array in its declared shape. Lists cannot tell (0,) from (0, 5)."""
    if not isinstance(shape, list):
        raise DataError('key "shape" is not a list')
    sizes = check_shape(shape)
    byte_count(sizes, array.itemsize)
    visible = sizes[: sizes.index(0) + 1] if 0 in sizes else sizes
    if array.shape != visible:
        raise DataError(f'key "shape" is {sizes}, but the data have shape {array.shape}')
    return array.reshape(sizes)


def to_array(value: Any, dtype: str | None, exact: Exact) -> Array:
    """The array of nested lists, by default in the dtype that its numbers imply.

    DataError names a row of another length, and an element that the dtype cannot hold.

    >>> to_array([[1, 2], [3, 4]], "float32", list)
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    leaves, shape = flatten(value)
    if len(shape) > DEPTH_LIMIT:
        raise DataError(f"nested deeper than {DEPTH_LIMIT}")
    kinds = {*map(type, leaves)}
    name = dtype or implied_dtype(leaves, kinds, exact)
    is_plain = kinds <= ({bool} if name == "bool" else {int, float, str})
    array = convert_leaves(leaves, kinds, name, exact) if is_plain else None
    if array is None:
        check_nested(value, name, "")
        array = exact_integers(flatten(exact())[0], name, shape)
    check_empty(shape)
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def flatten(value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of nested lists and their shape; of ragged lists an outer level."""
    level, shape = [value], tuple[int, ...]()
    while level and {*map(type, level)} == {list} and len({*map(len, level)}) == 1:
        shape = (*shape, len(level[0]))
        level = list(chain.from_iterable(level))
    return level, shape


def implied_dtype(leaves: list[Any], kinds: set[type], exact: Exact) -> str:
    """bool, int64 if every number is written as a whole one, otherwise float64."""
    if leaves and isinstance(leaves[0], bool):
        return "bool"
    is_large = float in kinds and kinds <= {int, float} and max(map(abs, leaves)) >= 1 << 63
    if is_large and {*map(type, flatten(exact())[0])} == {int}:
        return "int64"  # orjson reads a larger number as a float
    return "int64" if leaves and kinds <= {int, bool, type(None)} else "float64"


def convert_leaves(leaves: list[Any], kinds: set[type], name: str, exact: Exact) -> Array | None:
    """The elements in a dtype, or None if one of them needs a closer look."""
    if name == "bool":
        return np.array(leaves, bool)
    if name not in FLOATS:
        low, high = integer_bounds(name)
        fits = kinds <= {int} and (not leaves or (low <= min(leaves) and max(leaves) <= high))
        return np.array(leaves, dtype_of(name)) if fits else None
    if str in kinds:
        if not {one for one in leaves if isinstance(one, str)} <= {*NON_FINITE}:
            return None
        leaves = [NON_FINITE[one] if isinstance(one, str) else one for one in leaves]
    doubles = np.array(leaves, np.float64)
    if name == "float64":
        return doubles
    result = round_to(correct_double_rounding(doubles, name, exact), name)
    return None if (np.isinf(result) & np.isfinite(doubles)).any() else result


def correct_double_rounding(doubles: Array, name: str, exact: Exact) -> Array:
    """Move doubles toward their decimals if rounding twice could differ.

    It could if a double is halfway between two values of the narrow dtype and the decimal is not.
    """
    halfway = (doubles.view(np.uint64) & np.uint64((1 << 52 - PRECISION[name]) - 1)) == 0
    places = np.flatnonzero(halfway)
    places = places[round_to(doubles[places], name).astype(np.float64) != doubles[places]]
    places = places[np.isfinite(doubles[places])]
    if places.size:
        decimals = flatten(exact())[0]
        for place in places.tolist():
            side = Decimal(decimals[place]).compare(Decimal(float(doubles[place])))
            doubles[place] = np.nextafter(doubles[place], math.inf * int(side)) if side else doubles[place]
    return doubles


def exact_integers(values: list[Any], name: str, shape: tuple[int, ...]) -> Array:
    """Integers that doubles cannot hold, or that are written as 1.0 or 1e3."""
    low, high = integer_bounds(name)
    for index, value in enumerate(map(Decimal, values)):
        if not low <= value <= high or value != value.to_integral_value():
            raise out_of_range("".join(f"[{i}]" for i in np.unravel_index(index, shape)), value, name)
    return np.array([int(value) for value in values], dtype_of(name))


def check_nested(value: Any, name: str, path: str) -> tuple[int, ...]:
    """The shape of nested lists. DataError for a wrong element or a ragged row."""
    if not isinstance(value, list):
        check_element(value, name, path)
        return ()
    shapes = [check_nested(item, name, f"{path}[{index}]") for index, item in enumerate(value)]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ragged_error(path, index, shapes[0], shape)
    return (len(value), *(shapes[0] if shapes else ()))


def ragged_error(path: str, index: int, first: tuple[int, ...], other: tuple[int, ...]) -> DataError:
    """The error for a row that is not as long as the first."""
    for depth, (expected, got) in enumerate(zip(first, other, strict=False)):
        if expected != got:
            rows = [f"{path}[{row}]" + "[0]" * depth for row in (index, 0)]
            rows = rows if path or depth else [str(index), "0"]
            return DataError(f"row {rows[0]} has {counted(got, 'element')}, row {rows[1]} has {expected}")
    depths = [f"nested {len(shape)} deep" if shape else "a number" for shape in (other, first)]
    return DataError(f"element {path}[{index}] is {depths[0]}, element {path}[0] is {depths[1]}")


def check_element(value: Any, name: str, path: str) -> None:
    place = f"element {path}" if path else "the value"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "bool":
        if not isinstance(value, bool):
            raise DataError(f"{place} is {format_value(value)}, expected true or false")
    elif not is_number and (not isinstance(value, str) or value not in NON_FINITE or name not in FLOATS):
        raise DataError(f"{place} is {format_value(value)}, expected a number")
    elif name in FLOATS:
        if is_number and np.isinf(round_to(np.array(value, np.float64), name)):
            raise out_of_range(path, format_value(value), name)
    elif value != int(value):
        raise DataError(f"{place} is {format_value(value)}, expected a whole number for {name}")
    elif isinstance(value, int) and not integer_bounds(name)[0] <= value <= integer_bounds(name)[1]:
        raise out_of_range(path, format_value(value), name)


def format_value(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    text = dumps(value).decode() if not isinstance(value, int) or isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def encode(record: Record, indent: bool = False) -> list[Buffer]:
    """A record as one line of JSON, or indented with one matrix row per line.

    >>> b"".join(encode(Record({"x": np.array([0.1, np.inf], np.float32)})))
    b'{"tensors":{"x":{"dtype":"float32","shape":[2],"data":[0.1,"Infinity"]}},"labels":{},"history":[]}\\n'
    """
    if not indent:
        tensors = {name: _tensor_parts(one) for name, one in record.tensors.items()}
        return [dumps({"tensors": tensors, "labels": record.labels, "history": record.history}) + b"\n"]
    parts = {
        "tensors": _object({name: _indented_tensor(one) for name, one in record.tensors.items()}, 1),
        "labels": _object({axis: dumps(names) for axis, names in record.labels.items()}, 1),
        "history": _block(b"[", [dumps(entry) for entry in record.history], b"]", 1),
    }
    return [_object(parts, 0) + b"\n"]


def normalize_nan(array: Array) -> Array:
    """The array as it is read back from JSON: every NaN is the positive quiet one.

    >>> np.signbit(normalize_nan(np.array([-np.nan]))).tolist()
    [False]
    """
    array = to_contiguous(array)
    if not is_float_dtype(array.dtype):
        return array
    result = array.copy()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        result[np.isnan(result)] = np.nan
    return result


def _tensor_parts(tensor: Tensor) -> dict[str, Any]:
    """What JSON states of a tensor: its elements are text already."""
    import orjson

    array = to_contiguous(tensor.array)
    axes = {} if tensor.axes is None else {"axes": tensor.axes}
    data = orjson.Fragment(format_array(array))
    return {"dtype": name_of(array.dtype), "shape": array.shape, **axes, "data": data}


def _indented_tensor(tensor: Tensor) -> bytes:
    parts = {key: dumps(part) for key, part in _tensor_parts(tensor).items()}
    if len(tensor.shape) > 1 and tensor.array.size:
        rows = parts["data"][1:-1].replace(b",", b", ").split(b"], [")
        text = _block(b"[", [b"], [".join(rows)], b"]", 3)
        parts["data"] = text.replace(b"], [", b"],\n" + b"  " * 4 + b"[")
    return _object(parts, 2)


def _object(parts: dict[str, bytes], depth: int) -> bytes:
    return _block(b"{", [dumps(key) + b": " + text for key, text in parts.items()], b"}", depth)


def _block(opening: bytes, items: list[bytes], closing: bytes, depth: int) -> bytes:
    """Items between brackets, one a line at a depth."""
    if not items:
        return opening + closing
    line = b"\n" + b"  " * (depth + 1)
    return opening + line + (b"," + line).join(items) + line[:-2] + closing


def format_array(array: Array) -> bytes:
    import orjson

    if array.size == 0:
        return _format_empty(array.shape)
    if array.dtype.name in ("float16", "bfloat16"):
        return _format_halves(array)
    text = orjson.dumps(array.reshape(array.shape or 1), option=orjson.OPT_SERIALIZE_NUMPY)
    text = text if array.shape else text[1:-1]
    non_finite = array[~np.isfinite(array)]
    if not non_finite.size:
        return text
    names = [b'"%b"' % _non_finite_name(value).encode() for value in non_finite.tolist()]
    pieces = text.split(b"null")  # orjson writes null for each
    return b"".join(piece for pair in zip(pieces, [*names, b""], strict=True) for piece in pair)


def _format_empty(shape: tuple[int, ...]) -> bytes:
    """Nested lists down to the first dimension of size zero.

    >>> _format_empty((2, 0, 3))
    b'[[],[]]'
    """
    text = b"[]"
    for size in reversed(shape[: shape.index(0)]):
        text = b"[" + (text + b",") * (size - 1) + text + b"]"
    return text


def _non_finite_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _format_halves(array: Array) -> bytes:
    """A 16-bit float array as nested lists, each different value formatted once."""
    bits, places = np.unique(array.reshape(-1).view(np.uint16), return_inverse=True)
    texts = _shortest_decimals(bits.view(array.dtype))
    level: list[str] = [texts[place] for place in places.tolist()]
    for size in reversed(array.shape):
        level = [f"[{','.join(level[at : at + size])}]" for at in range(0, len(level), size)]
    return level[0].encode()


def _shortest_decimals(values: Array) -> list[str]:
    """For each value the decimal of fewest digits that rounds to it."""
    texts = [""] * len(values)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        finite = np.isfinite(values)
        for place in np.flatnonzero(~finite).tolist():
            texts[place] = f'"{_non_finite_name(values[place])}"'
    left = np.flatnonzero(finite)
    for digits in range(1, 6):
        for beyond in (0, 1):  # a power of two has more room beyond it than before
            doubles = values[left].astype(np.float64)
            with np.errstate(divide="ignore"):
                unit = 10.0 ** (np.floor(np.log10(np.abs(doubles))) - digits + 1)
            decimals = [f"{value:.{digits - 1}e}" for value in doubles + beyond * np.copysign(unit, doubles)]
            rounded = round_to(np.array(decimals, np.float64), values.dtype.name)
            is_exact = rounded.view(np.uint16) == values[left].view(np.uint16)
            for place, index in zip(left[is_exact].tolist(), np.flatnonzero(is_exact).tolist(), strict=True):
                texts[place] = repr(float(decimals[index]))
            left = left[~is_exact]
    return texts
