"""Text to tokens and ids, and back.

tokens.py     what a tokenizer is; tokens numbered by a vocabulary
split.py      words and characters, built in
folder.py     the tokenizer of a published folder, by the files it has
files.py      those files read, and what each may not be
library.py    tokenizer.json, vocab.txt, merges.txt: through the tokenizers library
pieces.py     sentencepiece models, and vocabularies of words between spaces
streaming.py  text as it is generated
"""

from attnkit.tokenizers.auto import NoTokenizer, load_tokenizer
from attnkit.tokenizers.huggingface import from_json
from attnkit.tokenizers.simple import BUILTIN_TOKENIZERS, chars, words
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
    "chars",
    "decode_incrementally",
    "distinct_tokens",
    "find_padding",
    "from_json",
    "load_tokenizer",
    "tokens_to_ids",
    "words",
]
