"""A table of bad NPY: {name: (content, parts of the message)}, read by tests/formats and by the tools."""

import io
import pickle
import struct

import numpy as np

UNSUPPORTED = "not supported (use float16/32/64, bfloat16, ints, bool)"
PICKLE = "object arrays (pickle) are never loaded"


def npy(header, data=b"", version=(1, 0), length=None):
    """An NPY file with any header."""
    raw = header if isinstance(header, bytes) else header.encode()
    size = struct.pack("<H" if version[0] == 1 else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + raw + data


def header(descr="'<f4'", shape="(4,)", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def saved(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


class Canary:
    """Creates a file when it is unpickled."""

    def __reduce__(self):
        return open, ("canary", "w")


WHOLE = saved(np.zeros(4, np.float32))
PICKLES = {f"raw pickle {protocol}": pickle.dumps(Canary(), protocol) for protocol in (2, 3, 4, 5)}
CALL = header(shape="__import__('os').system('touch canary')")

BAD = {
    # N1, N2, N3
    "empty": (b"", "empty input (expected NPY, NPZ, JSON, safetensors or CSV)"),
    "two bytes of magic": (WHOLE[:2], "truncated header: expected 10 bytes, got 2"),
    "magic alone": (WHOLE[:6], "truncated header: expected 10 bytes, got 6"),
    "version cut": (WHOLE[:7], "truncated header: expected 10 bytes, got 7"),
    "header length cut": (WHOLE[:9], "truncated header: expected 10 bytes, got 9"),
    "header cut": (WHOLE[:40], "truncated header: expected 128 bytes, got 40"),
    "data missing": (WHOLE[:128], "truncated data: shape (4,) float32 needs 16 bytes, got 0"),
    "data cut": (
        npy(header(shape="(100,)"), bytes(16)),
        "truncated data: shape (100,) float32 needs 400 bytes, got 16",
    ),
    # N5
    "version 9.0": (npy(header(), bytes(16), (9, 0)), "unsupported NPY version 9.0"),
    "version 0.0": (npy(header(), bytes(16), (0, 0)), "unsupported NPY version 0.0"),
    "version 1.1": (npy(header(), bytes(16), (1, 1)), "unsupported NPY version 1.1"),
    # N6
    "endless header": (npy(header(), version=(2, 0), length=0xFFFFFFFF), "NPY header too large: 4294967295 bytes"),
    # N8
    "header calls": (npy(CALL), "bad NPY header: {'descr': '<f4', 'fortran_order': False,"),
    "header is a list": (npy("[1, 2, 3]\n"), "bad NPY header: [1, 2, 3]"),
    "header of NULs": (npy(bytes(54)), "bad NPY header"),
    "header empty": (npy(""), "bad NPY header"),
    "header of escapes": (npy("\x1b[2J\x07" + "\u202e" * 3), "bad NPY header: [2J"),
    "key missing": (npy("{'descr': '<f4', 'shape': (4,)}\n", bytes(16)), "bad NPY header"),
    "key extra": (
        npy("{'x': 1, " + header()[1:], bytes(16)),
        "bad NPY header: {'x': 1, 'descr': '<f4', 'fortran_order'",
    ),
    "key twice": (npy("{'descr': '<f8', " + header()[1:], bytes(32)), "bad NPY header"),
    "digits without end": (npy(header(shape=f"({'9' * 5000},)")), "bad NPY header"),
    "fortran_order a number": (npy(header(fortran="1"), bytes(16)), "bad NPY header"),
    # N9, N10
    "3.6 TiB": (npy(header(shape="(1000000, 1000000)")), "shape (1000000, 1000000) needs 4.0 TB"),
    "product wraps": (npy(header(shape="(4294967296, 4294967296, 4)")), "shape (4294967296, 4294967296, 4) too large"),
    "dimension 2^70": (npy(header(shape=f"({2**70},)")), f"shape ({2**70},) too large"),
    "2^70 times 0": (npy(header(shape=f"({2**70}, 0)")), "too large"),
    # N14
    "no elements, many rows": (npy(header(shape="(16777217, 0)")), "shape (16777217, 0) too large for no elements"),
    "within memory, not there": (npy(header(shape="(250000000,)")), "needs 1000000000 bytes, got 0"),
    # N11
    "negative": (npy(header(shape="(-1,)"), bytes(16)), "invalid shape (-1,)"),
    "both negative": (npy(header(shape="(-1, -2)"), bytes(16)), "invalid shape (-1, -2)"),
    "boolean": (npy(header(shape="(True,)"), bytes(16)), "invalid shape (True,)"),
    "float": (npy(header(shape="(4.0,)"), bytes(16)), "invalid shape (4.0,)"),
    "list": (npy(header(shape="[4]"), bytes(16)), "invalid shape [4]"),
    "no tuple": (npy(header(shape="(4)"), bytes(16)), "invalid shape (4)"),
    "65 dimensions": (npy(header(shape="(" + "1, " * 65 + ")"), bytes(4)), "65 dimensions (limit 64)"),
    # N15
    "object": (saved(np.array([Canary()]), allow_pickle=True), PICKLE),
    "object inside": (saved(np.array([(1, Canary())], "i4,O"), allow_pickle=True), PICKLE),
    **{name: (content, PICKLE) for name, content in PICKLES.items()},
    # N16
    **{
        f"dtype {dtype}": (saved(np.zeros(2, dtype)), UNSUPPORTED)
        for dtype in ("i4,f4", "(2,3)f4,i4", "V8", "U3", "S3", "M8[s]", "m8[D]", "c8", "c16", "g")
    },
    "bfloat16 as V2": (saved(np.zeros(2, "V2")), UNSUPPORTED, "--dtype bfloat16"),
    "no dtype": (npy(header("'<f3'"), bytes(12)), "dtype <f3 not supported"),
    "bool of 7": (npy(header("'|b1'"), b"\0\1\7\0"), "bool value 7"),
    # N22
    "text": (b"hello there\n", "not a tensor file (looks like text)"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(60), "not a tensor file (looks like gzip)"),
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(60), "not a PNG or JPEG that can be read"),
    "ELF": (b"\x7fELF\x02\x01\x01" + bytes(60), "not a tensor file (looks like ELF)"),
    "HTML": (b"<!DOCTYPE html><html>", "not a tensor file (looks like HTML or XML)"),
    "GIF": (b'GIF89a\x01,1"2\n,3"4\n', "looks like GIF, and pictures are read from PNG and JPEG"),
    "TIFF": (b"II*\0\x08\0\0\0" + bytes(60), "looks like TIFF, and pictures are read from PNG and JPEG"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "(looks like Git LFS pointer)"),
    "noise": (bytes(range(255, 127, -1)), "not a tensor file"),
}
