"""Tokenizers trained from a text: characters, words, byte-level BPE or unigram."""

import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from attnkit import callbacks
from attnkit.checkpoints.checkpoint import fact_of
from attnkit.errors import AttnkitNote, DataError, UsageError, counted
from attnkit.formats.streams import Buffer
from attnkit.inputs.text_columns import parse_pairs
from attnkit.libraries import call_library, import_library
from attnkit.training.families import FamilyTokens, family_tokens
from attnkit.training.folder import json_bytes

# kinds that take every character or word of the text: their pattern, and what becomes of its matches or of the others
WHOLE = {"chars": (r"[\s\S]", "isolated"), "words": (r"\w+|[^\w\s]", "removed")}
LONGEST_WORD = 1000  # characters: BPE takes time with the square of a word's length, unigram loses its precision
LONG_WORD = re.compile(
    rf"\w{{{LONGEST_WORD + 1},}}|[^\S\n]{{{LONGEST_WORD + 1},}}|(?:[^\w\s]|_){{{LONGEST_WORD + 1},}}"
)
SPACE = "▁"  # of sentencepiece, which unigram marks the start of a word with


class TokenizerKind(NamedTuple):
    """The kind of a tokenizer, and its number of tokens with special ones; 0 for all."""

    kind: str
    size: int = 0


def parse_kind(text: str) -> TokenizerKind:
    """Read `chars`, `words`, `bpe:N` or `unigram:N`; UsageError for others.

    >>> parse_kind("bpe:500"), parse_kind("chars")
    (TokenizerKind(kind='bpe', size=500), TokenizerKind(kind='chars', size=0))
    """
    kind, _, size = text.partition(":")
    if text in WHOLE:
        return TokenizerKind(kind)
    if kind not in ("bpe", "unigram") or not re.fullmatch("[0-9]{1,7}", size) or not 0 < int(size) < 1 << 22:
        raise UsageError(f"tokens {text!r} (expected chars, words, bpe:N, unigram:N or a folder)")
    return TokenizerKind(kind, int(size))


def train_tokenizer(kind: TokenizerKind, family: str, texts: Sequence[str], name: str) -> dict[str, list[Buffer]]:
    """Train a tokenizer on texts for a family, as the files of its folder.

    BPE and unigram tokenizers of a Marian have the files of `train_sentencepiece_models` instead. The special tokens
    of the family are no part of a text. The same texts give the same bytes. DataError for texts without a character,
    and for a vocabulary too small; `name` is the file of the texts.

    >>> files = train_tokenizer(TokenizerKind("chars"), "gpt2", ["abba"], "abba.txt")
    >>> sorted(files)
    ['tokenizer.json', 'tokenizer_config.json']
    """
    library = import_library("tokenizers", "text", "--tokens")
    if not any(texts):
        raise DataError("empty text", name)
    special = family_tokens(family)
    if fact_of(family, "TOKENIZER") == "MarianTokenizer" and kind.kind not in WHOLE:
        return train_sentencepiece_models(kind, special, "\n".join(texts), name)
    specials = re.compile("|".join(map(re.escape, special.tokens)))
    texts = [part for text in texts for part in specials.split(text)]
    if kind.kind not in WHOLE:
        texts = _cut_long_words(texts, name)
        callbacks.current().on_progress(f"tokenizer: {kind.kind} of {kind.size:,} tokens")
    with call_library("no tokenizer can be trained on it", name):
        if kind.kind in WHOLE:
            tokenizer = _list_tokens(kind.kind, library, special, texts)
        else:
            train = _train_bpe if kind.kind == "bpe" else _train_unigram
            tokenizer = train(library, kind.size, special, texts)
        before, after, extra = special.before, special.after, special.sentinels
        tokenizer.add_special_tokens(
            [library.AddedToken(token, normalized=False) for token in (*special.tokens, *reversed(extra))]
        )
        if around := dict.fromkeys([*before, *after]):  # tokens around every text and each text of a pair
            single = [f"{part}:0" for part in (*before, "$A", *after)]
            tokenizer.post_processor = library.processors.TemplateProcessing(
                single=single,
                pair=[*single, *(f"{part}:1" for part in ("$B", *after))],
                special_tokens=[(token, tokenizer.token_to_id(token)) for token in around],
            )
        content = tokenizer.to_str(pretty=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{key}_token": token for key, token in special.names.items()},
        **({"additional_special_tokens": list(extra)} if extra else {}),
    }
    return {"tokenizer.json": [content.encode() + b"\n"], "tokenizer_config.json": [json_bytes(settings)]}


def _list_tokens(kind: str, library: Any, special: FamilyTokens, texts: Sequence[str]) -> Any:
    """A tokenizer of every character, or of words and other characters without blanks."""
    pattern, behavior = WHOLE[kind]
    found = set().union(*texts) if kind == "chars" else {one for text in texts for one in re.findall(pattern, text)}
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys([*special.tokens, *sorted(found)]))}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=special.names["unk"]))
    split = library.pre_tokenizers.Split(library.Regex(pattern), behavior, invert=behavior == "removed")
    tokenizer.pre_tokenizer = split
    if kind == "chars":
        tokenizer.decoder = library.decoders.Fuse()
    return tokenizer


def _train_bpe(library: Any, size: int, special: FamilyTokens, texts: Sequence[str]) -> Any:
    """A byte-level BPE like GPT-2's: the special tokens, 256 bytes, merges."""
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    least = len(special.tokens) + len(alphabet)
    if size < least:
        raise UsageError(f"bpe:{size} (expected {least} or more: {len(alphabet)} bytes and the special tokens)")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special.tokens), initial_alphabet=alphabet, show_progress=False
    )
    lines = (line for text in texts for line in text.splitlines(keepends=True))  # which no word crosses
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _train_unigram(library: Any, size: int, special: FamilyTokens, texts: Sequence[str]) -> Any:
    """A unigram model: words start with a mark in place of the space before them.

    The sentencepiece library trains it, since the tokenizers library gives another result in every run.
    """
    normalizer = library.normalizers.NFKC()
    lines = [normalizer.normalize_str(line) for text in texts for line in text.split("\n") if line]
    extra = ["\n"] if any("\n" in text for text in texts) else []
    others = len(special.tokens) + len(extra)
    try:
        options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "eos_id": -1}
        count = size - others + 1  # with its own unknown token
        model = _train_sentencepiece("unigram", lines, vocab_size=count, unk_id=0, **options)
    except RuntimeError as error:
        limit = re.search("set it to a value <= ([0-9]+)", str(error))
        if limit is None:
            raise
        most = int(limit[1]) - 1 + others
        raise UsageError(f"unigram:{size} (this text has pieces for {most} tokens at most)") from None
    processor = import_library("sentencepiece", "text", "--tokens").SentencePieceProcessor(model_proto=model)
    pieces = {processor.id_to_piece(id): processor.get_score(id) for id in range(1, processor.get_piece_size())}
    vocabulary = dict.fromkeys([*special.tokens, *extra], 0.0) | pieces
    unknown = list(vocabulary).index(special.names["unk"])
    tokenizer = library.Tokenizer(library.models.Unigram(list(vocabulary.items()), unknown, False))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = library.decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


def _train_sentencepiece(kind: str, lines: Sequence[str], **options: Any) -> bytes:
    """Train a model (bpe or unigram) on lines by the sentencepiece library."""
    from io import BytesIO

    model = BytesIO()
    import_library("sentencepiece", "text", "--tokens").SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        bos_id=-1,
        character_coverage=1.0,
        max_sentence_length=1 << 30,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def train_sentencepiece_models(
    kind: TokenizerKind, special: FamilyTokens, text: str, name: str
) -> dict[str, list[Buffer]]:
    """Train the tokenizers of a Marian on sentence pairs, as MarianTokenizer's files.

    source.spm and target.spm have at most `kind.size` pieces each, vocab.json numbers the pieces of both: </s> and
    <unk> first, <pad> last. DataError for a line that is no pair, `name` being the file of the text.
    """
    pairs = parse_pairs(text, name)
    library = import_library("sentencepiece", "text", "--tokens")
    files: dict[str, list[Buffer]] = {}
    pieces: set[str] = set()
    for side, file in enumerate(("source.spm", "target.spm"), start=1):
        lines = _cut_long_words([str(pair[side]) for pair in pairs], name)
        callbacks.current().on_progress(f"tokenizer: {file}")
        with call_library("no tokenizer can be trained on it", name):
            limits = {"vocab_size": kind.size, "hard_vocab_limit": False}
            model = _train_sentencepiece(kind.kind, lines, unk_id=1, eos_id=0, **limits)
            processor = library.SentencePieceProcessor(model_proto=model)
        pieces |= {processor.id_to_piece(id) for id in range(processor.get_piece_size())}
        files[file] = [model]
    end, unknown, pad = special.tokens
    tokens = [end, unknown, *sorted(pieces - {end, unknown, pad}), pad]
    settings = {
        "tokenizer_class": "MarianTokenizer",
        **{f"{key}_token": token for key, token in special.names.items()},
    }
    files["vocab.json"] = [json_bytes({token: id for id, token in enumerate(tokens)})]
    return files | {"tokenizer_config.json": [json_bytes(settings)]}


def _cut_long_words(texts: Sequence[str], name: str) -> list[str]:
    """Cut words longer than LONGEST_WORD into parts; a note names the file."""
    parts, count = [], 0
    for text in texts:
        at = 0
        for word in LONG_WORD.finditer(text):
            count += 1
            for end in range(word.start() + LONGEST_WORD, word.end(), LONGEST_WORD):
                parts.append(text[at:end])
                at = end
        parts.append(text[at:])
    if count:
        words = f"{counted(count, 'long word')} cut into parts of {LONGEST_WORD:,} characters"
        warnings.warn(f"{name}: {words}, to train a tokenizer on them", AttnkitNote, stacklevel=2)
    return parts
