"""Records to bytes and back: one file for each format.

    streams.py      byte sources, read once from front to back
    atomic.py       sinks: standard output, devices, files that are replaced as a whole
    mapped.py       files mapped into memory, such as the weights of a model
    memory.py       the memory that the machine has, and that its limits leave
    dtypes.py       the supported dtypes and shapes, and conversion between dtypes
    metadata.py     axes, labels and history as JSON
    npy.py npz.py safetensors.py json.py   the formats, each with `read` and `encode`
    csv.py          tables of numbers, separated by commas, tabs or blanks, read only
    pytorch.py      files of torch.save, read only
    gguf.py gguf_blocks.py gguf_grids.py   files of llama.cpp and their quantized tensors, read only
    pickle_reader.py that pickle, read without executing it
    wav.py sound.py sounds: WAV, and by a library FLAC, Ogg and MP3, read only
    picture.py      pictures, by a library: PNG and JPEG, read only
    json_text.py    JSON syntax: documents of a stream, errors with their place
    zip.py          the ZIP container of npz, written, and read from front to back

A format is imported when a file needs it: a stage of a pipe pays only for its own.
"""

import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnkit.errors import DataError, UsageError
from attnkit.formats.atomic import Sink, write_all, write_together
from attnkit.formats.dtypes import (
    cast_array,
    first_non_finite,
    to_contiguous,
    unsupported_dtype,
)
from attnkit.formats.mapped import release_pages
from attnkit.formats.memory import available_memory, check_memory
from attnkit.formats.streams import Buffer, Source, name_errors, open_source, regular_files_only
from attnkit.records import Record, Tensor

FORMATS = ("json", "npy", "npz", "safetensors")
STREAMS = ("json", "npy", "npz")  # formats that hold several records back to back
SUFFIXES = {".json": "json", ".jsonl": "json", ".ndjson": "json"} | {f".{name}": name for name in FORMATS[1:]}

WRITTEN_AS = {"pytorch": "npz", "gguf": "npz", "csv": "json", "wav": "npz", "sound": "npz", "picture": "npz"}

# The first bytes of JSON, and of texts likely meant as JSON, whose parser names the first error.
JSON_STARTS = b" \t\r\n{[\"-0123456789+'/#"
JSON_WORDS = (b"true", b"fals", b"null", b"NaN", b"Infi")
INSTEAD = "and pictures are read from PNG and JPEG"
SIGNATURES = {
    b"\x1f\x8b": "gzip",
    b"\x7fELF": "ELF",
    b"\x89HDF": "HDF5",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"%PDF": "PDF",
    b"GIF8": f"GIF, {INSTEAD}",
    b"II*\0": f"TIFF, {INSTEAD}",
    b"MM\0*": f"TIFF, {INSTEAD}",
    b"version https://git-lfs": "Git LFS pointer",
    b"<": "HTML or XML",
}
PICTURES = (b"\x89PNG", b"\xff\xd8\xff")  # PNG, JPEG
SOUNDS = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"FORM")  # FLAC, Ogg, MP3, AIFF
# The first lines of the tables and heat maps that show writes, for people
TABLE_HEAD = re.compile(rb"\S+ (\([^\n]*\)|scalar) (float|bfloat|u?int|bool)|[^\n]*\n(\xe2\x94\x80){3}|[^\n]*\n---")
TABLE_HINT = "show -f json writes tensors, and peek shows them in the middle of a pipe"
PYTORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled magic number, before PyTorch 1.6
SAFETENSORS_HEADER = 100_000_000  # no header is longer, so the high bytes of its length are zero


class Stream:
    """The records of one source, in order, each read when the iteration reaches it.

    source  the format of the source
    format  the format that results are written in; another one for a PyTorch or GGUF file or a table, which hold less
    """

    def __init__(self, source: str, records: Iterator[Record]) -> None:
        self.source, self.format = source, WRITTEN_AS.get(source, source)
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        return self._records


def read(source: Source, bfloat16: bool = False, lone_is_x: bool = True, maps: bool = False) -> Stream:
    """The records of a source, in the format that its first bytes show.

    bfloat16   read 2-byte void elements of NPY, as which NumPy saves bfloat16, as bfloat16
    lone_is_x  rename the only tensor of a record to `x`
    maps       take a JSON object such as {"w": [[1, 0], [0, 1]]} as a record

    >>> stream = read(Source.of(b"[1, 2][3]"))
    >>> stream.format, [record["x"].tolist() for record in stream]
    ('json', [[1, 2], [3]])
    """
    with name_errors(source.name):
        format = _sniff(source)
    options = {"bfloat16": bfloat16} if format in ("npy", "npz") else {"maps": maps} if format == "json" else {}
    records: Iterator[Record] = _module(format).read(source, **options)
    return Stream(format, map(_lone_as_x, records) if lone_is_x else records)


def encode(record: Record, format: str, indent: bool = False) -> list[Buffer]:
    """A record as the bytes of a file. DataError if the format cannot hold it.

    indent  write JSON on several lines, one matrix row per line

    >>> import numpy as np
    >>> encode(Record({"x": np.array([True])}), "json")
    [b'{"tensors":{"x":{"dtype":"bool","shape":[1],"data":[true]}},"labels":{},"history":[]}\\n']
    """
    buffers: list[Buffer] = _module(format).encode(record, **({"indent": True} if indent else {}))
    return buffers


def load(path: str) -> Record:
    """Read the one record of a file. DataError if it holds several."""
    with open_source(path) as source:
        records = list(read(source))
    if len(records) != 1:
        raise DataError(f"{len(records)} records (expected 1)", path)
    return records[0]


def save(record: Record, path: str) -> None:
    """Write a record to a file in one step, in the format of its suffix."""
    format = file_format(path)
    with Sink(path) as sink:
        sink.write(encode(record, format))


def round_trip(record: Record, format: str, bfloat16: bool = False) -> Record:
    """The record as `read` would return it after `encode`, without encoding.

    >>> import numpy as np
    >>> round_trip(Record({"x": np.ones(2), "ids": np.arange(2)}, labels={"model": ["a", "b"]}), "npy")
    <Record: x (2,) float64>
    """
    if format == "npy":
        array = to_contiguous(_module("npy").only_tensor(record))
        if array.dtype.name == "bfloat16" and not bfloat16:
            raise unsupported_dtype("<V2", "; if it is bfloat16: --dtype bfloat16")
        return Record({"x": array})
    as_read = _module("json").normalize_nan if format == "json" else to_contiguous
    tensors = {name: Tensor(as_read(one.array), one.axes) for name, one in record.tensors.items()}
    return _lone_as_x(Record(tensors, record.labels, record.history))


def suffix_format(path: str) -> str | None:
    """The format of a file name by its suffix, or None if it has none.

    >>> suffix_format("out.jsonl"), suffix_format("out.txt")
    ('json', None)
    """
    return next((format for suffix, format in SUFFIXES.items() if path.lower().endswith(suffix)), None)


def file_format(path: str) -> str:
    """The format that the name of a file stands for, JSON without a suffix.

    >>> file_format("out.npz"), file_format("/dev/fd/3")
    ('npz', 'json')
    """
    suffix = os.path.splitext(path)[1]
    if suffix and not path.startswith("/dev/") and suffix_format(path) is None:
        *most, last = SUFFIXES
        raise UsageError(f"no format has the suffix {suffix!r} (expected {', '.join(most)} or {last})", path)
    return suffix_format(path) or "json"


def _module(format: str) -> Any:
    return importlib.import_module(f"attnkit.formats.{format}")


def _lone_as_x(record: Record) -> Record:
    if len(record) != 1 or "x" in record:
        return record
    [tensor] = record.tensors.values()
    return replace(record, tensors={"x": tensor})


def _sniff(source: Source) -> str:
    start = source.peek(4)
    if not start:
        raise source.empty_error("NPY, NPZ, JSON, safetensors or CSV")
    if start == b"\x93NUM"[: len(start)]:
        return "npy"
    if start in (b"PK\x03\x04", b"PK\x05\x06"):
        name = source.peek(30 + int.from_bytes(source.peek(30)[26:28], "little"))[30:]
        return "pytorch" if b"/" in name and not name.endswith(b".npy") else "npz"  # torch.save names a folder
    if start == b"GGUF":
        return "gguf"
    if start == b"RIFF":
        return "wav"
    if start.startswith(SOUNDS):
        return "sound"
    if start.startswith(PICTURES):
        return "picture"
    if start == PYTORCH_START[:4] and source.peek(len(PYTORCH_START)) == PYTORCH_START:
        return "pytorch"
    if min(start) > 5:  # the length of a header has a smaller byte
        if start.lstrip()[:1] not in (b"{", b"[") and start not in SIGNATURES and _module("csv").is_table(source):
            return "csv"
        if start[0] in JSON_STARTS or start.startswith((*JSON_WORDS, b"\xef\xbb\xbf")):
            return "json"
    return _other_format(source)


def _other_format(source: Source) -> str:
    """safetensors, or DataError with what the file looks like."""
    head = source.peek(512)
    kind = next((name for mark, name in SIGNATURES.items() if head.startswith(mark)), "text" * _is_text(head))
    if re.match(rb"\x80[\x02-\x05][^\x00]", head):  # its version, and the first of its instructions
        kind = "pickle"
    is_header = head[8:9] == b"{" or (int.from_bytes(head[:8], "little") <= SAFETENSORS_HEADER and not kind)
    if is_header and not _is_text(head[:8]):
        return "safetensors"
    if kind == "pickle":
        raise DataError("object arrays (pickle) are never loaded")
    hint = f"; {TABLE_HINT}" if TABLE_HEAD.match(head) else ""
    raise DataError("not a tensor file" + (f" (looks like {kind})" if kind else "") + hint)


def _is_text(head: bytes) -> bool:
    text = head.decode("utf-8", "ignore")
    return len(text.encode()) > len(head) - 4 and all(c.isprintable() or c in "\t\r\n\f" for c in text)
