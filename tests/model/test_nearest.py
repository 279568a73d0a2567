"""The nearest vectors: equal to sorting all scores, whatever the blocks, the dtype, the ties and the threads."""

import ml_dtypes
import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.model.dtypes import working
from attnkit.model.formulas import nearest
from attnkit.model.formulas.nearest import METRICS, find_nearest, score_rows


def sorted_by_score(vectors, queries, top, metric):
    """The definition: all scores, sorted, of equal ones the lower index first."""
    dtype = working(vectors, queries)
    found = []
    for query in queries:
        scores = score_rows(vectors, query, metric).astype(dtype)
        order = np.lexsort((np.arange(len(scores)), scores if metric == "euclidean" else -scores))[:top]
        found.append((order, scores[order]))
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


def check(vectors, queries, top, metric):
    expected = sorted_by_score(vectors, queries, top, metric)
    result = find_nearest(vectors, queries, top, metric)
    assert np.array_equal(result.indices, expected[0])
    assert np.array_equal(result.scores, expected[1]) and result.scores.dtype == expected[1].dtype
    return result


@pytest.fixture(params=[7, 400, nearest.PIECE], ids=["one row a block", "few rows", "one block"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(nearest, "PIECE", request.param)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, bool])
def test_is_the_sorted_score(blocks, metric, dtype):
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(size=(rows, 8), scale=3) for rows in (300, 5))
    vectors = (vectors > 0) if dtype is bool else vectors.astype(dtype)
    vectors[:, 0] = 1  # none is all zeros
    check(vectors, queries.astype(np.float32), 7, metric)
    check(vectors, queries, 300, metric)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_by_hand_the_cosine_of_vectors_whose_squares_leave_the_range(size):
    rows = np.array([[3.0, 4], [0, 0], [-2, 0]]) * size
    assert score_rows(rows, np.array([5.0, 0]) * size, "cosine") == pytest.approx([0.6, 0, -1], rel=1e-14)


def test_by_hand():
    vectors, query = np.array([[3.0, 4], [0, 2], [-1, 0]]), np.array([[1.0, 0]])
    assert find_nearest(vectors, query, 3, "cosine").scores.tolist() == [[0.6, 0, -1]]
    assert find_nearest(vectors, query, 3, "dot").indices.tolist() == [[0, 1, 2]]
    distances = find_nearest(vectors, query, 3, "euclidean")
    assert distances.indices.tolist() == [[2, 1, 0]]
    np.testing.assert_allclose(distances.scores, [[2, np.sqrt(5), np.sqrt(20)]])


@pytest.mark.parametrize("metric", METRICS)
def test_ties_are_decided_by_the_lower_index(blocks, metric):
    """Equal rows have equal scores at any place of a block."""
    rng = np.random.default_rng(1)
    vectors = np.repeat(rng.normal(size=(40, 6)).astype(np.float32), 9, axis=0)[rng.permutation(360)]
    check(vectors, vectors[:4] * 2, 20, metric)
    result = find_nearest(np.ones((500, 6), np.float32), np.ones((1, 6), np.float32), 4, metric)
    assert result.indices.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("metric", METRICS)
def test_rows_that_differ_by_rounding_alone(blocks, metric):
    """Closer to each other than products of float32 tell."""
    rng = np.random.default_rng(2)
    base = rng.normal(size=64) * 100
    vectors = (base + rng.normal(size=(400, 64)) * 1e-4).astype(np.float32)
    check(vectors, base[None].astype(np.float32), 9, metric)
    check(vectors, base[None], 9, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_numbers_whose_squares_leave_float32(blocks, metric, scale):
    vectors = np.random.default_rng(3).normal(size=(50, 4)) * scale
    vectors[::3] /= 1e6
    check(vectors.astype(np.float32), vectors[:3], 5, metric)


def test_a_query_does_not_depend_on_the_others():
    rng = np.random.default_rng(4)
    vectors, queries = rng.normal(size=(2000, 16)).astype(np.float32), rng.normal(size=(600, 16)).astype(np.float32)
    together = find_nearest(vectors, queries, 3)
    for at in (0, 255, 256, 599):
        alone = find_nearest(vectors, queries[at : at + 1], 3)
        assert np.array_equal(alone.indices[0], together.indices[at])
        assert alone.scores[0].tobytes() == together.scores[at].tobytes()


def test_zeros_are_counted_and_have_no_cosine(blocks):
    vectors = np.array([[0, 0], [-1, 0], [1, 1]], np.float32)
    result = find_nearest(vectors, np.array([[1, 0]], np.float32), 3)
    assert result.zeros == 1 and result.indices.tolist() == [[2, 0, 1]] and result.scores[0, 1] == 0
    assert find_nearest(vectors, np.zeros((1, 2), np.float32), 1, "euclidean").scores.tolist() == [[0]]
    with pytest.raises(DataError, match="query 1 is all zeros, which has no cosine"):
        find_nearest(vectors, np.array([[1, 0], [0, 0]], np.float32), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(blocks, value):
    vectors = np.ones((90, 3), np.float32)
    vectors[77, 1] = value
    with pytest.raises(DataError, match=f"row 77 has {float(value)}"):
        find_nearest(vectors, np.ones((1, 3)), 1)
    with pytest.raises(DataError, match=f"query 77 has {float(value)}"):
        find_nearest(np.ones((2, 3)), vectors, 1)


def test_no_query_and_released_blocks(blocks):
    released = []
    result = find_nearest(np.ones((9, 2)), np.ones((0, 2)), 3)
    assert result.indices.shape == result.scores.shape == (0, 3)
    find_nearest(np.ones((900, 2)), np.ones((1, 2)), 3, "dot", lambda rows: released.append(len(rows)))
    assert sum(released) == 900  # each block, once it is compared
