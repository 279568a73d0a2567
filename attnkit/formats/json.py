"""JSON: read and write one document per record, several in a row; numbers round-trip exactly."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.dtypes import (
    LARGEST_EMPTY,
    NAMES,
    byte_count,
    check_shape,
    is_float_dtype,
    name_of,
    to_contiguous,
    unsupported_dtype,
)
from attnkit.formats.json_numbers import Elements, format_array, parse_any, parse_regular, parse_short, to_array
from attnkit.formats.json_parser import DEPTH_LIMIT, JSONParser
from attnkit.formats.metadata import check_axis_names, check_history, check_keys, check_labels, dumps
from attnkit.formats.streams import Buffer, Source, name_errors, prefix_errors
from attnkit.record import Array, Record, Tensor

RECORD_KEYS = ("tensors", "labels", "history")
TENSOR_KEYS = ("dtype", "shape", "axes", "data")

NUMBERS = re.compile(rb'(?:[-+0-9.eE,\[\] \t\r\n]++|"(?:NaN|-?Infinity)")*+')
BOOLEANS = re.compile(rb"(?:[,\[\] \t\r\n]++|true|false)*+")
KINDS = {NUMBERS: "number", BOOLEANS: "boolean"}
WORDS = {NUMBERS: (b'"NaN"', b'"Infinity"', b'"-Infinity"'), BOOLEANS: (b"true", b"false")}
SHORT = 256  # bytes of an array that are first tried as a whole
FIRST_WINDOW, WIDEST_WINDOW = 1 << 12, 1 << 20


def read(source: Source, maps: bool = False) -> Iterator[Record]:
    """Yield the records of a stream of JSON documents, each as soon as its last byte has arrived.

    maps  take an object without the keys of a record as a map of names to tensors: {"w": [[1, 0], [0, 1]]}

    >>> [r["x"].tolist() for r in read(Source.of(b"[[1, 2]] 3.5"))]
    [[[1, 2]], 3.5]
    """
    with name_errors(source.name):
        reader = _Reader(source.read_available)
        reader.takes_maps = maps
        reader.skip_byte_order_mark()
        if not reader.next():
            raise reader.unexpected("a JSON document")
        while reader.next():
            reader.discard_parsed()
            yield reader.document()


def encode(record: Record, indent: bool = False) -> list[Buffer]:
    """Return a record as one line of JSON, or indented with one matrix row per line.

    >>> b"".join(encode(Record({"x": np.array([0.1, np.inf], np.float32)})))
    b'{"tensors":{"x":{"dtype":"float32","shape":[2],"data":[0.1,"Infinity"]}},"labels":{},"history":[]}\\n'
    """
    tensors = {name: _tensor_text(one, indent) for name, one in record.tensors.items()}
    labels = {axis: dumps(names) for axis, names in record.labels.items()}
    history = [dumps(entry) for entry in record.history]
    parts = {
        "tensors": _object(tensors, 1 if indent else None),
        "labels": _object(labels, 1 if indent else None),
        "history": _block(b"[", history, b"]", 1 if indent else None),
    }
    return [_object(parts, 0 if indent else None) + b"\n"]


def normalize_nan(array: Array) -> Array:
    """Return the array as it is read back from JSON: every NaN is the positive quiet one.

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


def _tensor_text(tensor: Tensor, indent: bool) -> bytes:
    array = to_contiguous(tensor.array)
    parts = {"dtype": dumps(name_of(array.dtype)), "shape": dumps(array.shape)}
    if tensor.axes is not None:
        parts["axes"] = dumps(tensor.axes)
    text = format_array(array)
    if indent and array.ndim > 1 and array.size:
        rows = text[1:-1].replace(b",", b", ").split(b"], [")
        text = _block(b"[", [b"], [".join(rows)], b"]", 3).replace(b"], [", b"],\n" + b"  " * 4 + b"[")
    parts["data"] = text
    return _object(parts, 2 if indent else None)


def _object(parts: dict[str, bytes], depth: int | None) -> bytes:
    colon = b":" if depth is None else b": "
    return _block(b"{", [dumps(key) + colon + text for key, text in parts.items()], b"}", depth)


def _block(opening: bytes, items: list[bytes], closing: bytes, depth: int | None) -> bytes:
    """Return items between brackets, on one line; each on its own line where the depth of the brackets is given."""
    if depth is None or not items:
        return opening + b",".join(items) + closing
    line = b"\n" + b"  " * (depth + 1)
    return opening + line + (b"," + line).join(items) + line[:-2] + closing


class _Reader(JSONParser):
    """A parser of records.

    takes_maps  whether an object of other keys is a map of names to tensors
    """

    takes_maps = False

    def skip_byte_order_mark(self) -> None:
        """Skip one byte order mark."""
        mark = b"\xef\xbb\xbf"
        while len(self.text) < 3 and mark.startswith(self.text) and self.grow():
            pass
        if self.text.startswith(mark):
            del self.text[:3]

    def document(self) -> Record:
        """Return the next record, or the next bare tensor as x."""
        if self.next() != "{":
            return Record({"x": to_array(self._elements(), None)})
        parts: dict[str, Any] = {}
        named: dict[str, Tensor] = {}
        for key in self.members():
            if named or (self.takes_maps and not parts and key not in RECORD_KEYS):
                named[key] = self._tensor(key)
                continue
            self._check_record_key(key)
            parts[key] = self._tensors() if key == "tensors" else self.value()
        if named:
            return Record(named).check()
        if not parts.get("tensors"):
            raise DataError(f'key "tensors" is {"empty" if "tensors" in parts else "missing"}')
        labels, history = check_labels(parts.get("labels", {})), check_history(parts.get("history", []))
        return Record(parts["tensors"], labels, history).check()

    def _check_record_key(self, key: str) -> None:
        if key not in RECORD_KEYS and key.isidentifier() and len(key) < 20 and self.next() == "[":
            known = ", ".join(RECORD_KEYS)
            raise DataError(f'unknown key "{key}" (expected {known}); as a tensor: {{"tensors": {{"{key}": …}}}}')
        check_keys([key], RECORD_KEYS)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: self._tensor(name) for name in self.members()}

    def _tensor(self, name: str) -> Tensor:
        parts: dict[str, Any] = {}
        if self.next() != "{":
            parts["data"] = self._elements()
        else:
            for key in self.members():
                check_keys([key], TENSOR_KEYS)
                parts[key] = self._elements() if key == "data" else self.value()
        with prefix_errors(f'tensor "{name[:40]}"'):
            if "data" not in parts:
                raise DataError('key "data" is missing')
            array = to_array(parts["data"], _check_dtype(parts.get("dtype", "")))
            axes = check_axis_names(parts["axes"]) if "axes" in parts else None
            return Tensor(_reshape(array, parts["shape"]) if "shape" in parts else array, axes)

    def _elements(self) -> Elements:
        """Return the elements of the next nested list or scalar; regular lists are parsed by orjson."""
        reached = self.at
        if self.next() == "[" and (data := parse_short(bytes(self.text[self.at : self.at + SHORT]))):
            self.at += len(data.text)
            return data
        for pattern, kind in KINDS.items() if self.next() == "[" else ():
            end, is_closed = self._find_end(pattern)
            reached = max(reached, end)
            if is_closed and (data := self._array(end, kind)):
                return data
        if reached > self.at:
            self._raise_error(bytes(memoryview(self.text)[self.at : reached]))
        self.next()
        start = self.at
        value = self.value()
        return parse_any(value, bytes(self.text[start : self.at]))

    def _array(self, end: int, kind: str) -> Elements | None:
        """Return the elements of the next array, which ends at `end`; None where it is not JSON."""
        import orjson

        text = bytes(memoryview(self.text)[self.at : end])
        data = parse_regular(text, kind)
        if data is None:
            with contextlib.suppress(orjson.JSONDecodeError):
                data = Elements(text, kind, None, orjson.loads(text))
        self.at = end if data else self.at
        return data

    def _raise_error(self, text: bytes) -> None:
        """Raise the error of the next array, parsed slowly only from shortly before orjson's error."""
        import orjson

        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as error:
            at = error.pos
            for _ in range(2):
                at = max(text.rfind(b"[", 0, max(at, 0)), text.rfind(b",", 0, max(at, 0)))
            if at > 0:
                self.check_rest_of_list(self.at + at + 1, text.count(b"[", 0, at + 1) - text.count(b"]", 0, at + 1))

    def _find_end(self, pattern: re.Pattern[bytes]) -> tuple[int, bool]:
        """Return where the next array ends, or the pattern no longer matches, and whether it is the former."""
        at, depth, window, empty = self.at, 0, FIRST_WINDOW, 0
        while True:
            stop = min(at + window, len(self.text))
            match = pattern.match(self.text, at, stop)
            end = match.end() if match else at
            depth, place, pairs = _count_brackets(self.text, at, end, depth)
            empty += pairs
            if empty > LARGEST_EMPTY:
                raise DataError(f"more than {LARGEST_EMPTY} empty lists")
            rest = bytes(self.text[end : end + 11])
            cut = any(rest.startswith(word) or word.startswith(rest) for word in WORDS[pattern])
            if place or (end < stop and not cut):
                return place or end, bool(place) and not depth
            if stop == len(self.text) and not self.grow():
                return end, False
            at, window = end, min(2 * window, WIDEST_WINDOW)


def _count_brackets(text: bytearray, start: int, end: int, depth: int) -> tuple[int, int, int]:
    """Return the depth of brackets after a piece of text, and how many `[]` are in it.

    Where the depth becomes 0 or too deep: the depth there and that position, otherwise 0 for the position.
    """
    if start == end:
        return depth, 0, 0
    piece = np.frombuffer(text, np.uint8, end - start, start)
    places = np.flatnonzero((piece & 0xF9) == 0x59)  # [ and ]: of all that may occur, only these
    if not places.size:
        return depth, 0, 0
    brackets = piece[places]
    depths = depth + np.cumsum(92 - brackets.astype(np.int64))
    empty = int(np.count_nonzero((np.diff(places) == 1) & (brackets[:-1] < brackets[1:])))
    ends = np.flatnonzero((depths == 0) | (depths > DEPTH_LIMIT))
    if not ends.size:
        return int(depths[-1]), 0, empty
    return int(depths[ends[0]]), start + int(places[ends[0]]) + 1, empty


def _check_dtype(name: object) -> str | None:
    if name != "" and (not isinstance(name, str) or name not in NAMES):
        raise unsupported_dtype(str(name)[:40])
    return str(name) or None


def _reshape(array: Array, shape: object) -> Array:
    """Return the array in its declared shape, checked (lists cannot tell (0,) from (0, 5))."""
    if not isinstance(shape, list):
        raise DataError('key "shape" is not a list')
    sizes = check_shape(shape)
    byte_count(sizes, array.itemsize)
    visible = sizes[: sizes.index(0) + 1] if 0 in sizes else sizes
    if array.shape != visible:
        raise DataError(f'key "shape" is {sizes}, but the data have shape {array.shape}')
    return array.reshape(sizes)
