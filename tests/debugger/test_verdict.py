"""The verdict of one site: what counts as noise, which slips explain a difference, and the numbers of its row."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnkit.debugger.compare import Request, compare_with_model
from attnkit.debugger.dumps import Dump, array_entry
from attnkit.debugger.names import TensorSource
from attnkit.debugger.processed_weights import is_processed
from attnkit.debugger.verdict import (
    ALONE,
    Cause,
    Judge,
    Nudged,
    SiteRow,
    compare_arrays,
    cosine,
    explain_dropout,
    nearest_value,
    order_problems,
    rows_of_tokens,
)
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.passes.model_graph import model_graph
from attnkit.model.rounding import excess, gap, noise_floor
from attnkit.model.slips import Number
from tests.registry import load_core, open_model

INF, NAN = np.inf, np.nan


def test_gaps_of_numbers_that_are_not_finite():
    assert gap(np.array([NAN, 1.0, INF, INF]), np.array([1.0, NAN, INF, -INF])).tolist() == [INF, INF, 0, INF]


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([3.0, 4.0], [4.0, 3.0], 0.96),
        ([3.0, 4.0, INF], [4.0, 3.0, 1.0], 0.96),  # numbers that are finite in both
        ([3.0, 4.0, 1.0], [4.0, 3.0, -INF], 0.96),
        ([1.0, 0.0], [-2.0, 0.0], -1.0),
        ([0.0, 0.0], [1.0, 2.0], 1.0),
    ],
)
def test_the_cosine_of_finite_numbers(x, y, expected):
    assert cosine(np.array(x), np.array(y)) == pytest.approx(expected)


def test_rows_of_real_tokens():
    mask = np.array([[True, True], [False, True]])
    states, heads = np.arange(8.0).reshape(2, 2, 2), np.arange(8.0).reshape(2, 2, 2, 1)
    assert rows_of_tokens(states, mask).tolist() == [[0, 1], [2, 3], [6, 7]]
    assert rows_of_tokens(heads, mask).tolist() == [[0], [2], [1], [3], [5], [7]]  # both heads of a token
    assert rows_of_tokens(states, None).shape == (4, 2)
    assert rows_of_tokens(states[:, :1], mask).tolist() == [[0, 1], [4, 5]]  # of other tokens than the mask's


def test_the_noise_of_a_row_is_its_own_or_the_usual_one_and_some_units_of_its_scale():
    expected = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, INF]])
    narrow = np.array([[1.0, 2.25], [3.0, 4.0], [0.0, INF]])
    scale = np.array([2.0, 4.0, 0.0])  # 0.25 of 2 and 0 of 4: on average 1/16
    for dtype, units in (("float32", 2.0**-22), ("float64", 2.0**-51), ("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        floor = noise_floor(expected, narrow, dtype, scale)
        np.testing.assert_allclose(floor, [[8 * 0.25 + 2 * units], [8 * 4 / 16 + 4 * units], [1e-300]], rtol=1e-15)
    one = np.array([[1.0]])
    assert noise_floor(one, np.array([[INF]]), "float32", np.array([1.0]))[0, 0] == 2.0**-22
    assert noise_floor(one, one, "another", np.array([1.0]))[0, 0] == 2.0**-22, "as float32"
    assert noise_floor(one, one + 1, "float32", np.array([0.0]))[0, 0] == 8
    assert excess(np.array([[1.0, 4.0], [1.0, 1.0]]), np.ones((2, 2)), np.array([[2.0], [1.0]])) == 1.5


def test_inputs_are_moved_by_a_share_of_each_number():
    arrays = {"x": np.linspace(1, 8, 64).reshape(8, 8), "ids": np.arange(3)}
    nudged = Nudged(arrays, 0.25, 1)
    assert np.unique((nudged["x"] / arrays["x"]).round(12)).tolist() == [0.75, 1.25]
    assert nudged["ids"].tolist() == [0, 1, 2]
    assert not np.array_equal(nudged["x"], Nudged(arrays, 0.25, 2)["x"])


X = np.array([[1.0, -2.0, 3.0, 4.0, 5.0], [6.0, -7.0, 8.0, 9.0, 10.0]])
FLOOR = np.full((2, 1), 1e-3)


def dropped(share_kept, *zeros):
    """X after dropout: zeros at these places, the others divided by the share that is kept."""
    result = X / share_kept
    result.flat[list(zeros)] = 0
    return result


@pytest.mark.parametrize(
    ("own", "name"),
    [
        (dropped(0.8, 1, 7), "dropout is left on (p ≈ 0.2)"),
        (dropped(0.4, 0, 1, 2, 3, 4, 5), "dropout is left on (p ≈ 0.6)"),  # four numbers are left
        (dropped(0.2, 0, 1, 2, 3, 4, 5, 6), None),  # three
        (dropped(0.8), None),  # all are multiplied
        (dropped(1.0, 1, 7), None),  # none is
        (dropped(1.25, 1, 7), None),
        (dropped(0.5, 1, 7), None),  # by more than the share of zeros says: 2 · 0.8 − 1 > 0.35
        (dropped(0.6, 1, 7), "dropout is left on (p ≈ 0.4)"),  # 0.8 / 0.6 − 1 = 0.33
        (dropped(0.8, 1, 7) + 0.01 * (np.arange(10) == 4).reshape(2, 5), None),  # one number is off by more than noise
    ],
)
def test_dropout_is_zeros_and_one_factor(own, name):
    cause = explain_dropout(own, X, FLOOR)
    assert (cause and cause.name) == name
    assert cause is None or cause.remaining < 1e-12


def test_dropout_is_seen_in_numbers_that_are_above_the_noise():
    """8 times the noise is neither dropped nor kept, and so are infinite scores."""
    weak = 8 * np.repeat(FLOOR, 3, axis=1)
    expected = np.hstack([X, weak, np.full((2, 1), -INF)])
    own = np.hstack([dropped(0.8, 1, 7), 0 * weak, np.full((2, 1), -INF)])
    assert explain_dropout(own, expected, FLOOR) == Cause("dropout is left on (p ≈ 0.2)", 0.0)
    rare = np.full((1, 1000), 1.002)  # 2 of 1000
    rare[0, :2] = 0
    assert explain_dropout(rare, np.ones((1, 1000)), FLOOR[:1]) is None


def conclude(causes=(), doubtful=(), others=(), added=1.0, noise=1e-9, favourites=()):
    judge = Judge(SimpleNamespace(nodes={}), None, favourites=[*favourites])
    row = SiteRow("q", "numeric", added=added, noise=noise)
    row = judge.conclude(row, *([Cause(*one) for one in some] for some in (causes, doubtful, others)))
    return row.verdict, [cause.name for cause in row.causes], judge.favourites


@pytest.mark.parametrize(
    ("given", "verdict", "names"),
    [
        # the best, and what leaves at most four times as much
        ({"causes": [("b", 4e-3), ("a", 4.1e-3), ("c", 1e-3)]}, "named", ["c", "b"]),
        # or at most an eighth of the noise
        ({"causes": [("b", 4e-3), ("c", 4.1e-3), ("a", 1e-3)], "noise": 8 * 4.1e-3}, "named", ["a", "b", "c"]),
        # a slip of some of its nodes alone only where no whole one is as good
        ({"causes": [(f"a (q{ALONE}", 1e-3), ("a", 2e-3)]}, "named", ["a"]),
        ({"causes": [(f"a (q{ALONE}", 1e-3), ("a", 5e-3)]}, "named", [f"a (q{ALONE}"]),
        ({"causes": [("a", 1e-3)], "doubtful": [("b", 0.0)], "others": [("c", 0.0)]}, "named", ["a"]),
        ({"doubtful": [("a", 0.2), ("b", 0.1)], "others": [("c", 0.0)]}, "undecidable", ["b", "a"]),
        # a difference below a hundred eighths of the noise
        ({"noise": 0.08, "added": 0.99, "others": [("a", 0.5)]}, "undecidable", []),
        ({"noise": 0.08, "added": 1.0, "others": [("a", 0.5)]}, "unknown", ["a"]),
        # the three nearest, which leave at most nine tenths
        ({"others": [("a", 0.91), ("b", 0.9), ("c", 0.2), ("d", 0.1)]}, "unknown", ["d", "c", "b"]),
        ({"others": [("a", 0.8), ("b", 0.3), ("c", 0.2), ("d", 0.1)]}, "unknown", ["d", "c", "b"]),
        ({}, "unknown", []),
    ],
)
def test_a_verdict_names_the_slips_that_leave_least(given, verdict, names):
    assert conclude(**given)[:2] == (verdict, names)


def test_named_slips_are_tried_first_in_what_follows():
    assert conclude([("b", 2e-3), ("a", 1e-3)], favourites=["b"])[2] == ["b", "a"]
    assert conclude(doubtful=[("a", 1e-3)])[2] == []


def test_a_value_has_as_few_digits_as_noise_allows():
    number, x = Number("{} times", {}, 1.0, (0.01, 100.0)), np.array([[1.0, 3.0]])
    for floor, expected in ((1e-6, 2.512), (0.2, 2.5), (20.0, 3.0)):
        found = nearest_value(lambda logarithm: (np.exp(logarithm) - 2.512) * x, number, np.array([floor]))
        assert found == pytest.approx(expected, rel=1e-9)
    found = nearest_value(lambda logarithm: (np.exp(logarithm) - 2.51234567) * x, number, np.array([1e-12]))
    assert found == pytest.approx(2.51234567, rel=1e-9)
    assert nearest_value(lambda logarithm: np.full((1, 2), INF), number, np.ones(1)) is None


@pytest.mark.parametrize(
    ("mine", "wanted", "dtype", "expected"),
    [
        ([[1.0, 2.0], [3.0, 4.5]], [[1.0, 2.0], [3.0, 4.0]], "float32", ("numeric", 0.5, 64 * 2.0**-21)),
        ([1.0, 1 + 2.0**-17], [1.0, 1.0], "float32", ("", 2.0**-17, 2.0**-17)),  # 64 units in the last place
        ([1.0, 1 + 2.0**-16], [1.0, 1.0], "float32", ("numeric", 2.0**-16, 2.0**-17)),
        ([1.0, 1 + 2.0**-16], [1.0, 1.0], "bfloat16", ("", 2.0**-16, 0.5)),
        ([1, 2], [1, 2], "int64", ("", 0.0, 0.0)),
        ([1, 2], [1, 3], "int64", ("numeric", 1.0, 0.0)),
        ([-1e9, 1.0], [-INF, 1.0], "float32", ("", 0.0, 2.0**-17)),
        ([NAN, 1.0], [NAN, 1.0], "float32", ("", 0.0, 2.0**-17)),
        ([], [], "float32", ("", 0.0, 1e-300)),
    ],
)
def test_two_arrays_against_the_rounding_of_their_dtype(mine, wanted, dtype, expected):
    row = compare_arrays("x", np.array(mine), np.array(wanted), dtype, "of the last token")
    assert (row.site, row.kind, row.largest, row.note) == ("x", *expected[:2], "of the last token")
    assert row.noise == pytest.approx(expected[2], abs=1e-299) and row.added == row.largest
    finite = np.isfinite(np.ravel(wanted)) & np.isfinite(np.ravel(mine))
    x, y = (np.ravel(one)[finite] for one in (mine, wanted))
    assert row.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)) if len(x) else 1.0)
    assert (row.excess > 1) == row.differs


def test_a_number_that_is_none_is_said():
    row = compare_arrays("x", np.array([NAN, 1.0]), np.array([1.0, 1.0]), "float32")
    assert (row.kind, row.note) == ("not finite", "NaN in it")


def test_sites_recorded_before_what_they_are_computed_from():
    nodes = {
        site: Node(site, "add", inputs, ()) for site, inputs in (("a", ()), ("b", ("a",)), ("c", ("a", "b", "roots")))
    }
    graph = SimpleNamespace(nodes=nodes)
    assert order_problems(["a", "b", "c"], graph) == []
    assert order_problems(["b", "a", "c"], graph) == [("b", "a")]
    assert order_problems(["c", "b", "a"], graph) == [("b", "a"), ("c", "a"), ("c", "b")]
    assert order_problems(["c", "b"], graph) == [("c", "b")]


# Judged sites of a small model


def judge(change, slips=(), name="gpt2", dtype=np.float32, digits=0):
    """The rows that differ of what a model computes with slips, after a change of its arrays, by site."""
    return {site: row for site, row in rows_of(change, slips, name, dtype, digits).items() if row.differs}


def rows_of(change, slips=(), name="gpt2", dtype=np.float32, digits=0):
    core, ids = load_core(name), np.array([[5, 9, 17, 30, 8, 41]])
    graph, memo = model_graph(core, Inputs(ids=ids)), {}
    changes = {site: graph.nodes[site].change(**options) for site, options in dict(slips).items()}
    for site in graph.nodes:
        graph.evaluate(site, graph.roots, changes, "float32", memo)
    arrays = {"input_ids": ids} | {site: array.astype(dtype) for site, array in memo.items()}
    change(arrays)
    entries = {name: array_entry(array)._replace(digits=digits) for name, array in arrays.items()}
    dump = Dump("mine.npz", entries, True)
    report = compare_with_model(open_model(name), dump, Request(why=True, all_rows=True))
    return {row.site: row for row in report.rows}


def leave(arrays):
    """Change nothing."""


@pytest.mark.parametrize(
    ("factor", "dtype", "verdict", "name"),
    [
        (3.0, np.float32, "named", "the scores are multiplied by 3 instead of 0.5"),
        (3.0, np.float16, "undecidable", "the scores are multiplied by 3 instead of 0.5"),  # or a number near it
        (1.0, np.float16, "named", "the scale of the scores is missing"),
    ],
)
def test_a_number_is_named_where_no_other_near_it_explains_the_same(factor, dtype, verdict, name):
    row = judge(leave, {"decoder.0.self.scaled": {"factor": factor}}, dtype=dtype)["decoder.0.self.scaled"]
    assert (row.verdict, row.causes[0].name) == (verdict, name)


def test_printed_numbers_have_the_noise_of_their_digits():
    arrays = {}
    rows = rows_of(arrays.update, digits=3)
    for site in ("decoder.0.self.scaled", "decoder.0.ffn.residual"):
        assert rows[site].noise == pytest.approx(8e-3 * np.abs(arrays[site]).max(), rel=1e-2)
    assert not any(row.differs for row in rows.values())


def test_experts_that_compute_in_place_of_others_are_found_from_their_results():
    """Where the dump has the result of the experts, and where it has its sum with the residual alone."""
    slip = {f"decoder.{number}.ffn.output": {"instead": {2: 0}} for number in (0, 1)}
    for drop in (leave, lambda arrays: [arrays.pop(f"decoder.{number}.ffn.output") for number in (0, 1)]):
        rows = judge(drop, slip, "gpt_oss")
        assert {cause.name for row in rows.values() for cause in row.causes} == {
            "expert 0 computes in place of expert 2"
        }
        assert {row.verdict for row in rows.values()} == {"named"}


DROPOUT = np.where(np.arange(7 * 6 * 40) % 5, 1.25, 0)  # a fifth of the numbers


@pytest.mark.parametrize("site", ["decoder.0.norm1", "decoder.1.ffn.activated", "decoder.0.ffn.residual"])
def test_dropout_of_a_site_or_of_what_it_adds(site):
    """In a residual the numbers of the branch are dropped, not those that it is added to."""

    def drop(arrays):
        branch = arrays[site.replace("residual", "output")]
        arrays[site] += branch * (DROPOUT[: branch.size].reshape(branch.shape) - 1)

    row = judge(drop)[site]
    assert (row.verdict, [cause.name for cause in row.causes]) == ("named", ["dropout is left on (p ≈ 0.2)"])


def test_what_a_node_adds_and_what_it_inherits():
    """An output is moved by 1, and what is computed from it by 1 too; one number of it is moved further."""

    def move(arrays):
        arrays["decoder.0.ffn.output"] += 1
        arrays["decoder.0.ffn.residual"] += 1
        arrays["decoder.0.ffn.residual"][0, 2, 3] += 0.25

    rows = judge(move)
    for site, numbers in (("output", (1, 0, 1)), ("residual", (0.25, 1, 1.25))):
        row = rows[f"decoder.0.ffn.{site}"]
        assert (row.added, row.inherited, row.largest) == pytest.approx(numbers, abs=1e-5)
        assert 1 < row.excess <= row.added / 1e-6


def test_a_number_that_is_not_finite_is_placed():
    def spoil(arrays):
        arrays["decoder.0.ffn.output"][0, 2, 3] = NAN
        arrays["decoder.0.ffn.output"][0, 4, 1] = INF

    (row,) = (row for row in judge(spoil).values() if row.kind == "not finite")
    assert (row.site, row.note) == ("decoder.0.ffn.output", "nan in row 2, column 3")


# Weights that TransformerLens has processed


@pytest.mark.parametrize(
    ("gamma", "result", "expected"),
    [([1.0, 2.0], [[1.0, -1.0]], True), ([1.0, 1.0], [[1.0, -1.0]], False), ([1.0, 2.0], [[1.0, -2.0]], False)],
)
def test_a_norm_without_its_weight_is_processed(gamma, result, expected):
    node = Node("decoder.0.norm1", "norm", (), (), "decoder.0.norm1")
    core = SimpleNamespace(params={"decoder.0.norm1": {"gamma": np.array(gamma)}})
    graph = SimpleNamespace(nodes={"decoder.0.norm1": node}, core=core)
    mine = {"ln1.hook_normalized": np.array([[1.0, -1.0]]), "ln1.hook_out": np.array(result)}
    assert is_processed(mine, {"decoder.0.norm1": TensorSource("ln1.hook_out")}, graph) is expected


@pytest.mark.parametrize(
    ("table", "mine", "expected"),
    [
        ([[1.0, 2.0]], [[-0.5, 0.5]], True),
        ([[1.0, 2.0]], [[1.0, 2.0]], False),
        ([[-1.0, 1.0]], [[-1.0, 1.0]], False),  # centered before
        ([[1.0, 2.0]], [[-0.1, 0.1], [-1.998, 2.001]], True),  # 0.0015 is within a thousandth of the largest number
        ([[1.0, 2.0]], [[-0.1, 0.1], [-1.995, 2.0]], False),
    ],
)
def test_embeddings_without_their_mean_are_processed(table, mine, expected):
    site = "decoder.embed.words"
    core = SimpleNamespace(params={"decoder.embed": {"table": np.array(table)}})
    graph = SimpleNamespace(nodes={site: Node(site, "words", (), (), "decoder.embed")}, core=core)
    sources = {site: TensorSource("hook_embed"), "another": TensorSource("x")}
    assert is_processed({"hook_embed": np.array([mine])}, sources, graph) is expected
