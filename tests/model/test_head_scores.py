"""Scores of heads: worked by hand, equal to TransformerLens, unchanged by padding and by batches."""

import tracemalloc

import numpy as np
import pytest

from attnkit.model.formulas import head_scores
from attnkit.model.formulas.head_scores import KINDS, MEANS, TARGETS, concatenate_heads, score_heads
from tests.places import REFERENCES

IDS = np.array([3, 5, 7, 3, 5, 9, 7, 3, 5])  # of make_interpretability.py


def one_hot(*keys):
    """Return the weights of a head whose queries attend to one key each."""
    return np.eye(len(keys))[list(keys)]


def column(scores, name):
    return scores.means()[:, MEANS.index(name)]


def test_targets_by_hand():
    """The tokens a b a b: query 2 has the duplicate 0 and the induction key 1, query 3 the keys 1 and 2."""
    weights = np.array([[[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.3, 0.5, 0], [0.1, 0.2, 0.3, 0.4]]])
    scores = score_heads(weights, np.array([0, 1, 0, 1]))
    expected = {
        "previous": (0.5 + 0.3 + 0.3) / 4,
        "first": (1 + 0.5 + 0.2 + 0.1) / 4,
        "self": (1 + 0.5 + 0.5 + 0.4) / 4,
        "duplicate": (0.2 + 0.2) / 4,
        "induction": (0.3 + 0.3) / 4,
        "span": (0.5 + (0.4 + 0.3) + (0.3 + 0.4 + 0.3)) / 4,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(column(scores, name), value, err_msg=name)
    rows = -(weights * np.log(np.where(weights, weights, 1))).sum(-1)
    np.testing.assert_allclose(column(scores, "entropy"), rows.mean(-1))
    assert scores.largest == 0.5 and scores.place.tolist() == [[0, 1, 0]]  # not query 0, which has one key


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ((0, 0, 1, 2, 3, 4, 5, 6), "previous"),
        ((0, 0, 0, 0, 0, 0, 0, 0), "first"),
        ((0, 1, 2, 3, 4, 5, 6, 7), "self"),
        ((0, 0, 0, 0, 0, 1, 2, 3), "duplicate"),
        ((0, 0, 0, 0, 1, 2, 3, 4), "induction"),
    ],
)
def test_a_head_that_attends_to_one_target_is_of_its_kind(keys, kind):
    scores = score_heads(one_hot(*keys)[None], np.array([1, 2, 3, 4] * 2))
    assert scores.kinds() == [kind]
    assert scores.kind_measures() == [1.0] == scores.measures()[0, KINDS.index(kind)]


def test_the_heads_of_one_layer_are_a_layer():
    one = score_heads(one_hot(0, 0, 1)[None], np.array([1, 2, 3]))
    joined, alone = concatenate_heads([one]), concatenate_heads([one, one])
    assert joined.texts == alone.texts == 1 and joined.kinds() * 2 == alone.kinds()
    np.testing.assert_array_equal(joined.sums, one.sums)


def test_even_attention_is_broad_and_no_target_exceeds_it():
    causal = np.tril(np.ones((9, 9)))
    for weights in (causal / causal.sum(-1, keepdims=True), np.full((9, 9), 1 / 9)):
        scores = score_heads(weights[None], IDS)
        assert scores.kinds() == ["broad"]
        np.testing.assert_allclose(scores.measures(), [[0, 0, 0, 0, 0, 1]], atol=1e-12)


def test_a_head_that_attends_to_the_next_token_is_of_another_kind():
    scores = score_heads(one_hot(1, 2, 3, 4, 4)[None], np.arange(5))
    assert scores.kinds() == ["other"]
    np.testing.assert_allclose(column(scores, "self"), 0.2)


def test_kinds_of_too_few_queries_are_not_judged():
    """One token is repeated once: that is too little to call a head by."""
    scores = score_heads(one_hot(0, 0, 1, 0)[None], np.array([1, 2, 3, 1]))
    assert np.isnan(scores.measures()[0, KINDS.index("duplicate")])
    assert scores.kinds() == ["previous"]


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_scores_equal_transformer_lens(model, reference_weights):
    frozen = np.load(REFERENCES / "interpretability.npz")
    scores = [score_heads(weights, IDS) for weights in reference_weights(model)]
    for name, theirs in (("previous", "previous_token"), ("duplicate", "duplicate_token"), ("induction", "induction")):
        ours = np.stack([column(layer, name) for layer in scores])
        np.testing.assert_allclose(ours, frozen[f"{model}.{theirs}_head_score"], atol=1e-6)


@pytest.fixture
def reference_weights():
    """Return the weights of each layer of a tiny model on IDS."""
    import attnkit

    def run(model):
        record = attnkit.encode(
            attnkit.Record({"ids": IDS}), model=str(REFERENCES / "models" / model), keep=("*.self.weights",)
        )
        return [record[name] for name in record if name.endswith(".weights")]

    return run


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_padding_changes_nothing(side, is_causal):
    weights = np.random.default_rng(1).random((3, 9, 9))
    weights = np.tril(weights) if is_causal else weights
    weights /= weights.sum(-1, keepdims=True)
    pad = (2, 0) if side == "left" else (0, 2)
    padded = np.pad(weights, ((0, 0), pad, pad))
    padded[:, :, pad[0]] += padded.sum(-1) == 0  # padding that attends to a token
    real = np.pad(np.full(9, True), pad)
    ours, theirs = score_heads(padded, np.pad(IDS, pad), real), score_heads(weights, IDS)
    for name in ("sums", "chosen", "even", "counts", "largest"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), err_msg=name)
    np.testing.assert_array_equal(ours.place[:, 1:] - pad[0], theirs.place[:, 1:])


def test_the_last_queries_have_the_scores_of_their_rows():
    weights = np.tril(np.random.default_rng(2).random((2, 9, 9)))
    weights /= weights.sum(-1, keepdims=True)
    last, whole = score_heads(weights[:, 6:], IDS), score_heads(weights, IDS)
    first = score_heads(weights[:, :6, :6], IDS[:6])
    np.testing.assert_allclose((6 * first.means() + 3 * last.means()) / 9, whole.means())
    np.testing.assert_allclose(first.chosen + last.chosen, whole.chosen)


def test_the_scores_of_several_texts_are_their_mean_and_the_largest_pair_that_of_all():
    first, second = score_heads(one_hot(0, 0, 1)[None]), score_heads(one_hot(0, 1)[None])
    both = first + second
    np.testing.assert_allclose(both.means(), (first.means() + second.means()) / 2)
    assert both.texts == 2
    assert (second + first).place.tolist() == [[0, 1, 1]]
    empty = score_heads(np.ones((1, 1, 1)))  # one token has no choice
    assert empty.place.tolist() == [[-1, -1, -1]] and (empty + second).place.tolist() == [[1, 1, 1]]


def test_attention_over_another_text_has_no_targets_but_the_first():
    scores = score_heads(np.full((1, 2, 5), 0.2), is_cross=True)
    assert np.isnan(scores.means()[0, [MEANS.index(name) for name in TARGETS if name != "first"]]).all()
    np.testing.assert_allclose(column(scores, "first"), 0.2)
    assert np.isnan(column(scores, "span")).all()
    assert scores.kinds() == ["broad"]


def test_heads_of_several_layers_stand_one_after_another():
    layers = [score_heads(one_hot(0, 0, 1, 2)[None]), score_heads(one_hot(0, 0, 0, 0)[None])]
    assert concatenate_heads(layers).kinds() == ["previous", "first"]


def test_scores_take_little_more_memory_than_the_weights(monkeypatch):
    """Blocks of queries give the bits of all at once; of one head, a weight takes fewer than 40 bytes more."""
    weights = np.tri(600, dtype=np.float32)[None] / np.arange(1, 601, dtype=np.float32)[:, None]
    tokens = np.arange(600) % 7
    monkeypatch.setattr(head_scores, "BLOCK", 1 << 20)
    whole = score_heads(weights, tokens)
    monkeypatch.setattr(head_scores, "BLOCK", 1 << 13)
    tracemalloc.start()
    blocks = score_heads(weights, tokens)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * weights.size
    for name in ("sums", "chosen", "even", "counts", "largest", "place"):
        assert np.array_equal(getattr(blocks, name), getattr(whole, name), equal_nan=True)
