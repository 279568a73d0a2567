"""safetensors: a JSON header, then the bytes of each tensor."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, escaped
from attnkit.formats.dtypes import (
    NAMES,
    byte_count,
    byte_view,
    check_shape,
    dtype_of,
    from_bytes,
    name_of,
    to_contiguous,
)
from attnkit.formats.json_text import dumps, parse_json
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.metadata import loads, to_metadata, with_metadata
from attnkit.formats.streams import Buffer, Source, name_errors, prefix_errors
from attnkit.records import Array, Record

CODES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
DTYPES = dict(zip(CODES, NAMES, strict=True))
METADATA = "__metadata__"
LONGEST_HEADER = 100_000_000  # the limit of the safetensors library


class Entry(NamedTuple):
    """The dtype and shape of a tensor, and the range of its bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read(source: Source) -> Iterator[Record]:
    """Yield the one record of a safetensors file, in the order of its header.

    >>> import numpy as np
    >>> [r["x"].tolist() for r in read(Source.of(b"".join(encode(Record({"x": np.arange(3)})))))]
    [[0, 1, 2]]
    """
    with name_errors(source.name):
        entries, metadata = _read_header(source)
        arrays = {}
        for name in _sort_by_offset(entries):
            dtype, shape, begin, end = entries[name]
            data = source.read_uint8(end - begin)
            if data.size < end - begin:
                raise DataError(f"truncated data: tensor {name[:100]!r} needs {end - begin} bytes, got {data.size}")
            arrays[name] = from_bytes(data, dtype_of(dtype), shape)
        if source.peek(1):
            raise DataError(f"{source.count_rest()} after the last tensor")
        record = Record({name: arrays[name] for name in entries})
        yield with_metadata(record, loads(metadata["attnkit"].encode()) if "attnkit" in metadata else {})


def map_tensors(path: str) -> Mapped:
    """Map the tensors of a safetensors file, each read when it is needed."""
    with name_errors(path):
        source = Source.of(memoryview(map_file(path)), path)
        entries, _ = _read_header(source)
        last = entries[_sort_by_offset(entries)[-1]]
        data = np.frombuffer(source.read_available(), np.uint8)
        if data.size != last.end:
            problem = "truncated" if data.size < last.end else "too long"
            raise DataError(f"{problem}: the tensors need {last.end} bytes, the file has {data.size}")

        def tensor(name: str) -> Array:
            with prefix_errors(f"tensor {name[:100]!r}"):
                entry = entries[name]
                return from_bytes(data[entry.begin : entry.end], dtype_of(entry.dtype), entry.shape)

        return Mapped(path, {name: (entry.dtype, entry.shape) for name, entry in entries.items()}, tensor)


def encode(record: Record, metadata: Mapping[str, str] | None = None) -> list[Buffer]:
    """A record as safetensors, its tensors in order and not copied.

    >>> import numpy as np
    >>> len(encode(Record({"x": np.eye(2), "mask": np.eye(2) > 0})))
    3
    """
    if METADATA in record:
        raise DataError(f"a safetensors file cannot hold a tensor called {METADATA}")
    header: dict[str, Any] = {METADATA: {"attnkit": dumps(to_metadata(record)).decode(), **(metadata or {})}}
    at = 0
    arrays = [to_contiguous(array) for array in record.arrays().values()]
    for name, array in zip(record.tensors, arrays, strict=True):
        entry = {"dtype": CODES[NAMES.index(name_of(array.dtype))], "shape": array.shape}
        header[name] = {**entry, "data_offsets": (at, at + array.nbytes)}
        at += array.nbytes
    text = dumps(header)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *map(byte_view, arrays)]


def _read_header(source: Source) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a file in the order of its header, and the metadata."""
    start = source.read(8)
    if len(start) < 8:
        raise DataError(f"truncated header: expected 8 bytes, got {len(start)}")
    length = int.from_bytes(start, "little")
    if length > LONGEST_HEADER:
        raise DataError(f"header too large: {length} bytes (limit {LONGEST_HEADER})")
    text = source.read(length)
    if len(text) < length:
        raise DataError(f"truncated header: expected {8 + length} bytes, got {8 + len(text)}")
    with prefix_errors("bad safetensors header"):
        if text[:1] != b"{":
            raise DataError("it does not begin with {")
        header = parse_json(text)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DataError(f"{METADATA} does not map names to strings")
    if not header:
        raise DataError("no tensors in this safetensors file")
    entries = {}
    for name, entry in header.items():
        with prefix_errors(f"tensor {name[:100]!r}"):
            entries[name] = _check_entry(entry)
    return entries, metadata


def _check_entry(entry: object) -> Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise DataError("expected the keys dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise DataError(f"dtype {escaped(str(code)[:40])} not supported (use {', '.join(DTYPES)})")
    if not isinstance(shape, list):
        raise DataError("shape is not a list")
    are_whole = isinstance(offsets, list) and all(type(at) is int and at >= 0 for at in offsets)
    if not are_whole or len(offsets) != 2:
        raise DataError("data_offsets are not two whole numbers")
    sizes, (begin, end), itemsize = check_shape(shape), offsets, dtype_of(DTYPES[code]).itemsize
    size = math.prod(sizes) * itemsize
    if end < begin:
        raise DataError(f"offsets ({begin},{end}) end before they begin")
    if end - begin != size:
        raise DataError(f"shape {list(sizes)} {code} needs {size} bytes, has {end - begin}")
    byte_count(sizes, itemsize)
    return Entry(DTYPES[code], sizes, begin, end)


def _sort_by_offset(entries: dict[str, Entry]) -> list[str]:
    """The tensors in the order of their bytes. DataError for holes and overlaps."""
    order, reached = sorted(entries, key=lambda name: entries[name][2:]), 0
    for name in order:
        begin, end = entries[name][2:]
        if begin != reached:
            problem = f"leave a hole at {reached}" if begin > reached else "overlap another tensor"
            raise DataError(f"tensor {name[:100]!r}: offsets ({begin},{end}) {problem}")
        reached = end
    return order
