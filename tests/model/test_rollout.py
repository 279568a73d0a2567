"""Attention rollout: worked by hand, and the definition of Abnar and Zuidema 2020 restated."""

import ml_dtypes
import numpy as np
import pytest

from attnkit.model.formulas.head_scores import roll_out


def test_by_hand():
    """Two layers of two heads and two tokens; the means are [[1, 0], [.5, .5]] and [[.5, .5], [0, 1]]."""
    first = np.array([[[1.0, 0], [1, 0]], [[1, 0], [0, 1]]])
    second = np.array([[[0.0, 1], [0, 1]], [[1, 0], [0, 1]]])
    # A = 0.5 W + 0.5 I: [[1, 0], [.25, .75]] and [[.75, .25], [0, 1]]; their product, the second one first:
    assert roll_out([first, second]).tolist() == [[0.8125, 0.1875], [0.25, 0.75]]
    assert roll_out([first]).tolist() == [[1, 0], [0.25, 0.75]]
    assert roll_out([first, second], residual=0).tolist() == [[0.75, 0.25], [0.5, 0.5]]
    assert roll_out([first, second], residual=1).tolist() == [[1, 0], [0, 1]]


def restated(layers, residual):
    """The definition, cell by cell, in float64."""
    tokens = layers[0].shape[-1]
    total = np.eye(tokens)
    for weights in layers:
        step = np.zeros((tokens, tokens))
        for query in range(tokens):
            for key in range(tokens):
                mean = sum(float(head[query, key]) for head in weights) / len(weights)
                step[query, key] = (1 - residual) * mean + residual * (query == key)
            step[query] /= sum(step[query])
        total = np.array([[sum(step[i] * total[:, j]) for j in range(tokens)] for i in range(tokens)])
    return total


def random_layers(rng, shape, mask):
    scores = np.exp(rng.normal(size=shape, scale=2)) * mask
    return scores / np.maximum(scores.sum(-1, keepdims=True), 1e-9)


MASKS = {
    "all": np.ones((6, 6), bool),
    "causal": np.tri(6, dtype=bool),
    "window": np.tri(6, k=1, dtype=bool) & ~np.tri(6, k=-3, dtype=bool),
    "padding": np.ones((6, 6), bool) & (np.arange(6) < 4),
    "a query without keys": np.ones((6, 6), bool) & (np.arange(6) != 2)[:, None],
}


@pytest.mark.parametrize("residual", [0.5, 0.1, 1])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_is_the_definition(mask, residual):
    rng = np.random.default_rng(0)
    layers = [random_layers(rng, (heads, 6, 6), mask) for heads in (3, 3, 1, 4)]
    rollout = roll_out(layers, residual)
    np.testing.assert_allclose(rollout, restated(layers, residual), rtol=0, atol=1e-14)
    np.testing.assert_allclose(rollout.sum(-1), 1, atol=1e-14)
    assert (rollout[np.triu_indices(6, 1)] == 0).all() or mask is not MASKS["causal"]


def test_a_batch_is_its_texts():
    rng = np.random.default_rng(1)
    layers = [random_layers(rng, (2, 3, 5, 5), np.ones((5, 5))) for _ in range(3)]
    rows = [roll_out([weights[row] for weights in layers]) for row in range(2)]
    np.testing.assert_allclose(roll_out(layers), np.stack(rows), atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_keeps_the_dtype(dtype):
    layers = [random_layers(np.random.default_rng(2), (3, 4, 4), np.tri(4)).astype(dtype) for _ in range(2)]
    rollout = roll_out(layers)
    assert rollout.dtype == dtype
    np.testing.assert_allclose(rollout.astype(float), restated(layers, 0.5), atol=4 * float(ml_dtypes.finfo(dtype).eps))


def test_a_row_of_zeros_without_a_residual_stays_zero():
    weights = np.array([[[1.0, 0], [0, 0]]])
    assert roll_out([weights, weights], residual=0).tolist() == [[1, 0], [0, 0]]
