"""Tensors as JSON's nested lists of numbers, and back: the shortest text that keeps every bit, read strictly."""

import contextlib
import math
import re
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.tensors.dtypes import PRECISION, bounds, dtype_of, narrow, outside
from attnkit.tensors.meta import dumps
from attnkit.tensors.record import Array

NON_FINITE = ("NaN", "Infinity", "-Infinity")
ELEMENT = re.compile(rb'[-0-9][-+0-9.eE]*|"[^"]*"')


class Data(NamedTuple):
    """A tensor's numbers before its dtype is known.

    nested   what they are in Python
    text     what they are in the document
    kind     "number" (or one of the three strings), "boolean", or "mixed" for all else
    """

    nested: Any
    text: bytes
    kind: str


def to_text(array: Array) -> bytes:
    """The elements as nested lists."""
    import orjson

    if array.size == 0:
        return dumps(array.tolist())
    if array.dtype.name in ("float16", "bfloat16"):
        return _half_numbers(array)
    text = orjson.dumps(array.reshape(array.shape or 1), option=orjson.OPT_SERIALIZE_NUMPY)
    text = text if array.shape else text[1:-1]
    missing = array[~np.isfinite(array)]
    if not missing.size:
        return text
    names = [b'"%b"' % _non_finite(value).encode() for value in missing.tolist()]
    pieces = text.split(b"null")  # where orjson leaves them out
    return b"".join(piece for pair in zip(pieces, [*names, b""], strict=True) for piece in pair)


def _non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _half_numbers(array: Array) -> bytes:
    """The elements of a 16-bit float array: at most 65,536 different ones, so each text is made once."""
    bits, places = np.unique(array.reshape(-1).view(np.uint16), return_inverse=True)
    texts = _shortest(bits.view(array.dtype))
    level: list[str] = [texts[place] for place in places.tolist()]
    for size in reversed(array.shape):
        level = [f"[{','.join(level[at : at + size])}]" for at in range(0, len(level), size)]
    return level[0].encode()


def _shortest(values: Array) -> list[str]:
    """For each value the decimal of fewest digits that is read back as it."""
    texts = [""] * len(values)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        finite = np.isfinite(values)
        for place in np.flatnonzero(~finite).tolist():
            texts[place] = f'"{_non_finite(values[place])}"'
    left = np.flatnonzero(finite)
    for digits in range(1, 6):
        for beyond in (0, 1):  # a power of two has more room beyond it than before
            doubles = values[left].astype(np.float64)
            with np.errstate(divide="ignore"):
                unit = 10.0 ** (np.floor(np.log10(np.abs(doubles))) - digits + 1)
            tries = [f"{value:.{digits - 1}e}" for value in doubles + beyond * np.copysign(unit, doubles)]
            again = narrow(np.array(tries, np.float64), values.dtype.name)
            good = again.view(np.uint16) == values[left].view(np.uint16)
            for place, index in zip(left[good].tolist(), np.flatnonzero(good).tolist(), strict=True):
                texts[place] = repr(float(tries[index]))
            left = left[~good]
    return texts


def kind_of(value: object) -> str:
    """What a scalar is; "mixed" for lists that are neither all numbers nor all booleans."""
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) or value in NON_FINITE else "mixed"


def to_array(data: Data, dtype: str | None) -> Array:
    """The numbers in their dtype, or the natural one; DataError names a wrong element."""
    name = dtype or _natural(data)
    array: Array | None = None
    if data.kind != "mixed":
        with contextlib.suppress(ValueError):  # ragged: said below
            array = _quick(data, name)
    if array is None:
        shape = _check(data.nested, name, "")
        floats = _is_float_name(name)
        array = narrow(np.array(data.nested, float), name) if floats else _exact_integers(data, name, shape)
    array.flags.writeable = False
    return array


def _natural(data: Data) -> str:
    leaf = data.nested
    while isinstance(leaf, list) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, bool):
        return "bool"
    return "int64" if isinstance(leaf, int | float) and _whole(data.text) else "float64"


def _whole(text: bytes) -> bool:
    """Whether all numbers of a text are written as integers."""
    return not any(mark in text for mark in (b".", b"e", b"E", b'"'))


def _quick(data: Data, name: str) -> Array | None:
    """The array where nothing needs a closer look; ValueError where it is ragged."""
    if data.kind == "boolean" or name == "bool":
        array = np.array(data.nested, bool)
        return array if (data.kind == "boolean") == (name == "bool") or not array.size else None
    if not _is_float_name(name):
        return _quick_integers(data, name)
    doubles = np.array(data.nested, np.float64)
    if name == "float64":
        return doubles
    result = narrow(_nudged(doubles, data.text, name), name)
    return None if (np.isinf(result) & np.isfinite(doubles)).any() else result


def _quick_integers(data: Data, name: str) -> Array | None:
    if not _whole(data.text):
        return None
    integers = np.array(data.nested)
    if integers.size == 0:
        return integers.astype(name)
    low, high = bounds(name)
    fits = integers.dtype.kind == "i" and low <= integers.min() and integers.max() <= high
    return integers.astype(name) if fits else None


def _nudged(doubles: Array, text: bytes, name: str) -> Array:
    """The doubles moved a hair toward the decimals they stand for, where rounding twice could go wrong.

    That is where a double is halfway between two values of the narrow dtype and the decimal is not.
    """
    flat = doubles.reshape(-1)
    halfway = (flat.view(np.uint64) & np.uint64((1 << 52 - PRECISION[name]) - 1)) == 0
    places = np.flatnonzero(halfway)
    places = places[narrow(flat[places], name).astype(np.float64) != flat[places]]
    places = places[np.isfinite(flat[places])]
    if places.size:
        decimals = _decimals(text)
        for place in places.tolist():
            side = decimals[place].compare(type(decimals[place])(float(flat[place])))
            flat[place] = np.nextafter(flat[place], math.inf * int(side)) if side else flat[place]
    return doubles


def _decimals(text: bytes) -> list[Any]:
    """The numbers of a text, exactly."""
    from decimal import Decimal

    return [Decimal(number.decode().strip('"')) for number in ELEMENT.findall(text)]


def _exact_integers(data: Data, name: str, shape: tuple[int, ...]) -> Array:
    """Whole numbers beyond what doubles hold, or written as 1.0 or 1e3."""
    low, high = bounds(name)
    values = _decimals(data.text)
    for index, value in enumerate(values):
        if not low <= value <= high or value != value.to_integral_value():
            raise outside("".join(f"[{i}]" for i in np.unravel_index(index, shape)), value, name)
    return np.array([int(value) for value in values], dtype_of(name)).reshape(shape)


def _check(value: Any, name: str, path: str) -> tuple[int, ...]:
    """The shape of nested lists; DataError for an element that the dtype cannot hold, or a ragged row."""
    if not isinstance(value, list):
        _check_element(value, name, path)
        return ()
    shapes = [_check(item, name, f"{path}[{index}]") for index, item in enumerate(value)]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise _ragged(path, index, shapes[0], shape)
    return (len(value), *(shapes[0] if shapes else ()))


def _ragged(path: str, index: int, first: tuple[int, ...], other: tuple[int, ...]) -> DataError:
    """The error for a row that is not as long as the first."""
    for depth, (expected, got) in enumerate(zip(first, other, strict=False)):
        if expected != got:
            rows = [f"{path}[{row}]" + "[0]" * depth for row in (index, 0)]
            rows = rows if path or depth else [str(index), "0"]
            plural = "element" if got == 1 else "elements"
            return DataError(f"row {rows[0]} has {got} {plural}, row {rows[1]} has {expected}")
    depths = [f"nested {len(shape)} deep" if shape else "a number" for shape in (other, first)]
    return DataError(f"element {path}[{index}] is {depths[0]}, element {path}[0] is {depths[1]}")


def _check_element(value: Any, name: str, path: str) -> None:
    place = f"element {path}" if path else "the value"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "bool":
        if not isinstance(value, bool):
            raise DataError(f"{place} is {_shown(value)}, expected true or false")
    elif not number and (value not in NON_FINITE or not _is_float_name(name)):
        raise DataError(f"{place} is {_shown(value)}, expected a number")
    elif _is_float_name(name):
        if number and np.isinf(narrow(np.array(value, np.float64), name)):
            raise outside(path, _shown(value), name)
    elif value != int(value):
        raise DataError(f"{place} is {_shown(value)}, expected a whole number for {name}")
    elif isinstance(value, int) and not bounds(name)[0] <= value <= bounds(name)[1]:
        raise outside(path, _shown(value), name)


def _is_float_name(name: str) -> bool:
    return name == "float64" or name in PRECISION


def _shown(value: object) -> str:
    """A JSON value for an error message."""
    if isinstance(value, dict):
        return "an object"
    text = dumps(value).decode() if not isinstance(value, int) or isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
