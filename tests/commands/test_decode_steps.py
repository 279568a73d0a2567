"""decode --steps and --keep without a model: from hidden states to logits, probabilities and words, by hand."""

import math

import numpy as np
import pytest

import attnkit
from attnkit.errors import UsageError

X, TABLE = np.array([[1.0, 2]]), np.array([[1.0, 0], [0, 1], [1, 1]])


def exponentials(logits):
    total = sum(map(math.exp, logits))
    return [math.exp(one) / total for one in logits]


def test_logits_and_probabilities_by_hand():
    """x tableᵀ = [1·1 + 2·0, 1·0 + 2·1, 1 + 2]."""
    record = attnkit.decode(X, table=TABLE, steps=True)
    assert record["logits"].tolist() == [[1, 2, 3]]
    np.testing.assert_allclose(record["x"], [exponentials([1, 2, 3])])
    assert record["next"].tolist() == [2] and [*record] == ["x", "logits", "next"]


def test_each_step_of_a_choice():
    record = attnkit.decode(X, table=TABLE, temperature=2, top_k=2, keep="all")
    assert record["scaled"].tolist() == [[0.5, 1, 1.5]]
    assert record["filtered"].tolist() == [[-math.inf, 1, 1.5]]
    np.testing.assert_allclose(record["probs"], [[0, *exponentials([1, 1.5])]])
    np.testing.assert_array_equal(record["x"], record["probs"])
    formulas = {name: record.tensors[name].formula for name in ("logits", "scaled", "filtered", "probs")}
    assert formulas == {
        "logits": "x tableᵀ",
        "scaled": "logits / 2",
        "filtered": "scaled, −∞ but for the words of top-k 2",
        "probs": "softmax(filtered)",
    }


@pytest.mark.parametrize("option", [{"top_p": 0.8}, {"min_p": 0.5}, {"top_k": 1}, {"temperature": 0.5, "top_p": 0.7}])
def test_the_softmax_of_the_last_step_is_the_result(option):
    rng = np.random.default_rng(0)
    record = attnkit.decode(rng.normal(size=(2, 3, 4)), table=rng.normal(size=(5, 4)), keep="all", **option)
    last = record["filtered"] if "filtered" in record else record["scaled"]
    np.testing.assert_allclose(attnkit.softmax(last)["x"], record["x"], atol=1e-12)


def test_the_record_without_steps_is_the_one_with_them():
    plain, stepped = attnkit.decode(X, table=TABLE), attnkit.decode(X, table=TABLE, keep="all")
    assert [*plain] == ["x", "logits", "next"]
    for name in plain:
        np.testing.assert_array_equal(plain[name], stepped[name])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep": "filtered"}, r"--keep: there is no filtered \(it has logits, probs\)"),
        ({"keep": "scaled", "top_k": 1}, r"there is no scaled \(it has logits, filtered, probs\)"),
        ({"keep": "weights"}, "keep: expected comma-separated names"),
    ],
)
def test_a_step_that_is_not_there_is_named(values, message):
    with pytest.raises(UsageError, match=message):
        attnkit.decode(X, table=TABLE, **values)
