"""How transformers splits text by the names of tokenizer.ggml.pre, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3
    PYTHONPATH=. python tests/references/make_gguf_splits.py

writes gguf_splits.json: name -> the parts of each of the texts of tests/checkpoints/test_gguf_tokenizers.py, in the
alphabet of byte-level tokenizers.
"""

import json

import tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import set_split_regex

from tests.gguf_models import SPLIT_TEXTS
from tests.places import REFERENCES

LLAMAS = ("llama-bpe", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe")
NAMES = ("gpt-2", *LLAMAS, "tekken", "qwen2", "deepseek-r1-qwen", "gpt-4o", "llama4")


class Backend:
    """What set_split_regex changes, with the pre-tokenizer of GPT-2 to begin with."""

    def __init__(self) -> None:
        self.backend_tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        self.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)


table = {}
for name in NAMES:
    split = set_split_regex(Backend(), {"pre_tokenizer_type": name}).backend_tokenizer.pre_tokenizer
    table[name] = [[part for part, _ in split.pre_tokenize_str(text)] for text in SPLIT_TEXTS]
(REFERENCES / "gguf_splits.json").write_text(json.dumps(table, indent=0) + "\n")
