"""From hidden states to words: the lecture's sentence, filters with ties, draws that follow the odds."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model.passes.generation import SamplingConfig, apply_filters, start_generation
from tests.places import REFERENCES

VOCABULARY = ["a", "am", "I", "thanks", "student", "<eos>"]
ODDS = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
BLOCKED = -np.inf


def kept(logits):
    return np.flatnonzero(~np.isneginf(logits)).tolist()


def test_a_tied_table_turns_vectors_back_to_words():
    table = model.one_hot(np.arange(6), 6, np.float64)
    sentence = [VOCABULARY.index(word) for word in ["I", "am", "a", "student", "<eos>"]]
    scores = model.logits(model.embed(sentence, table), table.T)
    assert [VOCABULARY[word] for word in model.greedy(scores)] == ["I", "am", "a", "student", "<eos>"]
    np.testing.assert_allclose(model.probabilities(scores).sum(axis=-1), 1)


def test_logits_name_both_shapes():
    with pytest.raises(DataError) as error:
        model.logits(np.zeros((3, 8)), np.zeros((4, 9)))
    assert str(error.value) == "output weight (4,9) for x (3,8): first dimension 4 != 8"
    with pytest.raises(DataError, match=r"output bias \(2,\): expected \(9,\)"):
        model.logits(np.zeros((3, 4)), np.zeros((4, 9)), np.zeros(2))


def test_temperature():
    np.testing.assert_allclose(model.probabilities(ODDS), np.exp(ODDS))
    np.testing.assert_allclose(model.probabilities(ODDS, 0.5), np.exp(ODDS) ** 2 / (np.exp(ODDS) ** 2).sum())
    np.testing.assert_array_equal(model.probabilities(ODDS, 1e-310), [0, 1, 0, 0])
    assert model.probabilities(ODDS.astype(np.float16)).dtype == np.float16
    for temperature in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(UsageError, match="temperature"):
            model.probabilities(ODDS, temperature)


def test_filters_by_hand():
    assert kept(model.top_k(ODDS, 2)) == [1, 3]
    assert kept(model.top_k(ODDS, 9)) == [0, 1, 2, 3]
    assert kept(model.top_p(ODDS, 0.01)) == [1]
    assert kept(model.top_p(ODDS, 0.5)) == [1, 3]
    assert kept(model.top_p(ODDS, 0.75)) == [1, 2, 3]
    assert kept(model.top_p(ODDS, 1.0)) == [0, 1, 2, 3]
    assert kept(model.min_p(ODDS, 0.6)) == [1, 3]
    assert kept(model.min_p(ODDS, 0.0)) == [0, 1, 2, 3]
    assert kept(model.min_p(ODDS, 1.0)) == [1]


def test_ties_go_to_the_lower_index():
    flat = np.zeros((2, 4))
    assert [kept(row) for row in model.top_k(flat, 2)] == [[0, 1], [0, 1]]
    assert [kept(row) for row in model.top_p(flat, 0.5)] == [[0, 1], [0, 1]]
    assert kept(model.min_p(flat[0], 1.0)) == [0, 1, 2, 3]
    assert model.greedy(flat).tolist() == [0, 0]
    assert model.candidates(flat, 3)[0].tolist() == [[0, 1, 2], [0, 1, 2]]


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8), st.floats(0.01, 1))
def test_top_p_reaches_p_with_as_few_as_can(logits, p):
    scores = np.array(logits)
    shares = model.probabilities(scores)
    chosen = np.sort(shares[kept(model.top_p(scores, p))])[::-1]
    assert chosen.sum() >= p - 1e-12
    assert p == 1 or chosen[:-1].sum() < p + 1e-12


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=8), st.integers(1, 8))
def test_top_k_of_all_is_all_and_values_are_untouched(logits, k):
    scores = np.array(logits, np.float32)
    filtered = model.top_k(scores, k)
    assert filtered.dtype == np.float32 and len(kept(filtered)) == min(k, len(scores))
    np.testing.assert_array_equal(filtered[kept(filtered)], scores[kept(filtered)])


@pytest.mark.parametrize(
    ("function", "value"),
    [(model.top_k, 0), (model.top_p, 0.0), (model.top_p, 1.5), (model.min_p, -0.1), (model.min_p, 2.0)],
)
def test_filter_ranges(function, value):
    with pytest.raises(UsageError):
        function(ODDS, value)
    with pytest.raises(UsageError):
        model.candidates(ODDS, 0)


def test_draws_follow_the_odds_and_the_seed():
    many = np.broadcast_to(ODDS, (20000, 4))
    words = model.sample_word(many, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(words) / len(words), np.exp(ODDS), atol=0.01)
    np.testing.assert_array_equal(words, model.sample_word(many, np.random.default_rng(0)))


def test_filtered_words_are_never_sampled():
    filtered = model.top_k(np.broadcast_to(ODDS, (500, 4)), 2)
    assert set(model.sample_word(filtered, np.random.default_rng(1)).tolist()) == {1, 3}
    cold = model.sample_word(np.broadcast_to(ODDS, (500, 4)), np.random.default_rng(1), temperature=1e-3)
    assert set(cold.tolist()) == {1}


FIVE = np.array([[3.0, 2.0, 1.0, 0.0, -1.0]])
LLAMA_CPP = model.Sampling(sampling_order="llama.cpp")
THREE_OF_FIVE = [0.506480, 0.307196, 0.186324]


@pytest.mark.parametrize(("values", "last", "first"), [
    ({"temperature": 2, "top_p": 0.9}, THREE_OF_FIVE, [0.455054, 0.276004, 0.167405, 0.101536]),
    ({"temperature": 2, "top_p": 0.95}, THREE_OF_FIVE, [0.428656, 0.259993, 0.157694, 0.095646, 0.058012]),
    ({"temperature": 0.5, "top_p": 0.9}, [0.866813, 0.117310, 0.015876], [0.880797, 0.119203]),
    ({"temperature": 2, "min_p": 0.1}, 3, 5),
    ({"temperature": 0.5, "min_p": 0.1}, 3, 2),
])  # fmt: skip
def test_by_hand_filters_before_and_after_the_temperature_keep_other_words(values, last, first):
    sampling = model.Sampling(**values)
    for order, expected in (
        (None, first), ("transformers", first), ("vllm", first), ("llama.cpp", last),
        (",".join([*values][::-1]).replace("_", "-"), last), (",".join(values).replace("_", "-"), first),
    ):  # fmt: skip
        shares = model.probabilities(sampling._replace(sampling_order=order).filter(FIVE))[0]
        if isinstance(expected, int):
            assert np.count_nonzero(shares) == expected
        else:
            np.testing.assert_allclose(shares[shares > 0], expected, atol=5e-7)


def test_by_hand_top_p_counts_what_top_k_left():
    """Of 2, 1.9, …, 1.5 the sums are .367 and .699 of the first three, .211, .402 and .574 of all."""
    logits, both = np.array([2, 1.9, 1.8, 1.7, 1.6, 1.5]), model.Sampling(top_k=3, top_p=0.7)
    assert [kept(both.filter(logits)), kept(model.top_p(logits, 0.7))] == [[0, 1, 2], [0, 1, 2, 3]]
    # without top-k the first four reach .7, of which it leaves three; of min-p's three, top-p .4 keeps two
    turned = both._replace(sampling_order="top-p,top-k", top_p=0.6)
    assert kept(turned.filter(logits)) == [0, 1, 2]
    narrow = model.Sampling(min_p=0.81, top_p=0.4)
    assert kept(narrow._replace(sampling_order="vllm").filter(logits)) == [0, 1]


def test_an_order_alone_samples_nothing_and_needs_every_sampler_that_is_set():
    assert not LLAMA_CPP.is_sampled and model.Sampling(seed=0).is_sampled
    with pytest.raises(UsageError, match="--sampling-order: temperature: needs top-k, because --top-k is set"):
        model.Sampling(top_k=3, sampling_order="temperature").filter(FIVE)


def test_by_hand_a_repeated_token_is_penalized_once():
    np.testing.assert_allclose(
        model.repetition_penalty(np.array([3.0, -1.0]), np.array([0, 1, 0]), 1.3), [2.307692, -1.3], atol=5e-7
    )


@pytest.mark.parametrize(("engine", "tolerance"), [("transformers", 1e-9), ("llama.cpp", 2e-7)])
def test_each_order_keeps_what_its_engine_keeps(engine, tolerance):
    """transformers counts each earlier token, llama.cpp those of the last 64."""
    frozen = json.loads((REFERENCES / "sampling.json").read_text())
    for row in frozen[engine]:
        values = {name: row[name] for name in ("temperature", "top_k", "top_p", "min_p")}
        settings = SamplingConfig(
            repetition_penalty=row["repetition_penalty"] or 1.0,
            sampling=model.Sampling(**values, sampling_order=engine),
        )
        ids, filters = start_generation(np.array(frozen["earlier"][row["earlier"]]), settings)
        scores = apply_filters(filters, np.array([row["logits"]]), ids)
        np.testing.assert_allclose(model.probabilities(scores)[0], row["probs"], rtol=0, atol=tolerance)


class Ends:
    """A generator at the ends of its range."""

    def __init__(self, value):
        self.value = value

    def random(self, shape):
        return np.full(shape, self.value)


@pytest.mark.parametrize(("draw", "word"), [(0.0, 1), (1 - 2**-53, 2)])
def test_the_ends_of_the_range_are_words_too(draw, word):
    assert model.sample_word(np.array([BLOCKED, 0.0, 0.3, BLOCKED]), Ends(draw)) == word


@pytest.mark.parametrize("choose", [model.greedy, lambda logits: model.sample_word(logits, np.random.default_rng(0))])
def test_rows_that_allow_no_choice(choose):
    rows = np.zeros((5, 3))
    rows[3] = BLOCKED
    with pytest.raises(DataError, match=r"^no finite logit at step 3$"):
        choose(rows)
    rows[3] = np.nan
    with pytest.raises(DataError, match=r"^no finite logit at step 3$"):
        choose(rows)
    rows[3] = [0, np.nan, 0]
    with pytest.raises(DataError, match=r"^logit nan at step 3$"):
        choose(rows)
    rows[3] = [0, np.inf, 0]
    with pytest.raises(DataError, match=r"^logit inf at step 3$"):
        choose(rows)


def test_filters_do_not_hide_nan():
    bad = np.array([np.nan, 1.0, 2.0])
    for filtered in (model.top_k(bad, 1), model.top_p(bad, 0.5), model.min_p(bad, 0.5)):
        with pytest.raises(DataError):
            model.greedy(filtered)


def test_an_empty_vocabulary_has_no_word():
    for choose in (model.greedy, lambda logits: model.sample_word(logits, np.random.default_rng(0))):
        with pytest.raises(DataError, match=r"logits \(1,0\): the vocabulary is empty"):
            choose(np.zeros((1, 0)))
        for shape in ((0, 3), (0, 0), (2, 0, 0)):  # no position asks for one
            assert choose(np.zeros(shape)).shape == shape[:-1]


def test_a_single_number_is_no_row():
    for function in (
        model.probabilities,
        model.greedy,
        lambda x: model.top_k(x, 1),
        lambda x: model.candidates(x, 1),
    ):
        with pytest.raises(DataError, match="a single number"):
            function(np.zeros(()))


def test_candidates_best_first_nan_last():
    ids, shares = model.candidates(np.array([0.25, np.nan, 0.5]), 5)
    assert ids.tolist() == [2, 0, 1] and ids.dtype == np.int64
    np.testing.assert_array_equal(shares, [0.5, 0.25, np.nan])


def test_earlier_words_become_less_likely():
    scores = np.array([[2.0, -2.0, 0.0, BLOCKED], [2.0, -2.0, 0.0, 1.0]], np.float32)
    less = model.repetition_penalty(scores, np.array([[0, 1, 1], [2, 3, 3]]), 2.0)
    assert less.dtype == np.float32
    np.testing.assert_array_equal(less, [[1, -4, 0, BLOCKED], [2, -2, 0, 0.5]])
    np.testing.assert_array_equal(scores[0], [2, -2, 0, BLOCKED])
    np.testing.assert_array_equal(model.repetition_penalty(ODDS, np.array([], int), 2.0), ODDS)
    with pytest.raises(UsageError, match="repetition penalty 0"):
        model.repetition_penalty(ODDS, np.array([1]), 0.0)
    with pytest.raises(DataError, match="token id 4"):
        model.repetition_penalty(ODDS, np.array([4]), 2.0)


def test_log_probabilities():
    np.testing.assert_allclose(model.log_probabilities(ODDS + 5), ODDS)
    far = model.log_probabilities(np.array([0.0, 1000.0, BLOCKED]))
    np.testing.assert_array_equal(far, [-1000, 0, BLOCKED])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(1, 220), st.floats(0.01, 1))
def test_filters_take_the_largest_in_the_order_of_a_sort(numbers, k, p):
    scores = np.array(numbers, float)
    order = np.argsort(-scores, kind="stable")
    assert kept(model.top_k(scores, k)) == sorted(order[:k].tolist())
    assert model.candidates(scores, k)[0].tolist() == order[:k].tolist()
    shares = model.probabilities(scores)[order]
    before = np.concatenate([[0], np.cumsum(shares)[:-1]])
    assert kept(model.top_p(scores, p)) == sorted(order[(before < p) | (p == 1)].tolist())


@pytest.mark.parametrize("constant, greedy", [(0, 0), (10, 1), (-5, 0)])
def test_a_repetition_penalty_depends_on_a_constant_added_to_logits_and_not_to_log_probabilities(constant, greedy):
    """[3, 2] with 1.2 on the first: [2.5, 2]; [13, 12]: [10.83, 12]; [-2, -3]: [-2.4, -3]. Log-probabilities stay."""
    logits = np.array([3.0, 2.0]) + constant
    assert model.repetition_penalty(logits, np.array([0]), 1.2).argmax() == greedy
    beam = model.repetition_penalty(model.log_probabilities(logits), np.array([0]), 1.2)
    np.testing.assert_allclose(beam, [1.2 * -np.log1p(np.exp(-1)), -1 - np.log1p(np.exp(-1))], rtol=1e-12)


def test_temperature_comes_before_top_p():
    """softmax of [3, 2, 1] is [.67, .24, .09], of [6, 4, 2] is [.87, .12, .02]: top-p 0.8 keeps two, then one."""
    rows = {}
    for temperature in (1.0, 0.5):
        scores = np.array([3.0, 2.0, 1.0])
        for _, change in model.Sampling(temperature=temperature, top_p=0.8).filters():
            scores = change(scores)
        rows[temperature] = np.isfinite(scores).tolist()
    assert rows == {1.0: [True, True, False], 0.5: [True, False, False]}


def test_the_largest_draw_is_a_word_of_the_vocabulary():
    """The sum of many probabilities may be a little less than 1."""

    class Largest:
        def random(self, shape):
            return np.full(shape, np.nextafter(1, 0))

    rng = np.random.default_rng(0)
    sizes = range(2, 200)
    assert any(np.cumsum(model.softmax(rng.normal(size=size)))[-1] < 1 for size in sizes)
    rng = np.random.default_rng(0)
    assert all(model.sample_word(rng.normal(size=size), Largest()) < size for size in sizes)


def test_a_number_that_is_none_takes_no_place_of_the_largest():
    np.testing.assert_array_equal(model.top_k(np.array([np.nan, 1.0, 3.0, 2.0]), 2), [np.nan, -np.inf, 3, 2])
