"""The built-in tokenizers: words and characters."""

import re
import unicodedata
from collections.abc import Sequence

from attnkit.tokenizers.tokens import Tokenizer, Tokens

JOINER = "\u200d"  # between the parts of an emoji
SKIN_TONES = {chr(code) for code in range(0x1F3FB, 0x1F400)}
REGIONAL_INDICATORS = {chr(code) for code in range(0x1F1E6, 0x1F200)}


def split_words(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
    """Split a text into words and punctuation marks, after Unicode NFC; known tokens as `<eos>` and `[PAD]` stay whole.

    >>> split_words("The cat's mat.").spellings
    ['The', 'cat', "'", 's', 'mat', '.']
    >>> split_words("a student <eos>", ["<eos>"]).spellings
    ['a', 'student', '<eos>']
    """
    special = [re.escape(token) for token in vocabulary if token[:1] in "<[" and token[-1:] in ">]" and len(token) > 2]
    pattern = re.compile("|".join([*special, r"\w+|[^\w\s]"]))
    words: dict[str, str] = {}  # a word that occurs again is the same string, so that a long text takes little memory
    matches = map(re.Match.group, pattern.finditer(unicodedata.normalize("NFC", text)))
    return Tokens([words.setdefault(word, word) for word in matches])


def split_chars(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
    """Split a text into characters as a reader sees them, after Unicode NFC; spaces and line ends are tokens too.

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
    """Return whether a code point belongs to the character before it."""
    if point == JOINER or unicodedata.category(point) in ("Mn", "Me", "Mc") or point in SKIN_TONES:
        return not character.isspace()
    if point in REGIONAL_INDICATORS:
        return len(character) == 1 and character in REGIONAL_INDICATORS
    return character.endswith(JOINER) and len(character) > 1 and unicodedata.category(point) == "So"


BUILTIN_TOKENIZERS = {"words": Tokenizer(split_words), "chars": Tokenizer(split_chars)}
