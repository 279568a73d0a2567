"""GELU of float32 beside its formula."""

import math

import numpy as np
import pytest

from attnkit.model.formulas import activations
from attnkit.model.formulas.activations import ACTIVATIONS, BLOCK, LOW, gelu_float32, gelu_with_slope

pytestmark = pytest.mark.no_blas
DENORMAL = 2.0**-149  # the least positive float32


def formula(x):
    """x times the complement of the error function, by the C library in float64."""
    return np.array([0.5 * one * math.erfc(-one * math.sqrt(0.5)) for one in x.astype(float).tolist()])


def check(x):
    """The error of every element beside its size, and beside the size of the result."""
    expected = formula(x)
    error = np.abs(gelu_float32(x) - expected)
    assert (error <= 2e-7 * np.maximum(np.abs(x.astype(float)), 0.5)).all()
    assert (error <= 4e-6 * np.abs(expected) + 0.51 * DENORMAL).all()


def test_it_is_the_formula_within_float32():
    check(np.concatenate([np.linspace(-15, 15, 300_001), np.linspace(-0.01, 0.01, 1001)]).astype(np.float32))


def test_every_exponent_of_float32_is_exact_and_so_are_denormal_numbers():
    bits = np.arange(0, 1 << 32, 20_011, np.int64).astype(np.uint32).view(np.float32)
    check(bits[np.isfinite(bits)])
    check(np.arange(1, 9, dtype=np.uint32).view(np.float32))


def test_it_is_the_formula_with_the_other_exponential(monkeypatch):
    other = {np.exp2: (np.exp, 1.0), np.exp: (np.exp2, math.log2(math.e))}[activations.fastest_exp()[0]]
    monkeypatch.setattr(activations, "fastest_exp", lambda: other)
    check(np.linspace(-15, 15, 30_001).astype(np.float32))


def test_ends_zeros_and_what_is_no_number():
    x = np.array([7, 13, 1e4, 3e38, np.inf], np.float32)
    np.testing.assert_array_equal(gelu_float32(x), x)
    y = gelu_float32(np.array([-np.inf, -3e38, -0.0, 0.0], np.float32))
    assert not y.any() and np.signbit(y).tolist() == [True, True, True, False]
    assert np.isnan(ACTIVATIONS["gelu"](np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize("neighbour", [np.nan, np.inf, -np.inf, 20, -20, 0])
def test_no_neighbour_changes_the_bits_of_an_element(neighbour):
    x = np.linspace(-13, 13, 4001, dtype=np.float32)
    beside = np.append(x, np.float32(neighbour))
    np.testing.assert_array_equal(gelu_float32(beside)[:-1], [gelu_float32(x[i : i + 1])[0] for i in range(len(x))])


def test_an_element_has_the_same_bits_in_any_place():
    x = 3 * np.random.default_rng(0).standard_normal(2 * BLOCK + 77).astype(np.float32)
    assert x.min() < LOW
    whole = gelu_float32(x)
    np.testing.assert_array_equal(gelu_float32(x[5:90]), whole[5:90])
    np.testing.assert_array_equal(gelu_float32(x[::3]), whole[::3])
    assert gelu_float32(x[:0].reshape(3, 0)).shape == (3, 0) and not np.shares_memory(whole, x)


def test_the_slope_is_that_of_the_result():
    x, step = np.linspace(-4, 4, 801, dtype=np.float32), np.float32(1 / 64)
    central = (gelu_float32(x + step).astype(float) - gelu_float32(x - step)) / (2.0 * step)
    np.testing.assert_allclose(gelu_with_slope(x)[1], central, atol=1e-4)
