"""Bad NPY input: every one a line, exit code 3, and no memory taken."""

import io
import subprocess

import numpy as np
import pytest

from tests.faults.bad_npy import BAD, WHOLE, header, npy, saved


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
    # N18
    "big-endian": saved(X.astype(">f4")),
    "Fortran order": saved(np.asfortranarray(X)),
    "big-endian Fortran order": saved(np.asfortranarray(X.astype(">f4"))),
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
def test_other_ways_to_write_the_same_array(attnkit, content):
    run = attnkit("show", "-f", "npy", stdin=content)
    assert (run.code, run.out, run.err) == (0, saved(X), "")


# N19
def test_bfloat16_needs_to_be_asked_for(attnkit):
    halves = (X.view(np.uint32) >> 16).astype(np.uint16)
    run = attnkit("show", "--dtype", "bfloat16", "-f", "json", stdin=saved(halves.view("V2")))
    assert (run.code, run.err) == (0, "")
    assert b'"dtype":"bfloat16","shape":[2,4]' in run.out
    assert b"[[1.0,2.0,3.0,4.0],[0.0,-1.0,0.5,8.0]]" in run.out


# N20
def test_float16_beyond_its_range_is_infinite_with_a_warning(attnkit):
    run = attnkit("attend", "--residual", stdin=saved(np.full((1, 2), 40000, np.float16)))
    assert run.code == 0
    assert np.load(io.BytesIO(run.out)).tolist() == [[np.inf, np.inf]]
    assert run.err == "attnkit attend: warning: the result is inf at [0][0]: outside the range of float16\n"
