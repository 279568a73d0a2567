"""GELU of float32 beside its formula."""

import numpy as np

from attnkit.model.activations import ACTIVATIONS, BLOCK, LIMIT, gelu, gelu_float32


def test_it_is_the_formula_within_float32():
    x = np.concatenate([np.linspace(-12, 12, 400_001), np.linspace(-0.01, 0.01, 1001)]).astype(np.float32)
    error = np.abs(gelu_float32(x) - gelu(x.astype(np.float64)))
    assert (error <= 1.2e-7 * np.maximum(np.abs(x), 0.5)).all()
    small = (x < -1) & (x > -5.5)
    assert (error[small] <= 4e-6 * np.abs(gelu(x[small].astype(np.float64)))).all()


def test_far_from_zero_it_is_relu():
    x = np.array([6, LIMIT, 1e4, 3e38, np.inf], np.float32)
    np.testing.assert_array_equal(gelu_float32(x), x)
    assert (np.abs(gelu_float32(-x[1:])) < 1e-36).all()
    assert np.isnan(ACTIVATIONS["gelu"](np.array([np.nan], np.float32))).all()


def test_an_element_has_the_same_bits_in_any_place():
    x = np.random.default_rng(0).standard_normal(2 * BLOCK + 77).astype(np.float32)
    whole = gelu_float32(x)
    np.testing.assert_array_equal(gelu_float32(x[5:90]), whole[5:90])
    np.testing.assert_array_equal(gelu_float32(x[::3]), whole[::3])
    assert gelu_float32(x[:0].reshape(3, 0)).shape == (3, 0) and not np.shares_memory(whole, x)
