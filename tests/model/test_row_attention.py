"""Attention for some queries at a time equals that of all at once, for every score, rounding, rule and thread."""

import sys

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model import attention
from attnkit.model.kernels import row_attention
from attnkit.model.kernels.weight_stats import query_indices
from tests import process

RNG = np.random.default_rng(11)
BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 21, 33, 6
PARAMS = {"wa": RNG.random((WIDTH, 3)), "ua": RNG.random((WIDTH, 3)), "va": RNG.standard_normal(3)}
VIEWED = ("stats", "topk:5", "rows:20,0,-2")

KINDS = {
    "additive": {"score": "additive", "score_params": PARAMS},
    "float16": {"softmax_dtype": "float16"},
    "bfloat16 of dots": {"softmax_dtype": "bfloat16", "score": "dot"},
    "float64 of general": {
        "softmax_dtype": "float64", "score": "general",
        "score_params": {"w": RNG.standard_normal((HEADS, WIDTH, WIDTH))},
    },
}  # fmt: skip
RULES = {
    "none": {},
    "causal": {"causal": True},
    "bottom-right": {"causal": True, "align": "bottom-right"},
    "past": {"causal": True, "past": 12, "window": (9, -1)},
    "lengths and causal": {"lengths": [17, 33], "causal": True},
    "lengths of nothing": {"lengths": [0, 1], "window": (3, 2)},
    "mask": {"mask": RNG.random((QUERIES, KEYS)) < 0.4, "softcap": 1.5},
    "mask of 0 and 1": {"mask": (RNG.random((HEADS, 1, KEYS)) < 0.4).astype(np.uint8)},
    "short mask": {"mask": RNG.random((BATCH, 1, QUERIES, 20)) < 0.4},
    "short float mask": {"mask": np.where(RNG.random((QUERIES, 20)) < 0.4, -np.inf, 0.5)},
    "bias": {"bias": RNG.standard_normal((HEADS, QUERIES, KEYS)), "scale": 0.3},
    "bias of keys": {"bias": RNG.standard_normal(KEYS)},
}


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Many parts of two or three queries, in five bands, where there would be one."""
    monkeypatch.setattr(sys.modules["attnkit.model.attention"], "MANY", 1)
    monkeypatch.setattr(row_attention, "PART", 3 * 3 * BATCH * HEADS * KEYS)
    monkeypatch.setattr(row_attention, "BANDS", 5)


def operands(dtype="float64"):
    rng = np.random.default_rng(3)
    shapes = [(BATCH, HEADS, QUERIES, WIDTH), (BATCH, GROUPS, KEYS, WIDTH), (BATCH, GROUPS, KEYS, 5)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def near(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_row_attention_equals_dense_attention(kind, rule):
    options = KINDS[kind] | RULES[rule]
    q, k, v = operands()
    whole = attention(q, k, v, **options)
    ours = attention(q, k, v, keep=("lse",), **options)
    assert list(ours) == ["heads", "lse"]
    near(ours["heads"], whole["heads"])
    near(ours["lse"], whole["lse"])
    for how in VIEWED:
        expected = attention(q, k, v, summary=how, **options)
        ours = attention(q, k, v, summary=how, keep=("weights",), **options)
        near(ours["heads"], whole["heads"])
        assert [*ours][1:] == [name for name in expected if name.startswith("weights.")] != []
        for name in [*ours][1:]:
            near(ours[name], expected[name])
            assert ours[name].dtype == expected[name].dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [{}, {"lengths": 17, "causal": True}, {"causal": True, "past": 12}])
def test_without_a_batch(kind, rule):
    options = KINDS[kind] | rule
    batch = operands()
    for how in VIEWED:
        for keep in (("weights",), ("scores", "weights")):  # some queries at a time, and all at once
            alone = attention(*(x[0] for x in batch), summary=how, keep=keep, **options)
            lengths = {"lengths": [17, 17]} if "lengths" in rule else {}
            both = attention(*batch, summary=how, keep=keep, **options | lengths)
            for name in alone:
                assert alone[name].shape == both[name].shape[1:], name
                near(alone[name], both[name][0])


def test_the_statistics_are_those_of_the_weights():
    q, k, v = operands()
    options = KINDS["additive"] | {"causal": True, "past": 12}
    weights = attention(q, k, v, **options)["weights"]
    ours = attention(q, k, v, summary="stats", keep=("weights",), **options)
    near(ours["weights.received"], weights.sum(axis=-2))
    distance = np.abs(np.arange(QUERIES)[:, None] + 12 - np.arange(KEYS))
    near(ours["weights.span"], (weights * distance).sum(axis=-1))
    near(attention(q, k, v, summary="rows:1", keep=("weights",), **options)["weights.rows"], weights[..., [1], :])


@pytest.mark.parametrize("dtype, computed", [("float16", "float32"), ("float32", "float32"), ("int64", "float64")])
def test_heads_have_the_dtype_of_the_queries_and_summaries_the_computed_one(dtype, computed):
    q, k, v = operands(dtype)
    kept = {"heads": dtype.replace("int", "float"), "weights.lse": "float64"}
    kept |= {"weights.argmax": "int64", "weights.keys": "int64"}
    for how in VIEWED:
        for options in (KINDS["additive"], {}):  # by rows, and by blocks
            ours = attention(q, k, v, summary=how, keep=("weights",), **options)
            assert {name: x.dtype for name, x in ours.items()} == {name: kept.get(name, computed) for name in ours}


def test_any_threads_give_the_same_bits():
    q, k, v = operands("float32")
    found = [
        row_attention.row_attention(
            q, k, v, score="dot", softmax_dtype="bfloat16", summary="stats", causal=True, threads=threads
        )
        for threads in (1, 2, 5)
    ]
    assert all(np.array_equal(found[0][name], other[name]) for other in found[1:] for name in found[0])


def test_errors_tell_of_the_whole():
    q, k, v = operands()
    with pytest.raises(DataError, match=r"mask \(20,33\) does not broadcast to scores \(2,4,21,33\)"):
        attention(q, k, v, keep=(), mask=np.ones((20, 33), bool), softmax_dtype="float16")
    with pytest.raises(DataError, match=r"mask .*\[20\]\[4\]"):
        mask = np.ones((QUERIES, KEYS), np.uint8)
        mask[20, 4] = 7
        attention(q, k, v, keep=(), mask=mask, softmax_dtype="float16")
    with pytest.raises(DataError, match=r"bias \(34,\) does not broadcast to scores \(2,4,21,33\)"):
        attention(q, k, v, keep=(), bias=np.ones(34), softmax_dtype="float16")
    with pytest.raises(DataError, match=r"Q \(2,4,21,6\)"):
        attention(q, k, v, keep=(), score="additive", score_params=PARAMS | {"wa": np.ones((7, 3))})
    with pytest.raises(UsageError, match="query 21 of 21"):
        attention(q, k, v, keep=("weights",), summary="rows:21", softmax_dtype="float16")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_square():
    code = """
import resource, sys, numpy as np
from attnkit.model import attention
unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 6144, 4), dtype=np.float32)
params = {"wa": np.ones((4, 1)), "ua": np.ones((4, 1)), "va": np.ones(1)}
before = peak()
attention(q, k, v, summary="stats", keep=("weights",), softmax_dtype="float16")
attention(q, k, v, keep=(), score="additive", score_params=params)
print(peak() - before)
"""
    done = process.run_command([sys.executable, "-c", code], env=process.FEW_THREADS)
    assert float(done.out) < 110  # the matrix is 151 MB


@pytest.mark.parametrize("causal", [False, True])
def test_values_that_are_not_finite_reach_whom_they_may(causal):
    q, k, _ = operands()
    v = RNG.standard_normal((BATCH, GROUPS, KEYS, 5))
    v[..., [2, 9], 0] = np.inf  # some queries see one of both
    v[..., [5, 11], 1] = np.inf, -np.inf
    v[..., [0, 20], 2] = np.nan, np.inf
    ways = [KINDS["float64 of general"], {**KINDS["float64 of general"], "softmax_dtype": None}]  # by rows, by blocks
    found = [attention(q, k, v, keep=keep, causal=causal, **way)["heads"] for way in ways for keep in ((), None)]
    for heads in found:
        for column, meets in ((0, {2: np.inf, 9: np.inf}), (1, {5: np.inf, 11: np.nan}), (2, {0: np.nan, 20: np.nan})):
            for query in range(QUERIES):
                expected = [value for key, value in meets.items() if key <= query or not causal]
                mine = heads[:, :, query, column]
                assert (
                    np.isfinite(mine).all()
                    if not expected
                    else np.array_equal(mine, np.full_like(mine, expected[-1]), True)
                )
        near(heads[..., 3:], found[0][..., 3:])


@pytest.mark.parametrize("name", ["q", "k"])
def test_scores_that_are_not_numbers(name):
    given = dict(zip("qkv", operands(), strict=True))
    given[name][0, 0, 3] = np.nan
    whole = attention(*given.values(), causal=True, **KINDS["additive"])
    ours = attention(*given.values(), causal=True, keep=("lse",), **KINDS["additive"])
    for one in ours:
        np.testing.assert_allclose(ours[one], whole[one], atol=1e-12)
    assert np.isnan(ours["heads"][0, 0, 3]).all() and np.isfinite(ours["heads"][1]).all()


def test_the_log_sum_exp_of_rounded_scores():
    q, k, v = operands("float32")
    ours = attention(q, k, v, keep=("lse",), **KINDS["float16"])["lse"]
    scores = attention(q, k, v)["scaled"].astype(np.float16).astype(float)
    np.testing.assert_allclose(ours, np.logaddexp.reduce(scores, axis=-1), atol=1e-6)


def test_the_scale_is_that_of_the_width_unless_another_is_given():
    q, k, v = operands()
    near(row_attention.row_attention(q, k, v)["heads"], attention(q, k, v)["heads"])
    near(row_attention.row_attention(q, k, v, scale=0.25)["heads"], attention(q, k, v, scale=0.25)["heads"])


@pytest.mark.parametrize(("number", "index"), [(-3, 0), (-1, 2), (0, 0), (2, 2), (-4, None), (3, None)])
def test_a_query_is_counted_from_the_start_or_from_the_end(number, index):
    if index is not None:
        assert query_indices((number,), 3) == [index]
        return
    with pytest.raises(UsageError, match=rf"weights rows: query {number} of 3 \(expected -3 to 2\)"):
        query_indices((number,), 3)
