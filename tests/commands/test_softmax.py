"""attnkit softmax and attend --weights-from: weights of given scores, and attention by given weights."""

import math

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.records import Record, Tensor
from tests.process import run


def table(x, **values):
    return attnkit.softmax(np.array(x, float), **values)


def test_the_notes_by_hand():
    np.testing.assert_allclose(table([[3, 2]])["x"], [[0.7311, 0.2689]], atol=5e-5)
    np.testing.assert_allclose(table([[10, 1]])["x"], [[0.9999, 0.0001]], atol=5e-5)
    np.testing.assert_allclose(table([[0, 1, 1]])["x"], [[0.1554, 0.4223, 0.4223]], atol=5e-5)
    columns = table([[3.53, 0.8], [-math.inf, -0.3]], axis=0)["x"]
    np.testing.assert_allclose(columns, [[1, 0.7503], [0, 0.2497]], atol=5e-5)


def test_every_step_follows_from_the_one_before():
    mask = np.array([[True, True, False]])
    record = table([[2, 4, 9]], temperature=2, mask=mask, steps=True)
    assert record["scaled"].tolist() == [[1, 2, 4.5]]
    assert record["masked"].tolist() == [[1, 2, -math.inf]]
    assert record["shifted"].tolist() == [[-1, 0, -math.inf]]
    np.testing.assert_allclose(record["exponentials"], [[math.exp(-1), 1, 0]])
    np.testing.assert_allclose(record["sum"], [[1 + math.exp(-1)]])
    np.testing.assert_array_equal(record["x"], record["exponentials"] / record["sum"])
    assert list(table([[2, 4]], steps=True)) == ["x", "shifted", "exponentials", "sum"]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_weights_of_an_axis_add_up_to_1(axis, dtype):
    scores = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(dtype) * 20
    weights = attnkit.softmax(scores, axis=axis)["x"]
    assert weights.dtype == dtype and weights.shape == scores.shape
    np.testing.assert_allclose(weights.astype(float).sum(axis=axis), 1, atol=3e-3 if dtype == "float16" else 1e-6)


def test_minus_infinity_has_no_weight_and_a_row_of_it_gets_zeros():
    assert table([[-math.inf, 0]])["x"].tolist() == [[0, 1]]
    with pytest.warns(AttnkitWarning, match="1 row of the weights is all zeros"):
        assert table([[-math.inf, -math.inf], [0, 0]])["x"].tolist() == [[0, 0], [0.5, 0.5]]
    with pytest.raises(DataError, match="all zeros"):
        table([[-math.inf]], strict=True)
    with pytest.raises(DataError, match=r"its query may not attend to any key$"):
        table([-math.inf, -math.inf], strict=True)  # the only row has no number


def test_the_mask_of_the_record_is_used_where_it_fits():
    scores = np.array([[1.0, 3, 2], [0, 1, 5], [1, 1, 2]])
    masked = attnkit.softmax(attnkit.mask(scores, causal=True))["x"]
    np.testing.assert_allclose(masked, [[1, 0, 0], [0.2689, 0.7311, 0], [0.2119, 0.2119, 0.5761]], atol=5e-5)
    logits = Record({"x": np.zeros((3, 5)), "mask": np.tri(3, dtype=bool)})
    with pytest.warns(AttnkitWarning, match=r"the mask of the record \(3,3\) does not fit x \(3,5\): it is not used"):
        np.testing.assert_allclose(attnkit.softmax(logits)["x"], 0.2)


def test_scores_and_softmax_are_the_weights_of_attend():
    """Batch, heads and a padding mask: softmax of the scaled scores is what attend computes."""
    record = attnkit.mask(attnkit.embed(["The cat sat", "Hi"], dim=8), causal=True)
    scaled = attnkit.attend(record, heads=2, seed=1, emit="scaled")
    weights = attnkit.attend(record, heads=2, seed=1, emit="weights")["x"]
    np.testing.assert_allclose(attnkit.softmax(scaled)["x"], weights, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("texts", [["The cat sat"], ["The cat sat", "Hi"]])
def test_attention_by_its_own_weights_is_attention(heads, texts):
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(8, 8)).astype("f4") for name in ("wq", "wk", "wv", "wo")}
    record = attnkit.mask(attnkit.embed(texts, dim=8), causal=True)
    whole = attnkit.attend(record, heads=heads, params=params, keep="weights")
    again = attnkit.attend(record, heads=heads, params=params, weights_from=whole["weights"], steps=True)
    np.testing.assert_allclose(again["x"], whole["x"], atol=1e-5)
    assert again.axes_of("x") == whole.axes_of("x") and again.axes_of("weights") == whole.axes_of("weights")
    assert list(again)[-1] == "heads" and again.labels["token"] == record.labels["token"]


def test_weights_are_taken_as_they_are():
    x = np.array([[1.0, 0], [0, 1], [1, 1]])
    assert attnkit.attend(x, weights_from=[[0.4, 0.4, 0.2]])["x"].tolist() == [pytest.approx([0.6, 0.6])]
    assert attnkit.attend(x, weights_from=[[2, 0, 0]])["x"].tolist() == [[2, 0]]  # they need not add up to 1


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"weights_from": np.ones((3, 4))}, DataError, r"weights \(3,4\) for values \(3,2\) and --heads 1: expected"),
        ({"weights_from": np.ones((2, 3, 3))}, DataError, r"expected \(T,3\) or \(1,T,3\)"),
        ({"weights_from": np.ones(3)}, DataError, r"expected values \(S, D\) or \(B, S, D\) and weights"),
        ({"weights_from": np.ones((3, 3)), "causal": True}, UsageError, "cannot be combined with"),
        ({"weights_from": np.ones((3, 3)), "keep": "scores"}, UsageError, "--keep: given weights have no scores"),
        ({"weights_from": np.ones((3, 3)), "params": {"wq": np.eye(2), "wx": np.eye(2)}}, DataError, "wx"),
    ],
)
def test_weights_that_cannot_be_are_refused(values, error, message):
    with pytest.raises(error, match=message):
        attnkit.attend(np.ones((3, 2)), **values)


def test_a_residual_keeps_the_axes_of_x():
    record = Record({"x": Tensor(np.array([[1.0, 2.0], [3.0, 4.0]]), ("query", "model"))})
    for options in ({}, {"residual": True}, {"add": record}):
        result = attnkit.attend(record, weights_from=np.eye(2), **options)
        assert result.tensor("x").axes == ("query", "model")
        np.testing.assert_array_equal(result["x"], record["x"] * (2 if options else 1))


@pytest.mark.parametrize(
    "line",
    [
        "softmax scores.json | loss --target 0",
        "softmax scores.json --axis 0 --temperature 3 --mask bias.json",
        "softmax scores.json --mask bool.json | softmax",
        "softmax four.json --mask heads.json",
        "attend batch.json --heads 2 --mask heads.json",
        "attend batch.json --heads 4 --bias heads.json",
        "attend x.json --weights-from scores.json --params weights.json --heads 2 --residual",
        "attend x.json --weights-from heads.json --heads 2 --add x.json | layernorm",
        "attend x.json --weights-from scores.json --value x.json | softmax",
        "attend batch.json --weights-from each.json --heads 2",
        "attend x.json --seed 1 --keep weights | attend --weights-from :weights",
    ],
)
def test_gradients_are_those_of_finite_differences(line, tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"scores": (3, 3), "bias": (3, 3), "x": (3, 4), "heads": (2, 3, 3), "batch": (2, 3, 4), "each": (2, 3, 3)}
    shapes["four"] = (2, 2, 3, 3)
    for name, shape in shapes.items():
        (tmp_path / f"{name}.json").write_text(str(rng.normal(size=shape).round(3).tolist()))
    (tmp_path / "bool.json").write_text("[[true,false,true],[true,true,true],[false,true,true]]")
    weights = {name: rng.normal(size=(4, 4)).round(3).tolist() for name in ("wv", "wo")}
    (tmp_path / "weights.json").write_text(str(weights).replace("'", '"'))
    done = run("grad", line, "--check", "--only", "x", cwd=tmp_path)
    assert done.code == 0, done.err


def test_the_axes_of_scores_stay(tmp_path):
    scores = Record({"x": Tensor(np.zeros((2, 3, 3)), ("head", "query", "key"))}, {"key": ["a", "b", "c"]})
    record = attnkit.softmax(scores, keep="sum")
    assert record.axes_of("x") == ("head", "query", "key") and record.axes_of("sum") == ("head", "query", "over key")
    with pytest.raises(UsageError, match=r"--axis: axis 3 for x of shape \(2,3,3\)"):
        attnkit.softmax(scores, axis=3)


def test_log_is_the_logarithm_and_finite_where_the_weight_is_zero():
    scores = np.array([[3.0, 2.0, -np.inf], [1000.0, 0.0, 0.0]])
    logs = attnkit.softmax(scores, log=True)["x"]
    assert np.allclose(np.exp(logs), attnkit.softmax(scores)["x"])
    assert logs[1].tolist() == [0.0, -1000.0, -1000.0] and logs[0, 2] == -np.inf
    assert math.isclose(logs[0, 0], -math.log(1 + math.exp(-1)))
    columns = attnkit.softmax(scores[1:].T, log=True, axis=0)["x"]
    assert np.array_equal(columns[:, 0], logs[1])


@pytest.mark.parametrize("options", ["", "--temperature 2", "--axis 0"])
def test_the_gradient_of_log(options):
    record = Record({"x": np.random.default_rng(0).standard_normal((2, 3))})
    line = f"softmax --log {options} | loss --target '1 0'"
    assert attnkit.grad(line, record, check=True)["check"][2] < 1e-6
