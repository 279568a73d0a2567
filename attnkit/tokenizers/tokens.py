"""The `Tokenizer` type, and vocabularies: tokens to ids and back."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
    """Where the tokens of a text or of a pair are, counted in characters.

    offsets   the first character of each token, and the one after its last
    words     the same of the word that the token is in
    parts     which text it is of, 0 or 1; None for a token that the tokenizer added
    subwords  whether it continues a word
    """

    offsets: list[tuple[int, int]]
    words: list[tuple[int, int]]
    parts: list[int | None]
    subwords: list[bool]


class Languages(NamedTuple):
    """The languages of a tokenizer for translation, named beside every text.

    ids       language -> its token
    end       the token that ends a text
    follows   whether the language of a source is after that end, not before the text
    starts    whether the language of a target is what the decoder starts with, not the first token after that
    source, target   the languages that the folder states, "" for none
    usual     the language of a source where none is stated
    """

    ids: Mapping[str, int]
    end: int
    follows: bool = False
    starts: bool = False
    source: str = ""
    target: str = ""
    usual: str = ""


@dataclass(frozen=True)
class Tokenizer:
    """Functions from text to tokens and back.

    encode           (text, vocabulary) -> Tokens; plain=True takes the spelling of special tokens as text. That of a
                     published folder also takes pair=TEXT, and with_special=False for a text that already contains
                     its special tokens
    list_vocabulary  () -> the tokens by id, called on first use; [] where the tokenizer has no vocabulary
    decode           ids -> text without special tokens, or with_special=True; None where ids cannot be decoded
    special          ids of the special tokens it has: bos, eos, unk, sep, pad, cls, mask
    files            the files it was read from
    locate           (text, pair or None) -> TokenPlaces; None where tokens cannot be found in the text
    truncate         (text, pair or None, most) -> Tokens, at most so many; None where a text cannot be cut
    languages        of a tokenizer for translation, see Languages; None: there are none
    pads_left        whether padding comes before a text
    """

    encode: Callable[..., Tokens]
    list_vocabulary: Callable[[], list[str]] = list
    decode: Callable[..., str] | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    locate: Callable[..., TokenPlaces] | None = None
    truncate: Callable[..., Tokens] | None = None
    languages: Languages | None = None
    pads_left: bool = False

    @cached_property
    def vocabulary(self) -> list[str]:
        """The token of each id, or "" for an unused id."""
        return self.list_vocabulary()

    @cached_property
    def id_of_token(self) -> Mapping[str, int]:
        """The id of each token; of equal ones the last."""
        return {token: id for id, token in enumerate(self.vocabulary) if token}

    def keeping_special(self) -> "Tokenizer":
        """The tokenizer, with special tokens in the text that it decodes."""
        return replace(self, decode=self.decode and partial(self.decode, with_special=True))

    def reading_plain_text(self) -> "Tokenizer":
        """The tokenizer of texts in which the spelling of a special token is text.

        >>> Tokenizer(split_words).reading_plain_text().encode("a <eos>", ["<eos>"]).spellings
        ['a', '<', 'eos', '>']
        """
        return replace(self, encode=partial(self.encode, plain=True))


def distinct_tokens(texts: Sequence[Sequence[str]]) -> list[str]:
    """The different tokens of some texts, in the order of their first occurrence.

    >>> distinct_tokens([["the", "cat"], ["the", "dog"]])
    ['the', 'cat', 'dog']
    """
    return list(dict.fromkeys(token for text in texts for token in text))


def tokens_to_ids(tokens: Sequence[str], vocabulary: Mapping[str, int]) -> list[int]:
    """The ids of tokens. Unknown ones become the vocabulary's unknown token.

    >>> tokens_to_ids(["am", "zzz"], {"am": 0, "<unk>": 1})
    [0, 1]
    """
    unknown = next((vocabulary[token] for token in UNKNOWN if token in vocabulary), None)
    ids = [vocabulary.get(token, unknown) for token in tokens]
    if None in ids:
        at = ids.index(None)
        raise DataError.about("token", f"{tokens[at]!r} at [{at}] is not in the vocabulary (which has no {UNKNOWN[0]})")
    return ids  # type: ignore[return-value]  # no id is None


def find_padding(vocabulary: Sequence[str]) -> str | None:
    """The padding token of a vocabulary, or None.

    >>> find_padding(["a", "<pad>", "[PAD]"]), find_padding(["a"])
    ('[PAD]', None)
    """
    return next((token for token in PADDING if token in vocabulary), None)


JOINER = "\u200d"  # between the parts of an emoji
SKIN_TONES = {chr(code) for code in range(0x1F3FB, 0x1F400)}
REGIONAL_INDICATORS = {chr(code) for code in range(0x1F1E6, 0x1F200)}


def split_words(text: str, vocabulary: Sequence[str] = (), plain: bool = False) -> Tokens:
    """Split a text into words and punctuation marks, after Unicode NFC.

    >>> split_words("The cat's mat.").spellings
    ['The', 'cat', "'", 's', 'mat', '.']
    >>> split_words("a student <eos>", ["<eos>"]).spellings
    ['a', 'student', '<eos>']
    """
    known = () if plain else vocabulary
    special = [re.escape(token) for token in known if token[:1] in "<[" and token[-1:] in ">]" and len(token) > 2]
    pattern = re.compile("|".join([*special, r"\w+|[^\w\s]"]))
    words: dict[str, str] = {}  # a word that occurs again is the same string, so that a long text takes little memory
    matches = map(re.Match.group, pattern.finditer(unicodedata.normalize("NFC", text)))
    return Tokens([words.setdefault(word, word) for word in matches])


def split_chars(text: str, vocabulary: Sequence[str] = (), plain: bool = False) -> Tokens:
    """Split a text into the characters that a reader sees, after Unicode NFC.

    Combining marks, variation selectors, skin tones and what a zero-width joiner joins stay with the character before;
    two regional indicators, a flag, are one character. These are the main rules of Unicode's UAX #29, not all of them.

    >>> split_chars("a b").spellings
    ['a', ' ', 'b']
    >>> [len(one) for one in split_chars("\U0001f44d\U0001f3fd!\U0001f1eb\U0001f1f7").spellings]
    [2, 1, 2]
    """
    characters: list[str] = []
    for point in unicodedata.normalize("NFC", text):
        if characters and _continues(characters[-1], point):
            characters[-1] += point
        else:
            characters.append(point)
    return Tokens(characters)


def _continues(character: str, point: str) -> bool:
    if point == JOINER or unicodedata.category(point) in ("Mn", "Me", "Mc") or point in SKIN_TONES:
        return not character.isspace()
    if point in REGIONAL_INDICATORS:
        return len(character) == 1 and character in REGIONAL_INDICATORS
    return character.endswith(JOINER) and len(character) > 1 and unicodedata.category(point) == "So"


BUILTIN_TOKENIZERS = {"words": Tokenizer(split_words), "chars": Tokenizer(split_chars)}


# an incomplete character, or a space that the next token may remove (` 've` becomes `'ve`)
UNSETTLED = re.compile(r"(?:\ufffd| n?'?| '[vr ])$")


def decode_incrementally(decode: Callable[[Sequence[int]], str]) -> Callable[[int | None], str]:
    """A function from the next id, or None at the end, to the text that is final.

    Each step decodes only the ids since the last final text and, for the space between the two, those before it.

    >>> step = decode_incrementally(lambda ids: " ".join(["a", "cat"][id] for id in ids))
    >>> [step(0), step(1), step(None)]
    ['a', ' cat', '']
    """
    window: list[int] = []
    done = 0  # ids of the window whose text has been returned

    def step(token: int | None) -> str:
        nonlocal window, done
        if token is not None:
            window.append(token)
        text = decode(window)
        if token is not None and UNSETTLED.search(text):
            return ""
        new = text[len(decode(window[:done])) :]
        if new:
            window = window[done:]
            done = len(window)
        return new

    return step
