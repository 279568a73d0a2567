# ruff: noqa: E501 - a case of a table is a line
"""A table of bad NPZ: {name: (content, parts of the message)}, read by tests/formats and by the tools."""

import io
import pickle
import struct
import zipfile

import numpy as np

EYE = np.eye(2, dtype=np.float32)
FAST = 1  # the level of compression: every worker makes these archives
PICKLE = "object arrays (pickle) are never loaded"


def saved(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npz(members, method=zipfile.ZIP_STORED):
    """An archive of (name, content), with any names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=FAST) as file:
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
    """An archive of a two hundredth of the size of the zeros in it."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=FAST) as file,
        file.open("x.npy", "w") as member,
    ):
        for _ in range(size // 1_000_000):
            member.write(bytes(1_000_000))
    return buffer.getvalue()


WHOLE = npz([("x.npy", saved(EYE))])
BOMB = bomb(80_000_000)
SIZE = -24  # of the uncompressed member, in its entry of the directory

BAD = {
    # Z1
    "bomb": (BOMB, "would become 80.0 MB (limit 67.1 MB)"),
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
