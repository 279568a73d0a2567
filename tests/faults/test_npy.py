"""Bad NPY input: every one a line, exit code 3, and no memory taken."""

import io
import pickle
import struct
import subprocess

import numpy as np
import pytest

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
    "empty": (b"", "empty input (expected NPY, NPZ, JSON or safetensors)"),
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
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(60), "not a tensor file (looks like PNG)"),
    "ELF": (b"\x7fELF\x02\x01\x01" + bytes(60), "not a tensor file (looks like ELF)"),
    "HTML": (b"<!DOCTYPE html><html>", "not a tensor file (looks like HTML or XML)"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "(looks like Git LFS pointer)"),
    "noise": (bytes(range(255, 127, -1)), "not a tensor file"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, attnkit, content, parts):
    reject(content, *parts)
    assert not (attnkit.folder / "canary").exists()


def test_no_hint_how_to_load_a_pickle(attnkit):
    err = attnkit("show", stdin=BAD["object"][0]).err
    assert "allow_pickle" not in err
    assert "unsafe" not in err


# N4: what comes before is a record and has been delivered; a file gets all of the stream or nothing.
TAILS = {
    "1 byte": (b"\n", "1 byte after the array is not a tensor"),
    "4 bytes": (bytes(4), "4 bytes after the array are not a tensor"),
    "JSON": (b"[[1,2]]", "7 bytes after the array are not a tensor"),
    "half a magic": (WHOLE[:4], "4 bytes after the array are not a tensor"),
    "array cut": (WHOLE[:-1], "truncated data: shape (4,) float32 needs 16 bytes, got 15"),
}


@pytest.mark.parametrize(("tail", "problem"), TAILS.values(), ids=TAILS)
def test_bytes_after_an_array(attnkit, refused, tail, problem):
    run = attnkit("layernorm", stdin=WHOLE + tail)
    assert run.out == WHOLE
    refused(run._replace(out=b""), 3, "layernorm: <stdin>: ", problem)
    run = attnkit("layernorm", attnkit.file("in.npy", WHOLE + tail), "-o", attnkit.file("old.npy", b"old"))
    refused(run, 3, "layernorm: in.npy: ", problem)
    assert (attnkit.folder / "old.npy").read_bytes() == b"old"


@pytest.mark.parametrize(
    "start",
    [npy(b"", version=(2, 0), length=0xFFFFFFFF), npy(header(shape="(1000000, 1000000)"))],
    ids=["header", "data"],
)
def test_an_endless_stream_is_refused_before_it_is_read(attnkit, refused, flat, start):
    attnkit.file("start", start)
    with attnkit.start("cat", "start", "/dev/zero", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as feeder:
        run = attnkit("layernorm", stdin=feeder.stdout, limits=flat)
        feeder.stdout.close()
    refused(run, 3, "layernorm: <stdin>: ")


X = np.array([[1, 2, 3, 4], [0, -1, 0.5, 8]], np.float32)
SAME = {
    "version 2.0": npy(header(shape="(2, 4)"), X.tobytes(), (2, 0)),
    "version 3.0": npy(header(shape="(2, 4)"), X.tobytes(), (3, 0)),
    "big-endian": saved(X.astype(">f4")),
    "Fortran order": saved(np.asfortranarray(X)),
    "big-endian Fortran order": saved(np.asfortranarray(X.astype(">f4"))),
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
def test_other_ways_to_write_the_same_array(attnkit, content):
    run = attnkit("show", "-f", "npy", stdin=content)
    assert (run.code, run.out, run.err) == (0, saved(X), "")


def test_bfloat16_needs_to_be_asked_for(attnkit):
    halves = (X.view(np.uint32) >> 16).astype(np.uint16)
    run = attnkit("show", "--dtype", "bfloat16", "-f", "json", stdin=saved(halves.view("V2")))
    assert (run.code, run.err) == (0, "")
    assert b'"dtype":"bfloat16","shape":[2,4]' in run.out
    assert b"[[1.0,2.0,3.0,4.0],[0.0,-1.0,0.5,8.0]]" in run.out


def test_float16_beyond_its_range_is_infinite_with_a_warning(attnkit):
    run = attnkit("attend", "--residual", stdin=saved(np.full((1, 2), 40000, np.float16)))
    assert run.code == 0
    assert np.load(io.BytesIO(run.out)).tolist() == [[np.inf, np.inf]]
    assert run.err == "attnkit attend: warning: the result is inf at [0][0]: outside the range of float16\n"
