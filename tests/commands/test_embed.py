"""The tool embed: what it adds to the arithmetic that it calls, record in, record out."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.formats import Record
from attnkit.records import Tensor


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
        with pytest.raises(UsageError, match="have no words"):
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


def test_ids_alone_have_a_vocabulary_up_to_the_largest():
    ids = np.array([[1, 2], [4, 0]])
    record = attnkit.embed(ids=ids, dim=3, seed=5)
    assert record["table"].shape == (5, 3)
    np.testing.assert_array_equal(record["x"], record["table"][ids])
    np.testing.assert_array_equal(record["table"], attnkit.embed("0 1 2 3 4", dim=3, seed=5)["table"])
    assert attnkit.embed(ids=ids, one_hot=True)["x"].shape == (2, 2, 5)
    with pytest.raises(DataError, match="a table"):
        attnkit.embed(ids=np.array([2**50]), dim=3)
    with pytest.raises(DataError, match="one-hot vectors"):
        attnkit.embed(ids=np.array([2**50]), one_hot=True)


@pytest.mark.parametrize(
    "vectors", [{"dim": 4, "seed": 3}, {"table": np.arange(20.0).reshape(5, 4)}, {"one_hot": True}]
)
def test_ids_of_several_batch_axes(vectors):
    ids = np.arange(24).reshape(2, 3, 4) % 5
    record = attnkit.embed(ids=ids, **vectors)
    assert record.axes_of("x")[:3] == record.axes_of("ids") == ("axis0", "batch", "token")
    assert np.array_equal(record["ids"], ids)
    assert np.array_equal(record["x"].reshape(24, -1), attnkit.embed(ids=ids.ravel(), **vectors)["x"])


def test_one_id_is_no_text():
    with pytest.raises(DataError, match=r"--ids: shape \(\) is not \(\.\.\., T\)"):
        attnkit.embed(ids=1, dim=4)
