"""The character map of a sentencepiece model: a trie of texts, and the text that each becomes when it is normalized."""

import numpy as np

from attnkit.errors import DataError

BLOCK = 1024  # bytes; a trie consists of whole blocks
LEAF = 1 << 31  # the bit of a unit that holds a value, and has no children


def check_charsmap(data: object, name: str) -> None:
    """Raise DataError for a map with a reference outside of it, on which a library ends the process.

    data  the size of the trie, 4 bytes; the trie; the texts, each of which ends with a zero byte

    Source: Normalizer::DecodePrecompiledCharsMap of sentencepiece, and the units of Darts-clone (darts.h).

    >>> check_charsmap(bytes([0, 4, 0, 0]) + bytes(BLOCK) + b"a", "m.spm")
    >>> check_charsmap(b"abc", "m.spm")
    Traceback (most recent call last):
    attnkit.errors.DataError: m.spm: the precompiled_charsmap is malformed
    """
    if not isinstance(data, bytes) or not _is_whole(data):
        raise DataError("the precompiled_charsmap is malformed", name)


def _is_whole(data: bytes) -> bool:
    size = int.from_bytes(data[:4], "little")
    trie, texts = data[4 : 4 + size], np.frombuffer(data[4 + size :], np.uint8)
    if not size or size % BLOCK or len(trie) < size:
        return False
    try:
        texts.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    children = np.arange(len(units)) ^ (units >> 10 << ((units & 512) >> 6))
    is_inner = units & LEAF == 0
    if (children[is_inner] >= len(units)).any():
        return False
    starts = units[children[is_inner & (units & 256 != 0)]] & (LEAF - 1)
    return bool((starts < len(texts)).all() and (texts[starts] & 0xC0 != 0x80).all())
