"""Turn token ids into token strings and text."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import tokenizers
from attnkit.errors import UsageError
from attnkit.records import Array, Labels, row_labels, shared_labels
from attnkit.tokenizers import Tokenizer


class Detokenizer(NamedTuple):
    """The tokenizer of a model, if it has one, in the direction from ids to text.

    size     how many ids the model has
    skipped  tokens at the start of a text that are no part of it: the start token of a decoder
    """

    tokenizer: Tokenizer | None
    size: int
    skipped: int = 0

    def words(self) -> list[str] | None:
        """The token string of every id of the model, None without a tokenizer."""
        vocabulary = self.tokenizer.vocabulary[: self.size] if self.tokenizer else []
        return vocabulary + [""] * (self.size - len(vocabulary)) if vocabulary else None

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The token string of each id; its number if that is unknown."""
        words = self.tokenizer.vocabulary if self.tokenizer else []
        return [words[word] if word < len(words) else str(word) for word in ids]

    @property
    def padding(self) -> str:
        """The label of padding: the padding token of the vocabulary if it has one."""
        return (self.tokenizer and tokenizers.find_padding(self.tokenizer.vocabulary)) or tokenizers.PADDING[0]

    @property
    def can_decode(self) -> bool:
        """Whether ids can be decoded to text."""
        return self.tokenizer is not None and self.tokenizer.decode is not None

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, "" if they cannot be decoded."""
        return self.tokenizer.decode(ids[self.skipped :]) if self.tokenizer and self.tokenizer.decode else ""


def common_prefix_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many items two sequences share at their start.

    >>> common_prefix_length("there", "then"), common_prefix_length([1], [2])
    (3, 0)
    """
    return next((at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]),
                min(len(a), len(b)))  # fmt: skip


def fill_masks(ids: Array, guesses: Array, words: Sequence[str]) -> Array:
    """The ids of a text with the guess in place of each mask token.

    ids, guesses (..., T) -> (..., T)

    >>> fill_masks(np.array([0, 1]), np.array([2, 2]), ["the", "[MASK]", "cat"])
    array([0, 2])
    """
    return np.where(is_mask_token(ids, words), guesses, ids)


def is_mask_token(ids: Array, words: Sequence[str]) -> Array:
    """Which tokens are mask tokens: ids (..., T) -> (..., T) of booleans.

    >>> is_mask_token(np.array([0, 1]), ["the", "[MASK]", "cat"])
    array([False,  True])
    """
    return np.isin(ids, [at for at, word in enumerate(words) if word in tokenizers.MASK])


def join_rows(
    ids: Array,
    words: list[str],
    tokens: Labels | None,
    join: Callable[[Sequence[int]], str] | None,
    is_guess: Array | None = None,
) -> str:
    """Each row of ids as a line of text, without its padding.

    join      decode ids to text; None: their token strings with spaces between
    is_guess  which ids are guesses: they are written even if they are special tokens
    """
    if not words and ids.size:
        raise UsageError("--emit text needs words: --vocab FILE")
    rows = ids.reshape(math.prod(ids.shape[:-1]), ids.shape[-1]) if ids.ndim else ids.reshape(1, 1)
    guesses = np.zeros(rows.shape, bool) if is_guess is None else is_guess.reshape(rows.shape)
    lines = []
    for at, row in enumerate(rows):
        names = [""] * len(row) if not tokens or shared_labels(tokens) else row_labels(tokens, at)
        real = [place for place, name in enumerate(names[: len(row)]) if name not in tokenizers.PADDING]
        unpadded = row[real].tolist()
        if join:
            lines.append(join_tokens(unpadded, guesses[at][real], words, join))
        else:
            lines.append(" ".join(words[id] for id in unpadded))
    return "\n".join(lines)


def join_tokens(ids: Sequence[int], is_guess: Array, words: Sequence[str], join: Callable[[Sequence[int]], str]) -> str:
    """Decode a row of ids; a guess that decodes to no text is its token string.

    >>> join_tokens([1, 0, 1], np.array([False, True, False]), ["[SEP]", "a"], lambda ids: "a" * sum(ids))
    'a [SEP] a'
    """
    parts, start = [], 0
    for at in map(int, np.flatnonzero(is_guess)):
        if not join([ids[at]]):
            parts += [join(ids[start:at]), words[ids[at]]]
            start = at + 1
    return " ".join(filter(None, [*parts, join(ids[start:])]))
