"""Formats told by their first bytes, and what is said of files that hold no tensors."""

import gzip
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.formats import FORMATS, Record, Source, read, suffix_format
from attnkit.formats.safetensors import encode as safetensors
from tests.faults import bad_csv, bad_gguf, bad_json, bad_npy, bad_npz, bad_pytorch, bad_safetensors, bad_wav

HEAVY = ("orjson", "zipfile", "hashlib", "ml_dtypes", "json", "pathlib", "attnkit.formats.json")


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "empty input (expected NPY, NPZ, JSON, safetensors or CSV)"),
        (b"hello\n", "not a tensor file (looks like text)"),
        ("żółw".encode(), "not a tensor file (looks like text)"),
        (b"this is text", "not a tensor file (looks like text)"),
        (gzip.compress(b"[1]", mtime=0), "not a tensor file (looks like gzip)"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a PNG or JPEG that can be read"),
        (b"\x7fELF\2\1\1" + bytes(9), "not a tensor file (looks like ELF)"),
        (b"<!DOCTYPE html>", "not a tensor file (looks like HTML or XML)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a tensor file (looks like Git LFS pointer)"),
        (b"\x89HDF\r\n\x1a\n", "not a tensor file (looks like HDF5)"),
        (b"\xfe\xfe[\xdax\x08M\x89\xe4\xe2\xff", "not a tensor file"),
        (pickle.dumps([1]), "object arrays (pickle) are never loaded"),
        (b"PK\x05\x06" + bytes(18), "no tensors in this NPZ file"),
        (b"PK\x03\x04 and no more", "truncated ZIP archive"),
        (b"\x93NUMPX and more", "not an NPY array"),
    ],
)
def test_what_is_not_a_tensor(data, message):
    with pytest.raises(DataError) as caught:
        list(read(Source.of(data, "file")))
    assert str(caught.value).startswith("file: ") and message in str(caught.value)


TABLES = {"csv": bad_csv, "gguf": bad_gguf, "json": bad_json, "npy": bad_npy, "npz": bad_npz, "pt": bad_pytorch,
          "safetensors": bad_safetensors, "wav": bad_wav}  # fmt: skip


@pytest.mark.parametrize(
    ("format", "name"),
    [(format, name) for format, table in TABLES.items() for name in table.BAD if name != "long line"],
)
def test_a_bad_file_is_refused_by_its_place(format, name):
    """As by the tools, of which tests/faults has processes."""
    content, *parts = TABLES[format].BAD[name]
    with pytest.raises(DataError) as caught:
        list(read(Source.of(content, "file"), lone_is_x=False))
    assert all(part in str(caught.value) for part in ("file: ", *parts))


def test_pickle_is_not_run(tmp_path):
    canary = tmp_path / "canary"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    for data in (pickle.dumps(Trap(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)):
        with pytest.raises(DataError):
            list(read(Source.of(data)))
    assert not canary.exists()


def test_no_header_length_is_taken_for_json():
    """A header of 91 or 123 bytes, say, begins like a JSON list or object."""
    for size in range(1, 600):
        data = b"".join(safetensors(Record({"x": np.ones(1), "n" * size: np.ones(1)})))
        assert read(Source.of(data)).format == "safetensors", size


@pytest.mark.parametrize("format", FORMATS)
def test_suffixes(format):
    assert suffix_format(f"folder.x/file.{format}") == suffix_format(f"F.{format.upper()}") == format
    assert suffix_format("a.jsonl") == suffix_format("a.ndjson") == "json"
    assert suffix_format("json") is None and suffix_format("a.json.gz") is None


def test_only_the_format_in_use_is_imported():
    report = f"; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    ours = "import attnkit.formats as t; t.read(t.Source.of(b'\\x93NUMPY'))"
    printed = [subprocess.check_output([sys.executable, "-c", s + report]) for s in (ours, "import numpy")]
    assert printed[0] == printed[1]


@pytest.mark.parametrize(("data", "format"), [
    (struct.pack("<Q", 10**9) + b"{", "safetensors"), (struct.pack("<Q", 10**8) + b"x", "safetensors"),
    (b"PK\3\4" + bytes(22) + struct.pack("<HH", 47, 0) + b"a" * 47, "npz"),  # 47 is the code of a slash
    (b"PK\3\4" + bytes(22) + struct.pack("<HH", 6, 0) + b"a/data", "pytorch"),
    (b"PK\3\4" + bytes(22) + struct.pack("<HH", 7, 0) + b"a/b.npy", "npz"),
    (b"PK\3\4" + bytes(22) + struct.pack("<HH", 1, 2) + b"aa/", "npz"),  # the name ends before it
])  # fmt: skip
def test_the_format_by_the_bytes_of_the_head(data, format):
    assert read(Source.of(data)).source == format


def test_a_header_longer_than_any_is_none():
    with pytest.raises(DataError, match=r"^<memory>: not a tensor file$"):
        read(Source.of(struct.pack("<Q", 10**8 + 1) + b"x" + bytes(9)))
