"""Data and batches: targets one place later, the same batch at the same step, and errors that name the line."""

import numpy as np
import pytest

from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import DataError, UsageError
from attnkit.inputs.text_columns import parse_pairs
from attnkit.model.formulas.loss import IGNORE_INDEX
from attnkit.training import batches, data
from attnkit.training.batches import (
    DrawKey,
    LengthSampler,
    SpecialIds,
    block_batch,
    consecutive_blocks,
    draw_integers,
    draw_uniform,
    masked_batch,
    pad_pairs,
    pair_lengths,
    span_batch,
)
from attnkit.training.corpus import parse_labelled
from attnkit.training.data import SentencePair, encode_pairs, encode_text
from attnkit.training.folder import write_folder
from attnkit.training.vocabulary import parse_kind, train_tokenizer

TEXT = np.arange(1000, 1500)
BERT = SpecialIds(pad=0, cls=2, sep=3, mask=4)
T5 = SpecialIds(pad=0, eos=1, start=0, sentinels=tuple(range(199, 99, -1)))


def sample_pairs(pairs, size):
    special = SpecialIds(pad=0, start=0)
    return LengthSampler(pairs, pair_lengths, lambda own: pad_pairs(own, special), size, seed=1)


def tokenizer(family, text, folder):
    write_folder(str(folder), train_tokenizer(parse_kind("chars"), family, [text], "text.txt"))
    return open_tokenizer(str(folder))


def pairs_of(count):
    rng = np.random.default_rng(4)
    return [
        SentencePair([number + 10] * rng.integers(1, 9), [number + 10] * rng.integers(1, 9)) for number in range(count)
    ]


# random numbers


def test_draws_never_change():
    """A run is resumed, and repeated, with the numbers of the release that began it."""
    assert draw_integers(1000, 5, DrawKey(7, "blocks", 3)).tolist() == DRAWS
    assert draw_uniform(1, DrawKey(0, "blocks")).tolist() == [UNIFORM]


DRAWS, UNIFORM = [496, 400, 857, 199, 639], 0.5277594520378874


def test_draws_are_uniform_and_differ_by_seed_purpose_and_step():
    keys = [
        DrawKey(0, "a", 0),
        DrawKey(1, "a", 0),
        DrawKey(0, "b", 0),
        DrawKey(0, "a", 1),
        DrawKey(2**64 - 1, "a", 2**40),
    ]
    draws = np.array([draw_uniform(4000, key) for key in keys])
    assert len(np.unique(draws)) == draws.size
    assert abs(draws.mean(axis=1) - 0.5).max() < 0.02 and abs(draws.var(axis=1) - 1 / 12).max() < 0.01
    assert ((draws >= 0) & (draws < 1)).all()


# blocks of a text


def test_targets_are_the_ids_one_place_later():
    batch = block_batch(TEXT, 4, 8, seed=1, step=5)
    assert batch.ids.shape == batch.targets.shape == (4, 8)
    np.testing.assert_array_equal(batch.targets, batch.ids + 1)
    again = block_batch(TEXT, 4, 8, seed=1, step=5)
    np.testing.assert_array_equal(batch.ids, again.ids)
    assert (block_batch(TEXT, 4, 8, seed=1, step=6).ids != batch.ids).any()
    assert (block_batch(TEXT, 4, 8, seed=2, step=5).ids != batch.ids).any()


def test_every_place_of_the_text_is_drawn():
    short = TEXT[:6]
    starts = {int(block_batch(short, 1, 4, 0, step).ids[0, 0]) for step in range(50)}
    assert starts == {1000, 1001}
    np.testing.assert_array_equal(block_batch(TEXT[:5], 3, 4, 0, 1).targets, [TEXT[1:5]] * 3)


@pytest.mark.parametrize(("length", "batch", "block"), [(500, 3, 7), (9, 2, 8), (9, 2, 4), (2, 1, 5), (10, 9, 3)])
def test_consecutive_blocks_predict_each_token_once(length, batch, block):
    ids = TEXT[:length]
    parts = list(consecutive_blocks(ids, batch, block))
    np.testing.assert_array_equal(np.concatenate([part.targets.reshape(-1) for part in parts]), ids[1:])
    for part in parts:
        assert len(part.ids) <= batch and part.ids.shape[1] <= block
        np.testing.assert_array_equal(part.targets, part.ids + 1)


def test_the_ids_of_a_text_are_without_the_tokens_around_it(tmp_path):
    for family in ("gpt2", "llama", "bert", "t5"):
        one = tokenizer(family, "abc\n", tmp_path / family)
        ids = encode_text(one, "cab\n", "text.txt")
        assert [one.vocabulary[id] for id in ids] == ["c", "a", "b", "\n"]


def test_a_character_that_the_vocabulary_lacks_and_an_empty_text(tmp_path):
    one = tokenizer("gpt2", "abc\n", tmp_path)
    with pytest.raises(DataError, match=r"tales.txt: line 2: 'é' is not in the vocabulary"):
        encode_text(one, "abc\ncabéb\n", "tales.txt")
    with pytest.raises(DataError, match=r"tales.txt: empty text"):
        encode_text(one, "", "tales.txt")


# held-out parts


def test_held_out_parts():
    train, held_out = data.hold_out_end(TEXT, data.parse_share("5%"))
    assert len(held_out) == 25 and np.concatenate([train, held_out]).tolist() == TEXT.tolist()
    assert len(data.hold_out_end(TEXT, 0)[1]) == 0
    train, held_out = data.hold_out_every(range(100), 0.05)
    assert held_out == [19, 39, 59, 79, 99] and sorted([*train, *held_out]) == list(range(100))
    assert data.hold_out_every(range(3), 0) == ([0, 1, 2], [])


@pytest.mark.parametrize("text", ["100%", "1", "-5%", "five", "", "nan"])
def test_a_share_that_is_none(text):
    with pytest.raises(UsageError, match=r"held-out part .*expected a percentage below 100"):
        data.parse_share(text)


# sentence pairs


def test_every_pair_is_in_one_batch_an_epoch_and_epochs_differ():
    sampler = sample_pairs(pairs_of(50), 4)
    assert sampler.steps_per_epoch == 13
    epochs = [[sampler.batch(1 + epoch * 13 + step) for step in range(13)] for epoch in (0, 1)]
    for epoch in epochs:
        firsts = [int(row[0]) for batch in epoch for row in batch.source]
        assert sorted(firsts) == list(range(10, 60))
    orders = [[batch.source[:, 0].tolist() for batch in epoch] for epoch in epochs]
    assert orders[0] != orders[1]
    resumed = sample_pairs(pairs_of(50), 4)
    np.testing.assert_array_equal(resumed.batch(17).ids, sampler.batch(17).ids)


def test_pairs_of_a_batch_have_similar_lengths():
    pairs = pairs_of(256)
    sampler = sample_pairs(pairs, 8)
    all_batches = [sampler.batch(step) for step in range(1, 33)]
    padded = sum(int((batch.targets == IGNORE_INDEX).sum()) for batch in all_batches)
    assert padded < 0.05 * sum(len(pair.target) for pair in pairs)


def test_teacher_forcing():
    batch = batches.pad_pairs(
        [SentencePair([5, 6, 1], [7, 1]), SentencePair([5, 1], [7, 8, 9, 1])], SpecialIds(pad=0, eos=1, start=2)
    )
    assert batch.source.tolist() == [[5, 6, 1], [5, 1, 0]]
    assert batch.source_mask.tolist() == [[True] * 3, [True, True, False]]
    assert batch.targets.tolist() == [[7, 1, IGNORE_INDEX, IGNORE_INDEX], [7, 8, 9, 1]]
    assert batch.ids.tolist() == [[2, 7, 1, 0], [2, 7, 8, 9]]


def test_pairs_are_ended_once(tmp_path):
    one = tokenizer("marian", "abc", tmp_path)
    (pair,) = encode_pairs((one, one), [(1, "ab", "c")], one.special["eos"], "pairs.tsv")
    assert [one.vocabulary[id] for id in pair.source] == ["a", "b", "</s>"]
    assert [one.vocabulary[id] for id in pair.target] == ["c", "</s>"]
    with pytest.raises(DataError, match=r"pairs.tsv: line 7: 'x' is not in the vocabulary"):
        encode_pairs((one, one), [(7, "ab", "cx")], one.special["eos"], "pairs.tsv")


def test_labelled_lines_end_with_a_newline_alone():
    lines = parse_labelled("good\tone\u2028two\x0cthree\n\nbad\tfour\n", "labels.tsv")
    assert lines == [(1, "good", "one\u2028two\x0cthree"), (3, "bad", "four")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nc\n", r"line 2: 1 column \(expected source, tab, target\)"),
        ("a\tb\nc\t \n", "line 2: no target after the tab"),
        ("\tb\n", "line 1: no source before the tab"),
        ("a\tb\tc\n", "line 1: 3 columns"),
        ("\n \n", "no pairs"),
        ("", "no pairs"),
    ],
)
def test_pairs_without_a_half(text, message):
    with pytest.raises(DataError, match=f"pairs.tsv: {message}"):
        parse_pairs(text, "pairs.tsv")


# masked words


def test_masked_words_are_those_of_bert():
    batch = masked_batch(TEXT, 200, 50, BERT, seed=3, step=1, size=2000)
    ids, targets = batch.ids, batch.targets
    assert (ids[:, 0] == BERT.cls).all() and (ids[:, -1] == BERT.sep).all()
    chosen = targets != IGNORE_INDEX
    assert not chosen[:, [0, -1]].any()
    assert chosen[:, 1:-1].mean() == pytest.approx(0.15, abs=0.01)
    kinds = [(ids == BERT.mask)[chosen].mean(), (ids == targets)[chosen].mean()]
    assert kinds == pytest.approx([0.8, 0.1], abs=0.03)
    rows = np.where(chosen, targets, ids)[:, 1:-1]
    np.testing.assert_array_equal(np.diff(rows), 1)  # the blocks of the text, once the targets are put back


def test_at_least_one_word_is_masked():
    for step in range(30):
        assert (masked_batch(TEXT, 1, 3, BERT, 0, step, size=2000).targets != IGNORE_INDEX).sum() == 1
    with pytest.raises(UsageError, match="block 2"):
        masked_batch(TEXT, 1, 2, BERT, 0, 1, size=2000)


# spans


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20, 64, 512])
def test_noise_has_the_density_and_the_spans_of_t5(length):
    masks = np.array([batches.noise_spans(length, DrawKey(0, "spans", step)) for step in range(40)])
    noise = masks.sum(axis=1)
    expected = min(max(round(length * 0.15), 1), length - 1)
    assert (noise == expected).all()
    spans = (masks[:, 1:] & ~masks[:, :-1]).sum(axis=1)
    if length > 1:
        assert (spans == max(round(expected / 3), 1)).all() and not masks[:, 0].any() and masks[:, -1].all()


def test_the_text_can_be_put_together_from_source_and_targets():
    batch = span_batch(TEXT, 6, 64, T5, seed=2, step=9)
    for source, target in zip(batch.source.tolist(), batch.targets.tolist(), strict=True):
        assert source[-1] == target[-1] == T5.eos
        spans, key = {}, None
        for id in target[:-1]:
            key = id if id in T5.sentinels else key
            spans.setdefault(key, []).extend([] if id == key else [id])
        assert list(spans) == list(T5.sentinels[: len(spans)])
        restored = [id for one in source[:-1] for id in spans.get(one, [one])]
        np.testing.assert_array_equal(np.diff(restored), 1)
        assert len(restored) == 64
    np.testing.assert_array_equal(batch.ids[:, 1:], batch.targets[:, :-1])
    assert (batch.ids[:, 0] == T5.start).all() and batch.source_mask.all()
    again = span_batch(TEXT, 6, 64, T5, seed=2, step=9)
    np.testing.assert_array_equal(again.targets, batch.targets)


def test_the_example_of_the_t5_paper():
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    is_noise = np.array([word in ("for", "inviting", "last") for word in words])
    source, targets = batches.corrupt_spans(np.arange(len(words)), is_noise, [90, 91, 92], 99)
    names = dict(enumerate(words)) | {90: "<X>", 91: "<Y>", 92: "<Z>", 99: "</s>"}
    assert " ".join(names[id] for id in source) == "Thank you <X> me to your party <Y> week </s>"
    # the noise is between the rest of the text, each part of which has a sentinel
    assert " ".join(names[id] for id in targets) == "<X> for inviting <Y> last <Z> </s>"


def test_too_few_sentinels():
    with pytest.raises(DataError, match="2 spans, and the vocabulary has 1 sentinels"):
        batches.corrupt_spans(np.arange(5), np.array([0, 1, 0, 1, 0], bool), [9], 1)
