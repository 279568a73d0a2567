"""The tool mask: what it adds to the arithmetic that it calls, record in, record out."""

import functools
import itertools

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitWarning, UsageError
from attnkit.records import Record
from tests.commands.records import CAT, of

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


class TestMask:
    def test_rules_combine_by_intersection_or_union(self):
        both = attnkit.mask(size="4", causal=True, window="1,1")["x"]
        either = attnkit.mask(size="4", causal=True, window="1,1", any_=True)["x"]
        causal, window = (attnkit.mask(size="4", **rule)["x"] for rule in ({"causal": True}, {"window": "1,1"}))
        assert np.array_equal(both, causal & window) and np.array_equal(either, causal | window)
        assert np.array_equal(attnkit.mask(size="4", causal=True, invert=True)["x"], ~causal)

    def test_a_mask_that_is_there_takes_part(self):
        record = attnkit.mask(attnkit.embed(("a b c", "a"), dim=2), causal=True)
        assert record["mask"].astype(int).tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0]] * 3]
        assert record.tensors["mask"].axes == ("batch", "query", "key")

    def test_padding_by_ids_lengths_and_labels(self):
        assert attnkit.mask(of([4, 5, 0]), padding=True, pad_id=0)["mask"].tolist() == [[True, True, False]] * 3
        assert attnkit.mask(of(X, lengths=[2, 5]), padding=True)["mask"][:, 0].sum(axis=-1).tolist() == [2, 5]
        with pytest.raises(UsageError, match="--pad-id N"):
            attnkit.mask(of(X, ids=np.ones((2, 5), int)), padding=True)
        with pytest.raises(UsageError, match="--padding: needs a record with ids or lengths"):
            attnkit.mask(of(X), padding=True, pad_id=0)

    def test_padding_of_a_batch_of_ids(self):
        ids = np.array([[1, 2, 3], [4, 5, 0]])
        expected = [[[1, 1, 1]] * 3, [[1, 1, 0]] * 3]
        for record in (of(ids), Record({"ids": ids}).with_tensors({"x": ids})):
            masked = attnkit.mask(record, padding=True, pad_id=0)
            assert masked["mask"].astype(int).tolist() == expected
            assert masked.tensors["mask"].axes == ("batch", "query", "key")
        causal = attnkit.mask(of(ids), padding=True, pad_id=0, causal=True)["mask"].astype(int)
        assert causal[1].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]

    def test_padded_queries_attend_to_nothing(self):
        ids = np.array([[1, 2, 3], [4, 5, 0]])
        masked = attnkit.mask(of(ids), padding=True, pad_id=0, padded_queries=True)["mask"].astype(int)
        assert masked.tolist() == [[[1, 1, 1]] * 3, [[1, 1, 0], [1, 1, 0], [0, 0, 0]]]
        lengths = attnkit.mask(size=3, lengths=np.array([3, 2]), padded_queries=True)["x"].astype(int)
        assert lengths.tolist() == masked.tolist()
        steps = attnkit.mask(of(ids), padding=True, pad_id=0, padded_queries=True, steps=True)
        assert steps["mask.padded-queries"].astype(int).tolist() == [[[1], [1], [1]], [[1], [1], [0]]]
        said = attnkit.mask(of(ids), padding=True, pad_id=0, padded_queries=True, explain="1,2,0")
        assert said["rules"].tolist() == [True, False] and not said["allowed"]
        x = attnkit.mask(of(X[:, :3], ids=ids), padding=True, pad_id=0, padded_queries=True)
        with pytest.warns(AttnkitWarning, match="may not attend to any key"):
            assert (attnkit.attend(x)["x"][1, 2] == 0).all()

    def test_padded_queries_need_padding_and_the_same_tokens(self):
        with pytest.raises(UsageError, match="--padded-queries: needs --padding or --lengths"):
            attnkit.mask(size=3, causal=True, padded_queries=True)
        with pytest.raises(UsageError, match="2 queries and 3 keys: expected the same tokens"):
            attnkit.mask(size="2,3", lengths=np.array([2]), padded_queries=True)
        with pytest.raises(UsageError, match="--padded-queries: cannot be combined with --any"):
            attnkit.mask(size=3, lengths=np.array([2]), padded_queries=True, any_=True)

    def test_an_offset_leaves_no_alignment(self):
        with pytest.raises(UsageError, match="--offset: cannot be combined with --align"):
            attnkit.mask(size=3, causal=True, offset=1, align="bottom-right")

    def test_prefix_chunks_segments_and_your_own(self):
        assert attnkit.mask(size="3", prefix=2)["x"].astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
        assert attnkit.mask(size="4", chunk=2)["x"].astype(int).tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2
        segments = attnkit.mask(of(CAT), segments=np.array([0, 0, 1]))["mask"]
        assert segments.astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
        own = np.array([[1, 0], [1, 1]])
        assert np.array_equal(attnkit.mask(size="2", with_=own)["x"], own == 1)
        assert np.array_equal(attnkit.mask(size="2", with_=own, polarity="ignore")["x"], own == 0)

    def test_forms(self):
        assert attnkit.mask(size="2", causal=True, as_="01")["x"].tolist() == [[1, 0], [1, 1]]
        assert attnkit.mask(size="2", causal=True, as_="additive")["x"].tolist() == [[0, -np.inf], [0, 0]]
        lowest = attnkit.mask(size="2", causal=True, as_="additive", fill="lowest", dtype="float32")["x"]
        assert lowest[0, 1] == np.finfo(np.float32).min
        assert attnkit.mask(of(X), lengths=np.array([2, 5]), as_="lengths")["lengths"].tolist() == [2, 5]

    def test_explain_names_the_rule(self):
        said = attnkit.mask(size="4", causal=True, window="1,0", explain="3,1")
        assert said.labels["rule"] == ["causal", "window"] and said["rules"].tolist() == [True, False]
        assert not said["allowed"] and said["cell"].tolist() == [3, 1]
        assert str(said).splitlines()[:3] == [
            "query 3 may not attend to key 1",
            "  causal allows it: key ≤ query",
            "  window blocks it: query − 1 ≤ key ≤ query",
        ]
        with pytest.raises(UsageError, match="outside the mask"):
            attnkit.mask(size="4", causal=True, explain="4,0")

    def test_the_words_of_other_tokens_are_no_labels(self):
        # a convolution makes 3 positions of 5 tokens, whose words stay in the record
        record = attnkit.conv(attnkit.embed("a b c d e", dim=4), filters=4, size=3)
        masked = attnkit.mask(record, causal=True)
        assert masked["mask"].tolist() == [[True, False, False], [True, True, False], [True, True, True]]
        assert masked.labels["token"] == ["a", "b", "c", "d", "e"] and "query" not in masked.labels
        said = str(attnkit.mask(record, causal=True, explain="2,1"))
        assert said.startswith("query 2 may attend to key 1\n")

    RULES = (
        {"causal": True},
        {"window": "1,0"},
        {"prefix": 2},
        {"chunk": 2},
        {"padding": True, "pad_id": 7},
        {"lengths": np.array([3, 5])},
        {"segments": np.array([0, 0, 1, 1, 1])},
        {"with_": np.tri(5, 5, 2, dtype=bool)},
    )

    @pytest.mark.filterwarnings("ignore:--causal blocks")
    @pytest.mark.parametrize("union", [False, True])
    @pytest.mark.parametrize("carried", [False, True])
    @pytest.mark.parametrize(("one", "other"), list(itertools.combinations(RULES, 2)))
    def test_every_pair_of_rules_is_their_intersection_or_union_and_explained(self, one, other, carried, union):
        record = of(X, ids=[[1, 2, 7, 7, 7], [1, 2, 3, 4, 5]])
        singles = {(set(rule) - {"pad_id"}).pop(): attnkit.mask(record, **rule)["mask"] for rule in (one, other)}
        if carried:
            singles["record"] = np.random.default_rng(3).random((2, 5, 5)) < 0.5
            record = record.with_tensors({"mask": singles["record"]})
        joined = functools.reduce(np.logical_or if union else np.logical_and, singles.values())
        both = attnkit.mask(record, **one, **other, any_=union)["mask"]
        assert np.array_equal(np.broadcast_to(both, (2, 5, 5)), np.broadcast_to(joined, (2, 5, 5)))
        for cell in [(0, 0, 1), (1, 3, 3), (1, 4, 0)]:
            index = cell[-both.ndim :]
            said = str(attnkit.mask(record, **one, **other, any_=union, explain=index)).splitlines()
            expected = "may" if both[index] else "may not"
            assert f" {expected} attend to key " in said[0]
            verdicts = {line.split()[0].rstrip("_"): line.split()[1] == "allows" for line in said[1:-1]}
            singly = {name.rstrip("_"): np.broadcast_to(cells, both.shape)[index] for name, cells in singles.items()}
            assert verdicts == singly

    def test_a_prefix_beside_causal_is_closed_and_told(self):
        with pytest.warns(AttnkitWarning, match="--causal blocks the keys that --prefix 2 allows"):
            both = attnkit.mask(size="3", causal=True, prefix=2)["x"]
        assert np.array_equal(both, np.tri(3, dtype=bool))

    def test_a_form_that_the_mask_does_not_have(self):
        with pytest.raises(UsageError, match=r"--as lengths: mask is not a padding mask: \[1\]\[1\]"):
            attnkit.mask(size="3", causal=True, as_="lengths")

    def test_a_mask_over_the_memory(self):
        record = attnkit.mask(of(X, memory=np.ones((2, 3, 8))), cross=True, lengths=np.array([1, 3]))
        assert record["memory_mask"].shape == (2, 5, 3)
        out = attnkit.attend(record, memory=":memory", mask=":memory_mask", keep="weights")
        assert np.array_equal(out["weights"][0, 0], [[1, 0, 0]] * 5)
