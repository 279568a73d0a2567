"""NPY: bare arrays, several in a row as a stream, without axes and labels."""

import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.dtypes import (
    byte_count,
    byte_view,
    check_shape,
    dtype_of,
    from_bytes,
    name_of,
    to_contiguous,
    unsupported_dtype,
)
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.streams import Buffer, Source, name_errors
from attnkit.records import Array, Record, join_names

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 16
GROWTH = 21  # NumPy leaves room for the first dimension to grow to so many digits

QUOTED = r"""'[^'\\]*'|"[^"\\]*\""""
FIELD = re.compile(rf"\s*({QUOTED})\s*:\s*({QUOTED}|\([^()]*\)|\[[^\[\]]*\]|[\w.+-]+)\s*(?:,\s*|\Z)")
STRUCTURED = re.compile(r"""['"]descr['"]\s*:\s*[\[(]""")
OBJECT = re.compile(r"""['"][<>=|]?O[0-9]*['"]""")
DESCR = re.compile(r"([<>=|]?)(f[248]|[iu][1248]|b1)")


def read(source: Source, bfloat16: bool = False) -> Iterator[Record]:
    """Yield the arrays of an NPY stream, each as a record with only x.

    bfloat16  read 2-byte void elements, as which NumPy saves bfloat16, as bfloat16

    >>> [r["x"].tolist() for r in read(Source.of(b"".join(encode(Record({"x": np.arange(2)})) * 2)))]
    [[0, 1], [0, 1]]
    """
    with name_errors(source.name):
        while True:
            yield Record({"x": read_array(source, bfloat16)})
            rest = source.peek(len(MAGIC))
            if not rest:
                return
            if rest != MAGIC:
                raise trailing(source)


def map_tensors(path: str, bfloat16: bool = False) -> Mapped:
    """Map the array of an NPY file, `x`.

    bfloat16  read 2-byte void elements as bfloat16
    """
    with name_errors(path):
        data = memoryview(map_file(path))
        if (size := length(Source.of(data))) != len(data):
            problem = "truncated" if size > len(data) else "too long"
            raise DataError(f"{problem}: the array needs {size} bytes, the file has {len(data)}")
        dtype, shape, _ = read_header(Source.of(data), bfloat16)
        return Mapped(path, {"x": (name_of(dtype), shape)}, lambda name: read_array(Source.of(data), bfloat16))


def encode(record: Record) -> list[Buffer]:
    """x of a record as NPY, the same bytes as `numpy.save`.

    >>> len(b"".join(encode(Record({"x": np.zeros(3), "ids": np.arange(3)}))))
    152
    """
    return encode_array(only_tensor(record))


def only_tensor(record: Record) -> Array:
    """x of a record, or its only tensor. DataError names what would be lost."""
    if len(record) == 1:
        return record[next(iter(record))]
    if "x" not in record:
        raise DataError(
            f"npy holds one tensor, but the record has {join_names(record.tensors)}; use -f npz or --only NAME"
        )
    if record.required:
        raise DataError(f"npy holds only x and would lose {join_names(record.required)}; use -f npz")
    return record["x"]


def encode_array(array: Array) -> list[Buffer]:
    """An array as NPY version 1.0, its data not copied."""
    array = to_contiguous(array)
    name = name_of(array.dtype)
    descr = "<V2" if name == "bfloat16" else array.dtype.str
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {array.shape!r}, }}"
    header += " " * (GROWTH - len(repr(array.shape[0])) if array.shape else 0)
    header += " " * (64 - (len(MAGIC) + 4 + len(header) + 1) % 64) + "\n"
    return [MAGIC + b"\x01\x00" + struct.pack("<H", len(header)) + header.encode(), byte_view(array)]


def read_array(source: Source, bfloat16: bool = False) -> Array:
    dtype, shape, fortran = read_header(source, bfloat16)
    count = byte_count(shape, dtype.itemsize)
    data = source.read_uint8(count)
    if data.size < count:
        raise DataError(f"truncated data: shape {shape} {dtype.name} needs {count} bytes, got {data.size}")
    return from_bytes(data, dtype, shape, fortran)


def length(source: Source) -> int:
    """The size in bytes of the array at the front of a source, by its header.

    >>> length(Source.of(b"".join(encode_array(np.zeros(3))) + b"more"))
    152
    """
    start = source.peek(12)
    before = 12 if start[6:7] > b"\x01" else 10
    header = min(int.from_bytes(start[8:before], "little"), LONGEST_HEADER)
    dtype, shape, _ = read_header(Source.of(source.peek(before + header)), bfloat16=True)
    return before + header + byte_count(shape, dtype.itemsize)


def trailing(source: Source) -> DataError:
    """The error for bytes after an array that are not another one."""
    count = source.count_rest()
    return DataError(f"{count} after the array {'is' if count == '1 byte' else 'are'} not a tensor")


def read_header(source: Source, bfloat16: bool) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """The dtype and the shape of an array, and whether it is in Fortran order."""
    start = _exactly(source, 8, 0, 10)
    if start[:6] != MAGIC:
        raise DataError("not an NPY array")
    major, minor = start[6:]
    if (major, minor) not in ((1, 0), (2, 0), (3, 0)):
        raise DataError(f"unsupported NPY version {major}.{minor}")
    width = 2 if major == 1 else 4
    length = int.from_bytes(_exactly(source, width, 8, 8 + width), "little")
    if length > LONGEST_HEADER:
        raise DataError(f"NPY header too large: {length} bytes (limit {LONGEST_HEADER})")
    raw = _exactly(source, length, 8 + width, 8 + width + length)
    text = raw.decode("utf-8" if major == 3 else "latin-1", "replace")
    if STRUCTURED.search(text):
        raise _bad_descr(text, "structured")
    fields = _fields(text.strip())
    if set(fields) != {"descr", "fortran_order", "shape"} or fields["descr"][0] not in "'\"":
        raise _bad_header(text)
    if fields["fortran_order"] not in ("True", "False"):
        raise _bad_header(text)
    dtype = _parse_descr(fields["descr"], bfloat16)
    return dtype, _parse_shape(fields["shape"], text), fields["fortran_order"] == "True"


def _exactly(source: Source, count: int, before: int, expected: int) -> bytes:
    """Read bytes of the header; the error includes the bytes before them."""
    data = source.read(count)
    if len(data) < count:
        raise DataError(f"truncated header: expected {expected} bytes, got {before + len(data)}")
    return data


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    inside, at = text[1:-1].rstrip(), 0
    while at < len(inside):
        match = FIELD.match(inside, at)
        if text[0] + text[-1] != "{}" or not match or match[1][1:-1] in fields:
            return {}
        fields[match[1][1:-1]], at = match[2], match.end()
    return fields


def _parse_descr(quoted: str, bfloat16: bool) -> np.dtype[Any]:
    descr = quoted[1:-1]
    if match := DESCR.fullmatch(descr):
        return np.dtype((match[1] or "|") + match[2])
    if descr in ("|V2", "<V2") and bfloat16:
        return dtype_of("bfloat16")
    raise _bad_descr(quoted, _printable(descr))


def _parse_shape(value: str, header: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in value[1:-1].split(",")]
    is_tuple = value[0] == "(" and (len(sizes) > 1 or sizes == [""])
    sizes = sizes[:-1] if sizes[-1] == "" else sizes
    if any(re.fullmatch(r"-?[0-9]{41,}", size) for size in sizes):
        raise _bad_header(header)
    if not is_tuple or not all(re.fullmatch(r"[0-9]+L?", size) for size in sizes):  # Python 2 wrote 3L
        raise DataError(f"invalid shape {_printable(value)}")
    return check_shape([int(size.rstrip("L")) for size in sizes])


def _bad_header(text: str) -> DataError:
    return DataError(f"bad NPY header: {_printable(text)}")


def _bad_descr(text: str, name: str) -> DataError:
    if OBJECT.search(text):
        return DataError("object arrays (pickle) are never loaded")
    hint = "; if it is bfloat16: --dtype bfloat16" if name in ("|V2", "<V2") else ""
    return unsupported_dtype(name, hint)


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable()).strip()[:40]
