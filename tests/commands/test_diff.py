"""`diff` of two traces of a model stops at the first stage that differs."""

import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from attnkit import commands
from attnkit.cli import pipeline
from attnkit.commands.diff import Pair, are_traces
from attnkit.formats import save
from attnkit.record import Record
from tests import process

MODELS = Path(__file__).parents[1] / "references" / "models"
NAMES = ("encoder.embed", "encoder.0.self.q", "encoder.0.norm1", "encoder.0.ffn.hidden", "encoder.0.norm2", "logits")


def trace(path, names=NAMES, **changed):
    """A trace file of small tensors, those of some stages replaced."""
    tensors = {name: np.full((2, 2), float(at)) for at, name in enumerate(names)}
    save(Record(tensors | {name.replace("_", "."): array for name, array in changed.items()}), str(path))


def diff(folder, *arguments):
    code, out, err = process.run("diff", *arguments, env={"NO_COLOR": "1"}, cwd=folder)
    assert code in (0, 1), err
    return code, out.decode().splitlines()


@pytest.fixture
def folder(tmp_path):
    trace(tmp_path / "a.npz")
    trace(tmp_path / "b.npz", encoder_0_norm1=np.array([[2.0, 2.0], [2.5, 2.0]]), logits=np.zeros((2, 2)))
    return tmp_path


def test_equal_traces_are_one_line(folder):
    assert diff(folder, "a.npz", "a.npz") == (0, ["all the same (6 stages)"])


def test_the_first_stage_that_differs(folder):
    code, lines = diff(folder, "a.npz", "b.npz")
    assert code == 1 and len(lines) == 3
    assert lines[0] == "the same up to encoder.0.self.q (2 stages)"
    assert lines[1].startswith("encoder.0.norm1: 1 of 4 differ (shape (2, 2), float64), first at ")
    assert lines[2] == "3 later stages not compared; --only NAME compares one"


def test_stages_within_the_tolerance_are_the_same(folder):
    code, lines = diff(folder, "a.npz", "b.npz", "--atol", "0.5")
    assert code == 1 and lines[0] == "the same up to encoder.0.norm2 (5 stages, largest difference 0.5)"
    assert lines[1].startswith("logits: 4 of 4 differ") and len(lines) == 2
    assert diff(folder, "a.npz", "b.npz", "--atol", "5") == (0, ["all the same (6 stages, largest difference 5)"])


def test_the_very_first_stage_and_another_shape(folder):
    trace(folder / "c.npz", encoder_embed=np.zeros((3, 2)))
    assert diff(folder, "a.npz", "c.npz")[1] == [
        "encoder.embed: shape (2, 2) in A, (3, 2) in B",
        "5 later stages not compared; --only NAME compares one",
    ]


def test_only_compares_every_stage_named(folder):
    code, lines = diff(folder, "a.npz", "b.npz", "--only", "encoder.0.norm2,encoder.0.norm1,logits")
    assert code == 1 and [line.split(":")[0] for line in lines] == ["encoder.0.norm2", "encoder.0.norm1", "logits"]


def test_stages_of_one_trace_alone(folder):
    trace(folder / "few.npz", (*NAMES[:2], "encoder.norm"))
    assert diff(folder, "a.npz", "few.npz") == (
        0,
        [
            "all the same (2 stages)",
            "only in A: encoder.0.norm1, encoder.0.ffn.hidden, encoder.0.norm2, logits",
            "only in B: encoder.norm",
        ],
    )


def test_traces_that_share_nothing_differ(folder):
    trace(folder / "one.npz", NAMES[:2])
    trace(folder / "other.npz", ("encoder.norm", "logits"))
    code, lines = diff(folder, "one.npz", "other.npz")
    assert code == 1 and lines[0] == "encoder.embed: only in A" and lines[-1] == "logits: only in B"


def test_the_figures_are_those_of_the_stages_compared(folder):
    done = process.run("diff", "a.npz", "b.npz", "-f", "json", cwd=folder)
    found = json.loads(done.out)
    assert done.code == 1 and found["labels"]["tensor"] == [*NAMES[:3]]
    assert found["tensors"]["differing"]["data"] == [0, 0, 1]


def test_what_is_no_trace():
    x = np.zeros(2)
    stage = Record({"encoder.0.self.weights": x, "decoder.2.cross.residual": x, "pooler": x, "head.norm": x})
    assert are_traces(stage, stage)
    for name in ("x", "encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.layers.0.norm1.weight", "encoder.w"):
        assert not are_traces(stage, stage.with_tensors({name: x}))
    assert not are_traces(stage, Record({"logits": x}))


def test_traces_of_a_model(tmp_path):
    for name, flags in (("a", []), ("b", ["--ablate", "encoder.1.self:2"])):
        line = ["attnkit", "encode", "--model", MODELS / "bert-mlm", "the cat sat", "--trace", f"{name}.npz", *flags]
        subprocess.run(line, check=True, capture_output=True, cwd=tmp_path)
    code, lines = diff(tmp_path, "a.npz", "b.npz")
    assert code == 1 and lines[0].startswith("the same up to encoder.1.self.weights (")
    assert lines[1].startswith("encoder.1.self.heads: ") and "head 2" in lines[1]
    assert lines[2].endswith(" later stages not compared; --only NAME compares one")
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
        ([1.0, -np.inf], [2.0, -np.inf], np.nan),
    ],
)
def test_the_cosine_of_special_numbers(a, b, cosine):
    found = commands.find_tool("diff").function(Pair(Record({"x": np.array(a)}), Record({"x": np.array(b)})))
    np.testing.assert_allclose(found["cosine"][0], cosine, rtol=1e-15)
    assert not abs(found["cosine"][0]) > 1


def test_no_cosine_is_above_1():
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = rng.normal(size=37)
        found = commands.find_tool("diff").function(Pair(Record({"x": x}), Record({"x": x * rng.uniform(0.5, 3)})))
        assert 1 - 1e-12 < found["cosine"][0] <= 1
