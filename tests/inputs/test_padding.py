"""Padding is padding however a record states it: a mask of any shape, lengths, or the padding token of the model."""

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError
from attnkit.inputs import padding
from attnkit.records import Record, Tensor
from tests.places import folder

LENGTHS = np.array([3, 5, 1])
SIDES = {"right": np.arange(5) < LENGTHS[:, None], "left": np.arange(5) >= 5 - LENGTHS[:, None]}
CAUSAL = np.tri(5, dtype=bool)
TEXTS = [np.random.default_rng(length).integers(6, 30, length) for length in LENGTHS]


def padded(real, pad=0):
    ids = np.full(real.shape, pad)
    ids[real] = np.concatenate(TEXTS)
    return ids


def additive(cells, lowest):
    return np.where(cells, 0, lowest).astype(np.float32)


STATED = {
    "(B, T)": lambda real: {"mask": real},
    "(B, T) of 0 and 1": lambda real: {"mask": real.astype(np.int64)},
    "(B, 1, T)": lambda real: {"mask": real[:, None]},
    "(B, 1, 1, T)": lambda real: {"mask": real[:, None, None]},
    "(B, T, T)": lambda real: {"mask": np.repeat(real[:, None], 5, axis=1)},
    "(B, 1, T, T), added": lambda real: {"mask": additive(np.repeat(real[:, None, None], 5, axis=2), -np.inf)},
    "(B, 1, 1, T), added": lambda real: {"mask": additive(real[:, None, None], np.finfo(np.float32).min)},
    "mask --padding": lambda real: {"mask": attnkit.mask(Record({"x": real * 1}), padding=True, pad_id=0)["mask"]},
    "lengths": lambda real: {"lengths": real.sum(axis=1)},
}
CASES = [(name, side) for name in STATED for side in SIDES if (name, side) != ("lengths", "left")]


@pytest.mark.parametrize("name, side", CASES)
def test_real_tokens_and_the_mask_of_one_row_do_not_depend_on_how_padding_is_stated(name, side):
    real = SIDES[side]
    record = Record({"ids": padded(real)}).with_tensors(STATED[name](real))
    np.testing.assert_array_equal(padding.find_real_tokens(record), real)
    mask = padding.with_padding_mask(record)["mask"]
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, real[:, None])


@pytest.mark.parametrize("pool", ["mean", "last", "max", "cls", "weighted-mean"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_vectors_of_a_padded_batch_are_those_of_each_text_alone(name, pool):
    """However padding is stated for the mean; for the others as a mask of each side."""
    alone = [attnkit.encode(Record({"ids": text}), model=folder(name), pool=pool)["x"] for text in TEXTS]
    for how, side in CASES if pool == "mean" else CASES[:2]:
        record = Record({"ids": padded(SIDES[side])}).with_tensors(STATED[how](SIDES[side]))
        vectors = attnkit.encode(record, model=folder(name), pool=pool)["x"]
        np.testing.assert_allclose(vectors, alone, rtol=0, atol=2e-6 * np.abs(alone).max(), err_msg=f"{how}, {side}")
        again = attnkit.encode(model=folder(name), ids=record, pool=pool)["x"]  # --ids FILE
        np.testing.assert_array_equal(again, vectors)


ONE = {
    "lengths ()": ([7, 9, 12, 6, 6], {"lengths": np.array(3)}),
    "lengths (1)": ([7, 9, 12, 6, 6], {"lengths": np.array([3])}),
    "lengths and a mask": ([7, 9, 12, 6, 6], {"lengths": np.array(3), "mask": np.ones(5, bool)}),
    "mask, right": ([7, 9, 12, 6, 6], {"mask": np.array([1, 1, 1, 0, 0])}),
    "mask, left": ([6, 6, 7, 9, 12], {"mask": np.array([0, 0, 1, 1, 1])}),
    "mask (1, T), left": ([6, 6, 7, 9, 12], {"mask": np.array([[0, 0, 1, 1, 1]])}),
}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "deberta-v2", "mpnet"])
@pytest.mark.parametrize("how", ONE)
def test_the_vector_of_a_padded_text_is_that_of_its_tokens(how, name):
    ids, stated = ONE[how]
    record = Record({"ids": np.array(ids)} | stated)
    for pool in ("mean", "last", "cls"):
        alone = attnkit.encode(Record({"ids": np.array([7, 9, 12])}), model=folder(name), pool=pool)["x"]
        for vector in (
            attnkit.encode(record, model=folder(name), pool=pool)["x"],
            attnkit.encode(model=folder(name), ids=record, pool=pool)["x"],  # --ids FILE
        ):
            np.testing.assert_allclose(vector, alone, rtol=0, atol=2e-6 * np.abs(alone).max(), err_msg=pool)


@pytest.mark.parametrize("lengths", [np.array(3), np.array([3])])
def test_the_length_of_a_single_text_is_read_by_tools_of_vectors(lengths):
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((5, 4)), rng.standard_normal((7, 4))
    record, alone = Record({"x": x, "lengths": lengths}), Record({"x": x[:3]})
    for options in ({"heads": 2}, {"heads": 2, "causal": True}):
        attended = attnkit.attend(record, **options)["x"][:3]
        np.testing.assert_allclose(attended, attnkit.attend(alone, **options)["x"], rtol=0, atol=1e-12)
    query = Record({"x": x[3:]})
    of_memory = [attnkit.attend(query, memory=one)["x"] for one in (record, alone)]
    np.testing.assert_allclose(*of_memory, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(attnkit.rnn(record, cell="gru", hidden=3)["x"][3:], 0)
    tokens = Record({"x": x, "ids": np.array([7, 9, 12, 0, 0]), "lengths": lengths}, {"token": [*"abcde"]})
    near = attnkit.near(tokens, index=index, top=2)
    np.testing.assert_array_equal(near["rows"], attnkit.near(alone, index=index, top=2)["rows"])
    assert near.labels["query"] == [*"abc"]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("side", SIDES)
def test_what_a_tokenizer_of_transformers_returns_is_read_by_its_names(name, side, tmp_path):
    """numpy.savez("tokens.npz", **tokenizer(texts, padding=True, return_tensors="np")) is an input, or --ids."""
    real, types = SIDES[side], np.where(np.arange(5) < 3, 0, 1) * np.ones((3, 1), int)
    segments = {"token_type_ids": types} if name == "bert" else {}
    file = tmp_path / "tokens.npz"
    np.savez(file, input_ids=padded(real), attention_mask=real.astype(int), **segments)
    own = Record({"ids": padded(real), "mask": real} | ({"types": types} if segments else {}))
    expected = attnkit.encode(own, model=folder(name), pool="mean")
    for given in (
        attnkit.encode(formats.load(str(file)), model=folder(name), pool="mean"),
        attnkit.encode(model=folder(name), ids=str(file), pool="mean"),
        attnkit.encode(model=folder(name), ids=f"{file}:input_ids", pool="mean"),
    ):
        np.testing.assert_array_equal(given["x"], expected["x"])
        np.testing.assert_array_equal(given["ids"], padded(real))
    if name == "bert":
        assert (
            np.abs(expected["x"] - attnkit.encode(own.without(["types"]), model=folder(name), pool="mean")["x"]).max()
            > 0.01
        )
    else:
        written = [
            attnkit.decode(one, model=folder(name), max_tokens=2)["ids"] for one in (own, formats.load(str(file)))
        ]
        np.testing.assert_array_equal(*written)


def test_an_attention_mask_of_ones_says_that_all_are_tokens(recwarn):
    ids = padded(SIDES["right"])
    stated = Record({"input_ids": ids, "attention_mask": np.ones((3, 5), int)})
    alone = attnkit.encode(Record({"ids": ids, "mask": np.ones((3, 5), bool)}), model=folder("bert"))
    np.testing.assert_array_equal(attnkit.encode(stated, model=folder("bert"))["x"], alone["x"])
    np.testing.assert_array_equal(attnkit.encode(model=folder("bert"), ids=stated)["x"], alone["x"])
    assert not recwarn


def test_attention_reads_the_attention_mask_of_as_many_texts_as_tokens():
    """(T, T) under that name is a row of keys for each text, not queries and keys."""
    real = np.tri(3, dtype=bool)
    x = np.random.default_rng(0).standard_normal((3, 3, 4))
    record = Record({"x": x, "attention_mask": real * 1})
    expected = attnkit.attend(Record({"x": x, "mask": real[:, None]}))["x"]
    np.testing.assert_array_equal(attnkit.attend(record)["x"], expected)
    np.testing.assert_array_equal(attnkit.attend(Record({"x": x}), memory=record)["x"], expected)


def test_a_tensor_keeps_its_name_beside_one_of_the_other_name():
    both = Record({"mask": np.ones((1, 2)), "attention_mask": np.zeros((1, 2)), "input_ids": np.ones((1, 2), int)})
    assert [*padding.rename_model_inputs(both)] == ["mask", "attention_mask", "ids"]


@pytest.mark.parametrize("side", SIDES)
def test_a_mask_of_keys_is_an_operand_of_attention_and_of_softmax(side, tmp_path):
    real, rng = SIDES[side], np.random.default_rng(0)
    x, file = Record({"x": rng.standard_normal((3, 5, 4))}), tmp_path / "mask.npz"
    expected = attnkit.attend(Record({"x": x["x"], "mask": real[:, None]}), heads=2)["x"]
    for mask in (real, real * 1, additive(real, -np.inf)):
        np.savez(file, mask)
        for given in (mask, str(file)):
            np.testing.assert_array_equal(attnkit.attend(x, heads=2, mask=given)["x"], expected)
    query = Record({"x": rng.standard_normal((3, 2, 4))})
    weights = attnkit.attend(query, memory=x, mask=real, keep="weights")["weights"]
    assert ((weights > 0) == real[:, None, None]).all()
    past = {"past_key": np.zeros((3, 1, 2, 4)), "past_value": np.zeros((3, 1, 2, 4))}
    with_past = attnkit.attend(x, mask=np.pad(real, ((0, 0), (2, 0))), keep="weights", **past)["weights"]
    np.testing.assert_array_equal(with_past[..., :2], 0)
    assert ((with_past[..., 2:] > 0) == real[:, None, None]).all()
    scores = Record({"x": rng.standard_normal((3, 2, 5, 5))})
    expected = attnkit.softmax(scores, mask=real[:, None, None])["x"]
    np.testing.assert_array_equal(attnkit.softmax(scores, mask=real)["x"], expected)
    np.testing.assert_array_equal(attnkit.softmax(scores.with_tensors({"mask": real}))["x"], expected)


def test_a_square_mask_of_attention_is_of_queries_and_keys_unless_its_axes_say_otherwise():
    cells = np.tri(3, dtype=bool)
    x = Record({"x": np.random.default_rng(0).standard_normal((3, 3, 4))})
    weights = attnkit.attend(x, mask=cells, keep="weights")["weights"]
    assert ((weights > 0) == cells).all()
    named = attnkit.attend(x, mask=Tensor(cells, ("batch", "key")), keep="weights")["weights"]
    assert ((named > 0) == cells[:, None, None]).all()


def test_lengths_of_prompts_do_not_stay_beside_the_texts_that_are_generated():
    record = Record({"ids": padded(SIDES["right"]), "lengths": LENGTHS})
    generated = attnkit.decode(record, model=folder("gpt2"), max_tokens=2)
    assert "lengths" not in generated
    np.testing.assert_array_equal(
        generated["ids"], attnkit.decode(ids=record, model=folder("gpt2"), max_tokens=2)["ids"]
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.filterwarnings("ignore:6 rows of the mask allow no key")
def test_a_causal_mask_keeps_its_rows_and_states_padding(side):
    """Positions, pooling and states are those of each text alone, for a decoder with learned positions."""
    real = SIDES[side]
    record = Record({"ids": padded(real), "mask": real[:, None] & CAUSAL})
    np.testing.assert_array_equal(padding.find_real_tokens(record), real)
    np.testing.assert_array_equal(padding.with_padding_mask(record)["mask"], record["mask"])
    alone = [attnkit.encode(Record({"ids": text}), model=folder("gpt2"), pool="last")["x"] for text in TEXTS]
    vectors = attnkit.encode(record, model=folder("gpt2"), pool="last")["x"]
    np.testing.assert_allclose(vectors, alone, rtol=0, atol=2e-6 * np.abs(alone).max())
    both = padding.with_padding_mask(Record({"ids": padded(real), "mask": CAUSAL, "lengths": LENGTHS}))["mask"]
    np.testing.assert_array_equal(both, SIDES["right"][:, None] & CAUSAL)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("how", ["(B, T)", "(B, T, T)", "mask --padding", "causal", "lengths"])
def test_decode_reads_the_prompts_of_a_padded_batch(how, side):
    real = SIDES[side]
    if (how, side) == ("lengths", "left"):
        return
    stated = {"mask": real[:, None] & CAUSAL} if how == "causal" else STATED[how](real)
    record = Record({"ids": padded(real)}).with_tensors(stated)
    alone = [attnkit.decode(Record({"ids": text}), model=folder("gpt2"), max_tokens=3)["ids"] for text in TEXTS]
    for batch in (
        attnkit.decode(record, model=folder("gpt2"), max_tokens=3),
        attnkit.decode(model=folder("gpt2"), ids=record, max_tokens=3),
    ):
        for row, text in zip(batch["ids"], alone, strict=True):
            np.testing.assert_array_equal(row[: len(text)], text)


@pytest.mark.parametrize("how, side", [("(B, T)", "right"), ("(B, T)", "left"), ("lengths", "right")])
@pytest.mark.parametrize("emit", [None, "logits", "probs", "ids"])
def test_scores_of_a_padded_batch_of_ids_are_those_of_each_text_alone(emit, how, side):
    record = Record({"ids": padded(SIDES[side])}).with_tensors(STATED[how](SIDES[side]))
    scored = {"model": folder("gpt2"), "max_tokens": 0, "emit": emit}
    batch = attnkit.decode(ids=record, **scored)
    alone = [attnkit.decode(ids=text, **scored)["x"] for text in TEXTS]
    for row, real, text in zip(batch["x"], batch["mask"][:, 0], alone, strict=True):
        np.testing.assert_allclose(row[real], text, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(batch["x"], attnkit.decode(record, **scored)["x"])


def test_a_source_is_read_without_its_padding():
    real = SIDES["right"]
    translated = [attnkit.decode(Record({"ids": text}), model=folder("t5"), max_tokens=3)["ids"] for text in TEXTS]
    for how in ("(B, T)", "(B, T, T)", "lengths"):
        record = Record({"ids": padded(real)}).with_tensors(STATED[how](real))
        batch = attnkit.decode(record, model=folder("t5"), max_tokens=3)["ids"]
        for row, text in zip(batch, translated, strict=True):
            np.testing.assert_array_equal(row[: len(text)], text)


def test_a_mask_of_more_than_padding_is_refused_for_prompts():
    record = Record({"ids": padded(SIDES["right"]), "mask": np.array([np.eye(5) > 0] * 3)})
    with pytest.raises(DataError, match=r"mask \(3, 5, 5\) for tokens \(3, 5\): expected \(3, 1, 5\)"):
        attnkit.decode(record, model=folder("gpt2"), max_tokens=1)


PAD = {"bert": 0, "roberta": 1, "t5": 0}  # the padding token of each, which is no other special token of a source


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", PAD)
def test_the_padding_token_of_the_model_is_padding_at_the_ends_of_texts(name, side):
    real = SIDES[side]
    ids = padded(real, PAD[name])
    with pytest.warns(AttnkitNote, match=rf"6 tokens at the ends of texts are the padding token {PAD[name]}, and left"):
        read = attnkit.encode(Record({"ids": ids}), model=folder(name))
    stated = attnkit.encode(Record({"ids": ids, "mask": real}), model=folder(name))
    np.testing.assert_array_equal(read["x"], stated["x"])
    np.testing.assert_array_equal(read["mask"], real[:, None])
    with pytest.warns(AttnkitNote, match="6 tokens at the ends"):
        np.testing.assert_array_equal(attnkit.encode(model=folder(name), ids=ids)["x"], stated["x"])
    with pytest.warns(AttnkitNote, match="6 tokens at the ends"):
        np.testing.assert_array_equal(attnkit.embed(ids=ids, model=folder(name))["mask"], real[:, None])
    as_tokens = attnkit.encode(Record({"ids": ids, "mask": np.ones((3, 5), bool)}), model=folder(name))["x"]
    assert np.abs(as_tokens[0, 0] - stated["x"][0, 0]).max() > 1e-3


def test_a_padding_token_within_a_text_is_a_token():
    record = Record({"ids": np.array([[7, 0, 8], [9, 9, 9]])})
    assert "mask" not in attnkit.encode(record, model=folder("bert"))


@pytest.mark.parametrize(
    "ids, said",
    [
        ([[7, 2], [8, 9]], ""),  # the end of a text
        ([[7, 8, 9], [7, 2, 2]], "2 tokens at the ends of texts are the padding token 2, and read as tokens"),
        ([7, 8, 2, 2], "2 tokens at the ends of texts are the padding token 2, and read as tokens"),
    ],
)
def test_a_padding_token_that_also_ends_texts_is_only_warned_of(ids, said, recwarn):
    config = model.Config("llama", 2, special=model.SpecialTokens(pad=2, eos=(2,), bos=1))
    read = padding.read_padding_tokens(Record({"ids": np.array(ids)}), config)
    assert [*read] == ["ids"]
    assert [str(one.message).partition(":")[0] for one in recwarn if one.category is AttnkitWarning] == [said] * bool(
        said
    )


def test_a_decoder_begins_with_its_start_token_though_it_is_the_padding_token():
    config = model.Config("t5", 2, special=model.SpecialTokens(pad=0, start=0, eos=(1,)))
    ids = np.array([[0, 7, 8], [0, 9, 0]])
    with pytest.warns(AttnkitNote, match="1 token at the ends of texts is the padding token 0"):
        mask = padding.read_padding_tokens(Record({"ids": ids}), config, is_target=True)["mask"]
    assert mask.tolist() == [[[True, True, True]], [[True, True, False]]]


def test_a_token_that_some_head_attends_to_is_no_padding():
    mask = Tensor(
        np.stack([np.ones((3, 3), bool) & [True, True, False], np.ones((3, 3), bool)]), ("head", "query", "key")
    )
    assert padding.find_real_tokens(Record({"ids": np.zeros(3, int), "mask": mask})).tolist() == [True] * 3
    texts = Record({"ids": np.zeros((2, 3), int), "mask": mask.array})
    assert padding.find_real_tokens(texts).tolist() == [[True, True, False], [True] * 3]


def test_a_strictly_causal_mask_states_no_padding():
    record = Record({"ids": padded(SIDES["right"]), "mask": np.tri(5, k=-1, dtype=bool)})
    assert padding.find_real_tokens(record).all()
    both = np.stack([np.tri(3, k=-1, dtype=bool), np.ones((3, 3), bool) & [True, True, False]])
    found = padding.find_real_tokens(Record({"ids": np.zeros((2, 3), int), "mask": both}))
    assert found.tolist() == [[True] * 3, [True, True, False]], "each text by itself"


@pytest.mark.parametrize(
    "stated, message",
    [
        ({"lengths": np.array([1, 2])}, r"lengths \(2,\) for tokens \(3,5\): expected one for each of 3 texts"),
        ({"lengths": np.array([1, 2, 9])}, "length"),
        ({"lengths": np.array([[1, 2, 3]])}, r"lengths \(1,3\) for tokens \(3,5\)"),
        ({"mask": np.ones((2, 5), bool)}, r"mask \(2, 5\) for tokens \(3, 5\)"),
        ({"mask": np.full((3, 5), 2)}, "mask value 2"),
    ],
)
def test_what_states_padding_must_fit_the_tokens(stated, message):
    record = Record({"ids": padded(SIDES["right"])}).with_tensors(stated)
    with pytest.raises(DataError, match=message):
        attnkit.encode(record, model=folder("bert"))


@pytest.mark.parametrize("tool", ["attend", "rnn", "loss", "memory"])
def test_lengths_state_the_padding_for_tools_of_vectors(tool):
    rng, real = np.random.default_rng(0), SIDES["right"]
    x = rng.standard_normal((3, 5, 4))
    by_lengths, by_mask = (Record({"x": x}).with_tensors(STATED[how](real)) for how in ("lengths", "(B, 1, T)"))
    if tool == "attend":
        np.testing.assert_array_equal(attnkit.attend(by_lengths, heads=2)["x"], attnkit.attend(by_mask, heads=2)["x"])
        weights = attnkit.attend(by_lengths, heads=2, causal=True, keep="weights")["weights"]
        assert ((weights > 0) == (real[:, None, None] & CAUSAL)).all()
    if tool == "rnn":
        pair = [attnkit.rnn(one, cell="gru", hidden=3)["x"] for one in (by_lengths, by_mask)]
        np.testing.assert_array_equal(*pair)
        assert not pair[0][~real].any()
    if tool == "loss":
        target = np.zeros((3, 5), int)
        pair = [attnkit.loss(one, target=target)["x"] for one in (by_lengths, by_mask)]
        assert pair[0] == pair[1] != attnkit.loss(Record({"x": x}), target=target)["x"]
    if tool == "memory":
        q = Record({"x": rng.standard_normal((3, 2, 4))})
        pair = [attnkit.attend(q, memory=one, keep="weights")["weights"] for one in (by_lengths, by_mask)]
        np.testing.assert_array_equal(*pair)
        assert ((pair[0] > 0) == real[:, None, None]).all()


def test_padding_is_no_query_of_near_and_no_label_of_tokens():
    rng, real = np.random.default_rng(0), SIDES["right"]
    x, index = rng.standard_normal((3, 5, 4)), rng.standard_normal((7, 4))
    record = Record({"x": x, "lengths": LENGTHS}, {"token": [[f"{row}{at}" for at in range(5)] for row in range(3)]})
    found = attnkit.near(record, index=index, top=2)
    assert found["x"].shape == (9, 2)
    assert found.labels["query"] == ["00", "01", "02", "10", "11", "12", "13", "14", "20"]
    np.testing.assert_array_equal(found["rows"], attnkit.near(Record({"x": x[real]}), index=index, top=2)["rows"])
    trace = {"decoder.0.self.weights": np.full((3, 2, 5, 5), 0.2), "mask": np.repeat(real[:, None], 5, axis=1)}
    shown = attnkit.heads(Record(trace))
    alone = attnkit.heads(Record(trace | {"mask": real[:, None]}))
    np.testing.assert_array_equal(shown["x"], alone["x"])


def test_axes_that_name_queries_tell_a_square_mask_from_padding():
    ids = np.arange(6, 15).reshape(3, 3)
    square = Tensor(np.tri(3, dtype=bool), ("query", "key"))
    assert padding.find_real_tokens(Record({"ids": ids, "mask": square})).all()
    np.testing.assert_array_equal(
        padding.find_real_tokens(Record({"ids": ids, "mask": np.tri(3, dtype=bool)})), np.tri(3) > 0
    )
