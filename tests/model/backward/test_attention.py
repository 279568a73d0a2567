"""The adjoint of attention: values worked by hand, finite differences of random options, PyTorch's autograd."""

import sys
from contextlib import contextmanager, nullcontext
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.errors import DataError, UsageError
from attnkit.model import AttentionOptions, alibi_bias, attention, multi_head_attention, rotary_angles
from attnkit.model.backward.attention_backward import (
    attention_backward,
    attention_forward,
    merge_partial_attention_backward,
    multi_head_attention_vjp,
    normalize_heads_vjp,
)
from attnkit.model.formulas.norms import QueryKeyNorm
from attnkit.model.kernels import fused_attention as blocks
from attnkit.model.kernels.fused_attention import fused_attention, fused_attention_backward
from tests import process
from tests.places import REFERENCES

pytestmark = pytest.mark.slow

PROJECTIONS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
SCORE_PARAMS = ("wa", "ua", "va", "w")


def same(ours, expected, relative, smallest=1e-9):
    """Compare gradients with a tolerance relative to the largest number of each.

    One that is `smallest` beside the largest of all, such as the zero of the keys' bias, is compared relative to that.
    """
    assert set(ours) == set(expected)
    most = max(np.abs(x).max(initial=0) for x in expected.values())
    for name, x in expected.items():
        largest = np.abs(x).max(initial=0)
        atol = relative * (largest if largest > smallest * most else most)
        assert ours[name].shape == x.shape
        np.testing.assert_allclose(ours[name], x, rtol=0, atol=atol, err_msg=name)


def test_two_queries_and_two_keys_by_hand():
    # scores ln 3 and 0 in row 0, 0 and 0 in row 1: weights (3/4, 1/4) and (1/2, 1/2)
    q, k = np.array([[[np.log(3)], [0.0]]]), np.array([[[1.0], [0.0]]])
    v, grad = np.array([[[4.0, 0.0], [0.0, 8.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0]]])
    grads = attention_backward(grad, q, k, v, scale=1.0, bias=np.zeros((2, 2)))
    np.testing.assert_allclose(grads["v"], [[[0.75, 0.5], [0.25, 0.5]]], atol=1e-15)
    # dP = ((4, 0), (0, 8)), row sums of P dP = 3 and 4, dS = ((3/4, -3/4), (-2, 2))
    np.testing.assert_allclose(grads["bias"], [[0.75, -0.75], [-2, 2]], atol=1e-15)
    np.testing.assert_allclose(grads["q"], [[[0.75], [-2.0]]], atol=1e-15)
    np.testing.assert_allclose(grads["k"], [[[0.75 * np.log(3)], [-0.75 * np.log(3)]]], atol=1e-15)


def test_the_softcap_multiplies_by_the_slope_of_tanh_by_hand():
    # capped = 2 tanh(s / 2) with s = 2 atanh(1/2), so the slope is 1 - 1/4; the weights are e/(1+e) and 1/(1+e)
    q, k = np.array([[[2 * np.arctanh(0.5)]]]), np.array([[[1.0], [0.0]]])
    grads = attention_backward(np.array([[[1.0]]]), q, k, np.array([[[1.0], [0.0]]]), scale=1.0, softcap=2.0)
    weight = np.e / (1 + np.e)
    np.testing.assert_allclose(grads["q"].item(), 0.75 * weight * (1 - weight), rtol=1e-14)


def test_the_gradient_of_a_log_sum_is_shared_by_the_parts_by_hand():
    """Shares 1/3 and 2/3 of outputs 1 and 4: 3 · share · (output - 3), and the share of the gradient of the sum."""
    outputs, lses = [np.array([[[1.0]]]), np.array([[[4.0]]])], [np.array([[0.0]]), np.log([[2.0]])]
    parts = merge_partial_attention_backward(np.array([[[3.0]]]), np.array([[1.5]]), outputs, lses)
    assert [(output.item(), lse.item()) for output, lse in parts] == [pytest.approx((1, -1.5)), pytest.approx((2, 3))]


def test_a_part_without_keys_has_gradients_of_zero_whatever_its_output_is():
    outputs, lses = [np.array([[[np.nan]]]), np.array([[[4.0]]])], [np.array([[-np.inf]]), np.array([[1.0]])]
    parts = merge_partial_attention_backward(np.array([[[3.0]]]), np.array([[1.5]]), outputs, lses)
    assert [(output.item(), lse.item()) for output, lse in parts] == [(0, 0), (3, 1.5)]


def test_the_gradient_of_a_norm_of_heads_by_hand():
    """x̂ = x / 5 and mean(x̂²) = 1: for dy = 1 0 and gamma = 2 1 that of x is twice (1 0 - x̂ / 10) / 5."""
    dx, dgamma, dbeta = normalize_heads_vjp(
        np.array([[1.0, 7.0]]), np.array([2.0, 1.0]), np.zeros(2), 1, QueryKeyNorm("rms", 1e-12, "head")
    )[1](np.array([[[1.0, 0.0]]]))
    np.testing.assert_allclose(dx, 2 * np.array([[0.196, -0.028]]), rtol=1e-9)
    np.testing.assert_allclose(dgamma, [0.2, 0], rtol=1e-9)
    assert dbeta.tolist() == [1, 0]


def test_weights_before_and_after_a_window_are_zero():
    """More queries than a block has, so that the keys of a block begin and end within the text."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 300, 4))
    options = AttentionOptions(window=(7, 3))
    heads, weights = fused_attention(q, k, v, options)
    steps = attention(q, k, v, options)
    np.testing.assert_allclose(weights, steps["weights"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(heads, steps["heads"], rtol=0, atol=1e-13)
    distance = np.arange(300) - np.arange(300)[:, None]
    assert not weights[:, (distance < -7) | (distance > 3)].any()


def test_a_fully_masked_row_adds_nothing():
    rng = np.random.default_rng(0)
    q, k, v, grad = (rng.standard_normal((2, 3, 4)) for _ in range(4))
    mask = np.array([[True, True, False], [False, False, False], [True, False, True]])
    grads = attention_backward(grad, q, k, v, mask=mask)
    assert all(np.isfinite(x).all() for x in grads.values())
    assert not grads["q"][:, 1].any()
    rest = attention_backward(grad[:, [0, 2]], q[:, [0, 2]], k, v, mask=mask[[0, 2]])
    for name in "kv":
        np.testing.assert_allclose(grads[name], rest[name], atol=1e-15)
    nothing = attention_backward(grad, q, k, v, mask=np.full((3, 3), -np.inf))
    assert all(not x.any() for x in nothing.values())


def test_errors():
    x = np.ones((1, 2, 3))
    with pytest.raises(DataError, match=r"gradient \(1,2,2\) of heads: expected \(1,2,3\)"):
        attention_backward(np.ones((1, 2, 2)), x, x, x)
    with pytest.raises(DataError, match=r"Q \(1,2,3\) and K \(1,2,2\): last dimension 3 != 2"):
        attention_backward(x, x, np.ones((1, 2, 2)), x)
    with pytest.raises(UsageError, match="score 'cosine'"):
        attention_backward(x, x, x, x, score="cosine")
    with pytest.raises(UsageError, match="a cache of keys and values has no gradients"):
        multi_head_attention_vjp(x, x, x, heads=1, kv_store=lambda make: (*make(), 0))


# --- finite differences -----------------------------------------------------------------------------------------------


def draw_mask(draw, rng, shape):
    """A mask of some kind, some of its axes broadcast, its last perhaps shorter than the keys."""
    kind = draw(st.sampled_from(["none", "none", "bool", "float", "blocking"]))
    if kind == "none":
        return None
    axes = draw(st.integers(1, len(shape)))
    size = [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape[-axes:]]
    if size[-1] > 2 and draw(st.booleans()):
        size[-1] -= 1
    if kind == "bool":
        return rng.random(size) < 0.7
    mask = rng.standard_normal(size)
    return mask if kind == "float" else np.where(rng.random(size) < 0.25, -np.inf, mask)


def draw_score(draw, rng, q, k):
    """A score function and its parameters."""
    name = draw(st.sampled_from(["scaled-dot", "scaled-dot", "dot", "additive", "general"]))
    hidden = draw(st.integers(1, 3))
    width = q.shape[-1]
    if name == "additive":
        va = (hidden,) if draw(st.booleans()) else (hidden, 1)
        shapes = {"wa": (width, hidden), "ua": (width, hidden), "va": va}
    elif name == "general":
        shapes = {"w": (width, width) if draw(st.booleans()) else (q.shape[-3], width, width)}
    else:
        return {"score": name}
    return {"score": name, "score_params": {key: rng.standard_normal(shape) for key, shape in shapes.items()}}


@st.composite
def cases(draw):
    """Queries, keys, values and any combination of the options of attention."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    groups, sharing = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys, width, out = (draw(st.integers(1, n)) for n in (6, 7, 4, 3))
    q = rng.standard_normal((*batch, groups * sharing, queries, width))
    k, v = (rng.standard_normal((*batch, groups, keys, n)) for n in (width, out))
    options = draw_score(draw, rng, q, k)
    past = draw(st.sampled_from([0, 0, 2]))
    if past:
        options["past_key"], options["past_value"] = (
            rng.standard_normal((*batch, groups, past, n)) for n in (width, out)
        )
    elif batch and draw(st.booleans()):
        options["lengths"] = rng.integers(0, keys + 1, batch)
    else:
        options["past"] = draw(st.integers(0, 2))
    options["mask"] = draw_mask(draw, rng, (*q.shape[:-1], keys + past))
    if draw(st.booleans()):
        shape = (*q.shape[:-1], keys + past)
        options["bias"] = rng.standard_normal(
            [1 if draw(st.booleans()) else n for n in shape[-draw(st.integers(1, 3)) :]]
        )
    options["causal"] = draw(st.booleans())
    options["align"] = draw(st.sampled_from([None, "top-left", "bottom-right"]))
    options["window"] = draw(st.sampled_from([(-1, -1), (1, -1), (-1, 1), (2, 0)]))
    options["scale"] = draw(st.sampled_from([None, 0.7]))
    options["softcap"] = draw(st.sampled_from([0.0, 1.5]))
    return rng, {"q": q, "k": k, "v": v}, options


def heads_of(inputs, options):
    """The heads of attention, whose inputs may be among the options and the parameters of the score."""
    arrays = {name: x for name, x in inputs.items() if name not in SCORE_PARAMS}
    score_params = {name: x for name, x in inputs.items() if name in SCORE_PARAMS} or None
    return attention(**{**options, **arrays, "score_params": score_params}, keep=())["heads"]


def check_directions(rng, function, inputs, gradients):
    """The derivative of a number along a random direction of each input, and of all at once, is the gradient's."""
    assert set(gradients) == set(inputs)
    for names in [*((name,) for name in inputs), tuple(inputs)]:
        steps = {name: rng.standard_normal(inputs[name].shape) for name in names}
        size = 1e-6
        ends = [function(inputs | {n: inputs[n] + sign * size * steps[n] for n in names}) for sign in (1, -1)]
        expected = sum((gradients[name] * steps[name]).sum() for name in names)
        assert abs((ends[0] - ends[1]) / (2 * size) - expected) <= 1e-7 * (1 + abs(expected)), names


def differentiable(inputs, options):
    """The inputs and those options that have a gradient."""
    arrays = {name: options[name] for name in ("bias", "past_key", "past_value") if options.get(name) is not None}
    if options.get("mask") is not None and options["mask"].dtype.kind == "f":
        arrays["mask"] = options["mask"]
    return inputs | arrays | dict(options.get("score_params") or {})


@settings(max_examples=150)
@given(cases())
def test_every_gradient_is_the_derivative(case):
    rng, inputs, options = case
    weight = rng.standard_normal((*inputs["q"].shape[:-1], inputs["v"].shape[-1]))
    gradients = attention_backward(weight, **inputs, **options)
    check_directions(
        rng, lambda arrays: (heads_of(arrays, options) * weight).sum(), differentiable(inputs, options), gradients
    )


# --- the fast paths ---------------------------------------------------------------------------------------------------

WAYS = {  # the sizes from which on blocks are used and weights are not kept -> what the forward pass returns
    "weights": ({"MANY": 0, "KEPT": 10**9}, {"heads", "weights"}),
    "lse": ({"MANY": 0, "KEPT": 0}, {"heads", "lse"}),
}
BLOCKS = {
    "ROWS": (3, 2),
    "LONG": 5,
    "KEYS": 2,
    "CELLS": 18,
    "PARTS": 2,
    "FEW": 0,
}  # so that small operands have several


@contextmanager
def small_blocks(way):
    with (
        patch.multiple(sys.modules["attnkit.model.backward.attention_backward"], PART=30, **WAYS[way][0]),
        patch.multiple(blocks, **BLOCKS),
    ):
        yield


@pytest.mark.parametrize("score", ["scaled-dot", "additive", "general"])
@pytest.mark.parametrize("way", ["formula", *WAYS])
def test_what_is_not_finite_in_padding_does_not_reach_the_gradients(way, score):
    rng = np.random.default_rng(1)
    q, k, v, grad = (rng.standard_normal((1, 2, 4, 3)) for _ in range(4))
    params = {"wa": rng.standard_normal((3, 2)), "ua": rng.standard_normal((3, 2)), "va": np.ones(2), "w": np.eye(3)}
    options = {"lengths": [3], "mask": np.array([1, 1, 1, 0])[:, None], "softcap": 3.0}
    options |= {"score": score, "score_params": params}
    clean = attention_backward(grad, q, k, v, **options)
    q[..., 3, :], k[..., 3, :], v[..., 3, :] = np.nan, np.inf, np.nan
    with small_blocks(way) if way in WAYS else nullcontext():
        saved = attention_forward(q, k, v, **options)
        grads = attention_backward(grad, q, k, v, **options, saved=saved)
    assert np.isfinite(saved["heads"]).all()
    for name, expected in clean.items():
        np.testing.assert_allclose(grads[name], expected, rtol=0, atol=1e-14)


def test_what_is_not_finite_and_attended_to_reaches_them():
    x = np.ones((1, 3, 2))
    for blank in ({"q": 1}, {"k": 1}, {"v": 1}, {"grad_output": 1}):
        arrays = {name: x.copy() for name in ("grad_output", "q", "k", "v")}
        for name, row in blank.items():
            arrays[name][0, row] = np.nan
        for way in WAYS:
            with small_blocks(way):
                grads = attention_backward(**arrays, causal=True)
            assert np.isfinite(grads["q"][0, 0]).all() and not np.isfinite(grads["q"][0, 1]).any()


@settings(max_examples=150)
@given(cases(), st.sampled_from(list(WAYS)), st.sampled_from(["float64", "float32"]), st.booleans())
def test_blocks_equal_the_formula(case, way, dtype, has_saved):
    rng, inputs, options = case
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    grad = rng.standard_normal((*inputs["q"].shape[:-1], inputs["v"].shape[-1])).astype(dtype)
    formula = attention_backward(grad, **inputs, **options)
    with small_blocks(way):
        saved = attention_forward(**inputs, **options)
        assert set(saved) == (
            WAYS[way][1] if "dot" in options["score"] or options["score"] == "general" else WAYS["lse"][1]
        )
        blocks = attention_backward(grad, **inputs, **options, saved=saved if has_saved else None)
    heads, largest = attention(**inputs, **options)["heads"], np.abs(inputs["v"]).max(initial=0)
    np.testing.assert_allclose(saved["heads"], heads, rtol=0, atol=LIMITS[dtype] * largest)  # values may cancel
    same(blocks, formula, LIMITS[dtype], smallest=1)  # dP - D cancels where a weight is nearly 1


LIMITS = {"float64": 1e-12, "float32": 1e-5}
HARD = {
    "causal": {"causal": True},
    "bottom-right": {"causal": True, "align": "bottom-right"},
    "window": {"window": (50, 20)},
    "lengths": {"lengths": [300, 170], "causal": True},
    "steep": {"scale": 3.0},
    "softcap": {"softcap": 2.0, "causal": True},
    "past": {"past": 40, "causal": True},
    "padding": {"mask": np.arange(300) < np.array([300, 123])[:, None, None, None]},
    "no keys": {"mask": (np.arange(260) % 7 > 0)[:, None]},
    "alibi": {"bias": alibi_bias(np.arange(260), np.arange(300), 4)},
    "additive": {
        "score": "additive",
        "score_params": {"wa": np.eye(16)[:, :2], "ua": np.eye(16)[:, :2], "va": np.ones(2)},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", HARD)
def test_blocks_of_their_own_size_equal_the_formula(name, dtype, way, monkeypatch):
    rng, options = np.random.default_rng(3), HARD[name]
    q = rng.standard_normal((2, 4, 260, 16)).astype(dtype)
    k, v = (rng.standard_normal((2, 2, 300, width)).astype(dtype) for width in (16, 5))
    grad = rng.standard_normal((2, 4, 260, 5)).astype(dtype)
    module = sys.modules["attnkit.model.backward.attention_backward"]
    monkeypatch.setattr(module, "MANY", 10**9)
    formula = attention_backward(grad, q, k, v, **options)
    for limit, size in WAYS[way][0].items():
        monkeypatch.setattr(module, limit, size)
    same(attention_backward(grad, q, k, v, **options), formula, LIMITS[dtype])


def test_gradients_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(4)
    q, k, v, grad = (rng.standard_normal((1, 1, 1100, 8), dtype=np.float32) for _ in range(4))
    options = AttentionOptions(causal=True)
    saved = attention(q, k, v, options, keep=("lse",))
    each = [fused_attention_backward(grad, q, k, v, options, saved, threads=count) for count in (1, 2, 5)]
    kept = [fused_attention(q, k, v, options, threads=count) for count in (1, 2, 5)]
    for name in "qkv":
        np.testing.assert_array_equal(each[0][name], each[1][name])
        np.testing.assert_array_equal(each[0][name], each[2][name])
    np.testing.assert_array_equal(kept[0][1], kept[1][1])
    np.testing.assert_array_equal(kept[0][0], kept[2][0])


def test_the_gradients_of_long_texts_need_no_matrix():
    code = """
import resource, numpy as np
from attnkit.model.backward.attention_backward import attention_backward, attention_forward
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
q, k, v, grad = np.random.default_rng(0).standard_normal((4, 1, 8192, 32), dtype=np.float32)
attention_backward(*(x[:, :256] for x in (grad, q, k, v)), causal=True)
before = peak()
saved = attention_forward(q, k, v, causal=True, window=(3000, -1))
assert "weights" not in saved
attention_backward(grad, q, k, v, causal=True, window=(3000, -1), saved=saved)
print(peak() - before)
"""
    done = process.run_command([sys.executable, "-c", code], env=process.FEW_THREADS)
    assert float(done.out) < 60  # the matrix is 256 MB


@st.composite
def layers(draw):
    """Inputs, parameters and options of multi-head attention."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups, sharing, width = draw(st.integers(1, 2)), draw(st.integers(1, 2)), 2 * draw(st.integers(1, 2))
    heads, batch, queries = groups * sharing, draw(st.sampled_from([(), (2,)])), draw(st.integers(1, 5))
    keys = queries if draw(st.booleans()) else draw(st.integers(1, 5))
    shapes = {"wq": (5, heads * width), "wk": (3, groups * width), "wv": (4, groups * width), "wo": (heads * width, 6)}
    shapes |= {"bq": shapes["wq"][1:], "bk": shapes["wk"][1:], "bv": shapes["wv"][1:], "bo": shapes["wo"][1:]}
    dropped = draw(st.sets(st.sampled_from(["bq", "bk", "bv", "bo", "wo"])))
    if "wo" in dropped:
        shapes["bo"] = (heads * width,)
    params = {name: rng.standard_normal(shape) for name, shape in shapes.items() if name not in dropped}
    inputs = {name: rng.standard_normal((*batch, *size)) for name, size in
              (("query", (queries, 5)), ("key", (keys, 3)), ("value", (keys, 4)))}  # fmt: skip
    options = {"heads": heads, "kv_heads": groups, "causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["bias"] = rng.standard_normal((heads, queries, keys))
    if queries == keys and draw(st.booleans()):
        options["rotary"] = rotary_angles(np.arange(queries), draw(st.sampled_from([2, width])))
    return rng, inputs, params, options


@settings(max_examples=60)
@given(layers())
def test_every_gradient_of_multi_head_attention_is_the_derivative(case):
    rng, inputs, params, options = case

    def output_of(arrays):
        weights = {name: arrays[name] for name in params}
        changed = options | {name: arrays[name] for name in ("bias",) if name in arrays}
        return multi_head_attention(arrays["query"], arrays["key"], arrays["value"], weights, **changed)["output"]

    output, pullback = multi_head_attention_vjp(**inputs, params=params, **options)
    bias = {name: options[name] for name in ("bias",) if name in options}
    np.testing.assert_allclose(output, output_of(inputs | params | bias), rtol=0, atol=1e-12)
    weight = rng.standard_normal(output.shape)
    by_input, by_parameter = pullback(weight)
    assert list(by_parameter) == list(params)
    check_directions(
        rng, lambda arrays: (output_of(arrays) * weight).sum(), inputs | params | bias, by_input | by_parameter
    )


def test_queries_that_are_already_split():
    rng = np.random.default_rng(2)
    q, k, v, grad = (rng.standard_normal((2, 3, 4, 5)) for _ in range(4))
    output, pullback = multi_head_attention_vjp(q, k, v, causal=True)
    inputs, weights = pullback(grad)
    expected = attention_backward(grad, q, k, v, causal=True)
    assert output.shape == q.shape and weights == {}
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        np.testing.assert_allclose(inputs[name], expected[letter], rtol=0, atol=1e-14)


# --- PyTorch ----------------------------------------------------------------------------------------------------------

BOTTOM_RIGHT = {"causal": True, "align": "bottom-right"}
CASES = {
    "plain": {}, "causal": {"causal": True}, "scale": {"scale": 0.3}, "grouped": {"causal": True}, "float-mask": {},
    "bool-mask": {}, "bottom-right": BOTTOM_RIGHT, "empty-rows": BOTTOM_RIGHT, "window": {"window": (2, 1), "past": 1},
    "lengths": {"lengths": [7, 3]}, "softcap": {"softcap": 0.8}, "past": {"causal": True},
    "additive": {"score": "additive"}, "general": {"score": "general"}, "dot": {"score": "dot"},
}  # fmt: skip
LAYERS = {
    "multi-head-self": {"heads": 2, "causal": True},
    "multi-head-cross": {"heads": 2},
    "multi-head-rotary": {"heads": 4, "kv_heads": 2, "causal": True, "rotary": rotary_angles(np.arange(5), 4, 1e4)},
}
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


@cache
def references():
    with np.load(REFERENCES / "attention_gradients.npz") as members:
        return dict(members)


def load(case, dtype):
    """The inputs of a case in a dtype, the gradient of its output, and PyTorch's gradients."""
    members = {name.removeprefix(f"{case}."): x for name, x in references().items() if name.startswith(f"{case}.")}
    gradients = {name.removeprefix("grad."): x for name, x in members.items() if name.startswith("grad.")}
    inputs = {name: x for name, x in members.items() if not name.startswith("grad.")}
    inputs = {name: x.astype(dtype) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    return inputs, inputs.pop("grad_output"), gradients


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_attention_equals_pytorch(case, dtype):
    inputs, grad, expected = load(case, dtype)
    params = {name: inputs.pop(name) for name in SCORE_PARAMS if name in inputs}
    gradients = attention_backward(grad, **inputs, **CASES[case], score_params=params or None)
    assert {x.dtype for x in gradients.values()} == {np.dtype(dtype)}
    same(gradients, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", LAYERS)
def test_multi_head_attention_equals_pytorch(case, dtype):
    inputs, grad, expected = load(case, dtype)
    params = {name: inputs.pop(name) for name in PROJECTIONS if name in inputs}
    query, memory = inputs["query"], inputs.get("memory", inputs["query"])
    _, pullback = multi_head_attention_vjp(query, memory, memory, params, **LAYERS[case])
    by_input, by_parameter = pullback(grad)
    if memory is query:
        shared = {"query": by_input["query"] + by_input["key"] + by_input["value"]}
    else:
        shared = {"query": by_input["query"], "memory": by_input["key"] + by_input["value"]}
    gradients = shared | by_parameter
    assert {x.dtype for x in gradients.values()} == {np.dtype(dtype)}
    same(gradients, expected, TOLERANCE[dtype])
