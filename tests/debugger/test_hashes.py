"""Digests by hand, and two runs compared by them."""

import hashlib
import json
import math

import numpy as np
import pytest

import attnkit
from attnkit.debugger.hashes import HashPair, open_digests
from attnkit.errors import DataError, UsageError
from attnkit.recorders.digests import BLOCK, DigestWriter, digest, parse_digests


def test_a_digest_by_hand():
    x = np.array([[3.0, -4.0], [0.0, 12.0]], np.float32)
    found = digest(x.T)  # in C order of what is given
    assert found[:2] == ("float32", (2, 2)) and (found.sum, found.norm, found.largest) == (11.0, 13.0, 12.0)
    assert found.samples == (3.0, 0.0, -4.0, 12.0)
    assert found.sha256 == hashlib.sha256(np.array([3, 0, -4, 12], np.float32).tobytes()).hexdigest()
    assert digest(np.arange(15)).samples == (0, 2, 4, 6, 8, 10, 12, 14)
    empty = digest(np.zeros((0, 3)))
    assert empty[3:] == (0.0, 0.0, 0.0, 0, ()) and empty.sha256 == hashlib.sha256(b"").hexdigest()


def test_a_long_tensor_is_added_in_blocks():
    x = np.ones(BLOCK + 3, np.float16)
    x[-1] = -2
    found = digest(x)
    assert (found.sum, found.norm, found.largest) == (BLOCK, math.sqrt(BLOCK + 6), 2.0)
    x[5] = np.nan
    found = digest(x)
    assert (found.sum, found.norm, found.largest, found.non_finite) == (BLOCK - 1, math.sqrt(BLOCK + 5), 2.0, 1)


def test_distances_are_relative_to_the_largest_number_and_nan_is_nan():
    a, b = digest(np.array([1.0, 4.0, np.nan, np.inf])), digest(np.array([1.0, 4.0, np.nan, np.inf]))
    assert a.distance(b) == 0
    assert digest(np.array([2.0, 8.0])).distance(digest(np.array([2.0, 6.0]))) == 0.25
    assert digest(np.zeros(2)).distance(digest(np.zeros(2))) == 0
    assert math.isnan(a.distance(digest(np.array([1.0, 4.0, 2.0, np.inf]))))


def record(file, **arrays):
    with attnkit.record(file):
        for name, array in arrays.items():
            attnkit.tap(name, array)
    return str(file)


def test_digests_of_a_recording_are_those_of_its_tensors(tmp_path):
    arrays = {"x": np.array([1.0, np.nan, -np.inf]), "half": np.eye(3, dtype=np.float16), "is": np.array(True),
              "ids": np.arange(20)}  # fmt: skip
    kept, written = (record(tmp_path / name, **arrays) for name in ("run.npz", "run.json"))
    assert repr(open_digests(kept)) == repr(open_digests(written))  # NaN is not equal to itself
    document = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert document["digests"]["x"]["samples"] == [1.0, "NaN", "-Infinity"]
    assert attnkit.diff(kept, written, hash=True).same
    with pytest.raises(UsageError, match=r"run.txt|expected \.npz or \.json"):
        record(tmp_path / "run", x=np.eye(2))


def test_verdicts_of_stages(tmp_path):
    x = np.arange(6.0)
    a = record(tmp_path / "a.json", same=x, bits=x, shape=x, dtype=x, gone=x)
    b = record(
        tmp_path / "b.npz", same=x, bits=x * [1, 1, 1, 1, 1, 2], shape=x.reshape(2, 3), dtype=x.astype("f4"), new=x
    )
    report = HashPair.open([a, b]).compare()
    assert not report.same and report.labels["stage"] == ["same", "bits", "shape", "dtype", "gone", "new"]
    assert report.labels["verdict"] == [
        "identical", "different", "(6) and (2, 3)", "float64 and float32", "only in A", "only in B",
    ]  # fmt: skip
    np.testing.assert_array_equal(report["samples"], [0, 0.5, *[np.nan] * 4])
    np.testing.assert_allclose(report["norm_a"][:2], math.sqrt(55))
    assert report.sentences() == ["first stage that is not identical: bits (after 1 identical stage; 5 of 6 stages)"]
    assert HashPair.open([a, a]).compare().sentences() == ["identical: 5 stages"]


def test_many_stages_that_differ_are_counted(tmp_path):
    a, b = (record(tmp_path / f"{at}.json", **{f"x{number}": np.full(2, at) for number in range(25)}) for at in (1, 2))
    report = HashPair.open([a, b]).compare()
    assert (
        report.sentences()[0] == "5 more that are not identical" and "x19" in repr(report) and "x20" not in repr(report)
    )


@pytest.mark.parametrize(("text", "problem"), [
    ('{"digests":{}}', "no stage of .*a.json, as x"),
    ('{"digests":{"x":1}}', "these digests are damaged"),
    ('{"digests":[', "these digests are damaged"),
    ('{"digests":{"x":{"dtype":"float32","shape":[1e400],"sha256":"","sum":0,"norm":0,"largest":0,"non_finite":0,'
     '"samples":[1]}}}', "these digests are damaged"),
    ('{"digests":{"x":{"dtype":"f","shape":[3],"sha256":"","sum":0,"norm":0,"largest":0,"non_finite":0,'
     '"samples":[1]}}}', "these digests are damaged"),
])  # fmt: skip
def test_damaged_digests(tmp_path, text, problem):
    a = record(tmp_path / "a.json", x=np.arange(3))
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(DataError, match=problem):
        HashPair.open([a, str(tmp_path / "b.json")]).compare()


def test_digests_are_written_as_they_come():
    pieces = []
    writer = DigestWriter(lambda buffers: pieces.extend(buffers))
    writer.add("a", np.eye(2))
    assert len(pieces) == 1
    writer.add('quoted "name"', np.eye(2))
    writer.finish()
    assert [*parse_digests(b"".join(pieces))] == ["a", 'quoted "name"']
