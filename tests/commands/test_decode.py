"""The tool decode: what it adds to the arithmetic that it calls, record in, record out."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.errors import AttnkitWarning, DataError
from tests import process
from tests.commands.records import CAT, of
from tests.places import folder

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


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
        with pytest.warns(AttnkitWarning, match=r"^logits exceed the range of float16 at \[0\]\[0\]"):
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


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("decode", "--max-tokens", 1, "--model", folder("gpt2")), "--ids - reads them as ids"),
        (("encode", "--model", folder("gpt2")), "--ids - reads them as ids"),
        (("embed", "--dim", 4), "--ids - reads them as ids"),
        (("decode", "--max-tokens", 1, "--model", folder("marian")), "attnkit show -f npy in between makes them ids"),
    ],
)
def test_a_warning_says_that_a_list_of_ids_is_taken_as_text(command, remedy):
    for text in (b"[[1,2,3]]\n", b"[1, 2, 3]\n", b"[[1],\n [2]]\n"):
        done = process.run(*command, stdin=text)
        assert done.code == 0
        assert f"warning: a list of numbers, taken as text; {remedy}" in done.err
    for text in (b"[1] says so\n", b"1, 2, 3\n", b"[7]\n"):
        assert "taken as text" not in process.run(*command, stdin=text).err


def test_ids_of_a_list_are_those_of_an_array():
    generated = {"model": folder("gpt2"), "max_tokens": 2, "emit": "ids"}
    line = ("decode", "--model", folder("gpt2"), "--max-tokens", 2, "--emit", "ids", "--ids", "-", "-f", "json")
    out = json.loads(process.run(*line, stdin=b"[[1,2,3]]").out)
    assert out["tensors"]["x"]["data"] == attnkit.decode(ids=np.array([[1, 2, 3]]), **generated)["x"].tolist()
