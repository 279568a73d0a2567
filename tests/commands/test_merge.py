"""The tool merge, in the shell and in Python."""

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.errors import DataError
from tests.commands.long_text import HEADS, WORDS, X, bash, text


@pytest.mark.slow
@pytest.mark.parametrize("causal", ["", "--causal"])
def test_parts_of_the_keys_in_processes_of_their_own(folder, causal):
    part = (
        f"attnkit attend --query q.npy --key <(attnkit show k.npy --slice :,:,$1:$(($1+20)) -f npy)"
        f" --value <(attnkit show v.npy --slice :,:,$1:$(($1+20)) -f npy) {causal} --offset -$1 --partial -o part$1.npz"
    )
    done = bash(f"seq 0 20 40 | xargs -P 2 -n 1 bash -c '{part}' part", folder)
    assert (done.code, done.err) == (0, "")
    done = bash("attnkit merge part40.npz part0.npz part20.npz -o merged.npz", folder)
    assert (done.code, done.err) == (0, "")
    q, k, v = (np.load(folder / f"{name}.npy") for name in "qkv")
    whole = model.attention(q, k, v, causal=bool(causal))
    merged = np.load(folder / "merged.npz")
    np.testing.assert_allclose(merged["x"], whole["heads"], atol=1e-12)
    np.testing.assert_allclose(merged["lse"], whole["lse"], atol=1e-12)
    done = bash("attnkit history merged.npz", folder)
    assert done.out.decode().splitlines()[-1] == "attnkit merge -f json part40.npz part0.npz part20.npz"
    assert sum(line.endswith(".npz") and line.startswith("# ") for line in done.out.decode().splitlines()) == 3


def test_joined_parts_are_what_attend_gives(folder):
    params = str(folder / "params.npz")
    whole = attnkit.attend(text(), params=params, heads=HEADS)
    parts = []
    for start in (0, 20, 40):
        keys = text().with_tensors({"x": X[start : start + 20]}, {"token": WORDS[start : start + 20]})
        parts.append(attnkit.attend(text(), memory=keys["x"], params=params, heads=HEADS, partial=True))
    assert parts[0].tensors["x"].axes == ("head", "query", "head_dim")
    assert parts[0].tensors["lse"].axes == ("head", "query")
    assert parts[0].tensors["wo"].axes == ("heads", "model")
    twice = attnkit.merge([attnkit.merge(parts[:2]), parts[2]])
    np.testing.assert_allclose(twice["x"], attnkit.merge(parts)["x"], atol=1e-12)
    np.testing.assert_allclose(attnkit.merge([twice], join=True)["x"], whole["x"], atol=1e-12)
    joined = attnkit.merge(parts, join=True)
    np.testing.assert_allclose(joined["x"], whole["x"], atol=1e-12)
    assert joined.tensors["x"].axes == whole.tensors["x"].axes and joined.labels["token"] == WORDS
    assert not {"lse", "wo", "bo"} & set(joined)


def test_parts_from_a_stream(folder):
    line = "(attnkit attend --query q.npy --key k.npy --value v.npy --partial; cat) | attnkit merge --only lse"
    done = bash(f"attnkit attend --query q.npy --key k.npy --value v.npy --partial | ({line})", folder)
    q, k, v = (np.load(folder / f"{name}.npy") for name in "qkv")
    assert done.code == 0
    (folder / "twice.json").write_bytes(done.out)
    lse = bash("attnkit show twice.json:lse -f npy > lse.npy", folder)
    assert lse.code == 0
    np.testing.assert_allclose(np.load(folder / "lse.npy"), model.attention(q, k, v)["lse"] + np.log(2), atol=1e-12)


def test_parts_of_other_queries_do_not_merge():
    one, other = (attnkit.attend(attnkit.embed(words, dim=4), partial=True) for words in ("a b c", "x y z"))
    with pytest.raises(DataError, match="part 2: queries x, y, z, but a, b, c in part 1"):
        attnkit.merge([one, other])
