"""Cross-entropy: as in PyTorch and ONNX, from frozen arrays; by hand; finite differences; blocks and places."""

import json
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import LossOptions
from attnkit.model.formulas import loss
from tests.places import REFERENCES

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@cache
def load_torch():
    """The members of each case, whose name has a point in its smoothing: reduction-0.1-weighted-ignored.NAME."""
    cases = {}
    with np.load(REFERENCES / "losses.npz") as members:
        for key in members:
            head, tail, name = key.split(".", 2)
            cases.setdefault(f"{head}.{tail}", {})[name] = members[key]
    return cases


@cache
def load_onnx():
    with np.load(REFERENCES / "onnx_losses.npz") as members:
        cases = json.loads(str(members["cases"]))
        for case in cases.values():
            case |= {side: [members[str(place)] for place in case[side]] for side in ("inputs", "outputs")}
    return cases


def options_of(case, members, dtype):
    reduction, smoothing, *_ = case.split("-")
    weight = members["weight"].astype(dtype) if "weight" in members else None
    return LossOptions(weight, label_smoothing=float(smoothing), reduction=reduction)


def close(ours, theirs, dtype):
    assert ours.dtype == dtype and ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("block", [1 << 16, 14, 1])  # elements: of all rows, of two rows, of fewer than one
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", sorted(load_torch()))
def test_losses_and_gradients_are_those_of_pytorch(case, dtype, block, monkeypatch):
    monkeypatch.setattr(loss, "BLOCK", block)
    members = load_torch()[case]
    logits, targets, upstream = members["logits"].astype(dtype), members["targets"], members["upstream"]
    options = options_of(case, members, dtype)
    close(model.cross_entropy(logits, targets, options), members[f"{dtype}.loss"], dtype)
    close(model.cross_entropy_backward(logits, targets, options, upstream), members[f"{dtype}.gradient"], dtype)
    np.testing.assert_array_equal(logits, members["logits"])  # not modified
    value, gradient = model.loss_and_gradient(logits, targets, options, upstream, in_place=True)
    close(value, members[f"{dtype}.loss"], dtype)
    close(logits, members[f"{dtype}.gradient"], dtype)
    assert gradient is logits


@pytest.mark.parametrize("case", sorted(load_onnx()))
def test_losses_are_those_of_onnx(case):
    members = load_onnx()[case]
    attributes, (x, targets, *weight), outputs = members["attributes"], members["inputs"], members["outputs"]
    x = np.moveaxis(x, 1, -1)
    options = LossOptions(
        *weight or [None], attributes.get("ignore_index", loss.IGNORE_INDEX), reduction=attributes["reduction"]
    )
    is_softmax = members["operator"] == "SoftmaxCrossEntropyLoss"
    function = model.cross_entropy if is_softmax else model.negative_log_likelihood
    np.testing.assert_allclose(function(x, targets, options), outputs[0], rtol=1e-6, atol=1e-6)
    for logs in outputs[1:]:
        ours = np.moveaxis(model.log_probabilities(x), -1, 1)
        np.testing.assert_allclose(ours, logs, rtol=1e-6, atol=1e-6)


def test_there_are_all_the_cases_of_onnx():
    operators = [case["operator"] for case in load_onnx().values()]
    assert operators.count("SoftmaxCrossEntropyLoss") == 34
    assert operators.count("NegativeLogLikelihoodLoss") == 18


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", loss.REDUCTIONS)
def test_the_gradient_is_the_finite_difference(smoothing, reduction):
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(4, 6)), rng.integers(0, 6, 4)
    options = LossOptions(rng.random(6), 2, smoothing, reduction)
    upstream = rng.normal(size=4 if reduction == "none" else ())
    direction, step = rng.normal(size=logits.shape), 1e-5
    losses = [
        (model.cross_entropy(logits + sign * step * direction, targets, options) * upstream).sum() for sign in (1, -1)
    ]
    slope = (model.cross_entropy_backward(logits, targets, options, upstream) * direction).sum()
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_computed_in_float32(dtype):
    logits = np.random.default_rng(2).normal(size=(3, 50)).astype(dtype)
    targets = [1, 2, 3]
    value = model.cross_entropy(logits, targets)
    assert value.dtype == np.float32
    assert value == model.cross_entropy(logits.astype(np.float32), targets)
    gradient = model.loss_and_gradient(logits, targets, in_place=True)[1]
    assert gradient.dtype == dtype and gradient is not logits
    expected = model.cross_entropy_backward(logits.astype(np.float32), targets).astype(dtype)
    np.testing.assert_array_equal(gradient.astype(float), expected.astype(float))


def test_large_logits_do_not_overflow_and_ignored_ones_may_be_anything():
    logits = np.array([[1e4, 0.0], [0.0, 1e4], [np.nan, np.inf]], np.float32)
    options = LossOptions(reduction="none")
    assert model.cross_entropy(logits, [0, 0, -100], options).tolist() == [0, 1e4, 0]
    assert model.cross_entropy_backward(logits, [0, 0, -100], options).tolist() == [[0, 0], [-1, 1], [0, 0]]


def test_no_tokens_and_only_ignored_ones():
    logits = np.zeros((2, 3))
    assert np.isnan(model.cross_entropy(logits, [-100, -100]))
    assert model.cross_entropy(logits, [-100, -100], LossOptions(reduction="sum")) == 0
    assert np.isnan(model.cross_entropy(logits[:0], []))
    assert (model.cross_entropy_backward(logits, [-100, -100]) == 0).all()


def test_a_number_for_one_token():
    value, gradient = model.loss_and_gradient(np.log(np.array([0.5, 0.25, 0.25])), 0)
    assert value == pytest.approx(np.log(2))
    np.testing.assert_allclose(gradient, [-0.5, 0.25, 0.25])


def test_probabilities_of_the_targets():
    probabilities = model.target_probabilities(np.log(np.array([[0.2, 0.8], [0.5, 0.5]])), np.array([1, 7]), 7)
    np.testing.assert_allclose(probabilities, [0.8, np.nan])


@pytest.mark.parametrize(
    ("targets", "options", "error", "message"),
    [
        ([0], LossOptions(), DataError, r"targets \(1,\) for logits \(2,3\): expected \(2,\)"),
        ([0, 3], LossOptions(), DataError, r"target 3 at \[1\] outside 0..2"),
        ([0, -1], LossOptions(), DataError, r"target -1 at \[1\] outside 0..2"),
        ([0, 1.5], LossOptions(), DataError, r"target 1.5 at \[1\] is not a whole number"),
        ([0, 1], LossOptions(label_smoothing=1.5), UsageError, r"label smoothing 1.5 \(expected 0 to 1\)"),
        ([0, 1], LossOptions(reduction="max"), UsageError, "reduction 'max' .expected one of none, sum, mean"),
        ([0, 1], LossOptions(np.ones(2)), DataError, r"weights \(2,\): expected \(3,\)"),
    ],
)
def test_errors(targets, options, error, message):
    with pytest.raises(error, match=message):
        model.cross_entropy(np.zeros((2, 3)), targets, options)


def test_log_probabilities_have_no_smoothing():
    with pytest.raises(UsageError, match="label smoothing"):
        model.negative_log_likelihood(np.zeros((1, 2)), [0], LossOptions(label_smoothing=0.1))
