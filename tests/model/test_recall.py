"""Linear attention: worked numbers, a naive loop for each rule, chunks, halves, and gradients by finite differences."""

import itertools

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.model.formulas import recall as formulas
from attnkit.model.formulas.recall import (
    FEATURES,
    Memory,
    chunked_linear_attention,
    decay_of_step,
    linear_attention,
    linear_attention_backward,
    softplus,
)

RNG = np.random.default_rng(2021)
# queries, keys, values, decay and beta of three tokens, and by hand what is read of them
Q, K, V = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0.6, 0.8], [0, 1]], [[1, 2], [3, 4], [5, 6]]
DECAY, BETA = [0.5, 0.5, 0.8], [1, 0.5, 0.5]
# decay of the state: none, one factor, one for each row; whether there is a beta; whether the delta rule corrects
VARIANTS = [*itertools.product((0, 1, 5), (False, True), (False, True))]


def heads(rows):
    return np.array(rows, float)[None, None]


def worked(**changes):
    gates = {"decay": np.array(DECAY)[None, None, :, None], "beta": np.array(BETA)[None, None], "corrects": True}
    return Memory(heads(Q), heads(K), heads(V), **(gates | changes))


def drawn(decay=1, has_beta=True, corrects=True, shape=(2, 3, 13, 5, 4)):
    batch, count, tokens, key, value = shape
    q, k = RNG.standard_normal((2, batch, count, tokens, key))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    factors = RNG.uniform(0.2, 1, (batch, count, tokens, decay)) if decay else None
    beta = RNG.uniform(0, 1, (batch, count, tokens)) if has_beta else None
    return Memory(q, k, RNG.standard_normal((batch, count, tokens, value)), factors, beta, corrects)


def by_hand(memory, state):
    """One text and head at a time, one matrix of the update after another: S ← (I − β k kᵀ) diag(α) S + β k vᵀ."""
    output, last = np.empty_like(memory.v), state.copy()
    for b, h in np.ndindex(*memory.v.shape[:2]):
        s = last[b, h]
        for t in range(memory.v.shape[2]):
            k, v, q = (one[b, h, t] for one in (memory.k, memory.v, memory.q))
            alpha = np.ones(len(k)) if memory.decay is None else np.broadcast_to(memory.decay[b, h, t], k.shape)
            beta = 1 if memory.beta is None else memory.beta[b, h, t]
            keep = np.eye(len(k)) - beta * np.outer(k, k) if memory.corrects else np.eye(len(k))
            s = keep @ np.diag(alpha) @ s + beta * np.outer(k, v)
            output[b, h, t] = s.T @ q
        last[b, h] = s
    return output, last


def test_three_tokens_by_hand():
    found = linear_attention(worked(), keep=("held", "error", "written", "states"))
    np.testing.assert_allclose(found["output"][0, 0], [[1, 2], [1.08, 1.36], [3.98, 5.16]])
    np.testing.assert_allclose(found["state"][0, 0], [[1.048, 1.616], [2.932, 3.544]])
    np.testing.assert_allclose(found["held"][0, 0, 1], [0.3, 0.6])  # of the decayed state: .5 · (1, 2) at k₁ = .6
    np.testing.assert_allclose(found["error"][0, 0, 1], [2.7, 3.4])
    np.testing.assert_allclose(found["written"][0, 0, 1], [1.35, 1.7])
    np.testing.assert_allclose(found["states"][0, 0, 2], found["state"][0, 0])


def test_the_same_tokens_without_the_delta_rule():
    found = linear_attention(worked(corrects=False))["output"][0, 0]
    np.testing.assert_allclose(found, [[1, 2], [1.2, 1.6], [4.58, 6.04]])


@pytest.mark.parametrize("rate", [None, np.zeros(1)], ids=["no A", "A = 0"])
def test_a_state_space_by_hand(rate):
    """Mamba-2: B and C are keys and queries, x the values, Δ the strength, exp(−Δ) the decay; D x is added."""
    step = softplus(np.array([0.0, 1.0, -1.0]))
    np.testing.assert_allclose(step, [0.69314718, 1.31326169, 0.31326169])
    x = heads([[1], [2], [3]])
    memory = Memory(heads([[1, 1], [1, 0], [0, 1]]), heads([[1, 0], [0, 1], [1, 1]]), x)
    memory = memory._replace(decay=decay_of_step(step[:, None], rate)[None, None], beta=step[None, None])
    found = linear_attention(memory)
    np.testing.assert_allclose((found["output"] + 0.5 * x).ravel(), [1.19314718, 1.18641599, 4.35992751])
    np.testing.assert_allclose(found["state"].ravel(), [1.07606607, 2.85992751])


def test_a_key_of_length_1_stores_its_last_value_and_a_sum_reads_both():
    k, v = heads([[0.6, 0.8], [0.6, 0.8]]), heads([[1, 2], [30, 40]])
    np.testing.assert_allclose(linear_attention(Memory(k, k, v, corrects=True))["output"][0, 0, 1], [30, 40])
    np.testing.assert_allclose(linear_attention(Memory(k, k, v))["output"][0, 0, 1], [31, 42])


def test_a_strength_of_2_reflects_the_state():
    """I − 2 k kᵀ has the eigenvalue −1: a value of zero turns the sign of what the key holds."""
    k, v = heads([[0.6, 0.8], [0.6, 0.8]]), heads([[1], [0]])
    beta = np.array([[[1.0, 2.0]]])
    np.testing.assert_allclose(linear_attention(Memory(k, k, v, None, beta, True))["output"].ravel(), [1, -1])


@pytest.mark.parametrize(("decay", "has_beta", "corrects"), VARIANTS)
def test_a_naive_loop_chunks_and_halves_give_the_same(decay, has_beta, corrects):
    memory = drawn(decay, has_beta, corrects)
    state = RNG.standard_normal(memory.state_shape)
    output, last = by_hand(memory, state)
    found = linear_attention(memory, state)
    np.testing.assert_allclose(found["output"], output, rtol=0, atol=1e-12 * np.abs(output).max())
    np.testing.assert_allclose(found["state"], last, rtol=0, atol=1e-12 * np.abs(last).max())
    for size in (1, 4, 13, 64):
        chunks = chunked_linear_attention(memory, size, state)
        for name, one in found.items():
            assert np.abs(chunks[name] - one).max() <= 1e-12 * np.abs(one).max()
    first = linear_attention(memory.cut(slice(0, 6)), state)
    rest = linear_attention(memory.cut(slice(6, None)), first["state"])
    assert np.array_equal(np.concatenate([first["output"], rest["output"]], axis=2), found["output"])
    assert np.array_equal(rest["state"], found["state"])


def test_chunks_that_are_prepared_in_several_blocks(monkeypatch):
    memory = drawn()
    whole = chunked_linear_attention(memory, 2)["output"]
    monkeypatch.setattr(formulas, "MOST", 2 * 6 * 4)  # two chunks of two tokens at a time
    assert np.array_equal(chunked_linear_attention(memory, 2)["output"], whole)


def test_a_factor_of_zero_forgets_all_in_both_forms():
    memory = drawn(5)
    memory.decay[:, :, 7] = 0
    late = linear_attention(memory.cut(slice(7, None)))["output"]
    assert np.array_equal(linear_attention(memory)["output"][:, :, 7:], late)
    np.testing.assert_allclose(chunked_linear_attention(memory, 4)["output"][:, :, 7:], late, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("decay", "has_beta", "corrects"), VARIANTS)
def test_gradients_are_central_differences(decay, has_beta, corrects, monkeypatch):
    monkeypatch.setattr(formulas, "SEGMENT", 4)  # 13 tokens: whole segments, and one of one token
    memory = drawn(decay, has_beta, corrects)
    state = RNG.standard_normal(memory.state_shape)
    dy, dstate = RNG.standard_normal(memory.v.shape), RNG.standard_normal(state.shape)

    def total(memory, state):
        found = linear_attention(memory, state)
        return (found["output"] * dy).sum() + (found["state"] * dstate).sum()

    gradients, of_state = linear_attention_backward(dy, memory, state, dstate)
    inputs = {name: one for name, one in memory._asdict().items() if isinstance(one, np.ndarray)} | {"state": state}
    for name, one in inputs.items():
        way = RNG.standard_normal(one.shape) * 1e-6

        def moved(factor, name=name, one=one, way=way):
            there = one + factor * way
            return total(memory, there) if name == "state" else total(memory._replace(**{name: there}), state)

        expected = (moved(1) - moved(-1)) / 2
        found = ((of_state if name == "state" else getattr(gradients, name)) * way).sum()
        assert abs(found - expected) <= 1e-6 * max(abs(expected), 1e-7), name


@pytest.mark.parametrize("name", FEATURES)
def test_features_have_the_gradients_of_central_differences(name):
    x, dy = RNG.standard_normal((2, 3, 4))
    feature, step = FEATURES[name], 1e-6
    for at in np.ndindex(*x.shape):
        way = np.zeros_like(x)
        way[at] = step
        expected = (dy * (feature.value(x + way) - feature.value(x - way))).sum() / (2 * step)
        assert abs(feature.backward(dy, x)[at] - expected) < 1e-8


def test_an_empty_text_reads_nothing_and_keeps_the_state():
    memory, state = drawn().cut(slice(0, 0)), np.ones((2, 3, 5, 4))
    for found in (linear_attention(memory, state), chunked_linear_attention(memory, 3, state)):
        assert found["output"].shape == (2, 3, 0, 4)
        assert (found["state"] == 1).all()
    assert linear_attention_backward(memory.v, memory, state)[0].q.shape == (2, 3, 0, 5)


@pytest.mark.parametrize("change", ["q", "k", "v", "decay", "beta"])
def test_shapes_that_do_not_fit_are_refused(change):
    memory = drawn()
    with pytest.raises(DataError):
        linear_attention(memory._replace(**{change: getattr(memory, change)[:, :, 1:]}))
    with pytest.raises(DataError, match="state"):
        linear_attention(memory, np.zeros((1, 1, 5, 4)))
