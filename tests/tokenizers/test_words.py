"""A long text of few words: each word is one string, and a token takes few bytes."""

import tracemalloc

from attnkit.inputs.text_inputs import tokenize
from attnkit.tokenizers import BUILTIN_TOKENIZERS
from attnkit.tokenizers.tokens import split_words

COUNT = 100_000


def test_a_word_that_occurs_again_is_the_same_string():
    first, dot, again, _ = split_words("Straße. Straße.").spellings
    assert first == "Straße" and dot == "." and first is again


def test_a_token_in_brackets_is_one_word_if_something_is_in_them():
    assert split_words("<s> a <> [x", ["<s>", "<>", "[x"]).spellings == ["<s>", "a", "<", ">", "[", "x"]


def test_the_memory_of_a_long_text():
    """A token has 8 bytes in each list and in the ids; a string for each would be 51 bytes more."""
    text = "ab cd " * (COUNT // 2)
    tracemalloc.start()
    inputs = tokenize(text, BUILTIN_TOKENIZERS["words"], [], own=True, batch=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert inputs.ids.tolist() == [0, 1] * (COUNT // 2) and inputs.tokens == ["ab", "cd"] * (COUNT // 2)
    assert peak < 36 * COUNT
