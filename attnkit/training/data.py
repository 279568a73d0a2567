"""Texts and sentence pairs as token ids, and their held-out part."""

from collections.abc import Sequence
from io import StringIO
from typing import NamedTuple, TypeVar

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model import Array
from attnkit.tokenizers import Tokenizer

Item = TypeVar("Item")
Piece = TypeVar("Piece", str, Array)


class SentencePair(NamedTuple):
    """A sentence and its translation, as ids that end with the end-of-text token."""

    source: list[int]
    target: list[int]


def encode_text(tokenizer: Tokenizer, text: str, name: str, first_line: int = 1) -> Array:
    """The ids of a text without the special tokens that the tokenizer adds.

    -> (T,) int64

    DataError for an empty text, and for a character that the vocabulary lacks; `name` is the file, `first_line` the
    number of the line in it that the text begins with.
    """
    if not text:
        raise DataError("empty text", name)
    ids = encode_words(tokenizer, text)
    if tokenizer.special.get("unk") in ids:
        for number, line in enumerate(StringIO(text, newline="\n"), start=first_line):
            check_known_tokens(tokenizer, line, number, name)
    return np.array(ids, np.int64)


def encode_line(tokenizer: Tokenizer, text: str, number: int, name: str, *, added: bool = False) -> list[int]:
    """The ids of a line of a file, with or without added special tokens.

    DataError names the line of a character that the vocabulary lacks.
    """
    ids = _encode(tokenizer, text) if added else encode_words(tokenizer, text)
    if tokenizer.special.get("unk") in ids:
        check_known_tokens(tokenizer, text, number, name)
    return ids


def encode_words(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text without the tokens that the tokenizer adds around it."""
    ids = _encode(tokenizer, text)
    added = _encode(tokenizer, "")
    starts = {tokenizer.special.get("bos"), tokenizer.special.get("cls")}
    first = next((count for count, id in enumerate(added) if id not in starts), len(added))
    return ids[first : len(ids) - (len(added) - first)]


def check_known_tokens(tokenizer: Tokenizer, line: str, number: int, name: str) -> None:
    """Raise DataError with the first character of a line that the vocabulary lacks."""
    unknown = tokenizer.special.get("unk")
    if unknown in _encode(tokenizer, line):
        lacking = [character for character in line if unknown in _encode(tokenizer, character)]
        token = f"{lacking[0]!r} is" if lacking else "a token is"
        raise DataError(f"line {number}: {token} not in the vocabulary", name)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, tokenizer.vocabulary).ids or []


def encode_pairs(
    tokenizers: tuple[Tokenizer, Tokenizer], pairs: Sequence[tuple[int, str, str]], eos: int, name: str
) -> list[SentencePair]:
    """Encode pairs of `parse_pairs` by their tokenizers, each side ended by `eos`.

    The tokens that a tokenizer adds are kept if it ends a text with `eos` itself. DataError names the line of a
    character that the vocabulary lacks.
    """
    ends = [_encode(tokenizer, "")[-1:] == [eos] for tokenizer in tokenizers]
    encoded = []
    for number, *texts in pairs:
        sides = zip(tokenizers, texts, ends, strict=True)
        rows = (encode_line(one, text, number, name, added=end) + [eos] * (not end) for one, text, end in sides)
        encoded.append(SentencePair(*rows))
    return encoded


def parse_share(text: str) -> float:
    """Read the held-out share of the data from a percentage or a number below 1.

    UsageError for anything else.

    >>> parse_share("5%"), parse_share("0.1"), parse_share("0")
    (0.05, 0.1, 0.0)
    """
    number = text.removesuffix("%")
    try:
        share = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"held-out part {text!r} (expected a percentage below 100, as 5%)")
    return share


def hold_out_end(text: Piece, share: float) -> tuple[Piece, Piece]:
    """Split characters or ids into what is trained on and the held-out end."""
    cut = len(text) - round(len(text) * share)
    return text[:cut], text[cut:]


def hold_out_every(items: Sequence[Item], share: float) -> tuple[list[Item], list[Item]]:
    """Hold out every n-th item; n is 1/share, rounded.

    >>> hold_out_every("abcdefg", 1 / 3)
    (['a', 'b', 'd', 'e', 'g'], ['c', 'f'])
    """
    every = round(1 / share) if share else len(items) + 1
    parts: tuple[list[Item], list[Item]] = [], []
    for number, item in enumerate(items, start=1):
        parts[number % every == 0].append(item)
    return parts
