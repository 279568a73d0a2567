"""The feed-forward network, its activations, and the error function against the standard library's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError, UsageError
from attnkit.model import ACTIVATIONS, feed_forward
from attnkit.model.formulas.activations import erf
from attnkit.model.formulas.feedforward import feed_forward_vjp


def test_erf_is_that_of_the_standard_library():
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-300, 1, 500), [0.84375, 1.25, 1 / 0.35, 6.0]])
    np.testing.assert_allclose(erf(x), [math.erf(value) for value in x], rtol=4e-16)


def test_erf_at_the_edges():
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan, -0.0])), [1, -1, np.nan, -0.0])
    assert erf(np.zeros((2, 0))).shape == (2, 0)
    assert erf(np.float32(1) * np.ones(2, np.float32)).dtype == np.float32


LIKE_RELU = ("relu", "gelu", "gelu-tanh", "silu")  # x times a function that rises from 0 to 1, odd about a half


@pytest.mark.parametrize("name", LIKE_RELU)
@given(x=st.floats(0, 1e4))
def test_activations_of_opposite_numbers_differ_by_the_number(name, x):
    y = ACTIVATIONS[name](np.array([x, -x]))
    assert y[0] - y[1] == pytest.approx(x)


@pytest.mark.parametrize("name", LIKE_RELU)
def test_huge_and_bad_values_are_silent(name):
    y = ACTIVATIONS[name](np.array([1e300, -1e300, np.inf, np.nan]))
    assert y[0] == 1e300 and y[1] == 0 and y[2] == np.inf and np.isnan(y[3])


def test_formula_of_the_paper():
    rng = np.random.default_rng(0)
    x, w1, w2, b1, b2 = (rng.standard_normal(shape) for shape in [(2, 3, 4), (4, 6), (6, 4), 6, 4])
    steps = feed_forward(x, {"w1": w1, "w2": w2, "b1": b1, "b2": b2})
    np.testing.assert_allclose(steps["output"], np.maximum(0, x @ w1 + b1) @ w2 + b2)
    assert list(steps) == ["hidden", "activated", "output"]


def test_without_an_activation_the_network_is_one_linear_map():
    rng = np.random.default_rng(0)
    x, w1, w2, b1, b2 = (rng.standard_normal(shape) for shape in [(3, 4), (4, 6), (6, 4), 6, 4])
    y = feed_forward(x, {"w1": w1, "w2": w2, "b1": b1, "b2": b2}, activation="identity")["output"]
    np.testing.assert_allclose(y, x @ (w1 @ w2) + b1 @ w2 + b2)
    bent = feed_forward(x, {"w1": w1, "w2": w2, "b1": b1, "b2": b2}, activation="relu")["output"]
    assert np.abs(bent - y).max() > 0.1


def test_a_neuron_of_a_logistic_network_by_hand():
    """σ(0.45 · 0.2 + 0.55 · 0.4 + 0.1) = σ(0.41) = 1 / (1 + e^−0.41) = 0.6011."""
    params = {"w1": np.array([[0.2], [0.4]]), "b1": np.array([0.1]), "w2": np.array([[1.0]])}
    y = feed_forward(np.array([[0.45, 0.55]]), params, activation="sigmoid")
    assert y["hidden"].item() == pytest.approx(0.41)
    assert y["output"].item() == pytest.approx(0.6011, abs=5e-5)


def test_a_gate_multiplies():
    rng = np.random.default_rng(1)
    x, w1, w2, w3 = (rng.standard_normal(shape) for shape in [(3, 4), (4, 6), (6, 4), (4, 6)])
    steps = feed_forward(x, {"w1": w1, "w2": w2, "w3": w3}, activation="silu")
    np.testing.assert_allclose(steps["output"], (ACTIVATIONS["silu"](x @ w1) * (x @ w3)) @ w2)
    assert list(steps) == ["hidden", "activated", "linear", "gated", "output"]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("watched", ["hidden", "activated", "linear", "gated"])
def test_only_requested_intermediates_are_kept_and_hooked_ones_are_not_overwritten(gated, watched):
    rng = np.random.default_rng(4)
    x, w1, w2, w3 = (rng.standard_normal(shape) for shape in [(600, 8), (8, 512), (512, 8), (8, 512)])  # many parts
    before, params = x.copy(), {"w1": w1, "w2": w2} | ({"w3": w3} if gated else {})
    steps = feed_forward(x, params, activation="gelu-tanh")
    ours = feed_forward(x, params, activation="gelu-tanh", keep=())
    assert list(ours) == ["output"]
    activated = ACTIVATIONS["gelu-tanh"](x @ w1)
    gates = {"linear": x @ w3, "gated": activated * (x @ w3)} if gated else {}
    expected = {"hidden": x @ w1, "activated": activated, **gates, "output": (gates.get("gated", activated)) @ w2}
    assert list(steps) == list(expected)
    for name in steps:
        np.testing.assert_allclose(steps[name], expected[name], atol=1e-10)
    np.testing.assert_array_equal(ours["output"], steps["output"])
    np.testing.assert_array_equal(x, before)
    hooked = []
    feed_forward(x, params, activation="gelu-tanh", keep=(), hook={watched: lambda y: hooked.append(y) or y}.get)
    if watched in steps:
        np.testing.assert_array_equal(hooked[0], steps[watched])
        kept = feed_forward(x, params, activation="gelu-tanh", keep=(watched,))
        assert list(kept) == [watched, "output"]
        np.testing.assert_array_equal(kept[watched], steps[watched])


def test_positions_are_independent():
    rng = np.random.default_rng(2)
    x, w1, w2 = (rng.standard_normal(shape) for shape in [(3, 4), (4, 6), (6, 4)])
    params = {"w1": w1, "w2": w2}
    rows = [feed_forward(row, params)["output"] for row in x]
    np.testing.assert_allclose(feed_forward(x, params)["output"], rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_dtypes(dtype):
    steps = feed_forward(np.ones((2, 3), dtype), {"w1": np.eye(3), "w2": np.eye(3)})
    assert {step.dtype for step in steps.values()} == {np.dtype("float64" if dtype == "int64" else dtype)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w1": (8, 6)}, "w1 (8,6) for x (3,10): first dimension 8 != 10"),
        ({"w2": (5, 10)}, "w2 (5,10) for hidden (3,6): first dimension 5 != 6"),
        ({"b1": (5,)}, "b1 (5,): expected (6,)"),
        ({"b2": (6,)}, "b2 (6,): expected (10,)"),
        ({"w3": (10, 5)}, "w3 (10,5) and w1 (10,6): shapes differ"),
    ],
)
def test_shapes(shapes, message):
    params = {name: np.zeros(shape) for name, shape in ({"w1": (10, 6), "w2": (6, 10)} | shapes).items()}
    with pytest.raises(DataError) as error:
        feed_forward(np.zeros((3, 10)), params)
    assert str(error.value) == message


def test_unknown_activation():
    with pytest.raises(UsageError, match="activation 'cube'"):
        feed_forward(np.zeros((1, 1)), {}, activation="cube")


def test_a_factor_of_what_the_activation_reads_is_one_of_the_first_weights():
    """silu(m (x W₁ + b₁)) · (x W₃): hidden is without the factor, and its gradient has it."""
    rng = np.random.default_rng(0)
    x, w1, w3, w2, b1 = (rng.standard_normal(shape) for shape in [(3, 4), (4, 6), (4, 6), (6, 4), 6])
    params, folded = {"w1": w1, "b1": b1, "w2": w2, "w3": w3}, {"w1": 1.3 * w1, "b1": 1.3 * b1, "w2": w2, "w3": w3}
    mine, theirs = feed_forward(x, params, activation="silu", scale=1.3), feed_forward(x, folded, activation="silu")
    np.testing.assert_allclose(mine["output"], theirs["output"])
    np.testing.assert_allclose(1.3 * mine["hidden"], theirs["hidden"])
    (_, undo), (_, undo_folded) = (
        feed_forward_vjp(x, one, activation="silu", scale=scale) for one, scale in ((params, 1.3), (folded, 1.0))
    )
    (dx, found), (expected, of_folded) = undo(np.ones((3, 4))), undo_folded(np.ones((3, 4)))
    np.testing.assert_allclose(dx, expected)
    for name, factor in {"w1": 1.3, "b1": 1.3, "w2": 1, "w3": 1}.items():
        np.testing.assert_allclose(found[name], factor * of_folded[name])
