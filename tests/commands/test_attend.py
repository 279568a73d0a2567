"""The tool attend: what it adds to the arithmetic that it calls, record in, record out."""

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.formats import Record
from attnkit.records import Tensor
from tests import process
from tests.commands.records import CAT, of, read_back

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


class TestAttend:
    def test_the_hand_calculation(self):
        record = attnkit.attend(of(CAT), keep="scores,scaled,weights")
        assert record["scores"][0].tolist() == [[2, 0, 2], [0, 2, 2], [2, 2, 4]]
        assert record["scaled"][0].tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 2]]
        assert np.round(record["weights"][0], 4).tolist()[2] == [0.2119, 0.2119, 0.5761]
        assert np.round(record["x"], 4).tolist()[0] == [0.8446, 0.5777, 0.8446, 0.5777]

    def test_every_intermediate_under_its_name(self):
        record = attnkit.attend(of(X), heads=2, steps=True)
        names = ["q", "k", "v", "scores", "scaled", "masked", "weights", "heads"]
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

    def test_keep_and_emit_take_the_same_names(self):
        assert "capped" not in attnkit.attend(of(X), keep="all")  # nothing is capped
        every = attnkit.attend(of(X), heads=2, causal=True, softcap=3, keep="all")
        for name in [name for name in every if name != "x"]:
            assert np.array_equal(attnkit.attend(of(X), heads=2, causal=True, softcap=3, emit=name)["x"], every[name])
            kept = attnkit.attend(of(X), heads=2, causal=True, softcap=3, keep=name)
            assert sorted(kept) == sorted(["x", name]) and np.array_equal(kept[name], every[name])
        assert len(every) == 1 + 11 and list(attnkit.attend(of(X), keep="present"))[1:] == [
            "present_key",
            "present_value",
        ]
        uncapped = attnkit.attend(of(X), emit="capped")["x"]
        assert np.array_equal(uncapped, attnkit.attend(of(X), emit="scaled")["x"])
        for name in ("q_latent", "kv_latent", "k_rotary", "q_normed", "k_normed"):
            done = process.run("attend", "--emit", name, stdin=b"[[1]]")
            assert done.code == 2 and f"--emit: no {name} in this attention" in done.err
        for name, hint in (("present", "present is two tensors, present_key and present_value"), ("all", "--keep all")):
            done = process.run("attend", "--emit", name, stdin=b"[[1]]")
            assert done.code == 2 and hint in done.err

    def test_plain_maps_of_weights_are_read_where_weights_are_named(self, here):
        Path("p.json").write_text('{"wq": [[1, 0], [0, 2]], "wv": {"data": [[3, 0], [0, 1]], "dtype": "float32"}}')
        given = {"wq": np.array([[1, 0], [0, 2]]), "wv": np.array([[3, 0], [0, 1]], np.float32)}
        x = np.array([[1.0, 2.0], [3.0, 4.0]])
        done = process.run("attend", "--params", "p.json", "-f", "npz", stdin=b"[[1.0,2.0],[3.0,4.0]]")
        assert done.code == 0 and np.array_equal(
            np.load(io.BytesIO(done.out))["x"], attnkit.attend(of(x), params=given)["x"]
        )
        for text, problem in (
            ('{"wq": [[1, 0], [0]]}', 'tensor "wq"'),
            ('{"wq": [[1]], "wq": [[2]]}', '"wq"'),
            ('{"wq": {"wv": [1]}}', 'unknown key "wv"'),
            ('{"labels": {}, "wq": [[1]]}', 'unknown key "wq"'),
            ("{}", '"tensors" is missing'),
        ):
            Path("p.json").write_text(text)
            done = process.run("attend", "--params", "p.json", stdin=b"[[1.0]]")
            assert done.code == 3 and problem in done.err, done.err
        for line in ("show p.json", "layernorm p.json", "attend x.npy --mask p.json"):  # where one tensor is read
            Path("p.json").write_text('{"wq": [[1]]}')
            np.save("x.npy", np.ones((1, 1)))
            assert 'unknown key "wq"' in process.run(*line.split()).err

    def test_the_keys_of_the_largest_weights_are_words(self):
        record = attnkit.attend(attnkit.embed("the cat saw the dog", dim=8), weights="topk:2")
        assert record.words_of("weights.keys") == ["the", "cat", "saw", "the", "dog"]
        assert record.select(["weights.keys"]).words_of("weights.keys") == record.labels["key"]
        memory = attnkit.embed("a b", dim=8)
        cross = attnkit.attend(attnkit.embed("c", dim=8), memory=memory, weights="topk:1")
        assert cross.words_of("weights.keys") == ["a", "b"]

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
        with pytest.warns(AttnkitWarning, match=r"1 row of the weights is all zeros.*first \[0\]\[1\]"):
            record = attnkit.attend(of(CAT), mask=nothing)
        assert not record["x"][1].any()
        with pytest.raises(DataError, match="may not attend to any key"):
            attnkit.attend(of(CAT), mask=nothing, strict=True)

    def test_masks_of_a_batch_align_by_the_names_of_their_axes(self):
        open_ = np.zeros((2, 1, 5), bool)
        open_[0, 0, :2], open_[1, 0, :4] = True, True
        mask = Record({"x": Tensor(open_, ("batch", "query", "key"))})
        record = attnkit.attend(of(X), heads=2, mask=mask, keep="weights")
        assert not record["weights"][0, :, :, 2:].any() and record["weights"][1, :, :, :4].all()

    @pytest.mark.parametrize("heads", [1, 2, 4])
    @pytest.mark.parametrize("kind", [bool, float, "record"])
    def test_a_mask_of_three_axes_is_for_the_texts_of_a_batch(self, heads, kind):
        """Also if there are as many heads as texts."""
        allowed = np.array([np.tri(5, dtype=bool), np.eye(5, dtype=bool)])
        mask = np.where(allowed, 0.0, -np.inf) if kind is float else allowed
        given = of(X).with_tensors({"mask": allowed}) if kind == "record" else of(X)
        flags = {} if kind == "record" else {"mask": mask}
        record = attnkit.attend(given, heads=heads, keep="weights", **flags)
        assert record["weights"].shape == (2, heads, 5, 5)
        assert ((record["weights"] > 0) == allowed[:, None]).all()
        each = [attnkit.attend(of(x), heads=heads, mask=one)["x"] for x, one in zip(X, mask, strict=True)]
        np.testing.assert_allclose(record["x"], each, rtol=1e-12)

    def test_a_mask_of_three_axes_is_for_the_heads_if_only_they_fit_or_its_axes_say_so(self):
        allowed = np.array([np.tri(5, dtype=bool), np.eye(5, dtype=bool), np.ones((5, 5), bool), np.tri(5, k=1) > 0])
        four = attnkit.attend(of(X), heads=4, mask=allowed, keep="weights")["weights"]
        assert ((four > 0) == allowed).all()
        named = Record({"x": Tensor(allowed[:2], ("head", "query", "key"))})
        two = attnkit.attend(of(X), heads=2, mask=named, keep="weights")["weights"]
        assert ((two > 0) == allowed[:2]).all()
        split = attnkit.attend(of(model.split_heads(X, 2)), mask=allowed[:2], keep="weights")["weights"]  # (B, H, T, K)
        assert ((split > 0) == allowed[:2]).all()

    def test_a_bias_of_three_axes_is_for_the_heads_if_they_fit(self):
        bias = RNG.standard_normal((2, 5, 5))
        for heads, added in ((2, bias), (4, bias[:, None])):
            record = attnkit.attend(of(X), heads=heads, bias=bias, keep="masked,scaled")
            np.testing.assert_allclose(record["masked"], record["scaled"] + added, atol=1e-12)
        with pytest.raises(DataError, match="mask"):
            attnkit.attend(of(X), heads=4, mask=np.ones((3, 5, 5), bool))

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
            (
                {"score": "additive"},
                UsageError,
                r"--score: additive needs wa \(8, A\), ua \(8, A\), va \(A\); --params FILE",
            ),
            (
                {"score": "general", "heads": 2},
                UsageError,
                r"general needs w \(4, 4\); --params FILE holds them, --seed",
            ),
            ({"lengths": np.array([9, 1])}, DataError, "length 9"),
            ({"mask": np.ones((4, 5), int) * 2}, DataError, "mask value 2"),
            ({"memory": np.ones((2, 3, 6))}, DataError, "last dimension 8 != 6"),
        ],
    )
    def test_errors_name_both_sides(self, given, kind, message):
        with pytest.raises(kind, match=message):
            attnkit.attend(of(X), **given)


def test_a_seed_draws_the_parameters_of_a_score_and_nothing_else():
    s, h = RNG.standard_normal((2, 4)), RNG.standard_normal((3, 6))
    drawn = np.random.default_rng(1)
    wa, ua, va = (drawn.standard_normal(shape) / shape[0] ** 0.5 for shape in ((4, 4), (6, 4), (4, 1)))
    scores = np.array([[(np.tanh(q @ wa + k @ ua) @ va)[0] for k in h] for q in s])
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    record = attnkit.attend(of(s), memory=h, score="additive", seed=1, keep="scores")
    np.testing.assert_allclose(record["scores"][0], scores, rtol=1e-12)
    np.testing.assert_allclose(record["x"], weights @ h, rtol=1e-12)
    w = np.random.default_rng(2).standard_normal((4, 6)) / 2
    general = attnkit.attend(of(s), memory=h, score="general", seed=2, emit="scores")
    np.testing.assert_allclose(general["x"][0], s @ w @ h.T, rtol=1e-12)


def test_concat_puts_the_input_beside_the_result():
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    alone, both = attnkit.attend(x)["x"], attnkit.attend(x, concat=True)["x"]
    np.testing.assert_array_equal(both, np.concatenate([alone, x], axis=-1))
    with pytest.raises(UsageError, match="--concat"):
        attnkit.attend(x, concat=True, residual=True)
    with pytest.raises(DataError, match="differ in more than width"):
        attnkit.attend(x, concat=True, query=np.ones((3, 2)))


class TestExplain:
    ROWS = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])

    def test_a_cell_is_worked_by_hand(self):
        said = attnkit.attend(self.ROWS, explain="0,2")
        assert said["terms"].tolist() == [1, 0, 1, 0] and said["masked"].tolist() == [1, 0, 1]
        weights = np.exp([0, -1, 0]) / np.exp([0, -1, 0]).sum()  # .4223 .1554 .4223
        np.testing.assert_allclose(said["weights"], weights, rtol=1e-12)
        np.testing.assert_allclose(said["x"], weights @ self.ROWS, rtol=1e-12)
        lines = str(said).splitlines()
        assert lines[:2] == ["query 0, key 2", "score = Q Kᵀ"]
        assert "  1·1 + 0·1 + 1·1 + 0·1 = 2" in lines and "scaled = scores / √4 = 1" in lines
        assert (
            "  weight of key 2 = 1 / 2.3679 = 0.4223" in lines and lines[-1] == "  = [0.8446, 0.5777, 0.8446, 0.5777]"
        )

    def test_words_heads_and_a_mask(self):
        record = attnkit.embed("the cat the", dim=4)
        said = attnkit.attend(record, causal=True, heads=2, seed=1, explain="1,cat,the#2")
        assert str(said).startswith("head 1, query 1 'cat', key 2 'the'\n")
        assert "masked: the query may not attend to this key: -inf" in str(said)
        assert str(said) == str(attnkit.attend(record, causal=True, heads=2, seed=1, explain="1,1,2"))
        every = attnkit.attend(record, causal=True, heads=2, seed=1, keep="weights,heads,scores")
        np.testing.assert_array_equal(said["weights"], every["weights"][1, 1])
        np.testing.assert_array_equal(said["x"], every["heads"][1, 1])
        np.testing.assert_allclose(said["terms"].sum(), every["scores"][1, 1, 2], rtol=1e-5)

    def test_a_batch_with_grouped_keys_and_other_scores(self):
        said = attnkit.attend(of(X), heads=4, kv_heads=2, seed=1, explain="1,3,4,0")
        every = attnkit.attend(of(X), heads=4, kv_heads=2, seed=1, keep="scores,heads")
        np.testing.assert_allclose(said["terms"].sum(), every["scores"][1, 3, 4, 0], rtol=1e-9)
        np.testing.assert_allclose(said["parts"].sum(axis=0), every["heads"][1, 3, 4], rtol=1e-9, atol=1e-12)
        other = attnkit.attend(of(X[0]), score="additive", seed=1, softcap=2.0, explain="1,2")
        assert "terms" not in other and "capped = " in str(other)

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({"explain": "0,9"}, "--explain: index 9 is outside axis key of size 3"),
            ({"explain": "0,cat"}, "--explain: axis key has no label 'cat'"),
            (
                {"explain": "0,1", "heads": 2},
                r"2 indices for weights \(head 2, query 3, key 3\); expected HEAD,QUERY,KEY$",
            ),
            ({"explain": "0,1", "steps": True}, "--explain: cannot be combined with --steps|--steps"),
        ],
    )
    def test_a_cell_that_is_not_there(self, given, problem):
        with pytest.raises(UsageError, match=problem):
            attnkit.attend(self.ROWS, **given)


def test_a_mask_of_the_keys_of_each_text_is_a_file_of_the_command_line(tmp_path):
    x = RNG.standard_normal((2, 4, 4))
    real = np.arange(4) < np.array([[4], [3]])
    np.save(tmp_path / "x.npy", x)
    for name, mask in (("bool", real), ("01", real * 1)):
        np.save(tmp_path / f"{name}.npy", mask)
        done = process.run("attend", tmp_path / "x.npy", "--mask", tmp_path / f"{name}.npy", "-f", "npy")
        for text, row, own in zip(x, np.load(io.BytesIO(done.out)), real, strict=True):
            expected = attnkit.attend(of(text[own]))["x"]
            assert np.allclose(row[own], expected, rtol=0, atol=1e-12)
    done = process.run("attend", tmp_path / "x.npy", "--mask", "-", "-f", "npy", stdin=b"[[1,1,1],[1,1,0]]")
    assert done.code == 3
    assert "mask (2,3) does not broadcast to scores (2,1,4,4)" in done.err


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ("q.npz k.npz v.npz", b"PK"),
        ("q.npy k.npy v.npy", b"\x93NUMPY"),
        ("q.npz k.npy v.npz", b"{"),
        ("q.npy k.npy v.npy --keep weights", b"PK"),
    ],
)
def test_without_an_input_the_result_has_the_format_of_all_operands(tmp_path, files, first):
    q, k, v = RNG.standard_normal((3, 2, 4))
    for name, x in {"q": q, "k": k, "v": v}.items():
        np.save(tmp_path / f"{name}.npy", x)
        np.savez(tmp_path / f"{name}.npz", x=x)
    query, key, value, *more = files.split()
    options = ["--query", query, "--key", key, "--value", value, *more]
    written = process.run("attend", *options, cwd=tmp_path).out
    assert written.startswith(first)
    (record,) = formats.read(formats.Source.of(written))
    assert np.allclose(record["x"], model.attention(q[None], k[None], v[None])["heads"][0])


def test_the_options_that_replace_the_input_are_named(tmp_path):
    for name in ("x", "q"):
        np.save(tmp_path / f"{name}.npy", np.ones((2, 2)))
    done = process.run("attend", "x.npy", "--query", "q.npy", "--key", "q.npy", "--value", "q.npy", cwd=tmp_path)
    assert (done.code, done.err) == (
        2,
        "attnkit attend: x.npy: with --query, --key and --value attend reads no input\n",
    )


class TestRotary:
    """Queries and keys of each head rotated by their positions, after their projections."""

    X, MATRICES = RNG.standard_normal((2, 5, 8)), RNG.standard_normal((4, 8, 8))

    @property
    def weights(self):
        return dict(zip(("wq", "wk", "wv", "wo"), self.MATRICES, strict=True))

    def attend(self, x, layout, **options):
        return attnkit.attend(x, params=self.weights, heads=2, causal=True, rotary=layout, base=100, **options)

    @pytest.mark.parametrize("layout", ["halves", "interleaved"])
    def test_it_is_rotate_of_the_projected_heads(self, layout):
        q, k, v = (model.split_heads(self.X @ self.weights[name], 2) for name in ("wq", "wk", "wv"))
        angles = model.rotary_angles(np.arange(5), 4, base=100)
        q, k = (model.rotate(one, *angles, interleaved=layout == "interleaved") for one in (q, k))
        heads = model.attention(q, k, v, causal=True)["heads"]
        result = self.attend(self.X, layout, keep="q")
        assert np.allclose(result["q"], q)
        assert np.allclose(result["x"], model.merge_heads(heads) @ self.weights["wo"])

    def test_tokens_after_a_cache_have_later_positions(self):
        before = self.attend(self.X[:, :3], "halves", keep="present")
        cache = {name: before[f"present_{name.removeprefix('past_')}"] for name in ("past_key", "past_value")}
        after = self.attend(self.X[:, 3:], "halves", align="bottom-right", **cache)["x"]
        assert np.allclose(after, self.attend(self.X, "halves")["x"][:, 3:])

    def test_its_gradient(self):
        line = "attend --rotary interleaved --heads 2 --seed 1 | loss --target '0 1 2'"
        assert attnkit.grad(line, self.X[0, :3], check=True)["check"][2] < 1e-6

    def test_an_engine_computes_the_same(self):
        pytest.importorskip("jax")
        x = self.X.astype(np.float32)
        own, other = (self.attend(x, "halves", engine=engine)["x"] for engine in ("numpy", "jax"))
        assert np.allclose(own, other, rtol=0, atol=1e-4)

    def test_what_has_no_positions_of_its_own(self):
        with pytest.raises(UsageError, match="already split into heads"):
            attnkit.attend(self.X[:, None], rotary="halves")
        with pytest.raises(UsageError, match="cannot be combined with --memory"):
            attnkit.attend(self.X, rotary="halves", memory=self.X)
        with pytest.raises(DataError, match="heads of width 1 cannot be rotated"):
            attnkit.attend(self.X, rotary="halves", heads=8)
