"""Attention over blocks equals the formula: every option, any blocks, any threads; its weights without the matrix."""

import sys
import threading
from collections import Counter, deque
from contextlib import suppress
from itertools import product
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model import attention
from attnkit.model.attention import ORDER
from attnkit.model.kernels.tiled_attention import merge_partial_attention, tiled_attention
from attnkit.model.kernels.tiles import KeyTile
from attnkit.model.kernels.weight_stats import weight_rows, weight_stats, weight_topk
from attnkit.model.processor import threads
from tests import process

INF, NAN = np.inf, np.nan
RNG = np.random.default_rng(7)
BLOCKS = (8, 16)  # small, so that there are several
BATCH, HEADS, QUERIES, KEYS = 2, 4, 37, 53
make_tile = KeyTile.__init__

VIEWED = {
    "stats": [f"weights.{name}" for name in ("lse", "entropy", "max", "argmax", "span", "received")],
    "topk:6": ["weights.top", "weights.keys"],
    "rows:30,0,-1": ["weights.rows"],
}

OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "bottom-right": {"causal": True, "align": "bottom-right"},
    "past": {"causal": True, "past": 16},
    "nothing above": {"causal": True, "align": "bottom-right", "window": (0, 0)},
    "window": {"window": (5, 3)},
    "window to the left": {"causal": True, "window": (4, -1), "past": 9},
    "window to the right": {"window": (-1, 2)},
    "window past the end": {"window": (2, 1), "past": 60},
    "lengths": {"lengths": [20, 53]},
    "lengths and causal": {"lengths": [20, 53], "causal": True, "window": (30, -1)},
    "lengths of nothing": {"lengths": [0, 1]},
    "scale": {"scale": -0.7},
    "softcap": {"softcap": 1.5},
    "mask": {"mask": RNG.random((QUERIES, KEYS)) < 0.4},
    "mask of each head": {"mask": RNG.random((BATCH, HEADS, QUERIES, KEYS)) < 0.4, "causal": True},
    "mask of keys": {"mask": RNG.random((BATCH, 1, 1, KEYS)) < 0.4},
    "mask of 0 and 1": {"mask": (RNG.random((QUERIES, KEYS)) < 0.4).astype(np.uint8)},
    "mask of no key": {"mask": np.zeros((QUERIES, 1), bool)},
    "mask of one block": {"mask": np.arange(KEYS) // 16 == 1},
    "short mask": {"mask": RNG.random((QUERIES, 20)) < 0.4},
    "float mask": {"mask": np.where(RNG.random((QUERIES, KEYS)) < 0.4, -INF, RNG.standard_normal((QUERIES, KEYS)))},
    "short float mask": {"mask": RNG.standard_normal((HEADS, QUERIES, 20)), "causal": True},
    "bias": {"bias": RNG.standard_normal((HEADS, QUERIES, KEYS))},
    "steep bias": {"bias": -90.0 * np.abs(np.arange(KEYS) - 20), "softcap": 4.0},
    "bias of -inf": {"bias": np.where(RNG.random(KEYS) < 0.5, -INF, 0), "window": (9, -1)},
    "all": {
        "bias": RNG.standard_normal((QUERIES, KEYS)), "mask": RNG.random((QUERIES, KEYS)) < 0.8, "causal": True,
        "window": (20, 4), "softcap": 2.0, "scale": 0.5, "lengths": [30, 50],
    },
}  # fmt: skip


def operands(groups=HEADS, dtype="float64", size=1.0, queries=QUERIES, keys=KEYS, width=8, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(BATCH, HEADS, queries, width), (BATCH, groups, keys, width), (BATCH, groups, keys, 5)]
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return (size * q).astype(dtype), k, v


def near(ours, expected, atol):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("size", [1.0, 40.0])
@pytest.mark.parametrize("tasks", [1, 32])  # with 1, four blocks of queries take turns with each block of keys
def test_it_is_the_formula(name, size, tasks, monkeypatch):
    monkeypatch.setattr("attnkit.model.kernels.tiled_attention.TASKS", tasks)
    for groups in (HEADS, 2, 1):
        q, k, v = operands(groups, size=size)
        expected = attention(q, k, v, **OPTIONS[name])["heads"]
        heads, lse = tiled_attention(q, k, v, blocks=BLOCKS, **OPTIONS[name])
        near(heads, expected, 1e-12)
        masked = attention(q, k, v, **OPTIONS[name])["masked"]
        near(lse, np.logaddexp.reduce(masked, axis=-1), 1e-11)
        single = [x.astype(np.float32) for x in (q, k, v)]
        expected = attention(*(x.astype(float) for x in single), **OPTIONS[name])["heads"]
        near(tiled_attention(*single, blocks=BLOCKS, **OPTIONS[name])[0], expected, 2e-6 * np.abs(v).max())


@pytest.mark.parametrize("name", OPTIONS)
def test_a_few_long_keys_leave_the_others_in_float32(name, monkeypatch):
    monkeypatch.setattr("attnkit.model.kernels.tiled_attention.FAR", 4)
    products: Counter[np.dtype] = Counter()
    monkeypatch.setattr(
        "attnkit.model.kernels.tiles.KeyTile.__init__",
        lambda tile, rows, *rest: products.update([rows.columns.dtype]) or make_tile(tile, rows, *rest),
    )
    for groups in (HEADS, 2):
        q, k, v = operands(groups, "float32")
        k[:, :, 0] *= 400
        k[:, 0, 35] *= 60
        wide = [x.astype(float) for x in (q, k, v)]
        heads, lse = tiled_attention(q, k, v, blocks=BLOCKS, **OPTIONS[name])
        near(heads, attention(*wide, **OPTIONS[name])["heads"], 2e-6 * np.abs(v).max())
        expected = np.logaddexp.reduce(attention(*wide, **OPTIONS[name])["masked"], axis=-1)
        near(lse, expected, 2e-6 * np.abs(expected).max(initial=1, where=np.isfinite(expected)))
    if name in ("none", "lengths", "mask"):
        assert 0 < products[np.dtype(float)] < products[np.dtype(np.float32)]


@pytest.mark.parametrize("blocks", [(1, 1), (128, 1120), (5, 200), (37, 7), (64, 16)])
def test_any_blocks_do(blocks, monkeypatch):
    monkeypatch.setattr("attnkit.model.kernels.tiled_attention.TASKS", 1)
    q, k, v = operands(2)
    for name in ("lengths and causal", "all", "short mask"):
        expected = attention(q, k, v, **OPTIONS[name])["heads"]
        near(tiled_attention(q, k, v, blocks=blocks, **OPTIONS[name])[0], expected, 1e-12)


@pytest.mark.parametrize("queries, keys", [*product([0, 1, 2], [0, 1, 3])])
def test_few_queries_and_keys(queries, keys):
    q, k, v = operands(queries=queries, keys=keys)
    heads, lse = tiled_attention(q, k, v, causal=True)
    near(heads, attention(q, k, v, causal=True)["heads"], 1e-12)
    assert heads.shape == (BATCH, HEADS, queries, 5) and lse.shape == (BATCH, HEADS, queries)
    if not keys:
        assert not heads.any() and np.isneginf(lse).all()
    stats = weight_stats(q, k, causal=True)
    assert stats["entropy"].shape == lse.shape and stats["received"].shape == (BATCH, HEADS, keys)


def test_without_a_batch_and_in_every_dtype():
    q, k, v = (x[0] for x in operands(2))
    for dtype in ("float16", ml_dtypes.bfloat16, "float32", "float64", "int64"):
        given = [(4 * x).astype(dtype) for x in (q, k, v)]
        heads, lse = tiled_attention(*given, blocks=BLOCKS)
        expected = attention(*given)["heads"]
        assert heads.dtype == expected.dtype and heads.shape == expected.shape and lse.dtype == np.float64
        near(heads.astype(float), expected.astype(float), 0.1 if heads.itemsize == 2 else 2e-5)


def test_long_products_are_cut_and_summed():
    q, k, v = (x[:1] for x in operands(2, "float32", queries=300, keys=2500, width=64))
    expected = attention(*(x.astype(float) for x in (q, k, v)), causal=True, align="bottom-right")["heads"]
    near(tiled_attention(q, k, v, causal=True, align="bottom-right")[0], expected, 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3, 1e4, 1e18])
@pytest.mark.parametrize("value", [1e-30, 1.0, 1e30])
def test_float32_is_near_float64_for_large_scores(size, value):
    q, k, v = operands(2, "float32", size, queries=200, keys=300, width=64)
    v = (v * value).astype(np.float32)
    expected = attention(*(x.astype(float) for x in (q, k, v)))["heads"]
    near(tiled_attention(q, k, v, blocks=(64, 128))[0], expected, 2e-6 * np.abs(v).max())
    scale = np.float32(np.sqrt(size))
    far = q / scale, k * scale, v
    expected = attention(*(x.astype(float) for x in far))["heads"]
    near(tiled_attention(*far, blocks=(64, 128))[0], expected, 2e-6 * np.abs(v).max())


def test_integral_scores_of_ten_thousand_are_exact():
    q, k, v = operands(2, "float32", queries=50, keys=60)
    q, k = np.round(100 * q), np.round(100 * k)
    expected = attention(*(x.astype(float) for x in (q, k, v)), score="dot")["heads"]
    near(tiled_attention(q, k, v, scale=1.0, blocks=BLOCKS)[0], expected, 1e-6)


@pytest.mark.parametrize("name", ["causal", "window", "mask", "float mask", "lengths and causal", "all"])
def test_threads_change_no_bit(name, monkeypatch):
    monkeypatch.setattr("attnkit.model.kernels.tiles.SMALL", 0)
    monkeypatch.setattr("attnkit.model.kernels.tiled_attention.TASKS", 3)
    for dtype, size in (("float32", 1.0), ("float32", 99.0), ("float64", 1.0)):
        q, k, v = operands(2, dtype, size)
        first, *rest = [tiled_attention(q, k, v, blocks=BLOCKS, threads=n, **OPTIONS[name]) for n in (1, 2, 5)]
        for other in rest:
            assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
        first, *rest = [weight_stats(q, k, blocks=BLOCKS, threads=n, **OPTIONS[name]) for n in (1, 2, 5)]
        for other in rest:
            assert all(np.array_equal(first[stat], other[stat]) for stat in first)


@pytest.mark.parametrize("size", [1.0, 99.0])
def test_infinite_and_missing_values_count_where_their_weight_is_not_zero(size):
    q, k, v = operands(2, size=size)
    v[0, 0, 3, 0], v[0, 1, 20, 2], v[1, 0, 30, :], v[1, 1, 36, 1] = NAN, INF, NAN, -INF
    for name in ("causal", "window", "none", "mask"):
        ours = tiled_attention(q, k, v, blocks=BLOCKS, **OPTIONS[name])[0]
        near(ours, attention(q, k, v, **OPTIONS[name])["heads"], 1e-12)
    half = [x.astype(np.float16) for x in (q, k, v)]
    assert tiled_attention(*half)[0].dtype == np.float16
    both = np.array([[[INF], [-INF], [1.0]]])
    q = np.ones((1, 1, 1))
    assert np.isnan(tiled_attention(q, np.ones((1, 3, 1)), both)[0]).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_score_that_is_no_number_touches_its_own_row_only(bad):
    q, k, v = operands(2)
    q[0, 1, 5, 2] = bad
    k[1, 0, 30, 3] = bad
    for name in ("causal", "window", "mask", "bias", "lengths and causal"):
        steps = attention(q, k, v, **OPTIONS[name])
        ours, lse = tiled_attention(q, k, v, blocks=BLOCKS, **OPTIONS[name])
        near(ours, steps["heads"], 1e-12)
        stats = weight_stats(q, k, blocks=BLOCKS, **OPTIONS[name])
        top, _ = weight_topk(q, k, 3, blocks=BLOCKS, **OPTIONS[name])
        broken = np.isnan(steps["weights"]).all(axis=-1)
        assert np.array_equal(np.isnan(lse), broken)
        for stat in ("entropy", "max", "span"):
            assert np.array_equal(np.isnan(stats[stat]), broken)
        assert np.array_equal(stats["argmax"] == -1, broken | ~(steps["weights"] > 0).any(axis=-1))
        assert np.array_equal(np.isnan(top).all(axis=-1), broken)
        near(stats["received"], steps["weights"].sum(axis=-2), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype, atol", [("float64", 1e-12), ("float32", 3e-6)])
def test_the_weights_without_the_matrix(name, dtype, atol):
    for size, groups in ((1.0, 2), (20.0, 4)):
        q, k, _ = operands(groups, dtype, size)
        options = OPTIONS[name]
        formula = attention(q.astype(float), k.astype(float), k.astype(float), **options)
        weights, masked = formula["weights"], formula["masked"]
        offset = options.get("past", 0) + (KEYS - QUERIES if options.get("align") else 0)
        position = np.arange(QUERIES) + np.reshape(offset, (-1, 1, 1))
        if "lengths" in options:
            position = position + np.reshape(options["lengths"], (-1, 1, 1)) - QUERIES
        stats = weight_stats(q, k, blocks=BLOCKS, **options)
        entropy = -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0).sum(axis=-1)
        near(stats["lse"], np.logaddexp.reduce(masked, axis=-1), 30 * atol)
        near(stats["entropy"], entropy, 3 * atol)
        near(stats["max"], weights.max(axis=-1), atol)
        near(stats["span"], (weights * np.abs(position[..., None] - np.arange(KEYS))).sum(axis=-1), 200 * atol)
        near(stats["received"], weights.sum(axis=-2), 30 * atol)
        chosen = np.take_along_axis(weights, np.maximum(stats["argmax"], 0)[..., None], axis=-1)[..., 0]
        near(chosen, weights.max(axis=-1), atol)
        assert np.array_equal(stats["argmax"] >= 0, weights.any(axis=-1))

        largest, keys = weight_topk(q, k, 6, blocks=BLOCKS, **options)
        near(largest, -np.sort(-weights, axis=-1)[..., :6], atol)
        found = np.take_along_axis(weights, np.maximum(keys, 0), axis=-1)
        near(np.where(keys < 0, 0, found), largest, atol)
        assert np.array_equal(keys >= 0, largest > 0)
        if dtype == "float64":
            assert np.array_equal((keys >= 0).sum(axis=-1), np.minimum((weights > 0).sum(axis=-1), 6))
        near(weight_rows(q, k, [30, 0, 36, 0], blocks=BLOCKS, **options), weights[..., [30, 0, 36, 0], :], atol)


def test_equal_weights_go_by_the_lower_key():
    q, k = np.zeros((1, 3, 2)), np.ones((1, 40, 2))
    weights, keys = weight_topk(q, k, 5, blocks=(2, 8))
    assert np.array_equal(keys[0], [range(5)] * 3) and np.allclose(weights, 1 / 40)
    assert not weight_stats(q, k, blocks=(2, 8))["argmax"].any()
    k[0, ::3] = 2
    _, keys = weight_topk(q + 1, k, 16, blocks=(2, 8))
    assert np.array_equal(keys[0, 0], [*range(0, 40, 3), 1, 2])


def test_more_weights_than_keys_and_other_mistakes():
    q, k, v = operands()
    assert weight_topk(q, k, 99)[0].shape == (BATCH, HEADS, QUERIES, KEYS)
    assert weight_rows(q, k, []).shape == (BATCH, HEADS, 0, KEYS)
    with pytest.raises(UsageError, match=r"count 0 \(expected 1 or more\)"):
        weight_topk(q, k, 0)
    with pytest.raises(DataError, match=r"query 37 at \[1\] outside 0..36"):
        weight_rows(q, k, [0, 37])
    with pytest.raises(UsageError, match="window -2,0"):
        tiled_attention(q, k, v, window=(-2, 0))
    with pytest.raises(UsageError, match="align 'left'"):
        tiled_attention(q, k, v, align="left")
    with pytest.raises(DataError, match=r"mask \(5,5\) does not broadcast to scores \(2,4,37,53\)"):
        tiled_attention(q, k, v, mask=np.ones((5, 5), bool))
    with pytest.raises(DataError, match=r"mask value 2 at \[0\]"):
        tiled_attention(q, k, v, mask=np.full(KEYS, 2))


@pytest.mark.parametrize("dtype, atol", [("float64", 1e-13), ("float32", 1e-6)])
@pytest.mark.parametrize("name", ["none", "causal", "mask of no key", "float mask"])
def test_parts_of_the_keys_merge_into_the_whole(name, dtype, atol):
    q, k, v = operands(2, dtype, 30.0)
    whole, total = tiled_attention(q, k, v, **OPTIONS[name])
    allowed = attention(q, k, v, **OPTIONS[name])["masked"]
    allowed = np.where(np.isneginf(allowed), -INF, 0) if name != "float mask" else OPTIONS[name]["mask"]
    parts = []
    for keys in (slice(0, 9), slice(9, 10), slice(10, 53)):
        parts.append(tiled_attention(q, k[..., keys, :], v[..., keys, :], mask=allowed[..., keys]))
    output, lse = merge_partial_attention(*zip(*parts, strict=True))
    assert output.dtype == dtype
    near(output, whole, 10 * atol)
    near(lse, total, atol)
    twice = merge_partial_attention(*zip(merge_partial_attention(*zip(*parts[:2], strict=True)), parts[2], strict=True))
    near(twice[0], whole, 10 * atol)


def test_parts_of_wrong_shapes_are_refused():
    output, lse = np.ones((1, 2, 3)), np.zeros((1, 2))
    with pytest.raises(DataError, match="0 outputs and 0 log-sum-exps"):
        merge_partial_attention([], [])
    with pytest.raises(DataError, match=r"output \(1,2,4\) and log-sum-exp \(1,2\): expected \(1,2,3\) and \(1,2\)"):
        merge_partial_attention([output, np.ones((1, 2, 4))], [lse, lse])
    nothing, _ = merge_partial_attention([output, NAN * output], [lse, np.full((1, 2), -INF)])
    assert np.array_equal(nothing, output)


def test_the_threads_of_the_blas_are_left_as_they_were(monkeypatch):
    monkeypatch.setattr("attnkit.model.kernels.tiles.SMALL", 0)
    blas = threads._openblas()
    if blas is None:
        pytest.skip("NumPy here has a BLAS of another kind")
    count, set_threads = blas
    q, k, v = operands()
    found = count()
    try:
        for wanted in (2, 1, 3):
            set_threads(wanted)
            tiled_attention(q, k, v, blocks=BLOCKS)
            assert count() == wanted
            with threads.single_blas() as outer, threads.single_blas() as inner:
                assert outer == inner == wanted and count() == 1
            callers = [threading.Thread(target=tiled_attention, args=(q, k, v)) for _ in range(4)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            assert count() == wanted
    finally:
        set_threads(found)


def test_threads_are_used_again_by_calls_within_calls_and_at_once():
    def work(tasks):
        for task in tasks:
            if task < 100:
                threads.run_parallel(
                    lambda inner: done.extend(inner), range(100 + 10 * task, 110 + 10 * task), threads=3
                )

    done = []
    callers = [
        threading.Thread(target=threads.run_parallel, args=(work, range(20 * i, 20 * i + 20), 4)) for i in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(done) == list(range(100, 900))
    count = threading.active_count()
    for _ in range(50):
        threads.run_parallel(lambda tasks: [np.ones(10) for _ in tasks], range(8), threads=3)
    assert threading.active_count() <= max(count, 4)


@pytest.mark.parametrize(("outer", "inner"), [(2, 2), (4, 1)])
def test_calls_within_parallel_work_share_the_threads_that_it_leaves(outer, inner):
    def count_threads(seconds):
        together, found = threading.Barrier(2), set()

        def wait(tasks):
            for _ in tasks:
                found.add(threading.get_ident())
                with suppress(threading.BrokenBarrierError):
                    together.wait(seconds)

        threads.run_parallel(wait, range(2))
        return len(found)

    def work(tasks):
        counts.extend(count_threads(10 if inner == 2 else 0.1) for _ in tasks)

    counts = []
    with threads.single_blas(), patch.object(threads, "_saved", [4]):
        threads.run_parallel(work, range(outer), outer)
        assert count_threads(10) == 2  # not within it
    assert counts == [inner] * outer


def test_an_exception_in_a_thread_is_raised_and_stops_the_others():
    def work(tasks):
        for task in tasks:
            done.append(task)
            if task == 3:
                raise DataError("three")

    done, blas = [], threads._openblas()
    found = blas and blas[0]()
    with pytest.raises(DataError, match="three"):
        threads.run_parallel(work, range(1000), threads=3)
    assert len(done) < 1000
    assert (blas and blas[0]()) == found


def test_memory_does_not_grow_with_the_square():
    code = """
import resource, sys, numpy as np
from attnkit.model.kernels.tiled_attention import tiled_attention
from attnkit.model.kernels.tiles import KeyTile
from attnkit.model.kernels.weight_stats import weight_stats, weight_topk
unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16384, 16), dtype=np.float32)
before = peak()
tiled_attention(q, k, v, causal=True, window=(3000, -1))
weight_stats(q, k, causal=True, window=(1000, -1))
weight_topk(q, k, 4, causal=True, window=(500, -1))
print(peak() - before)
"""
    done = process.run_command([sys.executable, "-c", code], env=process.FEW_THREADS)
    assert float(done.out) < 60  # the matrix is 1024 MB


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_without_requested_intermediates_is_tiled(name, monkeypatch):
    q, k, v = operands(2)
    formula = attention(q, k, v, **OPTIONS[name])
    assert list(formula) == [*ORDER]
    for many in (1, HEADS * QUERIES * KEYS + 1):
        monkeypatch.setattr(sys.modules["attnkit.model.attention"], "MANY", many)
        ours = attention(q, k, v, keep=("lse",), **OPTIONS[name])
        assert list(ours) == ["heads", "lse"]
        near(ours["heads"], formula["heads"], 1e-12)
        near(ours["lse"], formula["lse"], 1e-12)
        assert many > 1 or np.array_equal(ours["heads"], tiled_attention(q, k, v, **OPTIONS[name])[0])


def test_keys_before_and_narrow_floats_by_blocks(monkeypatch):
    monkeypatch.setattr(sys.modules["attnkit.model.attention"], "MANY", 1)
    q, k, v = operands(2)
    past = {"past_key": k[..., :20, :], "past_value": v[..., :20, :], "causal": True}
    formula = attention(q, k[..., 20:, :], v[..., 20:, :], **past)
    ours = attention(q, k[..., 20:, :], v[..., 20:, :], keep=("present_key",), **past)
    near(ours["heads"], formula["heads"], 1e-12)
    assert np.array_equal(ours["present_key"], k)
    half = [x.astype(np.float16) for x in (q, k, v)]
    ours = attention(*half, keep=())["heads"]
    assert ours.dtype == np.float16
    near(ours, attention(*half)["heads"], 1e-3)
    with pytest.raises(DataError, match=r"lengths \(3,\) for Q \(2,4,37,8\): expected \(2,\)"):
        attention(q, k, v, lengths=[1, 2, 3], keep=())


@pytest.mark.parametrize("name", OPTIONS)
def test_weight_summaries_equal_those_of_dense_weights(name):
    q, k, v = operands(2)
    for how in ("stats", "topk:6", "rows:30,0,-1"):
        whole = attention(q, k, v, summary=how, **OPTIONS[name])
        ours = attention(q, k, v, summary=how, keep=("weights",), **OPTIONS[name])
        assert list(ours) == ["heads", *VIEWED[how]]
        assert list(whole) == [*(one for one in ORDER if one != "weights"), *VIEWED[how]]
        for one in VIEWED[how]:
            near(ours[one], whole[one], 1e-10)
            assert ours[one].dtype == whole[one].dtype


def test_a_bilinear_score_is_one_of_blocks(monkeypatch):
    q, k, v = operands(2)
    options = {"score": "general", "score_params": {"w": RNG.standard_normal((8, 8))}, "causal": True, "softcap": 3.0}
    whole = attention(q, k, v, **options)
    monkeypatch.setattr(sys.modules["attnkit.model.attention"], "MANY", 1)
    ours = attention(q, k, v, keep=("lse", "weights"), summary="rows:5", **options)
    near(ours["heads"], whole["heads"], 1e-12)
    near(ours["lse"], whole["lse"], 1e-12)
    near(ours["weights.rows"], whole["weights"][..., [5], :], 1e-12)


@pytest.mark.parametrize("options", [{"score": "additive"}, {"softmax_dtype": "float16"}])
def test_weight_summaries_of_scores_that_are_not_tiled(options):
    q, k, v = operands()
    rng = np.random.default_rng(3)
    params = {"wa": rng.random((8, 3)), "ua": rng.random((8, 3)), "va": rng.random(3)}
    weights = attention(q, k, v, score_params=params, causal=True, **options)["weights"]
    ours = attention(q, k, v, score_params=params, causal=True, keep=("weights",), summary="topk:2", **options)
    largest = -np.sort(-weights, axis=-1)[..., :2]
    near(ours["weights.top"], largest, 0)
    assert np.array_equal(ours["weights.keys"] == -1, largest == 0)
    stats = attention(q, k, v, score_params=params, causal=True, keep=("weights",), summary="stats", **options)
    near(stats["weights.received"], weights.sum(axis=-2), 0)


def test_hooks_may_replace_weight_summaries(monkeypatch):
    q, k, v = operands()
    met = []
    twice = {"weights.entropy": lambda x: met.append("entropy") or 2 * x}
    ours = attention(q, k, v, summary="stats", keep=("weights",), hook=twice.get)
    near(ours["weights.entropy"], 2 * weight_stats(q, k)["entropy"], 1e-12)
    assert met == ["entropy"]
    attention(q, k, v, summary="stats", keep=(), hook={}.get)
    alike = {"weights": lambda x: np.full_like(x, 1 / KEYS)}  # a weight that is replaced is what is looked at
    ours = attention(q, k, v, summary="stats", keep=("weights",), hook=alike.get)
    near(ours["weights.entropy"], np.full((BATCH, HEADS, QUERIES), np.log(KEYS)), 1e-12)
    near(ours["heads"], np.broadcast_to(v.mean(axis=-2, keepdims=True), ours["heads"].shape), 1e-12)


@pytest.mark.parametrize(
    "how", ["", "most", "stats:", "topk", "topk:0", "topk:-1", "rows", "rows:", "rows:1,", "full:1"]
)
def test_invalid_weight_summaries_are_refused(how):
    q, k, v = operands()
    with pytest.raises(UsageError, match=r"\(expected full, stats, topk:K or rows:I,J,…\)"):
        attention(q, k, v, summary=how)


@pytest.mark.parametrize("keep", [None, ("weights",)])
def test_rows_that_are_not_there(keep):
    q, k, v = operands()
    with pytest.raises(UsageError, match=r"query -38 of 37 \(expected -37 to 36\)"):
        attention(q, k, v, summary="rows:0,-38", keep=keep)


def test_three_groups_of_two_heads(monkeypatch):
    monkeypatch.setattr("attnkit.model.kernels.tiled_attention.TASKS", 1)
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, heads, 64, 8)) for heads in (6, 3, 3))
    for causal in (False, True):
        expected = attention(q, k, v, causal=causal)["heads"]
        near(tiled_attention(q, k, v, blocks=(16, 32), causal=causal)[0], expected, 1e-12)


@pytest.mark.parametrize("value", [1e25, 2e38, -3e38])
def test_values_near_the_end_of_the_range(value):
    q = np.full((1, 600, 1), np.sqrt(35), np.float32)
    v = np.full((1, 600, 3), value, np.float32)
    heads, lse = tiled_attention(q, q, v)
    np.testing.assert_allclose(heads, v, rtol=2e-6)
    near(lse, np.full((1, 600), 35 + np.log(600)), 1e-4)


@pytest.mark.parametrize("size", [1.0, 5.0, 7.0, 10.0, 20.0, 39.9, 40.1, 300.0])
def test_accuracy_for_two_nearly_equal_keys(size):
    """Their shares change by a quarter of what a score is off, and their values are far from each other."""
    for width in (8, 64, 128):
        q = np.full((1, 4, width), np.sqrt(size / np.sqrt(width)), np.float32)
        noise = np.random.default_rng(width).standard_normal((1, 2, width)) * 1e-3
        k, v = (q[:, :2] * (1 + noise)).astype(np.float32), np.array([[[1.0], [-1.0]]], np.float32)
        expected = attention(*(x.astype(float) for x in (q, k, v)))["heads"]
        near(tiled_attention(q, k, v)[0], expected, max(2e-6, 3e-7 * size) if size < 40 else 2e-6)


@pytest.mark.parametrize("level", [30.0, 1e3, -1e4, 1e5])
def test_an_added_bias_may_be_far_from_zero(level):
    q, k, v = operands(2, "float32")
    bias = (level + RNG.standard_normal((QUERIES, KEYS))).astype(np.float32)
    for options in ({"bias": bias}, {"mask": bias}, {"bias": bias / 2, "mask": bias / 2}):
        expected = attention(*(x.astype(float) for x in (q, k, v)), **options)["heads"]
        near(tiled_attention(q, k, v, blocks=BLOCKS, **options)[0], expected, 2e-6 * np.abs(v).max())


def test_a_mask_is_one_of_the_dtype_of_the_scores():
    q, k, v = operands(2, "float32", 1e3)
    mask = np.full((QUERIES, KEYS), -1e300)
    mask[:, 3] = 0
    expected = attention(q, k, v, mask=mask)  # in float32 -1e300 is -inf
    heads, lse = tiled_attention(q, k, v, mask=mask)
    near(heads, expected["heads"], 0)
    near(lse, expected["lse"], 1e-2)
    heads, lse = tiled_attention(q, k, v, mask=np.full(KEYS, -1e300))
    assert not heads.any() and np.isneginf(lse).all()


def test_no_keys_and_no_width():
    q, k, v = operands()
    for how in VIEWED:
        nothing = attention(q, k[..., :0, :], v[..., :0, :], summary=how, keep=("weights",))
        watched = attention(q, k[..., :0, :], v[..., :0, :], summary=how, keep=("weights", "scores"))
        for name in nothing:
            np.testing.assert_array_equal(nothing[name], watched[name])
    narrow = attention(q[..., :0], k[..., :0], v)["heads"]
    near(tiled_attention(q[..., :0], k[..., :0], v)[0], narrow, 1e-12)
    assert tiled_attention(q, k, v[..., :0])[0].shape == (BATCH, HEADS, QUERIES, 0)


def test_keys_of_weights_that_vanish_are_none():
    q, k = np.ones((1, 1, 1)), np.array([[[0.0], [-2000.0], [-1.0]]])
    for keep in (("weights",), ("weights", "scores")):
        assert attention(q, k, k, summary="topk:3", keep=keep)["weights.keys"].tolist() == [[[0, 2, -1]]]


def test_as_many_threads_as_there_are(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threads, "_idle", deque())
    done = []
    threads.run_parallel(done.extend, range(5), threads=3)
    assert done == [0, 1, 2, 3, 4]


def test_dtypes_wider_than_float64_are_refused():
    if np.longdouble().itemsize > 8:
        with pytest.raises(DataError, match="not supported"):
            tiled_attention(*(x.astype(np.longdouble) for x in operands()))
