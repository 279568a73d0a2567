"""Text to tokens and ids, and back.

tokens.py     what a tokenizer is; tokens numbered by a vocabulary
split.py      words and characters, built in
folder.py     the tokenizer of a published folder, by the files it has
files.py      those files read, and what each may not be
library.py    tokenizer.json, vocab.txt, merges.txt: through the tokenizers library
pieces.py     sentencepiece models, and vocabularies of words between spaces
streaming.py  text as it is generated
"""

from attnkit.tokenizers.folder import NoTokenizer, from_folder
from attnkit.tokenizers.library import from_json
from attnkit.tokenizers.split import BUILT_IN, chars, words
from attnkit.tokenizers.streaming import incremental
from attnkit.tokenizers.tokens import MASK, PADDING, UNKNOWN, Tokenizer, Tokens, distinct, numbered, padding

__all__ = [
    "BUILT_IN",
    "MASK",
    "PADDING",
    "UNKNOWN",
    "NoTokenizer",
    "Tokenizer",
    "Tokens",
    "chars",
    "distinct",
    "from_folder",
    "from_json",
    "incremental",
    "numbered",
    "padding",
    "words",
]
