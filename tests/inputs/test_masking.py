"""What attend attends to: the mask and the bias that belong to it, and what is left of an earlier attention."""

import json
import re
import warnings

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.cli import pipeline
from attnkit.errors import AttnkitWarning, DataError
from attnkit.records import Record, Tensor
from tests import process
from tests.places import MODELS

RNG = np.random.default_rng(0)
X, MEMORY = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 5, 4))
PADDED = np.arange(5) < np.array([[[5]], [[2]]])  # (B, 1, S)
AXES = ("batch", "all queries", "key")
IDS = np.array([[5, 6, 7, 8], [9, 10, 0, 0]])
PAIR = Record({"ids": IDS, "mask": Tensor(np.arange(4) < np.array([[[4]], [[2]]]), AXES)})


def weights(record, **flags):
    return attnkit.attend(record, keep="weights", **flags)["weights"]


def expected(q, keys, mask):
    """The formula, for one head: mask (B, T or 1, S)."""
    scores = np.where(mask, q @ keys.swapaxes(-1, -2) / 2, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (shares / shares.sum(axis=-1, keepdims=True))[:, None]


def ran(text):
    [record] = pipeline.chain_stages(pipeline.parse_stages(text)).items
    return record


MASKS = {
    "one row": (PADDED, AXES),
    "no names": (PADDED, None),
    "(B, S)": (PADDED[:, 0], None),
    "0 and 1": (PADDED.astype(np.uint8), AXES),
    "four axes": (PADDED[:, None], None),
    "a row for each query, all alike": (np.broadcast_to(PADDED, (2, 5, 5)).copy(), ("batch", "query", "key")),
    "added": (np.where(PADDED, 0.0, -np.inf), AXES),
}


@pytest.mark.parametrize("mask, axes", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("flag", ["memory", "key"])
def test_the_padding_in_the_mask_of_a_memory_is_not_attended_to(mask, axes, flag, tmp_path):
    memory = Record({"x": MEMORY, "mask": Tensor(mask, axes)})
    formats.save(memory, str(tmp_path / "m.npz"))
    right = expected(X, MEMORY, PADDED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (memory, str(tmp_path / "m.npz"), str(tmp_path / "m.npz:x")):
            np.testing.assert_allclose(weights(Record({"x": X}), **{flag: given}), right, atol=1e-15)
    plain = weights(Record({"x": X}), memory=MEMORY)  # an array has no mask
    np.testing.assert_allclose(plain, expected(X, MEMORY, True), atol=1e-15)


def test_the_memory_mask_comes_before_the_mask_and_belongs_to_the_memory():
    other = np.arange(3) < np.array([[[3]], [[1]]])
    tensors = {"mask": Tensor(other, AXES), "memory": MEMORY, "memory_mask": Tensor(PADDED, AXES)}
    record = Record({"x": X} | tensors)
    np.testing.assert_allclose(weights(record, memory=":memory"), expected(X, MEMORY, PADDED), atol=1e-15)
    np.testing.assert_allclose(weights(record, memory=":x"), expected(X, X, other), atol=1e-15)
    np.testing.assert_allclose(weights(record), expected(X, X, other), atol=1e-15)
    np.testing.assert_allclose(
        weights(Record({"x": X}), memory=record), expected(X, X, other), atol=1e-15
    )  # its x, and the mask of that
    both = Record({"x": MEMORY, "memory": MEMORY, "memory_mask": PADDED})  # as encode makes it
    np.testing.assert_allclose(weights(Record({"x": X}), memory=both), expected(X, MEMORY, PADDED), atol=1e-15)


def test_a_memory_mask_has_a_row_for_each_query_where_mask_cross_made_it():
    record = attnkit.mask(Record({"x": X, "memory": MEMORY}), cross=True, window=(1, 1), lengths=np.array([5, 2]))
    assert record["memory_mask"].shape == (2, 3, 5)
    allowed = record["memory_mask"]
    assert np.array_equal(weights(record, memory=":memory")[:, 0] > 0, allowed)


@pytest.mark.parametrize("name, layer", [("marian", "decoder.0.cross"), ("t5", "decoder.0.cross")])
def test_the_cross_layer_of_a_model_uses_the_mask_of_its_memory_from_wherever_it_comes(name, layer, tmp_path):
    folder = str(MODELS / name)
    states = attnkit.encode(PAIR, model=folder)
    formats.save(states, str(tmp_path / "e.npz"))
    width = states["x"].shape[-1]
    query = RNG.standard_normal((2, 3, width)).astype(np.float32)
    target = Record({"x": Tensor(query, ("batch", "token", "model"))})
    held = target.with_tensors({name: states.tensors[name] for name in ("memory", "memory_mask")})
    made = [
        attnkit.attend(target, model=folder, layer=layer, memory=str(tmp_path / "e.npz"), keep="weights"),
        attnkit.attend(target, model=folder, layer=layer, memory=states, keep="weights"),
        attnkit.attend(held, model=folder, layer=layer, keep="weights"),
        attnkit.attend(held, model=folder, layer=layer, memory=":memory", keep="weights"),
    ]
    for record in made:
        assert not record["weights"][1, ..., 2:].any()
        np.testing.assert_array_equal(record["x"], made[0]["x"])
    alone = attnkit.attend(target.with_tensors({"x": Tensor(query[1], ("token", "model"))}), model=folder, layer=layer,
                           memory=states["memory"][1, :2])  # fmt: skip
    np.testing.assert_allclose(made[0]["x"][1], alone["x"], atol=1e-5)


def test_decode_looks_at_no_padding_of_a_memory_that_stages_made(tmp_path):
    folder = str(MODELS / "marian")
    states = attnkit.encode(PAIR, model=folder)
    formats.save(states.select(["x", "mask"]), str(tmp_path / "stages.npz"))  # as the printed pipeline leaves it
    said = {"model": folder, "max_tokens": 4}
    right = attnkit.decode(states, **said)
    found = attnkit.decode(memory=str(tmp_path / "stages.npz"), **said)
    np.testing.assert_array_equal(found["x"], right["x"])
    np.testing.assert_array_equal(found["ids"], right["ids"])


@pytest.mark.parametrize("kind", ["alibi", "t5"])
def test_the_bias_of_posenc_is_added(kind):
    more = {"table": RNG.standard_normal((8, 2))} if kind == "t5" else {}
    record = attnkit.posenc(Record({"x": X[0]}), kind=kind, heads=2, **more)
    found = attnkit.attend(record, heads=2, keep="masked,scaled")
    np.testing.assert_allclose(found["masked"], found["scaled"] + record["bias"], atol=1e-12)
    same = attnkit.attend(record, heads=2, bias=":bias", keep="masked")
    np.testing.assert_array_equal(found["masked"], same["masked"])
    other = attnkit.attend(record, heads=2, bias=np.ones((2, 3, 3)), keep="masked,scaled")  # in place of it
    np.testing.assert_allclose(other["masked"], other["scaled"] + 1, atol=1e-12)


def test_a_model_adds_its_own_positions_and_says_that_the_bias_of_the_record_is_not_added():
    said = {"model": str(MODELS / "t5"), "layer": "encoder.0.self"}
    record = Record({"x": RNG.standard_normal((3, 16)).astype(np.float32)})
    with pytest.warns(AttnkitWarning, match=r"the record's bias is not added: .*--bias :bias"):
        found = attnkit.attend(attnkit.posenc(record, kind="alibi", heads=4), **said)
    np.testing.assert_array_equal(found["x"], attnkit.attend(record, **said)["x"])


CAUSAL = attnkit.mask(Record({"x": X}), causal=True)


@pytest.mark.parametrize("flags", [{}, {"key": ":x"}, {"query": ":x"}, {"memory": ":x"}, {"query": ":x", "key": ":x"}])
def test_the_record_named_by_a_flag_is_attended_to_with_its_own_mask_and_bias(flags):
    record = attnkit.posenc(CAUSAL, kind="alibi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attnkit.attend(record, keep="weights,masked,scaled", **flags)
    assert np.array_equal(found["weights"][:, 0] > 0, np.broadcast_to(np.tri(3, dtype=bool), (2, 3, 3)))
    np.testing.assert_array_equal(found["x"], attnkit.attend(record)["x"])
    kept = attnkit.attend(CAUSAL, keep="q,k,v")  # of the same tokens
    split = attnkit.attend(
        kept.with_tensors({"x": kept.tensors["v"]}), query=":q", key=":k", value=":v", keep="weights"
    )
    assert np.array_equal(split["weights"][:, 0] > 0, np.broadcast_to(np.tri(3, dtype=bool), (2, 3, 3)))


def test_a_record_without_x_is_attended_to_with_its_mask_too():
    kept = attnkit.attend(CAUSAL, keep="q,k,v").select(["q", "k", "v", "mask"])
    found = attnkit.attend(kept, query=":q", key=":k", value=":v")
    np.testing.assert_array_equal(found["x"][:, 0], attnkit.attend(CAUSAL)["x"])


@pytest.mark.parametrize("past", [np.ones(()), np.ones(4)])
def test_a_past_without_an_axis_of_tokens_is_refused(past):
    with pytest.raises(DataError, match="past_key"):
        attnkit.attend(CAUSAL, past_key=past, past_value=past)


UNUSED = {
    "the square mask of a memory": ({"x": X}, {"memory": CAUSAL}, r"the mask of the keys is not used"),
    "the mask of the record, over as many keys": (CAUSAL.tensors, {"memory": X}, r"record's mask .*--mask :mask"),
    "its square mask, for other queries": (CAUSAL.tensors, {"query": X}, r"the record's mask .*--mask :mask"),
    "its bias, for other queries": ({"x": X, "bias": np.zeros((1, 3, 3))}, {"query": X}, r"bias .*--bias :bias"),
    "its bias, over a memory": ({"x": X, "bias": np.zeros((1, 3, 3))}, {"memory": X}, r"bias .*--bias :bias"),
}  # fmt: skip


@pytest.mark.parametrize("given, flags, said", UNUSED.values(), ids=UNUSED)
def test_a_mask_or_bias_that_is_not_used_is_named(given, flags, said):
    with pytest.warns(AttnkitWarning, match=said) as caught:
        found = attnkit.attend(Record(given), **flags)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = {name: value["x"] if isinstance(value, Record) else value for name, value in flags.items()}
        np.testing.assert_array_equal(found["x"], attnkit.attend(Record({"x": X}), **plain)["x"])


def test_the_warning_names_the_file_and_the_flag_that_would_use_its_mask(tmp_path):
    path = str(tmp_path / "m.npz")
    formats.save(CAUSAL, path)
    with pytest.warns(
        AttnkitWarning,
        match=re.escape(f"{path}: its mask is not used: its rows are its own tokens") + r".*\(--mask .*:mask uses",
    ):
        attnkit.attend(Record({"x": X}), memory=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attnkit.attend(Record({"x": X}), memory=path, mask=f"{path}:mask")
    np.testing.assert_array_equal(found["x"], attnkit.attend(CAUSAL)["x"])


def test_what_cannot_be_meant_is_not_spoken_of():
    record = attnkit.posenc(CAUSAL, kind="alibi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attnkit.attend(record, memory=MEMORY)  # of another number of keys: the decoder's usual cross-attention
        attnkit.attend(record, memory=X, mask=np.ones((3, 3), bool), bias=np.zeros((3, 3)))  # flags replace them


def test_other_queries_see_the_padding_of_the_record():
    record = Record({"x": MEMORY, "mask": Tensor(PADDED, AXES)})
    np.testing.assert_allclose(weights(record, query=X), expected(X, MEMORY, PADDED), atol=1e-15)


@pytest.mark.parametrize("words", [["f g"], ["f g h"], ["f g h i"]])
def test_queries_from_elsewhere_are_labelled_beside_a_mask_of_the_record(words, tmp_path):
    record = attnkit.mask(attnkit.embed(["a b c"], dim=4), causal=True)
    asking = attnkit.embed(words, dim=4)
    with pytest.warns(AttnkitWarning, match="is not used"):
        found = attnkit.attend(record, query=asking, keep="weights").check()
    same_size = len(asking["x"]) == 3
    assert found.labels_of("weights", -2) == (["f", "g", "h"] if same_size else None)
    assert found.tensors["mask"].axes == record.tensors["mask"].axes
    path = str(tmp_path / "found.npz")
    formats.save(found, path)
    np.testing.assert_array_equal(formats.load(path)["mask"], record["mask"])


def test_another_memory_is_attended_to_beside_that_of_the_record():
    record = Record({"x": X, "memory": Tensor(MEMORY, ("batch", "source", "model"), {"source": list("abcde")})})
    other = Record({"x": Tensor(X[:, :2], ("batch", "token", "model"))}, {"token": ["f", "g"]})
    found = attnkit.attend(record, memory=other, keep="weights").check()
    np.testing.assert_array_equal(found["weights"], weights(Record({"x": X}), memory=X[:, :2]))
    unnamed = attnkit.attend(record, memory=MEMORY + 1, keep="weights").check()
    assert unnamed.labels_of("weights", -1) is None  # not the words of the record's own memory
    assert attnkit.attend(record, memory=":memory", keep="weights").labels_of("weights", -1) == list("abcde")


def test_the_mask_of_new_tokens_leaves_the_keys_of_the_past_open():
    seen = np.arange(3) < np.array([[[3]], [[1]]])
    past = RNG.standard_normal((2, 2, 1, 2, 4))
    record = Record({"x": X, "mask": Tensor(seen, AXES)})
    found = weights(record, past_key=past[0], past_value=past[1])
    whole = np.concatenate([np.ones((2, 1, 2), bool), seen], axis=-1)
    assert np.array_equal(found[:, 0] > 0, np.broadcast_to(whole, (2, 3, 5)))
    named = record.with_tensors({"mask": Tensor(whole, AXES)})
    np.testing.assert_array_equal(weights(named, past_key=past[0], past_value=past[1]), found)


@pytest.mark.parametrize(
    "way",
    [
        'embed "f g" "h i" --dim 4 | attend --memory m.npz --keep weights',
        'embed "a b c d" "e" --dim 4 | posenc | attend q.npz --memory - --keep weights',
        'embed "a b c d" "e" --dim 4 | mask --causal | attend --memory :x --keep weights',
        "attend h.npz --memory :memory --keep weights",
    ],
)
def test_a_mask_comes_with_its_memory_in_a_shell_as_in_one_process(way, tmp_path):
    memory = attnkit.embed(["a b c d", "e"], dim=4)
    formats.save(memory, str(tmp_path / "m.npz"))
    formats.save(attnkit.embed(["f g", "h i"], dim=4), str(tmp_path / "q.npz"))
    held = {"x": X.astype(np.float32), "memory": memory["x"], "memory_mask": Tensor(memory["mask"], AXES)}
    formats.save(Record(held), str(tmp_path / "h.npz"))
    staged = " | ".join(f"attnkit {stage}" for stage in way.split(" | "))
    lines = f"{staged} -f json", f"attnkit run '{way}' --format json"
    piped, chained = (process.bash(line, cwd=tmp_path) for line in lines)
    assert piped.err == chained.err == ""
    assert piped.out == chained.out
    found = np.array(json.loads(piped.out)["tensors"]["weights"]["data"])
    assert found[1, ..., 1:].max() == 0 and found[0].all() == ("causal" not in way)


def test_intermediates_of_an_earlier_attention_are_dropped():
    first = attnkit.attend(Record({"x": X, "other": X}), steps=True, weights="full", keep="present")
    held = {"q", "k", "v", "scores", "weights", "heads", "present_key"}
    assert held <= set(first)
    assert set(attnkit.attend(first)) == {"x", "other"}
    again = attnkit.attend(attnkit.attend(Record({"x": X}), weights="stats"), weights="topk:1")
    assert set(again) == {"x", "weights.top", "weights.keys"}
    assert set(attnkit.attend(attnkit.layernorm(again))) == {"x"}
    assert set(attnkit.layernorm(again)) == set(again)  # they tell of the attention still
    mine = Record({"x": X, "weights": np.ones(7), "q": X})  # the user's own
    assert set(attnkit.attend(mine)) == {"x", "weights", "q"}
    kept = attnkit.attend(Record({"x": X}), keep="q,k")
    split = kept.with_tensors({"x": kept.tensors["k"]})
    assert set(attnkit.attend(split, query=":q")) == {"x", "q"}  # of this attention too


def test_intermediates_of_an_earlier_network_are_dropped():
    first = attnkit.ffn(Record({"x": X}), hidden=6, steps=True)
    assert {"hidden", "activated"} <= set(first)
    assert set(attnkit.ffn(first, hidden=6)) == {"x"}


def test_merge_hands_on_what_all_parts_share():
    record = Record({"x": X, "ids": np.arange(6).reshape(2, 3)})
    flags = {"partial": True, "params": {"wo": np.eye(4)}}
    parts = [
        attnkit.attend(record, memory=MEMORY[:, at], weights="stats", **flags) for at in (slice(0, 1), slice(1, 2))
    ]
    whole = attnkit.attend(record, memory=MEMORY[:, :2], weights="stats", **flags)
    assert parts[0]["weights.max"].min() == parts[1]["weights.max"].min() == 1  # of one key each, and alike
    merged = attnkit.merge(parts)
    assert set(merged) == {"x", "ids", "lse", "wo"}
    np.testing.assert_allclose(merged["lse"], whole["lse"], atol=1e-12)
    assert set(attnkit.merge(parts, join=True)) == {"x", "ids"}
    assert "weights.max" in attnkit.merge(parts[:1])  # one part is the whole
    other = [one.with_tensors({"ids": np.full((2, 3), n)}) for n, one in enumerate(parts)]
    assert "ids" not in attnkit.merge(other)
    with pytest.raises(DataError, match="wo differs from part 1"):
        attnkit.merge([parts[0], parts[1].with_tensors({"wo": 2 * np.eye(4)})], join=True)


def eye(*names, rows=4, columns=4):
    return {name: np.eye(rows, columns) for name in names}


WRONG = {
    "attend, of another tool": ("attend", eye("w1", "w2"), {}, r"no wq, wk, .* \(it has w1, w2\)"),
    "attend, unknown": ("attend", eye("wq", "wQ"), {}, r"'wQ' is not one of wq, wk, .* \(it has wq, wQ\)"),
    "attend, of a whole model": ("attend", eye("self.wq"), {}, "'self.wq' is not one of"),
    "attend, additive": ("attend", eye("wq", "wa", "ua"), {"score": "additive"}, r"no va, .*\(it has wq, wa, ua\)"),
    "attend, general": ("attend", eye("wq"), {"score": "general"}, r"no w, which --score general needs \(it has wq\)"),
    "attend, nothing": ("attend", {}, {}, r"no wq, .*\(it has none\)"),
    "ffn, of another tool": ("ffn", eye("wq", "wk"), {}, r"no w1, w2 \(it has wq, wk\)"),
    "ffn, unknown": ("ffn", eye("w1", "w2", "w4"), {}, "w4 is not one of: b1, b2"),
    "ffn, gated": ("ffn", eye("w1", "w2"), {"gated": True}, r"no w3 \(it has w1, w2\)"),
    "decode": ("decode", eye("wq"), {}, r"it has wq \(expected w"),
}


@pytest.mark.parametrize("tool, params, flags, said", WRONG.values(), ids=WRONG)
def test_names_that_are_missing_or_unknown(tool, params, flags, said):
    with pytest.raises(DataError, match=said):
        getattr(attnkit, tool)(Record({"x": X}), params=params, **flags)


def test_one_file_holds_the_weights_of_a_whole_layer():
    layer = eye("wq", "wk", "wv", "wo", "w1", "w2")
    np.testing.assert_array_equal(
        attnkit.attend(Record({"x": X}), params=layer)["x"], attnkit.attend(Record({"x": X}))["x"]
    )
    np.testing.assert_array_equal(attnkit.ffn(Record({"x": X}), params=layer)["x"], np.maximum(X, 0))


SHAPES = {
    "attend lengths": ("attend", {"lengths": np.array([[1, 2]])}),
    "attend lengths of one for two": ("attend", {"lengths": np.array([1])}),
    "mask lengths": ("mask", {"lengths": np.array([[1, 2]])}),
    "mask lengths of one for two": ("mask", {"lengths": np.array([1])}),
    "mask lengths of three for two": ("mask", {"lengths": np.array([1, 2, 2])}),
    "mask segments": ("mask", {"segments": np.zeros((1, 2, 3), int)}),
    "mask segments of three for two": ("mask", {"segments": np.zeros((3, 3), int)}),
    "positions": ("posenc", {"positions": np.zeros((3, 3), int)}),
    "positions of three axes": ("posenc", {"positions": np.zeros((1, 2, 3), int), "kind": "rotary"}),
    "gamma": ("layernorm", {"gamma": np.ones(1)}),
    "gamma, a number": ("layernorm", {"gamma": np.array(2.0)}),
    "beta": ("layernorm", {"beta": np.ones((1, 4))}),
    "mean": ("layernorm", {"kind": "batch", "mean": np.ones(1), "variance": np.ones(4)}),
}


@pytest.mark.parametrize("tool, flags", SHAPES.values(), ids=SHAPES)
def test_a_small_operand_of_another_shape_is_refused(tool, flags):
    with pytest.raises(DataError):
        getattr(attnkit, tool)(Record({"x": X}), **flags)


@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (3,), ()])
def test_segments_of_another_shape_are_refused(shape):
    given = PAIR.with_tensors({"types": np.zeros(shape, int)})
    with pytest.raises(DataError, match=r"segments .* for tokens .*: expected one for each token"):
        attnkit.encode(given, model=str(MODELS / "bert"))
    right = attnkit.encode(PAIR.with_tensors({"types": np.zeros((2, 4), int)}), model=str(MODELS / "bert"))
    row = attnkit.encode(PAIR.with_tensors({"types": np.zeros(4, int)}), model=str(MODELS / "bert"))
    np.testing.assert_array_equal(right["x"], row["x"])


@pytest.mark.filterwarnings("ignore:.*may not attend to any key")  # of queries that are padding
def test_new_tokens_of_a_padded_batch_have_the_positions_behind_those_of_the_past():
    """With keys and values of three tokens in a cache, two of which are padding in the first text."""
    x = np.random.default_rng(3).standard_normal((2, 5, 32))
    mask = Tensor(np.arange(5) >= np.array([[[2]], [[0]]]), AXES)
    layer = {"model": MODELS / "llama3", "layer": "decoder.0.self"}
    whole = attnkit.attend(Record({"x": x, "mask": mask}), keep="k,v", **layer)
    past = {f"past_{name}": whole[letter][:, :, :3] for name, letter in (("key", "k"), ("value", "v"))}
    own = Record({"x": x[:, 3:], "mask": Tensor(np.ones((2, 1, 2), bool), AXES)})
    found = attnkit.attend(own, mask=Record({"x": mask}), **past, **layer)
    np.testing.assert_allclose(found["x"], whole["x"][:, 3:], rtol=1e-6, atol=1e-6)
