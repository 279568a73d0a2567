"""ZIP archives one after another, read from front to back by the headers before their files."""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from attnkit.errors import DataError
from attnkit.formats.streams import Source
from attnkit.formats.zip import (
    CENTRAL,
    CENTRAL_MARK,
    DEFLATED,
    END,
    END64,
    END64_MARK,
    END_MARK,
    INFLATED,
    INFLATED_RATIO,
    LOCAL,
    LOCAL_MARK,
    LOCATOR,
    LOCATOR_MARK,
    STORED,
    WIDE,
    Member,
    acceptable,
    bomb,
    check_readable,
    decoded,
    widened,
)

DESCRIBED = 8  # flag: checksum and sizes follow the content, as they do where a writer cannot seek
DESCRIPTORS = ("<4sL2Q", "<L2Q", "<4s3L", "<3L")  # how they are laid out; the mark and the wide sizes are optional
DESCRIPTOR_MARK = b"PK\x07\x08"
NEWEST = 63  # version of the ZIP format, 6.3
STEP = 1 << 16  # compressed bytes looked at, and 16 times as many inflated, at a time

Measure = Callable[[str, Source], int]


class Local(NamedTuple):
    """The header before a file; `at` is its place in the archive."""

    at: int
    name: str
    raw: bytes
    flags: int
    method: int
    checksum: int
    packed: int
    size: int


class Entry(NamedTuple):
    """The entry of a file in the directory; `at` is where it says that the header is."""

    at: int
    name: str
    raw: bytes
    method: int
    checksum: int
    packed: int
    size: int


def archives(source: Source, measure: Measure) -> Iterator[list[Member]]:
    """The files of each archive of a source, in order; DataError for contradictions and bombs.

    An archive is held against its directory before its files are handed out. What follows it is looked at when the
    next one is asked for.

    measure  (name, source) -> the size of a stored file that the source begins with, where its header leaves it open

    >>> from attnkit.formats.zip import archive, contents
    >>> two = b"".join(archive([("a", [b"1"])]) + archive([("b", [b"2"])]))
    >>> [bytes(contents(member)) for [member] in archives(Source.of(two), lambda name, source: 0)]
    [b'1', b'2']
    """
    before = 0
    while True:
        reader = _Reader(source, before, measure)
        found = reader.members()
        yield acceptable(found, reader.at)
        before += reader.at
        rest = source.peek(4)
        if not rest:
            return
        if rest not in (LOCAL_MARK, END_MARK):
            count = len(source.peek(1 << 16))
            many = "1 byte" if count == 1 else f"{count} bytes" if count < 1 << 16 else "more than 64 KB"
            raise DataError(f"{many} after the ZIP archive")


class _Reader:
    """One archive.

    before  bytes of the source that come before it
    at      bytes of it that have been read
    """

    def __init__(self, source: Source, before: int, measure: Measure) -> None:
        self._source, self._before, self._measure, self.at = source, before, measure, 0

    def members(self) -> list[Member]:
        """Its files, once they are known to be those of its directory."""
        found: dict[int, tuple[Entry, Member]] = {}
        while self._source.peek(4) == LOCAL_MARK:
            local = self._local()
            found[local.at] = self._described(local) if local.flags & DESCRIBED else self._plain(local)
        start, entries = self.at, []
        while self._source.peek(4) == CENTRAL_MARK:
            entries.append(self._entry())
        shift = self._end(start, len(entries))
        self._compare({at: entry for at, (entry, _) in found.items()}, entries, start, shift)
        return [member for _, member in found.values()]

    def _read(self, count: int, what: str) -> bytes:
        """That many bytes; DataError says what they are where they are not there."""
        got = self._source.read(count)
        self.at += len(got)
        if len(got) < count:
            raise DataError(f"truncated ZIP archive: {what}")
        return got

    def _local(self) -> Local:
        """The header of the next file."""
        at, what = self.at, "the header of a member is cut"
        fields = LOCAL.unpack(self._read(LOCAL.size, what))
        _, version, flags, method, _, _, checksum, packed, size, name_size, extra_size = fields
        if version & 0xFF > NEWEST:
            raise DataError("bad ZIP archive: no header where a member begins")
        raw, extra = self._read(name_size, what), self._read(extra_size, what)
        size, packed = widened(extra, [size, packed])
        name = decoded(raw, flags)
        check_readable(name, flags, method)
        if method == STORED and packed != size and not flags & DESCRIBED:
            raise DataError(f"member {name[:100]!r}: declared size {size}, stored in {packed} bytes, does not fit")
        return Local(at, name, raw, flags, method, checksum, packed, size)

    def _plain(self, local: Local) -> tuple[Entry, Member]:
        """A file whose header says its size, and the entry that it must have."""
        member = Member(local.name, local.method, local.checksum, local.size, self._content(local.name, local.packed))
        return Entry(local.at, local.name, local.raw, local.method, *local[5:]), member

    def _content(self, name: str, size: int) -> memoryview:
        """The next bytes, in place where they are in memory."""
        if size >= 1 << 62:
            raise DataError(f"member {name[:100]!r}: declared size {size} does not fit")
        content = self._source.read_uint8(size)
        self.at += content.size
        if content.size < size:
            raise DataError(f"truncated ZIP archive: member {name[:100]!r} needs {size} bytes, got {content.size}")
        return content.data

    def _described(self, local: Local) -> tuple[Entry, Member]:
        """A file with checksum and sizes after it, and the entry that it must have."""
        start = self.at
        if local.method == DEFLATED:
            content = self._inflated(local.name)
        else:
            content = self._content(local.name, self._measure(local.name, self._source))
        packed, checksum = self.at - start, zlib.crc32(content)
        self._descriptor(local.name, checksum, packed, len(content))
        entry = Entry(local.at, local.name, local.raw, local.method, checksum, packed, len(content))
        return entry, Member(local.name, STORED, checksum, len(content), content)

    def _inflated(self, name: str) -> memoryview:
        """A compressed file, which says itself where it ends."""
        start, content, unpacker = self.at, bytearray(), zlib.decompressobj(-zlib.MAX_WBITS)
        while not unpacker.eof:
            ahead = self._source.peek_available(STEP)
            try:
                more = unpacker.decompress(ahead, 16 * STEP)
            except zlib.error as error:
                raise DataError(f"member {name[:100]!r}: damaged: {error}") from error
            content += more
            used = len(ahead) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
            self._read(used, "")
            if not (ahead or more):
                raise DataError(f"truncated ZIP archive: member {name[:100]!r} does not end")
            if len(content) > max(INFLATED, INFLATED_RATIO * (self.at - start)):
                raise bomb(self.at - start, len(content), more="more than ")
        return memoryview(content)

    def _descriptor(self, name: str, checksum: int, packed: int, size: int) -> None:
        """Reads checksum and sizes after a file, in one of the ways they are written."""
        small = max(packed, size) < WIDE
        marks = {layout: [DESCRIPTOR_MARK] * ("s" in layout) for layout in DESCRIPTORS if small or "Q" in layout}
        expected = [struct.pack(layout, *mark, checksum, packed, size) for layout, mark in marks.items()]
        ahead = self._source.peek(max(map(len, expected)))
        for one in expected:
            if ahead.startswith(one):
                self._read(len(one), "")
                return
        if any(one.startswith(ahead) for one in expected):
            raise DataError(f"truncated ZIP archive: member {name[:100]!r} is cut")
        raise DataError(f"member {name[:100]!r}: damaged: its size or checksum differs")

    def _entry(self) -> Entry:
        """The next entry of the directory."""
        what = "no end of its directory"
        fields = CENTRAL.unpack(self._read(CENTRAL.size, what))
        _, _, _, flags, method, _, _, checksum, packed, size, name_size, extra_size, comment = fields[:13]
        raw, extra = self._read(name_size, what), self._read(extra_size, what)
        self._read(comment, what)
        size, packed, at = widened(extra, [size, packed, fields[16]])
        name = decoded(raw, flags)
        check_readable(name, flags, method)
        return Entry(at, name, raw, method, checksum, packed, size)

    def _end(self, start: int, entries: int) -> int:
        """Reads what follows the directory, and says how far on its offsets count from the start of the archive.

        An archive that was written behind others may count them from the start of the file.
        """
        what, length = "no end of its directory", self.at - start
        wide: tuple[int, ...] = ()
        if self._source.peek(4) == END64_MARK:
            wide = END64.unpack(self._read(END64.size, what))
            if wide[1] != END64.size - 12:
                raise DataError("bad ZIP directory: an end of another size")
            if self._read(LOCATOR.size, what)[:4] != LOCATOR_MARK:
                raise DataError("bad ZIP directory")
        if len(self._source.peek(4)) < 4:
            raise DataError(f"truncated ZIP archive: {what}")
        if self._source.peek(4) != END_MARK:
            raise DataError("bad ZIP archive: neither a member nor the directory where one of them begins")
        _, disk, first, here, count, size, at, comment = END.unpack(self._read(END.size, what))
        self._read(comment, what)
        if wide:
            disk, first, here, count, size, at = wide[4:]
        if disk or first or here != count:
            raise DataError("bad ZIP directory (several disks)")
        if count != entries or size != length or at not in (start, start + self._before):
            raise DataError("bad ZIP directory: its size or place differs")
        return int(at - start)

    def _compare(self, found: dict[int, Entry], entries: list[Entry], limit: int, shift: int) -> None:
        """DataError unless the directory has every file once, as its header does."""
        left = dict(found)
        for entry in entries:
            at = entry.at - shift
            if not 0 <= at < limit:
                raise DataError(f"member {entry.name[:100]!r} lies outside the archive")
            if at in found and at not in left:
                raise DataError("members of the ZIP archive overlap")
            if at not in left or left[at].raw != entry.raw:
                raise DataError(f"member {entry.name[:100]!r} is not where the directory says")
            if left.pop(at)[3:] != entry[3:]:
                raise DataError(
                    f"member {entry.name[:100]!r}: damaged: its size or checksum differs from the directory's"
                )
        if left:
            raise DataError(f"member {next(iter(left.values())).name[:100]!r} is missing from the ZIP directory")
