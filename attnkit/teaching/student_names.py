"""Names of students: when two spellings are one name, and safe names of files."""

import hashlib
import unicodedata
from itertools import groupby

LONGEST_STEM = 100  # bytes of a file's name without its suffix


def fold_name(name: str) -> str:
    """A name without its capitals, its punctuation and the form of its accents.

    Quotes and separators that a spreadsheet adds do not count; "" for a name without letters and digits.

    >>> fold_name(' "Zoë  MÜLLER";'), fold_name("Zoe\u0308 Mu\u0308ller"), fold_name("...")
    ('zoë müller', 'zoë müller', '')
    """
    return " ".join(_split_words(unicodedata.normalize("NFC", name).casefold()))


def file_stem(name: str) -> str:
    """The name of a student as the name of a file: words joined by hyphens.

    Equal for no two names that `fold_name` tells apart; a long one is cut, and ends with a digest.

    >>> file_stem("../O'Neil, Zoë"), file_stem("a/b")
    ('O-Neil-Zoë', 'a-b')
    """
    stem = "-".join(_split_words(unicodedata.normalize("NFC", name)))
    if len(stem.encode()) <= LONGEST_STEM:
        return stem
    digest = hashlib.sha256(fold_name(name).encode()).hexdigest()[:8]
    return f"{stem.encode()[: LONGEST_STEM - 9].decode(errors='ignore')}-{digest}"


def _split_words(text: str) -> list[str]:
    """The runs of letters, their marks, and digits."""
    runs = groupby(text, lambda character: unicodedata.category(character)[0] in "LMN")
    return ["".join(run) for is_word, run in runs if is_word]
