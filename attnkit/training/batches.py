"""Batches drawn by seed and step: blocks of a text, pairs, masked words, spans.

Random numbers depend on seed, purpose and step only, so that a run continues at any step without a state.

B  batch, T  tokens of a block or of the longest target, S  tokens of the longest source
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model import Array
from attnkit.model.formulas.loss import IGNORE_INDEX
from attnkit.training.data import Item, SentencePair

MASKED_SHARE = 0.15  # of the words of BERT
NOISE_DENSITY, MEAN_SPAN = 0.15, 3.0  # of T5


class DrawKey(NamedTuple):
    """What random numbers depend on: seed, purpose, and step, epoch or layer."""

    seed: int
    purpose: str
    step: int = 0


def draw_uniform(count: int, key: DrawKey) -> Array:
    """Draw numbers in [0, 1), each a multiple of 2^-53.

    -> (count,) float64

    The generator is Philox 4x64 (Salmon et al. 2011) with the key [seed, SHA-256 of the purpose] at counter step 2^192.

    >>> draws = [draw_uniform(2, DrawKey(1, "blocks", step)).tolist() for step in (7, 8, 7)]
    >>> draws[0] == draws[2], draws[0] == draws[1]
    (True, False)
    """
    import hashlib

    purpose = int.from_bytes(hashlib.sha256(key.purpose.encode()).digest()[:8], "big")
    counter = np.array([0, 0, 0, key.step], np.uint64)
    bits = np.random.Philox(key=np.array([key.seed, purpose], np.uint64), counter=counter).random_raw(count)
    uniform: Array = (bits >> np.uint64(11)) * 2.0**-53
    return uniform


def draw_integers(below: int, count: int, key: DrawKey) -> Array:
    """Draw integers from 0 to below - 1: (count,) int64."""
    return (draw_uniform(count, key) * below).astype(np.int64)


def draw_permutation(count: int, key: DrawKey) -> Array:
    """Draw the numbers 0 to count - 1 in random order: (count,) int64."""
    return np.argsort(draw_uniform(count, key), kind="stable")


def mask_words(ids: Array, mask: int, size: int, excluded: Sequence[int], key: DrawKey) -> tuple[Array, Array]:
    """Replace 15 % of the words; the targets are the original words there.

    ids (B, T) -> (B, T), (B, T)

    Of the chosen words 80 % become `mask`, 10 % a random one of `size` words, and 10 % remain. `excluded` ids are never
    chosen; at least one word is. Source: Devlin et al. 2019, section 3.1.

    >>> ids, targets = mask_words(np.array([[1, 7, 8, 2]]), 3, 10, [1, 2, 3], DrawKey(0, "masks"))
    >>> bool(((targets == -100) | (targets == [[1, 7, 8, 2]])).all()), targets[0, [0, 3]].tolist()
    (True, [-100, -100])
    """
    draws = draw_uniform(ids.size, key).reshape(ids.shape)
    draws[np.isin(ids, excluded)] = 1
    chosen = (draws < MASKED_SHARE) | ((draws == draws.min()) & (draws < 1))
    kinds = draw_uniform(ids.size, key._replace(purpose=f"{key.purpose}: kinds")).reshape(ids.shape)
    words = draw_integers(size, ids.size, key._replace(purpose=f"{key.purpose}: words")).reshape(ids.shape)
    inputs = np.where(chosen & (kinds < 0.8), mask, ids)
    inputs = np.where(chosen & (kinds >= 0.8) & (kinds < 0.9), words, inputs)
    return inputs, np.where(chosen, ids, IGNORE_INDEX)


def noise_spans(length: int, key: DrawKey) -> Array:
    """Choose 15 % of the tokens of a text as noise, in spans of 3 on average.

    -> (length,) boolean

    Source: Raffel et al. 2020, section 3.1.4; random_spans_noise_mask of the t5 library, whose segments are
    equally probable too. A text of fewer than two tokens has no noise.

    >>> is_noise = noise_spans(40, DrawKey(0, "spans"))
    >>> int(is_noise.sum()), int((np.diff(is_noise.astype(int)) == 1).sum())
    (6, 2)
    """
    if length < 2:
        return np.zeros(length, bool)
    noise = min(max(round(length * NOISE_DENSITY), 1), length - 1)
    spans = min(max(round(noise / MEAN_SPAN), 1), length - noise)
    lengths = np.empty(2 * spans, np.int64)
    for first, items in ((0, length - noise), (1, noise)):
        order = draw_permutation(items - 1, key._replace(purpose=f"{key.purpose}: {first}"))
        cuts = np.sort(order[: spans - 1]) + 1
        lengths[first::2] = np.diff([0, *cuts, items])
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def corrupt_spans(ids: Array, is_noise: Array, sentinels: Sequence[int], eos: int) -> tuple[Array, Array]:
    """Replace each span of noise by a sentinel; in the targets, each span between.

    ids (L,), is_noise (L,) -> (S,), (T,), both ended by `eos`

    DataError for more spans than sentinels. Source: Raffel et al. 2020, figure 2.

    >>> ids, is_noise = np.array([5, 6, 7, 8, 9]), np.array([0, 1, 1, 0, 0], bool)
    >>> [part.tolist() for part in corrupt_spans(ids, is_noise, [99, 98], 1)]
    [[5, 99, 8, 9, 1], [99, 6, 7, 98, 1]]
    """
    return _replace_spans(ids, is_noise, sentinels, eos), _replace_spans(ids, ~is_noise, sentinels, eos)


def _replace_spans(ids: Array, is_replaced: Array, sentinels: Sequence[int], eos: int) -> Array:
    starts = is_replaced & ~np.concatenate([[False], is_replaced[:-1]])
    count = int(starts.sum())
    if count > len(sentinels):
        raise DataError(f"{count} spans, and the vocabulary has {len(sentinels)} sentinels")
    replaced = ids.copy()
    replaced[starts] = sentinels[:count]
    return np.append(replaced[starts | ~is_replaced], eos)


POOL = 64  # batches whose pairs are sorted by length together


class Batch(NamedTuple):
    """The inputs of a step, and what the model is to predict.

    ids          (B, T) of the decoder, or of an encoder without one; of a model of images their normalized pixels
                 (B, C, height, width)
    targets      (B, T) the id to predict at each place; IGNORE_INDEX if there is none
    source       (B, S) ids of the encoder of a model with both
    source_mask  (B, S) boolean, True = no padding
    mask         (B, T) the same of texts with labels; the targets of labels are (B,)
    """

    ids: Array
    targets: Array
    source: Array | None = None
    source_mask: Array | None = None
    mask: Array | None = None


class SpecialIds(NamedTuple):
    """The special tokens of batches; -1 for tokens that the model lacks.

    sentinels  the tokens that replace spans, in their order
    """

    pad: int = -1
    eos: int = -1
    start: int = -1
    cls: int = -1
    sep: int = -1
    mask: int = -1
    sentinels: tuple[int, ...] = ()


def draw_rows(ids: Array, rows: int, length: int, key: DrawKey) -> Array:
    """Parts of a text from random places: ids (N,) -> (rows, length)."""
    starts = draw_integers(len(ids) - length + 1, rows, key)
    parts: Array = ids[starts[:, None] + np.arange(length)]
    return parts


def block_batch(ids: Array, batch: int, block: int, seed: int, step: int) -> Batch:
    """Random blocks of a text; the targets are the ids one place later.

    ids (N,) with N > T -> ids (B, T), targets (B, T)

    >>> one = block_batch(np.arange(100), 1, 4, seed=0, step=1)
    >>> (one.targets - one.ids).tolist()
    [[1, 1, 1, 1]]
    """
    rows = draw_rows(ids, batch, block + 1, DrawKey(seed, "blocks", step))
    return Batch(rows[:, :-1], rows[:, 1:])


def consecutive_blocks(ids: Array, batch: int, block: int) -> Iterator[Batch]:
    """Batches of consecutive blocks: each token after the first is a target once.

    The last block may be shorter, and is then a batch by itself.

    >>> [one.targets.tolist() for one in consecutive_blocks(np.arange(8), 2, 3)]
    [[[1, 2, 3], [4, 5, 6]], [[7]]]
    """
    whole = (len(ids) - 1) // block
    rows = ids[np.arange(whole)[:, None] * block + np.arange(block + 1)]
    for first in range(0, whole, batch):
        part = rows[first : first + batch]
        yield Batch(part[:, :-1], part[:, 1:])
    if (len(ids) - 1) % block:
        rest = ids[None, whole * block :]
        yield Batch(rest[:, :-1], rest[:, 1:])


Measure = Callable[[Item], list[int]]
Collate = Callable[[list[Item]], Batch]


class LengthSampler(Generic[Item]):
    """Batches of items of similar lengths by step, every item once an epoch.

    measure  item -> its lengths, by which items are sorted
    collate  items -> their batch

    >>> pairs = [SentencePair([5, 2], [6, 7, 2]), SentencePair([5, 5, 2], [6, 2])]
    >>> sampler = LengthSampler(pairs, pair_lengths, lambda own: pad_pairs(own, SpecialIds(pad=0, start=0)), 1, seed=1)
    >>> sorted(sampler.batch(step).ids.tolist() for step in (1, 2))
    [[[0, 6]], [[0, 6, 7]]]
    """

    def __init__(
        self, items: Sequence[Item], measure: Measure[Item], collate: Collate[Item], size: int, seed: int
    ) -> None:
        self.steps_per_epoch = -(-len(items) // size)
        self._items, self._collate, self._size, self._seed = items, collate, size, seed
        self._lengths = np.array([measure(item) for item in items])
        self._epoch, self._batches = -1, list[Array]()

    def batch(self, step: int) -> Batch:
        epoch, number = divmod(step - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, group_by_length(self._lengths, self._size, self._seed, epoch)
        return self._collate([self._items[row] for row in self._batches[number]])


def pair_lengths(pair: SentencePair) -> list[int]:
    return [len(pair.target), len(pair.source)]


def group_by_length(lengths: Array, size: int, seed: int, epoch: int) -> list[Array]:
    """The items of each batch of an epoch, of similar lengths, in random order.

    lengths (N, 2) or (N, 1) -> arrays of at most `size` numbers of items

    The items are shuffled, sorted by length within each 64 batches, and the batches are shuffled.

    >>> batches = group_by_length(np.array([[9, 1], [1, 1], [9, 2], [1, 2]]), 2, 0, 0)
    >>> sorted(sorted(batch.tolist()) for batch in batches)
    [[0, 2], [1, 3]]
    """
    order = draw_permutation(len(lengths), DrawKey(seed, "pairs", epoch))
    batches = []
    for first in range(0, len(order), POOL * size):
        pool = order[first : first + POOL * size]
        pool = pool[np.lexsort(lengths[pool].T[::-1])]
        batches += [pool[start : start + size] for start in range(0, len(pool), size)]
    return [batches[index] for index in draw_permutation(len(batches), DrawKey(seed, "pair batches", epoch))]


def pad_pairs(pairs: Sequence[SentencePair], special: SpecialIds) -> Batch:
    """Pad pairs for teacher forcing: the decoder reads all targets but the last.

    >>> one = pad_pairs([SentencePair([5, 2], [6, 7, 2]), SentencePair([5, 5, 2], [6, 2])], SpecialIds(pad=0, start=0))
    >>> one.ids.tolist(), one.targets.tolist()
    ([[0, 6, 7], [0, 6, 2]], [[6, 7, 2], [6, 2, -100]])
    >>> one.source.tolist(), one.source_mask.tolist()
    ([[5, 2, 0], [5, 5, 2]], [[True, True, False], [True, True, True]])
    """
    source = pad_ids([pair.source for pair in pairs], special.pad)
    targets = pad_ids([pair.target for pair in pairs], IGNORE_INDEX)
    lengths = np.array([len(pair.source) for pair in pairs])
    return Batch(shift_right(targets, special), targets, source, np.arange(source.shape[1]) < lengths[:, None])


def shift_right(targets: Array, special: SpecialIds) -> Array:
    """The ids that a decoder reads: targets one place later, after the start token."""
    starts = np.full((len(targets), 1), special.start, targets.dtype)
    ids = np.concatenate([starts, targets[:, :-1]], axis=1)
    return np.where(ids == IGNORE_INDEX, special.pad, ids)


def pad_ids(rows: Sequence[Sequence[int]], value: int) -> Array:
    """Pad rows at their ends with a value to one array."""
    width = max(map(len, rows))
    return np.array([[*row, *[value] * (width - len(row))] for row in rows], np.int64)


def masked_batch(ids: Array, batch: int, block: int, special: SpecialIds, seed: int, step: int, *, size: int) -> Batch:
    """Blocks of a text between [CLS] and [SEP], with words masked for BERT.

    ids (N,) with N > T - 2 -> ids (B, T), targets (B, T)

    UsageError for a block with no place for a word.

    >>> special = SpecialIds(cls=1, sep=2, mask=3)
    >>> one = masked_batch(np.arange(9, 90), 2, 8, special, 0, 1, size=90)
    >>> one.ids.shape, one.ids[:, 0].tolist(), one.ids[:, -1].tolist()
    ((2, 8), [1, 1], [2, 2])
    """
    if block < 3:
        raise UsageError(f"block {block} (expected 3 or more: a word between [CLS] and [SEP])")
    words = draw_rows(ids, batch, block - 2, DrawKey(seed, "blocks", step))
    rows = np.pad(words, ((0, 0), (1, 1)))
    rows[:, 0], rows[:, -1] = special.cls, special.sep
    excluded = [id for id in (special.cls, special.sep, special.pad, special.mask) if id >= 0]
    return Batch(*mask_words(rows, special.mask, size, excluded, DrawKey(seed, "masks", step)))


def span_batch(ids: Array, batch: int, block: int, special: SpecialIds, seed: int, step: int) -> Batch:
    """Blocks of a text with spans replaced by sentinels for T5; they are the targets.

    ids (N,) with N > block -> source (B, S), ids (B, T), targets (B, T)

    >>> special = SpecialIds(pad=0, eos=1, start=0, sentinels=(99, 98))
    >>> one = span_batch(np.arange(10, 90), 2, 16, special, seed=0, step=1)
    >>> one.source.shape, one.targets.shape
    ((2, 16), (2, 4))
    """
    rows = draw_rows(ids, batch, block, DrawKey(seed, "blocks", step))
    pairs = []
    for number, row in enumerate(rows):
        is_noise = noise_spans(len(row), DrawKey(seed, f"spans of row {number}", step))
        pairs.append(corrupt_spans(row, is_noise, special.sentinels, special.eos))
    source, targets = (np.stack(part) for part in zip(*pairs, strict=True))
    return Batch(shift_right(targets, special), targets, source, np.ones(source.shape, bool))
