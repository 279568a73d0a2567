"""Positions: the lecture's numbers, biases by the published rules."""

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model import (
    alibi_bias,
    alibi_slopes,
    learned_positions,
    sinusoidal_positions,
    t5_bias,
    t5_buckets,
)


def test_sinusoidal_by_hand():
    expected = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 0.99995], [0.9093, -0.4161, 0.0200, 0.9998]]
    np.testing.assert_allclose(sinusoidal_positions(np.arange(3), 4), expected, atol=5e-5)


def test_sinusoidal_added_to_the_cat_sat():
    x = np.arange(1, 13).reshape(3, 4) / 10
    expected = [[0.1, 1.2, 0.3, 1.4], [1.3415, 1.1403, 0.71, 1.8], [1.8093, 0.5839, 1.12, 2.1998]]
    np.testing.assert_allclose(x + sinusoidal_positions(np.arange(3), 4), expected, atol=5.1e-5)


def test_halves_are_the_paper_layout_reordered():
    paper, halves = sinusoidal_positions(np.arange(9), 6), sinusoidal_positions(np.arange(9), 6, layout="halves")
    np.testing.assert_array_equal(halves, np.concatenate([paper[:, ::2], paper[:, 1::2]], axis=1))


def test_a_shift_is_one_rotation_of_every_encoding():
    near, far = sinusoidal_positions(np.arange(5), 8), sinusoidal_positions(np.arange(5) + 3, 8)
    np.testing.assert_allclose(near @ near.T, far @ far.T, atol=1e-12)


def test_sinusoidal_ranges():
    assert sinusoidal_positions(np.zeros((2, 3)), 0).shape == (2, 3, 0)
    with pytest.raises(DataError, match="sinusoidal width 5 is not even"):
        sinusoidal_positions([0], 5)
    with pytest.raises(UsageError, match="layout 'thirds'"):
        sinusoidal_positions([0], 4, layout="thirds")
    with pytest.raises(UsageError, match="base 0"):
        sinusoidal_positions([0], 4, base=0.0)


def test_learned_positions_are_rows():
    table = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(learned_positions([[2, 0]], table), table[[[2, 0]]])
    for position in (3, -1):
        with pytest.raises(DataError, match=rf"position {position} at \[1\] outside 0..2"):
            learned_positions([0, position], table)
    with pytest.raises(DataError, match="expected rank 2"):
        learned_positions([0], np.zeros(3))


def test_alibi_slopes_as_published():
    np.testing.assert_array_equal(alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    twelve = [*2.0 ** -np.arange(1, 9), *2.0 ** -np.array([0.5, 1.5, 2.5, 3.5])]
    np.testing.assert_allclose(alibi_slopes(12), twelve)
    with pytest.raises(UsageError, match="heads 0"):
        alibi_slopes(0)


def test_alibi_falls_with_distance():
    bias = alibi_bias(np.array([2]), np.arange(4), 8)
    np.testing.assert_array_equal(bias[0], [[-1.0, -0.5, 0.0, -0.5]])
    assert not np.signbit(bias[0, 0, 2])


def test_t5_buckets_by_hand():
    relative = np.array([-200, -128, -16, -8, -7, -1, 0, 1, 8, 16, 127, 200])
    both = [15, 15, 10, 8, 7, 1, 0, 17, 24, 26, 31, 31]
    before = [31, 31, 16, 8, 7, 1, 0, 0, 0, 0, 0, 0]
    assert t5_buckets([0], relative)[0].tolist() == both
    assert t5_buckets([0], relative, bidirectional=False)[0].tolist() == before
    with pytest.raises(UsageError, match="32 buckets up to distance 8"):
        t5_buckets([0], relative, max_distance=8)
    with pytest.raises(UsageError):
        t5_buckets([0], relative, buckets=1)


def test_t5_bias_takes_the_row_of_each_bucket():
    table = np.arange(64.0).reshape(32, 2)
    buckets = t5_buckets(np.arange(3), np.arange(4))
    bias = t5_bias(buckets, table)
    assert bias.shape == (2, 3, 4) and bias[1, 2, 0] == table[buckets[2, 0], 1]
    with pytest.raises(DataError, match="bucket 17 at"):
        t5_bias(buckets, table[:17])
