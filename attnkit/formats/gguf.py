"""GGUF files of llama.cpp (`.gguf`): metadata, then tensors, maybe quantized.

A tensor is decoded when it is accessed. Source: docs/gguf.md of ggml.
"""

import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from attnkit.errors import DataError, FileError, counted
from attnkit.formats.dtypes import byte_count, check_shape, dtype_of, from_bytes
from attnkit.formats.gguf_blocks import VARIANTS, BlockType, byte_size, decode_blocks, find_type
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.streams import Source, exists, name_errors, prefix_errors
from attnkit.records import Array, Record

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
USUAL_ALIGNMENT, LARGEST_ALIGNMENT = 32, 1 << 16
LONGEST_NAME = 1000
LONGEST_KEY = (1 << 16) - 1
MOST_DIMENSIONS = 4
LEAST_ENTRY, LEAST_TENSOR = 13, 24  # bytes that an entry of the metadata and that of a tensor have at least
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, LIST = 7, 8, 9
SIZE = struct.Struct("<Q")
LONGEST_STRING = 1 << 16  # bytes of a string in a list, such as a token
LONGEST_SHOWN = 40  # characters of a value in an error
SPLIT = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


class Entry(NamedTuple):
    """The type and shape of a tensor, and the range of its bytes after the header."""

    kind: BlockType
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> str:
        return self.kind.dtype or "float32"


class Strings(NamedTuple):
    """A list of strings in the metadata, decoded when it is read."""

    data: memoryview
    begin: int
    size: int

    def read(self) -> list[str]:
        """The strings.

        DataError for one that is not UTF-8, or that is longer than any token.
        """
        at, texts = self.begin, []
        for number in range(self.size):
            (size,) = SIZE.unpack_from(self.data, at)
            if size > LONGEST_STRING:
                raise DataError(f"string {number} has {size} bytes (limit {LONGEST_STRING})")
            end = at + SIZE.size + size
            texts.append(decode_text(bytes(self.data[at + SIZE.size : end]), f"string {number}"))
            at = end
        return texts


Value = TypeVar("Value")


class ValueType(NamedTuple, Generic[Value]):
    """What a reader expects of a value in the metadata.

    expected  the same in words, for errors
    accepts   whether a value is one
    """

    expected: str
    accepts: Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_list(value: Any, kinds: str) -> bool:
    """Whether a value is a list of numbers, whose dtypes have one of these kinds."""
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds


WHOLE: ValueType[int] = ValueType("a whole number from 0", is_whole)
NUMBER: ValueType[float] = ValueType(
    "a finite number", lambda value: type(value) in (int, float) and math.isfinite(value)
)
FLAG: ValueType[bool] = ValueType("true or false", lambda value: type(value) is bool)
TEXT: ValueType[str] = ValueType("a text", lambda value: type(value) is str)
TEXTS: ValueType[Strings] = ValueType("a list of texts", lambda value: isinstance(value, Strings))
WHOLES: ValueType[Array] = ValueType("a list of whole numbers", lambda value: is_list(value, "iu"))
NUMERIC: ValueType[Array] = ValueType("a list of numbers", lambda value: is_list(value, "iuf"))
FLAGS: ValueType[Array] = ValueType("a list of true and false", lambda value: is_list(value, "b"))
POWER: ValueType[int] = ValueType(
    f"a power of two, at most {LARGEST_ALIGNMENT}",
    lambda value: is_whole(value) and value.bit_count() == 1 and value <= LARGEST_ALIGNMENT,
)


class Metadata(Mapping[str, Any]):
    """The metadata of a file by key: a number, text, boolean, array or Strings.

    >>> metadata = Metadata({"n": 7, "heads": np.array([4, 4])}, "m.gguf")
    >>> metadata.read("n", WHOLE), metadata.read("heads", WHOLE), metadata.read("rope", NUMBER, 1.0)
    (7, 4, 1.0)
    >>> metadata.read("n", TEXT)
    Traceback (most recent call last):
    attnkit.errors.DataError: m.gguf: n is 7 (expected a text)
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values_by_key, self.name = values, name

    def __getitem__(self, key: str) -> Any:
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    @overload
    def read(self, key: str, kind: ValueType[Value], default: Value) -> Value: ...

    @overload
    def read(self, key: str, kind: ValueType[Value], default: None = None) -> Value | None: ...

    def read(self, key: str, kind: ValueType[Value], default: Value | None = None) -> Value | None:
        """Read a value of a kind, the default if the file has none.

        A list of equal numbers, one for each layer, is read as that number. DataError for a value of another kind.
        """
        if key not in self:
            return default
        value = self[key]
        is_repeated = isinstance(value, np.ndarray) and value.size and (value == value[0]).all()
        found: list[Value] = [value, value[0].item()] if is_repeated else [value]
        for one in found:
            if kind.accepts(one):
                return one
        raise DataError(f"{key} is {shorten_value(value)} (expected {kind.expected})", self.name)


def shorten_value(value: Any) -> str:
    """A value of the metadata in a few words, for errors.

    >>> shorten_value("a text"), shorten_value(np.arange(9)), shorten_value(1.5)
    ("'a text'", 'a list of 9 numbers', '1.5')
    """
    if isinstance(value, Strings):
        return f"a list of {counted(value.size, 'text')}"
    if isinstance(value, np.ndarray):
        shown = str(value.tolist())
        return shown if len(shown) <= LONGEST_SHOWN // 2 else f"a list of {counted(value.size, 'number')}"
    return repr(value)[:LONGEST_SHOWN]


class Header(NamedTuple):
    """What a file holds before its numbers.

    entries   tensor name -> Entry, in the order of the file
    data      the numbers, as bytes
    """

    metadata: Metadata
    entries: dict[str, Entry]
    data: Array

    def tensor(self, name: str) -> Array:
        """Read a tensor: in place where its type is a dtype, else decoded to float32."""
        with prefix_errors(f"tensor {name[:100]!r}"):
            kind, shape, begin, end = self.entries[name]
            data = self.data[begin:end]
            if kind.dtype:
                return from_bytes(data, dtype_of(kind.dtype), shape)
            numbers = decode_blocks(data, kind).reshape(shape)
            numbers.flags.writeable = False
            return numbers

    def rows(self, name: str, index: Any) -> Array:
        """Read the rows of a tensor that an index selects; no others are decoded."""
        kind, shape, begin, end = self.entries[name]
        if not kind.decode or len(shape) < 2:  # a row is whole blocks
            return np.asarray(self.tensor(name)[index])
        with prefix_errors(f"tensor {name[:100]!r}"):
            blocks = self.data[begin:end].reshape(shape[0], -1)[index]
            return decode_blocks(np.ascontiguousarray(blocks).reshape(-1), kind).reshape(*blocks.shape[:-1], *shape[1:])


class GgufFile(NamedTuple):
    """A mapped file, or all parts of one that is split.

    metadata  of the first part
    parts     the mapped tensors of each
    """

    metadata: Metadata
    parts: list[Mapped]


def read(source: Source) -> Iterator[Record]:
    """Yield the one record of a GGUF file, its tensors in the order of the file."""
    with name_errors(source.name):
        header = read_header(memoryview(source.read_all()), source.name)
        if not header.entries:
            raise DataError("no tensors in this GGUF file")
        yield Record({name: header.tensor(name) for name in header.entries})


def map_tensors(path: str) -> Mapped:
    """Map the tensors of a GGUF file, each read when it is needed."""
    return _map_part(path)[1]


def open_gguf(path: str) -> GgufFile:
    """Map a GGUF file; of the first part of a split one, all parts.

    FileError if a part is missing; DataError if parts do not fit each other.
    """
    metadata, first = _map_part(path)
    count = metadata.read("split.count", WHOLE, 1)
    if count in (0, 1):
        return GgufFile(metadata, [first])
    split = SPLIT.fullmatch(os.path.basename(path))
    if not split or int(split[3]) != count:
        raise DataError(f"one of {count} parts, but its name does not say so: -00001-of-0000N.gguf", path)
    if int(split[2]) != 1:
        beginning = f"{split[1]}-00001-of-{split[3]}.gguf"
        raise DataError(f"part {int(split[2])} of {count}; name the first one, {beginning}", path)
    parts, known = [first], set(first.entries)
    for number in range(2, count + 1):
        part = os.path.join(os.path.dirname(path), f"{split[1]}-{number:05}-of-{split[3]}.gguf")
        if not exists(part):
            raise FileError(f"no such file: part {number} of {count} of {path}", part)
        inner, mapped = _map_part(part)
        if inner.read("split.no", WHOLE) != number - 1 or inner.read("split.count", WHOLE) != count:
            raise DataError(f"not part {number} of {count} of {path}", part)
        if both := next((name for name in mapped.entries if name in known), ""):
            raise DataError(f"tensor {both[:100]!r} occurs in an earlier part too", part)
        known.update(mapped.entries)
        parts.append(mapped)
    total = metadata.read("split.tensors.count", WHOLE, len(known))
    if total != len(known):
        raise DataError(f"the parts have {len(known)} tensors (split.tensors.count is {total})", path)
    return GgufFile(metadata, parts)


def is_gguf(path: str) -> bool:
    """Whether a regular file begins as a GGUF file does."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _map_part(path: str) -> tuple[Metadata, Mapped]:
    with name_errors(path):
        header = read_header(memoryview(map_file(path)), path)
        entries = {name: (entry.dtype, entry.shape) for name, entry in header.entries.items()}
        kinds = {name: entry.kind.name for name, entry in header.entries.items() if not entry.kind.dtype}
        return header.metadata, Mapped(path, entries, header.tensor, kinds, header.rows)


def read_header(data: memoryview, name: str = "") -> Header:
    """Read the metadata and where each tensor is. DataError for whatever does not fit.

    name  that of the file, for errors about its metadata

    >>> import struct
    >>> file = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIB", 1, b"n", 0, 7)
    >>> dict(read_header(memoryview(file)).metadata)
    {'n': 7}
    """
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise DataError("not a GGUF file")
    reader = _Reader(data, len(MAGIC))
    (version,) = reader.numbers("I")
    if version not in VERSIONS:
        is_swapped = int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS
        problem = "big-endian" if is_swapped else f"version {version}"
        raise DataError(f"{problem} not supported (use little-endian files of version 2 or 3)")
    tensors, pairs = reader.numbers("QQ")
    values: dict[str, Any] = {}
    with prefix_errors("metadata"):
        reader.check_count(pairs, LEAST_ENTRY, "keys")
        for _ in range(pairs):
            key = reader.text("a key", LONGEST_KEY)
            if key in values:
                raise DataError(f"key {key[:100]!r} occurs twice")
            with prefix_errors(f"key {key[:100]!r}"):
                values[key] = reader.value()
    metadata = Metadata(values, name)
    alignment = metadata.read(ALIGNMENT, POWER, USUAL_ALIGNMENT)
    reader.check_count(tensors, LEAST_TENSOR, "tensors")
    entries: dict[str, Entry] = {}
    for _ in range(tensors):
        name = reader.text("the name of a tensor", LONGEST_NAME)
        if name in entries:
            raise DataError(f"tensor {name[:100]!r} occurs twice")
        with prefix_errors(f"tensor {name[:100]!r}"):
            entries[name] = reader.entry(alignment)
    start = -(-reader.at // alignment) * alignment
    numbers = np.frombuffer(data, np.uint8)[start:]
    return Header(metadata, _find_ends(entries, len(numbers), alignment), numbers)


class _Reader:
    """The bytes of a header, read from front to back."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def numbers(self, kinds: str) -> tuple[Any, ...]:
        """Numbers of the formats of struct, one after another."""
        layout = struct.Struct(f"<{kinds}")
        self.take(layout.size)
        return layout.unpack_from(self.data, self.at - layout.size)

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise DataError(f"truncated: {size} bytes at {self.at}, {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def check_count(self, count: int, least: int, what: str) -> None:
        """Raise DataError for more items than the bytes that are left can hold."""
        left = len(self.data) - self.at
        if count * least > left:
            raise DataError(f"truncated: {count} {what}, {left} bytes are left")

    def text(self, what: str, longest: int | None = None) -> str:
        (size,) = self.numbers("Q")
        if longest is not None and size > longest:
            raise DataError(f"{what} of {size} bytes (limit {longest})")
        return decode_text(bytes(self.take(size)), what)

    def value(self) -> Any:
        (kind,) = self.numbers("I")
        if kind in NUMBERS:
            return self.numbers(NUMBERS[kind])[0]
        if kind == BOOL:
            return bool(self.flags(1)[0])
        if kind == STRING:
            return self.text("a text")
        if kind != LIST:
            raise DataError(f"type {kind} is not known (expected 0 to 12)")
        inner, count = self.numbers("IQ")
        if inner == STRING:
            return self.strings(count)
        if inner == BOOL:
            return self.flags(count).astype(bool)
        if inner not in NUMBERS:
            raise DataError("a list of lists is not supported" if inner == LIST else f"type {inner} is not known")
        dtype = np.dtype(NUMBERS[inner]).newbyteorder("<")
        return np.frombuffer(bytes(self.take(count * dtype.itemsize)), dtype)

    def flags(self, count: int) -> Array:
        flags = np.frombuffer(self.take(count), np.uint8)
        if flags.size and flags.max() > 1:
            raise DataError(f"boolean {flags.max()} (expected 0 or 1)")
        return flags

    def strings(self, count: int) -> Strings:
        """Skip a list of strings, reading their lengths alone."""
        self.check_count(count, SIZE.size, "strings")
        at, size_at, end = self.at, SIZE.unpack_from, len(self.data)
        try:
            for _ in range(count):
                at += 8 + size_at(self.data, at)[0]
        except (struct.error, OverflowError):
            at = end + 1
        if at > end:
            raise DataError(f"truncated: {count} strings do not end within the file")
        strings, self.at = Strings(self.data, self.at, count), at
        return strings

    def entry(self, alignment: int) -> Entry:
        (count,) = self.numbers("I")
        if count > MOST_DIMENSIONS:
            raise DataError(f"{count} dimensions (limit {MOST_DIMENSIONS})")
        shape = check_shape(self.numbers(f"{count}Q")[::-1])  # the file has the fastest first
        number, begin = self.numbers("IQ")
        kind = find_type(number)
        byte_count(shape, dtype_of(kind.dtype or "float32").itemsize)
        if begin % alignment:
            raise DataError(f"offset {begin} is not a multiple of {alignment}")
        return Entry(kind, shape, begin, begin + byte_size(kind, shape))


def decode_text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not UTF-8 (byte {error.start})") from None


def _find_ends(entries: Mapping[str, Entry], size: int, alignment: int) -> dict[str, Entry]:
    """The entries; those of unknown size end where the next one begins.

    DataError for tensors that overlap or end after the file, and for bytes after the last.
    """
    ordered = sorted(entries, key=lambda name: entries[name][2:])
    followings = dict(zip(ordered, [*(entries[name].begin for name in ordered[1:]), size], strict=False))
    found = {**entries, **_measure_variants(entries, followings, alignment)}
    reached = 0
    for name, following in followings.items():
        kind, _, begin, end = found[name]
        if begin < reached:
            raise DataError(f"tensor {name[:100]!r}: offsets ({begin},{end}) overlap another tensor")
        if not kind.size:
            end = max(begin, following)
            found[name] = found[name]._replace(end=end)
        if end > size:
            raise DataError(f"truncated: tensor {name[:100]!r} needs bytes up to {end}, the file has {size}")
        reached = end
    if size - reached >= alignment and entries:
        raise DataError(f"{counted(size - reached, 'byte')} after the last tensor")
    return found


def _measure_variants(entries: Mapping[str, Entry], followings: Mapping[str, int], alignment: int) -> dict[str, Entry]:
    """The entries of types of two sizes, if one of the sizes alone fits all.

    followings  where the next tensor begins
    """

    def fits(name: str, kind: BlockType) -> bool:
        _, shape, begin, _ = entries[name]
        is_whole_blocks = shape and shape[-1] % kind.numbers == 0
        return bool(is_whole_blocks) and 0 <= followings[name] - begin - byte_size(kind, shape) < alignment

    measured: dict[str, Entry] = {}
    for type_name, variants in VARIANTS.items():
        these = [name for name, entry in entries.items() if entry.kind.name == type_name]
        fitting = [kind for kind in variants if all(fits(name, kind) for name in these)]
        if these and len(fitting) == 1:
            sizes = {name: byte_size(fitting[0], entries[name].shape) for name in these}
            ends = {name: entries[name].begin + size for name, size in sizes.items()}
            measured |= {name: entries[name]._replace(kind=fitting[0], end=ends[name]) for name in these}
    return measured
