"""Attention: the lecture's hand calculations, calls that must agree, rows that stay apart, every error."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import attention, multi_head_attention, softmax
from attnkit.model.processor.products import FIXED

SAT = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
PADDED = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1, 1.1, 1.2], [0, 0, 0, 0]])
STEPS = ["q", "k", "v", "scores", "scaled", "capped", "masked", "weights", "heads"]
NAMES = [*STEPS, "lse", "present_key", "present_value"]


def operands(queries=5, keys=5, heads=2, groups=2, width=4, batch=2, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = [(batch, heads, queries, width), (batch, groups, keys, width), (batch, groups, keys, 3)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def near(ours, expected, atol=1e-13):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=atol)


def test_the_cat_sat_by_hand():
    steps = multi_head_attention(SAT, SAT, SAT)
    near(steps["scores"], [[[2, 0, 2], [0, 2, 2], [2, 2, 4]]])
    near(steps["scaled"], [[[1, 0, 1], [0, 1, 1], [1, 1, 2]]])
    weights = [[[0.4223, 0.1554, 0.4223], [0.1554, 0.4223, 0.4223], [0.2119, 0.2119, 0.5761]]]
    near(steps["weights"], weights, 5e-5)
    output = [[0.8446, 0.5777, 0.8446, 0.5777], [0.5777, 0.8446, 0.5777, 0.8446], [0.7881] * 4]
    near(steps["output"], output, 5e-5)
    assert list(steps) == [*NAMES, "output"]


def test_why_scale():
    q, k = np.array([[2.0, 3, 4, 1]]), np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]])
    near(multi_head_attention(q, k, k, score="dot")["weights"], [[[0.8808, 0.1192]]], 5e-5)
    near(multi_head_attention(q, k, k)["weights"], [[[0.7311, 0.2689]]], 5e-5)
    near(softmax(np.array([10.0, 1.0])), [0.9999, 0.0001], 5e-5)


def test_padding_times_look_ahead_by_hand():
    steps = multi_head_attention(PADDED, PADDED, PADDED, mask=np.array([1, 1, 1, 0]), causal=True)
    near(steps["scaled"][0, :3, :3], [[0.15, 0.35, 0.55], [0.35, 0.87, 1.39], [0.55, 1.39, 2.23]])
    third = 1 / 3
    weights = [[1, 0, 0, 0], [0.3729, 0.6271, 0, 0], [0.1152, 0.2668, 0.6180, 0], [third, third, third, 0]]
    near(steps["weights"][0], weights, 5e-5)
    output = [PADDED[0], [0.3509, 0.4509, 0.5509, 0.6509], [0.7011, 0.8011, 0.9011, 1.0011], PADDED[1]]
    near(steps["output"], output, 6e-5)


def test_softmax_down_the_columns_by_hand():
    below = np.tril(np.full((6, 6), -np.inf), -1)
    rows = [
        [3.53, 0.80, 1.96, 4.48, 3.74, -1.95],
        [0, -0.30, -0.21, 0.82, 0.29, 2.91],
        [0, 0, 0.89, 0.67, 2.99, -0.41],
        [0, 0, 0, 1.31, 1.73, -1.48],
        [0, 0, 0, 0, 3.07, 2.94],
        [0, 0, 0, 0, 0, 0.31],
    ]
    expected = [
        [1.00, 0.75, 0.69, 0.92, 0.46, 0.00],
        [0, 0.25, 0.08, 0.02, 0.01, 0.46],
        [0, 0, 0.24, 0.02, 0.22, 0.02],
        [0, 0, 0, 0.04, 0.06, 0.01],
        [0, 0, 0, 0, 0.24, 0.48],
        [0, 0, 0, 0, 0, 0.03],
    ]
    near(softmax(np.array(rows) + below, axis=0), expected, 6e-3)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6), st.floats(-100, 100))
def test_softmax_does_not_see_a_shift(scores, shift):
    weights = softmax(np.array(scores))
    near(softmax(np.array(scores) + shift), weights, 1e-12)
    near(weights.sum(), 1.0, 1e-12)


def test_softmax_of_non_finite_scores():
    scores = np.array([[0.0, 1.0], [-np.inf, -np.inf], [np.nan, 0.0], [np.inf, 0.0], [-np.inf, 3.0]])
    weights = softmax(scores)
    np.testing.assert_array_equal(weights[[1, 4]], [[0, 0], [0, 1]])
    assert np.isnan(weights[2:4]).all() and np.isfinite(weights[0]).all()
    assert softmax(np.zeros((2, 0))).shape == (2, 0)


def test_heads_split_and_merge():
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(model.merge_heads(model.split_heads(x, 2)), x)
    np.testing.assert_array_equal(model.split_heads(x, 2)[:, 1], x[..., 2:])
    with pytest.raises(DataError) as error:
        model.split_heads(np.zeros((2, 10)), 3)
    assert str(error.value) == "d_model 10 is not divisible by heads 3"
    with pytest.raises(UsageError, match="heads 0"):
        model.split_heads(x, 0)


def test_one_head_is_plain_attention_and_heads_are_independent():
    q, k, v = operands()
    both = attention(q, k, v)["heads"]
    for head in range(2):
        one = attention(*(x[:, head : head + 1] for x in (q, k, v)))["heads"]
        np.testing.assert_array_equal(both[:, head : head + 1], one)
    row = attention(q[0], k[0], v[0])["heads"]
    np.testing.assert_array_equal(both[0], row)


def test_projections_are_matrix_products():
    rng = np.random.default_rng(1)
    x, memory = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 5, 6))
    shapes = {"wq": (8, 4), "wk": (6, 4), "wv": (6, 10), "wo": (10, 7), "bq": 4, "bk": 4, "bv": 10, "bo": 7}
    params = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    steps = multi_head_attention(x, memory, memory, params, heads=2)
    q, k, v = (
        x @ params["wq"] + params["bq"],
        memory @ params["wk"] + params["bk"],
        memory @ params["wv"] + params["bv"],
    )
    inner = multi_head_attention(q, k, v, heads=2)["output"]
    near(steps["output"], inner @ params["wo"] + params["bo"])
    assert steps["q"].shape == (2, 2, 3, 2) and steps["v"].shape == (2, 2, 5, 5)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("score", list(model.SCORES))
def test_grouped_heads_are_repeated_heads(groups, score):
    q, k, v = operands(heads=4, groups=groups)
    rng = np.random.default_rng(2)
    params = {
        "w": rng.standard_normal((4, 4, 4)),
        "wa": np.eye(4),
        "ua": rng.standard_normal((4, 4)),
        "va": np.ones(4),
    }
    repeated = (np.repeat(x, 4 // groups, axis=1) for x in (k, v))
    grouped = attention(q, k, v, causal=True, score=score, score_params=params)
    near(grouped["heads"], attention(q, *repeated, causal=True, score=score, score_params=params)["heads"])


def test_key_value_heads_of_multi_head_attention():
    x = np.random.default_rng(3).standard_normal((2, 5, 8))
    params = {name: np.random.default_rng(4).standard_normal((8, 4)) for name in ("wk", "wv")}
    repeated = {name: np.repeat(w.reshape(8, 2, 2), 2, axis=1).reshape(8, 8) for name, w in params.items()}
    grouped = multi_head_attention(x, x, x, params, heads=4, kv_heads=2)["output"]
    near(grouped, multi_head_attention(x, x, x, repeated, heads=4)["output"])


def test_already_split_operands_keep_their_rank():
    q, k, v = operands()
    steps = multi_head_attention(q, k, v)
    np.testing.assert_array_equal(steps["output"], attention(q, k, v)["heads"])
    with pytest.raises(UsageError, match="already split"):
        multi_head_attention(q, k, v, {"wq": np.eye(4)})


def test_cached_is_the_full_pass():
    q, k, v = operands(queries=6, keys=6)
    full = attention(q, k, v, causal=True)["heads"]
    first = attention(q[:, :, :4], k[:, :, :4], v[:, :, :4], causal=True)
    past = {"past_key": first["present_key"], "past_value": first["present_value"]}
    rest = attention(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], causal=True, **past)
    near(np.concatenate([first["heads"], rest["heads"]], axis=-2), full)
    np.testing.assert_array_equal(rest["present_key"], k)


def test_lengths_are_a_padding_mask_and_move_the_diagonal():
    q, k, v = operands(queries=3, keys=5)
    lengths = np.array([5, 2])
    mask = model.padding_mask(lengths, 5)[:, None]
    np.testing.assert_array_equal(attention(q, k, v, lengths=lengths)["heads"], attention(q, k, v, mask=mask)["heads"])
    weights = attention(q, k, v, lengths=lengths, causal=True)["weights"]
    full = attention(q[:1], k[:1], v[:1], causal=True, align="bottom-right")["weights"]
    near(weights[:1], full)
    short = attention(q[1:, :, 1:], k[1:, :, :2], v[1:, :, :2], causal=True)["weights"]
    near(weights[1:, :, 1:, :2], short)
    assert not weights[1, :, 0].any() and not weights[1, :, :, 2:].any()


def test_causality_and_windows_are_masks():
    q, k, v = operands(queries=4, keys=6)
    for options, mask in [
        ({"causal": True}, model.causal_mask(4, 6)),
        ({"causal": True, "align": "bottom-right"}, model.causal_mask(4, 6, 2)),
        ({"window": (1, 2)}, model.window_mask(4, 6, 1, 2)),
        ({"causal": True, "window": (2, -1)}, model.window_mask(4, 6, 2, 0)),
    ]:
        np.testing.assert_array_equal(attention(q, k, v, **options)["heads"], attention(q, k, v, mask=mask)["heads"])


@pytest.mark.parametrize("dtype", [bool, np.int8])
def test_masks_of_booleans_numbers_and_floats_agree(dtype):
    q, k, v = operands()
    mask = np.random.default_rng(5).random((2, 1, 5, 5)) > 0.5
    expected = attention(q, k, v, mask=mask)["heads"]
    np.testing.assert_array_equal(attention(q, k, v, mask=mask.astype(dtype))["heads"], expected)
    np.testing.assert_array_equal(attention(q, k, v, mask=model.to_additive(mask, np.float64))["heads"], expected)


def test_a_bias_is_an_additive_mask():
    q, k, v = operands()
    bias = np.random.default_rng(6).standard_normal((2, 5, 5))
    biased = attention(q, k, v, bias=bias, causal=True)
    near(biased["heads"], attention(q, k, v, mask=bias, causal=True)["heads"])
    both = attention(q, k, v, bias=bias, mask=bias)["masked"]
    near(both, biased["capped"] + 2 * bias)


def test_a_short_mask_blocks_the_rest_of_the_keys():
    q, k, v = operands()
    short = np.ones((5, 3), bool)
    expected = attention(q, k[:, :, :3], v[:, :, :3])["heads"]
    near(attention(q, k, v, mask=short)["heads"], expected)
    near(attention(q, k, v, mask=np.zeros((5, 3)))["heads"], expected)
    column = np.array([[True], [False], [True], [True], [True]])
    assert not attention(q, k, v, mask=column)["weights"][:, :, 1].any()


def test_a_row_without_keys_is_zero():
    q, k, v = operands()
    mask = np.ones((5, 5), bool)
    mask[2] = False
    steps = attention(q, k, v, mask=mask)
    assert not steps["weights"][:, :, 2].any() and not steps["heads"][:, :, 2].any()
    near(steps["weights"].sum(axis=-1), np.broadcast_to(mask.any(axis=-1), (2, 2, 5)))


def test_softcap_comes_before_the_mask():
    q, k, v = operands()
    steps = attention(10 * q, k, v, softcap=2.0, causal=True)
    near(steps["capped"], 2 * np.tanh(steps["scaled"] / 2))
    np.testing.assert_array_equal(np.isneginf(steps["masked"]), np.broadcast_to(~model.causal_mask(5, 5), (2, 2, 5, 5)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_token_is_unseen_where_it_is_blocked(bad):
    q, k, v = operands()
    clean = attention(q, k, v, causal=True)["heads"]
    for x in (q, k, v):
        x[:, :, 3] = bad
    heads = attention(q, k, v, causal=True)["heads"]
    np.testing.assert_array_equal(heads[:, :, :3], clean[:, :, :3])
    assert np.isnan(heads[:, :, 3]).all()


@given(st.permutations(range(5)))
def test_attention_ignores_the_order_of_keys(order):
    q, k, v = operands()
    near(attention(q[:, :, order], k, v)["heads"], attention(q, k, v)["heads"][:, :, order])
    near(attention(q, k[:, :, order], v[:, :, order])["heads"], attention(q, k, v)["heads"])


def test_scores_of_every_kind():
    q, k, v = operands()
    near(attention(q, k, v, score="dot", scale=0.5)["heads"], attention(q, k, v)["heads"])
    same = attention(q, k, v, score="general", score_params={"w": np.eye(4)})
    near(same["weights"], attention(q, k, v, score="dot")["weights"])
    rng = np.random.default_rng(7)
    params = {
        "wa": rng.standard_normal((4, 6)),
        "ua": rng.standard_normal((4, 6)),
        "va": rng.standard_normal(6),
    }
    scores = attention(q, k, v, score="additive", score_params=params)["scores"]
    one = np.tanh(q[1, 0, 2] @ params["wa"] + k[1, 0, 4] @ params["ua"]) @ params["va"]
    near(scores[1, 0, 2, 4], one)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_narrow_floats_compute_in_float32(dtype):
    q, k, v = (x.astype(dtype) for x in operands())
    steps = attention(q, k, v, mask=model.causal_mask(5, 5))
    wide = attention(*(x.astype(np.float32) for x in (q, k, v)), causal=True)
    assert steps["lse"].dtype == np.float64
    assert {steps[name].dtype for name in steps if name != "lse"} == {np.dtype(dtype)}
    np.testing.assert_array_equal(steps["heads"], wide["heads"].astype(dtype))


def test_whole_numbers_become_float64():
    x = SAT.astype(np.int32)
    np.testing.assert_array_equal(
        multi_head_attention(x, x, x)["output"], multi_head_attention(SAT, SAT, SAT)["output"]
    )


@pytest.mark.parametrize(
    ("name", "digits"), [("float64", 1e-12), ("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)]
)
def test_softmax_in_another_precision(name, digits):
    q, k, v = operands()
    weights, exact = attention(q, k, v, softmax_dtype=name)["weights"], attention(q, k, v)["weights"]
    assert weights.dtype == np.float64
    error = np.abs(weights - exact).max()
    assert (error == 0) if name == "float64" else (digits / 1000 < error < 4 * digits)
    if name == "bfloat16":
        np.testing.assert_array_equal(weights, weights.astype(ml_dtypes.bfloat16).astype(np.float64))


@pytest.mark.parametrize("shape", [{"queries": 0}, {"keys": 0}, {"batch": 0}, {"width": 0}])
def test_empty(shape):
    q, k, v = operands(**shape)
    steps = attention(q, k, v, causal=True, window=(2, 2))
    assert steps["heads"].shape == (*q.shape[:-1], 3)
    assert shape != {"keys": 0} or not steps["heads"].any()


def test_inputs_are_never_written_to_and_their_layout_does_not_matter():
    x = np.random.default_rng(8).standard_normal((3, 5, 8))
    before = x.copy()
    y = multi_head_attention(x, x, x, heads=2, causal=True)["output"]
    np.testing.assert_array_equal(x, before)
    f = np.asfortranarray(x)
    np.testing.assert_array_equal(multi_head_attention(f, f, f, heads=2, causal=True)["output"], y)


Z = np.zeros


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (Z((2, 4, 8)), Z((2, 6, 9)), Z((2, 6, 9)), "Q (2,4,8) and K (2,6,9): last dimension 8 != 9"),
        (Z((2, 4, 8)), Z((2, 6, 8)), Z((2, 5, 8)), "K (2,6,8) and V (2,5,8): 6 keys but 5 values"),
        (Z((2, 4, 8)), Z((3, 6, 8)), Z((3, 6, 8)), "Q (2,4,8) and K (3,6,8): batch 2 != 3"),
        (Z((2, 4, 8)), Z((6, 8)), Z((6, 8)), "Q (2,4,8) and K (6,8): rank 3 != 2"),
        (Z(8), Z((6, 8)), Z((6, 8)), "Q (8,): rank 1 (expected 2 or 3 or 4)"),
        (Z((1, 1, 2, 4, 8)), Z((6, 8)), Z((6, 8)), "Q (1,1,2,4,8) and K (6,8): rank 5 != 2"),
        (
            Z((1, 1, 2, 4, 8)),
            Z((1, 3, 2, 4, 8)),
            Z((1, 3, 2, 4, 8)),
            "Q (1,1,2,4,8) and K (1,3,2,4,8): batch (1,1,2) != (1,3,2)",
        ),
        (
            Z((1, 8, 4, 2)),
            Z((1, 3, 6, 2)),
            Z((1, 3, 6, 2)),
            "Q (1,8,4,2) and K (1,3,6,2): 8 heads are not a multiple of 3",
        ),
        (Z((1, 2, 4, 2)), Z((1, 2, 6, 2)), Z((1, 1, 6, 2)), "K (1,2,6,2) and V (1,1,6,2): heads 2 != 1"),
    ],
)
def test_operands_that_do_not_meet(q, k, v, message):
    with pytest.raises(DataError) as error:
        multi_head_attention(q, k, v)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"wq": Z((8, 6))}, "wq (8,6) for x (3,10): first dimension 8 != 10"),
        ({"wk": Z((8, 6))}, "wk (8,6) for x (3,10): first dimension 8 != 10"),
        ({"wo": Z((8, 6))}, "wo (8,6) for heads (3,10): first dimension 8 != 10"),
        ({"wq": Z(6)}, "wq (6,) for x (3,10): rank 1, expected 2 (in, out)"),
        ({"bq": Z(6)}, "bq (6,): expected (10,)"),
        (
            {"wx": Z((8, 6))},
            "parameter 'wx' is not one of wq, wk, wv, wo, bq, bk, bv, bo, gamma_q, beta_q, gamma_k, beta_k, sinks, "
            "wg, bg",
        ),
    ],
)
def test_parameters_that_do_not_fit(params, message):
    x = Z((3, 10))
    with pytest.raises(DataError) as error:
        multi_head_attention(x, x, x, params)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"mask": np.array([[1, 2]])}, DataError, r"mask value 2 at \[0\]\[1\]"),
        (
            {"mask": Z((3, 4))},
            DataError,
            r"mask \(3,4\) does not broadcast to scores \(2,2,5,5\)",
        ),
        ({"mask": Z((5, 6), bool)}, DataError, r"mask \(5,6\) does not broadcast to scores \(2,2,5,5\)"),
        ({"bias": Z((3, 5, 5))}, DataError, r"bias \(3,5,5\) does not broadcast to scores \(2,2,5,5\)"),
        ({"lengths": [1]}, DataError, r"lengths \(1,\) for Q \(2,2,5,4\): expected \(2,\)"),
        ({"lengths": [1, 6]}, DataError, r"length 6 at \[1\] outside 0..5"),
        ({"past_key": Z((2, 2, 1, 4))}, UsageError, "past key and past value must be given together"),
        ({"past_key": Z((2, 2, 1, 4)), "past_value": Z((2, 2, 2, 3))}, DataError, "1 keys but 2 values"),
        (
            {"past_key": Z((2, 2, 1, 5)), "past_value": Z((2, 2, 1, 3))},
            DataError,
            "differ in more than length",
        ),
        (
            {"past_key": Z((2, 2, 1, 4)), "past_value": Z((2, 2, 1, 3)), "lengths": [1, 2]},
            UsageError,
            "mutually exclusive",
        ),
        ({"align": "left"}, UsageError, "align 'left'"),
        ({"window": (-2, 0)}, UsageError, "window -2,0"),
        ({"softcap": -1.0}, UsageError, "softcap -1"),
        ({"score": "cosine"}, UsageError, "score 'cosine'"),
        ({"score": "general"}, UsageError, "score general needs w"),
        (
            {"score": "general", "score_params": {"w": Z((4, 5))}},
            DataError,
            r"w \(4,5\) for Q .*: expected \(4,4\)",
        ),
        (
            {"score": "additive", "score_params": {"wa": Z((3, 6)), "ua": Z((4, 6)), "va": Z(6)}},
            DataError,
            r"wa \(3,6\) for Q \(2,2,5,4\): first dimension 3 != 4",
        ),
        (
            {"score": "additive", "score_params": {"wa": Z((4, 6)), "ua": Z((4, 6)), "va": Z(5)}},
            DataError,
            "last dimensions differ",
        ),
        ({"softmax_dtype": "int8"}, UsageError, "softmax dtype 'int8'"),
    ],
)
def test_options_that_do_not_fit(options, kind, message):
    with pytest.raises(kind, match=message):
        attention(*operands(), **options)


@pytest.mark.parametrize("heads", [{"heads": 0}, {"heads": -1}, {"heads": 8, "kv_heads": 3}, {"kv_heads": 0}])
def test_impossible_head_counts(heads):
    x = Z((3, 8))
    with pytest.raises(UsageError, match="heads"):
        multi_head_attention(x, x, x, **heads)


@pytest.mark.parametrize("rules", [{}, {"causal": True}, {"causal": True, "window": (1, 0)}])
def test_texts_of_a_padded_batch_are_attended_to_one_by_one(rules):
    """Products of fixed shape attend within a text, and give what a mask of its padding does."""
    q, k, v = operands()
    mask = (np.arange(5) < np.array([2, 5])[:, None])[:, None, None]
    alone = attention(q, k, v, mask=mask, products=FIXED, **rules)["heads"]
    near(alone[0, :, :2], attention(q[:1, :, :2], k[:1, :, :2], v[:1, :, :2], **rules)["heads"][0])
    near(alone[1], attention(q[1:], k[1:], v[1:], **rules)["heads"][0])
    near(alone, attention(q, k, v, mask=mask, **rules)["heads"])


LEAD = (2, 3, 2)


def per_text(function, x):
    """The results of a function of (T, D) for each text of a batch of several axes."""
    texts = [function(text) for text in x.reshape(-1, *x.shape[-2:])]
    return np.stack(texts).reshape(*x.shape[:-2], *texts[0].shape)


@pytest.mark.parametrize("name", ["output", "weights", "lse", "q", "present_key"])
def test_several_batch_axes_are_texts(name):
    x, params = np.random.default_rng(0).normal(size=(*LEAD, 3, 4)), {"wq": np.arange(16.0).reshape(4, 4)}
    options = {"heads": 2, "causal": True, "params": params}
    result = multi_head_attention(x, x, x, **options)[name]
    assert np.allclose(result, per_text(lambda text: multi_head_attention(text, text, text, **options)[name], x))


@pytest.mark.parametrize("summary", ["full", "stats", "topk:2", "rows:0"])
def test_heads_of_several_batch_axes_have_masks_and_lengths_of_their_own(summary):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(*LEAD, 2, 3, 2))
    mask, lengths = rng.random((*LEAD, 1, 3, 3)) < 0.8, rng.integers(1, 4, LEAD)
    result = attention(x, x, x, mask=mask, lengths=lengths, bias=mask[0, 0, 0, 0] * 0.5, summary=summary)
    for at in np.ndindex(*LEAD):
        one = {"mask": mask[at][None], "lengths": lengths[at][None], "bias": mask[0, 0, 0, 0] * 0.5}
        alone = attention(x[at][None], x[at][None], x[at][None], **one, summary=summary)
        assert [*alone] == [*result]
        assert all(np.allclose(result[name][at], array[0]) for name, array in alone.items())


def test_a_hook_sees_all_batch_axes():
    x, shapes = np.ones((*LEAD, 2, 3, 2)), {}
    attention(x, x, x, hook=lambda name: lambda array: shapes.setdefault(name, array.shape) and array)
    assert shapes["weights"] == (*LEAD, 2, 3, 3) and shapes["q"] == x.shape


def test_a_mask_of_another_batch_does_not_broadcast_to_several_axes():
    x = np.ones((*LEAD, 2, 3, 2))
    with pytest.raises(DataError, match=r"^mask \(5,2,3,3\) does not broadcast to the batch \(2,3,2\)$"):
        attention(x, x, x, mask=np.ones((5, 2, 3, 3), bool))


@pytest.mark.parametrize("texts", [2, 3])
def test_a_mask_of_texts_is_for_all_heads(texts):
    """Where there are as many texts as heads, too: (T, S) of each text, not of each head."""
    rng = np.random.default_rng(2)
    x, mask = rng.normal(size=(texts, 3, 4)), np.tril(rng.random((texts, 3, 3)) < 0.7) | np.eye(3, dtype=bool)
    batch = multi_head_attention(x, x, x, heads=2, mask=mask)["weights"]
    own = [multi_head_attention(x[b], x[b], x[b], heads=2, mask=mask[b])["weights"] for b in range(texts)]
    assert np.allclose(batch, own)
    heads = rng.random((1, 2, 3, 3)) < 0.7
    apart = multi_head_attention(x, x, x, heads=2, mask=heads)["weights"]
    assert np.array_equal(apart[1][~heads[0]], np.zeros((~heads[0]).sum()))
