"""Masks: small ones drawn by hand, rules that compose, and the way to lengths and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model.formulas import masks

SIZES = st.integers(0, 7)


def drawn(text):
    return np.array([[cell == "1" for cell in row] for row in text.split()])


def test_offsets():
    assert model.causal_offset(4, 6) == 0
    assert model.causal_offset(4, 6, align="bottom-right") == 2
    assert model.causal_offset(4, 6, past=2) == 2
    assert model.causal_offset(4, 6, lengths=[6, 3]).tolist() == [2, -1]
    with pytest.raises(UsageError, match="align 'middle'"):
        model.causal_offset(4, 6, align="middle")


def test_drawn_by_hand():
    np.testing.assert_array_equal(model.causal_mask(3, 4, 1), drawn("1100 1110 1111"))
    np.testing.assert_array_equal(model.causal_mask(3, 2, -1), drawn("00 10 11"))
    np.testing.assert_array_equal(model.window_mask(3, 4, 1, 1), drawn("1100 1110 0111"))
    np.testing.assert_array_equal(model.window_mask(2, 4, -1, 0, 1), drawn("1100 1110"))
    np.testing.assert_array_equal(model.prefix_mask(3, 4, 2), drawn("1100 1100 1110"))
    np.testing.assert_array_equal(model.chunk_mask(4, 4, 2), drawn("1100 1100 0011 0011"))
    np.testing.assert_array_equal(model.segment_mask([7, 8], [7, 7, 8]), drawn("110 001"))
    np.testing.assert_array_equal(model.padding_mask(2, 3), drawn("110"))


def test_the_lectures_padding_times_look_ahead():
    np.testing.assert_array_equal(model.padding_mask(3, 4) & model.causal_mask(4, 4), drawn("1000 1100 1110 1110"))
    rows = np.array([True, True, False])[:, None]
    np.testing.assert_array_equal(model.padding_mask(2, 3) & model.causal_mask(3, 3) & rows, drawn("100 110 000"))


@given(SIZES, SIZES, st.integers(-3, 3))
def test_causal_is_a_window_without_a_right_side(queries, keys, offset):
    np.testing.assert_array_equal(
        model.causal_mask(queries, keys, offset), model.window_mask(queries, keys, -1, 0, offset)
    )


@given(SIZES, SIZES, st.integers(-1, 4), st.integers(-1, 4))
def test_a_window_is_its_two_sides_together(queries, keys, left, right):
    sides = model.window_mask(queries, keys, left, -1) & model.window_mask(queries, keys, -1, right)
    np.testing.assert_array_equal(model.window_mask(queries, keys, left, right), sides)


def test_an_offset_per_row_of_the_batch():
    both = model.causal_mask(3, 4, np.array([1, -1]))
    np.testing.assert_array_equal(both, [model.causal_mask(3, 4, 1), model.causal_mask(3, 4, -1)])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 3))
def test_lengths_and_back(lengths, queries):
    mask = np.broadcast_to(model.padding_mask(lengths, 5), (len(lengths), queries, 5))
    assert model.mask_lengths(mask).tolist() == lengths


def test_a_mask_that_is_no_padding():
    with pytest.raises(DataError, match=r"\[0\]\[1\] breaks a run of leading keys"):
        model.mask_lengths(model.window_mask(2, 3, 0, 1))
    with pytest.raises(DataError, match=r"mask \(3,\): rank 1"):
        model.mask_lengths(np.ones(3, bool))


def test_ranges():
    with pytest.raises(DataError, match=r"length 4 at \[1\] outside 0..3"):
        model.padding_mask([0, 4], 3)
    with pytest.raises(UsageError, match="window -2,0"):
        model.window_mask(2, 2, -2, 0)
    with pytest.raises(UsageError, match="chunk size 0"):
        model.chunk_mask(2, 2, 0)
    with pytest.raises(UsageError, match="prefix -1"):
        model.prefix_mask(2, 2, -1)


def test_boolean_takes_zero_and_one():
    np.testing.assert_array_equal(model.to_boolean(np.array([[1, 0]], np.uint8)), [[True, False]])
    with pytest.raises(DataError) as error:
        model.to_boolean(np.array([[1, 2]]))
    assert str(error.value) == "mask value 2 at [0][1] (expected 0 or 1, or a float mask to add)"
    with pytest.raises(DataError, match="mask is float64"):
        model.to_boolean(np.ones(2))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_additive(dtype):
    mask = model.to_additive(model.causal_mask(2, 2), dtype)
    assert mask.dtype == dtype and mask.tolist() == [[0, -np.inf], [0, 0]]
    assert model.to_additive(model.causal_mask(2, 2), fill=-1e9)[0, 1] == np.float32(-1e9)
    assert masks.mask_block(np.ones(2, dtype), np.array([True, False])).dtype == dtype
