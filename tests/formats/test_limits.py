"""Limits of the readers: what just fits is read, and one more is refused. A limit is lowered where it is large."""

import struct

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.formats import Record, Source, csv, gguf, json_text, npy, pickle_reader, pytorch, read, safetensors, zip
from attnkit.formats.dtypes import check_empty, check_shape
from tests.faults.bad_pytorch import LEGACY, archive, tensor
from tests.gguf_files import pack_gguf
from tests.sound_files import pack_wav

ARRAY = b"".join(npy.encode(Record({"x": np.ones(1)})))
TENSORS = b"".join(safetensors.encode(Record({"x": np.ones(1)})))
NAMES = pickle_reader.Names({}, str)


def read_all(data):
    return [[*record.tensors] for record in read(Source.of(data))]


def read_pickle(data):
    return pickle_reader.read_pickle(data, NAMES)[0]


def read_gguf(data):
    return gguf.read_header(memoryview(data)).entries


def aligned(alignment):
    return pack_gguf({"general.alignment": alignment}, {"a": np.ones(3)}, alignment=alignment)


def view_of(size):
    return pytorch.View(pytorch.Storage("0", "float32", 4), "float32", 0, (size,), (0,))


def with_version(version):
    return read_all(archive({"w": tensor()}).replace(b"PK\3\4\x14", b"PK\3\4" + bytes([version])))


def nested(depth):
    value = {"w": tensor()}
    for _ in range(depth - 1):
        value = {"a": value}
    return archive(value)


LIMITS = {  # how it is read; what fits, what does not, and what the error says; a limit that is lowered, and to what
    "axes": (check_shape, [1] * 64, [1] * 65, r"65 dimensions \(limit 64\)"),
    "an empty shape": (check_empty, (1 << 24, 0), ((1 << 24) + 1, 0), "too large for no elements"),
    "a line of CSV": (
        read_all, b"1,2,3,4,5,6", b"1,2,3,4,5,66", "line 1 column 12: the line is", (csv, "LONGEST_LINE", 11)),
    "a document": (read_all, b"[1,2,34]", b"[1,2,345]", "larger than 4 GB", (json_text, "SIZE_LIMIT", 8)),
    "the header of an array": (
        read_all, ARRAY, ARRAY[:8] + struct.pack("<H", 119) + b" " + ARRAY[10:], "NPY header too large: 119 bytes",
        (npy, "LONGEST_HEADER", 118)),
    "the header of tensors": (
        read_all, TENSORS, struct.pack("<Q", len(TENSORS) - 15) + TENSORS[8:-8] + b" " + bytes(8),
        "header too large: ", (safetensors, "LONGEST_HEADER", len(TENSORS) - 16)),
    "the protocol of a pickle": (read_pickle, b"\x80\x05N.", b"\x80\x06N.", "protocol 6 .expected up to 5"),
    "an integer of a pickle": (
        read_pickle, b"\x80\x02\x8a\x08" + bytes(8) + b".", b"\x80\x02\x8a\x09" + bytes(9) + b".", "of 9 bytes"),
    "a frame of a pickle": (
        read_pickle, b"\x80\x04\x95" + struct.pack("<Q", 2) + b"N.",
        b"\x80\x04\x95" + struct.pack("<Q", 3) + b"N.", "truncated: 3 bytes needed, 2 left"),
    "values of a state": (
        read_all, archive(dict.fromkeys("abc", tensor())), archive(dict.fromkeys("abcd", tensor())),
        "more than 4 values", (pytorch, "MOST_VALUES", 4)),
    "a name of a tensor": (
        read_all, archive({"a": {"bcd": tensor()}}), archive({"ab": {"cde": tensor()}}),
        "a name of more than 5 characters", (pytorch, "LONGEST_NAME", 5)),
    "a key of a tensor": (
        read_all, archive({"abcde": tensor()}), archive({"a": {"bcdef": tensor()}}),
        "a name of more than 5 characters", (pytorch, "LONGEST_NAME", 5)),
    "a document of several lines": (
        read_all, b"[\n" * 64 + b"1" + b"]" * 64, b"[\n" * 65 + b"1" + b"]" * 65, "nested deeper than 64"),
    "a whole number": (
        lambda number: read_all(b'{"tensors":{"x":{"dtype":"uint8","data":[%d.0]}}}' % number), 255, 256,
        r"element \[0\] is 256.0, outside uint8"),
    "dicts in dicts": (read_all, nested(16), nested(17), "dicts nested more than 16 deep"),
    "a compressed pickle": (
        read_all, archive({"w": tensor()}, method=8), archive({"w" * 99: tensor()}, method=8),
        r"data\.pkl: \d+ B \(limit 190 B\)", (pytorch, "LONGEST_PACKED", 190)),
    "views of a state": (
        lambda size: pytorch.check_total({"w": view_of(size)}, 1), 25, 26, "tensors of 104 B are views of 1 B",
        (pytorch, "VIEWS", 0)),
    "the alignment of GGUF": (read_gguf, aligned(1 << 16), aligned(1 << 17), "general.alignment is 131072"),
    "the name of a key": (
        read_gguf, pack_gguf({"k" * 65535: 1}), pack_gguf({"k" * 65536: 1}), "a key of 65536 bytes"),
    "the name of a tensor of GGUF": (
        read_gguf, pack_gguf({}, {"w" * 1000: np.ones(1)}), pack_gguf({}, {"w" * 1001: np.ones(1)}),
        "the name of a tensor of 1001 bytes"),
    "the least rate": (read_all, pack_wav(b"\0\0", rate=1), pack_wav(b"\0\0", rate=0), "0 samples a second"),
    "the largest rate": (
        read_all, pack_wav(b"\0\0", rate=1 << 24), pack_wav(b"\0\0", rate=(1 << 24) + 1), "of 16777217 samples a"),
    "the name of a member": (
        lambda length: zip._headers("a" * length, [], 0), 0xFF00, 0xFF01, "too long for a ZIP archive"),
    "the version of ZIP": (with_version, 63, 64, "no header where a member begins"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_what_just_fits_and_one_more(name, monkeypatch):
    call, fits, beyond, problem, *lowered = LIMITS[name]
    for one in lowered:
        monkeypatch.setattr(*one)
    call(fits)
    with pytest.raises(DataError, match=problem):
        call(beyond)


@pytest.mark.parametrize(("size", "shown"), [(1, "1 byte"), (65535, "65,535 bytes"), (65536, "more than 64 KB")])
def test_the_bytes_that_are_left(size, shown):
    assert Source.of(bytes(size)).count_rest() == shown


@pytest.mark.parametrize("cut", [7, 8, 9, 10, 50, 127])
def test_a_header_that_is_cut_states_its_size(cut):
    """Of 8 bytes, 2 of a length and 118; of 12 bytes in version 2."""
    expected = 10 if cut < 10 else 128
    with pytest.raises(DataError, match=rf"truncated header: expected {expected} bytes, got {cut}$"):
        npy.read_header(Source.of(ARRAY[:cut]), bfloat16=False)
    second = ARRAY[:6] + b"\2\0" + ARRAY[8:10] + b"\0\0" + ARRAY[10:]
    expected = 10 if cut < 8 else 12 if cut < 12 else 130
    with pytest.raises(DataError, match=rf"truncated header: expected {expected} bytes, got {cut}$"):
        npy.read_header(Source.of(second[:cut]), bfloat16=False)


@pytest.mark.parametrize(("cut", "problem"), [
    (1, "needs 3 bytes, 2 are left"), (10, "needs 3 bytes, 0 are left"), (20, "needs 24 bytes, 15 are left")
])  # fmt: skip
def test_an_older_file_that_is_cut_states_what_is_left(cut, problem):
    """It ends with a storage of 24 bytes and one of 3, each after 8 bytes of its size."""
    with pytest.raises(DataError, match=f"^truncated: storage '[0-9]+' {problem}$"):
        pytorch.read_legacy(memoryview(LEGACY[:-cut]))


@pytest.mark.parametrize(("values", "is_read"), [(2, False), (3, True), (4, True), (5, False)])
def test_the_arguments_of_a_parameter(values, is_read):
    view = view_of(1)
    arguments = (view, *[None] * (values - 1))
    if is_read:
        assert pytorch.rebuild_parameter(arguments) is view
    else:
        with pytest.raises(DataError, match="a parameter without a tensor"):
            pytorch.rebuild_parameter(arguments)


def test_lines_ahead_have_a_limit():
    source = Source.of(b"ab\ncd\nef")
    assert [source.peek_lines(*one) for one in ((1, 9), (1, 2), (2, 4), (9, 9), (9, 3))] == [
        b"ab\ncd\nef", b"ab", b"ab\nc", b"ab\ncd\nef", b"ab\n"
    ]  # fmt: skip
