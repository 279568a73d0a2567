"""attend and merge at any length: blocks, what the weights say, and parts of the keys in processes of their own."""

import sys

import numpy as np
import pytest

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, problem",
    [
        ("--weights most", "weights 'most' (expected full, stats, topk:K or rows:I,J,…)"),
        ("--weights rows:60", "query 60 of 60 (expected -60 to 59)"),
        ("--weights stats --steps", "--weights stats gives a part of the weights"),
        ("--weights topk:2 --keep weights", "--weights topk:2 gives a part of the weights"),
        ("--weights topk:2 --emit weights", "--weights topk:2 gives a part of the weights"),
        ("--partial --residual", "--partial: cannot be combined with --residual"),
        ("--partial --emit q", "--partial: cannot be combined with --emit"),
        ("--partial --strict", "--partial: cannot be combined with --strict"),
        ("--weights ''", "weights '' (expected full"),
        ("--offset 3 --align top-left", "--offset: cannot be combined with --align"),
    ],
)
def test_what_does_not_go_together(folder, flags, problem):
    done = bash(f"attnkit embed < text --dim 8 | attnkit attend {flags}", folder)
    assert (done.out, done.code) == (b"", 2)
    assert done.err.startswith("attnkit attend: ") and problem in done.err and done.err.count("\n") == 1


def test_the_offset_is_that_of_the_mask(folder):
    line = "attnkit embed < text --dim 8 | attnkit {} --only x"
    here = bash(line.format("attend --causal --offset -20 -q"), folder)
    there = bash(line.format("mask --causal --offset -20 | attnkit attend -q"), folder)
    assert here.code == there.code == 0
    assert here.out.split(b'"history"')[0] == there.out.split(b'"history"')[0]


@pytest.mark.parametrize("how", ["stats", "topk:2", "full"])
def test_no_queries(folder, how):
    np.save(folder / "none.npy", np.zeros((0, 4), np.float32))
    assert bash(f"attnkit attend none.npy --weights {how} -f json", folder).code == 0
    done = bash("attnkit attend none.npy --weights rows:-1", folder)
    assert (done.code, done.err) == (2, "attnkit attend: weights rows: query -1 of 0 (it has none)\n")


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


def test_what_an_additive_score_needs_is_missed_in_its_file(folder):
    x = folder / "narrow.npy"
    np.save(x, np.ones((3, 4)))
    one = np.ones((4, 2))
    np.savez(folder / "without.npz", wa=one, ua=one)
    found = bash("attnkit attend narrow.npy --score additive --params without.npz", folder)
    assert found.code == 3 and "without.npz: no va, which --score additive needs" in found.err
    np.savez(folder / "every.npz", wa=one, ua=one, va=np.ones(2), w=np.eye(4), wq=2 * np.eye(4), w1=one)
    for score in ("additive", "general", "dot"):  # what the others need is passed over
        found = bash(f"attnkit attend narrow.npy --score {score} --params every.npz -f json", folder)
        assert found.code == 0, found.err


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


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--value", "--key", "--query", "--memory", "--bias", "--mask", "--add"])
def test_a_result_that_is_no_number_comes_from_the_file_that_holds_it(folder, flag):
    (folder / "fine.json").write_text("[[1, 2], [3, 4]]")
    (folder / "bad.json").write_text('[["NaN", 2], [3, 4]]')
    (folder / "mask.json").write_text('[[0, "-Infinity"], [0, 0]]')  # which blames nobody
    more = "--mask mask.json" if flag != "--mask" else ""
    found = bash(f"attnkit attend fine.json {more} {flag} bad.json -f json", folder)
    assert found.code == 0 and f"the result is nan at [0][0]: {flag} is nan at [0][0]\n" in found.err
