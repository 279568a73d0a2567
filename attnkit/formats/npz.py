"""NPZ: a ZIP archive with one NPY member a tensor; axes, labels and history in a last member `meta.json`."""

from collections.abc import Iterator
from typing import Any

from attnkit.errors import DataError
from attnkit.formats import npy
from attnkit.formats.dtypes import name_of
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.metadata import dumps, loads, parts, with_metadata
from attnkit.formats.streams import Buffer, Source, name_errors, prefix_errors
from attnkit.formats.zip import STORED, Member, archive, contents, members
from attnkit.formats.zip_stream import DESCRIPTOR_MARK, archives
from attnkit.record import Array, Record

META = "meta.json"


def read(source: Source, bfloat16: bool = False) -> Iterator[Record]:
    """The records of a source, an NPZ archive each, read from front to back.

    bfloat16  take 2-byte void elements for it also where `meta.json` does not say so

    >>> import numpy as np
    >>> r = Record({"x": np.eye(2), "ids": np.arange(2)}, labels={"token": ["a", "b"]})
    >>> [list(again.tensors) for again in read(Source.of(b"".join(encode(r) * 2)))]
    [['x', 'ids'], ['x', 'ids']]
    """
    with name_errors(source.name):
        for found in archives(source, _measured):
            yield _record({member.name: member for member in found}, bfloat16)


def _record(found: dict[str, Member], bfloat16: bool) -> Record:
    """The record of the files of one archive."""
    about = _about(found.pop(META)) if META in found else {}
    if not found:
        raise DataError("no tensors in this NPZ file")
    halves = about.pop("bfloat16", [])  # NPY has no name for this dtype
    if not isinstance(halves, list) or not all(f"{name}.npy" in found for name in halves):
        raise DataError(f'member {META!r}: key "bfloat16" does not list tensors')
    names = {name: name.removesuffix(".npy") for name in found}
    tensors = {names[name]: _tensor(found[name], bfloat16 or names[name] in halves) for name in found}
    return with_metadata(Record(tensors), about)


def _measured(name: str, source: Source) -> int:
    """The size of a file that the source begins with: an array says it, and no JSON has a mark of ZIP in it."""
    with prefix_errors(f"member {name[:100]!r}"):
        if name != META:
            _check_name(name)
            return npy.length(source)
        count = 1
        while (end := (ahead := source.peek(count)).find(DESCRIPTOR_MARK)) < 0:
            if len(ahead) < count:
                raise DataError("truncated: no end of it")
            count = len(source.peek_available(1 << 62)) + 1
        return end


def mapped(path: str) -> Mapped:
    """The tensors of an NPZ file without their data, each read, and its checksum compared, when it is asked for."""
    with name_errors(path):
        found = {member.name: member for member in members(map_file(path)) if member.name != META}
        names = {name.removesuffix(".npy"): name for name in found}

        def tensor(name: str) -> Array:
            with name_errors(path):
                return _tensor(found[names[name]], False)

        return Mapped(path, {name: _entry(found[names[name]]) for name in names}, tensor)


def encode(record: Record) -> list[Buffer]:
    """A record as NPZ that `numpy.load` reads without pickle; equal records are equal bytes.

    >>> import numpy as np
    >>> b"".join(encode(Record({"x": np.eye(2)})))[:4]
    b'PK\\x03\\x04'
    """
    about = parts(record)
    if halves := [name for name, array in record.tensors.items() if array.dtype.name == "bfloat16"]:
        about["bfloat16"] = halves
    files = [(f"{name}.npy", npy.encode_array(array)) for name, array in record.tensors.items()]
    return archive([*files, (META, [dumps(about)])])


def _about(member: Member) -> dict[str, Any]:
    with prefix_errors(f"member {member.name[:100]!r}"):
        return loads(bytes(contents(member)))


def _entry(member: Member) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of a member."""
    with prefix_errors(f"member {member.name[:100]!r}"):
        _check_name(member.name)
        packed = member.packed if member.method == STORED else contents(member)
        dtype, shape, _ = npy.read_header(Source.of(packed), False)
        return name_of(dtype), shape


def _check_name(name: str) -> None:
    if name.endswith((".pkl", ".pickle")):
        raise DataError("object arrays (pickle) are never loaded")
    if not name.endswith(".npy"):
        raise DataError("not an NPY array")


def _tensor(member: Member, bfloat16: bool) -> Array:
    with prefix_errors(f"member {member.name[:100]!r}"):
        _check_name(member.name)
        source = Source.of(contents(member))
        array = npy.read_array(source, bfloat16)
        if source.peek(1):
            raise npy.trailing(source)
        return array
