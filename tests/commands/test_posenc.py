"""The tool posenc: what it adds to the arithmetic that it calls, record in, record out."""

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.errors import DataError, UsageError
from tests.commands.records import of
from tests.places import STORY

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


class TestPosenc:
    def test_it_adds_what_it_makes_alone(self):
        alone = attnkit.posenc(of(X), alone=True)["x"]
        assert np.allclose(attnkit.posenc(of(X))["x"], X + alone, rtol=0, atol=1e-15)
        assert np.array_equal(attnkit.posenc(size="5", dim=8)["x"], alone)

    @pytest.mark.parametrize(
        "flags, message",
        [
            ({"table": np.ones((9, 8))}, "--table: needs --kind learned or t5"),
            ({"cos": np.ones((9, 4)), "sin": np.ones((9, 4))}, "--cos: needs --kind rotary"),
            ({"kind": "alibi", "base": 100.0}, "--base: needs --kind sinusoidal or rotary"),
            ({"kind": "learned", "table": np.ones((9, 8)), "layout": "halves"}, "--layout: needs --kind sinusoidal"),
            ({"kind": "rotary", "one_way": True}, "--one-way: needs --kind t5"),
            ({"kind": "rotary", "model": STORY}, "--kind: rotary, but learned in --model"),
            ({"alone": True, "model": STORY}, "--model: cannot be combined with --alone"),
            ({"offset": 1, "positions": np.arange(5)}, "--offset: cannot be combined with --positions"),
            ({"size": 5, "dim": 8, "kind": "alibi"}, "--dim: needs --kind sinusoidal, rotary or learned"),
            ({"table": np.ones((9, 8)), "model": STORY}, "--model: cannot be combined with --table"),
        ],
    )
    def test_a_flag_of_another_kind_is_refused(self, flags, message):
        with pytest.raises(UsageError, match=message):
            attnkit.posenc(of(X), **flags)

    def test_positions_offset_and_layout(self):
        shifted = attnkit.posenc(of(X), offset=3, alone=True)["x"]
        assert np.array_equal(shifted, attnkit.posenc(of(X), positions=np.arange(3, 8), alone=True)["x"])
        halves = attnkit.posenc(of(X), layout="halves", alone=True)["x"]
        paper = attnkit.posenc(of(X), alone=True)["x"]
        assert np.array_equal(halves, np.concatenate([paper[:, ::2], paper[:, 1::2]], axis=-1))

    def test_positions_of_each_row_of_a_batch(self):
        rows = attnkit.posenc(of(X), positions=np.array([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]]))["x"]
        assert np.array_equal(rows[1], attnkit.posenc(of(X[1]), positions=np.array([9, 8, 7, 6, 5]))["x"])

    def test_rotary_keeps_lengths_and_turns_each_head_alike(self):
        turned = attnkit.posenc(of(X), kind="rotary", heads=2)["x"]
        assert np.allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(X, axis=-1))
        assert np.allclose(turned[..., :4], attnkit.posenc(of(X[..., :4]), kind="rotary")["x"], rtol=0, atol=1e-15)

    def test_without_input_learned_positions_have_the_width_of_their_table(self):
        table = np.arange(8.0).reshape(4, 2)
        assert attnkit.posenc(size=3, kind="learned", table=table)["x"].tolist() == table[:3].tolist()
        with pytest.raises(DataError, match="width 3 != 2"):
            attnkit.posenc(size=3, kind="learned", table=table, dim=3)

    def test_rotary_from_tables(self):
        alone = attnkit.posenc(of(X), kind="rotary", alone=True)
        given = attnkit.posenc(of(X), kind="rotary", cos=alone["x"], sin=alone["sin"])
        assert np.array_equal(given["x"], attnkit.posenc(of(X), kind="rotary")["x"])

    def test_alibi_and_t5_are_biases_of_attention(self):
        record = attnkit.posenc(of(X), kind="alibi", heads=2)
        expected = model.alibi_bias(np.arange(5), np.arange(5), 2)
        assert np.array_equal(record["bias"], expected) and record.tensors["bias"].axes == ("head", "query", "key")
        out = attnkit.attend(record, heads=2, bias=":bias", keep="masked,scaled")
        assert np.allclose(out["masked"], out["scaled"] + expected, rtol=0, atol=1e-15)
        table = RNG.standard_normal((8, 2))
        t5 = attnkit.posenc(of(X), kind="t5", table=table, one_way=True)["bias"]
        buckets = model.t5_buckets(np.arange(5), np.arange(5), buckets=8, bidirectional=False)
        assert np.array_equal(t5, model.t5_bias(buckets, table))

    @pytest.mark.parametrize(
        "given", [{"kind": "t5"}, {"kind": "learned"}, {"size": "3"}, {"dim": 4}, {"size": "3,4", "dim": 2}]
    )
    def test_what_is_missing_is_a_usage_error(self, given):
        with pytest.raises(UsageError):
            attnkit.posenc(None if "size" in given else of(X), **given)

    @pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
    def test_positions_are_as_many_as_tokens(self, kind):
        with pytest.raises(DataError, match="1 position for 5 tokens"):
            attnkit.posenc(of(X), kind=kind, positions=np.array([5]))

    def test_odd_widths_and_short_tables(self):
        with pytest.raises(DataError, match="width 3 is not even"):
            attnkit.posenc(of(np.ones((2, 3))))
        with pytest.raises(DataError, match=r"position 2 at \[2\] outside 0\.\.1"):
            attnkit.posenc(of(np.ones((3, 2))), kind="learned", table=np.ones((2, 2)))


def test_a_seed_draws_the_table_of_learned_positions():
    x = np.zeros((3, 4))
    rows = np.random.default_rng(7).standard_normal((5, 4))
    np.testing.assert_array_equal(attnkit.posenc(x, kind="learned", seed=7)["x"], rows[:3])
    np.testing.assert_array_equal(attnkit.posenc(x, kind="learned", seed=7, offset=2)["x"], rows[2:5])
    np.testing.assert_array_equal(attnkit.posenc(size=3, dim=4, kind="learned", seed=7)["x"], rows[:3])
    for given, problem in [
        ({"kind": "learned"}, "--kind learned: needs --table FILE or --seed N"),
        ({"seed": 1}, "--seed: needs --kind learned"),
        ({"kind": "learned", "seed": 1, "table": np.ones((3, 4))}, "cannot be combined with"),
    ]:
        with pytest.raises(UsageError, match=problem):
            attnkit.posenc(x, **given)
