"""Sinks, and norms of queries and keys, by hand and on every path that computes attention."""

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.model import attention, multi_head_attention
from attnkit.model.attention import normalize_heads
from attnkit.model.backward.attention_backward import multi_head_attention_vjp
from attnkit.model.formulas.norms import QueryKeyNorm

RNG = np.random.default_rng(0)


def drawn(queries, keys, width=4):
    return (RNG.standard_normal((2, 3, count, width)) for count in (queries, keys, keys))


def expected(q, k, v, sinks, causal):
    """Softmax over the scores and one more of 0 values."""
    scores = q @ np.swapaxes(k, -1, -2) / 2
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
    exponentials = np.exp(np.concatenate([scores, column], axis=-1))
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights[..., :-1], weights[..., :-1] @ v, np.log(exponentials.sum(axis=-1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [5, 400])  # dense, and in tiles
def test_a_sink_is_one_more_score_without_a_value(size, causal):
    sinks, (q, k, v) = np.array([0.5, -2.0, 3.0]), drawn(size, size)
    weights, heads, lse = expected(q, k, v, sinks, causal)
    steps = attention(q, k, v, sinks=sinks, causal=causal)
    for name, own in (("weights", weights), ("heads", heads), ("lse", lse)):
        np.testing.assert_allclose(steps[name], own, rtol=1e-11, atol=1e-13)
    alone = attention(q, k, v, sinks=sinks, causal=causal, keep=("lse",))
    np.testing.assert_allclose(alone["heads"], heads, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(alone["lse"], lse, rtol=1e-10)
    largest = attention(q, k, v, sinks=sinks, causal=causal, summary="stats", keep=("weights",))["weights.max"]
    np.testing.assert_allclose(largest, weights.max(axis=-1), rtol=1e-10)


def test_a_query_without_keys_has_heads_of_zero_beside_a_sink():
    q, k, v = drawn(2, 3)
    mask = np.array([[False, False, False], [True, True, False]])
    steps = attention(q, k, v, sinks=np.zeros(3), mask=mask)
    assert (steps["heads"][..., 0, :] == 0).all() and np.allclose(steps["lse"][..., 0], 0)


@pytest.mark.parametrize("sinks", [np.zeros(2), np.zeros((3, 1)), np.zeros(())])
def test_sinks_of_other_heads_are_refused(sinks):
    with pytest.raises(DataError, match=r"sinks \(.*expected \(3,\), one for each head"):
        attention(*drawn(2, 2), sinks=sinks)


def test_one_text_has_the_sinks_of_a_batch():
    q, k, v = drawn(2, 2)
    for options in ({}, {"causal": True}):
        alone = attention(q[0], k[0], v[0], sinks=np.arange(3.0), **options)["heads"]
        np.testing.assert_allclose(alone, attention(q, k, v, sinks=np.arange(3.0), **options)["heads"][0], rtol=1e-12)


def test_scopes_of_a_norm_by_hand():
    """Two heads of two features: 3 4 and 0 5. The root of the mean square of a head is 5/√2, of all 5/√2 too."""
    x, root = np.array([[3.0, 4.0, 0.0, 5.0]]), 5 / np.sqrt(2)
    gammas = {"head": [1.0, 2.0], "heads": [1.0, 2.0, 3.0, 4.0], "projection": [1.0, 2.0, 3.0, 4.0]}
    by_hand = {"head": [3, 8, 0, 10], "heads": [3, 8, 0, 20], "projection": [3, 8, 0, 20]}
    for scope, gamma in gammas.items():
        split = normalize_heads(x, np.array(gamma), None, 2, QueryKeyNorm("rms", 1e-12, scope))
        np.testing.assert_allclose(split.ravel(), np.array(by_hand[scope]) / root, rtol=1e-10)
    with pytest.raises(DataError, match=r"gamma \(3,\) of queries or keys: expected \(2,\)"):
        normalize_heads(x, np.ones(3), None, 2, QueryKeyNorm("rms", 1e-12, "head"))


def test_the_norm_comes_before_the_rotation_and_after_the_projection():
    x, w = RNG.standard_normal((3, 4)), RNG.standard_normal((4, 4))
    norm, turn = QueryKeyNorm("layer", 1e-6, "head"), (np.zeros((3, 1)), np.ones((3, 1)))  # a quarter turn
    steps = multi_head_attention(x, x, x, {"wq": w, "gamma_q": np.array([1.0, 3.0])}, heads=2, norm=norm, rotary=turn)
    rows = (x @ w).reshape(3, 2, 2)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-6) * [1, 3]
    np.testing.assert_allclose(steps["q_normed"], normal.swapaxes(0, 1), rtol=1e-10)
    np.testing.assert_allclose(steps["q"], np.stack([-normal[..., 1], normal[..., 0]], -1).swapaxes(0, 1), rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_of_sinks_is_a_central_difference(causal):
    x, dy, sinks = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4)), np.array([0.5, -1.0])
    options = {"heads": 2, "causal": causal}
    _, gradients = multi_head_attention_vjp(x, x, x, {"sinks": sinks}, **options)[1](dy)
    for at, step in enumerate(1e-6 * np.eye(2)):
        ends = [multi_head_attention(x, x, x, {"sinks": sinks + one}, **options)["output"] for one in (step, -step)]
        slope = ((ends[0] - ends[1]) * dy).sum() / 2e-6
        np.testing.assert_allclose(gradients["sinks"][at], slope, rtol=1e-7)
