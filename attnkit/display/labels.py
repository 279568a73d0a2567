"""Tokens as a reader writes them, with a middle dot for a space."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnkit.records import Labels, Record, shared_labels

SPACE = "·"
BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE = "Ġ", "▁"  # as GPT-2 and SentencePiece write a space


def plain_labels(labels: Labels | None) -> Labels | None:
    """Labels with spaces of tokens as `·` and bytes as characters.

    Only a list with a token that begins with Ġ is taken for bytes, as GPT-2 spells them.

    >>> plain_labels(["The", "Ġcaf", "Ã©"]), plain_labels(["▁chat", "s"]), plain_labels(["café"]), plain_labels(None)
    (['The', '·caf', 'é'], ['·chat', 's'], ['café'], None)
    """
    if not labels:
        return labels
    rows = [_plain_tokens(row) for row in labels if isinstance(row, list)]
    return rows or _plain_tokens(shared_labels(labels))


def with_plain_tokens(record: Record) -> Record:
    """A record with its tokens spelled plain: `·fox` for Ġfox and ▁fox."""
    if not record.labels:
        return record
    return replace(record, labels={axis: plain_labels(names) or [] for axis, names in record.labels.items()})


def _plain_tokens(tokens: Sequence[str]) -> list[str]:
    if any(token.startswith(BYTE_LEVEL_SPACE) for token in tokens):
        return [_decode_bytes(token).replace(" ", SPACE) for token in tokens]
    return [token.replace(SENTENCEPIECE_SPACE, SPACE) for token in tokens]


def _decode_bytes(token: str) -> str:
    """The text of a token spelled in bytes, or the token if that is no text."""
    table = _byte_of()
    try:
        return bytes(table[character] for character in token).decode()
    except (KeyError, UnicodeDecodeError):
        return token.replace(BYTE_LEVEL_SPACE, SPACE)


@functools.cache
def _byte_of() -> Mapping[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
