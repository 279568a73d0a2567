"""JSON: a record a document, documents back to back; numbers in the shortest text that keeps their bits."""

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.tensors.dtypes import (
    NAMES,
    PRECISION,
    bounds,
    byte_count,
    checked_shape,
    dtype_of,
    is_float,
    name_of,
    narrow,
    outside,
    plain,
    unsupported,
)
from attnkit.tensors.files import Buffer, Source, blamed, within
from attnkit.tensors.meta import axis_names, checked_history, checked_labels, dumps, known
from attnkit.tensors.record import Array, Record
from attnkit.tensors.syntax import DEEPEST, Parser

RECORD_KEYS = ("tensors", "labels", "history")
TENSOR_KEYS = ("dtype", "shape", "axes", "data")
NON_FINITE = ("NaN", "Infinity", "-Infinity")

NUMBERS = re.compile(rb'(?:[-+0-9.eE,\[\] \t\r\n]++|"(?:NaN|-?Infinity)")*+')
BOOLEANS = re.compile(rb"(?:[,\[\] \t\r\n]++|true|false)*+")
WORDS = {NUMBERS: (b'"NaN"', b'"Infinity"', b'"-Infinity"'), BOOLEANS: (b"true", b"false")}
ELEMENT = re.compile(rb'[-0-9][-+0-9.eE]*|"[^"]*"')
FIRST_WINDOW, WIDEST_WINDOW = 1 << 12, 1 << 20


class Data(NamedTuple):
    """A tensor's numbers before its dtype is known.

    nested   what they are in Python
    text     what they are in the document
    kind     "number" (or one of the three strings), "boolean", or "mixed" for all else
    """

    nested: Any
    text: bytes
    kind: str


def read(source: Source) -> Iterator[Record]:
    """The records of a stream of JSON documents, each as soon as its last byte is there.

    >>> [r["x"].tolist() for r in read(Source.of(b"[[1, 2]] 3.5"))]
    [[[1, 2]], 3.5]
    """
    with blamed(source.name):
        reader = _Reader(source.available)
        reader.skip_mark()
        if not reader.next():
            raise reader.unexpected("a JSON document")
        while reader.next():
            reader.forget()
            yield reader.document()


def encode(record: Record, indent: bool = False) -> list[Buffer]:
    """A record as one line of JSON, or indented with a matrix row a line.

    >>> b"".join(encode(Record({"x": np.array([0.1, np.inf], np.float32)})))
    b'{"tensors":{"x":{"dtype":"float32","shape":[2],"data":[0.1,"Infinity"]}},"labels":{},"history":[]}\\n'
    """
    tensors = {name: _tensor_text(record, name, indent) for name in record.tensors}
    labels = {axis: dumps(names) for axis, names in record.labels.items()}
    history = [dumps(entry) for entry in record.history]
    parts = {
        "tensors": _object(tensors, 1 if indent else None),
        "labels": _object(labels, 1 if indent else None),
        "history": _block(b"[", history, b"]", 1 if indent else None),
    }
    return [_object(parts, 0 if indent else None) + b"\n"]


def canonical(array: Array) -> Array:
    """The array as JSON gives it back: every NaN is the positive quiet one.

    >>> np.signbit(canonical(np.array([-np.nan]))).tolist()
    [False]
    """
    array = plain(array)
    if not is_float(array.dtype):
        return array
    result = array.copy()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        result[np.isnan(result)] = np.nan
    return result


def _tensor_text(record: Record, name: str, indent: bool) -> bytes:
    array = plain(record[name])
    parts = {"dtype": dumps(name_of(array.dtype)), "shape": dumps(array.shape)}
    if name in record.axes:
        parts["axes"] = dumps(record.axes[name])
    text = _numbers(array)
    if indent and array.ndim > 1 and array.size:
        rows = text[1:-1].replace(b",", b", ").split(b"], [")
        text = _block(b"[", [b"], [".join(rows)], b"]", 3).replace(b"], [", b"],\n" + b"  " * 4 + b"[")
    parts["data"] = text
    return _object(parts, 2 if indent else None)


def _object(parts: dict[str, bytes], depth: int | None) -> bytes:
    colon = b":" if depth is None else b": "
    return _block(b"{", [dumps(key) + colon + text for key, text in parts.items()], b"}", depth)


def _block(opening: bytes, items: list[bytes], closing: bytes, depth: int | None) -> bytes:
    """Items between brackets, on one line, or each on its own where the depth of the brackets is given."""
    if depth is None or not items:
        return opening + b",".join(items) + closing
    line = b"\n" + b"  " * (depth + 1)
    return opening + line + (b"," + line).join(items) + line[:-2] + closing


def _numbers(array: Array) -> bytes:
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


class _Reader(Parser):
    """The parser, and what a record is in JSON."""

    def skip_mark(self) -> None:
        """Skips one byte order mark."""
        mark = b"\xef\xbb\xbf"
        while len(self.text) < 3 and mark.startswith(self.text) and self.grow():
            pass
        if self.text.startswith(mark):
            del self.text[:3]

    def document(self) -> Record:
        """The record at hand, or the bare tensor."""
        if self.next() != "{":
            return Record({"x": _to_array(self._data(), None)})
        parts: dict[str, Any] = {}
        for key in self.members():
            known([key], RECORD_KEYS)
            parts[key] = self._tensors() if key == "tensors" else self.value()
        if not parts.get("tensors"):
            raise DataError(f'key "tensors" is {"empty" if "tensors" in parts else "missing"}')
        tensors = {name: array for name, (array, _) in parts["tensors"].items()}
        axes = {name: names for name, (_, names) in parts["tensors"].items() if names is not None}
        labels, history = checked_labels(parts.get("labels", {})), checked_history(parts.get("history", []))
        return Record(tensors, axes, labels, history).checked()

    def _tensors(self) -> dict[str, tuple[Array, tuple[str, ...] | None]]:
        return {name: self._tensor(name) for name in self.members()}

    def _tensor(self, name: str) -> tuple[Array, tuple[str, ...] | None]:
        parts: dict[str, Any] = {}
        if self.next() != "{":
            parts["data"] = self._data()
        else:
            for key in self.members():
                known([key], TENSOR_KEYS)
                parts[key] = self._data() if key == "data" else self.value()
        with within(f'tensor "{name[:40]}"'):
            if "data" not in parts:
                raise DataError('key "data" is missing')
            array = _to_array(parts["data"], _checked_dtype(parts.get("dtype", "")))
            axes = axis_names(parts["axes"]) if "axes" in parts else None
            return _shaped(array, parts["shape"]) if "shape" in parts else array, axes

    def _data(self) -> Data:
        """The nested list or the scalar at hand; regular ones at the speed of C."""
        import orjson

        regular = {NUMBERS: "number", BOOLEANS: "boolean"} if self.next() == "[" else {}
        for pattern, kind in regular.items():
            if end := self._extent(pattern):
                text = bytes(memoryview(self.text)[self.at : end])
                with contextlib.suppress(orjson.JSONDecodeError):  # the slow way says where
                    nested = orjson.loads(text)
                    self.at = end
                    return Data(nested, text, kind)
        self.next()
        start = self.at
        nested = self.value()
        return Data(nested, bytes(self.text[start : self.at]), _kind(nested))

    def _extent(self, pattern: re.Pattern[bytes]) -> int:
        """Where the array at hand ends; 0 where it holds anything but what the pattern allows."""
        at, depth, window = self.at, 0, FIRST_WINDOW
        while True:
            stop = min(at + window, len(self.text))
            found = pattern.match(self.text, at, stop)
            end = found.end() if found else at
            depth, closed = _balance(self.text, at, end, depth)
            rest = bytes(self.text[end : end + 11])
            cut = any(rest.startswith(word) or word.startswith(rest) for word in WORDS[pattern])
            if closed or depth > DEEPEST or (end < stop and not cut):
                return closed
            if stop == len(self.text) and not self.grow():
                return 0
            at, window = end, min(2 * window, WIDEST_WINDOW)


def _balance(text: bytearray, start: int, end: int, depth: int) -> tuple[int, int]:
    """The depth of brackets after a piece of text, and where in it the depth fell to 0 (0: nowhere)."""
    if start == end:
        return depth, 0
    piece = np.frombuffer(text, np.uint8, end - start, start)
    places = np.flatnonzero((piece & 0xF9) == 0x59)  # [ and ]: of all that may occur, only these
    depths = depth + np.cumsum(92 - piece[places].astype(np.int64))
    if not places.size or depths.max() > DEEPEST:
        return (DEEPEST + 1 if places.size else depth), 0
    closed = np.flatnonzero(depths == 0)
    return int(depths[-1]), start + int(places[closed[0]]) + 1 if closed.size else 0


def _kind(value: object) -> str:
    """What a scalar is; "mixed" for lists that are neither all numbers nor all booleans."""
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) or value in NON_FINITE else "mixed"


def _checked_dtype(name: object) -> str | None:
    if name != "" and (not isinstance(name, str) or name not in NAMES):
        raise unsupported(str(name)[:40])
    return str(name) or None


def _to_array(data: Data, dtype: str | None) -> Array:
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


def _shaped(array: Array, shape: object) -> Array:
    """The array, once it is known to have the declared shape (lists cannot tell (0,) from (0, 5))."""
    if not isinstance(shape, list):
        raise DataError('key "shape" is not a list')
    sizes = checked_shape(shape)
    byte_count(sizes, array.itemsize)
    visible = sizes[: sizes.index(0) + 1] if 0 in sizes else sizes
    if array.shape != visible:
        raise DataError(f'key "shape" says {sizes}, the data are {array.shape}')
    return array.reshape(sizes)


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
