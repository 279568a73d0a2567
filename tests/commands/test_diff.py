"""`diff`: the figures of two tensors, records that are compared by name, traces up to the first stage that differs."""

import hashlib
import itertools
import json

import numpy as np
import pytest

from attnkit.cli import pipeline
from attnkit.display import Style, draw_blocks
from attnkit.formats import save
from attnkit.interpret.comparison import Pair, are_traces
from attnkit.records import Record
from tests import process
from tests.places import MODELS

NAMES = ("encoder.embed", "encoder.0.self.q", "encoder.0.norm1", "encoder.0.ffn.hidden", "encoder.0.norm2", "logits")


def trace(path, names=NAMES, **changed):
    """A trace file of small tensors, those of some stages replaced."""
    tensors = {name: np.full((2, 2), float(at)) for at, name in enumerate(names)}
    save(Record(tensors | {name.replace("_", "."): array for name, array in changed.items()}), str(path))


def diff(folder, *arguments):
    code, out, err = process.run("diff", *arguments, env={"NO_COLOR": "1"}, cwd=folder)
    assert code in (0, 1), err
    return code, out.decode().splitlines()


def stages(lines):
    """The tensors of the lines of a table, which are below its rule."""
    at = next(at for at, line in enumerate(lines) if set(line) == {"─"})
    rows = itertools.takewhile(lambda line: not line.startswith("first "), lines[at + 1 :])
    return [line.split()[0] for line in rows]


@pytest.fixture
def folder(tmp_path):
    trace(tmp_path / "a.npz")
    trace(tmp_path / "b.npz", encoder_0_norm1=np.array([[2.0, 2.0], [2.5, 2.0]]), logits=np.zeros((2, 2)))
    return tmp_path


def test_what_is_no_trace():
    x = np.zeros(2)
    stage = Record({"encoder.0.self.weights": x, "decoder.2.cross.residual": x, "pooler": x, "head.norm": x})
    assert are_traces(stage, stage)
    for name in ("x", "encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.layers.0.norm1.weight", "encoder.w"):
        assert not are_traces(stage, stage.with_tensors({name: x}))
    assert not are_traces(stage, Record({"logits": x}))


def test_traces_of_a_model(tmp_path):
    for name, flags in (("a", []), ("b", ["--ablate", "encoder.1.self:2"])):
        line = ["encode", "--model", MODELS / "bert-mlm", "the cat sat", "--trace", f"{name}.npz", *flags]
        assert process.run(*line, cwd=tmp_path).code == 0
    code, lines = diff(tmp_path, "a.npz", "b.npz")
    assert code == 1 and lines[0].startswith("the same up to encoder.1.self.weights (")
    assert stages(lines[1:])[0] == "encoder.1.self.heads" and "head 2, " in lines[4]
    assert lines[-1].endswith(" later stages not compared; --all compares all, --only NAME one")
    assert diff(tmp_path, "a.npz", "a.npz")[0] == 0


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_the_cosine_of_numbers_whose_squares_leave_the_range(tmp_path, factor):
    a, b = str(tmp_path / "a.npy"), str(tmp_path / "b.npy")
    np.save(a, np.array([3.0, 4.0]) * factor)
    np.save(b, np.array([4.0, 3.0]) * factor)
    (found,) = pipeline.chain_stages(pipeline.parse_stages(f"diff {a} {b} -f json")).items
    np.testing.assert_allclose(found["cosine"], 0.96)


def test_the_history_of_a_difference_has_both_files(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        save(Record({"x": np.full((2, 2), value)}), str(tmp_path / f"{name}.npz"))
    found = process.run("diff", "a.npz", "b.npz", "-f", "json", cwd=tmp_path)
    [entry] = json.loads(found.out)["history"]
    digests = {f"{name}.npz": hashlib.sha256((tmp_path / f"{name}.npz").read_bytes()).hexdigest() for name in "ab"}
    assert found.code == 1 and entry["files"] == digests


@pytest.mark.parametrize(
    ("a", "b", "cosine"),
    [
        ([1.0, -np.inf], [1.0, -np.inf], 1.0),
        ([np.nan, 2.0], [np.nan, 2.0], 1.0),
        ([0.0, 0.0], [0.0, 0.0], 1.0),
        ([0.0, 0.0], [1.0, 0.0], 0.0),
        ([1e300, 1e300], [2e300, 2e300], 1.0),
        ([1e-300, 0.0], [-1e-300, 0.0], -1.0),
        ([1.0, 2.0, -np.inf], [2.0, 4.0, -np.inf], 1.0),
        ([1.0, -np.inf], [1.0, 2.0], np.nan),
    ],
)
def test_the_cosine_of_special_numbers(a, b, cosine):
    found = Pair(Record({"x": np.array(a)}), Record({"x": np.array(b)})).compare()
    np.testing.assert_allclose(found["cosine"][0], cosine, rtol=1e-15)
    assert not abs(found["cosine"][0]) > 1


def test_no_cosine_is_above_1():
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = rng.normal(size=37)
        found = Pair(Record({"x": x}), Record({"x": x * rng.uniform(0.5, 3)})).compare()
        assert 1 - 1e-12 < found["cosine"][0] <= 1


def report(a, b):
    return Pair(Record({"x": np.asarray(a)}), Record({"x": np.asarray(b)})).compare()


def test_the_figures_of_two_tensors_by_hand():
    found = report([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.5], [4.0, 4.0]])
    assert not found.same and not found["same"]
    assert [*found] == ["same", "differing", "size", "max_abs", "max_rel", "cosine", "at", "first"]
    figures = [found[name].tolist() for name in ("differing", "size", "max_abs", "max_rel")]
    assert figures == [[2], [4], [1.0], [0.25]]  # |3 − 4|, |3 − 4| / 4 and not |2 − 2.5| / 2.5 = 0.2
    np.testing.assert_allclose(found["cosine"], [34 / np.sqrt(30 * 39.25)], rtol=1e-15)  # 1 + 5 + 12 + 16
    assert found["at"].tolist() == [[1, 0]] and found["first"].tolist() == [[0, 1]]
    assert found.labels == {"tensor": ["x"], "at": ["token 1, model 0"], "first": ["token 0, model 1"]}


@pytest.mark.parametrize(
    ("a", "b", "relative"),
    [
        ([1.0, 3.0], [0.0, 2.0], 0.5),  # b = 0 is left out
        ([1.0, 2.0], [0.0, 2.0], np.nan),  # b is 0 wherever they differ
        ([0.0, 2.0], [0.0, 2.0], 0.0),
        ([np.inf, 2.0], [1.0, 2.0], np.inf),
        ([np.nan, 3.0], [1.0, 2.0], 0.5),
    ],
)
def test_relative_differences_are_those_where_b_is_not_0(a, b, relative):
    np.testing.assert_equal(report(a, b)["max_rel"][0], relative)


def test_what_is_not_defined_is_a_dash_in_the_table():
    row = repr(report([1.0, 2.0], [0.0, 2.0])).splitlines()[2]
    assert row.split()[:7] == ["x", "1", "of", "2", "1", "–", "0.894427"] and "inf" not in row


def test_equal_infinities_are_the_same():
    masked = np.array([[1.0, -np.inf], [2.0, 3.0]])
    assert report(masked, masked.copy()).same and report(masked, masked.copy())["cosine"] == 1
    found = report(masked, masked + 1)
    assert found["differing"] == 3 and found["max_abs"] == 1
    np.testing.assert_allclose(found["cosine"], [20 / np.sqrt(14 * 29)], rtol=1e-15)


def test_places_have_the_labels_of_the_operand_that_has_them():
    plain, labelled = Record({"x": np.zeros((2, 1))}), Record({"x": np.eye(2)[:, 1:]}, {"token": ["The", "cat"]})
    for pair in (Pair(plain, labelled), Pair(labelled, plain)):
        assert pair.compare().labels["at"] == ["token 1 'cat', model 0"]


@pytest.mark.parametrize("width", [40, 60, 76, 80, 100])
def test_tables_keep_to_the_width(width):
    name = "decoder.10.self.weights"
    x = np.zeros((3, 5, 5))
    labels = {"token": ["lighthouse"] * 5}
    a, b = (Record({name: array}, labels) for array in (x, x + 1))
    style = Style(width=width)
    text = draw_blocks(Pair(a, b).compare().blocks(style), style)
    table = text.split("first and")[0].splitlines()
    assert max(map(len, table)) <= width and ("75 of 75" in text)


def test_a_heat_map_of_a_difference_is_even_about_0():
    labels = {"token": ["The", "cat"]}
    a, b = (Record({"x": np.array(rows)}, labels) for rows in ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 3.0]]))
    text = repr(Pair(a, b, heatmap=True).compare())
    assert text.split("\n\n")[1].splitlines() == [
        "x: A − B (token 2, model 2) float64",
        "     0   1",
        "The ▒▒▒▒▒▒▒▒",
        "cat ▒▒▒▒████",
        "-1  ░▒▓█ 1",
    ]
    assert repr(Pair(a, a, heatmap=True).compare()) == repr(Pair(a, a).compare())


def test_a_difference_with_nan_is_drawn():
    a, b = Record({"x": np.array([[np.nan, 1.0, -np.inf]])}), Record({"x": np.array([[0.0, 1.0, -np.inf]])})
    assert "? not finite" in repr(Pair(a, b, heatmap=True).compare())
