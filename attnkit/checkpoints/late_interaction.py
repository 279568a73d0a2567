"""Late interaction, as of ColBERT: what the folder of such a model states.

Such a model has a vector for each token. Three kinds of folders state it: those of PyLate, of ColBERT's own code
(`HF_ColBERT`), and of the MultiVectorEncoder of sentence-transformers.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.errors import DataError, counted
from attnkit.tokenizers.tokens import Tokenizer, Tokens

TASKS = ("query", "document")
PYLATE_TYPE, NATIVE_TYPE, STANFORD = "ColBERT", "MultiVectorEncoder", "HF_ColBERT"
METADATA = "artifact.metadata"  # of ColBERT's own code
PUNCTUATION = tuple(string.punctuation)
QUERY_LENGTH, DOCUMENT_LENGTH = 32, 180  # of PyLate
MEAN = "meanmaxsim"


@dataclass(frozen=True)
class Expansion:
    """How a query is filled up with a token, each of which has a vector that counts.

    length   tokens of a query; is_least: at least so many, and otherwise exactly
    attends  whether the tokens of the text attend to those that fill it up
    token    its spelling; "": the mask token, or the end token of a tokenizer without one
    """

    length: int
    attends: bool = False
    token: str = ""
    is_least: bool = False


@dataclass(frozen=True)
class LateInteraction:
    """How texts become tokens, and which of them count: have a vector.

    markers    task -> the token that is inserted after the first one of a text; "" for none
    lengths    task -> tokens of a text at most, the marker among them; None: any number
    expansion  of queries; None: they are not filled up
    skipped    spellings of tokens without a vector that counts
    skips_in   the tasks in whose texts they are skipped
    skips_unknown  whether a skipped spelling that the tokenizer lacks stands for its unknown token, as in PyLate
    kept       ids of the only tokens of documents that count; () for all
    is_mean    whether the score of a query is divided by the number of its vectors
    """

    markers: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, int | None] = field(default_factory=dict)
    expansion: Expansion | None = None
    skipped: Sequence[str] = ()
    skips_in: Sequence[str] = ("document",)
    skips_unknown: bool = False
    kept: Sequence[int] = ()
    is_mean: bool = False

    @property
    def summary(self) -> str:
        """What is done to texts, in a few words."""
        marks = ", ".join(f"{task} {self.markers[task]!r}" for task in TASKS if self.markers.get(task))
        filled = (
            f"queries of {'at least ' * self.expansion.is_least}{self.expansion.length} tokens"
            if self.expansion
            else ""
        )
        skipped = f"{counted(len(self.skipped), 'token')} skipped in {' and '.join(self.skips_in)}s"
        parts = [
            f"marked {marks}" * bool(marks),
            filled,
            skipped * bool(self.skipped),
            "mean of the queries" * self.is_mean,
        ]
        return f"late interaction: {', '.join(filter(None, parts))}"

    def most(self, task: str) -> int | None:
        """Tokens of a text at most, without its marker; None: any number."""
        length = self.lengths.get(task)
        if task == "query" and self.expansion:
            length = max(length or 0, self.expansion.length) if self.expansion.is_least else self.expansion.length
            length = None if self.expansion.is_least and self.lengths.get(task) is None else length
        return length - bool(self.markers.get(task)) if length else None

    def mark(self, tokens: Tokens, task: str, tokenizer: Tokenizer) -> "MarkedTokens":
        """Insert the marker after the first token, fill a query up, and find what counts.

        A query of exactly a length is filled up on the side on which the tokenizer pads, another one on the right.

        DataError for a marker that the tokenizer lacks.
        """
        spellings, ids = [*tokens.spellings], [*(tokens.ids or [])]
        if marker := self.markers.get(task):
            spellings.insert(1, marker)
            ids.insert(1, find_marker(tokenizer, marker))
        is_real, expansion = [True] * len(ids), self.expansion if task == "query" else None
        if expansion and (missing := expansion.length - len(ids)) > 0:
            filler = find_filler(tokenizer, expansion.token)
            at = 0 if tokenizer.pads_left and not expansion.is_least else len(ids)
            spellings[at:at] = [tokenizer.vocabulary[filler]] * missing
            ids[at:at] = [filler] * missing
            is_real[at:at] = [False] * missing
        skipped = self.skipped_ids(tokenizer) if task in self.skips_in else set()
        counts = [id not in skipped or not real for id, real in zip(ids, is_real, strict=True)]
        if task != "query" and self.kept:
            counts = [one and id in self.kept for one, id in zip(counts, ids, strict=True)]
        attends = bool(expansion and expansion.attends)
        return MarkedTokens(Tokens(spellings, ids), [real or attends for real in is_real], counts)

    def skipped_ids(self, tokenizer: Tokenizer) -> set[int]:
        """The ids of the skipped spellings."""
        unknown = tokenizer.special.get("unk")
        found = {tokenizer.id_of_token.get(word, unknown if self.skips_unknown else None) for word in self.skipped}
        return {id for id in found if id is not None}


@dataclass(frozen=True)
class MarkedTokens:
    """The tokens of a text, which of them are attended to, and which count."""

    tokens: Tokens
    attended: Sequence[bool]
    counts: Sequence[bool]


def find_marker(tokenizer: Tokenizer, word: str) -> int:
    if word not in tokenizer.id_of_token:
        raise DataError(f"the tokenizer has no token {word!r}, which marks texts")
    return tokenizer.id_of_token[word]


def find_filler(tokenizer: Tokenizer, word: str) -> int:
    """The id of the token that fills queries up."""
    if word:
        return find_marker(tokenizer, word)
    id = tokenizer.special.get("mask", tokenizer.special.get("eos"))
    if id is None:
        raise DataError("the tokenizer has neither a mask token nor an end token, to fill queries up")
    return id


def read_pylate(raw: ConfigReader) -> LateInteraction:
    """Read config_sentence_transformers.json of PyLate."""
    length = raw.get_int("query_length", QUERY_LENGTH)
    attends = raw.get_bool("attend_to_expansion_tokens", False)
    expands = raw.values.get("do_query_expansion") is not False
    markers = {
        "query": raw.get_str("query_prefix", "[Q] "), "document": raw.get_str("document_prefix", "[D] "),
    }  # fmt: skip
    return LateInteraction(
        markers,
        {"query": length, "document": raw.get_int("document_length", DOCUMENT_LENGTH)},
        Expansion(length, attends) if expands else None,
        read_words(raw, "skiplist_words", PUNCTUATION),
        skips_unknown=True,
    )


def read_stanford(raw: ConfigReader) -> LateInteraction:
    """Read artifact.metadata of ColBERT's own code."""
    length = raw.get_int("query_maxlen", QUERY_LENGTH)
    return LateInteraction(
        {"query": raw.get_str("query_token_id", "[unused0]"), "document": raw.get_str("doc_token_id", "[unused1]")},
        {"query": length, "document": raw.get_int("doc_maxlen", DOCUMENT_LENGTH)},
        Expansion(length, raw.get_bool("attend_to_mask_tokens", False)),
        PUNCTUATION if raw.get_bool("mask_punctuation", True) else (),
        skips_unknown=True,
    )


def read_native(settings: ConfigReader, mask: ConfigReader, prompts: ConfigReader) -> LateInteraction:
    """Read the settings of a Transformer of sentence-transformers, and of its mask.

    Its markers are prompts, which are texts.
    """
    stated = settings.get_object("query_expansion")
    expansion = None
    if stated.values:
        strategies = {"fixed": False, "min": True}
        expansion = Expansion(
            stated.get_int("length"),
            stated.get_bool("attend", False),
            stated.get_str("token", ""),
            stated.get_choice("strategy", strategies),
        )
    lengths = {task: settings.get_int(key) for task in TASKS if settings.has(key := f"{task}_length")}
    kept = mask.values.get("keep_only_token_ids") or []
    if not isinstance(kept, list) or not all(type(id) is int for id in kept):
        raise mask.error("keep_only_token_ids is not a list of ids")
    return LateInteraction(
        {},
        lengths,
        expansion,
        read_words(mask, "skiplist_words", ()),
        read_words(mask, "skiplist_tasks", ("document",)),
        kept=kept,
        is_mean=prompts.values.get("similarity_fn_name") == MEAN,
    )


def read_words(raw: ConfigReader, key: str, default: Sequence[str]) -> tuple[str, ...]:
    """A list of strings, or a single one."""
    value: Any = raw.values.get(key)
    words = default if value is None else [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise raw.error(f"{key} is not a list of strings")
    return tuple(words)
