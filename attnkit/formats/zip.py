"""The ZIP container of NPZ: strict reading from memory, and writing that copies no data."""

import itertools
import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from attnkit.errors import DataError
from attnkit.formats.dtypes import format_bytes
from attnkit.formats.streams import Buffer

if TYPE_CHECKING:
    import mmap

Bytes: TypeAlias = "bytearray | mmap.mmap"

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")

LOCAL_MARK, CENTRAL_MARK, END_MARK = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_MARK, LOCATOR_MARK = b"PK\x06\x06", b"PK\x06\x07"
ENCRYPTED, UTF8 = 1, 0x800  # flags

STORED, DEFLATED = 0, 8
METHODS = {12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}
WIDE = 0xFFFFFFFF  # sizes and offsets from here on stand in a ZIP64 field
NEW_YEAR_1980 = (1 << 5) | 1  # month and day; ZIP counts years from 1980
ALIGNMENT = 64  # where arrays start, so that a reader can use them in place
ALIGNMENT_FIELD = 0xD935  # extra field that Android's zipalign uses for the same purpose
INFLATED = 64 << 20  # what compressed members may grow to in all: so much,
INFLATED_RATIO = 100  # or so many times the size of the archive


class Member(NamedTuple):
    """One file of an archive, its bytes still packed."""

    name: str
    method: int
    checksum: int
    size: int
    packed: memoryview


def members(data: Bytes) -> list[Member]:
    """The files of an archive, in the order of its directory; DataError for contradictions and bombs."""
    try:
        start, size, count = _directory(data)
        found = _entries(data, start, size, count)
    except struct.error as error:
        raise DataError("bad ZIP directory (truncated file?)") from error
    return acceptable(found, len(data))


def acceptable(found: list[Member], size: int) -> list[Member]:
    """The files of an archive of that size; DataError where they would grow too much, or two have one name."""
    inflated = sum(member.size for member in found if member.method == DEFLATED)
    if inflated > max(INFLATED, INFLATED_RATIO * size):
        raise bomb(size, inflated)
    seen: set[str] = set()
    for member in found:
        if member.name in seen:
            raise DataError(f"duplicate member {member.name[:100]!r}")
        seen.add(member.name)
    return found


def bomb(size: int, inflated: int, more: str = "") -> DataError:
    """The error for what grows too much, to so many bytes, or to more than those."""
    limit = format_bytes(max(INFLATED, INFLATED_RATIO * size))
    problem = f"{format_bytes(size)} compressed would become {more}{format_bytes(inflated)} (limit {limit})"
    return DataError(f"{problem}; save it uncompressed")


def contents(member: Member) -> memoryview:
    """The bytes of a member, a stored one in place; DataError where size or checksum do not agree."""
    content = member.packed if member.method == STORED else _inflate(member)
    if len(content) != member.size or zlib.crc32(content) != member.checksum:
        raise DataError("damaged: its size or checksum differs")
    return content


def archive(files: Iterable[tuple[str, list[Buffer]]]) -> list[Buffer]:
    """An archive of stored files: no compression, fixed timestamps, so that equal files are equal bytes.

    >>> made = bytearray(b"".join(archive([("a.txt", [b"hello"])])))
    >>> [(member.name, bytes(contents(member))) for member in members(made)]
    [('a.txt', b'hello')]
    """
    written: list[Buffer] = []
    directory: list[bytes] = []
    offset = 0
    for name, content in files:
        local, central = _headers(name, content, offset)
        written += [local, *content]
        directory.append(central)
        offset += len(local) + sum(map(len, content))
    return [*written, *directory, _end(len(directory), sum(map(len, directory)), offset)]


def _directory(data: Bytes) -> tuple[int, int, int]:
    """Where the directory starts, its size and its number of entries."""
    end = data.rfind(END_MARK, -END.size - 0xFFFF if len(data) > END.size + 0xFFFF else 0)
    if end < 0:
        raise DataError("truncated ZIP archive: no end of its directory")
    _, disk, first, here, count, size, start, comment = END.unpack_from(data, end)
    if end + END.size + comment != len(data):
        raise DataError(f"{len(data) - end - END.size - comment} bytes after the ZIP archive")
    if WIDE in (size, start) or count == 0xFFFF:
        signature, disk, position, _ = LOCATOR.unpack_from(data, max(end - LOCATOR.size, 0))
        if signature == LOCATOR_MARK:
            if position > end:
                raise DataError("bad ZIP directory")
            end = position
            signature, _, _, _, disk, first, here, count, size, start = END64.unpack_from(data, end)
            if signature != END64_MARK:
                raise DataError("bad ZIP directory")
    if disk or first or here != count or start + size != end:
        raise DataError("bad ZIP directory (several disks, or bytes before the archive)")
    return start, size, count


def _entries(data: Bytes, start: int, size: int, count: int) -> list[Member]:
    found, spans, at = [], [], start
    for _ in range(count):
        member, span, at = _entry(data, at, start)
        found.append(member)
        spans.append(span)
    if at != start + size:
        raise DataError("bad ZIP directory: its size differs")
    spans.sort()
    if any(before[1] > after[0] for before, after in itertools.pairwise(spans)):
        raise DataError("members of the ZIP archive overlap")
    return found


def _entry(data: Bytes, at: int, limit: int) -> tuple[Member, tuple[int, int], int]:
    """One entry of the directory: the member, the span it takes of the archive, where the next entry is."""
    fields = CENTRAL.unpack_from(data, at)
    signature, _, _, flags, method, _, _, checksum, packed, size, name_size, extra_size, comment = fields[:13]
    offset = fields[16]
    name_at = at + CENTRAL.size
    raw = bytes(data[name_at : name_at + name_size])
    name = decoded(raw, flags)
    extra = bytes(data[name_at + name_size : name_at + name_size + extra_size])
    size, packed, offset = widened(extra, [size, packed, offset])
    if signature != CENTRAL_MARK:
        raise DataError("bad ZIP directory")
    check_readable(name, flags, method)
    if offset + LOCAL.size > limit:
        raise DataError(f"member {name[:100]!r} lies outside the archive")
    local = LOCAL.unpack_from(data, offset)
    start = offset + LOCAL.size + local[9] + local[10]
    if local[0] != LOCAL_MARK or data[offset + LOCAL.size : offset + LOCAL.size + local[9]] != raw:
        raise DataError(f"member {name[:100]!r} is not where the directory says")
    if start + packed > limit or (method == STORED and packed != size):
        raise DataError(f"member {name[:100]!r}: declared size {size}, stored in {packed} bytes, does not fit")
    member = Member(name, method, checksum, size, memoryview(data)[start : start + packed])
    return member, (offset, start + packed), name_at + name_size + extra_size + comment


def decoded(raw: bytes, flags: int) -> str:
    """The name of a member, in the encoding that its flags say."""
    return raw.decode("utf-8" if flags & UTF8 else "cp437", "replace")


def check_readable(name: str, flags: int, method: int) -> None:
    """DataError where a member is encrypted, or compressed by a method that NPZ does not use."""
    if flags & ENCRYPTED:
        raise DataError(f"member {name[:100]!r} is encrypted")
    if method not in (STORED, DEFLATED):
        raise DataError(f"member {name[:100]!r} is compressed with {METHODS.get(method, f'method {method}')}")


def widened(extra: bytes, values: list[int]) -> list[int]:
    """Sizes and offset, those that do not fit 32 bits taken from the ZIP64 field."""
    at = 0
    while WIDE in values and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            if at + 4 + length > len(extra):
                raise DataError("bad ZIP archive: an extra field does not fit")
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            return [next(wide, WIDE) if value == WIDE else value for value in values]
        at += 4 + length
    return values


def _inflate(member: Member) -> memoryview:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(member.packed, member.size + 1)  # one more would show a wrong size
    except zlib.error as error:
        raise DataError(f"damaged: {error}") from error
    return memoryview(content)


def _headers(name: str, content: list[Buffer], offset: int) -> tuple[bytes, bytes]:
    """What stands before a file, and its entry in the directory."""
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
    fields = (
        version,
        0 if raw.isascii() else UTF8,
        STORED,
        0,
        NEW_YEAR_1980,
        checksum,
        stated,
        stated,
        len(raw),
    )
    extra = struct.pack("<2H2Q", 1, 16, size, size) if big else b""
    gap = -(offset + LOCAL.size + len(raw) + len(extra) + 4) % ALIGNMENT
    extra += struct.pack("<2H", ALIGNMENT_FIELD, gap) + bytes(gap)
    wide = [size, size] * big + [offset] * far
    wide_field = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    rest = (len(wide_field), 0, 0, 0, 0o644 << 16, WIDE if far else offset)
    local = LOCAL.pack(LOCAL_MARK, *fields, len(extra)) + raw + extra
    return local, CENTRAL.pack(CENTRAL_MARK, 3 << 8 | version, *fields, *rest) + raw + wide_field


def _end(count: int, size: int, start: int) -> bytes:
    """What stands after the directory."""
    wide = b""
    if start >= WIDE or count >= 0xFFFF:
        wide = END64.pack(END64_MARK, END64.size - 12, 3 << 8 | 45, 45, 0, 0, count, count, size, start)
        wide += LOCATOR.pack(LOCATOR_MARK, 0, start + size, 1)
    few = min(count, 0xFFFF)
    return wide + END.pack(END_MARK, 0, 0, few, few, size, min(start, WIDE), 0)
