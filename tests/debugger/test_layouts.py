"""Layouts of arrays: every way to hold the numbers of a site, and orders of columns found by value."""

import numpy as np
import pytest

from attnkit.debugger import layouts
from attnkit.debugger.layouts import describe_order, find_permutation, site_axes, to_layout

HEADS, SCORES = ("batch", "head", "query", "head_dim"), ("batch", "head", "query", "key")
STATES, LOGITS = ("batch", "token", "model"), ("batch", "token", "vocab")
RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.standard_normal(shape)


def check(array, expected, axes, **options):
    """Fit an array to a site, which must restore its numbers."""
    fitted = to_layout(array, expected.shape, axes, expected=expected, **options)
    assert fitted.array is not None, fitted.problem
    np.testing.assert_allclose(fitted.array, expected, rtol=0, atol=1e-12)
    return fitted


def interleave(x):
    """The columns of each head in pairs, (..., K) with halves."""
    half = x.shape[-1] // 2
    return np.stack([x[..., :half], x[..., half:]], axis=-1).reshape(x.shape)


WAYS = {  # of (B, H, T, K): what was done to it -> the array
    "": lambda q: q,
    "axes (batch, query, head, head_dim)": lambda q: q.swapaxes(1, 2),
    "axes (batch, query, head·head_dim)": lambda q: q.swapaxes(1, 2).reshape(len(q), q.shape[2], -1),
    "axes (batch·query, head·head_dim)": lambda q: q.swapaxes(1, 2).reshape(len(q) * q.shape[2], -1),
    "axes (batch·head, query, head_dim)": lambda q: q.reshape(-1, *q.shape[2:]),
    "axes (query, batch, head, head_dim)": lambda q: q.transpose(2, 0, 1, 3),
    "axes (query, batch, head·head_dim)": lambda q: q.transpose(2, 0, 1, 3).reshape(q.shape[2], len(q), -1),
    "axes (head_dim, query, head, batch)": lambda q: q.T,
    "axes (batch, head, head_dim, query)": lambda q: q.swapaxes(2, 3),
}


@pytest.mark.parametrize("done", WAYS)
def test_heads_in_every_order(done):
    q = numbers(2, 3, 7, 5)
    fitted = check(WAYS[done](q), q, HEADS)
    assert (fitted.done, fitted.finding) == (done, "")


@pytest.mark.parametrize("way", WAYS.values())
def test_one_text_has_a_batch_axis_or_not(way):
    q = numbers(1, 3, 7, 5)
    check(way(q), q, HEADS)
    check(way(q).squeeze(), q, HEADS)


@pytest.mark.parametrize("way", WAYS.values())
def test_values_decide_between_layouts_of_one_shape(way):
    q = numbers(4, 4, 4, 4)
    check(way(q), q, HEADS)


def test_the_choice_between_usual_layouts_is_no_finding_and_others_are():
    q, scores = numbers(1, 5, 5, 6), numbers(1, 3, 6, 6)
    assert check(q.swapaxes(1, 2), q, HEADS).finding == ""
    assert check(scores.swapaxes(2, 3), scores, SCORES).finding == "axes (head, key, query) found by value"


def test_a_wrong_array_keeps_the_usual_layout():
    q, other = numbers(1, 4, 4, 4), numbers(1, 4, 4, 4)
    fitted = to_layout(other, q.shape, HEADS, expected=q)
    assert fitted.array is other
    assert not fitted.done
    assert not fitted.finding


def test_states_with_heads_split():
    x = numbers(2, 7, 12)
    split = x.reshape(2, 7, 3, 4)
    check(split, x, STATES)
    check(split.swapaxes(1, 2), x, STATES)
    check(x.swapaxes(0, 1), x, STATES)
    assert check(x.reshape(14, 12), x, STATES).done == "axes (batch·token, model)"


def test_a_shape_listed_in_reverse():
    q = numbers(1, 3, 7, 5)
    listed = q[0].swapaxes(0, 1).copy().reshape(5, 3, 7)  # (7, 3, 5) in memory
    fitted = check(listed, q, HEADS)
    assert fitted.finding == "axes (query, head, head_dim) with the shape listed in reverse found by value"


def test_padding_is_cut_at_the_end_where_the_numbers_are():
    x, weights, logits = numbers(1, 5, 8), numbers(1, 2, 5, 5), numbers(1, 5, 11)
    after, before = np.zeros((1, 8, 8)), np.zeros((1, 8, 8))
    after[:, :5], before[:, 3:] = x, x
    assert check(after, x, STATES).done == "without the last 3 tokens"
    assert check(before, x, STATES).done == "without the first 3 tokens"
    keys = np.zeros((2, 5, 32))
    keys[..., :5] = weights[0]
    assert check(keys, weights, SCORES).done == "without the last 27 keys"
    words = np.concatenate([logits, np.zeros((1, 5, 5))], axis=-1)
    assert check(words, logits, LOGITS).done == "without the last 5 words"


def test_rows_of_positions_repeated_for_every_text():
    rows = numbers(7, 8)
    check(np.repeat(rows[None], 3, axis=0), rows, ("token", "model"))
    check(rows[None], rows, ("token", "model"))


def test_shapes_that_cannot_be_brought_together_are_a_problem_in_words():
    fitted = to_layout(np.zeros((1, 6, 8)), (1, 7, 8), STATES)
    assert fitted == (None, "", "", "shape (1, 6, 8), which is no layout of (batch 1, token 7, model 8)", None)
    fused = to_layout(np.zeros((7, 10)), (1, 7, 4), STATES, columns=(0, 2, 6))
    assert fused.problem == "shape (7, 10), columns 0 to 2 of 6, which is no layout of (batch 1, token 7, model 4)"
    assert to_layout(np.zeros(()), (1, 7, 8), STATES).array is None
    assert to_layout(np.zeros((0, 8)), (1, 7, 8), STATES).array is None


def test_layouts_are_views_where_numpy_can_make_them():
    q = numbers(1, 3, 7, 5)
    for array in (q[0], q.swapaxes(1, 2), q.swapaxes(1, 2)[0].copy()):
        assert np.shares_memory(to_layout(array, q.shape, HEADS).array, array)


def test_infinite_scores_do_not_count():
    masked = np.where(np.tri(4, dtype=bool), numbers(1, 2, 4, 4), -np.inf)
    lowest = np.where(np.isinf(masked), np.finfo(np.float32).min, masked)
    fitted = to_layout(lowest[0], masked.shape, SCORES, expected=masked)
    assert layouts.distance(fitted.array, masked) == 0


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 3)])
def test_fused_projections_are_cut_flat_or_per_group(heads, groups):
    width, count = 3, heads + 2 * groups
    q, k, v = (numbers(1, 5, size * width) for size in (heads, groups, groups))
    flat = np.concatenate([q, k, v], axis=-1)
    parts = [x.reshape(1, 5, groups, -1) for x in (q, k, v)]
    grouped = np.concatenate(parts, axis=-1).reshape(1, 5, -1)
    bounds = (0, heads, heads + groups, count)
    for at, x in enumerate((q, k, v)):
        columns = (bounds[at], bounds[at + 1], count)
        assert check(flat, x, STATES, columns=columns).finding == ""
        fitted = check(grouped[0], x, STATES, columns=columns)
        assert fitted.finding.startswith("columns fused per head")
        assert fitted.finding.endswith("found by value")


def test_gate_and_up_are_halves_in_either_order_or_alternate():
    gate, up = numbers(1, 5, 6), numbers(1, 5, 6)
    assert check(np.concatenate([gate, up], -1), gate, STATES, columns=(0, 1, 2)).finding == ""
    other = check(np.concatenate([up, gate], -1), gate, STATES, columns=(0, 1, 2))
    assert other.finding == "columns of the other half found by value"
    pairs = np.stack([gate, up], axis=-1).reshape(1, 5, 12)
    assert check(pairs, up, STATES, columns=(1, 2, 2)).finding == "columns that alternate found by value"


def test_rotary_pairs_interleaved_or_in_halves():
    q = numbers(2, 4, 7, 6)
    joined = q.swapaxes(1, 2).reshape(2, 7, 24)
    other = interleave(q).swapaxes(1, 2).reshape(2, 7, 24)
    words = "columns interleaved in each head (in halves in the reference)"
    assert check(other, joined, STATES, heads=4).finding == words
    assert check(interleave(q), q, HEADS).finding == words
    words = "columns in halves in each head (interleaved in the reference)"
    assert check(joined, other, STATES, heads=4).finding == words


def test_a_part_of_each_head_interleaved():
    q = numbers(1, 7, 2, 8)
    other = np.concatenate([interleave(q[..., :4]), q[..., 4:]], axis=-1)
    fitted = check(other.reshape(1, 7, 16), q.reshape(1, 7, 16), STATES, heads=2)
    assert fitted.finding == "columns interleaved in each head among the first 4 (in halves in the reference)"


def test_heads_in_another_order():
    q = numbers(1, 7, 4, 6)
    other = q[:, :, [2, 0, 1, 3]].reshape(1, 7, 24)
    assert check(other, q.reshape(1, 7, 24), STATES, heads=4).finding == "heads in the order 2, 0, 1, 3"


def test_columns_that_mix_heads_stay_as_they_are():
    q = numbers(1, 4, 7, 6)
    mixed = q.transpose(0, 2, 3, 1).reshape(1, 7, 4, 6).swapaxes(1, 2)
    assert to_layout(mixed, q.shape, HEADS, expected=q)[1:] == ("", "", "", None)


def as_bfloat16(x):
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("tokens", [9, 200])
@pytest.mark.parametrize("width", [768, 3072])
def test_a_permutation_is_found_in_bfloat16(tokens, width):
    x = numbers(tokens, width)
    order = RNG.permutation(width)
    np.testing.assert_array_equal(find_permutation(as_bfloat16(x[:, order]), x), np.argsort(order))


def test_no_permutation_is_found_where_there_is_none():
    x = numbers(9, 24)
    assert find_permutation(numbers(9, 24), x) is None
    assert find_permutation(x[:, :12], x) is None
    assert find_permutation(np.zeros((9, 24)), x) is None
    assert describe_order(np.random.default_rng(1).permutation(24), 4) == "columns in another order"


def test_axes_of_sites():
    assert site_axes("decoder.3.cross.weights", 4) == ("batch", "head", "query", "source")
    assert site_axes("decoder.3.self.k", 4) == ("batch", "head", "key", "head_dim")
    assert site_axes("encoder.positions.rows", 2) == ("token", "model")
    assert site_axes("encoder.0.self.q_projected", 3) == ("batch", "token", "model")
    assert site_axes("pooler", 2) == ("batch", "model")
    assert site_axes("logits", 2) == ("batch", "vocab") or site_axes("logits", 2) == ("token", "vocab")


def test_orders_of_axes_are_tried_by_how_many_are_exchanged():
    """Two neighbours, then all in reverse, then one that passes two."""
    x = numbers(2, 2, 2)
    views = [*layouts.find_views(x, x.shape, ("batch", "token", "model"))]
    orders = {"": "btm", "batch, model, token": "bmt", "token, batch, model": "tbm", "model, token, batch": "mtb",
              "token, model, batch": "tmb", "model, batch, token": "mbt"}  # fmt: skip
    assert [view.done for view in views] == [words and f"axes ({words})" for words in orders]
    for view, order in zip(views, orders.values(), strict=True):
        np.testing.assert_array_equal(view.array, np.einsum(f"{order}->btm", x))
        assert view.is_usual == (order.replace("t", "") == "bm"), "tokens may be anywhere"


def test_orders_of_what_is_cut_are_tried_by_how_many_axes_are_exchanged():
    """Of 6 × 6 × 6 numbers 6 × 4 × 4, which begin at the third of the cut axes: the first number tells their order."""
    views = layouts.find_views(np.arange(216).reshape(6, 6, 6), (6, 4, 4), ("batch", "query", "key"))
    firsts = [int(view.array[0, 0, 0]) for view in views if "first" in view.done]
    assert [one for at, one in enumerate(firsts) if firsts[at - 1 : at] != [one]] == [14, 74, 84, 74]


@pytest.mark.parametrize(
    ("size", "shape", "axes", "which", "done"),
    [
        ((3, 4), (1, 1, 4), STATES, (slice(1), slice(4)), "without the last 2 tokens"),
        ((1, 6), (1, 1, 4), LOGITS, (slice(1), slice(4)), "without the last 2 words"),
        ((3, 6), (1, 2, 4), LOGITS, (slice(2), slice(4)), "without the last 1 token and 2 words"),
        ((8, 3), (1, 3, 6), LOGITS, (slice(6), slice(3)), "without the last 2 words, axes (vocab, token)"),
        ((3, 3), (1, 1, 2, 2), SCORES, (slice(2), slice(2)), "without the last 1 query and 1 key"),
    ],
)
def test_what_is_cut_of_an_array_that_is_larger(size, shape, axes, which, done):
    x = numbers(*size)
    fitted = to_layout(x, shape, axes)
    cut = x[which].T if "axes" in done else x[which]
    assert fitted.done == done
    np.testing.assert_array_equal(fitted.array, cut.reshape(shape))


@pytest.mark.parametrize(("size", "shape"), [((3, 6), (1, 3, 4)), ((1, 4), (1, 1, 6)), ((2, 3, 4), (1, 3, 4))])
def test_no_axis_is_cut_but_those_of_tokens_and_words(size, shape):
    assert to_layout(numbers(*size), shape, STATES).array is None


INTERLEAVED = "columns interleaved in each head (in halves in the reference)"


@pytest.mark.parametrize(
    ("order", "heads", "words"),
    [
        ([0, 1, 2, 3], 2, ""),
        ([2, 3, 0, 1], 2, "heads in the order 1, 0"),
        ([2, 3, 4, 5, 0, 1], 3, "heads in the order 2, 0, 1"),
        ([0, 1, 3, 2], 2, layouts.MIXED),  # each head its own columns, in orders of their own
        ([0, 2, 1, 3], 2, layouts.MIXED),  # columns of both heads in each
        ([1, 0, 3, 2], 2, "columns of each head in another order"),
        ([0, 2, 1, 3], 1, INTERLEAVED),
        ([0, 2, 4, 1, 3, 5], 1, INTERLEAVED),
        ([0, 3, 1, 4, 2, 5], 1, "columns in halves in each head (interleaved in the reference)"),
        ([0, 2, 1, 3, 4, 5], 1, "columns interleaved in each head among the first 4 (in halves in the reference)"),
        ([6, 8, 7, 9, 0, 2, 1, 3], 2, layouts.MIXED),
        ([4, 6, 5, 7, 0, 2, 1, 3], 2, f"{INTERLEAVED} and heads in the order 1, 0"),
    ],
)
def test_orders_of_columns_in_words(order, heads, words):
    assert describe_order(np.array(order), heads) == words


def test_heads_of_a_text_without_a_batch_axis_are_columns():
    x = numbers(5, 2, 3)
    assert check(x, x.reshape(1, 5, 6), STATES).done == ""
    assert check(x.swapaxes(0, 1), x.reshape(1, 5, 6), STATES).done == "axes (head, token, head_dim)"
