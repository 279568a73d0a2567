"""NPY: section N of `attnkit help faults`, and what numpy.save writes."""

import io
import struct

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.formats import Source, npy, read


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
        (GOOD + b"junk", "4 bytes after the array are not a tensor"),
        (GOOD + b"\x93", "1 byte after the array is not a tensor"),
        (GOOD + bytes(70_000), "more than 64 KB after the array are not a tensor"),
        (header("print('hello')"), "bad NPY header: print('hello')"),
        (header("[1, 2]"), "bad NPY header: [1, 2]"),
        (header(described()[:-2] + "'more': 1}"), "bad NPY header: {'descr': '<f4', 'fortran_order': False,"),
        (
            header("{'shape': (1,), " + described()[1:]),
            "bad NPY header: {'shape': (1,), 'descr': '<f4', 'fortran",
        ),
        (
            header(described(shape=f"({'9' * 5000},)")),
            "bad NPY header: {'descr': '<f4', 'fortran_order': False,",
        ),
        (header(described(shape=f"({2**70},)")), f"shape ({2**70},) too large"),
        (header(described(shape="(1.0,)")), "invalid shape (1.0,)"),
        (header(described(shape="1")), "invalid shape 1"),
        (header(described(shape="(3)")), "invalid shape (3)"),
        (header(described(shape="[3]")), "invalid shape [3]"),
        (header(described(shape="(1_0,)")), "invalid shape (1_0,)"),
        (header(described("[('a', '|O')]")), "object arrays (pickle) are never loaded"),
        (
            header(described("[('a', '<f4')]")),
            "dtype structured not supported (use float16/32/64, bfloat16, ints, bool)",
        ),
        (header(described("('<f4', (2,))")), "dtype structured not supported"),
    ]
    + [(header(described(f"'{name}'")), f"dtype {name} not supported") for name in ("<c16", "f4,f4", "float32")],
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


def test_a_header_that_is_none_is_cut_in_the_error():
    for text in ("x" * 40, "x" * 41, "\x1b[" + "x" * 60):
        data = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()
        with pytest.raises(DataError) as caught:
            arrays(data)
        assert str(caught.value).endswith(f"bad NPY header: {text.replace(chr(27), '')[:40]}")


@pytest.mark.parametrize("shape", [(), (1,), (12345,), (10**7, 0), (2, 3), (1, 2, 3, 4), (1,) * 20])
@pytest.mark.parametrize("dtype", ["f4", "u1", "?"])
def test_the_bytes_of_numpy(shape, dtype):
    """Whose header has room for the first dimension to grow to 21 digits."""
    array = np.broadcast_to(np.ones((), dtype), shape)
    written = io.BytesIO()
    np.save(written, np.ascontiguousarray(array) if shape else array)
    head = npy.encode_array(array)[0]
    assert head == written.getvalue()[: len(head)] and len(head) % 64 == 0
