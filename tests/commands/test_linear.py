"""The tool linear: x W + b, and its gradients."""

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.cli import find_tool, parser
from attnkit.errors import DataError, UsageError
from tests.commands.records import of

X = np.array([[1.0, 2.0], [3.0, 4.0]])
W, B = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), np.array([10.0, 20.0, 30.0])


def test_numbers_by_hand():
    record = attnkit.linear(of(X), params={"w": W, "b": B})
    assert record["x"].tolist() == [[11, 22, 33], [13, 24, 37]]
    assert record.axes_of("x") == ("token", "model") and record.tensors["x"].formula == "x W + b"
    without = attnkit.linear(of(X), params={"w": W})
    assert without["x"].tolist() == [[1, 2, 3], [3, 4, 7]] and without.tensors["x"].formula == "x W"


def test_what_else_the_record_holds_stays():
    record = attnkit.embed(["The cat", "A"], dim=2)
    result = attnkit.linear(record, params={"w": W})
    assert result.labels["token"] == record.labels["token"] and (result["mask"] == record["mask"]).all()
    assert result["x"].shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"b": B}, r"no w \(it has b\)"),
        ({"x": B}, r"no w \(it has x\); numpy.savez\('params.npz', w=w\) names it"),
        ({"w": W, "w2": W}, "w2 is not one of: b, w"),
        ({"w": W.T}, "first dimension 3 != 2"),
        ({"w": W, "b": B[:2]}, r"b \(2,\): expected \(3,\)"),
    ],
)
def test_bad_weights(params, problem):
    with pytest.raises(DataError, match=problem):
        attnkit.linear(of(X), params=params)


def test_weights_come_from_one_place():
    with pytest.raises(UsageError, match="needs --params FILE, --model DIR or --activation"):
        attnkit.linear(of(X))


def test_gradients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.savez("p.npz", w=W, b=B)
    pipeline = "linear x.npy --params p.npz | loss --target '0 2' --reduction sum"
    (result,) = parser.parse(find_tool("grad"), [pipeline, "--check"]).open_stream(None).items
    assert result["check"][2] < 1e-6
    np.testing.assert_allclose(result["1.linear.w"], X.T @ result["1.linear.x"])
    assert result.axes_of("1.linear.w") == ("model", "out")


ROWS = np.array([[-1.0, 0.5], [3.0, -4.0]])


@pytest.mark.parametrize("name", [name for name in model.ACTIVATIONS if name != "identity"])
def test_an_activation_alone_is_its_function(name):
    assert np.array_equal(attnkit.linear(ROWS, activation=name)["x"], model.ACTIVATIONS[name](ROWS))
    assert attnkit.linear(ROWS.astype(np.float16), activation=name)["x"].dtype == np.float16
    assert attnkit.linear(np.array([[1, 2]]), activation="tanh")["x"].dtype == np.float64


def test_it_follows_the_weights():
    layer = {"w": np.array([[1.0, -1.0], [0.0, 1.0]]), "b": np.array([0.0, 0.25])}
    assert attnkit.linear(ROWS, params=layer, activation="relu")["x"].tolist() == [[0.0, 1.75], [3.0, 0.0]]
    assert attnkit.linear(ROWS, params=layer, activation="relu", add=ROWS)["x"].tolist() == [[-1.0, 2.25], [6.0, -4.0]]


@pytest.mark.parametrize("line", ["linear --activation gelu", "linear --params {} --activation tanh"])
def test_its_gradient(line, tmp_path):
    np.savez(tmp_path / "w.npz", weight=np.array([[1.0, -1.0], [0.5, 1.0]]), bias=np.ones(2))
    checked = attnkit.grad(f"{line.format(tmp_path / 'w.npz')} | loss --target '1 0'", ROWS, check=True)
    assert checked["check"][2] < 1e-6


def test_the_gradient_of_a_norm_with_weights_of_a_file(tmp_path):
    np.savez(tmp_path / "norm.npz", weight=np.array([1.0, 2.0]), bias=np.ones(2))
    checked = attnkit.grad(f"layernorm --params {tmp_path / 'norm.npz'} | loss --target '1 0'", ROWS, check=True)
    assert checked["check"][2] < 1e-6 and checked["1.layernorm.gamma"].shape == (2,)
