"""Token ids are strict, and a word's random vector depends on nothing but seed and word."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError, UsageError
from attnkit.model import Context, check_ids, embed, one_hot, random_table, scale_embedding
from attnkit.model.layers.embeddings import segments


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1, 2, -1]], "token id -1 at [0][3] outside 0..99"),
        ([[0], [100]], "token id 100 at [1][0] outside 0..99"),
        ([2**40], "token id 1099511627776 at [0] outside 0..99"),
        (np.array([2**64 - 1], np.uint64), "token id 18446744073709551615 at [0] outside 0..99"),
        ([1.0, 2.5], "token id 2.5 at [1] is not a whole number"),
        ([np.nan], "token id nan at [0] is not a whole number"),
        ([np.inf], "token id inf at [0] outside 0..99"),
        ([True], "token ids are bool (expected whole numbers)"),
        (["cat"], "token ids are <U3 (expected whole numbers)"),
        (-1, "token id -1 outside 0..99"),
    ],
)
def test_bad_ids_are_named_and_never_wrapped(ids, message):
    with pytest.raises(DataError) as error:
        check_ids(ids, 100)
    assert str(error.value) == message


@pytest.mark.parametrize("ids", [[3, 0], np.array([3, 0], np.uint8), [3.0, 0.0], np.array([3, 0], np.float16)])
def test_whole_numbers_of_any_dtype_are_ids(ids):
    checked = check_ids(ids, 4)
    assert checked.dtype == np.int64 and checked.tolist() == [3, 0]


def test_no_ids_are_fine():
    assert check_ids([], 4).shape == (0,)
    assert embed(np.zeros((2, 0), int), np.ones((4, 3))).shape == (2, 0, 3)


@given(st.lists(st.integers(0, 6), max_size=8))
def test_embedding_is_one_hot_times_table(ids):
    table = np.arange(21.0).reshape(7, 3)
    np.testing.assert_array_equal(embed(ids, table), one_hot(ids, 7) @ table)


def test_a_table_is_a_matrix():
    with pytest.raises(DataError, match=r"table \(3,\): rank 1, expected 2"):
        embed([0], np.zeros(3))


def test_random_table_does_not_depend_on_the_other_words():
    table = random_table(["The", "cat", "sat", "cat"], 5)
    assert table.dtype == np.float32 and table.shape == (4, 5)
    np.testing.assert_array_equal(table[1], table[3])
    np.testing.assert_array_equal(table[2], random_table(["sat"], 5)[0])
    assert not np.array_equal(table[2], random_table(["sat"], 5, seed=1)[0])
    assert random_table([], 5).shape == (0, 5)


def test_random_table_never_changes():
    assert random_table(["cat"], 3)[0].tolist() == [
        -0.1773877590894699,
        0.137364000082016,
        0.16270413994789124,
    ]


@pytest.mark.parametrize(("dim", "seed"), [(0, 0), (-1, 0), (4, -1), (4, 2**64)])
def test_random_table_ranges(dim, seed):
    with pytest.raises(UsageError):
        random_table(["cat"], dim, seed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scale_keeps_the_dtype(dtype):
    scaled = scale_embedding(np.ones((2, 9), dtype))
    assert scaled.dtype == dtype and (scaled == 3).all()


def test_a_single_number_has_no_width():
    with pytest.raises(DataError, match="single number"):
        scale_embedding(np.ones(()))


def test_segments_are_of_each_text_or_of_all_texts():
    ids, same = np.zeros((2, 3), int), np.array([0, 0, 1])
    for kinds in (same, np.stack([same, same])):
        assert segments(ids, Context(segment_ids=kinds)) is kinds
    for kinds in (np.zeros(2, int), np.zeros((3, 2), int)):
        with pytest.raises(DataError, match=r"segments .* for tokens \(2, 3\): expected one for each token"):
            segments(ids, Context(segment_ids=kinds))
