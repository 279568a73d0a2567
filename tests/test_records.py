"""Records: tensors as single values, labels of the axes they share."""

import copy
import pickle

import numpy as np
import pytest

import attnkit
from attnkit import Record, Tensor
from attnkit.errors import DataError
from attnkit.interpret.comparison import Pair

X = np.arange(6.0).reshape(3, 2)
AXES = ("token", "model")
WORDS = ["The", "cat", "sat"]


def test_arrays_become_tensors_and_stay_the_same_arrays():
    record = Record({"x": X, "y": Tensor(X, ["token", "model"])})
    assert record["x"] is X and record.arrays()["y"] is X and record.get("z") is None
    assert record.tensors["x"].axes is None and record.tensors["y"].axes == AXES
    assert record.axes_of("x") == AXES  # the default ones of its rank


def test_labels_are_stored_once_in_the_record():
    record = Record({"x": Tensor(X, AXES, {"token": WORDS}), "y": Tensor(X, AXES), "z": np.zeros(2)})
    assert record.labels == {"token": WORDS} and not record.tensors["x"].labels
    assert record.tensor("y").labels == {"token": WORDS} and not record.tensor("z").labels


def test_the_labels_of_the_record_come_before_those_of_its_tensors():
    other = Tensor(X, AXES, {"token": ["a", "b", "c"]})
    assert Record({"x": other}, {"token": WORDS}).labels == {"token": WORDS}
    record = Record({"x": X}, {"token": WORDS})
    assert record.with_tensors({"y": other}).labels == {"token": ["a", "b", "c"]}
    assert record.with_tensors({"y": other}, {"token": ["d", "e", "f"]}).labels == {"token": ["d", "e", "f"]}
    assert record.labels == {"token": WORDS}


def test_a_replaced_tensor_keeps_its_place_and_nothing_else():
    record = Record({"x": Tensor(X, AXES, formula="a formula"), "y": X}).with_tensors({"x": X + 1})
    assert list(record) == ["x", "y"] and record.tensors["x"].axes is None and not record.tensors["x"].formula


def test_labels_leave_with_the_last_tensor_that_uses_them():
    record = Record({"x": Tensor(X, AXES), "y": Tensor(X.T, ("head", "token"))}, {"token": WORDS, "head": ["p", "q"]})
    assert record.without(["y"]).labels == record.select(["x"]).labels == {"token": WORDS}
    assert record.without(["z"]) is record
    assert record.select(["x"]).merge(record.select(["y"])).labels == record.labels


@pytest.mark.parametrize(
    "tensors, labels, problem",
    [
        ({"y": Tensor(X, ("a",))}, {}, r"tensor 'y': 1 axis names for shape \(3, 2\) \(expected 2\)"),
        ({"y": Tensor(X, ("a", "a"))}, {}, "tensor 'y': axis names a, a are not all different"),
        ({"x": X}, {"token": ["The"]}, "labels of axis 'token': 1 for the 3 indices of tensor 'x'"),
        ({"y": Tensor(X, AXES)}, {"model": [["a", "b"], ["c"]]}, "labels of axis 'model': 1 for the 2 indices"),
    ],
)
def test_names_and_labels_that_do_not_fit(tensors, labels, problem):
    with pytest.raises(DataError, match=problem):
        Record(tensors, labels).check()
    assert Record({"y": X}, {"token": ["The"]}).check()  # without names of its own, y uses no labels


def test_a_record_is_copied_and_pickled():
    record = Record({"x": Tensor(X, AXES, {"token": WORDS}, "a formula")}, history=[{"command": "a"}])
    for again in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert np.array_equal(again["x"], X) and again.tensors["x"].axes == AXES
        assert (again.labels, again.history) == (record.labels, record.history)


def test_a_tensor_is_an_operand_as_an_array_is():
    x = Tensor(X, ("query", "model"), {"query": WORDS})
    record = attnkit.layernorm(x)
    assert record.axes_of("x") == ("query", "model") and record.labels == {"query": WORDS}
    np.testing.assert_array_equal(record["x"], attnkit.layernorm(X)["x"])
    gamma = Tensor(np.ones(2))
    np.testing.assert_array_equal(attnkit.layernorm(X, gamma=gamma)["x"], record["x"])
    params = Record({"wq": np.eye(2), "wk": np.eye(2), "wv": np.eye(2), "wo": 2 * np.eye(2)})
    doubled = [attnkit.attend(X, params=given)["x"] for given in (params, params.tensors, params.arrays())]
    assert all(np.array_equal(y, 2 * attnkit.attend(X)["x"]) for y in doubled)


def test_formulas_are_of_the_last_tool():
    record = attnkit.attend(X, keep="weights")
    assert record.tensors["weights"].formula and record.tensors["x"].formula
    assert not attnkit.layernorm(record).tensors["weights"].formula


def test_the_values_of_a_comparison():
    a, b = Record({"x": Tensor(X, AXES, {"token": WORDS}), "y": X}), Record({"x": X.copy(), "z": X})
    b["x"][1] += [0.5, 0.25]
    report = Pair(a, b).compare()
    x, y, z = report.comparisons
    assert (x.name, x.differing, x.max_abs, y.problem, z.problem) == ("x", 2, 0.5, "only in A", "only in B")
    assert x.first == x.largest and (x.first.index, x.first.a, x.first.b) == ((1, 0), 2.0, 2.5)
    assert (x.first.place, x.first.short_place) == ("token 1 'cat', model 0", "1 'cat', 0")
    assert report["differing"].tolist() == [2, 6, 6] and report.labels["tensor"] == ["x", "y", "z"]
    assert report.labels["at"] == ["token 1 'cat', model 0", "only in A", "only in B"]
