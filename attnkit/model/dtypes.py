"""Dtypes: which one an operator computes in, and the dtype of its result."""

from functools import cache
from typing import Any

import numpy as np

from attnkit.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]

# NaN and infinity are ordinary values here, and propagate through formulas without a warning.
quiet = np.errstate(all="ignore")


@cache
def is_float(dtype: DType) -> bool:
    """Whether a dtype is a float, bfloat16 included, which is known by its name.

    >>> is_float(np.dtype("float16")), is_float(np.dtype("int8"))
    (True, False)
    """
    return dtype.kind == "f" or dtype.name == "bfloat16"


def lowest_finite(dtype: DType) -> float:
    """The most negative finite number of a float dtype.

    >>> lowest_finite(np.dtype(np.float16))
    -65504.0
    """
    return float(np.finfo(dtype).min) if dtype.kind == "f" else -(2.0**128 - 2.0**120)  # bfloat16


def working(*arrays: Array) -> DType:
    """The dtype to compute in: at least float32, and float64 for integers.

    DataError for a dtype that is neither a float, a whole number nor a boolean.

    >>> working(np.zeros(2, np.float16)), working(np.zeros(2, np.float16), np.zeros(2, int))
    (dtype('float32'), dtype('float64'))
    """
    return _common(*[array.dtype for array in arrays])


@cache
def _common(*dtypes: DType) -> DType:
    return np.result_type(*map(_wide, dtypes))


@cache
def _wide(dtype: DType) -> DType:
    if dtype.kind in "iub":
        return np.dtype(np.float64)
    if not is_float(dtype) or dtype.itemsize > 8:
        raise DataError(f"dtype {dtype} not supported (use float16/32/64, bfloat16, ints, bool)")
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def output_dtype(x: Array) -> DType:
    """The dtype of a result: the dtype of x if it is a float, else float64.

    >>> output_dtype(np.zeros(2, np.float16)), output_dtype(np.zeros(2, bool))
    (dtype('float16'), dtype('float64'))
    """
    return x.dtype if is_float(x.dtype) else np.dtype(np.float64)


def cast(x: Array, dtype: DType) -> Array:
    """Cast x to a dtype in C order, so that memory layouts change no result.

    >>> cast(np.arange(4).reshape(2, 2).T, np.dtype(float)).flags.c_contiguous
    True
    """
    return np.asarray(x, dtype=dtype, order="C")


def cast_matrices(x: Array, dtype: DType) -> Array:
    """Cast x to a dtype with each matrix in C order; cache slices are not copied.

    >>> room = np.zeros((2, 5, 3))
    >>> cast_matrices(room[:, :2], room.dtype).base is room, cast_matrices(room[..., :2], room.dtype).base is room
    (True, False)
    """
    x = np.asarray(x, dtype)
    return x if x.strides[-2:] == (x.shape[-1] * x.itemsize, x.itemsize) else cast(x, dtype)


FLOATS = ("float16", "bfloat16", "float32", "float64")


@quiet
def rounded(x: Array, name: str) -> Array:
    """Round x to the precision of a named dtype; bfloat16 values are kept in float32.

    >>> rounded(np.array([1.005859375]), "bfloat16")
    array([1.0078125], dtype=float32)
    """
    if name != "bfloat16":
        return x.astype(name)
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    even = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # bfloat16 is the upper half of float32
    return np.where(np.isnan(single), single, even.view(np.float32))
