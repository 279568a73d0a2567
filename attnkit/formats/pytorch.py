"""PyTorch files (`.bin`, `.pt`, `.pth`) of torch.save, read without executing.

The file is a ZIP archive: `data.pkl` says which tensor is where, `data/0`, `data/1` … are the storages, the bytes that
tensors are views of. Before PyTorch 1.6 it was a row of pickles, then the storages. Of a pickle only dicts, lists,
plain values, storages and tensors are known (pickle_reader.py); every other name or opcode is
refused, and the error has its name.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, format_bytes
from attnkit.formats.dtypes import MOST_DIMENSIONS, NAMES, byte_count, dtype_of, from_bytes
from attnkit.formats.mapped import Mapped, map_file
from attnkit.formats.pickle_reader import LONGEST, Call, Dict, Names, read_pickle
from attnkit.formats.streams import Source, name_errors, prefix_errors
from attnkit.formats.zip import (
    DESCRIPTOR_MARK,
    LOCAL_MARK,
    LONGEST_DESCRIPTOR,
    STORED,
    Member,
    read_archives,
    read_member,
)
from attnkit.records import Array, Record

STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}
UNTYPED = ""  # the dtype of a storage whose size is in bytes
DEEPEST = 16  # dicts within dicts
MOST_VALUES = 100_000
LONGEST_NAME = 1000


class Storage(NamedTuple):
    """The bytes that tensors are views of: a name, a dtype and a size."""

    key: str
    dtype: str
    size: int


class View(NamedTuple):
    """A tensor: elements of a storage, `strides` apart, from element `offset` on."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def torch_names(sizes: dict[str, int]) -> Names:
    """What the pickle of tensors may name. `sizes` receives the storages."""
    table: dict[str, Any] = {f"torch.{name}Storage": dtype for name, dtype in STORAGES.items()}
    table |= {f"torch.{name}": name for name in NAMES} | {"torch.storage.UntypedStorage": UNTYPED}
    table |= {
        "collections.OrderedDict": Call(empty_dict),
        "torch._utils._rebuild_tensor": Call(rebuild_tensor),
        "torch._utils._rebuild_tensor_v2": Call(rebuild_tensor),
        "torch._utils._rebuild_tensor_v3": Call(rebuild_typed),
        "torch._utils._rebuild_parameter": Call(rebuild_parameter),
        "torch._utils._rebuild_parameter_with_state": Call(rebuild_parameter),
    }

    def persistent(value: Any) -> Storage:
        """The storage of ("storage", type, key, device, size)."""
        if type(value) is not tuple or len(value) not in (5, 6) or value[0] != "storage":
            raise DataError("a persistent value that is no storage")
        _, dtype, key, _, count, *rest = value
        if dtype not in (UNTYPED, *STORAGES.values()) or not isinstance(key, str) or rest not in ([], [None]):
            raise DataError("a storage that is not described by type, name and size")
        if type(count) is not int or not 0 <= count < 1 << 48:
            raise DataError(f"storage {key[:100]!r}: its size is not a number of elements")
        size = count * (dtype_of(dtype).itemsize if dtype else 1)
        if sizes.setdefault(key, size) != size:
            raise DataError(f"storage {key[:100]!r} has {sizes[key]} bytes, and {size}")
        return Storage(key, dtype, size)

    return Names(table, persistent)


def empty_dict(arguments: tuple[Any, ...]) -> Dict:
    if arguments:
        raise DataError("an OrderedDict of arguments")
    return Dict([])


def rebuild_tensor(arguments: tuple[Any, ...]) -> View:
    """The tensor of (storage, offset, shape, strides, …)."""
    if len(arguments) not in (4, 6, 7) or not isinstance(arguments[0], Storage):
        raise DataError("a tensor without a storage")
    return make_view(arguments[0], arguments[0].dtype, *arguments[1:4], metadata=arguments[6:])


def rebuild_typed(arguments: tuple[Any, ...]) -> View:
    """The tensor of (storage, offset, shape, strides, requires_grad, hooks, dtype, …)."""
    if len(arguments) not in (7, 8) or not isinstance(arguments[0], Storage) or arguments[6] not in NAMES:
        raise DataError("a tensor without a storage and a dtype")
    return make_view(arguments[0], arguments[6], *arguments[1:4], metadata=arguments[7:])


def rebuild_parameter(arguments: tuple[Any, ...]) -> View:
    if len(arguments) not in (3, 4) or not isinstance(arguments[0], View):
        raise DataError("a parameter without a tensor")
    return arguments[0]


def make_view(
    storage: Storage, dtype: str, offset: Any, shape: Any, strides: Any, *, metadata: tuple[Any, ...]
) -> View:
    """A tensor, checked to be within its storage."""
    if not dtype or metadata not in ((), (None,), (Dict([]),)):
        raise DataError("a tensor whose elements are not those of its storage (without a dtype, conjugated, negated)")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) > MOST_DIMENSIONS:
        raise DataError(f"a tensor whose shape or strides are no tuple of at most {MOST_DIMENSIONS}")
    if not all(type(number) is int for number in (offset, *shape, *strides)) or len(strides) != len(shape):
        raise DataError("a tensor whose shape, strides and offset are no whole numbers, one stride an axis")
    if min(offset, 0, *shape, *strides) < 0:
        raise DataError(f"shape {shape}, strides {strides}, offset {offset}: a negative number")
    itemsize = dtype_of(dtype).itemsize
    byte_count(shape, itemsize)
    needed = 0 if 0 in shape else offset + 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if needed * itemsize > storage.size:
        raise DataError(
            f"shape {shape}, strides {strides}, offset {offset}: needs {needed} elements of storage "
            f"{storage.key[:100]!r}, which has {storage.size // itemsize}"
        )
    steps = tuple(step if size > 1 else 0 for size, step in zip(shape, strides, strict=True))  # of one element, any
    return View(storage, dtype, offset, shape, steps)


def flatten(value: Any, skips_others: bool = False) -> dict[str, View]:
    """The tensors in nested dicts and lists, by names joined with dots.

    skips_others  leave out numbers, texts and None, which are otherwise refused
    """
    views: dict[str, View] = {}
    pending, count = [("", 0, value)], 0
    while pending:
        name, depth, value = pending.pop()
        count += 1
        if isinstance(value, View | Storage):
            if name in views:
                raise DataError(f"tensor {name[:100]!r} occurs twice")
            if isinstance(value, Storage):
                if not value.dtype:
                    raise DataError(f"storage {value.key[:100]!r} has no dtype")
                value = View(value, value.dtype, 0, (value.size // dtype_of(value.dtype).itemsize,), (1,))
            views[name or "x"] = value
            continue
        if skips_others and (value is None or isinstance(value, bool | int | float | str)):
            continue
        if depth == DEEPEST:
            raise DataError(f"dicts nested more than {DEEPEST} deep")
        pairs = pairs_of(name, value)
        if count + len(pending) + len(pairs) > MOST_VALUES:
            raise DataError(f"more than {MOST_VALUES} values")
        pending += [(join(name, key), depth + 1, item) for key, item in reversed(pairs)]
    if not (views or skips_others):
        raise DataError("no tensors in this PyTorch file")
    return views


def join(name: str, key: object) -> str:
    if not isinstance(key, str | int):
        raise DataError(f"a dict whose key is a {type(key).__name__} (expected a name)")
    joined = f"{name}.{key}" if name and len(str(key)) <= LONGEST_NAME else str(key)
    if len(joined) > LONGEST_NAME:
        raise DataError(f"a name of more than {LONGEST_NAME} characters")
    return joined


def pairs_of(name: str, value: Any) -> list[tuple[Any, Any]]:
    """The values in a dict or a list, with their names. DataError for anything else."""
    if isinstance(value, Dict):
        return value.pairs
    if type(value) in (list, tuple):
        return [*enumerate(value)]
    kind = "a function or a class" if isinstance(value, Call) else f"a {type(value).__name__}"
    raise DataError(f"{repr(name[:100]) if name else 'the file'} is {kind}, not a tensor; save only the state_dict")


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


def map_tensors(path: str, skips_others: bool = False) -> Mapped:
    """Map the tensors of a PyTorch file, without comparing its checksum.

    skips_others  leave out numbers, texts and None, which are otherwise refused; there may be no tensors
    """
    with name_errors(path):
        data = memoryview(map_file(path))
        source = Source.of(data, path)

        def in_place(member: Member) -> memoryview:
            return member.packed if member.method == STORED else read_member(member)

        if data[:4] == LOCAL_MARK:
            views, content = read_archive(source, in_place, skips_others)
        else:
            views, content = read_legacy(data, skips_others)
        entries = {name: (view.dtype, view.shape) for name, view in views.items()}
        return Mapped(path, entries, tensor_reader(views, content))


def tensor_reader(views: dict[str, View], content: Content) -> Callable[[str], Array]:

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
    """The tensors of an archive, as the pickle in front describes them."""

    def __init__(self, skips_others: bool) -> None:
        self.root, self.skips_others = "", skips_others
        self.views: dict[str, View] | None = None
        self.sizes: dict[str, int] = {}

    def measure(self, name: str, source: Source) -> int:
        """The size of the stored file at the front of a source without one."""
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
        if self.views is None:
            with prefix_errors(PICKLE):
                self.root, (value, end) = root, read_pickle(data, torch_names(self.sizes))
                if end < len(data):
                    raise DataError(f"{len(data) - end} bytes after the pickle")
                self.views = flatten(value, self.skips_others)


def read_archive(
    source: Source, open_member: Callable[[Member], memoryview], skips_others: bool = False
) -> tuple[dict[str, View], Content]:
    """The tensors of an archive, and the function that reads a storage."""
    archive = Archive(skips_others)
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
    if order_file := members.get(f"{archive.root}/byteorder"):
        order = bytes(read_member(order_file)[:40]).strip()
        if order != b"little":
            raise DataError(f"byteorder {order.decode('utf-8', 'replace')!r} not supported (expected 'little')")
    for key, size in archive.sizes.items():
        member = members.get(f"{archive.root}/data/{key}")
        if member is None:
            raise DataError(f"storage {key[:100]!r} is missing")
        if member.size != size:
            raise DataError(f"storage {key[:100]!r}: {PICKLE} says {size} bytes, the file has {member.size}")
    views = archive.views or {}
    check_total(views, sum(len(member.packed) for member in first))
    return views, lambda key: open_member(members[f"{archive.root}/data/{key}"])


def check_total(views: dict[str, View], size: int) -> None:
    """Raise DataError for views of few bytes that are huge tensors once written."""
    total = sum(math.prod(view.shape) * dtype_of(view.dtype).itemsize for view in views.values())
    if total > max(VIEWS, VIEWS_RATIO * size):
        raise DataError(f"tensors of {format_bytes(total)} are views of {format_bytes(size)}")


def find_descriptor(source: Source, limit: int) -> int:
    """The number of bytes before the mark that ends a file of unknown size."""
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


def read_legacy(data: memoryview, skips_others: bool = False) -> tuple[dict[str, View], Content]:
    """The tensors of a file from before PyTorch 1.6, and its storage reader."""
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
    views = flatten(tensors, skips_others)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(sizes):
        raise DataError("its storages are not those of its tensors")
    starts: dict[str, int] = {}
    for key in keys:
        starts[key] = at + COUNT
        at += COUNT + sizes[key]
        if at > len(data):
            left = max(len(data) - starts[key], 0)
            raise DataError(f"truncated: storage {key[:100]!r} needs {sizes[key]} bytes, {left} are left")
    if at < len(data):
        raise DataError(f"{len(data) - at} bytes after the last storage")
    for storage in dict.fromkeys(view.storage for view in views.values()):
        count = int.from_bytes(data[starts[storage.key] - COUNT : starts[storage.key]], "little")
        if storage.dtype and count * dtype_of(storage.dtype).itemsize != storage.size:
            raise DataError(f"storage {storage.key[:100]!r}: {count} elements, which are not {storage.size} bytes")
    check_total(views, len(data))
    return views, lambda key: data[starts[key] : starts[key] + sizes[key]]
