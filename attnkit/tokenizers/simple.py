"""The built-in tokenizers: words and characters."""

import re
import unicodedata
from collections.abc import Sequence

from attnkit.tokenizers.tokens import Tokenizer, Tokens


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


BUILTIN_TOKENIZERS = {"words": Tokenizer(words), "chars": Tokenizer(chars)}
