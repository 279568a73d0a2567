"""The ZIP container of NPZ: its headers, its members, and writing that copies no data."""

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.mapped import release_pages
from attnkit.formats.streams import Buffer

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")

LOCAL_MARK, CENTRAL_MARK, END_MARK = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_MARK, LOCATOR_MARK = b"PK\x06\x06", b"PK\x06\x07"
UTF8 = 0x800  # flag: the name is UTF-8

STORED, DEFLATED = 0, 8
CHUNK = 1 << 24  # bytes of which the checksum is computed at a time
LARGE = 1 << 20  # bytes of a mapped file that do not stay in memory after they were summed
WIDE = 0xFFFFFFFF  # sizes and offsets from here on are in a ZIP64 field
NEW_YEAR_1980 = (1 << 5) | 1  # month and day; ZIP counts years from 1980
ALIGNMENT = 64  # where arrays start, so that a reader can use them in place
ALIGNMENT_FIELD = 0xD935  # extra field that Android's zipalign uses for the same purpose


class Member(NamedTuple):
    """One file of an archive, its bytes as they are in the archive."""

    name: str
    method: int
    checksum: int
    size: int
    packed: memoryview


def read_member(member: Member) -> memoryview:
    """Return the bytes of a member, a view where it is stored; DataError where size or checksum differ."""
    content = member.packed if member.method == STORED else _inflate(member)
    if len(content) != member.size or checksum(content) != member.checksum:
        raise DataError("damaged: its size or checksum differs")
    return content


def checksum(content: memoryview) -> int:
    """Return the CRC-32 of some bytes; those of a large mapped file do not stay in memory.

    >>> checksum(memoryview(b"hello"))
    907060870
    """
    value = 0
    for at in range(0, len(content), CHUNK):
        part = content[at : at + CHUNK]
        value = zlib.crc32(part, value)
        if len(content) > LARGE:
            release_pages(np.frombuffer(part, np.uint8))
    return value


def encode_archive(files: Iterable[tuple[str, list[Buffer]]]) -> list[Buffer]:
    """Return an archive of stored files: no compression, fixed timestamps, so that equal files are equal bytes.

    >>> data = b"".join(encode_archive([("a.txt", [b"hello"])]))
    >>> data[:4], data[64:69]
    (b'PK\\x03\\x04', b'hello')
    """
    buffers: list[Buffer] = []
    directory: list[bytes] = []
    offset = 0
    for name, content in files:
        local, central = _headers(name, content, offset)
        buffers += [local, *content]
        directory.append(central)
        offset += len(local) + sum(map(len, content))
    return [*buffers, *directory, _end_record(len(directory), sum(map(len, directory)), offset)]


def _inflate(member: Member) -> memoryview:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(member.packed, member.size + 1)  # one more would show a wrong size
    except zlib.error as error:
        raise DataError(f"damaged: {error}") from error
    return memoryview(content)


def _headers(name: str, content: list[Buffer], offset: int) -> tuple[bytes, bytes]:
    """Return the header before a file, and its entry in the directory."""
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"name {name!r} cannot be written: not Unicode") from error
    if len(raw) > 0xFF00:
        raise DataError(f"name {name[:40]!r}... is too long for a ZIP archive")
    size = sum(map(len, content))
    checksum = 0
    for buffer in content:
        checksum = zlib.crc32(buffer, checksum)
    big, far = size >= WIDE, offset >= WIDE
    version = 45 if big or far else 20
    stated = WIDE if big else size
    flags = 0 if raw.isascii() else UTF8
    fields = (version, flags, STORED, 0, NEW_YEAR_1980, checksum, stated, stated, len(raw))
    extra = struct.pack("<2H2Q", 1, 16, size, size) if big else b""
    gap = -(offset + LOCAL.size + len(raw) + len(extra) + 4) % ALIGNMENT
    extra += struct.pack("<2H", ALIGNMENT_FIELD, gap) + bytes(gap)
    wide = [size, size] * big + [offset] * far
    wide_field = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    rest = (len(wide_field), 0, 0, 0, 0o644 << 16, WIDE if far else offset)
    local = LOCAL.pack(LOCAL_MARK, *fields, len(extra)) + raw + extra
    return local, CENTRAL.pack(CENTRAL_MARK, 3 << 8 | version, *fields, *rest) + raw + wide_field


def _end_record(count: int, size: int, start: int) -> bytes:
    """Return the end of the archive, after its directory."""
    wide = b""
    if start >= WIDE or count >= 0xFFFF:
        wide = END64.pack(END64_MARK, END64.size - 12, 3 << 8 | 45, 45, 0, 0, count, count, size, start)
        wide += LOCATOR.pack(LOCATOR_MARK, 0, start + size, 1)
    few = min(count, 0xFFFF)
    return wide + END.pack(END_MARK, 0, 0, few, few, size, min(start, WIDE), 0)
