"""Output files that appear whole or not at all, standard output, and devices."""

import contextlib
import errno
import os
import re
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Self

from attnkit.errors import FileError, system_reason
from attnkit.formats.mapped import truncated_file
from attnkit.formats.streams import Buffer, wait_until, widen_pipe

NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems without fsync
STANDARD = {"<stdout>": 1, "/dev/stdout": 1, "/dev/stderr": 2}
SMALL = 1 << 16  # buffers up to this size in all are joined before they are written

_temporaries: set[str] = set()  # files to remove should the process end
_default_signals: list[int] = []  # signals of default action that `_remove_and_die` handles meanwhile


def write_all(descriptor: int, buffers: Sequence[Buffer], name: str) -> None:
    """Write every byte, however few the system accepts at a time.

    BrokenPipeError where the reader has closed the pipe; FileError for any other failure.
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
                wait_until(descriptor, select.POLLOUT)
            except OSError as error:
                if error.errno == errno.EFAULT and (truncated := truncated_file()):
                    raise FileError("cut short while it was read", truncated) from error
                raise FileError(f"write error: {system_reason(error)}", name) from error


class Sink:
    """A destination: standard output, a device, or a file replaced as a whole.

    A regular file is written under a temporary name beside it and renamed when the `with` block ends without
    an exception; a failure, or a signal that ends the process, removes the temporary and leaves the old file.
    """

    def __init__(self, path: str | None) -> None:
        self.name = "<stdout>" if path in (None, "-") else str(path)
        self._descriptor = -1
        self._is_owned = False  # whether the descriptor is to be closed here
        self._target = self._temporary = self._backup = ""
        self._is_new = self._is_renamed = False

    def __enter__(self) -> Self:
        match = re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]{1,9})", self.name)
        standard = int(match[1]) if match else STANDARD.get(self.name)
        if standard is not None:
            self._descriptor = standard
            widen_pipe(standard)
        else:
            try:
                self._open(self.name)
            except (OSError, ValueError) as error:
                self._remove_temporaries()
                raise FileError(f"cannot write {self.name or repr('')}: {system_reason(error)}") from error
        return self

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._descriptor == 1 and not self._is_owned and sys.stdout is None:  # closed at start, as `>&-` does
            raise FileError(f"write error: {os.strerror(errno.EBADF)}", self.name)
        write_all(self._descriptor, buffers, self.name)

    def flush(self) -> None:
        """Write a file through to the disk and close it; it still has its temporary name."""
        with self._write_errors():
            try:
                if self._temporary and self._is_owned:
                    _sync(self._descriptor)  # a power loss after the rename must not find an empty file
            finally:
                self._close()

    def back_up(self) -> None:
        """Link the old file under a second name for `restore`, if links are supported."""
        backup = _temporary_name(self._target)
        _register(backup)
        try:
            os.link(self._target, backup)
            self._backup = backup
        except OSError as error:
            _unregister(backup)
            self._is_new = isinstance(error, FileNotFoundError)

    def needs_rename(self) -> bool:
        return bool(self._temporary) and not self._is_renamed

    def rename(self) -> None:
        with self._write_errors():
            os.rename(self._temporary, self._target)
        self._is_renamed = True

    def restore(self) -> None:
        """Undo `rename`: restore the old file, or remove the new one."""
        if self._is_renamed:
            with contextlib.suppress(OSError):
                if self._backup:
                    os.rename(self._backup, self._target)
                elif self._is_new:
                    os.unlink(self._target)

    def is_terminal(self) -> bool:
        return os.isatty(self._descriptor)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
                _rename_together([self])
            else:
                with self._write_errors():
                    self._close()
        finally:
            self._remove_temporaries()

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"write error: {system_reason(error)}", self.name) from error

    def _close(self) -> None:
        if self._is_owned:
            self._is_owned = False
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
            self._is_owned = True
            widen_pipe(self._descriptor)
        elif old and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            self._open_temporary(os.path.realpath(path), old)

    def _open_temporary(self, target: str, old: os.stat_result | None) -> None:
        self._target, flags = target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while not self._is_owned:
            self._temporary = _temporary_name(target)
            _register(self._temporary)
            try:
                self._descriptor = os.open(self._temporary, flags, 0o600 if old else 0o666)  # at no time more open
                self._is_owned = True
            except FileExistsError:
                _unregister(self._temporary)  # another writer's: not ours to remove
        if old:
            with contextlib.suppress(OSError):  # only root may give a file away
                os.fchown(self._descriptor, old.st_uid, old.st_gid)
            with contextlib.suppress(OSError):  # some network and USB file systems have no modes
                os.fchmod(self._descriptor, stat.S_IMODE(old.st_mode))

    def _remove_temporaries(self) -> None:
        for temporary in filter(None, (self._temporary, self._backup)):
            with contextlib.suppress(OSError):  # renamed already
                os.unlink(temporary)
            _unregister(temporary)
        self._temporary = self._backup = ""


@contextlib.contextmanager
def write_together() -> Iterator[Callable[[str | None], Sink]]:
    """Open sinks whose files are replaced together: all of them, or none."""
    sinks: list[Sink] = []

    def add_sink(path: str | None) -> Sink:
        sinks.append(stack.enter_context(Sink(path)))
        return sinks[-1]

    with contextlib.ExitStack() as stack:
        yield add_sink
        for sink in sinks:
            sink.flush()
        _rename_together(sinks)


def _rename_together(sinks: Sequence[Sink]) -> None:
    """Rename all written files; where one fails, restore the old files of the others."""
    written = [sink for sink in sinks if sink.needs_rename()]
    with _delay_signals():
        try:
            for sink in written if len(written) > 1 else ():
                sink.back_up()
            for sink in written:
                sink.rename()
        except BaseException:
            for sink in written:
                sink.restore()
            raise


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def _temporary_name(target: str) -> str:
    """The name `.NAME.attnkit-XXXXXXXX` beside the target, not too long.

    NAME is not cut inside a character: macOS refuses names that are not UTF-8.
    """
    folder, name = os.path.split(os.fsencode(target))
    suffix = b".attnkit-" + os.urandom(4).hex().encode()
    size = max(len(name), 32) - len(suffix) - 1
    while name[size : size + 1] and name[size] & 0xC0 == 0x80:  # a byte within a character of UTF-8
        size -= 1
    return os.fsdecode(os.path.join(folder, b"." + name[:size] + suffix))


def _register(temporary: str) -> None:
    """Remove this temporary should a signal end the process."""
    if not _temporaries:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            if signal.getsignal(number) is signal.SIG_DFL:
                with contextlib.suppress(ValueError):  # only the main thread may set handlers
                    signal.signal(number, _remove_and_die)
                    _default_signals.append(number)
    _temporaries.add(temporary)


def _unregister(temporary: str) -> None:
    _temporaries.discard(temporary)
    with contextlib.suppress(ValueError):  # another thread: the handlers stay, with nothing to remove
        while _default_signals and not _temporaries:
            signal.signal(_default_signals[-1], signal.SIG_DFL)
            _default_signals.pop()


@contextlib.contextmanager
def _delay_signals() -> Iterator[None]:
    """Let signals end the process at the end of a `with` block, not within it."""
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
    """Remove all temporaries, as the process is about to end."""
    for temporary in _temporaries:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _remove_and_die(number: int, frame: FrameType | None) -> None:
    """Remove all temporaries and end the process as the signal would have."""
    remove_temporaries()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
