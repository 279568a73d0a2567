"""Sentencepiece models of Marian, M2M-100, T5, Llama, and word lists."""

import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from attnkit.errors import DataError, UsageError
from attnkit.libraries import call_library, import_library
from attnkit.tokenizers.files import AddedToken, TokenizerFolder, find_special_tokens, is_left, tokens_by_id
from attnkit.tokenizers.huggingface import clean_up
from attnkit.tokenizers.languages import M2M_100
from attnkit.tokenizers.tokens import Tokenizer, Tokens, tokens_to_ids

SPACES = re.compile(r"\s*")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
MAX_SENTINELS = 1 << 16  # where config.json has no vocab_size, or a larger one

# (text between special tokens, whether it begins the whole text) -> ids
Split = Callable[[str, bool], Sequence[int]]


def load_marian(folder: TokenizerFolder) -> Tokenizer:
    """Load source.spm or target.spm, numbered by the vocabulary. </s> ends a text."""
    model, _ = load_sentencepiece(folder, f"{folder.side}.spm")
    file = folder.vocabulary_file
    if file is None:
        raise DataError("no vocab.json or vocab.yml beside the sentencepiece models", folder.path)
    vocabulary = folder.read_vocabulary(file)
    special = require_special_tokens(folder, file, vocabulary, "unk", "eos")

    def split(text: str, is_first: bool) -> list[int]:
        language, text = re.match(r"(>>.*?<<)?(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        pieces = [*([language] if language else []), *model.encode(text, out_type=str)]
        return [vocabulary.get(piece, special["unk"]) for piece in pieces]

    def join(pieces: list[str]) -> str:
        return join_pieces(pieces).strip()

    return build_tokenizer(folder, vocabulary, special, split, join, after=[special["eos"]], shows_added=True)


def load_m2m(folder: TokenizerFolder) -> Tokenizer:
    """Load sentencepiece.bpe.model, numbered by vocab.json, then the languages."""
    model, _ = load_sentencepiece(folder, "sentencepiece.bpe.model")
    vocabulary = folder.read_vocabulary("vocab.json")
    special = require_special_tokens(folder, "vocab.json", vocabulary, "unk", "eos")
    codes = folder.settings.get("language_codes") or "m2m100"
    if codes not in M2M_100:
        raise folder.error(f"language_codes {str(codes)[:40]!r} is not known (use {', '.join(M2M_100)})")
    languages = {f"__{code}__": id for id, code in enumerate(M2M_100[codes], start=len(vocabulary))}

    def split(text: str, is_first: bool) -> list[int]:
        return [vocabulary.get(piece, special["unk"]) for piece in model.encode(text, out_type=str)]

    def join(pieces: list[str]) -> str:
        return join_pieces(pieces).strip()

    numbered = languages | vocabulary
    return build_tokenizer(
        folder, numbered, special, split, join, after=[special["eos"]], sentinels=languages, shows_added=True
    )


def load_t5(folder: TokenizerFolder) -> Tokenizer:
    """Load spiece.model, then <extra_id_99> … <extra_id_0>; </s> ends a text.

    <s> begins it where the file says so.
    """
    model, pieces = load_sentencepiece(folder, "spiece.model")
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(count_sentinels(folder, len(pieces))))]
    vocabulary = {token: id for id, token in enumerate([*pieces, *sentinels])}
    special = require_special_tokens(folder, "spiece.model", vocabulary, "unk", "eos")

    def join(pieces: list[str]) -> str:
        return join_pieces([pieces[0].replace("▁", ""), *pieces[1:]]) if pieces else ""

    return build_tokenizer(
        folder,
        vocabulary,
        special,
        split=lambda text, is_first: model.encode(text),
        join=join,
        before=[special["bos"]] if folder.get_bool("add_bos_token", False) and "bos" in special else [],
        after=[special["eos"]],
        sentinels=sentinels,
    )


def load_siglip(folder: TokenizerFolder) -> Tokenizer:
    """Load spiece.model for lower case without punctuation; </s> ends and pads."""
    model, pieces = load_sentencepiece(folder, "spiece.model")
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    special = require_special_tokens(folder, "spiece.model", vocabulary, "unk", "eos")
    special |= {} if "pad_token" in folder.settings else {"pad": special["eos"]}
    is_lower, unknown = folder.get_bool("do_lower_case", True), pieces[special["unk"]]
    prefix = len(model.encode(unknown))  # the model adds a space to what is in front of the text alone

    def split(text: str, is_first: bool) -> list[int]:
        text = "▁" * is_first + text.replace("▁", " ")
        text = (text.lower() if is_lower else text).translate(str.maketrans("", "", string.punctuation))
        return list(model.encode(unknown + " ".join(text.split())))[prefix:]

    def join(pieces: list[str]) -> str:
        return join_pieces(pieces).strip()

    tokenizer = build_tokenizer(
        folder, vocabulary, special, split, join, after=[special["eos"]], ends_once=True, shows_added=True
    )
    return replace(
        tokenizer, pads_left=is_left(folder.settings, "padding_side", folder.file_path("tokenizer_config.json"))
    )


def count_sentinels(folder: TokenizerFolder, pieces: int) -> int:
    """The number of tokens that T5 adds to its pieces, at most vocab_size in all."""
    count, size = folder.settings.get("extra_ids", 100), folder.read_json("config.json").get("vocab_size")
    most = max(size - pieces, 0) if type(size) is int else MAX_SENTINELS
    if type(count) is not int or not 0 <= count <= min(most, MAX_SENTINELS):
        room = f", as {pieces} pieces in a vocab_size of {size} allow" if most < MAX_SENTINELS else ""
        expected = f"expected 0 to {min(most, MAX_SENTINELS)}{room}"
        raise folder.error(f"extra_ids is {str(count)[:40]!r} ({expected})")
    return count


def load_llama(folder: TokenizerFolder) -> Tokenizer:
    """Load tokenizer.model. Unknown characters become bytes, <s> begins a text."""
    model, pieces = load_sentencepiece(folder, "tokenizer.model")
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    special = require_special_tokens(folder, "tokenizer.model", vocabulary, "unk")
    has_prefix, is_legacy = folder.get_bool("add_prefix_space", True), folder.get_bool("legacy", False)
    with call_library("cannot tokenize a line end", folder.file_path("tokenizer.model")):
        line_end = model.encode("\n")
    is_bare = bool(line_end) and not pieces[line_end[0]].startswith("▁")  # the model adds no space before a text

    def split(text: str, is_first: bool) -> Sequence[int]:
        if is_bare or (has_prefix and (is_legacy or is_first) and not text.startswith((" ", "▁"))):
            return list(model.encode(text))
        # the model adds a space before the text; a line end in front takes that space, and is removed with it
        return list(model.encode("\n" + text))[len(line_end) :]

    def join(pieces: list[str]) -> str:
        text = join_pieces(pieces)
        return text.removeprefix(" ") if has_prefix else text

    before = [special["bos"]] if folder.get_bool("add_bos_token", True) and "bos" in special else []
    after = [special["eos"]] if folder.get_bool("add_eos_token", False) and "eos" in special else []
    return build_tokenizer(folder, vocabulary, special, split, join, before, after, is_bpe=True)


def load_whitespace(folder: TokenizerFolder) -> Tokenizer:
    """Load a vocabulary of words between spaces. </s>, if present, ends a text."""
    file = folder.vocabulary_file or ""
    vocabulary = folder.read_vocabulary(file)
    special = find_special_tokens(folder.settings, vocabulary.get)
    after = [special["eos"]] if "eos" in special else []

    def split(text: str, is_first: bool) -> list[int]:
        try:
            return tokens_to_ids(text.split(), vocabulary)
        except DataError as error:
            raise folder.error(error.problem, file) from None

    return build_tokenizer(folder, vocabulary, special, split, " ".join, after=after)


def build_tokenizer(
    folder: TokenizerFolder,
    vocabulary: Mapping[str, int],
    special: Mapping[str, int],
    split: Split,
    join: Callable[[list[str]], str],
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    sentinels: Iterable[str] = (),
    ends_once: bool = False,
    is_bpe: bool = False,
    shows_added: bool = False,
) -> Tokenizer:
    """Build a tokenizer from {token: id}. Special and added tokens are never split.

    split          text between those tokens -> ids
    join           tokens -> text
    before, after  ids put around every text
    sentinels      tokens of the vocabulary that are left out of decoded text, as the special ones are
    ends_once      whether a text that ends with `after` keeps it as its end
    is_bpe         whether it merges pieces: then spaces before punctuation stay, as in transformers
    shows_added    whether decoded text has the added tokens that no setting names, though they are special
    """
    added = {token.content: token for token in folder.added_tokens.values()}
    named = {content: token for content, token in folder.named_tokens.items() if content not in added}
    ids_by_token = {**vocabulary, **{token.content: id for id, token in folder.added_tokens.items()}}
    for content in named:
        ids_by_token.setdefault(content, max(ids_by_token.values(), default=-1) + 1)
    tokens = tokens_by_id(ids_by_token)
    hidden = {
        *special.values(),
        *map(vocabulary.__getitem__, sentinels),
        *map(ids_by_token.__getitem__, named),
        *(id for id, token in folder.added_tokens.items() if token.special and not shows_added),
    }
    usual = {tokens[id]: AddedToken(tokens[id], special=True) for id in hidden}
    unsplit = {content: token for content, token in (usual | named | added).items() if content}
    if folder.settings.get("split_special_tokens") is True:
        unsplit = {content: token for content, token in unsplit.items() if not token.special}
    cleans_up = folder.settings.get("clean_up_tokenization_spaces") is True and not is_bpe
    cuts_left = is_left(folder.settings, "truncation_side", folder.file_path("tokenizer_config.json"))

    def encode(
        text: str,
        known: Sequence[str] = (),
        pair: str | None = None,
        with_special: bool = True,
        plain: bool = False,
    ) -> Tokens:
        if pair is not None:
            raise UsageError("its tokenizer takes one text, not a pair", folder.path)
        ids = [*before] if with_special else []
        with call_library("cannot tokenize the text", folder.path):
            for number, part in enumerate(split_at_tokens(text, {} if plain else unsplit)):
                ids += [ids_by_token[part]] if number % 2 else split(part, number == 0) if part else []
        ids += after if with_special and not (ends_once and ids[-1:] == [*after]) else []
        return Tokens([tokens[id] for id in ids], ids)

    def truncate(text: str, pair: str | None, most: int) -> Tokens:
        ids = encode(text, pair=pair).ids or []
        room = max(most - len(before) - len(after), 0)
        if len(ids) > most:
            body = ids[len(before) : len(ids) - len(after)]
            ids = [*before, *(body[len(body) - room :] if cuts_left else body[:room]), *after]
        return Tokens([tokens[id] for id in ids], ids)

    def decode(ids: Sequence[int], with_special: bool = False) -> str:
        text = join([tokens[id] for id in ids if (with_special or id not in hidden) and 0 <= id < len(tokens)])
        return clean_up(text) if cleans_up else text

    return Tokenizer(encode, lambda: tokens, decode, special, truncate=truncate)


def load_sentencepiece(folder: TokenizerFolder, name: str) -> tuple[Any, list[str]]:
    """Load the sentencepiece model of a file, and its pieces by id."""
    model = import_library("sentencepiece", "text", folder.file_path(name)).SentencePieceProcessor()
    data = folder.read_bytes(name)
    try:
        with call_library("", ""):
            model.LoadFromSerializedProto(data)
            return model, [model.id_to_piece(id) for id in range(model.get_piece_size())]
    except DataError:  # the message of the library names lines of its own source
        raise folder.error("not a sentencepiece model", name) from None


def split_at_tokens(text: str, tokens: Mapping[str, AddedToken]) -> list[str]:
    """Split a text at the leftmost longest tokens: text, token, text, …

    They may take the spaces beside them.

    >>> end, mask = AddedToken("</s>"), AddedToken("<m>", lstrip=True)
    >>> split_at_tokens("a <m> b</s>", {"<m>": mask, "</s>": end})
    ['a', '<m>', ' b', '</s>', '']
    """
    lengths = sorted({len(token) for token in tokens if token}, reverse=True)
    initial = re.compile("[" + "".join({re.escape(token[0]) for token in tokens if token}) + "]") if lengths else None
    parts, start, at = [], 0, 0
    while initial and (match := initial.search(text, at)):
        at = match.start()
        size = next((n for n in lengths if text[at : at + n] in tokens), 0)
        token = tokens[text[at : at + size]] if size else None
        end = at + (size or 1)
        if token and not (token.single_word and any(map(is_in_word, text[max(at - 1, 0) : at] + text[end : end + 1]))):
            before = text[start:at]
            start = end + len(SPACES.match(text, end)[0]) * token.rstrip  # type: ignore[index]  # it always matches
            parts += [before.rstrip() if token.lstrip else before, token.content]
        at = max(end, start)
    return [*parts, text[start:]]


def is_in_word(character: str) -> bool:
    """Whether a character is in a word: letter, mark, digit or underscore.

    >>> [is_in_word(character) for character in "é\u0301_ -"]
    [True, True, True, False, False]
    """
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def require_special_tokens(
    folder: TokenizerFolder, file: str, vocabulary: Mapping[str, int], *names: str
) -> dict[str, int]:
    """The ids of the special tokens. DataError if one of those named is missing."""
    special = find_special_tokens(folder.settings, vocabulary.get)
    for name in names:
        if name not in special:
            raise folder.error(f"the vocabulary of {len(vocabulary)} tokens has no {name} token", file)
    return special


def join_pieces(pieces: Sequence[str]) -> str:
    """Join pieces to text: `▁` is a space, bytes are UTF-8, invalid ones U+FFFD.

    >>> join_pieces(["▁a", "<0xC3>", "<0xA9>", "▁b", "<0xC3>"])
    ' aé b�'
    """
    texts = []
    for is_bytes, group in groupby(pieces, lambda piece: BYTE.fullmatch(piece) is not None):
        run = list(group)
        texts.append(decode_utf8(bytes(int(piece[3:5], 16) for piece in run)) if is_bytes else "".join(run))
    return "".join(texts).replace("▁", " ")


def decode_utf8(run: bytes) -> str:
    """Decode bytes as UTF-8, or as U+FFFD for each byte where they are not UTF-8."""
    try:
        return run.decode("utf-8")
    except UnicodeDecodeError:
        return "\ufffd" * len(run)
