"""Corrupted texts that a model learns to restore: masked words of BERT, spans of T5."""

from collections.abc import Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.model import Array
from attnkit.model.loss import IGNORE_INDEX
from attnkit.training.random_draws import DrawKey, draw_integers, draw_permutation, draw_uniform

MASKED_SHARE = 0.15  # of the words of BERT
NOISE_DENSITY, MEAN_SPAN = 0.15, 3.0  # of T5


def mask_words(ids: Array, mask: int, size: int, excluded: Sequence[int], key: DrawKey) -> tuple[Array, Array]:
    """Return ids with 15 % of the words replaced, and the original words as targets there, IGNORE_INDEX elsewhere.

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
    """Return which tokens of a text are noise: 15 % of them, in spans of 3 on average, the first span after a token.

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
        lengths[first::2] = _split_randomly(items, spans, key._replace(purpose=f"{key.purpose}: {first}"))
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def _split_randomly(items: int, parts: int, key: DrawKey) -> Array:
    """Return the sizes of non-empty parts of some items, every split equally probable: (parts,)."""
    cuts = np.sort(draw_permutation(items - 1, key)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [items]]))


def corrupt_spans(ids: Array, is_noise: Array, sentinels: Sequence[int], eos: int) -> tuple[Array, Array]:
    """Return the text with a sentinel for each span of noise, and the noise with a sentinel for each span between.

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
