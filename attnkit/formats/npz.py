"""NPZ: a ZIP archive with one NPY member per tensor, and a member meta.json."""

from collections.abc import Callable, Iterator
from typing import Any

from attnkit.errors import DataError
from attnkit.formats import npy
from attnkit.formats.dtypes import name_of
from attnkit.formats.json_text import dumps
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.metadata import loads, to_metadata, with_metadata
from attnkit.formats.streams import Buffer, Source, name_errors, prefix_errors
from attnkit.formats.zip import (
    DESCRIPTOR_MARK,
    STORED,
    ArchiveWriter,
    Member,
    inflate_start,
    read_archives,
    read_member,
)
from attnkit.records import Array, Record

META = "meta.json"


def read(source: Source, bfloat16: bool = False) -> Iterator[Record]:
    """Yield the records of a source, each an NPZ archive, read from front to back.

    bfloat16  read 2-byte void elements as bfloat16 even where `meta.json` does not list them

    >>> import numpy as np
    >>> r = Record({"x": np.eye(2), "ids": np.arange(2)}, labels={"token": ["a", "b"]})
    >>> [list(again) for again in read(Source.of(b"".join(encode(r) * 2)))]
    [['x', 'ids'], ['x', 'ids']]
    """
    with name_errors(source.name):
        for members in read_archives(source, _measure):
            yield _to_record({member.name: member for member in members}, bfloat16)


def _to_record(members: dict[str, Member], bfloat16: bool) -> Record:
    metadata, halves = _read_metadata(members)
    names = {file: file.removesuffix(".npy") for file in members}
    tensors = {name: _tensor(members[file], bfloat16 or name in halves) for file, name in names.items()}
    return with_metadata(Record(tensors), metadata)


def _read_metadata(members: dict[str, Member]) -> tuple[dict[str, Any], list[str]]:
    """Take the metadata out of the members, with the names of the tensors of bfloat16."""
    metadata: dict[str, Any] = {}
    if META in members:
        with prefix_errors(f"member {META!r}"):
            metadata = loads(bytes(read_member(members.pop(META))))
    if not members:
        raise DataError("no tensors in this NPZ file")
    halves = metadata.pop("bfloat16", [])  # NPY has no name for this dtype
    if not isinstance(halves, list) or not all(f"{name}.npy" in members for name in halves):
        raise DataError(f'member {META!r}: key "bfloat16" does not list tensors')
    return metadata, halves


def _measure(name: str, source: Source) -> int:
    """The size of the member at the front of a source, by its header or end mark."""
    with prefix_errors(f"member {name[:100]!r}"):
        if name != META:
            _check_name(name)
            return npy.length(source)
        count = 1
        while (end := (ahead := source.peek(count)).find(DESCRIPTOR_MARK)) < 0:
            if len(ahead) < count:
                raise DataError("truncated: its end is missing")
            count = len(source.peek_available(1 << 62)) + 1
        return end


def map_tensors(path: str, bfloat16: bool = False) -> Mapped:
    """Map the tensors of an NPZ file. Checksums are compared on first use.

    bfloat16  read 2-byte void elements as bfloat16 even where `meta.json` does not list them
    """
    with name_errors(path):
        first, *others = read_archives(Source.of(memoryview(map_file(path)), path), _measure)
        if others:
            raise DataError(f"{1 + len(others)} archives (expected 1)")
        members = {member.name: member for member in first}
        _, halves = _read_metadata(members)
        named = {file.removesuffix(".npy"): member for file, member in members.items()}
        entries = {name: _entry(member, bfloat16 or name in halves) for name, member in named.items()}
        return Mapped(path, entries, lambda name: _tensor(named[name], bfloat16 or name in halves))


class Writer:
    """Writes the tensors of one NPZ archive, one after the other.

    write  receives the next buffers of the archive
    """

    def __init__(self, write: Callable[[list[Buffer]], object]) -> None:
        self._archive = ArchiveWriter(write)
        self._halves: list[str] = []

    def add(self, name: str, array: Array) -> None:
        """Write a tensor."""
        self._archive.add(f"{name}.npy", npy.encode_array(array))
        if array.dtype.name == "bfloat16":
            self._halves.append(name)

    def finish(self, metadata: dict[str, Any]) -> None:
        """Write axes, labels and history, and the directory, with which the archive ends."""
        halves = {"bfloat16": self._halves} if self._halves else {}  # NPY has no name for this dtype
        self._archive.add(META, [dumps({**metadata, **halves})])
        self._archive.finish()


def encode(record: Record) -> list[Buffer]:
    """A record as NPZ. Equal records are equal bytes.

    >>> import numpy as np
    >>> b"".join(encode(Record({"x": np.eye(2)})))[:4]
    b'PK\\x03\\x04'
    """
    buffers: list[Buffer] = []
    archive = Writer(buffers.extend)
    for name, array in record.arrays().items():
        archive.add(name, array)
    archive.finish(to_metadata(record))
    return buffers


def _entry(member: Member, bfloat16: bool) -> tuple[str, tuple[int, ...]]:
    with prefix_errors(f"member {member.name[:100]!r}"):
        _check_name(member.name)
        start = member.packed if member.method == STORED else inflate_start(member, npy.LONGEST_HEADER + 12)
        dtype, shape, _ = npy.read_header(Source.of(start), bfloat16)
        return name_of(dtype), shape


def _check_name(name: str) -> None:
    if name.endswith((".pkl", ".pickle")):
        raise DataError("object arrays (pickle) are never loaded")
    if not name.endswith(".npy"):
        raise DataError("not an NPY array")


def _tensor(member: Member, bfloat16: bool) -> Array:
    with prefix_errors(f"member {member.name[:100]!r}"):
        _check_name(member.name)
        source = Source.of(read_member(member))
        array = npy.read_array(source, bfloat16)
        if source.peek(1):
            raise npy.trailing(source)
        return array
