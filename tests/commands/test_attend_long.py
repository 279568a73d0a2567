"""attend and merge at any length: blocks, what the weights say, and parts of the keys in processes of their own."""

import sys

import numpy as np

import attnkit
from tests import process
from tests.commands.long_text import HEADS, WORDS, X, bash, text


def test_stats_of_the_weights_beside_the_output(folder):
    params = str(folder / "params.npz")
    plain = attnkit.attend(text(), params=params, heads=HEADS, causal=True, keep="weights")
    found = attnkit.attend(text(), params=params, heads=HEADS, causal=True, weights="stats")
    weights = plain["weights"]
    np.testing.assert_allclose(found["x"], plain["x"], atol=1e-12)
    np.testing.assert_allclose(found["weights.max"], weights.max(axis=-1), atol=1e-12)
    np.testing.assert_allclose(found["weights.received"], weights.sum(axis=-2), atol=1e-12)
    assert np.array_equal(found["weights.argmax"], weights.argmax(axis=-1))
    assert found.tensors["weights.entropy"].axes == ("head", "query")
    assert found.tensors["weights.received"].axes == ("head", "key")
    assert found.labels["query"] == found.labels["key"] == WORDS
    assert not {"weights", "lse"} & set(found)
    assert set(attnkit.attend(text(), weights="full")) == {"weights", "x"}


def test_rows_and_the_largest_weights_have_their_labels():
    plain = attnkit.attend(text(), heads=2, keep="weights")["weights"]
    rows = attnkit.attend(text(), heads=2, weights="rows:7,-1")
    np.testing.assert_allclose(rows["weights.rows"], plain[:, [7, 59]], atol=1e-12)
    assert rows.tensors["weights.rows"].axes == ("head", "row", "key")
    assert rows.labels["row"] == ["7 w7", "59 w59"]
    assert attnkit.attend(X, heads=2, weights="rows:7,-1").labels["row"] == ["7", "59"]
    top = attnkit.attend(text(), heads=2, weights="topk:3")
    np.testing.assert_allclose(top["weights.top"], -np.sort(-plain, axis=-1)[..., :3], atol=1e-12)
    assert top.tensors["weights.keys"].axes == ("head", "query", "rank")
    assert top["weights.keys"].dtype == np.int64


def test_the_offset_is_that_of_the_mask(folder):
    line = "attnkit embed < text --dim 8 | attnkit {} --only x"
    here = bash(line.format("attend --causal --offset -20 -q"), folder)
    there = bash(line.format("mask --causal --offset -20 | attnkit attend -q"), folder)
    assert here.code == there.code == 0
    assert here.out.split(b'"history"')[0] == there.out.split(b'"history"')[0]


def test_what_is_said_of_weights_of_narrow_floats_does_not_overflow():
    x = np.ones((70000, 1), np.float16)
    found = attnkit.attend(x, memory=np.ones((1, 1), np.float16), weights="stats")
    assert found["x"].dtype == np.float16
    assert found["weights.received"].tolist() == [[70000.0]]
    assert found["weights.span"][0, -1] == 69999


def test_a_text_longer_than_a_file_name(folder):
    assert bash(f"attnkit embed '{'word ' * 200}' --dim 4 -f json", folder).code == 0


def test_what_was_said_of_other_weights_goes():
    first = attnkit.attend(text(), heads=2, weights="stats")
    assert {name for name in attnkit.attend(first, weights="topk:2") if "." in name} == {"weights.top", "weights.keys"}


def test_the_weights_alone_do_not_hold_the_steps_to_them(folder):
    code = """
import resource, sys, numpy as np
from attnkit.model import attention
unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
q = np.random.default_rng(0).standard_normal((1, 4096, 4), dtype=np.float32)
before = peak()
attention(q, q, q, softcap=5.0, keep=("weights",))
print(peak() - before)
"""
    done = process.run_command([sys.executable, "-c", code], env=process.FEW_THREADS)
    assert float(done.out) < 220  # the matrix is 64 MB; with every step there were six
