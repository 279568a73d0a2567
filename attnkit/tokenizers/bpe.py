"""Byte-level BPE in memory: a tokenizer of its vocabulary, and its training.

`attnkit train --tokens bpe:N` trains by the tokenizers library instead, and writes the files of a model's folder.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from attnkit.errors import UsageError
from attnkit.libraries import call_library, import_library
from attnkit.tokenizers.huggingface import wrap_tokenizer
from attnkit.tokenizers.tokens import Tokenizer

Pair = tuple[bytes, bytes]


@cache
def byte_characters() -> dict[int, str]:
    """The character that the files of GPT-2 write for each byte.

    Visible characters of Latin-1 stand for themselves, the other bytes for those from U+0100 on.

    >>> byte_characters()[ord("a")], byte_characters()[ord(" ")]
    ('a', 'Ġ')
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in visible)
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def spell_bytes(token: bytes) -> str:
    """A token of bytes as the files of GPT-2 write it.

    >>> spell_bytes(" é".encode())
    'ĠÃ©'
    """
    characters = byte_characters()
    return "".join(characters[byte] for byte in token)


def make_bpe(
    vocabulary: Mapping[int, bytes] | Mapping[str, int],
    merges: Iterable[tuple[Any, Any]],
    special: Iterable[str] = (),
) -> Tokenizer:
    """The byte-level BPE tokenizer of a vocabulary and merges in memory.

    vocabulary  id -> bytes, or token as in vocab.json -> id
    merges      pairs of these tokens, the first merged first
    special     tokens that a text is not split in; those that the vocabulary lacks get the next ids

    Words are those of GPT-2. Needs the tokenizers library. DataError for a merge of tokens that the vocabulary lacks.

    >>> tokenizer = make_bpe({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")], special=["<end>"])
    >>> tokenizer.encode("abba<end>").ids, tokenizer.decode([2, 3], with_special=True)
    ([2, 1, 0, 3], 'ab<end>')
    """
    library = import_library("tokenizers", "text", "make_bpe")
    known: dict[Any, Any] = dict(vocabulary)
    ids = {_spelling(token): id for id, token in known.items()} if _is_by_id(known) else known
    special = [*special]
    for token in special:  # which bytes spell otherwise
        if (id := ids.pop(spell_bytes(token.encode()), None)) is not None:
            ids[token] = id
    for token in special:
        ids.setdefault(token, max(ids.values(), default=-1) + 1)
    pairs = [(_spelling(first), _spelling(second)) for first, second in merges]
    with call_library("not the merges of the vocabulary", ""):
        tokenizer = library.Tokenizer(library.models.BPE(ids, pairs))
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        tokenizer.add_special_tokens([library.AddedToken(token, normalized=False) for token in special])
    return wrap_tokenizer(tokenizer, "", None)


def _is_by_id(vocabulary: Mapping[Any, Any]) -> bool:
    return all(isinstance(id, int) for id in vocabulary)


def _spelling(token: bytes | str) -> str:
    return spell_bytes(token) if isinstance(token, bytes) else token


def train_bpe(texts: Iterable[str], size: int, special: Sequence[str] = ()) -> tuple[dict[int, bytes], list[Pair]]:
    """Train a byte-level BPE: its vocabulary, id -> bytes, and its merges in order.

    special  the first tokens, which are no part of any text; after them come the 256 bytes, then the merges

    Each step merges the pair of neighbours that is most frequent within the words of GPT-2. Of equally frequent pairs
    it is the one with the greatest first token, then the greatest second, compared as bytes. It ends early where no
    pair is left. The tokenizers library merges the pair of the least ids instead. UsageError for a size below the first
    tokens.
    Source: Sennrich et al. 2016, algorithm 1.

    >>> vocabulary, merges = train_bpe(["low low lower"], 260, ["<end>"])
    >>> vocabulary[0], merges
    (b'<end>', [(b'o', b'w'), (b'l', b'ow'), (b' ', b'low')])
    """
    alphabet = sorted(byte_characters(), key=byte_characters().__getitem__)
    tokens = [*(token.encode() for token in dict.fromkeys(special)), *(bytes([byte]) for byte in alphabet)]
    if size < len(tokens):
        raise UsageError(f"size {size} (expected {len(tokens)} or more: 256 bytes and the special tokens)")
    counts = count_words(texts, special)
    words, frequencies = [list(word) for word in counts], [*counts.values()]
    pairs, places = Counter[Pair](), defaultdict[Pair, set[int]](set)
    for number, word in enumerate(words):
        for pair in itertools.pairwise(word):
            pairs[pair] += frequencies[number]
            places[pair].add(number)
    merges: list[Pair] = []
    while len(tokens) + len(merges) < size and pairs:
        highest = max(pairs.values())
        if highest < 1:
            break
        best = max(pair for pair, count in pairs.items() if count == highest)
        merges.append(best)
        for number in places.pop(best):
            word = words[number]
            for pair in itertools.pairwise(word):
                pairs[pair] -= frequencies[number]
            words[number] = word = merge_pair(word, best)
            for pair in itertools.pairwise(word):
                pairs[pair] += frequencies[number]
                places[pair].add(number)
        del pairs[best]
    return dict(enumerate([*tokens, *map(b"".join, merges)])), merges


def count_words(texts: Iterable[str], special: Iterable[str] = ()) -> Counter[tuple[bytes, ...]]:
    """Count the words of texts between special tokens, each as its bytes.

    >>> count_words(["ab<end>ab c"], ["<end>"])
    Counter({(b'a', b'b'): 2, (b' ', b'c'): 1})
    """
    library = import_library("tokenizers", "text", "train_bpe")
    split = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = sorted(special, key=len, reverse=True)
    between = re.compile("|".join(map(re.escape, ends))) if ends else None
    found = Counter[str]()
    for text in texts:
        for part in between.split(text) if between else [text]:
            found.update(word for word, _ in split.pre_tokenize_str(part))
    bytes_of = {character: bytes([byte]) for byte, character in byte_characters().items()}
    return Counter({tuple(bytes_of[character] for character in word): count for word, count in found.items()})


def merge_pair(word: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Merge the occurrences of a pair in a word, from its start.

    >>> merge_pair([b"a", b"a", b"a"], (b"a", b"a"))
    [b'aa', b'a']
    """
    merged: list[bytes] = []
    at = 0
    while at < len(word):
        is_pair = tuple(word[at : at + 2]) == pair
        merged.append(pair[0] + pair[1] if is_pair else word[at])
        at += 1 + is_pair
    return merged
