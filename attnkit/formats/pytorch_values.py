"""What the pickle of a PyTorch file may refer to: storages, and tensors as views of them."""

from typing import Any, NamedTuple

from attnkit.errors import DataError
from attnkit.formats.dtypes import MOST_DIMENSIONS, NAMES, byte_count, dtype_of
from attnkit.formats.pickle_reader import Call, Dict, Names

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
    """The bytes that tensors are views of: their name in the file, the dtype of the elements, the size in bytes."""

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
    """Return what the pickle of tensors may refer to; the size of each storage that it names is put into `sizes`."""
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
        """Return the storage of ("storage", type, key, device, size); before 1.6 a sixth value may follow."""
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
    """Return a new ordered dict."""
    if arguments:
        raise DataError("an OrderedDict of arguments")
    return Dict([])


def rebuild_tensor(arguments: tuple[Any, ...]) -> View:
    """Return the tensor of (storage, offset, shape, strides, …): nothing of the rest changes its numbers."""
    if len(arguments) not in (4, 6, 7) or not isinstance(arguments[0], Storage):
        raise DataError("a tensor without a storage")
    return make_view(arguments[0], arguments[0].dtype, *arguments[1:4], metadata=arguments[6:])


def rebuild_typed(arguments: tuple[Any, ...]) -> View:
    """Return the tensor of (storage, offset, shape, strides, requires_grad, hooks, dtype, …)."""
    if len(arguments) not in (7, 8) or not isinstance(arguments[0], Storage) or arguments[6] not in NAMES:
        raise DataError("a tensor without a storage and a dtype")
    return make_view(arguments[0], arguments[6], *arguments[1:4], metadata=arguments[7:])


def rebuild_parameter(arguments: tuple[Any, ...]) -> View:
    """Return the tensor of a parameter."""
    if len(arguments) not in (3, 4) or not isinstance(arguments[0], View):
        raise DataError("a parameter without a tensor")
    return arguments[0]


def make_view(
    storage: Storage, dtype: str, offset: Any, shape: Any, strides: Any, *, metadata: tuple[Any, ...]
) -> View:
    """Return a tensor, checked to be within its storage."""
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


def flatten(value: Any) -> dict[str, View]:
    """Return the tensors in nested dicts and lists by name, joined by dots; DataError for anything but tensors."""
    views: dict[str, View] = {}
    pending, count = [("", 0, value)], 0
    while pending:
        name, depth, value = pending.pop()
        count += 1
        if isinstance(value, View | Storage):
            if name in views:
                raise DataError(f"tensor {name[:100]!r} occurs twice")
            views[name or "x"] = whole_storage(value) if isinstance(value, Storage) else value
            continue
        if depth == DEEPEST:
            raise DataError(f"dicts nested more than {DEEPEST} deep")
        pairs = pairs_of(name, value)
        if count + len(pending) + len(pairs) > MOST_VALUES:
            raise DataError(f"more than {MOST_VALUES} values")
        pending += [(join(name, key), depth + 1, item) for key, item in reversed(pairs)]
    if not views:
        raise DataError("no tensors in this PyTorch file")
    return views


def whole_storage(storage: Storage) -> View:
    """Return a storage as a tensor of one axis."""
    if not storage.dtype:
        raise DataError(f"storage {storage.key[:100]!r} has no dtype")
    return View(storage, storage.dtype, 0, (storage.size // dtype_of(storage.dtype).itemsize,), (1,))


def join(name: str, key: object) -> str:
    """Return the name of a value in a dict of a name."""
    if not isinstance(key, str | int):
        raise DataError(f"a dict whose key is a {type(key).__name__} (expected a name)")
    joined = f"{name}.{key}" if name and len(str(key)) <= LONGEST_NAME else str(key)
    if len(joined) > LONGEST_NAME:
        raise DataError(f"a name of more than {LONGEST_NAME} characters")
    return joined


def pairs_of(name: str, value: Any) -> list[tuple[Any, Any]]:
    """Return the values in a dict or a list, with their names; DataError for anything else."""
    if isinstance(value, Dict):
        return value.pairs
    if type(value) in (list, tuple):
        return [*enumerate(value)]
    kind = "a function or a class" if isinstance(value, Call) else f"a {type(value).__name__}"
    raise DataError(f"{repr(name[:100]) if name else 'the file'} is {kind}, not a tensor; save only the state_dict")
