"""Conversion between dtypes: exact, or refused."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError
from attnkit.formats import cast_array
from attnkit.formats.dtypes import NAMES, dtype_of, round_to


@pytest.mark.parametrize("source", NAMES)
def test_every_pair(source):
    array = np.array([[0, 1], [1, 0]]).astype(dtype_of(source))
    for target in NAMES:
        result = cast_array(array, target)
        assert result.dtype == dtype_of(target) and np.array_equal(result.astype(int), [[0, 1], [1, 0]]), target


@pytest.mark.parametrize(
    "array, target, message",
    [
        (np.array([[1.0, 1.5]]), "int64", "element [0][1] is 1.5, outside int64"),
        (np.array([np.nan]), "int8", "element [0] is nan, outside int8"),
        (np.array([2.0**63]), "int64", "outside int64"),
        (np.array([256.0]), "uint8", "element [0] is 256.0, outside uint8"),
        (np.array([300]), "uint8", "element [0] is 300, outside uint8"),
        (np.array([-1]), "uint64", "element [0] is -1, outside uint64"),
        (np.array([2**64 - 1], np.uint64), "int64", "outside int64"),
        (np.array([2]), "bool", "element [0] is 2, outside bool"),
        (np.array([0.5]), "bool", "element [0] is 0.5, outside bool"),
        (np.array(1e39), "float32", "the value is 1e+39, outside float32"),
        (np.array([65520.0]), "float16", "element [0] is 65520.0, outside float16"),
        (np.array([70000]), "float16", "element [0] is 70000, outside float16"),
        (np.array([1]), "complex64", "dtype complex64 not supported"),
    ],
)
def test_what_does_not_fit_is_named(array, target, message):
    with pytest.raises(DataError) as caught:
        cast_array(array, target)
    assert message in str(caught.value)


def test_non_finite_values_stay():
    array = np.array([np.nan, np.inf, -np.inf])
    for name in ("float32", "float16", "bfloat16"):
        assert np.array_equal(cast_array(array, name).astype(float), array, equal_nan=True)


@given(st.floats(allow_nan=False, width=64))
def test_bfloat16_is_rounded_once(value):
    bits = int(round_to(np.array([value]), "bfloat16").view(np.uint16)[0])
    assert value == 0 or bits == nearest_bfloat16(value)


def nearest_bfloat16(value: float) -> int:
    """By exact fractions over the neighbours of a first guess."""
    sign = 0x8000 if value < 0 else 0
    if np.isinf(value):
        return sign | 0x7F80
    with np.errstate(all="ignore"):
        guess = int(np.array(abs(value)).astype(ml_dtypes.bfloat16).view(np.uint16))
    spaced = range(max(guess - 2, 0), min(guess + 3, 0x7F81))
    return sign | min(spaced, key=lambda bits: (abs(exact(bits) - Fraction(abs(value))), bits % 2))


def exact(bits: int) -> Fraction:
    """The value of a pattern; infinity stands where the next power of two would."""
    if bits == 0x7F80:
        return Fraction(2) ** 128
    return Fraction(float(np.array(bits, np.uint16).view(ml_dtypes.bfloat16)))


@pytest.mark.parametrize(("name", "unit"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_a_double_is_rounded_once(name, unit):
    """Just above the middle between 1 and the next number, which float32 would round to the middle and then to 1."""
    assert float(cast_array(np.array([1 + unit / 2 + 2.0**-40]), name)[0]) == 1 + unit
    assert float(cast_array(np.array([1 + unit / 2]), name)[0]) == 1
