"""Sources and sinks: pieces of any size, files that replace others, handlers of signals; tests/faults has the rest."""

import fcntl
import hashlib
import mmap
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from attnkit import formats
from attnkit.errors import DataError, FileError, UsageError
from attnkit.formats import (
    Record,
    Sink,
    Source,
    atomic,
    encode,
    memory,
    read,
    release_pages,
    streams,
    write_all,
    write_together,
)
from attnkit.formats.mapped import map_file

BIG = Record({"x": np.arange(1 << 20, dtype=np.float32)})
SMALL = Record({"x": np.arange(6.0).reshape(2, 3)})


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


# Writing to standard output


def test_more_than_a_block_is_read_whole(monkeypatch):
    monkeypatch.setattr(streams, "BLOCK", 4)
    data = bytes(range(10))
    for count, given in [(3, data), (4, data), (9, data), (20, data), (20, data[:3]), (20, data[:4])]:
        reading, writing = os.pipe()
        os.write(writing, given)
        os.close(writing)
        assert Source(reading, "pipe").read_uint8(count).tobytes() == given[:count]
        os.close(reading)


def test_what_is_read_to_its_end_takes_at_most_half_of_the_memory(monkeypatch):
    monkeypatch.setattr(streams, "physical_memory", lambda: 20)
    assert Source.of(bytes(10)).read_all() == bytes(10)
    with pytest.raises(DataError, match=r"^name: more than 10 B, too large to hold in memory$"):
        Source.of(bytes(11), "name").read_all()


def test_a_folder_is_not_written(tmp_path):
    for name in (str(tmp_path), f"{tmp_path}/none/"):
        with pytest.raises(FileError, match=f"^cannot write {name}: Is a directory$"), Sink(name):
            pass


def test_a_descriptor_of_this_process_is_written_by_its_number():
    reading, writing = os.pipe()
    with Sink(f"/dev/fd/{writing}") as sink:
        sink.write([b"abc"])
    assert os.write(writing, b"d") == 1 and os.read(reading, 9) == b"abcd"  # it stays open
    os.close(reading)
    os.close(writing)


def test_a_file_that_is_missing_is_none_that_cannot_be_read(tmp_path):
    (tmp_path / "file").touch()
    found = []
    for name in ("none", "file/none", "."):
        with pytest.raises(FileError) as error, streams.open_source(str(tmp_path / name)) as source:
            source.read(1)
        found.append(streams.is_missing(error.value))
    assert found == [True, True, False]


def test_whether_a_file_exists_may_be_unknown(tmp_path):
    assert streams.exists(str(tmp_path)) and not streams.exists(str(tmp_path / "none"))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileError, match=r"/loop/x: Too many levels of symbolic links$"):
        streams.exists(str(tmp_path / "loop" / "x"))


def test_a_digest_is_made_where_it_is_asked_for(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    digests = []
    for hash in ({}, {"hash": True}):
        with streams.open_source(str(tmp_path / "x"), **hash) as source:
            source.read_all()
            digests.append(source.digest())
    assert digests == ["", hashlib.sha256(b"abc").hexdigest()]


def test_limits_of_groups_leave_what_is_not_used_and_what_can_be_dropped(monkeypatch):
    """A group of version 2, whose parent has the limit, and a controller of version 1."""
    groups, old = "/sys/fs/cgroup", "/sys/fs/cgroup/memory/jobs"
    files = {
        "/proc/self/cgroup": "4:memory:/jobs\n3:cpu,cpuacct:/other\n0::/users/7\n",
        f"{groups}/users/7/memory.max": "max\n",
        f"{groups}/users/memory.max": "1000\n",
        f"{groups}/users/memory.current": "700\n",
        f"{groups}/users/memory.stat": "anon 600\ninactive_file 50\nactive_file 30\n",
        f"{old}/memory.limit_in_bytes": "400\n",
        f"{old}/memory.usage_in_bytes": "100\n",
        f"{old}/memory.stat": "inactive_file 1\ntotal_inactive_file 20\n",
    }
    monkeypatch.setattr(memory, "_text", lambda path: files.get(path, ""))
    assert [*memory._left_by_cgroups()] == [350, 320]


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


# Replacing files


def write(path, record=SMALL):
    with Sink(str(path)) as sink:
        sink.write(encode(record, "npy"))


def test_a_dangling_link_gets_its_target(tmp_path):
    (tmp_path / "link").symlink_to("target.npy")
    write(tmp_path / "link")
    assert left(tmp_path) == ["link", "target.npy"]


def test_the_old_file_is_there_until_the_new_one_is_complete(small, tmp_path):
    before = small.read_bytes()
    with pytest.raises(RuntimeError), Sink(str(small)) as sink:
        sink.write([b"half"])
        assert small.read_bytes() == before and len(left(tmp_path)) == 2
        assert any(name.startswith(".small.npy.attnkit-") for name in left(tmp_path))
        raise RuntimeError
    assert small.read_bytes() == before and left(tmp_path) == ["small.npy"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "n" * 250])
def test_long_names_leave_room_for_the_temporary_one(tmp_path, name):
    write(tmp_path / name)
    assert left(tmp_path) == [name]


# Signals


def test_handlers_are_as_before(tmp_path):
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        with Sink(str(tmp_path / "a")) as a, Sink(str(tmp_path / "b")) as b:
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
        sink = Sink(str(tmp_path / "a")).__enter__()
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


def test_a_name_is_cut_before_a_character(monkeypatch):
    """The name of a temporary file is as long as that of the file, or 32 bytes; its own ending has 17."""
    monkeypatch.setattr(os, "urandom", bytes)
    ending = ".attnkit-00000000"
    for name, kept in (("é" * 17 + "a", "é" * 8), ("é" * 17, "é" * 8), ("a" * 40, "a" * 22), ("a", "a")):
        assert atomic._temporary_name(f"/f/{name}") == f"/f/.{kept}{ending}"


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("[1]")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(FileError, match=r"cannot write .*x\.json: Permission denied$"), Sink(str(path)):
        pass
    assert path.read_text() == "[1]" and [*tmp_path.iterdir()] == [path]


def test_a_byte_in_a_pipe_is_there_before_the_next():
    end, start = os.pipe()
    os.write(start, b"x")
    with Source(end, "pipe") as source:
        assert source.peek_available(5) == b"x" and source.read_available() == b"x"
        os.write(start, b"yz")
        assert source.peek(2) == b"yz"
        ahead = source.read_uint8(1)  # not copied, as what is ahead is enough
        assert ahead.tolist() == [121] and not ahead.flags.owndata
    os.close(start)


def test_a_device_is_written_in_place():
    with Sink("/dev/null") as sink:
        sink.write([b"x"])
    assert not sink.needs_rename()


@pytest.mark.parametrize(
    ("start", "end", "released"),
    [(0, 1, (0, 1)), (0.5, 3.5, (1, 2)), (0.5, 1.5, None), (1, 4, (1, 3)), (0.5, 2, (1, 1))],
)
def test_only_whole_pages_are_given_back(start, end, released):
    """Counted in pages of a mapping of five."""
    page, calls = mmap.PAGESIZE, []

    class Noted(mmap.mmap):
        def madvise(self, option, first, length):
            calls.append((option, first, length))

    array = np.frombuffer(Noted(-1, 5 * page), np.uint8)[int(start * page) : int(end * page)]
    release_pages(array)
    assert calls == ([(mmap.MADV_DONTNEED, released[0] * page, released[1] * page)] if released else [])
