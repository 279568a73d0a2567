"""Sentencepiece models as Marian, T5 and Llama use them, and vocabularies of words between spaces."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from attnkit.errors import DataError, UsageError
from attnkit.libraries import call_library, import_library
from attnkit.tokenizers.files import Folder, specials, spelled
from attnkit.tokenizers.huggingface import clean_up
from attnkit.tokenizers.tokens import Tokenizer, Tokens, tokens_to_ids

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
MOST_EXTRA = 1 << 16  # of a folder without a model, or with one of a larger vocabulary

# a stretch of text between tokens found whole, and whether it begins the text -> ids
Cut = Callable[[str, bool], Sequence[int]]


def marian_tokenizer(folder: Folder) -> Tokenizer:
    """Marian: the pieces of source.spm or target.spm numbered by the vocabulary file, then </s>."""
    model, _ = load_pieces(folder, f"{folder.side}.spm")
    file = vocabulary_file(folder)
    if file is None:
        raise DataError("no vocab.json or vocab.yml beside the sentencepiece models", folder.path)
    numbers = folder.numbers(file)
    special = required(folder, file, numbers, "unk", "eos")

    def cut(text: str, first: bool) -> list[int]:
        language, text = re.match(r"(>>.*?<<)?(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        pieces = [*([language] if language else []), *model.encode(text, out_type=str)]
        return [numbers.get(piece, special["unk"]) for piece in pieces]

    return build_tokenizer(
        folder, numbers, special, cut, lambda pieces: join_pieces(pieces).strip(), after=[special["eos"]]
    )


def t5_sentinels(folder: Folder) -> Tokenizer:
    """T5: the pieces of spiece.model, above them <extra_id_99> … <extra_id_0>; then </s>."""
    model, pieces = load_pieces(folder, "spiece.model")
    count = extra_ids(folder, len(pieces))
    vocabulary = [*pieces, *(f"<extra_id_{at}>" for at in reversed(range(count)))]
    numbers = {word: id for id, word in enumerate(vocabulary)}
    special = required(folder, "spiece.model", numbers, "unk", "eos")
    return build_tokenizer(
        folder,
        numbers,
        special,
        cut=lambda text, first: model.encode(text),
        join=lambda pieces: join_pieces([pieces[0].replace("▁", ""), *pieces[1:]]) if pieces else "",
        after=[special["eos"]],
        whole=vocabulary[len(vocabulary) - count :],
    )


def extra_ids(folder: Folder, pieces: int) -> int:
    """How many tokens the settings of a T5 add to its pieces, no more than the model of the folder has room for."""
    count, size = folder.settings.get("extra_ids", 100), folder.json("config.json").get("vocab_size")
    most = max(size - pieces, 0) if type(size) is int else MOST_EXTRA
    if type(count) is not int or not 0 <= count <= min(most, MOST_EXTRA):
        room = f", as {pieces} pieces in a vocab_size of {size} allow" if most < MOST_EXTRA else ""
        expected = f"expected 0 to {min(most, MOST_EXTRA)}{room}"
        raise DataError(f"extra_ids is {str(count)[:40]!r} ({expected})", folder.at("tokenizer_config.json"))
    return count


def byte_fallback(folder: Folder) -> Tokenizer:
    """Llama: <s>, then the pieces of tokenizer.model, bytes for characters it has no piece for."""
    model, pieces = load_pieces(folder, "tokenizer.model")
    numbers = {word: id for id, word in enumerate(pieces)}
    special = required(folder, "tokenizer.model", numbers, "unk")
    prefix = folder.flag("add_prefix_space", True)
    everywhere = folder.flag("legacy", False)
    with call_library("cannot cut a line end", folder.at("tokenizer.model")):
        start = model.encode("\n")

    def cut(text: str, first: bool) -> Sequence[int]:
        if prefix and (everywhere or (first and not text.startswith((" ", "▁")))):
            return list(model.encode(text))
        # the model always puts a space first; before a line end it is left out again with it
        return list(model.encode("\n" + text))[len(start) :]

    def join(pieces: list[str]) -> str:
        text = join_pieces(pieces)
        return text.removeprefix(" ") if prefix else text

    before = [special["bos"]] if folder.flag("add_bos_token", True) and "bos" in special else []
    after = [special["eos"]] if folder.flag("add_eos_token", False) and "eos" in special else []
    return build_tokenizer(folder, numbers, special, cut, join, before, after)


def whitespace(folder: Folder) -> Tokenizer:
    """A vocabulary alone: words between spaces, then </s> where there is one."""
    file = vocabulary_file(folder) or ""
    numbers = folder.numbers(file)
    special = specials(folder.settings, numbers.get)

    def cut(text: str, first: bool) -> list[int]:
        try:
            return tokens_to_ids(text.split(), numbers)
        except DataError as error:
            raise DataError(error.problem, folder.at(file)) from None

    return build_tokenizer(folder, numbers, special, cut, " ".join, after=[special["eos"]] if "eos" in special else [])


def build_tokenizer(
    folder: Folder,
    numbers: Mapping[str, int],
    special: Mapping[str, int],
    cut: Cut,
    join: Callable[[list[str]], str],
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    whole: Iterable[str] = (),
) -> Tokenizer:
    """A tokenizer of numbered pieces.

    cut            text between whole tokens -> ids
    join           pieces -> text
    before, after  ids put round every text
    whole          tokens found whole in a text and left out of decoded text, as the special ones are
    """
    numbers = {**numbers, **{added.spelling: added.id for added in folder.added}}
    vocabulary = spelled(numbers)
    hidden = {*special.values(), *(numbers[word] for word in whole), *(one.id for one in folder.added if one.special)}
    found = frozenset({vocabulary[id] for id in hidden} | {added.spelling for added in folder.added}) - {""}
    clean = folder.settings.get("clean_up_tokenization_spaces") is True

    def encode(text: str, known: Sequence[str] = (), pair: str | None = None) -> Tokens:
        if pair is not None:
            raise UsageError("its tokenizer takes one text, not a pair", folder.path)
        ids = [*before]
        with call_library("cannot cut the text", folder.path):
            for at, part in enumerate(divided(text, found)):
                ids += [numbers[part]] if at % 2 else cut(part, at == 0) if part else []
        ids += after
        return Tokens([vocabulary[id] for id in ids], ids)

    def decode(ids: Sequence[int]) -> str:
        text = join([vocabulary[id] for id in ids if id not in hidden and 0 <= id < len(vocabulary)])
        return clean_up(text) if clean else text

    return Tokenizer(encode, lambda: vocabulary, decode, special)


def load_pieces(folder: Folder, name: str) -> tuple[Any, list[str]]:
    """The sentencepiece model of a file, and its pieces by id."""
    model = import_library("sentencepiece", "text", folder.at(name)).SentencePieceProcessor()
    data = folder.data(name)
    try:
        with call_library("", ""):
            model.LoadFromSerializedProto(data)
            return model, [model.id_to_piece(id) for id in range(model.get_piece_size())]
    except DataError:  # what the library says names its own source lines
        raise DataError("not a sentencepiece model", folder.at(name)) from None


def divided(text: str, words: Collection[str]) -> list[str]:
    """A text divided at some words, leftmost first and then the longest: text, word, text, word, … text.

    >>> divided("a<s>b</s>", {"<s>", "</s>"})
    ['a', '<s>', 'b', '</s>', '']
    """
    lengths = sorted({len(word) for word in words if word}, reverse=True)
    first = re.compile("[" + "".join({re.escape(word[0]) for word in words if word}) + "]") if lengths else None
    parts, start, at = [], 0, 0
    while first and (found := first.search(text, at)):
        at = found.start()
        size = next((n for n in lengths if text[at : at + n] in words), 0)
        parts += [text[start:at], text[at : at + size]] if size else []
        at += size or 1
        start = at if size else start
    return [*parts, text[start:]]


def required(folder: Folder, file: str, numbers: Mapping[str, int], *names: str) -> dict[str, int]:
    """Ids of the special tokens, of which some must be there."""
    special = specials(folder.settings, numbers.get)
    for name in names:
        if name not in special:
            raise DataError(f"the vocabulary of {len(numbers)} tokens has no {name} token", folder.at(file))
    return special


def vocabulary_file(folder: Folder) -> str | None:
    """The name of the file that numbers a folder's tokens, None where there is none."""
    apart = folder.side == "target" and folder.settings.get("separate_vocabs") is True
    plain = "target_vocab.json" if apart else "vocab.json"
    others = sorted(name for name in folder.names if name.endswith(".vocab.yml"))
    names = [plain, "vocab.yml", *(others if len(others) == 1 else [])]
    return next((name for name in names if name in folder.names), None)


def join_pieces(pieces: Sequence[str]) -> str:
    """Pieces as text: `▁` is a space, a run of bytes is UTF-8, or U+FFFD for each of them where it is not.

    >>> join_pieces(["▁a", "<0xC3>", "<0xA9>", "▁b", "<0xC3>"])
    ' aé b�'
    """
    texts = []
    for bare, group in groupby(pieces, lambda piece: BYTE.fullmatch(piece) is not None):
        run = list(group)
        texts.append(characters(bytes(int(piece[3:5], 16) for piece in run)) if bare else "".join(run))
    return "".join(texts).replace("▁", " ")


def characters(run: bytes) -> str:
    """Bytes as UTF-8 text, U+FFFD for each of them where they are not."""
    try:
        return run.decode("utf-8")
    except UnicodeDecodeError:
        return "\ufffd" * len(run)
