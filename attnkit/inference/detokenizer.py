"""The words of a model: tokens spelled, texts put together and cut."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import tokenizers
from attnkit.errors import AttnkitError, UsageError
from attnkit.inference import text_inputs
from attnkit.inference.options import GenerationOptions
from attnkit.record import Array, Labels, row_labels, shared_labels
from attnkit.tokenizers import Tokenizer


class Detokenizer(NamedTuple):
    """The words of a model, as far as it has a tokenizer; `skipped` tokens at the start of a text say nothing."""

    tokenizer: Tokenizer | None
    size: int
    skipped: int = 0

    def words(self) -> list[str] | None:
        """The spelling of every id."""
        found = self.tokenizer.vocabulary[: self.size] if self.tokenizer else []
        return found + [""] * (self.size - len(found)) if found else None

    def spelled(self, ids: Sequence[int]) -> list[str]:
        """The spelling of each id; where that is not known, its number."""
        words = self.tokenizer.vocabulary if self.tokenizer else []
        return [words[word] if word < len(words) else str(word) for word in ids]

    @property
    def padding(self) -> str:
        """How padding is labelled: by the vocabulary's own padding token where it has one."""
        return (self.tokenizer and tokenizers.find_padding(self.tokenizer.vocabulary)) or tokenizers.PADDING[0]

    @property
    def joins(self) -> bool:
        """Whether it makes text of tokens."""
        return self.tokenizer is not None and self.tokenizer.decode is not None

    def text(self, ids: Sequence[int]) -> str:
        """The text of all the tokens so far, "" where it makes none."""
        return self.tokenizer.decode(ids[self.skipped :]) if self.tokenizer and self.tokenizer.decode else ""


def detokenizer_of(asked: GenerationOptions) -> Detokenizer:
    """The words of the model; AttnkitError where they are needed, or where its tokenizer is there and not whole."""
    checkpoint, config = asked.model_, asked.model_.config
    size, skipped = config.stack("decoder").vocab, 1 if config.encoder else 0
    try:
        side = "target" if config.encoder else "source"
        return Detokenizer(asked.tokenizer or text_inputs.tokenizer_of(checkpoint, side), size, skipped)
    except AttnkitError as error:
        needed = asked.score is not None or asked.stop or asked.emit == "text"
        none = isinstance(error, tokenizers.NoTokenizer | UsageError)  # no such files, or no library to read them
        if needed or not (none or asked.ids is not None or asked.emit):
            raise type(error)(f"{error.problem}; --ids FILE and --emit ids do without", error.name) from None
        return Detokenizer(None, size, skipped)


def common_prefix_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two sequences begin with alike.

    >>> common_prefix_length("there", "then"), common_prefix_length([1], [2])
    (3, 0)
    """
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                min(len(one), len(other)))  # fmt: skip


def fill_masks(ids: Array, guesses: Array, words: Sequence[str]) -> Array:
    """The tokens of a text, and where one is masked the guess.

    ids, guesses (..., T) -> (..., T)

    >>> fill_masks(np.array([0, 1]), np.array([2, 2]), ["the", "[MASK]", "cat"])
    array([0, 2])
    """
    return np.where(is_mask_token(ids, words), guesses, ids)


def is_mask_token(ids: Array, words: Sequence[str]) -> Array:
    """Which tokens of a text are masked: ids (..., T) -> (..., T) of booleans.

    >>> is_mask_token(np.array([0, 1]), ["the", "[MASK]", "cat"])
    array([False,  True])
    """
    return np.isin(ids, [at for at, word in enumerate(words) if word in tokenizers.MASK])


def join_rows(
    ids: Array,
    words: list[str],
    tokens: Labels | None,
    join: Callable[[Sequence[int]], str] | None,
    guessed: Array | None = None,
) -> str:
    """The chosen words of each row as a line of text; nothing is chosen after padding.

    join     how ids become text; None: their words with spaces between
    guessed  which of the ids are guesses, each to be seen, a special token too
    """
    if not words and ids.size:
        raise UsageError("--emit text needs words: --vocab FILE")
    rows = ids.reshape(math.prod(ids.shape[:-1]), ids.shape[-1]) if ids.ndim else ids.reshape(1, 1)
    shown = np.zeros(rows.shape, bool) if guessed is None else guessed.reshape(rows.shape)
    lines = []
    for at, row in enumerate(rows):
        here = [""] * len(row) if not tokens or shared_labels(tokens) else row_labels(tokens, at)
        real = [place for place, token in enumerate(here[: len(row)]) if token not in tokenizers.PADDING]
        kept = row[real].tolist()
        if join:
            lines.append(join_tokens(kept, shown[at][real], words, join))
        else:
            lines.append(" ".join(words[one] for one in kept))
    return "\n".join(lines)


def join_tokens(ids: Sequence[int], guessed: Array, words: Sequence[str], join: Callable[[Sequence[int]], str]) -> str:
    """The text of a row of ids, with the name of each guess that has no text of its own.

    >>> join_tokens([1, 0, 1], np.array([False, True, False]), ["[SEP]", "a"], lambda ids: "a" * sum(ids))
    'a [SEP] a'
    """
    parts, start = [], 0
    for at in map(int, np.flatnonzero(guessed)):
        if not join([ids[at]]):
            parts += [join(ids[start:at]), words[ids[at]]]
            start = at + 1
    return " ".join(filter(None, [*parts, join(ids[start:])]))
