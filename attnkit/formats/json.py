"""JSON: a record a document, documents back to back; numbers in the shortest text that keeps their bits."""

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
    checked_shape,
    is_float,
    name_of,
    to_contiguous,
    unsupported,
)
from attnkit.formats.json_numbers import Data, parse_regular, parse_short, parsed, to_array, to_text
from attnkit.formats.json_parser import DEEPEST, JSONParser
from attnkit.formats.metadata import axis_names, check_keys, checked_history, checked_labels, dumps
from attnkit.formats.streams import Buffer, Source, name_errors, prefix_errors
from attnkit.record import Array, Record

RECORD_KEYS = ("tensors", "labels", "history")
TENSOR_KEYS = ("dtype", "shape", "axes", "data")

NUMBERS = re.compile(rb'(?:[-+0-9.eE,\[\] \t\r\n]++|"(?:NaN|-?Infinity)")*+')
BOOLEANS = re.compile(rb"(?:[,\[\] \t\r\n]++|true|false)*+")
KINDS = {NUMBERS: "number", BOOLEANS: "boolean"}
WORDS = {NUMBERS: (b'"NaN"', b'"Infinity"', b'"-Infinity"'), BOOLEANS: (b"true", b"false")}
SHORT = 256  # bytes of an array that are first tried as a whole
FIRST_WINDOW, WIDEST_WINDOW = 1 << 12, 1 << 20


def read(source: Source) -> Iterator[Record]:
    """The records of a stream of JSON documents, each as soon as its last byte is there.

    >>> [r["x"].tolist() for r in read(Source.of(b"[[1, 2]] 3.5"))]
    [[[1, 2]], 3.5]
    """
    with name_errors(source.name):
        reader = _Reader(source.read_available)
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
    array = to_contiguous(array)
    if not is_float(array.dtype):
        return array
    result = array.copy()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        result[np.isnan(result)] = np.nan
    return result


def _tensor_text(record: Record, name: str, indent: bool) -> bytes:
    array = to_contiguous(record[name])
    parts = {"dtype": dumps(name_of(array.dtype)), "shape": dumps(array.shape)}
    if name in record.axes:
        parts["axes"] = dumps(record.axes[name])
    text = to_text(array)
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


class _Reader(JSONParser):
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
            return Record({"x": to_array(self._data(), None)})
        parts: dict[str, Any] = {}
        for key in self.members():
            check_keys([key], RECORD_KEYS)
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
                check_keys([key], TENSOR_KEYS)
                parts[key] = self._data() if key == "data" else self.value()
        with prefix_errors(f'tensor "{name[:40]}"'):
            if "data" not in parts:
                raise DataError('key "data" is missing')
            array = to_array(parts["data"], _checked_dtype(parts.get("dtype", "")))
            axes = axis_names(parts["axes"]) if "axes" in parts else None
            return _shaped(array, parts["shape"]) if "shape" in parts else array, axes

    def _data(self) -> Data:
        """The nested list or the scalar at hand; regular ones at the speed of C."""
        reached = self.at
        if self.next() == "[" and (data := parse_short(bytes(self.text[self.at : self.at + SHORT]))):
            self.at += len(data.text)
            return data
        for pattern, kind in KINDS.items() if self.next() == "[" else ():
            end, is_closed = self._extent(pattern)
            reached = max(reached, end)
            if is_closed and (data := self._array(end, kind)):
                return data
        if reached > self.at:
            self._blame(bytes(memoryview(self.text)[self.at : reached]))
        self.next()
        start = self.at
        value = self.value()
        return parsed(value, bytes(self.text[start : self.at]))

    def _array(self, end: int, kind: str) -> Data | None:
        """The array at hand, which ends there; None where it is not JSON."""
        import orjson

        text = bytes(memoryview(self.text)[self.at : end])
        data = parse_regular(text, kind)
        if data is None:
            with contextlib.suppress(orjson.JSONDecodeError):
                data = Data(text, kind, None, orjson.loads(text))
        self.at = end if data else self.at
        return data

    def _blame(self, text: bytes) -> None:
        """Raise the error of the array at hand, looking only at the end of the part of it that is JSON."""
        import orjson

        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as error:
            at = error.pos
            for _ in range(2):
                at = max(text.rfind(b"[", 0, max(at, 0)), text.rfind(b",", 0, max(at, 0)))
            if at > 0:
                self.skim(self.at + at + 1, text.count(b"[", 0, at + 1) - text.count(b"]", 0, at + 1))

    def _extent(self, pattern: re.Pattern[bytes]) -> tuple[int, bool]:
        """Where the array at hand ends, or as far as the pattern allows, and which of the two."""
        at, depth, window, empty = self.at, 0, FIRST_WINDOW, 0
        while True:
            stop = min(at + window, len(self.text))
            found = pattern.match(self.text, at, stop)
            end = found.end() if found else at
            depth, place, pairs = _balance(self.text, at, end, depth)
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


def _balance(text: bytearray, start: int, end: int, depth: int) -> tuple[int, int, int]:
    """The depth of brackets after a piece of text, or where it first is 0 or too deep; that place, else 0; the `[]`."""
    if start == end:
        return depth, 0, 0
    piece = np.frombuffer(text, np.uint8, end - start, start)
    places = np.flatnonzero((piece & 0xF9) == 0x59)  # [ and ]: of all that may occur, only these
    if not places.size:
        return depth, 0, 0
    brackets = piece[places]
    depths = depth + np.cumsum(92 - brackets.astype(np.int64))
    empty = int(np.count_nonzero((np.diff(places) == 1) & (brackets[:-1] < brackets[1:])))
    ends = np.flatnonzero((depths == 0) | (depths > DEEPEST))
    if not ends.size:
        return int(depths[-1]), 0, empty
    return int(depths[ends[0]]), start + int(places[ends[0]]) + 1, empty


def _checked_dtype(name: object) -> str | None:
    if name != "" and (not isinstance(name, str) or name not in NAMES):
        raise unsupported(str(name)[:40])
    return str(name) or None


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
