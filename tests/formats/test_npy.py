"""NPY: section N of `attnkit help faults`, and what numpy.save writes."""

import io
import struct

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.formats import Source, read


def arrays(data: bytes, **options):
    return [record["x"] for record in read(Source.of(data, "file"), **options)]


def saved(array) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()


def header(text: str, version=(1, 0), data=b"") -> bytes:
    raw = text.encode("latin-1")
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(raw)) + raw + data


def described(descr="'<f4'", fortran="False", shape="(1,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


GOOD = saved(np.arange(100, dtype=np.float32))


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "empty input (expected NPY, NPZ, JSON, safetensors or CSV)"),
        (GOOD[:6], "truncated header: expected 10 bytes, got 6"),
        (GOOD[:9], "truncated header: expected 10 bytes, got 9"),
        (GOOD[:60], "truncated header: expected 128 bytes, got 60"),
        (GOOD[:144], "truncated data: shape (100,) float32 needs 400 bytes, got 16"),
        (GOOD + b"junk", "4 bytes after the array are not a tensor"),
        (GOOD + b"\x93", "1 byte after the array is not a tensor"),
        (GOOD + bytes(70_000), "more than 64 KB after the array are not a tensor"),
        (header("", (9, 0)), "unsupported NPY version 9.0"),
        (header("", (0, 0)), "unsupported NPY version 0.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "NPY header too large: 4294967295 bytes (limit 65536)"),
        (header("print('hello')"), "bad NPY header: print('hello')"),
        (header("[1, 2]"), "bad NPY header: [1, 2]"),
        (header("\0" * 54), "bad NPY header: "),
        (header("{'descr': '<f4', 'shape': (1,)}"), "bad NPY header: {'descr': '<f4', 'shape': (1,)}"),
        (header(described()[:-2] + "'more': 1}"), "bad NPY header: {'descr': '<f4', 'fortran_order': False,"),
        (
            header("{'shape': (1,), " + described()[1:]),
            "bad NPY header: {'shape': (1,), 'descr': '<f4', 'fortran",
        ),
        (
            header(described(shape=f"({'9' * 5000},)")),
            "bad NPY header: {'descr': '<f4', 'fortran_order': False,",
        ),
        (header(described(fortran="1")), "bad NPY header: {'descr': '<f4', 'fortran_order': 1, 'sh"),
        (
            header(described(shape="(1000000, 1000000)")),
            "shape (1000000, 1000000) needs 4.0 TB, more than this",
        ),
        (
            header(described(shape="(4294967296, 4294967296, 4)")),
            "shape (4294967296, 4294967296, 4) too large",
        ),
        (header(described(shape=f"({2**70},)")), f"shape ({2**70},) too large"),
        (header(described(shape=f"(0, {2**70})")), f"shape (0, {2**70}) too large"),
        (header(described(shape="(-1,)")), "invalid shape (-1,)"),
        (header(described(shape="(-1, -2)")), "invalid shape (-1, -2)"),
        (header(described(shape="(True,)")), "invalid shape (True,)"),
        (header(described(shape="(1.0,)")), "invalid shape (1.0,)"),
        (header(described(shape="[1]")), "invalid shape [1]"),
        (header(described(shape="(1)")), "invalid shape (1)"),
        (header(described(shape="1")), "invalid shape 1"),
        (header(described(shape="(1_0,)")), "invalid shape (1_0,)"),
        (header(described(shape=f"({'1,' * 70})")), "invalid shape: 70 dimensions (limit 64)"),
        (header(described("'|O'")), "object arrays (pickle) are never loaded"),
        (header(described("[('a', '|O')]")), "object arrays (pickle) are never loaded"),
        (
            header(described("[('a', '<f4')]")),
            "dtype structured not supported (use float16/32/64, bfloat16, ints, bool)",
        ),
        (header(described("('<f4', (2,))")), "dtype structured not supported"),
        (header(described("'|V2'")), "bool); if it is bfloat16: --dtype bfloat16"),
        (header(described("'|b1'"), data=b"\7"), "bool value 7 (expected 0 or 1)"),
    ]
    + [
        (header(described(f"'{name}'")), f"dtype {name} not supported")
        for name in ("|V8", "<U3", "|S3", "<M8[s]", "<c8", "<c16", "<f16", "f4,f4", "float32")
    ],
)
def test_bad_input(data, message):
    with pytest.raises(DataError) as caught:
        arrays(data)
    assert str(caught.value).startswith("file: ") and message in str(caught.value)


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (2, 0, 3), (3, 4)])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">i8", "<f2", "|b1", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_order_is_read_as_native(shape, dtype, order):
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape) % 2, dtype=dtype, order=order)
    [again] = arrays(saved(array))
    assert again.dtype == array.dtype.newbyteorder("=") and again.shape == shape
    assert np.array_equal(again, array) and again.flags.c_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_and_spellings(version):
    text = '{"shape": (2L,), \'fortran_order\': False, "descr": "<i2"}   '
    [again] = arrays(header(text, version, b"\1\0\2\0"))
    assert again.tolist() == [1, 2]


def test_a_huge_header_is_refused_without_reading_it():
    """An endless source: only its first bytes may be asked for."""

    class Endless(Source):
        def read(self, count):
            assert count < 100
            return super().read(count)

    source = Endless.of(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100))
    with pytest.raises(DataError, match="too large"):
        list(read(source))
