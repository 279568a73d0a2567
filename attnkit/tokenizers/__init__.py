"""Tokenizers: text to tokens and ids, and back.

auto.py             `load_tokenizer`: the tokenizer of a published folder, by the files it has
tokens.py           the `Tokenizer` value; the built-in tokenizers, words and characters; text as it is generated
huggingface.py      tokenizer.json, vocab.txt, vocab.json with merges.txt: by the tokenizers library
bpe.py              BPE of a vocabulary and merges in memory, and its training
sentencepiece.py    sentencepiece models of Marian, M2M-100, T5 and Llama; vocabularies of words between spaces
unigram.py          sentencepiece models of ALBERT, DeBERTa, XLM-RoBERTa, CamemBERT and mBART, by the tokenizers library
languages.py        the languages of a tokenizer for translation, and where their tokens are in a text
ctc.py              the text that labels of frames spell
chat_template.py    the chat template of a model; chat_renderer.py: the process that renders it
files.py            the files of a folder, read and checked; vocabularies in YAML

The readers of published folders are imported from their files, by those alone who need them.
"""

from attnkit.tokenizers.tokens import (
    BUILTIN_TOKENIZERS,
    MASK,
    PADDING,
    UNKNOWN,
    Languages,
    Tokenizer,
    TokenPlaces,
    Tokens,
    distinct_tokens,
    find_padding,
    split_chars,
    split_words,
    tokens_to_ids,
)

__all__ = [
    "BUILTIN_TOKENIZERS",
    "MASK",
    "PADDING",
    "UNKNOWN",
    "Languages",
    "TokenPlaces",
    "Tokenizer",
    "Tokens",
    "distinct_tokens",
    "find_padding",
    "split_chars",
    "split_words",
    "tokens_to_ids",
]
