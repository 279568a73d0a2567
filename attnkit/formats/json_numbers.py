"""Tensors as JSON's nested lists of numbers, and back: the shortest text that keeps every bit, read strictly."""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.dtypes import PRECISION, bounds, check_empty, dtype_of, outside, round_to
from attnkit.formats.metadata import dumps
from attnkit.record import Array

NON_FINITE = ("NaN", "Infinity", "-Infinity")
SPACES = b" \t\r\n"
CHARACTERS = {"number": b'-+0123456789.eE"NaIfinty', "boolean": b"truefalse"}
BLANK_BRACKETS = bytes.maketrans(b"[]", b"  ")
BLOCK = 1 << 20  # bytes of text parsed at a time
ELEMENT = re.compile(rb'[-0-9][-+0-9.eE]*|"[^"]*"')


class Data(NamedTuple):
    """A tensor's numbers before its dtype is known.

    text     what they are in the document
    kind     "number" (or one of the three strings), "boolean", or "mixed" for all else
    numbers  an array of them, where they are regular and of one kind: bool, a 64-bit integer or float64
    nested   what they are in Python, where that has been made
    """

    text: bytes
    kind: str
    numbers: Array | None
    nested: Any = None


def to_text(array: Array) -> bytes:
    """The elements as nested lists."""
    import orjson

    if array.size == 0:
        return _empty_lists(array.shape)
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


def _empty_lists(shape: tuple[int, ...]) -> bytes:
    """Nested lists down to the first dimension of size zero.

    >>> _empty_lists((2, 0, 3))
    b'[[],[]]'
    """
    text = b"[]"
    for size in reversed(shape[: shape.index(0)]):
        text = b"[" + (text + b",") * (size - 1) + text + b"]"
    return text


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
            again = round_to(np.array(tries, np.float64), values.dtype.name)
            good = again.view(np.uint16) == values[left].view(np.uint16)
            for place, index in zip(left[good].tolist(), np.flatnonzero(good).tolist(), strict=True):
                texts[place] = repr(float(tries[index]))
            left = left[~good]
    return texts


def parse_short(text: bytes) -> Data | None:
    """Return the array that a text begins with, if it is short, regular and without spaces; None for any other.

    >>> parse_short(b"[[1,2],[3,4]] and more").text, parse_short(b"[1,true]")
    (b'[[1,2],[3,4]]', None)
    """
    import orjson

    rank = len(text) - len(text.lstrip(b"["))
    text = text[: text.find(b"]" * rank) + rank]
    try:
        nested = orjson.loads(text)
        numbers = np.array(nested)
    except ValueError:  # not JSON, or ragged
        return None
    kind = numbers.dtype.kind
    has_booleans = b"t" in text or b"s" in text
    if not numbers.size or has_booleans != (kind == "b") or kind not in ("biu" if _is_whole(text) else "bf"):
        return None
    return Data(text, "boolean" if has_booleans else "number", numbers, nested)


def parse_regular(text: bytes, kind: str) -> Data | None:
    """Nested lists of one shape as an array, without a Python list for each; None for any other text.

    text  nothing but brackets, commas, spaces and the characters of that kind of values

    >>> parse_regular(b"[[1, 2], [3, 4]]", "number").numbers
    array([[1, 2],
           [3, 4]])
    >>> parse_regular(b"[[1, 2], [3]]", "number")
    """
    shape = _shape_of(text.translate(None, CHARACTERS[kind] + SPACES))
    if shape is None or _has_misplaced_brackets(text):
        return None
    flat = text.translate(BLANK_BRACKETS)
    if not flat.strip(SPACES + b","):
        empty = shape[-1] == 1
        return Data(text, kind, np.zeros((*shape[:-1], 0))) if empty else None
    numbers = _flat_numbers(flat, _is_whole(text))
    if numbers is None or numbers.size != math.prod(shape):
        return None
    return Data(text, kind, numbers.reshape(shape))


def _shape_of(skeleton: bytes) -> tuple[int, ...] | None:
    """The shape of nested lists from their brackets and commas alone; None where they are not regular.

    >>> _shape_of(b"[[,,],[,,]]"), _shape_of(b"[[,],[]]")
    ((2, 3), None)
    """
    rank = len(skeleton) - len(skeleton.lstrip(b"["))
    block, shape = b"", tuple[int, ...]()
    for closing in range(1, rank + 1):  # lists that end where the first one at this depth does
        end = skeleton.find(b"]" * closing) + closing - 1
        inside = end - (rank - closing + 1)
        size = (inside + 1) // (len(block) + 1)
        if end < closing - 1 or size < 1:
            return None
        block, shape = b"[" + (block + b",") * (size - 1) + block + b"]", (size, *shape)
    return shape if shape and block == skeleton else None


def _has_misplaced_brackets(text: bytes) -> bool:
    """Whether a bracket stands within an element, as in `[1[,2]`, which the brackets and commas alone do not show."""
    compact = text.translate(None, SPACES) if any(space in text for space in (b" ", b"\n", b"\r", b"\t")) else text
    for start in range(0, len(compact) - 1, BLOCK):
        piece = np.frombuffer(compact, np.uint8, min(BLOCK + 1, len(compact) - start), start)
        before, after = piece[np.flatnonzero(piece[1:] == 0x5B)], piece[np.flatnonzero(piece[:-1] == 0x5D) + 1]
        if ((before != 0x5B) & (before != 0x2C)).any() or ((after != 0x5D) & (after != 0x2C)).any():
            return True
    return False


def _flat_numbers(text: bytes, whole: bool) -> Array | None:
    """Comma-separated values as an array, some at a time; None where one is not JSON."""
    import orjson

    pieces, at = [], 0
    try:
        while at < len(text):
            end = text.find(b",", at + BLOCK)
            end = len(text) if end < 0 else end
            pieces.append(_array_of(orjson.loads(b"[%b]" % text[at:end]), whole))
            at = end + 1
    except orjson.JSONDecodeError:
        return None
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _array_of(values: Any, whole: bool) -> Array:
    """A number, or a list of them, as bool, as a 64-bit integer where all are and fit, else as float64."""
    leaf = values[0] if isinstance(values, list) and values else values
    if isinstance(leaf, bool):
        return np.array(values, bool)
    if whole and (integers := np.array(values)).dtype.kind in "iu":
        return integers
    return np.fromiter(values, np.float64, len(values)) if isinstance(values, list) else np.array(values, np.float64)


def parsed(value: Any, text: bytes) -> Data:
    """Any JSON value as data; its numbers are made of a scalar only.

    >>> parsed(3, b"3").numbers, parsed([1, None], b"[1, null]").kind
    (array(3), 'mixed')
    """
    if isinstance(value, bool):
        return Data(text, "boolean", np.array(value), value)
    if isinstance(value, int | float) or (isinstance(value, str) and value in NON_FINITE):
        return Data(text, "number", _array_of(value, _is_whole(text)), value)
    return Data(text, "mixed", None, value)


def to_array(data: Data, dtype: str | None) -> Array:
    """The numbers in their dtype, or the natural one; DataError names a wrong element."""
    name = dtype or _natural(data)
    array = _quick(data, name)
    if array is None:
        array = _checked(data, name)
    check_empty(array.shape)
    array.flags.writeable = False
    return array


def _natural(data: Data) -> str:
    leaf = data.numbers.flat[0].item() if data.numbers is not None and data.numbers.size else data.nested
    while isinstance(leaf, list) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, bool):
        return "bool"
    return "int64" if isinstance(leaf, int | float) and _is_whole(data.text) else "float64"


def _is_whole(text: bytes) -> bool:
    """Whether all numbers of a text are written as integers."""
    return not any(mark in text for mark in (b".", b"e", b"E", b'"'))


def _quick(data: Data, name: str) -> Array | None:
    """The array where nothing needs a closer look."""
    numbers = data.numbers
    if numbers is None or not numbers.size:
        return numbers if numbers is None else numbers.astype(dtype_of(name))
    if data.kind == "boolean" or name == "bool":
        return numbers if numbers.dtype.name == name else None
    if not _is_float_name(name):
        return _quick_integers(numbers, name)
    doubles = numbers.astype(np.float64, copy=False)
    if name == "float64":
        return doubles
    result = round_to(_nudged(doubles, data.text, name), name)
    return None if (np.isinf(result) & np.isfinite(doubles)).any() else result


def _quick_integers(integers: Array, name: str) -> Array | None:
    low, high = bounds(name)
    fits = integers.dtype.kind in "iu" and low <= integers.min() and integers.max() <= high
    return integers.astype(name) if fits else None


def _checked(data: Data, name: str) -> Array:
    """The array, each element looked at; DataError names one that the dtype cannot hold, or a ragged row."""
    import orjson

    nested = orjson.loads(data.text) if data.nested is None else data.nested
    shape = _check(nested, name, "")
    if name == "bool":
        return np.array(nested, bool)
    return round_to(np.array(nested, float), name) if _is_float_name(name) else _exact_integers(data.text, name, shape)


def _nudged(doubles: Array, text: bytes, name: str) -> Array:
    """The doubles moved a hair toward the decimals they stand for, where rounding twice could go wrong.

    That is where a double is halfway between two values of the narrow dtype and the decimal is not.
    """
    flat = doubles.reshape(-1)
    halfway = (flat.view(np.uint64) & np.uint64((1 << 52 - PRECISION[name]) - 1)) == 0
    places = np.flatnonzero(halfway)
    places = places[round_to(flat[places], name).astype(np.float64) != flat[places]]
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


def _exact_integers(text: bytes, name: str, shape: tuple[int, ...]) -> Array:
    """Whole numbers beyond what doubles hold, or written as 1.0 or 1e3."""
    low, high = bounds(name)
    values = _decimals(text)
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
        if number and np.isinf(round_to(np.array(value, np.float64), name)):
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
