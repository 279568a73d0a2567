"""safetensors: a JSON header, then the bytes of each tensor; all else of a record is in `__metadata__`."""

import math
from collections.abc import Iterator
from typing import Any

from attnkit.errors import DataError
from attnkit.tensors.dtypes import byte_count, byte_view, checked_shape, dtype_of, from_bytes, name_of, plain
from attnkit.tensors.files import Buffer, Source, blamed, within
from attnkit.tensors.meta import described, dumps, loads, parts
from attnkit.tensors.record import Array, Record
from attnkit.tensors.syntax import Parser

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
CODES = {name: code for code, name in DTYPES.items()}
METADATA = "__metadata__"
LONGEST_HEADER = 100_000_000  # the limit of the safetensors library


def read(source: Source) -> Iterator[Record]:
    """The one record of a safetensors file, its tensors in the order of the header.

    >>> import numpy as np
    >>> [r["x"].tolist() for r in read(Source.of(b"".join(encode(Record({"x": np.arange(3)})))))]
    [[0, 1, 2]]
    """
    with blamed(source.name):
        header = _read_header(source)
        metadata = _checked_metadata(header.pop(METADATA, {}))
        if not header:
            raise DataError("no tensors in this safetensors file")
        order = _laid_out({name: _checked_entry(name, entry) for name, entry in header.items()})
        arrays = {name: _read_tensor(source, name, header[name]) for name in order}
        if rest := len(source.peek(1 << 16)):
            raise DataError(f"{rest if rest < 1 << 16 else 'more than 65535'} bytes after the last tensor")
        record = Record({name: arrays[name] for name in header})
        yield described(record, loads(metadata["attnkit"].encode()) if "attnkit" in metadata else {})


def encode(record: Record) -> list[Buffer]:
    """A record as safetensors, its tensors in order and not copied.

    >>> import numpy as np
    >>> len(encode(Record({"x": np.eye(2), "mask": np.eye(2) > 0})))
    3
    """
    if METADATA in record:
        raise DataError(f"a safetensors file cannot hold a tensor called {METADATA}")
    header: dict[str, Any] = {METADATA: {"attnkit": dumps(parts(record)).decode()}}
    at = 0
    arrays = [plain(array) for array in record.tensors.values()]
    for name, array in zip(record.tensors, arrays, strict=True):
        entry = {"dtype": CODES[name_of(array.dtype)], "shape": array.shape}
        header[name] = {**entry, "data_offsets": (at, at + array.nbytes)}
        at += array.nbytes
    text = dumps(header)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *map(byte_view, arrays)]


class _Header(Parser):
    """A JSON text whose errors name the byte of the file."""

    def where(self, at: int) -> str:
        return f"bad safetensors header at byte {at + 8}"


def _read_header(source: Source) -> dict[str, Any]:
    start = source.read(8)
    if len(start) < 8:
        raise DataError(f"truncated header: expected 8 bytes, got {len(start)}")
    length = int.from_bytes(start, "little")
    if length > LONGEST_HEADER:
        raise DataError(f"header too large: {length} bytes (limit {LONGEST_HEADER})")
    text = source.read(length)
    if len(text) < length:
        raise DataError(f"truncated header: expected {8 + length} bytes, got {8 + len(text)}")
    parser = _Header(text=text)
    if text[:1] != b"{":
        raise parser.unexpected("'{'")
    header: dict[str, Any] = parser.value()
    parser.finish()
    return header


def _checked_metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise DataError(f"{METADATA} does not map names to strings")
    return value


def _checked_entry(name: str, entry: object) -> tuple[int, int]:
    """The span of a tensor, once the entry is known to be one."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise DataError(f"tensor {name!r}: expected the keys dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise DataError(f"tensor {name!r}: dtype {str(code)[:40]} not supported (use {', '.join(DTYPES)})")
    if not isinstance(shape, list):
        raise DataError(f"tensor {name!r}: shape is not a list")
    whole = isinstance(offsets, list) and all(type(at) is int and at >= 0 for at in offsets)
    if not whole or len(offsets) != 2:
        raise DataError(f"tensor {name!r}: data_offsets are not two whole numbers")
    with within(f"tensor {name!r}"):
        sizes = checked_shape(shape)
    begin, end = offsets
    need = math.prod(sizes) * dtype_of(DTYPES[code]).itemsize
    if end < begin:
        raise DataError(f"tensor {name!r}: offsets ({begin},{end}) end before they begin")
    if end - begin != need:
        raise DataError(f"tensor {name!r}: shape {list(sizes)} {code} needs {need} bytes, has {end - begin}")
    with within(f"tensor {name!r}"):
        byte_count(sizes, dtype_of(DTYPES[code]).itemsize)
    return begin, end


def _laid_out(spans: dict[str, tuple[int, int]]) -> list[str]:
    """The tensors in the order of their bytes; DataError for holes and overlaps."""
    order, reached = sorted(spans, key=lambda name: spans[name]), 0
    for name in order:
        begin, end = spans[name]
        if begin != reached:
            fault = f"leave a hole at {reached}" if begin > reached else "overlap another tensor"
            raise DataError(f"tensor {name!r}: offsets ({begin},{end}) {fault}")
        reached = end
    return order


def _read_tensor(source: Source, name: str, entry: dict[str, Any]) -> Array:
    begin, end = entry["data_offsets"]
    data = source.take(end - begin)
    if data.size < end - begin:
        raise DataError(f"truncated data: tensor {name!r} needs {end - begin} bytes, got {data.size}")
    return from_bytes(data, dtype_of(DTYPES[entry["dtype"]]), checked_shape(entry["shape"]))
