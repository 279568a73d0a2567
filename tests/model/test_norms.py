"""Norms: the lecture's numbers, the plain formula, rows that stay apart, and little memory."""

import os
import tracemalloc

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model import batch_norm, layer_norm, rms_norm
from attnkit.model.formulas import norms


def plain(x, gamma, beta, eps=1e-5):
    """The formula as the page writes it, in float64."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    inverse_std = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    return (centred * inverse_std * gamma + beta).astype(x.dtype)


def test_by_hand():
    y, mean, inverse_std = layer_norm(np.array([[2.0, 4.0, 6.0, 8.0]]))
    np.testing.assert_allclose(y, [[-1.3416, -0.4472, 0.4472, 1.3416]], atol=5e-5)
    np.testing.assert_allclose(mean, [[5.0]])
    np.testing.assert_allclose(inverse_std, [[1 / np.sqrt(5 + 1e-5)]])


def test_batch_norm_is_layer_norm_down_a_column():
    houses = np.array([[1200.0, 2.0, 45.0], [1500.0, 3.0, 70.0]])
    y, mean, _ = batch_norm(houses, eps=1e-9)
    np.testing.assert_allclose(y, [[-1, -1, -1], [1, 1, 1]])
    np.testing.assert_allclose(mean, [[1350, 2.5, 57.5]])
    np.testing.assert_allclose(y, layer_norm(houses.T, eps=1e-9).y.T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_blocks_give_the_bytes_of_the_plain_formula(dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 700, 96)).astype(dtype)
    gamma, beta = rng.standard_normal((2, 96)).astype(dtype)
    assert x.size > 2 * norms.BLOCK
    np.testing.assert_array_equal(layer_norm(x, gamma, beta).y, plain(x, gamma, beta))


def test_axis_takes_in_all_axes_after_it():
    x = np.random.default_rng(1).standard_normal((2, 3, 4))
    y, mean, inverse_std = layer_norm(x, axis=1)
    assert mean.shape == inverse_std.shape == (2, 1, 1)
    np.testing.assert_array_equal(y, layer_norm(x.reshape(2, 12)).y.reshape(x.shape))
    np.testing.assert_array_equal(rms_norm(x, axis=-3).y, rms_norm(x.ravel()).y.reshape(x.shape))


def test_rms_norm_is_layer_norm_without_the_mean():
    x = np.random.default_rng(2).standard_normal((5, 6))
    x -= x.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(rms_norm(x).y, layer_norm(x).y)
    assert rms_norm(x).mean is None


@pytest.mark.parametrize("offset", [1e6, 1e30])
def test_big_float32_rows_are_accurate(offset):
    x = (offset * (1 + np.arange(8) / 2**20)).astype(np.float32)
    exact = plain(x.astype(np.float64), 1, 0)
    np.testing.assert_allclose(layer_norm(x).y, exact, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_stays_in_its_row(bad):
    x = np.arange(12.0).reshape(3, 4)
    clean = layer_norm(x).y
    x[1, 2] = bad
    y = layer_norm(x).y
    assert np.isnan(y[1]).any()
    np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])


def test_running_statistics_are_used_as_given():
    x = np.array([[3.0, 8.0]])
    y = batch_norm(x, eps=1e-9, mean=np.array([1.0, 2.0]), variance=np.array([4.0, 9.0])).y
    np.testing.assert_allclose(y, [[1.0, 2.0]])


def test_batch_norm_of_many_blocks():
    x = np.random.default_rng(3).standard_normal((2000, 96))
    expected = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
    np.testing.assert_allclose(batch_norm(x).y, expected, atol=1e-13)


@pytest.mark.parametrize(
    ("dtype", "statistics"), [("float16", "float32"), ("float64", "float64"), ("int32", "float64")]
)
def test_dtypes(dtype, statistics):
    y, mean, inverse_std = layer_norm(np.array([[1, 2, 3]], dtype))
    assert y.dtype == (dtype if dtype.startswith("float") else "float64")
    assert mean.dtype == inverse_std.dtype == statistics


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,)])
@pytest.mark.parametrize("norm", [layer_norm, rms_norm, batch_norm])
def test_empty(norm, shape):
    assert norm(np.zeros(shape)).y.shape == shape


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_little_memory_beside_input_and_output(norm):
    x = np.ones((1 << 14, 256), np.float32)  # 16 MiB
    tracemalloc.start()
    norm(x, np.ones(256, np.float32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes + (1 << 20) + (os.cpu_count() or 1) * (3 << 19)  # a block of rows for each core


def test_input_and_memory_layout_do_not_matter():
    x = np.random.default_rng(4).standard_normal((6, 8))
    before = x.copy()
    np.testing.assert_array_equal(layer_norm(np.asfortranarray(x)).y, layer_norm(x).y)
    rows = np.random.default_rng(5).standard_normal((2000, 8))
    np.testing.assert_array_equal(batch_norm(np.asfortranarray(rows)).y, batch_norm(rows).y)
    batch_norm(x, np.ones(8), np.ones(8))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("eps", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("norm", [layer_norm, rms_norm, batch_norm])
def test_eps_is_positive(norm, eps):
    with pytest.raises(UsageError, match="eps"):
        norm(np.ones((2, 2)), eps=eps)


def test_shapes():
    x = np.ones((2, 4))
    with pytest.raises(UsageError, match=r"axis 2 for x \(2,4\) \(expected -2..1\)"):
        layer_norm(x, axis=2)
    with pytest.raises(DataError, match=r"gamma \(3,\) does not broadcast to the normalized axes \(4,\) of x \(2,4\)"):
        layer_norm(x, np.ones(3))
    with pytest.raises(DataError, match=r"variance \(3,\)"):
        batch_norm(x, variance=np.ones(3))
    with pytest.raises(DataError, match="single number"):
        batch_norm(np.float64(1) * np.ones(()))
    np.testing.assert_array_equal(layer_norm(x, np.ones(1)).y, layer_norm(x).y)


ROWS = np.array([[1.0, 1, 2, 3], [3, -3, 1, 0], [5, 5, 5, 5], [0, 0, 0, 0], [0, 0, 0, 1e-3]])


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize("power", [600, 1000, 1021, -600, -1000])
def test_rows_of_float64_as_if_they_were_of_usual_size(norm, power):
    """Scaling by a power of two, and eps by its square, scales mean and deviation and leaves the result."""
    eps = 1e-5 if power > 0 else 5e-324
    near = norm(ROWS, eps=np.ldexp(eps, -2 * power) or 5e-324)
    far = norm(np.ldexp(ROWS, power), eps=eps)
    np.testing.assert_allclose(far.y[:3], near.y[:3], rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(far.y[3], 0)
    np.testing.assert_allclose(far.y[4], near.y[4], rtol=1e-12)
    np.testing.assert_allclose(far.inverse_std[[0, 1, 4]], np.ldexp(near.inverse_std[[0, 1, 4]], -power), rtol=1e-12)
    if near.mean is not None:
        np.testing.assert_allclose(far.mean, np.ldexp(near.mean, power), rtol=1e-14)


def test_rms_norm_of_a_huge_number_by_hand():
    np.testing.assert_allclose(rms_norm(np.array([[1e300, 1, 2, 3]])).y, [[2, 1e-300 * 2, 0, 0]], atol=1e-290)
    np.testing.assert_allclose(rms_norm(np.full((1, 4), 1e300)).y, 1.0)
    np.testing.assert_allclose(layer_norm(np.array([[1e308, 1.2e308, 1e308, 1.2e308]])).y, [[-1, 1, -1, 1]])


def test_a_huge_row_leaves_the_bits_of_the_others():
    x = np.random.default_rng(5).standard_normal((2000, 96))
    x[7] *= 1e200
    clean = layer_norm(x[:7]).y
    np.testing.assert_array_equal(layer_norm(x).y[:7], clean)
    np.testing.assert_allclose(layer_norm(x).y[7], layer_norm(x[7] * 1e-200, eps=1e-300).y, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_as_before(bad):
    y = rms_norm(np.array([[1e300, bad], [1.0, bad], [1e300, 1e300]])).y
    assert np.isnan(y[:2, 1]).all()
    np.testing.assert_allclose(y[2], 1)


@pytest.mark.parametrize("power", [600, 1021])
def test_columns_of_huge_numbers(power):
    x = np.random.default_rng(6).uniform(-1, 1, (50, 3))
    far = x.copy()
    far[:, 1] = np.ldexp(x[:, 1], power)
    gamma, beta = np.array([1.0, 2, 3]), np.array([4.0, 5, 6])
    expected, found = batch_norm(x, gamma, beta, eps=1e-300), batch_norm(far, gamma, beta, eps=1e-300)
    np.testing.assert_allclose(found.y, expected.y, rtol=1e-12)
    np.testing.assert_allclose(np.ldexp(found.inverse_std[0, 1], power), expected.inverse_std[0, 1], rtol=1e-12)
    given = batch_norm(far, eps=1e-300, mean=np.array([0, np.ldexp(0.5, power), 0]))
    np.testing.assert_allclose(given.y, batch_norm(x, eps=1e-300, mean=np.array([0, 0.5, 0])).y, rtol=1e-12)


def test_small_and_large_float32_rows():
    x = np.array([[1, 2, 3, 4]])
    for factor in (1e-25, 1e35):
        near = layer_norm(x * 1.0, eps=1e-30).y
        np.testing.assert_allclose(layer_norm((x * factor).astype(np.float32), eps=1e-90).y, near, rtol=1e-6)
