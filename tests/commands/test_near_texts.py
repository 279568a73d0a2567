"""near --metric maxsim: texts with a vector for each token, ragged or padded, and which token found which."""

import json

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.model.formulas.late_interaction import find_nearest_texts, max_similarity
from attnkit.records import Record, Tensor
from tests import process

E1 = np.eye(2, dtype=np.float32)
LENGTHS = np.array([3, 1, 5, 2])
POOLED = Record({}).with_tensors({"x": Tensor(np.eye(2, dtype=np.float32), ("batch", "model"))})  # of two texts


def padded(texts, names=()):
    """Texts (R, D) as one batch with its mask."""
    longest = max(map(len, texts))
    x = np.stack([np.pad(text, ((0, longest - len(text)), (0, 0))) for text in texts]).astype(np.float32)
    mask = np.arange(longest) < np.array([[[len(text)]] for text in texts])
    tensors = {"x": Tensor(x, ("batch", "token", "model")), "mask": Tensor(mask, ("batch", "all queries", "key"))}
    return Record({}).with_tensors(tensors, {"batch": [*names]} if names else {})


def random_texts(seed=0, width=4):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(count, width)).astype(np.float32) for count in LENGTHS]


def brute_force(query, texts):
    return np.array([(query.astype(float) @ text.astype(float).T).max(axis=1).sum() for text in texts])


def test_padding_never_wins_against_negative_products():
    """d = (-.6, -.8) scores -1.4 with e1 and e2; a row of zeros beside it would score 0."""
    index = padded([np.array([[-0.6, -0.8]]), np.array([[0.6, 0.8], [0.8, 0.6]])], ["far", "near"])
    result = attnkit.near(E1, index=index, metric="maxsim", top=2)
    np.testing.assert_allclose(result["x"], [1.6, -1.4], rtol=1e-6)
    assert result.labels["rows"] == ["near", "far"]
    without_mask = Record({"x": index["x"]})
    np.testing.assert_allclose(attnkit.near(E1, index=without_mask, metric="maxsim", top=2)["x"], [1.6, 0])


def test_the_sum_runs_over_the_real_tokens_of_a_query():
    index = padded([np.array([[-0.6, -0.8]])])
    query = padded([np.array([[1.0, 0]]), E1])
    result = attnkit.near(query, index=index, metric="maxsim", top=1)
    np.testing.assert_allclose(result["x"].ravel(), [-0.6, -1.4], rtol=1e-6)
    mean = attnkit.near(query, index=index, metric="meanmaxsim", top=1)
    np.testing.assert_allclose(mean["x"].ravel(), [-0.6, -0.7], rtol=1e-6)


@pytest.mark.parametrize("top", [1, 3, 9])
def test_batches_streams_and_files_are_the_same_index(top, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, query = random_texts(), random_texts(1)[2]
    formats.save(padded(texts, list("abcd")), "batch.npz")
    lines = [json.dumps({"tensors": {"x": {"dtype": "float32", "shape": [*text.shape], "axes": ["token", "model"],
                                           "data": text.tolist()}}, "labels": {"batch": [name]}, "history": []})
             for text, name in zip(texts, "abcd", strict=True)]  # fmt: skip
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    expected = brute_force(query, texts)
    order = np.argsort(-expected)[:top]
    for file in ("batch.npz", "lines.jsonl"):
        result = attnkit.near(query, index=file, metric="maxsim", top=top)
        assert result["rows"].tolist() == order.tolist()
        np.testing.assert_allclose(result["x"], expected[order], rtol=1e-6)
        assert result.labels["rows"] == ["abcd"[at] for at in order]


def test_many_texts_are_scored_as_one_by_one_and_ties_keep_their_order():
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 9, 500)
    rows = rng.normal(size=(lengths.sum(), 16)).astype(np.float32)
    starts = np.cumsum(lengths) - lengths
    queries = [rng.normal(size=(count, 16)).astype(np.float32) for count in (1, 6)]
    found = find_nearest_texts(rows, lengths, queries, 20)
    for number, query in enumerate(queries):
        texts = [rows[start : start + count] for start, count in zip(starts, lengths, strict=True)]
        scores = np.array([max_similarity(query, text) for text in texts]).astype(np.float32)
        order = np.lexsort((np.arange(500), -scores))[:20]
        assert found.indices[number].tolist() == order.tolist()
        assert found.scores[number].tolist() == scores[order].tolist()
        alone = find_nearest_texts(rows, lengths, [query], 20)
        assert np.array_equal(alone.scores[0], found.scores[number])
    twice = find_nearest_texts(np.concatenate([rows, rows]), np.concatenate([lengths, lengths]), queries, 4)
    assert (twice.indices[:, 1] == twice.indices[:, 0] + 500).all() and (twice.scores[:, 0] == twice.scores[:, 1]).all()


def test_which_token_found_which():
    query = Record({"x": Tensor(E1, ("token", "model"))}, {"token": ["one", "two"]})
    index = padded([np.array([[0.6, 0.8], [0.8, 0.6], [0, 0.9]]), np.array([[-0.6, -0.8]])], ["first", "second"])
    index = index.with_tensors({}, {"token": [["a", "b", "c"], ["d", "[PAD]", "[PAD]"]]})
    result = attnkit.near(query, index=index, metric="maxsim", explain=True)
    np.testing.assert_allclose(result["x"], [1.7, -1.4], rtol=1e-6)
    np.testing.assert_allclose(result["products"][0], [[0.6, 0.8, 0], [0.8, 0.6, 0.9]], rtol=1e-6)
    assert result["products_mask"].tolist() == [[True] * 3, [True, False, False]]
    assert result.labels["asked"] == ["one", "two"] and result.labels["found"][0] == ["a", "b", "c"]
    assert result["products"].max(axis=2, where=result["products_mask"][:, None], initial=-9).sum(axis=1).tolist() == (
        pytest.approx(result["x"].tolist())
    )


def test_the_table_and_the_map_of_an_explanation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = padded([np.array([[0.6, 0.8], [0.8, 0.6]])], ["a text"]).with_tensors({}, {"token": [["a", "b"]]})
    formats.save(index, "index.npz")
    query = Record({"x": Tensor(E1, ("token", "model"))}, {"token": ["one", "two"]})
    formats.save(query, "query.npz")
    words = ("near", "query.npz", "--index", "index.npz", "--metric", "maxsim", "--explain")
    code, out, _ = process.run(*words, "-f", "table")
    assert code == 0 and b"1: a text" in out
    assert [line.split() for line in out.decode().splitlines() if line.startswith(("one", "two"))][:2] == [
        ["one", "b", "0.8000"], ["two", "a", "0.8000"],
    ]  # fmt: skip
    assert process.run(*words, "-o", "found.svg")[0] == 0 and b"q \xc2\xb7 r" in (tmp_path / "found.svg").read_bytes()


@pytest.mark.parametrize(
    ("query", "index", "options", "error", "problem"),
    [
        (E1, padded([E1]), {"explain": True}, UsageError, "--explain: needs --metric maxsim or meanmaxsim"),
        (
            padded([E1, E1]),
            padded([E1]),
            {"metric": "maxsim", "explain": True},
            UsageError,
            "--explain: takes one query",
        ),
        (E1 * np.nan, padded([E1]), {"metric": "maxsim"}, DataError, "query 0 has a number that is not finite"),
        (
            E1,
            padded([E1, E1 + np.inf]),
            {"metric": "maxsim"},
            DataError,
            "text 1 of the index has numbers that are not",
        ),
        (E1, padded([E1, E1[:0]]), {"metric": "maxsim"}, DataError, "text 1 of the index has no vectors"),
        (np.ones((2, 3)), padded([E1]), {"metric": "maxsim"}, DataError, "expected vectors of 2"),
        (POOLED, padded([E1]), {"metric": "maxsim"}, DataError, "x (2, 2): a vector for each text (expected one for "),
        (
            np.ones((1, 1, 1, 2)),
            padded([E1]),
            {"metric": "maxsim"},
            DataError,
            "expected the vectors of texts (B, T, D)",
        ),
    ],
)
def test_bad_input(query, index, options, error, problem):
    with pytest.raises(error) as caught:
        attnkit.near(query, index=index, **options)
    assert problem in str(caught.value)


def test_the_tokens_of_texts_are_rows_for_other_metrics():
    index = padded([E1, np.array([[0.6, 0.8]])]).with_tensors({}, {"token": [["a", "b"], ["c", "[PAD]"]]})
    result = attnkit.near(np.array([0.6, 0.8]), index=index, top=3)
    assert result.labels["rows"] == ["c", "b", "a"] and result["rows"].tolist() == [2, 1, 0]
