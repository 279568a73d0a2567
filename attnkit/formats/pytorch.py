"""PyTorch files (`.bin`, `.pt`, `.pth`): a dict of tensors written by `torch.save`, read without executing its pickle.

The file is a ZIP archive: `data.pkl` says which tensor is where, `data/0`, `data/1` … are the storages, the bytes that
tensors are views of. Before PyTorch 1.6 it was a row of pickles, then the storages. Of a pickle only dicts, lists,
plain values, storages and tensors are known (pickle_reader.py, pytorch_values.py); every other name or opcode is
refused, and the error has its name.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.dtypes import dtype_of, format_bytes, from_bytes
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.pickle_reader import LONGEST, Dict, read_pickle
from attnkit.formats.pytorch_values import Storage, View, flatten, torch_names
from attnkit.formats.streams import Source, name_errors, prefix_errors
from attnkit.formats.zip import LOCAL_MARK, STORED, Member, read_member
from attnkit.formats.zip_reader import DESCRIPTOR_MARK, LONGEST_DESCRIPTOR, read_archives
from attnkit.record import Array, Record

PICKLE = "data.pkl"
LEGACY_START = 15  # bytes of the pickled magic number that such a file begins with
LEGACY_PROTOCOL = 1001
SHORTEST = 1000  # bytes of a pickle of no tensors
COUNT = 8  # bytes of the number of elements before a storage
LONGEST_PACKED = 1 << 20  # bytes of a pickle that may be compressed, as by another program than PyTorch
VIEWS, VIEWS_RATIO = 64 << 20, 100  # limit of the tensors' bytes: so many, or so many times those of the file
SCANNED = 1 << 16


Content = Callable[[str], Any]


def read(source: Source) -> Iterator[Record]:
    """Yield the one record of a PyTorch file, its tensors in the order of the dict.

    Names within nested dicts are joined by dots; a file of a single tensor has it as `x`.
    """
    with name_errors(source.name):
        is_archive = source.peek(4) == LOCAL_MARK
        views, content = read_archive(source, read_member) if is_archive else read_legacy(memoryview(source.read_all()))
        tensor = tensor_reader(views, content)
        yield Record({name: tensor(name) for name in views})


def map_tensors(path: str) -> Mapped:
    """Map the tensors of a PyTorch file; each is a view of the file, whose checksum is not compared."""
    with name_errors(path):
        data = memoryview(map_file(path))
        source = Source.of(data, path)
        stored = read_archive(source, mapped_content) if data[:4] == LOCAL_MARK else read_legacy(data)
        views, read_tensor = stored[0], tensor_reader(*stored)

        def tensor(name: str) -> Array:
            with name_errors(path):
                return read_tensor(name)

        return Mapped(path, {name: (view.dtype, view.shape) for name, view in views.items()}, tensor)


def mapped_content(member: Member) -> memoryview:
    """Return the bytes of a member in place where it is stored as it is."""
    return member.packed if member.method == STORED else read_member(member)


def tensor_reader(views: dict[str, View], content: Content) -> Callable[[str], Array]:
    """Return a function that reads a tensor by its name; tensors of one storage share its memory."""

    @cache
    def elements(key: str, dtype: str) -> Array:
        data, item = np.frombuffer(content(key), np.uint8), dtype_of(dtype)
        count = data.size // item.itemsize
        with prefix_errors(f"storage {key[:100]!r}"):
            return from_bytes(data[: count * item.itemsize], item, (count,))

    def tensor(name: str) -> Array:
        view = views[name]
        if 0 in view.shape:
            return np.empty(view.shape, dtype_of(view.dtype))
        stored = elements(view.storage.key, view.dtype)
        size = stored.itemsize
        strides = tuple(size * stride for stride in view.strides)
        return np.ndarray(view.shape, stored.dtype, stored.view(np.uint8), view.offset * size, strides)

    return tensor


class Archive:
    """The tensors of an archive, as its pickle describes them: it comes first, and has the sizes of the storages."""

    def __init__(self) -> None:
        self.root = ""
        self.views: dict[str, View] | None = None
        self.sizes: dict[str, int] = {}

    def measure(self, name: str, source: Source) -> int:
        """Return the size of the stored file at the front of a source, whose header does not have it."""
        root, _, part = name.partition("/")
        if part == PICKLE:
            with prefix_errors(PICKLE):
                size = find_descriptor(source, LONGEST)
            self.parse(root, source.peek(size))
            return size
        if part.startswith("data/") and self.views is None:
            raise DataError(f"member {name[:100]!r} before {PICKLE}: not a state_dict, but a program (TorchScript)")
        if part.startswith("data/") and part[5:] in self.sizes:
            return self.sizes[part[5:]]
        with prefix_errors(f"member {name[:100]!r}"):
            return find_descriptor(source, SCANNED - 1)

    def parse(self, root: str, data: bytes) -> None:
        """Read the pickle, once."""
        if self.views is None:
            with prefix_errors(PICKLE):
                self.root, (value, end) = root, read_pickle(data, torch_names(self.sizes))
                if end < len(data):
                    raise DataError(f"{len(data) - end} bytes after the pickle")
                self.views = flatten(value)


def read_archive(source: Source, open_member: Callable[[Member], memoryview]) -> tuple[dict[str, View], Content]:
    """Return the tensors of an archive by name, and the function that returns the bytes of a storage."""
    archive = Archive()
    first, *others = read_archives(source, archive.measure)
    if others:
        raise DataError(f"{1 + len(others)} archives (expected 1)")
    members = {member.name: member for member in first}
    if archive.views is None:
        pickled = next((member for member in first if member.name.endswith(f"/{PICKLE}")), None)
        if pickled is None:
            raise DataError(f"a ZIP archive without arrays (expected NPY files, or {PICKLE} of PyTorch)")
        if pickled.size > LONGEST_PACKED:
            raise DataError(f"{PICKLE}: {format_bytes(pickled.size)} (limit {format_bytes(LONGEST_PACKED)})")
        archive.parse(pickled.name.removesuffix(f"/{PICKLE}"), bytes(read_member(pickled)))
    pickled = members[f"{archive.root}/{PICKLE}"]
    read_member(pickled)  # compares its checksum
    check_byte_order(members.get(f"{archive.root}/byteorder"))
    for key, size in archive.sizes.items():
        check_storage(key, size, members.get(f"{archive.root}/data/{key}"))
    views = archive.views or {}
    check_total(views, sum(len(member.packed) for member in first))
    return views, lambda key: open_member(members[f"{archive.root}/data/{key}"])


def check_byte_order(member: Member | None) -> None:
    """Raise DataError unless the numbers are little-endian, as they are where nothing says it."""
    if member is not None and (order := bytes(read_member(member)[:40]).strip()) != b"little":
        raise DataError(f"byteorder {order.decode('utf-8', 'replace')!r} not supported (expected 'little')")


def check_storage(key: str, size: int, member: Member | None) -> None:
    """Raise DataError where the file of a storage is missing or has another size."""
    if member is None:
        raise DataError(f"storage {key[:100]!r} is missing")
    if member.size != size:
        raise DataError(f"storage {key[:100]!r}: {PICKLE} says {size} bytes, the file has {member.size}")


def check_total(views: dict[str, View], size: int) -> None:
    """Raise DataError where views of few bytes would become huge tensors once they are written."""
    total = sum(math.prod(view.shape) * dtype_of(view.dtype).itemsize for view in views.values())
    if total > max(VIEWS, VIEWS_RATIO * size):
        raise DataError(f"tensors of {format_bytes(total)} are views of {format_bytes(size)}")


def find_descriptor(source: Source, limit: int) -> int:
    """Return how many bytes there are before the mark that ends a file of unknown size, which repeats that size."""
    at, known = 0, SCANNED
    ahead = source.peek(known)
    while True:
        at = ahead.find(DESCRIPTOR_MARK, at)
        if 0 <= at <= len(ahead) - LONGEST_DESCRIPTOR:
            if at in (int.from_bytes(ahead[at + 8 : end], "little") for end in (at + 12, at + 16)):
                return at
            at += 1
            continue
        if len(ahead) < known:
            raise DataError("truncated: its end is missing")
        if known > limit:
            raise DataError(f"longer than {format_bytes(limit)}")
        at, known = at if at >= 0 else known - len(DESCRIPTOR_MARK) + 1, 2 * known
        ahead = source.peek(known)


def read_legacy(data: memoryview) -> tuple[dict[str, View], Content]:
    """Return the tensors of a file of before PyTorch 1.6 by name, and the function that returns a storage's bytes."""
    sizes: dict[str, int] = {}
    at, values = LEGACY_START, []
    with prefix_errors("pickles before the storages"):
        for longest in (SHORTEST, SHORTEST, LONGEST, LONGEST):  # protocol, machine, tensors, order of their storages
            value, length = read_pickle(bytes(data[at : at + longest]), torch_names(sizes))
            values.append(value)
            at += length
    protocol, machine, tensors, keys = values
    if protocol != LEGACY_PROTOCOL or not isinstance(machine, Dict) or ("little_endian", True) not in machine.pairs:
        raise DataError("not of PyTorch's protocol 1001, or not little-endian")
    views = flatten(tensors)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(sizes):
        raise DataError("its storages are not those of its tensors")
    starts = locate_storages(data, at, [(key, sizes[key]) for key in keys])
    for view in views.values():
        check_count(data, starts, view.storage)
    check_total(views, len(data))
    return views, lambda key: data[starts[key] : starts[key] + sizes[key]]


def locate_storages(data: memoryview, at: int, sizes: list[tuple[str, int]]) -> dict[str, int]:
    """Return where each storage begins, of those that follow each other from a byte on, each after its count."""
    starts: dict[str, int] = {}
    for key, size in sizes:
        starts[key] = at + COUNT
        at += COUNT + size
        if at > len(data):
            left = max(len(data) - starts[key], 0)
            raise DataError(f"truncated: storage {key[:100]!r} needs {size} bytes, {left} are left")
    if at < len(data):
        raise DataError(f"{len(data) - at} bytes after the last storage")
    return starts


def check_count(data: memoryview, starts: dict[str, int], storage: Storage) -> None:
    """Raise DataError where the count before a storage is not that of its elements."""
    start = starts[storage.key]
    count = int.from_bytes(data[start - COUNT : start], "little")
    if storage.dtype and count * dtype_of(storage.dtype).itemsize != storage.size:
        raise DataError(f"storage {storage.key[:100]!r}: {count} elements, which are not {storage.size} bytes")
