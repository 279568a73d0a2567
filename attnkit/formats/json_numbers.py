"""Convert arrays to nested JSON lists, each number in the shortest text that keeps every bit, and back."""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, counted
from attnkit.formats.dtypes import PRECISION, check_empty, dtype_of, integer_bounds, out_of_range, round_to
from attnkit.formats.metadata import dumps
from attnkit.record import Array

NON_FINITE = ("NaN", "Infinity", "-Infinity")
SPACES = b" \t\r\n"
CHARACTERS = {"number": b'-+0123456789.eE"NaIfinty', "boolean": b"truefalse"}
BLANK_BRACKETS = bytes.maketrans(b"[]", b"  ")
BLOCK = 1 << 20  # bytes of text parse_any at a time
ELEMENT = re.compile(rb'[-0-9][-+0-9.eE]*|"[^"]*"')


class Elements(NamedTuple):
    """The elements of an array in a document, before its dtype is known.

    text     their JSON text
    kind     "number" (or "NaN", "Infinity", "-Infinity"), "boolean", or "mixed" for all others
    numbers  an array of them, where they are regular and of one kind: bool, a 64-bit integer or float64
    nested   nested Python lists of them, where they have been parsed
    """

    text: bytes
    kind: str
    numbers: Array | None
    nested: Any = None


def format_array(array: Array) -> bytes:
    """Return the elements as nested JSON lists."""
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
    """Return nested lists down to the first dimension of size zero.

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
    """Return the elements of a 16-bit float array as nested lists, each of the at most 65,536 values formatted once."""
    bits, places = np.unique(array.reshape(-1).view(np.uint16), return_inverse=True)
    texts = _shortest_decimals(bits.view(array.dtype))
    level: list[str] = [texts[place] for place in places.tolist()]
    for size in reversed(array.shape):
        level = [f"[{','.join(level[at : at + size])}]" for at in range(0, len(level), size)]
    return level[0].encode()


def _shortest_decimals(values: Array) -> list[str]:
    """Return for each value the decimal of fewest digits that rounds to it."""
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


def parse_short(text: bytes) -> Elements | None:
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
    return Elements(text, "boolean" if has_booleans else "number", numbers, nested)


def parse_regular(text: bytes, kind: str) -> Elements | None:
    """Return nested lists of one shape as an array, without Python lists; None for any other text.

    text  only brackets, commas, spaces and the characters of that kind of elements

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
        return Elements(text, kind, np.zeros((*shape[:-1], 0))) if empty else None
    numbers = _flat_numbers(flat, _is_whole(text))
    if numbers is None or numbers.size != math.prod(shape):
        return None
    return Elements(text, kind, numbers.reshape(shape))


def _shape_of(skeleton: bytes) -> tuple[int, ...] | None:
    """Return the shape of nested lists from their brackets and commas; None where they are not regular.

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
    """Return whether a bracket is inside an element, as in `[1[,2]`, which brackets and commas alone do not show."""
    compact = text.translate(None, SPACES) if any(space in text for space in (b" ", b"\n", b"\r", b"\t")) else text
    for start in range(0, len(compact) - 1, BLOCK):
        piece = np.frombuffer(compact, np.uint8, min(BLOCK + 1, len(compact) - start), start)
        before, after = piece[np.flatnonzero(piece[1:] == 0x5B)], piece[np.flatnonzero(piece[:-1] == 0x5D) + 1]
        if ((before != 0x5B) & (before != 0x2C)).any() or ((after != 0x5D) & (after != 0x2C)).any():
            return True
    return False


def _flat_numbers(text: bytes, is_whole: bool) -> Array | None:
    """Return comma-separated values as an array, parsed a block at a time; None where one is not JSON."""
    import orjson

    pieces, at = [], 0
    try:
        while at < len(text):
            end = text.find(b",", at + BLOCK)
            end = len(text) if end < 0 else end
            pieces.append(_to_numbers(orjson.loads(b"[%b]" % text[at:end]), is_whole))
            at = end + 1
    except orjson.JSONDecodeError:
        return None
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _to_numbers(values: Any, is_whole: bool) -> Array:
    """Return a number or a list of them as bool, as 64-bit integers where all are and fit, else as float64."""
    leaf = values[0] if isinstance(values, list) and values else values
    if isinstance(leaf, bool):
        return np.array(values, bool)
    if is_whole and (integers := np.array(values)).dtype.kind in "iu":
        return integers
    return np.fromiter(values, np.float64, len(values)) if isinstance(values, list) else np.array(values, np.float64)


def parse_any(value: Any, text: bytes) -> Elements:
    """Return any JSON value as elements, with `numbers` for a scalar only.

    >>> parse_any(3, b"3").numbers, parse_any([1, None], b"[1, null]").kind
    (array(3), 'mixed')
    """
    if isinstance(value, bool):
        return Elements(text, "boolean", np.array(value), value)
    if isinstance(value, int | float) or (isinstance(value, str) and value in NON_FINITE):
        return Elements(text, "number", _to_numbers(value, _is_whole(text)), value)
    return Elements(text, "mixed", None, value)


def to_array(data: Elements, dtype: str | None) -> Array:
    """Return the array in a dtype, by default the one its text implies; DataError names a wrong element."""
    name = dtype or _natural_dtype(data)
    array = _convert_fast(data, name)
    if array is None:
        array = _convert_checked(data, name)
    check_empty(array.shape)
    array.flags.writeable = False
    return array


def _natural_dtype(data: Elements) -> str:
    leaf = data.numbers.flat[0].item() if data.numbers is not None and data.numbers.size else data.nested
    while isinstance(leaf, list) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, bool):
        return "bool"
    return "int64" if isinstance(leaf, int | float) and _is_whole(data.text) else "float64"


def _is_whole(text: bytes) -> bool:
    """Return whether all numbers of a text are written as integers."""
    return not any(mark in text for mark in (b".", b"e", b"E", b'"'))


def _convert_fast(data: Elements, name: str) -> Array | None:
    """Return the array where no element needs a check of its own, else None."""
    numbers = data.numbers
    if numbers is None or not numbers.size:
        return numbers if numbers is None else numbers.astype(dtype_of(name))
    if data.kind == "boolean" or name == "bool":
        return numbers if numbers.dtype.name == name else None
    if not _is_float_name(name):
        return _fit_integers(numbers, name)
    doubles = numbers.astype(np.float64, copy=False)
    if name == "float64":
        return doubles
    result = round_to(_correct_double_rounding(doubles, data.text, name), name)
    return None if (np.isinf(result) & np.isfinite(doubles)).any() else result


def _fit_integers(integers: Array, name: str) -> Array | None:
    low, high = integer_bounds(name)
    fits = integers.dtype.kind in "iu" and low <= integers.min() and integers.max() <= high
    return integers.astype(name) if fits else None


def _convert_checked(data: Elements, name: str) -> Array:
    """Return the array, each element checked; DataError names one that the dtype cannot hold, or a ragged row."""
    import orjson

    nested = orjson.loads(data.text) if data.nested is None else data.nested
    shape = _check_nested(nested, name, "")
    if name == "bool":
        return np.array(nested, bool)
    return round_to(np.array(nested, float), name) if _is_float_name(name) else _exact_integers(data.text, name, shape)


def _correct_double_rounding(doubles: Array, text: bytes, name: str) -> Array:
    """Return the doubles moved by one unit toward their decimals, where rounding twice could differ from once.

    It does where a double is halfway between two values of the narrow dtype and the decimal is not.
    """
    flat = doubles.reshape(-1)
    halfway = (flat.view(np.uint64) & np.uint64((1 << 52 - PRECISION[name]) - 1)) == 0
    places = np.flatnonzero(halfway)
    places = places[round_to(flat[places], name).astype(np.float64) != flat[places]]
    places = places[np.isfinite(flat[places])]
    if places.size:
        decimals = _parse_decimals(text)
        for place in places.tolist():
            side = decimals[place].compare(type(decimals[place])(float(flat[place])))
            flat[place] = np.nextafter(flat[place], math.inf * int(side)) if side else flat[place]
    return doubles


def _parse_decimals(text: bytes) -> list[Any]:
    """Return the numbers of a text exactly."""
    from decimal import Decimal

    return [Decimal(number.decode().strip('"')) for number in ELEMENT.findall(text)]


def _exact_integers(text: bytes, name: str, shape: tuple[int, ...]) -> Array:
    """Return integers that doubles cannot hold, or that are written as 1.0 or 1e3."""
    low, high = integer_bounds(name)
    values = _parse_decimals(text)
    for index, value in enumerate(values):
        if not low <= value <= high or value != value.to_integral_value():
            raise out_of_range("".join(f"[{i}]" for i in np.unravel_index(index, shape)), value, name)
    return np.array([int(value) for value in values], dtype_of(name)).reshape(shape)


def _check_nested(value: Any, name: str, path: str) -> tuple[int, ...]:
    """Return the shape of nested lists; DataError for an element that the dtype cannot hold, or a ragged row."""
    if not isinstance(value, list):
        _check_element(value, name, path)
        return ()
    shapes = [_check_nested(item, name, f"{path}[{index}]") for index, item in enumerate(value)]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise _ragged_error(path, index, shapes[0], shape)
    return (len(value), *(shapes[0] if shapes else ()))


def _ragged_error(path: str, index: int, first: tuple[int, ...], other: tuple[int, ...]) -> DataError:
    """Return the error for a row that is not as long as the first."""
    for depth, (expected, got) in enumerate(zip(first, other, strict=False)):
        if expected != got:
            rows = [f"{path}[{row}]" + "[0]" * depth for row in (index, 0)]
            rows = rows if path or depth else [str(index), "0"]
            return DataError(f"row {rows[0]} has {counted(got, 'element')}, row {rows[1]} has {expected}")
    depths = [f"nested {len(shape)} deep" if shape else "a number" for shape in (other, first)]
    return DataError(f"element {path}[{index}] is {depths[0]}, element {path}[0] is {depths[1]}")


def _check_element(value: Any, name: str, path: str) -> None:
    place = f"element {path}" if path else "the value"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "bool":
        if not isinstance(value, bool):
            raise DataError(f"{place} is {_format_value(value)}, expected true or false")
    elif not is_number and (value not in NON_FINITE or not _is_float_name(name)):
        raise DataError(f"{place} is {_format_value(value)}, expected a number")
    elif _is_float_name(name):
        if is_number and np.isinf(round_to(np.array(value, np.float64), name)):
            raise out_of_range(path, _format_value(value), name)
    elif value != int(value):
        raise DataError(f"{place} is {_format_value(value)}, expected a whole number for {name}")
    elif isinstance(value, int) and not integer_bounds(name)[0] <= value <= integer_bounds(name)[1]:
        raise out_of_range(path, _format_value(value), name)


def _is_float_name(name: str) -> bool:
    return name == "float64" or name in PRECISION


def _format_value(value: object) -> str:
    """Return a JSON value for an error message."""
    if isinstance(value, dict):
        return "an object"
    text = dumps(value).decode() if not isinstance(value, int) or isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
