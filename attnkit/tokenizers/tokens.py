"""What a tokenizer is, and how tokens are numbered by a vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from attnkit.errors import DataError

UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "[unk]")
PADDING = ("[PAD]", "<pad>", "<PAD>", "[pad]")
MASK = ("[MASK]", "<mask>")


class Tokens(NamedTuple):
    """One text, or a pair, cut into tokens: their spellings; ids and types where the tokenizer gives them itself.

    types  0 for the tokens of the first text, 1 for those of the second
    """

    spellings: list[str]
    ids: list[int] | None = None
    types: list[int] | None = None


@dataclass(frozen=True)
class Tokenizer:
    """A way to cut a text, and to put it together again where its ids are its own.

    encode   (text, known words) -> Tokens; that of a published folder also takes pair=TEXT
    spell    the vocabulary that its own ids index, made when it is first asked for; [] where it has none
    decode   ids -> text, special tokens left out; None where there is no way back
    special  ids of the special tokens it has: bos, eos, unk, sep, pad, cls, mask
    files    what it was read from, where that is a folder
    """

    encode: Callable[..., Tokens]
    spell: Callable[[], list[str]] = list
    decode: Callable[[Sequence[int]], str] | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @cached_property
    def vocabulary(self) -> list[str]:
        """The spelling of each of its own ids, "" for an id that stands for nothing."""
        return self.spell()


def distinct_tokens(texts: Sequence[Sequence[str]]) -> list[str]:
    """The different tokens of some texts, in the order they first appear.

    >>> distinct_tokens([["the", "cat"], ["the", "dog"]])
    ['the', 'cat', 'dog']
    """
    return list(dict.fromkeys(token for text in texts for token in text))


def tokens_to_ids(tokens: Sequence[str], numbers: Mapping[str, int]) -> list[int]:
    """Ids of tokens; an unknown one gets the id of the vocabulary's unknown token, or is an error.

    >>> tokens_to_ids(["am", "zzz"], {"am": 0, "<unk>": 1})
    [0, 1]
    """
    unknown = next((numbers[word] for word in UNKNOWN if word in numbers), None)
    ids = [numbers.get(token, unknown) for token in tokens]
    if None in ids:
        at = ids.index(None)
        raise DataError(f"token {tokens[at]!r} at [{at}] is not in the vocabulary (which has no {UNKNOWN[0]})")
    return [number for number in ids if number is not None]


def find_padding(vocabulary: Sequence[str]) -> str | None:
    """The vocabulary's own padding token, None where it has none."""
    return next((word for word in PADDING if word in vocabulary), None)
