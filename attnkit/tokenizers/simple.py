"""The built-in tokenizers: words and characters."""

import re
import unicodedata
from collections.abc import Sequence

from attnkit.tokenizers.tokens import Tokenizer, Tokens


def split_words(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
    """Split a text into words and punctuation marks, after Unicode NFC; known tokens as `<eos>` and `[PAD]` stay whole.

    >>> split_words("The cat's mat.").spellings
    ['The', 'cat', "'", 's', 'mat', '.']
    >>> split_words("a student <eos>", ["<eos>"]).spellings
    ['a', 'student', '<eos>']
    """
    special = [re.escape(token) for token in vocabulary if token[:1] in "<[" and token[-1:] in ">]" and len(token) > 2]
    return Tokens(re.findall("|".join([*special, r"\w+|[^\w\s]"]), unicodedata.normalize("NFC", text)))


def split_chars(text: str, vocabulary: Sequence[str] = ()) -> Tokens:
    """Split a text into code points, after Unicode NFC; spaces and line ends are tokens too.

    >>> split_chars("a b").spellings
    ['a', ' ', 'b']
    """
    return Tokens(list(unicodedata.normalize("NFC", text)))


BUILTIN_TOKENIZERS = {"words": Tokenizer(split_words), "chars": Tokenizer(split_chars)}
