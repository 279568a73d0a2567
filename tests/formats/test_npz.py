"""NPZ: section Z of `attnkit help faults`, and the archives of numpy and zipfile."""

import io
import os
import struct
import zipfile

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.formats import Record, Source, encode, npz, read, zip
from attnkit.formats.zip import read_archives
from attnkit.records import Tensor
from tests.fuzz.files import encode_archive


def record_of(data: bytes, **options) -> Record:
    [record] = read(Source.of(data, "file"), **options)
    return record


def saved(save=np.savez, **arrays) -> bytes:
    written = io.BytesIO()
    save(written, **arrays)
    return written.getvalue()


def npy(array) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def zipped(*files, method=zipfile.ZIP_STORED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as made:
        for name, data in files:
            made.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return written.getvalue()


ONE = npy(np.arange(6.0).reshape(2, 3))
RECORD = Record(
    {"x": Tensor(np.eye(3), ("token", "model")), "mask": np.eye(3) > 0, "é": np.arange(2)}, {"token": list("abc")}
)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpy_archives(save):
    again = record_of(saved(save, a=np.arange(4), b=np.zeros((1024, 256), np.float32)))
    assert list(again) == ["a", "b"] and again["a"].tolist() == [0, 1, 2, 3] and not again["b"].any()


def test_numpy_reads_ours_without_pickle():
    data = b"".join(encode(RECORD, "npz"))
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        assert loaded.files == ["x", "mask", "é", "meta.json"]
        assert np.array_equal(loaded["mask"], np.eye(3, dtype=bool))
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        assert made.testzip() is None
        assert {info.date_time for info in made.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.compress_type for info in made.infolist()} == {zipfile.ZIP_STORED}


def test_equal_records_are_equal_bytes_and_data_is_not_copied():
    assert b"".join(encode(RECORD, "npz")) == b"".join(encode(RECORD, "npz"))
    big = np.zeros(1000)
    buffers = encode(Record({"x": big}), "npz")
    assert any(np.shares_memory(np.frombuffer(buffer, np.uint8), big) for buffer in buffers)
    data = bytearray(b"".join(buffers))
    assert record_of(data)["x"].flags.aligned


def test_zip64(monkeypatch):
    """Large sizes and far offsets, with the limit brought down to where a test can reach it."""
    monkeypatch.setattr(zip, "WIDE", 300)
    big = [("a", [b"a" * 200]), ("b", [b"b" * 400]), ("c", [b"c" * 10])]
    monkeypatch.setattr(zip, "LOCAL", Clipped(zip.LOCAL, 300))
    monkeypatch.setattr(zip, "CENTRAL", Clipped(zip.CENTRAL, 300))
    monkeypatch.setattr(zip, "END", Clipped(zip.END, 300))
    data = b"".join(encode_archive(big))
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        assert made.testzip() is None
        assert [made.read(info) for info in made.infolist()] == [content[0] for _, content in big]
        # of Unix; version 4.5 for sizes of 64 bits, here a large second member and a far third one
        assert [(info.create_system, info.create_version, info.extract_version) for info in made.infolist()] == [
            (3, 20, 20), (3, 45, 45), (3, 45, 45)
        ]  # fmt: skip
    monkeypatch.undo()
    found = read_members(data)
    assert [bytes(zip.read_member(member)) for member in found] == [content[0] for _, content in big]


def read_members(data):
    [members] = read_archives(Source.of(data), lambda name, source: 0)
    return members


class Clipped:
    """A struct that writes what stands for "see the ZIP64 field" in place of a lowered limit."""

    def __init__(self, layout: struct.Struct, limit: int) -> None:
        self.layout, self.limit, self.size = layout, limit, layout.size

    def pack(self, *values):
        return self.layout.pack(*(0xFFFFFFFF if value == self.limit else value for value in values))


@pytest.mark.slow
def test_a_name_in_code_page_437_and_a_wide_size_after_another_field():
    assert zip._checked_name(b"\x82.npy", 0, zip.STORED) == zip._checked_name("é.npy".encode(), zip.UTF8, zip.STORED)
    other, wide = struct.pack("<2HB", 0x5455, 1, 7), struct.pack("<2HQQ", 1, 16, 5, 1 << 33)
    assert zip._apply_zip64(other + wide, [zip.WIDE, 3, zip.WIDE]) == [5, 3, 1 << 33]
    assert zip._apply_zip64(other, [zip.WIDE]) == [zip.WIDE]


def test_many_members_need_zip64():
    files = [(f"{i}.txt", [b""]) for i in range(66_000)]
    data = bytearray(b"".join(encode_archive(files)))
    assert len(read_members(data)) == 66_000
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        assert len(made.infolist()) == 66_000


@pytest.mark.parametrize("name", ["../../etc/x", "/abs", "C:\\x", "a/b", "tab\t", "x.npy", ""])
def test_names_are_only_keys(name):
    again = record_of(zipped((f"{name}.npy", ONE), ("y.npy", ONE)))
    assert list(again) == [name, "y"]


def bomb(size: int) -> bytes:
    return saved(np.savez_compressed, x=np.zeros(size, np.uint8))


def test_bombs_are_refused_from_the_directory():
    data = bomb(200_000_000)
    assert len(data) < 200_000
    with pytest.raises(DataError, match=r"195\.\d kB|194\.\d kB compressed would become 200\.0 MB"):
        record_of(data)


def test_sizes_that_lie_are_found_while_inflating():
    data = bytearray(bomb(10_000_000))
    where = data.rindex(b"PK\x01\x02") + 24
    assert struct.unpack_from("<I", data, where) == (10_000_128,)
    struct.pack_into("<I", data, where, 1000)
    with pytest.raises(DataError, match=r"member 'x\.npy': damaged"):
        record_of(bytes(data))


class Pipe(io.RawIOBase):
    """A file that cannot seek, as a pipe cannot: zipfile writes checksums and sizes behind the members."""

    def __init__(self):
        self.written = b""

    def writable(self):
        return True

    def seekable(self):
        return False

    def tell(self):
        raise OSError("a pipe")

    def write(self, data):
        self.written += bytes(data)
        return len(data)


def streamed(save=np.savez, **arrays) -> bytes:
    pipe = Pipe()
    save(pipe, **arrays)
    return pipe.written


def streamed_zip(method, *files) -> bytes:
    """An archive written to a pipe, its descriptors of 32 bits."""
    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", method) as made:
        for name, data in files:
            made.writestr(name, data)
    return pipe.written


BIG = np.arange(300_000.0).reshape(1000, 300)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("write", [saved, streamed])
def test_archives_of_numpy_follow_one_another(save, write):
    data = write(save, a=BIG, b=np.arange(3)) + write(save, a=BIG + 1, b=np.zeros(()), c=np.zeros((0, 2)))
    first, second = read(Source.of(data))
    assert np.array_equal(first["a"], BIG) and first["b"].tolist() == [0, 1, 2]
    assert np.array_equal(second["a"], BIG + 1) and second["b"] == 0 and second["c"].shape == (0, 2)


def test_archives_written_one_after_another_into_a_file():
    """Their offsets count from the start of the file."""
    written = io.BytesIO()
    for value in range(3):
        np.savez(written, x=np.full(5, value))
    assert [record["x"][0] for record in read(Source.of(written.getvalue()))] == [0, 1, 2]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_record_written_to_a_pipe(method):
    data = streamed_zip(method, ("x.npy", ONE), ("meta.json", b'{"axes":{"x":["token","model"]}}'))
    first, second = read(Source.of(data * 2))
    assert first.tensors["x"].axes == second.tensors["x"].axes == ("token", "model")
    assert first["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("write", [saved, streamed])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_cut_and_every_change_of_an_archive_after_another(write, save):
    whole = write(save, x=np.arange(4.0))
    for end in range(4, len(whole)):
        records = iter(read(Source.of(GOOD + whole[:end], "file")))
        next(records)
        with pytest.raises(DataError, match=r"file: .*truncated"):
            next(records)
    for at in range(whole.index(b"\x93NUMPY") if save is np.savez else 43, len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        try:
            again = [record["x"].tolist() for record in read(Source.of(GOOD + changed, "file"))]
        except DataError as error:
            assert error.name == "file"
        else:  # a date, a version, an attribute
            assert again[1] == [0, 1, 2, 3]


def test_a_record_is_there_before_the_next_one_is():
    data = b"".join(encode(RECORD, "npz"))
    reader, writer = os.pipe()
    with Source(reader, "pipe") as source:
        os.write(writer, data)
        records = iter(read(source))
        assert np.array_equal(next(records)["x"], np.eye(3))
        os.write(writer, streamed(x=np.arange(3)))
        assert next(records)["x"].tolist() == [0, 1, 2]
        os.close(writer)
        assert list(records) == []


def test_bombs_in_a_stream_are_refused_as_they_grow():
    data = streamed(np.savez_compressed, x=np.zeros(80_000_000, np.uint8))
    with pytest.raises(DataError, match=r"compressed would become more than 6\d\.\d MB \(limit 67.1 MB\)"):
        record_of(data)


def test_the_members_of_a_stream_share_one_limit():
    """Each of them alone is within the 67.1 MB that any archive may grow to."""
    data = streamed(np.savez_compressed, **{f"x{i}": np.zeros(30_000_000, np.uint8) for i in range(9)})
    with pytest.raises(DataError, match=r"compressed would become more than 6\d\.\d MB \(limit 67.1 MB\)"):
        record_of(data)
    mixed = streamed(np.savez_compressed, x=np.zeros(40_000_000, np.uint8))
    with pytest.raises(DataError, match=r"compressed would become 70\.0 MB \(limit 67.1 MB\)"):
        record_of(joined(mixed, bomb(30_000_000)))


def joined(first: bytes, second: bytes) -> bytes:
    """One archive of the single members of two."""
    entries = [data.rindex(b"PK\x01\x02") for data in (first, second)]
    ends = [data.rindex(b"PK\x05\x06") for data in (first, second)]
    entry = bytearray(second[entries[1] : ends[1]].replace(b"x.npy", b"y.npy"))
    struct.pack_into("<I", entry, 42, entries[0])
    members = first[: entries[0]] + second[: entries[1]].replace(b"x.npy", b"y.npy", 1)
    directory = first[entries[0] : ends[0]] + bytes(entry)
    return members + directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), len(members), 0)


@pytest.mark.parametrize(
    "value", [np.zeros(3_000_000), np.eye(1500), np.tri(2000, dtype=bool)], ids=["zeros", "one-hot", "mask"]
)
def test_what_compresses_well_is_read_from_a_pipe(value):
    """More than 1 MB comes out of the last bytes of the compressed data, and more bytes follow them."""
    first, second = read(Source.of(streamed(np.savez_compressed, x=value, y=value[:1]) * 2))
    for record in (first, second):
        assert np.array_equal(record["x"], value) and np.array_equal(record["y"], value[:1])


def test_what_header_and_directory_say_must_be_the_same():
    data = bytearray(zipped(("x.npy", ONE), ("y.npy", ONE)))
    entry = data.rindex(b"PK\x01\x02")
    first = data.index(b"PK\x01\x02")
    gone = data[:first] + data[entry:]
    struct.pack_into("<2HL", gone, len(gone) - 14, 1, 1, len(data) - 22 - entry)
    swapped = bytes(data[:first] + data[entry:-22] + data[first:entry] + data[-22:])
    assert list(record_of(swapped)) == ["x", "y"]  # the order of a directory is free
    for changed, problem in (
        (bytes(gone), "member 'x.npy' is missing from the ZIP directory"),
        (changed_at(data, entry + 16), "member 'y.npy': damaged: its size or checksum differs from the directory's"),
        (changed_at(data, entry + 46), "is not where the directory says"),
        (changed_at(data, len(data) - 10), "bad ZIP directory: its size or place differs"),
        (changed_at(data, len(data) - 6), "bad ZIP directory: its size or place differs"),
        (changed_at(data, len(data) - 14), "bad ZIP directory (several disks)"),
        (changed_at(data, entry), "expected a member or the directory"),
    ):
        with pytest.raises(DataError) as caught:
            record_of(changed)
        assert problem in str(caught.value)


def test_sizes_beyond_all_bounds_are_refused():
    """A ZIP64 size of a member, and of the end of the directory, with bytes enough to begin with."""
    wide = struct.pack("<2H2Q", 1, 16, 2**64 - 1, 2**64 - 1)
    head = zip.LOCAL.pack(b"PK\x03\x04", 45, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 5, len(wide)) + b"x.npy" + wide
    with pytest.raises(DataError, match=r"member 'x\.npy': declared size 18446744073709551615 does not fit"):
        record_of(head + bytes(20 << 20))
    end = zip.END64.pack(b"PK\x06\x06", 2**63, 45, 45, 0, 0, 1, 1, 1, 1)
    with pytest.raises(DataError, match="bad ZIP directory"):
        record_of(GOOD[:-22] + end + GOOD[-22:])


def changed_at(data: bytearray, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def overlapping() -> bytes:
    """Two entries of the directory that share one member's bytes."""
    data = bytearray(zipped(("x.npy", ONE), ("x.npz", ONE)).replace(b"x.npz", b"x.npy"))
    second = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, second + 42, 0)
    return bytes(data)


def flipped() -> bytes:
    data = bytearray(zipped(("x.npy", ONE)))
    data[data.index(b"\x93NUMPY") + 140] ^= 1
    return bytes(data)


GOOD = zipped(("x.npy", ONE))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "data, message",
    [
        (zipped(("x.npy", ONE[:-4])), "member 'x.npy': truncated data"),
        (overlapping(), "overlap"),
        (GOOD + b"junk", "4 bytes after the ZIP archive"),
        (GOOD[:4] + b"junk" + GOOD[4:], "bad ZIP archive: no header where a member begins"),
        (
            zipped(("x.npy", ONE), ("meta.json", b"{")),
            "member 'meta.json': line 1 column 2: unexpected end of input",
        ),
        (
            zipped(("x.npy", ONE), ("meta.json", b'{"a":1}')),
            'unknown key "a" (expected axes, labels, history)',
        ),
        (zipped(("x.npy", ONE), ("meta.json", b'{"bfloat16":["y"]}')), 'key "bfloat16" does not list tensors'),
        (zipped(("x.npy", ONE), ("meta.json", b'{"axes":{"y":["a"]}}')), "no tensor 'y'"),
        (
            zipped(("x.npy", ONE), ("meta.json", b'{"labels":{"a":[1]}}')),
            'labels of axis "a" are not a list of',
        ),
    ],
)
def test_bad_input(data, message):
    with pytest.raises(DataError) as caught:
        record_of(data)
    assert str(caught.value).startswith("file: ") and message in str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_mapped_file_gives_the_tensors_that_reading_it_gives(tmp_path, method):
    path = tmp_path / "model.npz"
    path.write_bytes(zipped(("a.npy", ONE), ("meta.json", b"{}"), ("b.npy", ONE), method=method))
    mapped = npz.map_tensors(str(path))
    assert mapped.entries == {"a": ("float64", (2, 3)), "b": ("float64", (2, 3))}
    for name, array in record_of(path.read_bytes()).arrays().items():
        np.testing.assert_array_equal(mapped.tensor(name), array)


@pytest.mark.parametrize(
    "data, problem",
    [
        (GOOD + GOOD, "2 archives (expected 1)"),
        (GOOD + b"junk", "4 bytes after the ZIP archive"),
        (b"junk" + GOOD, "bad ZIP archive: expected a member or the directory"),
        (GOOD[:100], "truncated ZIP archive"),
    ],
    ids=["two", "after", "before", "truncated"],
)
def test_a_mapped_file_that_is_no_single_archive_is_refused(tmp_path, data, problem):
    path = tmp_path / "model.npz"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        npz.map_tensors(str(path))
    assert caught.value.name == str(path) and problem in caught.value.problem


def test_damage_in_a_mapped_file_is_found_when_its_tensor_is_read(tmp_path):
    path = tmp_path / "model.npz"
    path.write_bytes(flipped())
    mapped = npz.map_tensors(str(path))
    with pytest.raises(DataError, match=r"member 'x\.npy': damaged"):
        mapped.tensor("x")


WIDE = (1 << 32) - 1


@pytest.mark.parametrize(
    ("extra", "values"),
    [
        (struct.pack("<2HQQ", 1, 16, 7, 8), [7, 8, 5]),
        (struct.pack("<2H2s2HQQ", 9, 2, b"xy", 1, 16, 7, 8), [7, 8, 5]),
        (struct.pack("<2HQ", 1, 8, 7), [7, WIDE, 5]),
        (struct.pack("<2H2s", 9, 2, b"xy"), [WIDE, WIDE, 5]),
        (b"\1\0\0", [WIDE, WIDE, 5]),
        (struct.pack("<2H", 1, 0), [WIDE, WIDE, 5]),
        (struct.pack("<2HQ", 1, 9, 7), None),
        (struct.pack("<2H", 1, 8), None),
    ],
)
def test_wide_sizes_are_those_of_the_extra_field(extra, values):
    if values is None:
        with pytest.raises(DataError, match="an extra field does not fit"):
            zip._apply_zip64(extra, [WIDE, WIDE, 5])
    else:
        assert zip._apply_zip64(extra, [WIDE, WIDE, 5]) == values
