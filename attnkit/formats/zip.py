"""The ZIP container of NPZ, written without copying, read front to back."""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, format_bytes
from attnkit.formats.mapped import release_pages
from attnkit.formats.streams import Buffer, Source

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
    """The bytes of a member, a view if stored. Size and checksum must agree."""
    content = member.packed
    if member.method != STORED:
        content = memoryview(inflate_start(member, member.size + 1))  # one more would show a wrong size
    if len(content) != member.size or checksum(content) != member.checksum:
        raise DataError("damaged: its size or checksum differs")
    return content


def inflate_start(member: Member, count: int) -> bytes:
    """The first bytes of a compressed member."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(member.packed, count)
    except zlib.error as error:
        raise DataError(f"damaged: {error}") from error


def checksum(content: memoryview) -> int:
    """The CRC-32 of some bytes; those of a large mapped file do not stay in memory.

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


class ArchiveWriter:
    """Writes an archive of stored files. Equal files are equal bytes.

    write  receives the next buffers of the archive

    >>> buffers = []
    >>> archive = ArchiveWriter(buffers.extend)
    >>> archive.add("a.txt", [b"hello"])
    >>> archive.finish()
    >>> data = b"".join(buffers)
    >>> data[:4], data[64:69]
    (b'PK\\x03\\x04', b'hello')
    """

    def __init__(self, write: Callable[[list[Buffer]], object]) -> None:
        self._write = write
        self._directory: list[bytes] = []
        self._offset = 0

    def add(self, name: str, content: list[Buffer]) -> None:
        """Write a file."""
        local, central = _headers(name, content, self._offset)
        self._write([local, *content])
        self._directory.append(central)
        self._offset += len(local) + sum(map(len, content))

    def finish(self) -> None:
        """Write the directory, with which the archive ends."""
        size = sum(map(len, self._directory))
        self._write([*self._directory, _end_record(len(self._directory), size, self._offset)])


def _headers(name: str, content: list[Buffer], offset: int) -> tuple[bytes, bytes]:
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
    wide = b""
    if start >= WIDE or count >= 0xFFFF:
        wide = END64.pack(END64_MARK, END64.size - 12, 3 << 8 | 45, 45, 0, 0, count, count, size, start)
        wide += LOCATOR.pack(LOCATOR_MARK, 0, start + size, 1)
    few = min(count, 0xFFFF)
    return wide + END.pack(END_MARK, 0, 0, few, few, size, min(start, WIDE), 0)


INFLATED = 64 << 20  # the size that the compressed members of an archive may have together: so much,
INFLATED_RATIO = 100  # or so many times the bytes of the archive that have been read
METHODS = {12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}
ENCRYPTED = 1  # flag
DESCRIBED = 8  # flag: checksum and sizes follow the content, as they do where a writer cannot seek
DESCRIPTORS = ("<4sL2Q", "<L2Q", "<4s3L", "<3L")  # how they are laid out; the mark and the wide sizes are optional
DESCRIPTOR_MARK = b"PK\x07\x08"
LONGEST_DESCRIPTOR = 24
NEWEST = 63  # version of the ZIP format, 6.3
STEP = 1 << 16  # compressed bytes read, and 16 times as many inflated, at a time

Measure = Callable[[str, Source], int]


class Entry(NamedTuple):
    """The header before a file, at offset `at`, or its entry in the directory."""

    at: int
    flags: int
    name: str
    raw: bytes
    method: int
    checksum: int
    packed: int
    size: int


def read_archives(source: Source, measure: Measure) -> Iterator[list[Member]]:
    """Yield the members of each archive of a source, in order.

    An archive is compared with its directory before its members are returned. The bytes after it are not read
    before the next archive is requested.

    measure  (name, source) -> the size of a stored file at the front of the source, where its header has none

    >>> buffers = []
    >>> for content in (b"1", b"2"):
    ...     archive = ArchiveWriter(buffers.extend)
    ...     archive.add("a", [content])
    ...     archive.finish()
    >>> two = Source.of(b"".join(buffers))
    >>> [bytes(read_member(member)) for [member] in read_archives(two, lambda name, source: 0)]
    [b'1', b'2']
    """
    before = 0
    while True:
        reader = _Reader(source, before, measure)
        yield reader.members()
        before += reader.at
        rest = source.peek(4)
        if not rest:
            return
        if rest not in (LOCAL_MARK, END_MARK):
            raise DataError(f"{source.count_rest()} after the ZIP archive")


class _Reader:
    """A reader of one archive.

    before    how many bytes of the source come before it
    at        how many of its bytes have been read
    inflated  the size of its compressed members, all together
    """

    def __init__(self, source: Source, before: int, measure: Measure) -> None:
        self._source, self._before, self._measure = source, before, measure
        self.at = self.inflated = 0

    def members(self) -> list[Member]:
        """The members, which must agree with the directory and not repeat a name."""
        files: dict[int, tuple[Entry, Member]] = {}
        while self._source.peek(4) == LOCAL_MARK:
            local = self._local()
            files[local.at] = self._described(local) if local.flags & DESCRIBED else (local, self._plain(local))
        start, entries = self.at, []
        while self._source.peek(4) == CENTRAL_MARK:
            entries.append(self._entry())
        shift = self._end(start, len(entries))
        self._compare({at: entry for at, (entry, _) in files.items()}, entries, start, shift)
        self._check_inflated()
        members = {member.name: member for _, member in files.values()}
        if len(members) < len(files):
            names = [member.name for _, member in files.values()]
            repeated = next(name for at, name in enumerate(names) if name in names[:at])
            raise DataError(f"duplicate member {repeated[:100]!r}")
        return [*members.values()]

    def _read(self, count: int, problem: str) -> bytes:
        """The next `count` bytes. DataError names the problem where there are fewer."""
        data = self._source.read(count)
        self.at += len(data)
        if len(data) < count:
            raise DataError(f"truncated ZIP archive: {problem}")
        return data

    def _local(self) -> Entry:
        at, problem = self.at, "the header of a member is cut"
        fields = LOCAL.unpack(self._read(LOCAL.size, problem))
        _, version, flags, method, _, _, checksum, packed, size, name_size, extra_size = fields
        if version & 0xFF > NEWEST:
            raise DataError("bad ZIP archive: no header where a member begins")
        raw, extra = self._read(name_size, problem), self._read(extra_size, problem)
        size, packed = _apply_zip64(extra, [size, packed])
        name = _checked_name(raw, flags, method)
        if method == STORED and packed != size and not flags & DESCRIBED:
            raise DataError(f"member {name[:100]!r}: declared size {size}, stored in {packed} bytes, does not fit")
        return Entry(at, flags, name, raw, method, checksum, packed, size)

    def _plain(self, local: Entry) -> Member:
        self.inflated += local.size if local.method == DEFLATED else 0
        return Member(local.name, local.method, local.checksum, local.size, self._content(local.name, local.packed))

    def _content(self, name: str, size: int) -> memoryview:
        if size >= 1 << 62:
            raise DataError(f"member {name[:100]!r}: declared size {size} does not fit")
        content = self._source.read_uint8(size)
        self.at += content.size
        if content.size < size:
            raise DataError(f"truncated ZIP archive: member {name[:100]!r} needs {size} bytes, got {content.size}")
        return content.data

    def _described(self, local: Entry) -> tuple[Entry, Member]:
        """A file with checksum and sizes after it, and the header completed by them."""
        start = self.at
        if local.method == DEFLATED:
            content = self._inflated(local.name)
        else:
            content = self._content(local.name, self._measure(local.name, self._source))
        packed, size = self.at - start, len(content)
        checksum = self._descriptor(local.name, packed, size)
        member = Member(local.name, STORED, checksum, size, content)
        return local._replace(checksum=checksum, packed=packed, size=size), member

    def _inflated(self, name: str) -> memoryview:
        content, unpacker = bytearray(), zlib.decompressobj(-zlib.MAX_WBITS)
        while not unpacker.eof:
            ahead = self._source.peek_available(STEP)
            try:
                more = unpacker.decompress(ahead, 16 * STEP)
            except zlib.error as error:
                raise DataError(f"member {name[:100]!r}: damaged: {error}") from error
            content += more
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            self._read(len(ahead) - len(left), "")
            if not (ahead or more):
                raise DataError(f"truncated ZIP archive: member {name[:100]!r} does not end")
            self.inflated += len(more)
            self._check_inflated("more than ")
        return memoryview(content)

    def _check_inflated(self, more: str = "") -> None:
        """Raise DataError where the compressed members read so far grow to too many bytes."""
        allowed = max(INFLATED, INFLATED_RATIO * self.at)
        if self.inflated > allowed:
            problem = f"{format_bytes(self.at)} compressed would become {more}{format_bytes(self.inflated)}"
            raise DataError(f"{problem} (limit {format_bytes(allowed)}); save it uncompressed")

    def _descriptor(self, name: str, packed: int, size: int) -> int:
        """The checksum after a file, before its sizes, in any of their layouts."""
        ahead = self._source.peek(LONGEST_DESCRIPTOR)
        if len(ahead) < LONGEST_DESCRIPTOR:  # the directory follows
            raise DataError(f"truncated ZIP archive: member {name[:100]!r} is cut")
        for layout in DESCRIPTORS:
            *mark, checksum, stated_packed, stated = struct.unpack_from(layout, ahead)
            if mark in ([], [DESCRIPTOR_MARK]) and (stated_packed, stated) == (packed, size):
                self._read(struct.calcsize(layout), "")
                return int(checksum)
        raise DataError(f"member {name[:100]!r}: damaged: its size differs")

    def _entry(self) -> Entry:
        problem = "the end of its directory is missing"
        fields = CENTRAL.unpack(self._read(CENTRAL.size, problem))
        _, _, _, flags, method, _, _, checksum, packed, size, name_size, extra_size, comment = fields[:13]
        raw, extra = self._read(name_size, problem), self._read(extra_size, problem)
        self._read(comment, problem)
        size, packed, at = _apply_zip64(extra, [size, packed, fields[16]])
        return Entry(at, flags, _checked_name(raw, flags, method), raw, method, checksum, packed, size)

    def _end(self, start: int, entries: int) -> int:
        """Read the end of the archive; return the shift to subtract from its offsets.

        An archive that was appended to others may count its offsets from the start of the file.
        """
        problem, length = "the end of its directory is missing", self.at - start
        wide: tuple[int, ...] = ()
        if self._source.peek(4) == END64_MARK:
            wide = END64.unpack(self._read(END64.size, problem))
            if wide[1] != END64.size - 12:
                raise DataError("bad ZIP directory: its end has a wrong size")
            if self._read(LOCATOR.size, problem)[:4] != LOCATOR_MARK:
                raise DataError("bad ZIP directory")
        if len(self._source.peek(4)) < 4:
            raise DataError(f"truncated ZIP archive: {problem}")
        if self._source.peek(4) != END_MARK:
            raise DataError("bad ZIP archive: expected a member or the directory")
        _, disk, first, here, count, size, at, comment = END.unpack(self._read(END.size, problem))
        self._read(comment, problem)
        if wide:
            disk, first, here, count, size, at = wide[4:]
        if disk or first or here != count:
            raise DataError("bad ZIP directory (several disks)")
        if count != entries or size != length or at not in (start, start + self._before):
            raise DataError("bad ZIP directory: its size or place differs")
        return int(at - start)

    def _compare(self, local: dict[int, Entry], entries: list[Entry], limit: int, shift: int) -> None:
        """Raise DataError unless the directory has every file once, as its header has it."""
        rest = dict(local)
        for entry in entries:
            at = entry.at - shift
            if not 0 <= at < limit:
                raise DataError(f"member {entry.name[:100]!r} is outside the archive")
            if at in local and at not in rest:
                raise DataError("members of the ZIP archive overlap")
            if at not in rest or rest[at].raw != entry.raw:
                raise DataError(f"member {entry.name[:100]!r} is not where the directory says")
            if rest.pop(at)[4:] != entry[4:]:
                raise DataError(
                    f"member {entry.name[:100]!r}: damaged: its size or checksum differs from the directory's"
                )
        if rest:
            raise DataError(f"member {next(iter(rest.values())).name[:100]!r} is missing from the ZIP directory")


def _checked_name(raw: bytes, flags: int, method: int) -> str:
    """The name of a member. DataError if it is encrypted or oddly compressed."""
    name = raw.decode("utf-8" if flags & UTF8 else "cp437", "replace")
    if flags & ENCRYPTED:
        raise DataError(f"member {name[:100]!r} is encrypted")
    if method not in (STORED, DEFLATED):
        raise DataError(f"member {name[:100]!r} is compressed with {METHODS.get(method, f'method {method}')}")
    return name


def _apply_zip64(extra: bytes, values: list[int]) -> list[int]:
    """The sizes and the offset, from the ZIP64 field if they exceed 32 bits."""
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
