"""The `Tokenizer` type, and vocabularies: tokens to ids and back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from attnkit.errors import DataError

UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "[unk]")
PADDING = ("[PAD]", "<pad>", "<PAD>", "[pad]")
MASK = ("[MASK]", "<mask>")


class Tokens(NamedTuple):
    """The tokens of a text or of a pair of texts.

    ids    None where the tokenizer has no vocabulary of its own
    types  segments: 0 for the tokens of the first text, 1 for those of the second; None where all are 0
    """

    spellings: list[str]
    ids: list[int] | None = None
    types: list[int] | None = None


class TokenPlaces(NamedTuple):
    """Where the tokens of a text, or of a pair of texts, are in it; offsets count characters.

    offsets   the first character of each token, and the one after its last
    words     the same of the word that the token is in
    parts     which text it is of, 0 or 1; None for a token that the tokenizer added
    subwords  whether it continues a word
    """

    offsets: list[tuple[int, int]]
    words: list[tuple[int, int]]
    parts: list[int | None]
    subwords: list[bool]


@dataclass(frozen=True)
class Tokenizer:
    """Functions from text to tokens and back.

    encode           (text, vocabulary) -> Tokens; that of a published folder also takes pair=TEXT
    list_vocabulary  () -> the tokens by id, called on first use; [] where the tokenizer has no vocabulary
    decode           ids -> text without special tokens; None where ids cannot be decoded
    special          ids of the special tokens it has: bos, eos, unk, sep, pad, cls, mask
    files            the files it was read from
    locate           (text, pair or None) -> TokenPlaces; None where tokens cannot be found in the text
    truncate         (text, pair or None, most) -> Tokens, at most so many; None where a text cannot be cut
    """

    encode: Callable[..., Tokens]
    list_vocabulary: Callable[[], list[str]] = list
    decode: Callable[[Sequence[int]], str] | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    locate: Callable[..., TokenPlaces] | None = None
    truncate: Callable[..., Tokens] | None = None

    @cached_property
    def vocabulary(self) -> list[str]:
        """The token of each id, "" for an unused id."""
        return self.list_vocabulary()


def distinct_tokens(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the different tokens of some texts, in the order of their first occurrence.

    >>> distinct_tokens([["the", "cat"], ["the", "dog"]])
    ['the', 'cat', 'dog']
    """
    return list(dict.fromkeys(token for text in texts for token in text))


def tokens_to_ids(tokens: Sequence[str], vocabulary: Mapping[str, int]) -> list[int]:
    """Return the ids of tokens; unknown ones get the id of the vocabulary's unknown token, DataError if it has none.

    >>> tokens_to_ids(["am", "zzz"], {"am": 0, "<unk>": 1})
    [0, 1]
    """
    unknown = next((vocabulary[token] for token in UNKNOWN if token in vocabulary), None)
    ids = [vocabulary.get(token, unknown) for token in tokens]
    if None in ids:
        at = ids.index(None)
        raise DataError(f"token {tokens[at]!r} at [{at}] is not in the vocabulary (which has no {UNKNOWN[0]})")
    return ids  # type: ignore[return-value]  # no id is None


def find_padding(vocabulary: Sequence[str]) -> str | None:
    """Return the padding token of a vocabulary, None where it has none."""
    return next((token for token in PADDING if token in vocabulary), None)
