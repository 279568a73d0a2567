"""Byte sources that are read once, from front to back."""

import contextlib
import errno
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Self

import numpy as np

from attnkit.errors import AttnkitError, DataError, FileError, counted, format_bytes, system_reason
from attnkit.formats.memory import physical_memory
from attnkit.records import Array

Buffer = bytes | bytearray | memoryview

CHUNK = 1 << 20  # bytes requested from the system at a time; also the size requested for a pipe
READ_LIMIT = 1 << 30  # macOS refuses to read 2^31 bytes in one call
BLOCK = 1 << 24  # the first read of an array: only when so much exists is the rest allocated
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 bytes as text; DataError names the first byte that is invalid.

    >>> decode_text(b"caf\\xc3\\xa9", "a.txt")
    'café'
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start})", name) from None


@contextlib.contextmanager
def name_errors(name: str) -> Iterator[None]:
    """Add the name of the file to errors of a `with` block that have none."""
    try:
        yield
    except AttnkitError as error:
        raise type(error)(error.problem, error.name or name) from error


@contextlib.contextmanager
def prefix_errors(part: str) -> Iterator[None]:
    """Put a part of the file before the problem of data errors."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{part}: {error.problem}", error.name) from error


def wait_until(descriptor: int, event: int) -> None:
    """Wait until a descriptor can be read (POLLIN) or written (POLLOUT)."""
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll()


class Source:
    """A named source of bytes, read once; never sought, measured or reopened.

    name  as the user wrote it
    hash  keep a SHA-256 of all that is consumed, for `digest`

    >>> source = Source.of(b"abcdef", "letters")
    >>> source.peek(2), source.read(4), source.read(4)
    (b'ab', b'abcd', b'ef')
    """

    def __init__(self, descriptor: int, name: str, hash: bool = False) -> None:
        self.name = name
        self._descriptor = descriptor
        self._ahead = memoryview(b"")  # read from the descriptor, not consumed yet
        self._buffer = memoryview(b"") if descriptor < 0 else np.empty(CHUNK, np.uint8).data  # not filled
        self._ended = False
        self._captured: list[Buffer] | None = None  # consumed since `take_captured`, after `capture`
        self._hash = None
        self._unhashed: list[Buffer] | None = None  # consumed since `defer_hash`
        if hash:
            import hashlib

            self._hash = hashlib.sha256()

    @classmethod
    def of(cls, data: Buffer, name: str = "<memory>") -> "Source":
        """A source of bytes that are in memory already."""
        source = cls(-1, name)
        source._ahead, source._ended = memoryview(data), True
        return source

    def peek(self, count: int) -> bytes:
        """The next bytes without consuming them; fewer only where the source ends."""
        self._fetch(count)
        return bytes(self._ahead[:count])

    def peek_lines(self, count: int, limit: int) -> bytes:
        """The bytes up to the end of that many lines, not consumed, at most `limit`."""
        head = self.peek(1)
        while head.count(b"\n") < count and len(head) < limit and not (self._ended and len(head) == len(self._ahead)):
            self._fetch(min(len(head) + 1, limit))
            head = bytes(self._ahead[:limit])
        return head

    def peek_available(self, count: int) -> bytes:
        """Up to `count` of the next bytes, not consumed, waiting if there are none."""
        self._fetch(1)
        return bytes(self._ahead[:count])

    def read(self, count: int) -> bytes:
        """The next bytes; fewer only where the source ends."""
        self._fetch(count)
        return bytes(self._consume(count))

    def read_available(self) -> Buffer:
        """The bytes that have arrived, waiting if there are none; empty at the end."""
        self._fetch(1)
        return self._consume(len(self._ahead))

    def readinto(self, target: memoryview) -> int:
        """Fill the target. Returns fewer bytes only at the end of the source."""
        count = min(len(self._ahead), len(target))
        target[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        while count < len(target) and not self._ended:
            count += self._readv(target[count : count + READ_LIMIT])
        self._keep(target[:count])
        return count

    def read_uint8(self, count: int) -> Array:
        """The next bytes as uint8, a view if in memory; fewer at the end.

        No more than the first block is allocated before that much has been read.
        """
        if len(self._ahead) >= count or self._ended:
            return np.frombuffer(self._consume(count), np.uint8)
        first = np.empty(min(count, BLOCK), np.uint8)
        got = self.readinto(first.data)
        if got < first.size or got == count:
            return first[:got]
        try:
            whole = np.empty(count, np.uint8)
        except MemoryError as error:
            raise DataError(f"needs {format_bytes(count)}, more than the available memory", self.name) from error
        whole[:BLOCK] = first
        return whole[: BLOCK + self.readinto(whole.data[BLOCK:])]

    def read_all(self) -> bytearray:
        """All bytes left. DataError if they are more than half of this machine's memory."""
        whole, limit = bytearray(), physical_memory() // 2
        while chunk := self.read_available():
            whole += chunk
            if len(whole) > limit:
                raise DataError(f"more than {format_bytes(limit)}, too large to hold in memory", self.name)
        return whole

    def count_rest(self) -> str:
        """How many bytes are left, for an error message; not counted beyond 64 KB."""
        count = len(self.peek(1 << 16))
        return counted(count, "byte") if count < 1 << 16 else "more than 64 KB"

    def empty_error(self, expected: str) -> DataError:
        """The error for an empty source: the command before has likely failed."""
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
                return DataError(f"empty input (expected {expected}) (did the command before it fail?)", self.name)
        return DataError(f"empty input (expected {expected})", self.name)

    def stop_hash(self) -> None:
        """Stop computing the SHA-256, where it turns out not to be needed."""
        self._hash = self._unhashed = None

    def defer_hash(self) -> None:
        """Keep what is consumed from now on, and compute the SHA-256 in `digest` only."""
        self._unhashed = [] if self._hash else None

    def digest(self) -> str:
        """The SHA-256 of the bytes consumed, in hexadecimal, or ""."""
        deferred, self._unhashed = self._unhashed or [], None
        for data in deferred:
            self._update_hash(data)
        return self._hash.hexdigest() if self._hash else ""

    def capture(self) -> None:
        """Keep the buffers consumed from now on, to pass them through unchanged."""
        self._captured = []

    def take_captured(self) -> list[Buffer]:
        """The buffers consumed since the last call, and forget them."""
        buffers, self._captured = self._captured or [], []
        return buffers

    def close(self) -> None:
        """Close the descriptor, except that of standard input."""
        if self._descriptor > 0:
            os.close(self._descriptor)
        self._descriptor, self._ended = -1, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetch(self, count: int) -> None:
        total, parts = len(self._ahead), [self._ahead]
        while total < count and not self._ended:
            got = self._readv(self._buffer)
            parts.append(memoryview(bytes(self._buffer[:got])))  # of its own size: a pipe gives little at a time
            total += got
        if len(parts) > 1:
            self._ahead = parts[1] if len(parts) == 2 and not parts[0] else memoryview(b"".join(parts))

    def _consume(self, count: int) -> memoryview:
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        self._keep(data)
        return data

    def _keep(self, data: memoryview) -> None:
        if self._unhashed is not None:
            self._unhashed.append(data)
        else:
            self._update_hash(data)
        if self._captured is not None:
            self._captured.append(data)

    def _update_hash(self, data: Buffer) -> None:
        if self._hash:
            self._hash.update(data)

    def _readv(self, buffer: memoryview) -> int:
        """Read into a buffer, waiting for the first byte; 0 bytes end the source."""
        while True:
            try:
                count = os.readv(self._descriptor, [buffer])
                self._ended = count == 0
                return count
            except BlockingIOError:
                wait_until(self._descriptor, select.POLLIN)
            except OSError as error:
                closed = error.errno == errno.EBADF
                raise FileError("not open" if closed else system_reason(error), self.name) from error


_REGULAR_ONLY = ContextVar("regular_only", default=False)


@contextlib.contextmanager
def regular_files_only() -> Iterator[None]:
    """Make `open_source` refuse FIFOs and devices, which may never end."""
    token = _REGULAR_ONLY.set(True)
    try:
        yield
    finally:
        _REGULAR_ONLY.reset(token)


def is_missing(error: FileError) -> bool:
    """Whether a file could not be opened because it does not exist."""
    return getattr(error.__cause__, "errno", None) in MISSING


def exists(path: str) -> bool:
    """Whether a file or a folder exists. FileError if that cannot be known.

    >>> exists("/"), exists("/no/such/file")
    (True, False)
    """
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in MISSING:
            return False
        raise FileError(system_reason(error), path) from error
    return True


def open_source(path: str, hash: bool = False) -> Source:
    """Open a file, FIFO or device for reading, or standard input for "-"."""
    if path == "-":
        if sys.stdin is None:  # closed at start: another file may have its number since
            raise FileError("not open", "<stdin>")
        widen_pipe(0)
        return Source(0, "<stdin>", hash)
    regular = _REGULAR_ONLY.get()
    try:  # opening a FIFO waits for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | regular * os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise FileError(system_reason(error), path) from error
    if regular and not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError("not a regular file", path)
    widen_pipe(descriptor)
    return Source(descriptor, path, hash)


def widen_pipe(descriptor: int) -> None:
    """Let a pipe of Linux hold a mebibyte, so that stages alternate less often."""
    import fcntl

    command = getattr(fcntl, "F_SETPIPE_SZ", None)
    if command is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, command, CHUNK)
