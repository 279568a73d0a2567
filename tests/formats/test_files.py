"""Sources and sinks: section I of `attnkit help faults`, through real pipes, signals and limits."""

import ctypes
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from attnkit import formats
from attnkit.errors import FileError, UsageError
from attnkit.formats import (
    Record,
    Source,
    atomic,
    encode,
    open_sink,
    open_source,
    read,
    release_pages,
    write_all,
    write_together,
)
from attnkit.formats.mapped import map_file

BIG = Record({"x": np.arange(1 << 20, dtype=np.float32)})
SMALL = Record({"x": np.arange(6.0).reshape(2, 3)})

COPY = """
import sys, signal
signal.signal(signal.SIGINT, signal.SIG_DFL); signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from attnkit import formats
from attnkit.errors import AttnkitError
try:
    with formats.open_source(sys.argv[1]) as source:
        stream = formats.read(source)
        with formats.open_sink(sys.argv[2] if len(sys.argv) > 2 else None) as sink:
            for record in stream:
                sink.write(formats.encode(record, stream.format))
except AttnkitError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def copy(*arguments, shell="", **options):
    """Runs the loop that every tool is, as a process of its own."""
    command = [sys.executable, "-c", COPY, *map(str, arguments)]
    if shell:
        command = ["bash", "-c", shell, "bash", *command]
    return subprocess.run(command, capture_output=True, timeout=60, **options)


def raw(record: Record, format: str = "npy") -> bytes:
    return b"".join(encode(record, format))


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "small.npy"
    path.write_bytes(raw(SMALL))
    return path


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Reading


def test_peek_read_take_and_the_end():
    source = Source.of(b"0123456789")
    assert (source.peek(3), source.read(4), source.peek(100)) == (b"012", b"0123", b"456789")
    assert bytes(source.read_uint8(3)) == b"456" and bytes(source.read_available()) == b"789"
    assert (source.read(1), source.peek(1), source.read_uint8(5).size, bytes(source.read_available())) == (
        b"",
        b"",
        0,
        b"",
    )


@pytest.mark.parametrize("format", ["npy", "npz", "safetensors", "json"])
@pytest.mark.parametrize("record", [SMALL, BIG], ids=["small", "big"])
def test_a_pipe_gives_what_a_file_gives_in_pieces_of_any_size(format, record):
    if record is BIG and format == "json":
        return
    data = raw(record, format)
    sizes = [1] * 300 + [70_001] if record is SMALL else [1, 5, 100_000, 3, 1 << 20]
    reading, writing = os.pipe()

    def feed():
        at = 0
        for turn in range(10**6):
            if at >= len(data):
                break
            at += os.write(writing, data[at : at + sizes[turn % len(sizes)]])
        os.close(writing)

    thread = threading.Thread(target=feed)
    thread.start()
    with Source(reading, "pipe", hash=True) as source:
        source.capture()
        [again] = read(source)
        kept = b"".join(bytes(piece) for piece in source.take_captured())
    thread.join()
    assert again["x"].tobytes() == record["x"].tobytes()
    assert kept == data and source.take_captured() == []
    import hashlib

    assert source.digest() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("least", [0, 2000])  # select() knows numbers below 1024 alone
def test_a_nonblocking_pipe_is_waited_for(least):
    opened, writing = os.pipe()
    reading = fcntl.fcntl(opened, fcntl.F_DUPFD, least)
    os.close(opened)
    os.set_blocking(reading, False)
    threading.Timer(0.1, lambda: (os.write(writing, raw(SMALL)), os.close(writing))).start()
    [again] = read(Source(reading, "pipe"))
    assert again["x"].tolist() == SMALL["x"].tolist()


@pytest.mark.parametrize(
    "name, reason",
    [
        ("missing", "No such file or directory"),
        (".", "Is a directory"),
        ("n" * 300, "File name too long"),
        ("nul\0", "embedded null byte"),
        ("loop", "Too many levels of symbolic links"),
        ("small.npy/x", "Not a directory"),
        ("", "No such file or directory"),
    ],
)
def test_files_that_cannot_be_read(name, reason, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(FileError) as caught, open_source(name) as source:
        read(source)
    assert (caught.value.problem, caught.value.name, caught.value.exit_code) == (reason, name, 4)


def unprivileged():
    """In the child: give up root's right to override the modes of files."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    for capability in (1, 2) if prctl else ():  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        prctl(24, capability)  # PR_CAPBSET_DROP


def test_no_permission_to_read(small):
    small.chmod(0)
    done = copy(small, preexec_fn=unprivileged)
    assert (done.returncode, done.stderr.decode()) == (4, f"{small}: Permission denied\n")


def test_stdin_closed():
    done = copy("-", shell='"$@" <&-')
    assert (done.returncode, done.stderr) == (4, b"<stdin>: not open\n")


def test_stdin_file_fifo_and_process_substitution(small, tmp_path):
    expected = small.read_bytes()
    os.mkfifo(tmp_path / "fifo")
    for shell in (
        f'"$@" - <{small}',
        f'cat {small} | "$@" -',
        f'"$@" <(cat {small})',
        f'"$@" /dev/fd/7 7<{small}',
    ):
        assert copy(shell=shell).stdout == expected, shell
    assert copy(shell=f'cat {small} >{tmp_path}/fifo & "$@" {tmp_path}/fifo').stdout == expected


# Writing to standard output


def test_short_writes_and_a_full_pipe_are_repeated():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = os.urandom(1 << 20)
    got = bytearray()

    def drain():
        while piece := os.read(reading, 10_000):
            got.extend(piece)

    thread = threading.Thread(target=drain)
    thread.start()
    write_all(writing, [b"a", memoryview(data), b""], "pipe")
    os.close(writing)
    thread.join()
    assert got == b"a" + data


@pytest.mark.parametrize(
    "redirect, message",
    [
        (">/dev/full", b"<stdout>: write error: No space left on device\n"),
        (">&-", b"<stdout>: write error: Bad file descriptor\n"),
    ],
)
def test_output_that_cannot_be_written(small, redirect, message):
    done = copy(small, shell=f'"$@" {redirect}')
    assert (done.returncode, done.stderr) == (4, message)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_it_silently(tmp_path, unbuffered):
    big = tmp_path / "big.npy"
    big.write_bytes(raw(BIG))
    shell = '"$@" | head -c1 >/dev/null; exit ${PIPESTATUS[0]}'
    done = copy(big, shell=shell, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (141, b"")


# Replacing files


def write(path, record=SMALL):
    with open_sink(str(path)) as sink:
        sink.write(encode(record, "npy"))


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write(tmp_path / "new.npy")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new.npy").stat().st_mode) == 0o640 and left(tmp_path) == ["new.npy"]


def test_an_existing_file_keeps_its_mode_and_a_link_stays_a_link(small, tmp_path):
    small.chmod(0o604)
    (tmp_path / "link").symlink_to("small.npy")
    before = small.stat().st_ino
    write(tmp_path / "link", BIG)
    assert (tmp_path / "link").is_symlink() and small.read_bytes() == raw(BIG)
    assert stat.S_IMODE(small.stat().st_mode) == 0o604 and small.stat().st_ino != before
    assert left(tmp_path) == ["link", "small.npy"]


def test_a_dangling_link_gets_its_target(tmp_path):
    (tmp_path / "link").symlink_to("target.npy")
    write(tmp_path / "link")
    assert left(tmp_path) == ["link", "target.npy"]


def test_the_old_file_is_there_until_the_new_one_is_complete(small, tmp_path):
    before = small.read_bytes()
    with pytest.raises(RuntimeError), open_sink(str(small)) as sink:
        sink.write([b"half"])
        assert small.read_bytes() == before and len(left(tmp_path)) == 2
        assert any(name.startswith(".small.npy.attnkit-") for name in left(tmp_path))
        raise RuntimeError
    assert small.read_bytes() == before and left(tmp_path) == ["small.npy"]


def test_a_file_may_be_read_and_replaced(small):
    assert copy(small, small).returncode == 0 and small.read_bytes() == raw(SMALL)


@pytest.mark.parametrize(
    "name, reason",
    [
        (".", "Is a directory"),
        ("new/", "Is a directory"),
        ("", "No such file or directory"),
        ("missing/out.npy", "No such file or directory"),
        ("small.npy/out.npy", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("nul\0", "embedded null byte"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_files_that_cannot_be_written(name, reason, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    before = left(tmp_path)
    with pytest.raises(FileError) as caught:
        write(name)
    assert str(caught.value) == f"cannot write {name or repr(name)}: {reason}" and left(tmp_path) == before


def test_no_permission_to_write(small, tmp_path):
    (tmp_path / "old.npy").touch(0o444)
    (tmp_path / "locked").mkdir(0o555)
    for target in ("old.npy", "locked/new.npy"):
        done = copy(small, target, preexec_fn=unprivileged, cwd=tmp_path)
        assert (done.returncode, done.stderr.decode()) == (4, f"cannot write {target}: Permission denied\n")


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "n" * 250])
def test_long_names_leave_room_for_the_temporary_one(tmp_path, name):
    write(tmp_path / name)
    assert left(tmp_path) == [name]


def test_no_space_leaves_the_old_file(small, tmp_path):
    (tmp_path / "big.npy").write_bytes(raw(BIG))
    done = copy(tmp_path / "big.npy", small, shell='ulimit -f 100; "$@"')
    assert done.returncode == 4 and done.stderr == f"{small}: write error: File too large\n".encode()
    assert small.read_bytes() == raw(SMALL) and left(tmp_path) == ["big.npy", "small.npy"]


def test_what_is_no_regular_file_is_written_plainly(small, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert copy(small, "/dev/null").returncode == 0
    assert copy(small, "-").stdout == copy(small, "/dev/stdout").stdout == raw(SMALL)
    assert copy(small, "/dev/fd/5", shell='"$@" 5>&1 >/dev/null').stdout == raw(SMALL)
    assert copy(small, tmp_path / "fifo", shell=f'cat {tmp_path}/fifo & "$@"; wait').stdout == raw(SMALL)


@pytest.mark.linux
def test_a_full_device(small):
    done = copy(small, "/dev/full")
    assert (done.returncode, done.stderr) == (4, b"/dev/full: write error: No space left on device\n")


def test_dev_stdout_goes_on_where_the_shell_is(small, tmp_path):
    log = tmp_path / "log"
    copy(small, "/dev/stdout", shell=f'{{ echo before; "$@"; echo after; }} >{log}')
    assert log.read_bytes() == b"before\n" + raw(SMALL) + b"after\n"


def test_two_writers_leave_one_of_two_files(tmp_path):
    target, contents = tmp_path / "out.npy", [raw(SMALL), raw(BIG)]
    write(target)
    threads = [threading.Thread(target=lambda r=r: [write(target, r) for _ in range(20)]) for r in (SMALL, BIG)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert target.read_bytes() in contents
    assert left(tmp_path) == ["out.npy"]


# Signals


def waiting_for_input(target: Path, shell: str = '"$@"'):
    """A copy that has its temporary file and waits for more input."""
    command = [
        "bash",
        "-c",
        f"exec {shell}" if shell == '"$@"' else shell,
        "bash",
        sys.executable,
        "-c",
        COPY,
        "-",
        str(target),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(raw(SMALL))
    process.stdin.flush()
    for _ in range(1000):
        if any(".attnkit-" in name for name in left(target.parent)):
            return process
        time.sleep(0.01)
    raise AssertionError("no temporary file")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_remove_the_temporary(small, tmp_path, number):
    process = waiting_for_input(small)
    process.send_signal(number)
    assert process.wait(20) == -number
    assert process.stderr.read() == b"" and left(tmp_path) == ["small.npy"] and small.read_bytes() == raw(SMALL)
    process.stdin.close()
    process.stderr.close()


def test_an_ignored_signal_stays_ignored(small, tmp_path):
    process = waiting_for_input(small, "trap '' HUP; exec \"$@\"")
    process.send_signal(signal.SIGHUP)
    process.communicate(b"", timeout=20)
    assert process.returncode == 0 and left(tmp_path) == ["small.npy"]


def test_sigkill_leaves_the_old_file(small, tmp_path):
    process = waiting_for_input(small)
    process.kill()
    process.communicate()
    assert small.read_bytes() == raw(SMALL) and len(left(tmp_path)) == 2


def test_handlers_are_as_before(tmp_path):
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        with open_sink(str(tmp_path / "a")) as a, open_sink(str(tmp_path / "b")) as b:
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)
            a.write([b"a"])
            b.write([b"b"])
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    assert left(tmp_path) == ["a", "b"]


@pytest.mark.linux
def test_memory_of_a_mapped_file_is_given_back_and_read_again(tmp_path):
    def resident():
        maps = Path("/proc/self/smaps").read_text().split(str(path))[1]
        return int(maps.split("Rss:")[1].split()[0])

    path = tmp_path / "w.bin"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    array = np.frombuffer(map_file(str(path)), np.float32).reshape(2, -1)[:, 1:]
    total = array.view(np.uint32).sum()
    full = resident()
    release_pages(array[1])
    assert full >= 4096 and resident() <= full // 2 + 8
    release_pages(array)
    assert resident() <= 8 and array.view(np.uint32).sum() == total
    release_pages(array[0, :2])  # no whole page
    release_pages(np.ones(3))
    assert resident() == full


def writes_two_new_files(folder):
    with write_together() as sinks:
        for name in "ab":
            sinks(str(folder / name)).write([b"new"])


def test_files_that_are_new_together_leave_no_handler_behind(tmp_path):
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        writes_two_new_files(tmp_path)
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    assert left(tmp_path) == ["a", "b"] and not atomic._temporaries


def test_the_last_file_closed_by_another_thread_leaves_its_handler_to_the_main_thread(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        sink = open_sink(str(tmp_path / "a")).__enter__()
        thread = threading.Thread(target=lambda: sink.__exit__(None))
        thread.start()
        thread.join()
        write(tmp_path / "b")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_file_of_an_unknown_suffix_is_not_written(tmp_path):
    path = str(tmp_path / "x.foo")
    with pytest.raises(UsageError, match=r"x\.foo: no format has the suffix '\.foo' \(expected \.json, "):
        formats.save(SMALL, path)
    assert not os.path.exists(path)
    formats.save(SMALL, str(tmp_path / "without"))
    assert (tmp_path / "without").read_bytes().startswith(b'{"tensors"')
