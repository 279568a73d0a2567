"""Bad NPZ input: an archive is read from memory, its names are only keys, and it never grows unasked."""

import subprocess

import pytest

from tests.faults.bad_npz import BAD, EYE, WHOLE, npz, saved


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, content, parts):
    reject(content, *parts)


# What comes before is a record and has been delivered; a file gets all of the stream or nothing.
TAILS = {
    "text": (b"abc", "3 bytes after the ZIP archive"),
    "array": (saved(EYE), "144 bytes after the ZIP archive"),
    "half a mark": (WHOLE[:3], "3 bytes after the ZIP archive"),
    "mark alone": (WHOLE[:4], "truncated ZIP archive"),
    "archive cut": (WHOLE[:-1], "truncated ZIP archive: the end of its directory is missing"),
    "empty archive": (npz([]), "no tensors in this NPZ file"),
}


@pytest.mark.parametrize(("tail", "problem"), TAILS.values(), ids=TAILS)
def test_bytes_after_an_archive(attnkit, refused, tail, problem):
    run = attnkit("layernorm", stdin=WHOLE + tail)
    assert run.out == attnkit("layernorm", stdin=WHOLE).out
    refused(run._replace(out=b""), 3, "layernorm: <stdin>: ", problem)
    run = attnkit("layernorm", attnkit.file("in.npz", WHOLE + tail), "-o", attnkit.file("old.npz", b"old"))
    refused(run, 3, "layernorm: in.npz: ", problem)
    assert (attnkit.folder / "old.npz").read_bytes() == b"old"


# Z3
NAMES = (
    "../../etc/x.npy",
    "/etc/x.npy",
    "C:\\x.npy",
    "a\0b.npy",
    "\x1b[2J.npy",
    "new\nline.npy",
    "..npy",
    ".npy",
    "\u202e.npy",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_the_name_of_a_member_is_only_a_key(attnkit, name):
    content = npz([("x.npy", saved(EYE)), (name, saved(EYE))])
    before = set(attnkit.folder.parent.rglob("*"))
    run = attnkit("show", "--list", stdin=content)
    assert (run.code, run.err) == (0, "")
    assert all(line.isprintable() for line in run.out.decode().splitlines())
    for format in ("npz", "safetensors", "json"):
        once = attnkit("layernorm", "-f", format, stdin=content)
        again = attnkit("show", "-f", "npz", "--name", "x", stdin=once.out)
        assert (once.code, once.err, again.code, again.err) == (0, "", 0, "")
    assert set(attnkit.folder.parent.rglob("*")) == before


def test_which_tensor(attnkit, refused):
    several = attnkit.file("several.npz", npz([(f"t{i}.npy", saved(EYE)) for i in range(12)]))
    listed = "t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 2 more"
    refused(attnkit("layernorm", several), 3, "layernorm: several.npz: ", "'x'", listed)
    refused(attnkit("layernorm", several + ":t99"), 3, "layernorm: several.npz:t99: ", "no tensor 't99'", listed)
    refused(attnkit("attend", "good.json", "--mask", several), 3, "attend: several.npz: no x; it has", listed)
    refused(attnkit("attend", "good.json", "--mask", several + ":no"), 3, "attend: several.npz: no tensor 'no'", listed)
    assert attnkit("layernorm", several + ":t11").code == 0


# Z8
def test_an_archive_on_a_pipe_is_like_a_file(attnkit):
    name = attnkit.file("in.npz", npz([("x.npy", saved(EYE)), ("mask.npy", saved(EYE > 0))]))
    from_file = attnkit("attend", name, "-f", "json", "--only", "x,mask")
    with attnkit.start("cat", name, stdout=subprocess.PIPE) as cat:
        from_pipe = attnkit("attend", "-f", "json", "--only", "x,mask", stdin=cat.stdout)
    assert (from_pipe.code, from_pipe.err) == (0, "")
    assert from_pipe.out.split(b'"history"')[0] == from_file.out.split(b'"history"')[0]
