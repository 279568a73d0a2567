"""Dtypes: which one an operator computes in, and the dtype of its result."""

import math
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


# the largest finite number of a narrow dtype, whose names `rounded` knows
LARGEST = {"float16": 65504.0, "bfloat16": float(np.float32(2.0**128 - 2.0**120)),
           "fp8-e4m3": 448.0, "fp8-e4m3:nan": 448.0, "fp8-e4m3:unbounded": math.inf}  # fmt: skip


@quiet
def rounded(x: Array, name: str) -> Array:
    """Round x to a named dtype; bfloat16 and 8-bit numbers are kept in float32.

    What overflows fp8-e4m3 is its largest number, 448, with the sign (the saturating mode of the OCP specification), or
    NaN as fp8-e4m3:nan, for it has no infinity; fp8-e4m3:unbounded has the precision without the range. Ties go to the
    even number.

    >>> rounded(np.array([1.005859375]), "bfloat16")
    array([1.0078125], dtype=float32)
    >>> rounded(np.array([0.3, 500.0]), "fp8-e4m3"), rounded(np.array([500.0]), "fp8-e4m3:nan")
    (array([3.125e-01, 4.480e+02], dtype=float32), array([nan], dtype=float32))
    """
    if name.startswith("fp8"):
        y = _round_to_e4m3(x.astype(np.float32))
        if name == "fp8-e4m3:nan":
            return np.where(np.abs(y) > LARGEST[name], np.float32(np.nan), y)
        return np.clip(y, -LARGEST[name], LARGEST[name])
    if name != "bfloat16":
        return x.astype(name)
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    even = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # bfloat16 is the upper half of float32
    return np.where(np.isnan(single), single, even.view(np.float32))


def _round_to_e4m3(x: Array) -> Array:
    """Round float32 to 3 bits after the leading one, and to multiples of 2^-9."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)  # of the leading bit; 2^-6 is the least normal number
    step = np.exp2(exponent.astype(np.float32) - 3)
    return np.where(np.isfinite(x), np.rint(x / step) * step, x).astype(np.float32)
