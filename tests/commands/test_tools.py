"""The tools as functions: what each adds to the arithmetic it calls, record in, record out."""

import functools
import itertools
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tokenizers

import attnkit
from attnkit import formats, model
from attnkit.cli import pipeline
from attnkit.errors import AttnkitWarning, DataError, FileError, UsageError
from attnkit.formats import Record
from attnkit.record import Tensor

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))
STORY = str(Path(__file__).parents[2] / "samples" / "data" / "story")
CAT = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])


def of(x, **more):
    return Record({"x": np.asarray(x)} | {name: np.asarray(value) for name, value in more.items()})


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_back(record):
    """The record after a trip through JSON, where axes and labels are checked."""
    data = b"".join(bytes(part) for part in formats.encode(record, "json"))
    return next(iter(formats.read(formats.Source.of(data))))


class TestEmbed:
    def test_one_hot_is_the_identity_of_its_words(self):
        record = attnkit.embed("The cat sat", one_hot=True)
        assert np.array_equal(record["x"], np.eye(3))
        assert record.labels == {"token": ["The", "cat", "sat"], "vocab": ["The", "cat", "sat"]}
        assert record["ids"].tolist() == [0, 1, 2]

    def test_rows_of_a_labelled_table(self, here):
        table = Record({"x": Tensor(np.diag([1.0, 2, 3]), ("vocab", "model"))}, {"vocab": ["a", "b", "c"]})
        record = attnkit.embed("c a c", table=table)
        assert np.array_equal(record["x"], [[0, 0, 3], [1, 0, 0], [0, 0, 3]])
        Path("plain.json").write_text("[[1,2],[3,4]]")
        with pytest.raises(UsageError, match="carry no words"):
            attnkit.embed("a", table="plain.json")
        Path("words").write_text("a\nb\n")
        assert attnkit.embed("b", table="plain.json", vocab="words")["x"].tolist() == [[3, 4]]

    def test_ids_in_place_of_text(self, here):
        Path("ids.json").write_text("[[1, 0], [2, 2]]")
        Path("words").write_text("a\nb\nc\n")
        record = attnkit.embed(ids="ids.json", dim=4, vocab="words")
        assert record["x"].shape == (2, 2, 4)
        assert record.labels["token"] == [["b", "a"], ["c", "c"]]
        assert np.array_equal(record["x"], record["table"][[[1, 0], [2, 2]]])

    def test_the_ids_of_a_file_bring_their_mask_and_labels(self, here):
        batch = attnkit.embed(("a b c", "a"), dim=4)
        formats.save(batch, "b.npz")
        Path("v").write_text("a\nb\nc\n[pad]\n")
        for ids in ("b.npz", "b.npz:ids", batch):
            for given in ({"vocab": "v", "dim": 4}, {"table": batch["table"]}):
                made = attnkit.embed(ids=ids, **given)
                assert all(np.array_equal(made[name], batch[name]) for name in ("x", "ids", "mask")), given
                assert made.labels["token"] == batch.labels["token"]
                assert made.tensors["mask"].axes == ("batch", "all queries", "key")
        np.save("ids.npy", batch["ids"])
        assert "mask" not in attnkit.embed(ids="ids.npy", vocab="v", dim=4)

    def test_padding_of_given_ids_is_no_part_of_a_models_texts(self, here):
        data = Path(__file__).parents[2] / "samples" / "data"
        french, folder = str(data / "fr-en"), str(data / "story")
        formats.save(attnkit.embed(("le chat noir dort", "le chien"), model=french), "b.npz")
        whole, batch = attnkit.encode(ids="b.npz", model=french), formats.load("b.npz")
        assert np.array_equal(whole["x"], attnkit.encode(batch, model=french)["x"])
        assert np.array_equal(whole["mask"], batch["mask"])
        batch = attnkit.embed(("One day the fox", "One"), model=folder)
        formats.save(batch, "b.npz")
        (said,) = {attnkit.decode(("One day the fox", "One"), model=folder, max_tokens=3)["ids"].tobytes()}
        assert attnkit.decode(ids="b.npz", model=folder, max_tokens=3)["ids"].tobytes() == said

    def test_several_texts_are_padded_and_masked(self):
        record = attnkit.embed(("the cat sat", "a dog"), dim=4)
        assert record["x"].shape == (2, 3, 4)
        assert record["mask"].tolist() == [[[True, True, True]], [[True, True, False]]]
        assert record.labels["token"][1] == ["a", "dog", "[pad]"]
        assert not record["x"][1, 2].any()

    def test_a_vocabulary_file_pads_and_stands_in_for_unknown_words(self, here):
        Path("v.json").write_text(json.dumps({"<unk>": 1, "<pad>": 0, "cat": 2}))
        record = attnkit.embed(("cat", "cat zebra"), dim=2, vocab="v.json")
        assert record["ids"].tolist() == [[2, 0], [2, 1]]
        Path("w").write_text("cat\n")
        with pytest.raises(DataError, match=r"'zebra' at \[1\] is not in the vocabulary"):
            attnkit.embed("cat zebra", dim=2, vocab="w")

    def test_words_chars_and_unicode(self):
        assert attnkit.embed("Ünï 中文 😀!", dim=2).labels["token"] == ["Ünï", "中文", "😀", "!"]
        assert attnkit.embed("e\u0301", dim=2, tokenizer="chars").labels["token"] == ["é"]
        assert attnkit.embed("", dim=2)["x"].shape == (0, 2)

    def test_scale_is_the_root_of_the_width(self):
        plain, scaled = (attnkit.embed("a b", dim=16, scale=scale)["x"] for scale in (False, True))
        assert np.array_equal(scaled, plain * 4)

    def test_a_tokenizer_file(self, here):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "cat": 1, "sat": 2}, unk_token="[UNK]"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.save("tokenizer.json")
        record = attnkit.embed("sat cat dog", dim=2, tokenizer="tokenizer.json")
        assert record["ids"].tolist() == [2, 1, 0]
        assert record.labels["vocab"] == ["[UNK]", "cat", "sat"]
        Path("bad.json").write_text("{}")
        with pytest.raises(DataError, match=r"bad\.json: not a tokenizer\.json"):
            attnkit.embed("a", dim=2, tokenizer="bad.json")

    @pytest.mark.parametrize(
        "given", [{}, {"dim": 2, "one_hot": True}, {"dim": 0}, {"dim": 2, "seed": -1}, {"dims": 2}]
    )
    def test_bad_parameters(self, given):
        with pytest.raises(UsageError):
            attnkit.embed(
                "a", **{name: str(value) if name in ("dim", "seed") else value for name, value in given.items()}
            )


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
            ({"kind": "rotary", "model": STORY}, "--model: cannot be combined with --kind"),
            ({"alone": True, "model": STORY}, "--model: cannot be combined with --alone"),
            ({"table": np.ones((9, 8)), "model": STORY}, "--table: needs --kind learned or t5"),
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
        with pytest.raises(DataError, match="1 of them for 5 tokens"):
            attnkit.posenc(of(X), kind=kind, positions=np.array([5]))

    def test_odd_widths_and_short_tables(self):
        with pytest.raises(DataError, match="width 3 is not even"):
            attnkit.posenc(of(np.ones((2, 3))))
        with pytest.raises(DataError, match=r"position 2 at \[2\] outside 0\.\.1"):
            attnkit.posenc(of(np.ones((3, 2))), kind="learned", table=np.ones((2, 2)))


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
        assert said.splitlines()[:3] == [
            "query 3 may not attend to key 1",
            "  causal allows it: key ≤ query",
            "  window blocks it: query − 1 ≤ key ≤ query",
        ]
        with pytest.raises(UsageError, match="outside the mask"):
            attnkit.mask(size="4", causal=True, explain="4,0")

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

    @pytest.mark.filterwarnings("ignore:--causal closes")
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
            said = attnkit.mask(record, **one, **other, any_=union, explain=index).splitlines()
            expected = "may" if both[index] else "may not"
            assert f" {expected} attend to key " in said[0]
            verdicts = {line.split()[0].rstrip("_"): line.split()[1] == "allows" for line in said[1:-1]}
            singly = {name.rstrip("_"): np.broadcast_to(cells, both.shape)[index] for name, cells in singles.items()}
            assert verdicts == singly

    def test_a_prefix_beside_causal_is_closed_and_told(self):
        with pytest.warns(AttnkitWarning, match="--causal closes the keys that --prefix 2 opens"):
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


class TestAttend:
    def test_the_hand_calculation(self):
        record = attnkit.attend(of(CAT), keep="scores,scaled,weights")
        assert record["scores"][0].tolist() == [[2, 0, 2], [0, 2, 2], [2, 2, 4]]
        assert record["scaled"][0].tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 2]]
        assert np.round(record["weights"][0], 4).tolist()[2] == [0.2119, 0.2119, 0.5761]
        assert np.round(record["x"], 4).tolist()[0] == [0.8446, 0.5777, 0.8446, 0.5777]

    def test_every_intermediate_under_its_name(self):
        record = attnkit.attend(of(X), heads=2, steps=True)
        names = ["q", "k", "v", "scores", "scaled", "capped", "masked", "weights", "heads"]
        assert list(record) == ["x", *names]
        assert record.tensors["weights"].axes == ("batch", "head", "query", "key")
        assert np.allclose(record["x"], model.merge_heads(record["weights"] @ record["v"]))
        for name in names:
            assert np.array_equal(attnkit.attend(of(X), heads=2, emit=name)["x"], record[name])

    def test_weights_from_a_file_and_from_a_seed(self, here):
        params = {name: RNG.standard_normal((8, 8)) for name in ("wq", "wk", "wv", "wo")} | {
            "bq": RNG.standard_normal(8)
        }
        np.savez("w.npz", **params)
        expected = model.multi_head_attention(X, X, X, params, heads=4, causal=True)["output"]
        assert np.array_equal(attnkit.attend(of(X), heads=4, params="w.npz", causal=True)["x"], expected)
        rng = np.random.default_rng(9)
        seeded = {name: rng.standard_normal((8, 8)) / 8**0.5 for name in ("wq", "wk", "wv", "wo")}
        expected = model.multi_head_attention(X, X, X, seeded, heads=2)["output"]
        assert np.array_equal(attnkit.attend(of(X), heads=2, seed=9)["x"], expected)

    def test_grouped_heads(self):
        record = attnkit.attend(of(X), heads=4, kv_heads=2, seed=1, keep="k,weights")
        assert record["k"].shape == (2, 2, 5, 2) and record["weights"].shape == (2, 4, 5, 5)

    def test_over_a_memory_the_records_mask_is_not_used(self):
        tokens, memory = (
            attnkit.mask(attnkit.embed("I am", dim=8), causal=True),
            attnkit.embed("je suis étudiant", dim=8),
        )
        record = attnkit.attend(tokens, memory=memory, keep="weights")
        assert (record["weights"] > 0).all()
        assert record.labels["source"] == ["je", "suis", "étudiant"] and record.labels["query"] == ["I", "am"]
        assert record.tensors["weights"].axes == ("head", "query", "source")
        record.check()

    def test_query_key_and_value_from_elsewhere(self):
        q, k, v = (RNG.standard_normal((3, 4)) for _ in range(3))
        record = attnkit.attend(None, query=q, key=k, value=v)
        assert np.array_equal(record["x"], model.attention(q[None], k[None], v[None])["heads"][0])

    def test_the_past_continues(self):
        whole = attnkit.attend(of(X), heads=2, causal=True)["x"]
        first = attnkit.attend(of(X[:, :3]), heads=2, causal=True, keep="present")
        after = attnkit.attend(
            of(X[:, 3:]), heads=2, causal=True, past_key=first["present_key"], past_value=first["present_value"]
        )
        assert np.allclose(after["x"], whole[:, 3:], rtol=0, atol=1e-14)

    def test_residual_and_add(self):
        plain = attnkit.attend(of(X))["x"]
        assert np.array_equal(attnkit.attend(of(X), residual=True)["x"], plain + X)
        assert np.array_equal(attnkit.attend(of(X), add=X * 2)["x"], plain + X * 2)

    def test_scores_with_weights_of_their_own(self):
        w = RNG.standard_normal((8, 8))
        record = attnkit.attend(of(X), score="general", params={"w": w}, keep="scores")
        assert np.allclose(record["scores"][:, 0], X @ w @ X.swapaxes(-1, -2))
        wa, ua, va = RNG.standard_normal((8, 3)), RNG.standard_normal((8, 3)), RNG.standard_normal(3)
        record = attnkit.attend(of(X), score="additive", params={"wa": wa, "ua": ua, "va": va}, keep="scores")
        expected = np.tanh((X @ wa)[:, :, None] + (X @ ua)[:, None]) @ va
        assert np.allclose(record["scores"][:, 0], expected)

    def test_a_query_without_keys(self):
        nothing = np.array([[True, True, True], [False, False, False], [True, True, True]])
        with pytest.warns(AttnkitWarning, match=r"1 row of weights is zeros.*first \[0\]\[1\]"):
            record = attnkit.attend(of(CAT), mask=nothing)
        assert not record["x"][1].any()
        with pytest.raises(DataError, match="may attend to nothing"):
            attnkit.attend(of(CAT), mask=nothing, strict=True)

    def test_masks_of_a_batch_align_by_the_names_of_their_axes(self):
        open_ = np.zeros((2, 1, 5), bool)
        open_[0, 0, :2], open_[1, 0, :4] = True, True
        mask = Record({"x": Tensor(open_, ("batch", "query", "key"))})
        record = attnkit.attend(of(X), heads=2, mask=mask, keep="weights")
        assert not record["weights"][0, :, :, 2:].any() and record["weights"][1, :, :, :4].all()

    def test_every_intermediate_of_a_padded_batch_is_read_back(self):
        batch = attnkit.embed(("a b c", "d e"), dim=8)
        record = read_back(
            attnkit.attend(attnkit.posenc(batch, kind="alibi", heads=2), heads=2, bias=":bias", steps=True)
        )
        assert record.labels["query"] == [["a", "b", "c"], ["d", "e", "[pad]"]]
        assert not record["weights"][1, :, :, 2].any()

    def test_queries_from_elsewhere_bring_their_labels(self):
        record = attnkit.attend(attnkit.embed("The cat sat", dim=8), query=attnkit.embed("x y", dim=8))
        assert record.tensors["x"].axes == ("query", "model") and record.labels["query"] == ["x", "y"]
        assert read_back(record).labels["token"] == ["The", "cat", "sat"]  # of ids

    @pytest.mark.filterwarnings("ignore:2 rows")
    def test_an_alignment_overrides_the_rule_of_lengths(self):
        lengths = np.array([5, 3])
        by_rule = attnkit.attend(of(X), causal=True, lengths=lengths, keep="weights")
        assert (by_rule["weights"][1, 0] > 0).sum(axis=-1).tolist() == [0, 0, 1, 2, 3]  # ONNX: key <= query + 3 - 5
        top = attnkit.attend(of(X), causal=True, align="top-left", lengths=lengths, keep="weights")
        assert (top["weights"][1, 0] > 0).sum(axis=-1).tolist() == [1, 2, 3, 3, 3]

    def test_a_float_mask_of_0_and_1_is_worth_a_warning(self):
        with pytest.warns(AttnkitWarning, match="the mask is float, so its 0 and 1 are added"):
            attnkit.attend(of(CAT), mask=np.tri(3))

    @pytest.mark.parametrize(
        ("given", "formula"),
        [
            ({}, "softmax(Q Kᵀ / √d_k) V"),
            ({"scale": 2}, "softmax(Q Kᵀ · 2) V"),
            ({"causal": True, "seed": 0}, "softmax(Q Kᵀ / √d_k, masked) V W_O"),
            ({"softcap": 3, "bias": np.ones((5, 5))}, "softmax(3 tanh(Q Kᵀ / √d_k / 3) + bias) V"),
            ({"score": "dot", "residual": True}, "softmax(Q Kᵀ) V + input"),
            ({"steps": True, "params": {"wo": np.eye(8), "bo": np.ones(8)}}, "heads W_O + b_O"),
        ],
    )
    def test_the_formula_says_what_was_computed(self, given, formula):
        assert attnkit.attend(of(X), **given).tensors["x"].formula == formula

    def test_only_steps_that_did_something_have_a_formula(self):
        assert not attnkit.attend(of(X), steps=True).tensors["masked"].formula
        biased = attnkit.attend(of(X), steps=True, bias=np.ones((5, 5)), softcap=2)
        assert biased.tensors["masked"].formula == "capped + bias"
        assert biased.tensors["capped"].formula == "2 tanh(scaled / 2)"

    def test_tensors_split_into_heads_already(self):
        q, k = RNG.standard_normal((2, 4, 5, 8)), RNG.standard_normal((2, 2, 5, 8))
        record = attnkit.attend(of(q), key=k)
        assert np.array_equal(record["x"], model.attention(q, k, k)["heads"])
        with pytest.raises(DataError, match="has 4 heads, --heads says 3"):
            attnkit.attend(of(q), heads=3)
        with pytest.raises(DataError, match="has 2 heads, --kv-heads says 4"):
            attnkit.attend(of(q), key=k, kv_heads=4)

    def test_half_precision_computes_in_float32(self):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            half = X.astype(dtype)
            single = attnkit.attend(of(half.astype(np.float32)))["x"]
            record = attnkit.attend(of(half))
            assert record["x"].dtype == dtype and np.array_equal(record["x"], single.astype(dtype))

    @pytest.mark.parametrize(
        ("given", "kind", "message"),
        [
            ({"heads": 3}, DataError, "d_model 8 is not divisible by heads 3"),
            ({"heads": 4, "kv_heads": 3}, UsageError, "heads 4, kv_heads 3"),
            ({"params": {"wx": X[0]}}, DataError, "'wx' is not one of"),
            ({"params": {"wq": np.eye(6)}}, DataError, r"wq \(6,6\) for x \(2,5,8\)"),
            ({"score": "additive"}, UsageError, "needs wa, ua, va"),
            ({"lengths": np.array([9, 1])}, DataError, "length 9"),
            ({"mask": np.ones((4, 5), int) * 2}, DataError, "mask value 2"),
            ({"memory": np.ones((2, 3, 6))}, DataError, "last dimension 8 != 6"),
        ],
    )
    def test_errors_name_both_sides(self, given, kind, message):
        with pytest.raises(kind, match=message):
            attnkit.attend(of(X), **given)


class TestLayernorm:
    def test_statistics_are_kept(self):
        record = attnkit.layernorm(of([[2.0, 4, 6, 8]]), keep="mean,inverse_std")
        assert record["mean"].tolist() == [[5]]
        assert record["inverse_std"][0, 0] == pytest.approx((5 + 1e-5) ** -0.5, rel=1e-15)
        assert np.round(record["x"], 4).tolist() == [[-1.3416, -0.4472, 0.4472, 1.3416]]

    def test_kinds(self):
        gamma, beta = RNG.standard_normal(8), RNG.standard_normal(8)
        assert np.array_equal(attnkit.layernorm(of(X), kind="rms", gamma=gamma)["x"], model.rms_norm(X, gamma).y)
        table = np.array([[1200, 2, 45], [1500, 3, 70]])
        assert np.round(attnkit.layernorm(of(table), kind="batch")["x"], 3).tolist() == [[-1, -1, -1], [1, 1, 1]]
        running = attnkit.layernorm(of(X), kind="batch", mean=beta, variance=gamma**2, eps=1e-5)["x"]
        assert np.allclose(running, (X - beta) / np.sqrt(gamma**2 + 1e-5))

    def test_the_pre_norm_residual_travels(self):
        record = attnkit.layernorm(of(X), keep="residual")
        out = attnkit.attend(record, add=":residual")["x"]
        assert np.array_equal(out, attnkit.attend(of(model.layer_norm(X).y))["x"] + X)

    def test_nan_touches_its_row_alone_and_is_told(self):
        x = CAT.copy()
        x[1, 2] = np.nan
        with pytest.warns(AttnkitWarning, match=r"x is nan at \[1\]\[2\]"):
            y = attnkit.layernorm(of(x))["x"]
        assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()
        with pytest.raises(DataError, match=r"x is nan at \[1\]\[2\]"):
            attnkit.layernorm(of(x), check_finite=True)

    def test_overflow_is_told(self):
        with pytest.warns(AttnkitWarning, match=r"inf at \[0\]\[0\]: outside the range of float16"):
            attnkit.layernorm(of(np.array([[1, -1]], np.float16)), gamma=np.full(2, 1e6))


class TestFfn:
    def test_weights_from_a_file_and_from_a_seed(self):
        params = {"w1": RNG.standard_normal((8, 3)), "w2": RNG.standard_normal((3, 8)), "b1": RNG.standard_normal(3)}
        expected = np.maximum(X @ params["w1"] + params["b1"], 0) @ params["w2"]
        assert np.allclose(attnkit.ffn(of(X), params=params)["x"], expected)
        rng = np.random.default_rng(0)
        w1, w2 = rng.standard_normal((8, 16)) / 8**0.5, rng.standard_normal((16, 8)) / 4
        assert np.allclose(attnkit.ffn(of(X), hidden=16)["x"], np.maximum(X @ w1, 0) @ w2)

    def test_gated_with_its_steps(self):
        record = attnkit.ffn(of(X), hidden=4, gated=True, activation="silu", steps=True, residual=True)
        assert list(record) == ["x", "hidden", "activated", "linear", "gated"]
        assert np.allclose(record["gated"], record["activated"] * record["linear"])

    @pytest.mark.parametrize(
        "given", [{}, {"hidden": 2, "params": {}}, {"params": {"w1": X[0], "w2": X[0], "w3": X[0]}}]
    )
    def test_bad_parameters(self, given):
        with pytest.raises(UsageError):
            attnkit.ffn(of(X), **given)

    def test_a_missing_matrix_is_named(self):
        with pytest.raises(DataError, match="no w2"):
            attnkit.ffn(of(X), params={"w1": X[0]})


class TestDecode:
    WORDS = ("a", "am", "I", "thanks", "student", "<eos>")

    def test_tied_to_the_table_that_travels(self):
        record = attnkit.embed("The cat sat", dim=64)
        out = attnkit.decode(record)
        assert np.allclose(out["logits"], record["x"] @ record["table"].T)
        assert np.allclose(out["x"].sum(axis=-1), 1) and out["next"].tolist() == [0, 1, 2]
        assert attnkit.decode(record, emit="text") == "The cat sat"

    def test_temperature_and_its_own_matrix(self):
        w = RNG.standard_normal((8, 6))
        out = attnkit.decode(of(X[0]), params={"w": w, "b": np.arange(6.0)}, temperature=2.0)
        assert np.allclose(out["x"], model.softmax((X[0] @ w + np.arange(6.0)) / 2))

    def test_what_the_filters_remove_has_no_probability(self):
        logits = of(np.log([[0.5, 0.25, 0.125, 0.125]]))
        tied = {"table": np.eye(4)}
        assert np.round(attnkit.decode(logits, top_k=2, **tied)["x"], 6).tolist() == [[0.666667, 0.333333, 0, 0]]
        assert (attnkit.decode(logits, top_p=0.8, **tied)["x"] > 0).tolist() == [[True, True, True, False]]
        assert (attnkit.decode(logits, min_p=0.3, **tied)["x"] > 0).tolist() == [[True, True, False, False]]

    def test_nothing_is_said_after_padding(self):
        batch = attnkit.embed(("The cat sat", "A dog"), dim=64)
        assert attnkit.decode(batch, emit="text") == "The cat sat\nA dog"

    def test_a_seed_draws_the_same_words_again(self):
        record, tied = of(np.zeros((200, 4))), {"table": np.eye(4)}
        one, same, other = (attnkit.decode(record, seed=seed, **tied)["next"] for seed in (1, 1, 2))
        assert np.array_equal(one, same) and not np.array_equal(one, other)
        assert set(one.tolist()) == {0, 1, 2, 3}
        assert set(attnkit.decode(record, **tied)["next"].tolist()) == {0}  # the first of equals

    @pytest.mark.parametrize(
        ("row", "message"), [([-np.inf] * 3, "no finite logit at step 0"), ([1, np.nan, 2], "step 0")]
    )
    def test_no_finite_logit(self, row, message):
        with pytest.raises(DataError, match=message):
            attnkit.decode(of([[0.0, 0, 0]]), params={"w": np.zeros((3, 3)), "b": np.array(row, float)})

    def test_logits_of_16_bits_are_not_rounded_before_the_choice(self):
        table, far = np.zeros((3, 4)), {"dtype": "float16", "temperature": 1000.0, "seed": 0}
        table[:2, 0] = 300, 299
        states = of([[300.0, 0, 0, 0]])
        only = attnkit.decode(states, table=table, emit="probs", **far)
        with pytest.warns(AttnkitWarning, match=r"^logits are beyond the range of float16 at \[0\]\[0\]"):
            both = attnkit.decode(states, table=table, **far)
        assert {both[name].dtype.name for name in ("x", "logits")} == {only["x"].dtype.name} == {"float16"}
        assert np.array_equal(only["x"], both["x"])
        assert np.allclose(only["x"], [[0.57444, 0.42556, 0]], atol=3e-4)
        with pytest.warns(AttnkitWarning, match=r"the result is inf at \[0\]\[0\]: outside the range of float16"):
            attnkit.decode(states, table=table, emit="logits", **far)

    def test_logits_of_bfloat16_are_not_rounded_before_the_choice(self):
        table = np.array([[300.0], [301.277]])  # logits 300 and 301.277 are both 300 or 302 in bfloat16
        out = attnkit.decode(of([[1.0]]), table=table, dtype="bfloat16")
        assert out["x"].dtype == out["logits"].dtype == ml_dtypes.bfloat16 and out["next"].tolist() == [1]
        assert np.allclose(out["x"].astype(float), [[0.218, 0.782]], atol=2e-3)

    def test_a_tiny_temperature_is_the_choice_of_the_largest(self):
        assert attnkit.decode(of([[1.0, 2.0]]), table=np.eye(2), temperature=1e-320)["x"].tolist() == [[0, 1]]

    def test_words_must_be_as_many_as_logits(self, here):
        Path("v").write_text("\n".join(self.WORDS))
        with pytest.raises(DataError, match="6 words for 4 logits"):
            attnkit.decode(of(CAT), table=np.eye(4), vocab="v")


class TestCommon:
    def test_only_keeps_these_tensors_and_their_labels(self):
        record = attnkit.attend(attnkit.embed("a b", dim=4), keep="weights", only="weights")
        assert list(record) == ["weights"] and set(record.labels) == {"query", "key"}
        with pytest.raises(DataError, match="no tensor 'y'"):
            attnkit.attend(of(CAT), only="y")

    @pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
    def test_dtype_converts_before(self, dtype):
        record = attnkit.layernorm(attnkit.embed("a b", dim=4), dtype=dtype)
        assert record["x"].dtype.name == dtype

    def test_arrays_lists_and_numbers_of_python_are_taken_as_they_are(self):
        assert np.array_equal(attnkit.attend(CAT)["x"], attnkit.attend(of(CAT))["x"])
        assert attnkit.layernorm([[2, 4, 6, 8]])["x"].shape == (1, 4)
        assert np.array_equal(attnkit.mask(size=3, causal=True)["x"], attnkit.mask(size="3", causal=True)["x"])
        assert attnkit.posenc(size=4, dim=6)["x"].shape == (4, 6)
        with pytest.raises(UsageError, match="heads: expected a whole number of at least 1, got '0'"):
            attnkit.attend(CAT, heads=0)
        assert list(of(CAT, mask=[1])) == ["x", "mask"] and len(of(CAT)) == 1
        assert repr(of(CAT)) == "<Record: x (3, 4) float64>"

    def test_a_file_of_python_is_that_of_the_command_line(self, here):
        formats.save(attnkit.embed("a b", dim=4), "r.npz")
        np.save("x.npy", CAT)
        for number in "12":
            formats.save(attnkit.attend("r.npz", partial=True), f"part{number}.npz")
        for item, line in (
            ("r.npz", "layernorm r.npz"),
            (Path("x.npy"), "layernorm x.npy"),
            ("r.npz:table", "layernorm r.npz:table"),
            (["part1.npz", Path("part2.npz")], "merge part1.npz part2.npz"),
        ):
            (shell,) = list(pipeline.chain_stages(pipeline.parse_stages(f"{line} -f json")).items)
            record = getattr(attnkit, line.split()[0])(item)
            assert record.history == shell.history and record["x"].tobytes() == shell["x"].tobytes()
        (entry,) = attnkit.layernorm(Path("x.npy")).history
        assert entry["command"] == "attnkit layernorm x.npy" and [*entry["files"]] == ["x.npy"]
        assert np.array_equal(attnkit.attend("x.npy", memory=Path("x.npy"))["x"], attnkit.attend(CAT, memory=CAT)["x"])
        with pytest.raises(FileError, match="nosuch: No such file"):
            attnkit.attend("nosuch")
        formats.save(of(CAT), "stream.json")
        Path("stream.json").write_text(Path("stream.json").read_text() * 2)
        with pytest.raises(DataError, match=r"stream\.json: 2 records \(expected 1\)"):
            attnkit.attend("stream.json")

    def test_one_part_of_python_is_merged_as_one_of_a_pipe(self):
        part = attnkit.attend(of(CAT), partial=True)
        one, listed = attnkit.merge(part), attnkit.merge([part])
        assert one.history == listed.history and np.array_equal(one["x"], part["x"])

    def test_a_flag_of_the_command_line_is_named(self):
        with pytest.raises(UsageError, match="decode takes no 'top' from Python: it is for the command line"):
            attnkit.decode(of(CAT), top=2)

    def test_names_of_whole_models_are_names_of_the_package(self):
        assert model.CachedDecoder is model.whole_models.CachedDecoder
        with pytest.raises(AttributeError, match="has no attribute 'missing'"):
            model.missing  # noqa: B018

    def test_a_star_import_has_every_name(self):
        names: dict[str, object] = {}
        exec("from attnkit.model import *", names)
        assert {"attention", "tiled_attention", "merge_partial_attention", "weight_stats", "KVCache"} <= {*names}

    def test_integers_compute_in_float64(self):
        assert attnkit.layernorm(of([[1, 2]]))["x"].dtype == np.float64

    def test_nothing_is_written_into_an_input(self):
        x = X.copy()
        record = of(x)
        attnkit.decode(
            attnkit.ffn(attnkit.layernorm(attnkit.attend(attnkit.posenc(record))), hidden=2),
            params={"w": np.ones((8, 2))},
        )
        assert np.array_equal(x, X) and list(record) == ["x"] and record.history == []

    def test_history_names_what_is_not_a_default(self):
        record = attnkit.attend(attnkit.embed("it's", dim=4), heads=2, causal=True, window="-1,0")
        assert [entry["command"] for entry in record.history] == [
            """attnkit embed 'it'"'"'s' --dim 4 --seed 0""",
            "attnkit attend --heads 2 --causal --window -1,0",
        ]
        assert {entry["version"] for entry in record.history} == {attnkit.__version__}

    @pytest.mark.parametrize("texts", ["", ("", "")])
    def test_a_text_without_words_is_empty_at_every_stage(self, texts):
        none = attnkit.embed(texts, dim=4)
        shape = (2, 0) if texts else (0,)
        assert none["x"].shape == (*shape, 4) and none.labels["vocab"] == []
        assert none.labels["token"] == ([[], []] if texts else [])
        out = attnkit.attend(attnkit.mask(attnkit.posenc(none), causal=True), heads=2, seed=1)
        out = attnkit.ffn(attnkit.layernorm(out), hidden=8)
        for given in ({}, {"seed": 1, "top_k": 2}, {"top_p": 0.5, "min_p": 0.1}, {"temperature": 2.0}):
            assert attnkit.decode(out, **given)["next"].shape == shape
        assert attnkit.decode(out, emit="text") == ("\n" if texts else "")
        assert read_back(out).labels["token"] == none.labels["token"]

    @pytest.mark.parametrize("pool", ["cls", "pooler"])
    def test_a_text_without_words_has_no_first_token(self, pool):
        folder = Path(__file__).parents[1] / "references" / "models" / "bert"
        with pytest.raises(DataError, match=r"x \(0,\d+\) has no tokens"):
            attnkit.encode(of(np.zeros((0,), np.int64)), model=folder, pool=pool)

    @pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (1, 4)])
    def test_empty_and_single_inputs_flow(self, shape):
        record = of(np.ones(shape))
        for tool, given in (
            ("posenc", {}),
            ("mask", {"causal": True}),
            ("attend", {"heads": 2}),
            ("layernorm", {}),
            ("ffn", {"hidden": 3}),
        ):
            record = getattr(attnkit, tool)(record, **given)
            assert record["x"].shape == shape
        assert formats.round_trip(record, "json")["x"].shape == shape
