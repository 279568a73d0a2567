"""The dtypes and shapes that files may hold, and conversion between dtypes."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.memory import check_memory
from attnkit.records import Array

FLOATS = ("float64", "float32", "float16", "bfloat16")
NAMES = (*FLOATS, "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8}  # bits of the significand, the hidden one included
MOST_DIMENSIONS = 64  # NumPy's own limit
LARGEST_EMPTY = 1 << 24  # limit of the product of the other dimensions of a tensor without elements


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name. DataError if it is not supported.

    >>> dtype_of("float32")
    dtype('float32')
    """
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if name not in NAMES:
        raise unsupported_dtype(name)
    return np.dtype(name)


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype of any byte order. DataError if it is not supported.

    >>> name_of(np.dtype(">f4"))
    'float32'
    """
    if dtype.name not in NAMES:
        raise unsupported_dtype(dtype.name)
    return dtype.name


def unsupported_dtype(name: str, hint: str = "") -> DataError:
    return DataError(f"dtype {name} not supported (use float16/32/64, bfloat16, ints, bool){hint}")


@cache
def is_float_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of the four float dtypes (bfloat16 is no `np.floating`).

    >>> is_float_dtype(np.dtype("float16")), is_float_dtype(np.dtype("int8"))
    (True, False)
    """
    return name_of(dtype) in FLOATS


def check_shape(dimensions: Sequence[object]) -> tuple[int, ...]:
    """Check dimensions from a file: each a whole number, 0 or more.

    >>> check_shape([2, 3])
    (2, 3)
    """
    if len(dimensions) > MOST_DIMENSIONS:
        raise DataError(f"invalid shape: {len(dimensions)} dimensions (limit {MOST_DIMENSIONS})")
    sizes = [size for size in dimensions if type(size) is int and size >= 0]
    if len(sizes) < len(dimensions):
        raise DataError(f"invalid shape ({', '.join(str(size)[:40] for size in dimensions)})")
    return tuple(sizes)


def byte_count(shape: tuple[int, ...], itemsize: int) -> int:
    """The size of an array in bytes. DataError if no array can be so large.

    >>> byte_count((3, 4), 8)
    96
    """
    check_empty(shape)
    count = math.prod(shape) * itemsize
    if count >= 2**63:
        raise DataError(f"shape {str(shape)[:80]} too large")
    check_memory(count, f"shape {str(shape)[:80]}")
    return count


def check_empty(shape: tuple[int, ...]) -> None:
    """Raise DataError for an empty shape whose other dimensions are huge.

    >>> check_empty((0, 768))
    >>> check_empty((20_000_000, 0))
    Traceback (most recent call last):
    attnkit.errors.DataError: shape (20000000, 0) too large for no elements (limit 16777216 without its zeros)
    """
    if 0 in shape and math.prod(size or 1 for size in shape) > LARGEST_EMPTY:
        raise DataError(f"shape {str(shape)[:80]} too large for no elements (limit {LARGEST_EMPTY} without its zeros)")


def from_bytes(data: Array, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool = False) -> Array:
    """Bytes as a read-only array in native byte order, copied only if necessary.

    >>> from_bytes(np.array([0, 1, 0, 2], np.uint8), np.dtype(">i2"), (2,))
    array([1, 2], dtype=int16)
    """
    if dtype == np.bool_ and data.size and data.max() > 1:
        raise DataError(f"bool value {data.max()} (expected 0 or 1)")
    array = data.view(dtype)
    native = array.astype(dtype.newbyteorder("<")) if dtype.byteorder == ">" else array
    aligned = native if native.flags.aligned else native.copy()
    result = np.asarray(aligned.reshape(shape, order="F" if fortran else "C"), order="C")
    result.flags.writeable = False
    return result


def to_contiguous(array: Array) -> Array:
    """The array as files contain it: little-endian and in C order.

    >>> to_contiguous(np.ones((2, 3), ">f4").T).flags.c_contiguous
    True
    """
    name_of(array.dtype)
    check_empty(array.shape)
    order = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    return np.asarray(array, dtype=order, order="C")


def byte_view(array: Array) -> memoryview:
    """The bytes of an array, copied only where it is not contiguous.

    >>> bytes(byte_view(np.array([1, 2], ">i2")))
    b'\\x01\\x00\\x02\\x00'
    """
    return to_contiguous(array).reshape(-1).view(np.uint8).data


def round_to(doubles: Array, name: str) -> Array:
    """Round float64 to a float dtype once, to nearest even. Too large is infinite.

    >>> round_to(np.array([0.1]), "float16")
    array([0.1], dtype=float16)
    """
    with np.errstate(over="ignore", under="ignore"):
        if name != "bfloat16":
            return np.asarray(doubles.astype(name))
        # ml_dtypes goes through float32 and so rounds twice: round that first step to odd instead.
        singles = doubles.astype(np.float32)
        inexact = np.isfinite(doubles) & (singles != doubles)
        beyond = inexact & (np.abs(singles) > np.abs(doubles))
        bits = singles.view(np.uint32) - beyond.astype(np.uint32)  # toward zero
        bits |= inexact.astype(np.uint32)
        return np.asarray(bits.view(np.float32).astype(dtype_of(name)))


def cast_array(array: Array, name: str) -> Array:
    """Convert an array to a dtype. DataError names an element that does not fit.

    >>> cast_array(np.array([1.0, 2.0]), "uint8")
    array([1, 2], dtype=uint8)
    """
    source, target = name_of(array.dtype), dtype_of(name)
    if source == name:
        return array
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = round_to(array, name) if source == "float64" and name in PRECISION else array.astype(target)
        misfits = np.flatnonzero(~_fits(array, result))
    if misfits.size:
        index = np.unravel_index(misfits[0], array.shape)
        raise out_of_range("".join(f"[{i}]" for i in index), array[index], name)
    return result


def _fits(array: Array, result: Array) -> Array:
    """Which elements a conversion preserved. Floats may lose digits."""
    if is_float_dtype(result.dtype):
        return np.isfinite(result) | ~np.isfinite(array) if is_float_dtype(array.dtype) else np.isfinite(result)
    if is_float_dtype(array.dtype):
        low, high = (0, 1) if result.dtype == np.bool_ else integer_bounds(result.dtype.name)
        doubles = array.astype(np.float64)
        return np.asarray((doubles >= low) & (doubles < high + 1) & (np.trunc(doubles) == doubles))
    return np.asarray((result.astype(array.dtype) == array) & ((result < 0) == (array < 0)))


def integer_bounds(name: str) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype.

    >>> integer_bounds("uint8")
    (0, 255)
    """
    return int(np.iinfo(name).min), int(np.iinfo(name).max)


def out_of_range(path: str, value: object, name: str) -> DataError:
    """The error for an element that a dtype cannot hold."""
    return DataError(f"{f'element {path}' if path else 'the value'} is {value}, outside {name}")


def first_non_finite(x: Array) -> str:
    """The first NaN or infinity of a float tensor with its index, or "".

    >>> first_non_finite(np.array([[0.0, np.nan]]))
    'nan at [0][1]'
    >>> first_non_finite(np.array(np.inf))
    'inf'
    """
    if x.dtype.kind not in "fV":
        return ""
    with np.errstate(all="ignore"):
        if np.isfinite(x.sum(dtype=np.float32 if x.itemsize == 2 else None)):
            return ""
        at = np.argwhere(~np.isfinite(x))
    if not len(at):
        return ""
    index = tuple(int(i) for i in at[0])
    place = "".join(f"[{i}]" for i in index)
    return f"{float(x[index])}{' at ' * bool(place)}{place}"
