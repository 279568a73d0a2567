"""Tokenizers: text to tokens and ids, and back.

auto.py             `load_tokenizer`: the tokenizer of a published folder, by the files it has
tokens.py           the `Tokenizer` value; tokens numbered by a vocabulary
simple.py           built-in tokenizers: words and characters
huggingface.py      tokenizer.json, vocab.txt, vocab.json with merges.txt: by the tokenizers library
sentencepiece.py    sentencepiece models of Marian, T5 and Llama; vocabularies of words between spaces
files.py            the files of a folder, read and checked
yaml_vocabulary.py  vocabularies in YAML
streaming.py        text as it is generated
"""

from attnkit.tokenizers.auto import NoTokenizer, load_tokenizer
from attnkit.tokenizers.huggingface import parse_tokenizer_json
from attnkit.tokenizers.simple import BUILTIN_TOKENIZERS, split_chars, split_words
from attnkit.tokenizers.streaming import decode_incrementally
from attnkit.tokenizers.tokens import (
    MASK,
    PADDING,
    UNKNOWN,
    Tokenizer,
    Tokens,
    distinct_tokens,
    find_padding,
    tokens_to_ids,
)

__all__ = [
    "BUILTIN_TOKENIZERS",
    "MASK",
    "PADDING",
    "UNKNOWN",
    "NoTokenizer",
    "Tokenizer",
    "Tokens",
    "decode_incrementally",
    "distinct_tokens",
    "find_padding",
    "load_tokenizer",
    "parse_tokenizer_json",
    "split_chars",
    "split_words",
    "tokens_to_ids",
]
