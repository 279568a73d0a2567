"""Search over little Markov chains, whose next token depends on the last alone: every text can be counted."""

import itertools

import numpy as np
import pytest

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import LENGTH_PENALTIES, SamplingConfig, beam_search, generate, score_tokens

pytestmark = pytest.mark.no_blas
BLOCKED = -np.inf
GREEDY_TRAP = np.log(np.array([[0.1, 0.5, 0.4], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05]]))  # 0 ends; 2 is better than 1
WAVES = 3 * np.sin(np.arange(81.0) ** 2).reshape(9, 9)


class Chain:
    """A model that looks at the last token; it remembers every row, to know that the search keeps them straight."""

    def __init__(self, table):
        self.table = np.asarray(table)
        self.texts = None

    def __call__(self, tokens):
        self.texts = tokens if self.texts is None else np.concatenate([self.texts, tokens], axis=1)
        return self.table[self.texts[:, -1]]

    def reorder_cache(self, rows):
        self.texts = self.texts[rows]


class History(Chain):
    """Logits that depend on all tokens before, in their order: a row out of place changes the result."""

    def __call__(self, tokens):
        super().__call__(tokens)
        return np.array([3 * np.sin(np.arange(6) * (1 + self.hash(text))) for text in self.texts])

    @staticmethod
    def hash(text):
        value = 7
        for token in text:
            value = (31 * value + int(token)) % 1009
        return value


def texts(chain, prompt, limit, eos, rank):
    """Every text a model can say, by its score: the truth a search approaches."""
    found, words = {}, range(len(chain.table))
    for length in range(1, limit + 1):
        for ids in itertools.product(words, repeat=length):
            if (length < limit and ids[-1] not in eos) or set(ids[:-1]) & set(eos):
                continue
            total = 0.0
            for step, word in enumerate(ids):
                chain.texts = None
                row = chain(np.array([[*prompt, *ids[:step]]]))[0]
                total += float(model.log_probabilities(row)[word])
            found[ids] = rank(total, length)
    return sorted(found.items(), key=lambda item: -item[1])


def test_greedy_search_takes_the_most_likely_token_until_eos():
    text = generate(Chain(GREEDY_TRAP), [2], SamplingConfig(limit=5))
    assert text.ids == (0, 1, 0, 1, 0) and text.finish_reason == "limit"
    np.testing.assert_allclose(text.logprobs, np.log([0.9, 0.5, 0.4, 0.5, 0.4]))
    assert text.score == pytest.approx(sum(text.logprobs))
    text = generate(Chain(GREEDY_TRAP), [0], SamplingConfig(limit=5, eos=(0,)))
    assert text.ids == (1, 0) and text.finish_reason == "eos"


def test_a_stop_function_receives_all_new_tokens():
    asked = []

    def stop(ids):
        asked.append(ids)
        return ids[-2:] == [0, 1]

    text = generate(Chain(GREEDY_TRAP), [2], SamplingConfig(limit=5), stop=stop)
    assert text.ids == (0, 1) and text.finish_reason == "stop" and asked == [[0], [0, 1]]
    found = beam_search(Chain(GREEDY_TRAP), [2], SamplingConfig(limit=5), 2, stop=lambda ids: ids[-2:] == [0, 1])
    assert found[0].ids == (0, 1) and found[0].finish_reason == "stop"


def test_of_a_search_without_an_end_twice_as_many_texts_as_beams_are_considered():
    """The best two tokens end at a stop: the first is finished, the second is dropped, and no third one runs."""
    told, chain = [], Chain(np.log([[0.5, 0.3, 0.2]] * 3))
    settings = SamplingConfig(limit=4)
    found = beam_search(chain, [2], settings, 1, stop=lambda ids: ids[-1] < 2, on_step=told.append)
    assert [text.ids for text in found] == [(0,)] and [info.running for info in told] == [()]
    assert [text.ids for text in told[0].finished] == [(0,)]


def test_a_limit_of_zero_generates_nothing():
    assert generate(Chain(GREEDY_TRAP), [0], SamplingConfig(limit=0)) == model.GeneratedText(finish_reason="limit")
    assert beam_search(Chain(GREEDY_TRAP), [0], SamplingConfig(limit=0), 3) == [
        model.GeneratedText(finish_reason="limit")
    ]


def test_the_model_is_given_each_token_once():
    chain = History(WAVES[:6])
    text = generate(chain, [1, 2, 3], SamplingConfig(limit=6))
    assert chain.texts.tolist() == [[1, 2, 3, *text.ids[:-1]]]


def test_ties_go_to_the_lower_id():
    assert generate(Chain(np.zeros((3, 3))), [2], SamplingConfig(limit=2)).ids == (0, 0)
    found = beam_search(Chain(np.zeros((3, 3))), [2], SamplingConfig(limit=2), 3, returned=3)
    assert [text.ids for text in found] == [(0, 0), (0, 1), (0, 2)]


def test_beam_search_finds_a_better_text_than_greedy_search():
    settings = SamplingConfig(limit=2)
    assert generate(Chain(GREEDY_TRAP), [0], settings).ids == (1, 0)  # 0.5 · 0.4
    best = beam_search(Chain(GREEDY_TRAP), [0], settings, 2)[0]
    assert best.ids == (2, 0)  # 0.4 · 0.9
    assert best.score == pytest.approx(np.log(0.4 * 0.9) / 2)
    np.testing.assert_allclose(best.logprobs, np.log([0.4, 0.9]))


@pytest.mark.parametrize("rank", [LENGTH_PENALTIES["average"](a) for a in (0.0, 1.0)] + [LENGTH_PENALTIES["gnmt"](0.6)])
@pytest.mark.parametrize("make", [lambda: Chain(WAVES[:4, :4]), lambda: History(WAVES[:6])], ids=["chain", "history"])
def test_with_room_for_every_text_the_search_is_exhaustive(make, rank):
    truth = texts(make(), [3, 1], 3, (2,), rank)
    found = beam_search(make(), [3, 1], SamplingConfig(limit=3, eos=(2,)), 400, rank, returned=400)
    assert len(found) == len(truth)
    assert [text.ids for text in found] == [ids for ids, _ in truth]
    np.testing.assert_allclose([text.score for text in found], [value for _, value in truth])


@pytest.mark.parametrize("beams", [2, 3, 5])
def test_beams_keep_their_own_past(beams):
    settings = SamplingConfig(limit=8, eos=(4,))
    for text in beam_search(History(WAVES[:6]), [3, 1], settings, beams, returned=beams):
        alone = History(WAVES[:6])
        rows = [alone(np.array([[3, 1]]))[0], *(alone(np.array([[word]]))[0] for word in text.ids[:-1])]
        np.testing.assert_allclose(score_tokens(np.array(rows), text.ids), text.logprobs)
        assert text.score == pytest.approx(sum(text.logprobs) / len(text.ids))


def test_length_penalties_by_hand():
    assert LENGTH_PENALTIES["gnmt"](0.0)(-3.0, 9) == LENGTH_PENALTIES["average"](0.0)(-3.0, 9) == -3.0
    assert LENGTH_PENALTIES["gnmt"](1.0)(-6.0, 13) == pytest.approx(-2.0)
    assert LENGTH_PENALTIES["average"](2.0)(-18.0, 3) == pytest.approx(-2.0)


# What transformers 5.23 generates on WAVES in float32: a GPT2LMHeadModel whose forward returns WAVES[input_ids], by
# generate(do_sample=False, early_stopping=False, num_beams, length_penalty, num_return_sequences, max_new_tokens=limit,
# min_new_tokens=minimum, eos_token_id, forced_eos_token_id, forced_bos_token_id, repetition_penalty, bad_words_ids),
# what follows the end of a text cut off, and its sequences_scores.
PUBLISHED = [
    ([0], 4, 1.0, {"limit": 8, "eos": (2,)},
     [[8, 3, 3, 3, 3, 3, 3, 3], [8, 7, 3, 3, 3, 3, 3, 3], [8, 3, 3, 3, 3, 3, 3, 6], [1, 2]],
     [-0.7851, -0.8133, -0.8197, -0.8294]),
    ([3, 1], 4, 1.0, {"limit": 8, "eos": (2,)},
     [[2], [5, 7, 3, 3, 3, 3, 3, 3], [5, 0, 8, 3, 3, 3, 3, 3], [5, 0, 1, 2]], [-0.6559, -0.7985, -0.8263, -0.8326]),
    ([0], 3, 0.6, {"limit": 8, "eos": (2,)},
     [[1, 2], [1, 5, 0, 1, 2], [8, 3, 3, 3, 3, 3, 3, 3]], [-1.0944, -1.6498, -1.8038]),
    ([0], 2, 0.0, {"limit": 10, "eos": (5,)}, [[1, 5], [1, 2, 5]], [-1.8367, -2.5132]),
    ([0], 5, 2.0, {"limit": 6, "eos": (7,)},
     [[1, 2, 3, 3, 3, 3], [1, 2, 3, 3, 3, 6], [8, 3, 3, 3, 3, 3]], [-0.1268, -0.1345, -0.1372]),
    ([0], 3, 1.0, {"limit": 7, "eos": (2,), "repetition_penalty": 1.5},
     [[1, 2], [1, 5, 7, 3, 3, 3, 6]], [-0.8294, -0.9995]),
    ([0], 3, 1.0, {"limit": 7, "eos": (2, 5), "minimum": 3},
     [[8, 3, 3, 3, 3, 3, 3], [8, 7, 3, 3, 3, 3, 3], [8, 3, 3, 3, 3, 3, 6]], [-0.8014, -0.8336, -0.841]),
    ([0], 4, 1.0, {"limit": 5, "eos": (2,), "forced_eos": 2, "banned": (8, 4)},
     [[1, 5, 0, 1, 2], [1, 5, 7, 3, 2]], [-0.7355, -0.8071]),
    ([0], 2, 1.0, {"limit": 5, "eos": (2,), "forced_bos": 6}, [[6, 7, 3, 3, 3], [6, 7, 3, 3, 6]], [-0.6171, -0.6725]),
    ([3, 1], 2, 1.0, {"limit": 5, "eos": (2,), "forced_bos": 6}, [[2], [5, 0, 1, 2]], [-0.6559, -0.8326]),
    ([0], 3, -1.0, {"limit": 7, "eos": (2,)},
     [[1, 2], [1, 5, 0, 1, 2], [8, 3, 3, 3, 3, 3, 3]], [-3.3177, -21.6664, -39.2698]),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "beams", "exponent", "settings", "ids", "scores"), PUBLISHED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_beams_as_published(prompt, beams, exponent, settings, ids, scores, dtype):
    rank = LENGTH_PENALTIES["average"](exponent)
    found = beam_search(Chain(WAVES.astype(dtype)), prompt, SamplingConfig(**settings), beams, rank, returned=len(ids))
    assert [list(text.ids) for text in found] == ids
    np.testing.assert_allclose([text.score for text in found], scores, atol=1e-4)


def test_greedy_as_published():
    settings = SamplingConfig(limit=7, eos=(2,))
    assert generate(Chain(WAVES), [0], settings).ids == (8, 3, 3, 3, 3, 3, 3)
    settings = SamplingConfig(limit=7, eos=(2,), repetition_penalty=1.5, banned=(8,))
    assert generate(Chain(WAVES), [0], settings).ids == (1, 2)


def test_a_vocabulary_smaller_than_the_beams():
    found = beam_search(Chain(GREEDY_TRAP), [0], SamplingConfig(limit=2), 20, returned=20)
    assert len({text.ids for text in found}) == len(found) == 9


def test_forced_and_banned_tokens():
    settings = SamplingConfig(limit=4, eos=(0,), banned=(1,), forced_bos=1, forced_eos=0, minimum=3)
    told = []
    text = generate(Chain(GREEDY_TRAP), [2], settings, on_step=told.append)
    assert text.ids == (1, 2, 2, 0) and text.finish_reason == "eos"
    assert [one.name for one in told[0].filters] == ["banned", "minimum", "forced start", "forced end"]
    assert [one.removed.tolist() for one in told[0].filters] == [[1], [0], [2], []]
    assert told[3].filters[-1].removed.tolist() == [2]
    np.testing.assert_allclose(text.logprobs, np.log([0.05, 0.3, 0.05, 0.9]))  # the model's own, filters aside
    assert generate(Chain(GREEDY_TRAP), [1, 2], settings).ids[0] != 1  # only a prompt of one token is followed so


def test_on_step_receives_every_filter():
    table = np.tile(np.log([0.4, 0.3, 0.2, 0.06, 0.04]), (5, 1))
    settings = SamplingConfig(limit=2, sampling=model.Sampling(2.0, 4, 0.7, 0.8))
    told = []
    text = generate(Chain(table), [0], settings, np.random.default_rng(0), on_step=told.append)
    assert [info.step for info in told] == [0, 1]
    assert [info.chosen for info in told] == list(text.ids)
    names = {one.name: one.removed.tolist() for one in told[0].filters}
    assert names == {"temperature": [], "top-k": [4], "top-p": [3], "min-p": [2]}
    odds = np.sqrt([0.4, 0.3])
    np.testing.assert_allclose(told[0].probabilities, [*odds / odds.sum(), 0, 0, 0])
    np.testing.assert_allclose(text.logprobs, table[0, list(text.ids)])
    np.testing.assert_array_equal(told[0].logits, table[0])


def test_on_step_receives_running_and_finished_beams():
    told = []
    found = beam_search(Chain(WAVES), [0], SamplingConfig(limit=5, eos=(2,)), 3, returned=3, on_step=told.append)
    assert [info.step for info in told] == list(range(len(told)))
    assert [info.logits.shape for info in told] == [(1, 9), *[(3, 9)] * (len(told) - 1)]
    for info in told:
        assert all(len(text.ids) == info.step + 1 and not text.finish_reason for text in info.running)
        assert [text.score for text in info.running] == sorted((text.score for text in info.running), reverse=True)
    assert list(told[-1].finished) == found


def test_draws_follow_the_odds_and_the_seed():
    settings = SamplingConfig(limit=4000, sampling=model.Sampling(seed=0))
    text = generate(Chain(np.tile(np.log([0.1, 0.6, 0.3]), (3, 1))), [0], settings, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(text.ids) / 4000, [0.1, 0.6, 0.3], atol=0.03)
    again = generate(Chain(np.tile(np.log([0.1, 0.6, 0.3]), (3, 1))), [0], settings, np.random.default_rng(0))
    assert again == text


def test_scores_of_given_tokens():
    np.testing.assert_allclose(score_tokens(GREEDY_TRAP[None], [[2, 0, 1]]), np.log([[0.4, 0.4, 0.05]]))
    np.testing.assert_array_equal(score_tokens(np.array([[0.0, 2000.0]], np.float32), [0]), np.float32([-2000]))
    with pytest.raises(DataError, match="token id 3"):
        score_tokens(GREEDY_TRAP, [0, 1, 3])
    with pytest.raises(DataError, match=r"ids \(2,\) for logits \(3,3\)"):
        score_tokens(GREEDY_TRAP, [0, 1])


@pytest.mark.parametrize("search", [generate, lambda *given: beam_search(*given, 2)], ids=["one", "beams"])
@pytest.mark.parametrize(("bad", "message"), [
    ([BLOCKED] * 5, "no finite logit at step 3"), ([np.nan] * 5, "no finite logit at step 3"),
    ([0, 0, np.nan, 0, 0], "logit nan at step 3"), ([0, 0, np.inf, 0, 0], "logit inf at step 3"),
])  # fmt: skip
def test_a_step_that_allows_no_choice(search, bad, message):
    table = np.full((5, 5), BLOCKED)
    table[[0, 1, 2], [1, 2, 3]] = 0.0
    table[3] = bad
    with pytest.raises(DataError, match=f"^{message}$"):
        search(Chain(table), [0], SamplingConfig(limit=9))


@pytest.mark.parametrize("search", [generate, lambda *given: beam_search(*given, 2)], ids=["one", "beams"])
def test_invalid_settings_are_refused(search):
    chain = Chain(np.zeros((3, 3)))
    with pytest.raises(DataError, match=r"^no finite logit at step 0$"):
        search(chain, [0], SamplingConfig(banned=(0, 1, 2)))
    with pytest.raises(DataError, match="token id 7"):
        search(chain, [0], SamplingConfig(forced_eos=7))
    with pytest.raises(DataError, match=r"prompt \(0,\)"):
        search(chain, [], SamplingConfig())
    with pytest.raises(UsageError, match="limit -1"):
        search(chain, [0], SamplingConfig(limit=-1))
    with pytest.raises(UsageError, match="repetition penalty 0"):
        search(chain, [0], SamplingConfig(repetition_penalty=0.0))
    with pytest.raises(UsageError, match="sample"):
        search(chain, [0], SamplingConfig(sampling=model.Sampling(seed=0)))


def test_invalid_numbers_of_beams_are_refused():
    chain = Chain(np.zeros((3, 3)))
    with pytest.raises(UsageError, match="beams 0"):
        beam_search(chain, [0], SamplingConfig(), 0)
    with pytest.raises(UsageError, match="3 texts of 2 beams"):
        beam_search(chain, [0], SamplingConfig(), 2, returned=3)
    assert beam_search(chain, [0], SamplingConfig(limit=1), 1)[0].ids == (0,)
