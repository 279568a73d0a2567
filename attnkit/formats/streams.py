"""Byte sources read once from front to back, and files that appear whole or not at all."""

import contextlib
import errno
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from attnkit.errors import AttnkitError, DataError, FileError
from attnkit.formats.dtypes import is_readable, physical_memory
from attnkit.record import Array

if TYPE_CHECKING:
    import mmap

Buffer = bytes | bytearray | memoryview
Operand = TypeVar("Operand")
Result = TypeVar("Result")

CHUNK = 1 << 20  # bytes asked of the system at a time; also the size asked for of a pipe
READ_LIMIT = 1 << 30  # macOS refuses to read 2^31 bytes in one call
BLOCK = 1 << 24  # the first read of an array: only when so much exists is the rest allocated
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
SMALL = 1 << 16  # buffers up to this size in all are joined before they are written


@contextlib.contextmanager
def name_errors(name: str) -> Iterator[None]:
    """Gives errors raised inside the name of the file at fault, unless they carry one."""
    try:
        yield
    except AttnkitError as error:
        raise type(error)(error.problem, error.name or name) from error


@contextlib.contextmanager
def within(part: str) -> Iterator[None]:
    """Puts the part of the file at fault before the problem of errors raised inside."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{part}: {error.problem}", error.name) from error


class Source:
    """A named source of bytes, consumed once from front to back; never sought, measured or reopened.

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
        self._buffer = memoryview(b"" if descriptor < 0 else bytearray(CHUNK))
        self._ended = False
        self._captured: list[Buffer] | None = None  # consumed since the last record, where asked for
        self._hash = None
        self._unhashed: list[Buffer] | None = None  # consumed, for a SHA-256 that may not be asked for
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

    def glance(self, count: int) -> bytes:
        """Up to that many of the next bytes without consuming them, waiting only while there are none."""
        self._fetch(1)
        return bytes(self._ahead[:count])

    def read(self, count: int) -> bytes:
        """The next bytes; fewer only where the source ends."""
        self._fetch(count)
        return bytes(self._consume(count))

    def available(self) -> Buffer:
        """Whatever is there, waiting only while nothing is; empty where the source ends."""
        self._fetch(1)
        return self._consume(len(self._ahead))

    def readinto(self, target: memoryview) -> int:
        """Fills the target and says how many bytes it got; fewer only where the source ends."""
        count = min(len(self._ahead), len(target))
        target[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        while count < len(target) and not self._ended:
            got = self._reading(lambda rest: os.readv(self._descriptor, [rest]), target[count : count + READ_LIMIT])
            self._ended = got == 0
            count += got
        self._note(target[:count])
        return count

    def take(self, count: int) -> Array:
        """The next bytes as a uint8 array, not copied when they are in memory; fewer where the source ends.

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
            raise DataError(f"needs {is_readable(count)}, more memory than there is", self.name) from error
        whole[:BLOCK] = first
        return whole[: BLOCK + self.readinto(whole.data[BLOCK:])]

    def read_all(self) -> bytearray:
        """All that is left; DataError when it is more than half of this machine's memory."""
        whole, limit = bytearray(), physical_memory() // 2
        while chunk := self.available():
            whole += chunk
            if len(whole) > limit:
                raise DataError(f"more than {is_readable(limit)}, too large to hold in memory", self.name)
        return whole

    def empty(self, expected: str) -> DataError:
        """The error for a source without a byte; that of a pipe is likely the fault of the command before."""
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
                return DataError(f"empty input (expected {expected}) (did the command before it fail?)", self.name)
        return DataError(f"empty input (expected {expected})", self.name)

    def stop_hash(self) -> None:
        """Gives up the SHA-256, where it turns out that nobody needs it."""
        self._hash = self._unhashed = None

    def defer_hash(self) -> None:
        """Keeps what is consumed from now on, and computes the SHA-256 when it is asked for."""
        self._unhashed = [] if self._hash else None

    def digest(self) -> str:
        """The SHA-256 of all that was consumed, in hexadecimal; empty where none is kept."""
        waiting, self._unhashed = self._unhashed or [], None
        for data in waiting:
            self._note_hash(data)
        return self._hash.hexdigest() if self._hash else ""

    def capture(self) -> None:
        """Starts to keep the buffers consumed, for a tool that passes its input through untouched."""
        self._captured = []

    def captured(self) -> list[Buffer]:
        """The buffers consumed since the last call, and forgets them."""
        taken, self._captured = self._captured or [], []
        return taken

    def close(self) -> None:
        """Closes the descriptor, standard input excepted."""
        if self._descriptor > 0:
            os.close(self._descriptor)
        self._descriptor, self._ended = -1, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetch(self, count: int) -> None:
        """Reads until that many bytes are ahead, or the source ends."""
        have, parts = len(self._ahead), [self._ahead]
        while have < count and not self._ended:
            got = self._reading(lambda buffer: os.readv(self._descriptor, [buffer]), self._buffer)
            self._ended = got == 0
            parts.append(memoryview(bytes(self._buffer[:got])))  # of its own size: a pipe gives little at a time
            have += got
        if len(parts) > 1:
            self._ahead = parts[1] if len(parts) == 2 and not parts[0] else memoryview(b"".join(parts))

    def _consume(self, count: int) -> memoryview:
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        self._note(taken)
        return taken

    def _note(self, data: memoryview) -> None:
        if self._unhashed is not None:
            self._unhashed.append(data)
        else:
            self._note_hash(data)
        if self._captured is not None:
            self._captured.append(data)

    def _note_hash(self, data: Buffer) -> None:
        if self._hash:
            self._hash.update(data)

    def _reading(self, call: Callable[[Operand], Result], operand: Operand) -> Result:
        """One system call that reads whatever is there (Python itself repeats interrupted ones)."""
        while True:
            try:
                return call(operand)
            except BlockingIOError:
                select.select([self._descriptor], [], [])
            except OSError as error:
                closed = error.errno == errno.EBADF
                raise FileError("not open" if closed else _reason(error), self.name) from error


_regular_only = ContextVar("_regular_only", default=False)


@contextlib.contextmanager
def regular_files_only() -> Iterator[None]:
    """Has `open_source` refuse FIFOs and devices, which may never end, in a `with` block; not standard input."""
    before = _regular_only.set(True)
    try:
        yield
    finally:
        _regular_only.reset(before)


def is_missing(error: FileError) -> bool:
    """Whether a file could not be opened because there is none of that name, and not for another reason."""
    return getattr(error.__cause__, "errno", None) in MISSING


def exists(path: str) -> bool:
    """Whether there is a file or a folder of that name; FileError where that cannot be known.

    >>> exists("/"), exists("/no/such/file")
    (True, False)
    """
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in MISSING:
            return False
        raise FileError(_reason(error), path) from error
    return True


def open_source(path: str, hash: bool = False) -> Source:
    """Opens a file, FIFO or device for reading, or standard input for "-"; FileError says why it cannot."""
    if path == "-":
        if sys.stdin is None:  # closed at start: its number may since have gone to another file
            raise FileError("not open", "<stdin>")
        _widen_pipe(0)
        return Source(0, "<stdin>", hash)
    regular = _regular_only.get()
    try:  # to open a FIFO waits for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | regular * os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise FileError(_reason(error), path) from error
    if regular and not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError("not a regular file", path)
    _widen_pipe(descriptor)
    return Source(descriptor, path, hash)


class Mapped(NamedTuple):
    """The tensors of a file, left where they lie until one is asked for.

    entries  the dtype and the shape of each by name, in the order of the file
    tensor   reads one, in place where the file allows
    """

    name: str
    entries: dict[str, tuple[str, tuple[int, ...]]]
    tensor: Callable[[str], Array]


def map_file(path: str) -> "mmap.mmap":
    """A regular file as memory of which only what is looked at is read; FileError or DataError says why not."""
    import mmap

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise FileError(_reason(error), path) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError("not a regular file", path)
        if os.fstat(descriptor).st_size == 0:
            raise DataError("empty file", path)
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise FileError(_reason(error), path) from error
    finally:
        os.close(descriptor)
    refuse_lfs_pointer(data[:64], path)
    _mapped[path] = len(data)
    return data


_mapped: dict[str, int] = {}  # the size that a file had when it was mapped


def cut_short() -> str:
    """The mapped file that is shorter than it was; "" where there is none."""
    for path, size in _mapped.items():
        with contextlib.suppress(OSError):
            if os.stat(path).st_size < size:
                return path
    return ""


def release_pages(array: Array) -> None:
    """Give the memory of an array of a mapped file back to the system, to be read again where it is asked for."""
    mapped: Any = array
    while isinstance(mapped, np.ndarray | memoryview):
        mapped = mapped.base if isinstance(mapped, np.ndarray) else mapped.obj
    import mmap

    if hasattr(mapped, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        start, page = np.frombuffer(mapped, np.uint8).ctypes.data, mmap.PAGESIZE
        first, end = (address - start for address in np.lib.array_utils.byte_bounds(array))
        first = -(-first // page) * page  # whole pages only
        if end // page * page > first:
            mapped.madvise(mmap.MADV_DONTNEED, first, end // page * page - first)


def refuse_lfs_pointer(start: bytes, path: str) -> None:
    """DataError where a file begins as the text that Git LFS leaves in its place."""
    if start.startswith(b"version https://git-lfs"):
        raise DataError("a Git LFS pointer, not the file itself; git lfs pull", path)


def write_all(descriptor: int, buffers: Sequence[Buffer], name: str) -> None:
    """Writes every byte, however few the system takes at a time.

    BrokenPipeError where the reader went away; FileError for any other failure.
    """
    if sum(map(len, buffers)) <= SMALL:
        buffers = [b"".join(buffers)]
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BrokenPipeError:
                raise
            except BlockingIOError:
                select.select([], [descriptor], [])
            except OSError as error:
                if error.errno == errno.EFAULT and (short := cut_short()):
                    raise FileError("cut short while it was read", short) from error
                raise FileError(f"write error: {_reason(error)}", name) from error


class Sink:
    """Where records are written: standard output, a device, or a file that is replaced as a whole.

    A regular file is written under a temporary name beside it and renamed when the `with` block ends without
    an exception; a failure, or a signal that ends the process, removes the temporary and leaves the old file.
    """

    def __init__(self, path: str | None) -> None:
        self.name = "<stdout>" if path in (None, "-") else str(path)
        self._descriptor = -1
        self._owned = False  # whether closing the descriptor is up to us
        self._target = self._temporary = self._old = ""
        self._is_new = self._renamed = False

    def __enter__(self) -> Self:
        standard = _standard_descriptor(self.name)
        if standard is not None:
            self._descriptor = standard
            _widen_pipe(standard)
        else:
            try:
                self._open(self.name)
            except (OSError, ValueError) as error:
                self._forget_temporary()
                raise FileError(f"cannot write {self.name}: {_reason(error)}") from error
        return self

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Writes every byte of the buffers."""
        if self._descriptor == 1 and not self._owned and sys.stdout is None:  # closed at start, as `>&-` does
            raise FileError(f"write error: {os.strerror(errno.EBADF)}", self.name)
        write_all(self._descriptor, buffers, self.name)

    def settle(self) -> None:
        """Has all that was written reach the disk, and closes; a file still has its temporary name."""
        with self._blamed():
            try:
                if self._temporary and self._owned:
                    os.fsync(self._descriptor)  # a power loss after the rename must not find an empty file
            finally:
                self._close()

    def keep_old(self) -> None:
        """Gives the file that is to be replaced a second name, where the file system has such, for `restore`."""
        old = _temporary_name(self._target)
        _protect(old)
        try:
            os.link(self._target, old)
            self._old = old
        except FileNotFoundError:
            self._is_new = True
        except OSError:
            _release(old)

    def is_unnamed(self) -> bool:
        """Whether what was written still has its temporary name."""
        return bool(self._temporary) and not self._renamed

    def rename(self) -> None:
        """Gives what was written its name."""
        with self._blamed():
            os.rename(self._temporary, self._target)
        self._renamed = True

    def restore(self) -> None:
        """Takes a `rename` back: the old file has its name again, or there is no file as there was none."""
        if self._renamed:
            with contextlib.suppress(OSError):
                if self._old:
                    os.rename(self._old, self._target)
                elif self._is_new:
                    os.unlink(self._target)

    def is_terminal(self) -> bool:
        """Whether what is written is seen at once by someone."""
        return os.isatty(self._descriptor)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.settle()
                _rename_together([self])
            else:
                with self._blamed():
                    self._close()
        finally:
            self._forget_temporary()

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"write error: {_reason(error)}", self.name) from error

    def _close(self) -> None:
        if self._owned:
            self._owned = False
            os.close(self._descriptor)

    def _open(self, path: str) -> None:
        try:
            old: os.stat_result | None = os.stat(path)
        except FileNotFoundError:
            if not path:
                raise
            old = None
        if path.endswith("/") or (old and stat.S_ISDIR(old.st_mode)):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if old and not stat.S_ISREG(old.st_mode):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
            self._owned = True
            _widen_pipe(self._descriptor)
        elif old and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            self._open_temporary(os.path.realpath(path), old)

    def _open_temporary(self, target: str, old: os.stat_result | None) -> None:
        self._target, flags = target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while not self._owned:
            self._temporary = _temporary_name(target)
            _protect(self._temporary)
            try:
                self._descriptor = os.open(self._temporary, flags, 0o600 if old else 0o666)  # at no time more open
                self._owned = True
            except FileExistsError:
                _release(self._temporary)  # another writer's: not ours to remove
        if old:
            with contextlib.suppress(OSError):  # only root may give a file away
                os.fchown(self._descriptor, old.st_uid, old.st_gid)
            os.fchmod(self._descriptor, stat.S_IMODE(old.st_mode))

    def _forget_temporary(self) -> None:
        for temporary in filter(None, (self._temporary, self._old)):
            with contextlib.suppress(OSError):  # renamed already
                os.unlink(temporary)
            _release(temporary)
        self._temporary = self._old = ""


def open_sink(path: str | None) -> Sink:
    """The place to write to, for a `with` block; None and "-" are standard output."""
    return Sink(path)


@contextlib.contextmanager
def write_together() -> Iterator[Callable[[str | None], Sink]]:
    """Opens sinks for a `with` block whose files are replaced together: none of them unless all are written out."""
    sinks: list[Sink] = []

    def opened(path: str | None) -> Sink:
        sinks.append(stack.enter_context(Sink(path)))
        return sinks[-1]

    with contextlib.ExitStack() as stack:
        yield opened
        for sink in sinks:
            sink.settle()
        _rename_together(sinks)


def _rename_together(sinks: Sequence[Sink]) -> None:
    """Gives all that was written its names; where one cannot have it, the others have their old files again."""
    written = [sink for sink in sinks if sink.is_unnamed()]
    with _signals_wait():
        try:
            for sink in written if len(written) > 1 else ():
                sink.keep_old()
            for sink in written:
                sink.rename()
        except BaseException:
            for sink in written:
                sink.restore()
            raise


def _standard_descriptor(name: str) -> int | None:
    """The descriptor that a name such as /dev/stdout stands for: reopening it would start at its front."""
    standard = {"<stdout>": 1, "/dev/stdout": 1, "/dev/stderr": 2}
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]{1,9})", name)
    return int(found[1]) if found else standard.get(name)


def _temporary_name(target: str) -> str:
    """`.NAME.attnkit-XXXXXXXX` beside the target, no longer than a name that the file system takes."""
    folder, name = os.path.split(os.fsencode(target))
    suffix = b".attnkit-" + os.urandom(4).hex().encode()
    stem = name[: max(len(name), 32) - len(suffix) - 1]
    return os.fsdecode(os.path.join(folder, b"." + stem + suffix))


def _widen_pipe(descriptor: int) -> None:
    """Let a pipe hold a mebibyte, so that two stages take turns less often; on Linux alone, and only pipes."""
    import fcntl

    command = getattr(fcntl, "F_SETPIPE_SZ", None)
    if command is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, command, CHUNK)


def _reason(error: OSError | ValueError) -> str:
    """What the system says, or Python for a name that no system call can take."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_temporaries: set[str] = set()
_default_signals: list[int] = []  # those whose default action we stand in for while temporaries exist


def _protect(temporary: str) -> None:
    """Has the temporary removed should a signal end the process."""
    import signal

    if not _temporaries:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            if signal.getsignal(number) is signal.SIG_DFL:
                with contextlib.suppress(ValueError):  # only the main thread may set handlers
                    signal.signal(number, _remove_and_die)
                    _default_signals.append(number)
    _temporaries.add(temporary)


def _release(temporary: str) -> None:
    import signal

    _temporaries.discard(temporary)
    while _default_signals and not _temporaries:
        with contextlib.suppress(ValueError):  # another thread: the handler stays, with nothing to remove
            signal.signal(_default_signals.pop(), signal.SIG_DFL)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Has the signals that end the process, and for which we stand in, do so at the end of a `with` block."""
    import signal

    numbers, arrived = [*_default_signals], list[int]()
    try:
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            for number in numbers:
                signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        with contextlib.suppress(ValueError):
            for number in numbers:
                signal.signal(number, _remove_and_die)
        for number in arrived:
            _remove_and_die(number, None)


def remove_temporaries() -> None:
    """Removes all temporaries, as the process is about to end."""
    for temporary in _temporaries:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _remove_and_die(number: int, frame: FrameType | None) -> None:
    """Ends the process as the signal would have, the temporaries removed."""
    import signal

    remove_temporaries()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
