# ruff: noqa: E501 - a case of a table is a line
"""Bad NPZ input: an archive is read from memory, its names are only keys, and it never grows unasked."""

import io
import pickle
import struct
import subprocess
import zipfile

import numpy as np
import pytest

EYE = np.eye(2, dtype=np.float32)
PICKLE = "object arrays (pickle) are never loaded"


def saved(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npz(members, method=zipfile.ZIP_STORED):
    """An archive of (name, content), with any names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members:
            entry = zipfile.ZipInfo("x")
            entry.filename, entry.compress_type = name, method
            file.writestr(entry, content)
    return buffer.getvalue()


def patched(data, at, value, form="<H"):
    """The bytes with a number written over them; a place below 0 counts from the directory."""
    changed = bytearray(data)
    start = at if at >= 0 else data.rindex(b"PK\x01\x02") - at
    struct.pack_into(form, changed, start, value)
    return bytes(changed)


def bomb(size):
    """An archive a thousandth of the size of the zeros in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as member:
        for _ in range(size // 1_000_000):
            member.write(bytes(1_000_000))
    return buffer.getvalue()


WHOLE = npz([("x.npy", saved(EYE))])
BOMB = bomb(200_000_000)
SIZE = -24  # of the uncompressed member, in its entry of the directory

BAD = {
    # Z1
    "bomb": (BOMB, "would become 200.0 MB (limit 67.1 MB)"),
    "bomb that says it is small": (patched(BOMB, SIZE, 1000, "<I"), "member 'x.npy': damaged"),
    "checksum wrong": (WHOLE.replace(b"\x80\x3f", b"\x80\x40", 1), "member 'x.npy': damaged"),
    # Z5
    "pickled array": (npz([("x.npy", saved(np.array([{}]), allow_pickle=True))]), "member 'x.npy': " + PICKLE),
    "pickle": (npz([("data.pkl", pickle.dumps({}))]), "member 'data.pkl': " + PICKLE),
    "text member": (npz([("notes.txt", b"hello")]), "member 'notes.txt': not an NPY array"),
    "text in a .npy": (npz([("x.npy", b"hello there")]), "member 'x.npy': not an NPY array"),
    "empty .npy": (npz([("x.npy", b"")]), "member 'x.npy': truncated header"),
    "bytes after a member": (npz([("x.npy", saved(EYE) + b"abc")]), "member 'x.npy': 3 bytes after the array"),
    "encrypted": (patched(WHOLE, -8, 1), "member 'x.npy' is encrypted"),
    "bzip2": (npz([("x.npy", saved(EYE))], zipfile.ZIP_BZIP2), "member 'x.npy' is compressed with bzip2"),
    "lzma": (npz([("x.npy", saved(EYE))], zipfile.ZIP_LZMA), "member 'x.npy' is compressed with lzma"),
    "zstd": (patched(WHOLE, -10, 93), "member 'x.npy' is compressed with zstd"),
    "same name twice": (npz([("x.npy", saved(EYE)), ("y.npy", saved(EYE))]).replace(b"y.npy", b"x.npy"), "duplicate member 'x.npy'"),
    # Z7
    "empty archive": (npz([]), "no tensors in this NPZ file"),
    # the container
    "cut": (WHOLE[:-30], "truncated ZIP archive"),
    "first bytes alone": (WHOLE[:4], "truncated ZIP archive"),
    "member outside": (patched(WHOLE, -42, 1 << 30, "<I"), "member 'x.npy' is outside the archive"),
    "meta no object": (npz([("x.npy", saved(EYE)), ("meta.json", b"[]")]), "member 'meta.json'", "not a JSON object"),
    "meta no JSON": (npz([("x.npy", saved(EYE)), ("meta.json", b"{,}")]), "member 'meta.json': line 1 column 2"),
    "axes do not fit": (
        npz([("x.npy", saved(EYE)), ("meta.json", b'{"axes":{"x":["token"]}}')]),
        "tensor 'x': 1 axis names for shape (2, 2)",
    ),
    "labels do not fit": (
        npz([("x.npy", saved(EYE)), ("meta.json", b'{"axes":{"x":["token","model"]},"labels":{"token":["a"]}}')]),
        "labels of axis 'token': 1 for the 2 indices of tensor 'x'",
    ),
}  # fmt: skip


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
    "archive cut": (WHOLE[:-1], "truncated ZIP archive: no end of its directory"),
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
    refused(attnkit("attend", "good.json", "--mask", several), 3, "attend: several.npz: which tensor?", listed)
    refused(attnkit("attend", "good.json", "--mask", several + ":no"), 3, "attend: several.npz: no tensor 'no'", listed)
    assert attnkit("layernorm", several + ":t11").code == 0


def test_an_archive_on_a_pipe_is_like_a_file(attnkit):
    name = attnkit.file("in.npz", npz([("x.npy", saved(EYE)), ("mask.npy", saved(EYE > 0))]))
    from_file = attnkit("attend", name, "-f", "json", "--only", "x,mask")
    with attnkit.start("cat", name, stdout=subprocess.PIPE) as cat:
        from_pipe = attnkit("attend", "-f", "json", "--only", "x,mask", stdin=cat.stdout)
    assert (from_pipe.code, from_pipe.err) == (0, "")
    assert from_pipe.out.split(b'"history"')[0] == from_file.out.split(b'"history"')[0]
