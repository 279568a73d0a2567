"""Text to tokens and ids: words and characters built in, tokenizer.json through the tokenizers library."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from attnkit.errors import DataError, UsageError

UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "[unk]")
PADDING = ("[PAD]", "<pad>", "<PAD>", "[pad]")


class Tokens(NamedTuple):
    """One text cut into tokens: their spellings, and their ids where the tokenizer numbers them itself."""

    spellings: list[str]
    ids: list[int] | None = None


class Tokenizer(NamedTuple):
    """A way to cut a text, given the words that are known, and the vocabulary that its own ids index, if it has one."""

    encode: Callable[[str, Sequence[str]], Tokens]
    vocabulary: list[str]


def words(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
    """Words and single punctuation marks, after Unicode NFC; `<eos>` and `[PAD]` are whole where they are known.

    >>> words("The cat's mat.").spellings
    ['The', 'cat', "'", 's', 'mat', '.']
    >>> words("a student <eos>", ["<eos>"]).spellings
    ['a', 'student', '<eos>']
    """
    special = [re.escape(word) for word in vocabulary if word[:1] in "<[" and word[-1:] in ">]" and len(word) > 2]
    return Tokens(re.findall("|".join([*special, r"\w+|[^\w\s]"]), unicodedata.normalize("NFC", text)))


def chars(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
    """Code points, after Unicode NFC; spaces count, line ends too.

    >>> chars("a b").spellings
    ['a', ' ', 'b']
    """
    return Tokens(list(unicodedata.normalize("NFC", text)))


BUILT_IN = {"words": Tokenizer(words, []), "chars": Tokenizer(chars, [])}


def from_json(content: str, name: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json, special tokens included, by the `tokenizers` library."""
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise UsageError("needs the tokenizers library: pip install 'attnkit[text]'", name) from None
    try:
        library: Any = Library.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"not a tokenizer.json: {error}", name) from None
    ids = library.get_vocab(with_added_tokens=True)
    vocabulary = [""] * (max(ids.values(), default=-1) + 1)
    for word, at in ids.items():
        vocabulary[at] = word
    if not ids:
        raise DataError("the tokenizer has no vocabulary", name)

    def encode(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
        found = library.encode(text)
        return Tokens(found.tokens, found.ids)

    return Tokenizer(encode, vocabulary)


def distinct(texts: Sequence[Sequence[str]]) -> list[str]:
    """The different tokens of some texts, in the order they first appear.

    >>> distinct([["the", "cat"], ["the", "dog"]])
    ['the', 'cat', 'dog']
    """
    return list(dict.fromkeys(token for text in texts for token in text))


def numbered(tokens: Sequence[str], numbers: dict[str, int]) -> list[int]:
    """Ids of tokens; an unknown one gets the id of the vocabulary's unknown token, or is an error.

    >>> numbered(["am", "zzz"], {"am": 0, "<unk>": 1})
    [0, 1]
    """
    unknown = next((numbers[word] for word in UNKNOWN if word in numbers), None)
    ids = [numbers.get(token, unknown) for token in tokens]
    if None in ids:
        at = ids.index(None)
        raise DataError(f"token {tokens[at]!r} at [{at}] is not in the vocabulary (which has no {UNKNOWN[0]})")
    return [number for number in ids if number is not None]


def padding(vocabulary: Sequence[str]) -> str | None:
    """The vocabulary's own padding token, None where it has none."""
    return next((word for word in PADDING if word in vocabulary), None)
