"""--tokenizer chars: characters as a reader sees them."""

import unicodedata

import pytest

from attnkit.tokenizers.tokens import split_chars

THUMB, TONE, JOINER, SELECTOR = "\U0001f44d", "\U0001f3fd", "\u200d", "\ufe0f"
FAMILY = JOINER.join(["\U0001f468", "\U0001f469", "\U0001f467"])
FRANCE, JAPAN = "\U0001f1eb\U0001f1f7", "\U0001f1ef\U0001f1f5"


@pytest.mark.parametrize(
    "characters",
    [
        [THUMB + TONE, "!", THUMB],
        [FAMILY, " ", "a"],
        [FRANCE, JAPAN, "\U0001f1eb"],
        ["\u2764" + SELECTOR, "x"],
        ["x\u0323\u0302", "y"],
        ["\u0915\u093f", "\u0915"],
        ["a", "\n", "\n", "b", "\t"],
        ["\u0301", "a"],
        [" ", "\u0301"],
        ["a" + JOINER, "b"],
        [JOINER, THUMB],
    ],
)
def test_what_a_reader_sees_as_one_is_one(characters):
    assert split_chars("".join(characters)).spellings == characters


def test_nothing_is_lost_and_nfc_comes_first():
    text = "cafe\u0301 " + FAMILY + JOINER
    assert split_chars(text).spellings[3] == "\u00e9"
    assert "".join(split_chars(text).spellings) == unicodedata.normalize("NFC", text)
    assert split_chars("").spellings == []
