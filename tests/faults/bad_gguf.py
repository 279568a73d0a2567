# ruff: noqa: E501 - a case of a table is a line
"""A table of bad GGUF files: {name: (content, parts of the message)}, read by tests/formats and by the tools."""

import struct

import numpy as np

from tests.gguf_files import BOOL, LIST, STRING, U32, pack_gguf, pack_tensor, pack_text

X = {"x": np.ones(2, np.float32)}
WHOLE = pack_gguf({"a": 1, "b": "text", "c": ["one", "two"], "d": [1.5, 2.5]}, X)


def raw(tensors, keys, rest=b"", version=3):
    """A header with any counts, and what follows them."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def listed(kind, count, data=b""):
    return struct.pack("<IIQ", LIST, kind, count) + data


def one(shape, kind="F32", offset=0, size=64, alignment=None, name="x"):
    """A file with one tensor of any description."""
    pairs = {} if alignment is None else {"general.alignment": alignment}
    head = pack_gguf(pairs, counts=(1, len(pairs)), alignment=1) + pack_tensor(name, shape, kind, offset)
    return head + bytes(-len(head) % 32) + bytes(size)


def two(first, second, size=64):
    head = raw(2, 0, pack_tensor("a", (8,), "F32", first) + pack_tensor("b", (8,), "F32", second))
    return head + bytes(-len(head) % 32) + bytes(size)


BAD = {
    # G1
    "four bytes": (b"GGUF", "truncated: 4 bytes at 4, 0 are left"),
    "version 1": (raw(0, 0, version=1), "version 1 not supported"),
    "version 4": (raw(0, 0, version=4), "version 4 not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian not supported"),
    "header cut": (WHOLE[:20], "truncated"),
    "2^63 keys": (raw(0, 2**63), "metadata: truncated: 9223372036854775808 keys, 0 bytes are left"),
    "2^64 - 1 tensors": (raw(2**64 - 1, 0), "truncated: 18446744073709551615 tensors, 0 bytes are left"),
    "a key more": (pack_gguf({"a": 1}, counts=(0, 2), alignment=1), "metadata: truncated: 2 keys, 17 bytes are left"),
    "a tensor more": (pack_gguf({"a": 1}, counts=(1, 1)), "truncated: 1 tensors"),
    # G2
    "key of 2^64 - 1 bytes": (raw(0, 1, struct.pack("<Q", 2**64 - 1) + bytes(20)), "a key of 18446744073709551615 bytes (limit 65535)"),
    "key past the end": (raw(0, 1, struct.pack("<Q", 4000) + bytes(20)), "metadata: truncated: 4000 bytes at 32, 20 are left"),
    "key twice": (pack_gguf([("a", 1), ("a", 2)]), "metadata: key 'a' occurs twice"),
    "key not UTF-8": (pack_gguf({b"\xff": 1}), "metadata: a key is not UTF-8 (byte 0)"),
    "text not UTF-8": (pack_gguf({"a": struct.pack("<I", STRING) + pack_text(b"o\xff")}), "key 'a': a text is not UTF-8 (byte 1)"),
    "text past the end": (pack_gguf({"a": struct.pack("<IQ", STRING, 2**60)}), "key 'a': truncated: 1152921504606846976 bytes at 45, 19 are left"),
    "type 13": (pack_gguf({"a": struct.pack("<II", 13, 0)}), "metadata: key 'a': type 13 is not known (expected 0 to 12)"),
    "boolean of 7": (pack_gguf({"a": struct.pack("<IB", BOOL, 7)}), "key 'a': boolean 7 (expected 0 or 1)"),
    "list of lists": (pack_gguf({"a": listed(LIST, 1, struct.pack("<IQI", U32, 1, 1))}), "key 'a': a list of lists is not supported"),
    "list of type 99": (pack_gguf({"a": listed(99, 1)}), "key 'a': type 99 is not known"),
    "2^62 numbers": (pack_gguf({"a": listed(U32, 2**62)}), "key 'a': truncated"),
    "2^61 strings": (pack_gguf({"a": listed(STRING, 2**61)}), "key 'a': truncated: 2305843009213693952 strings"),
    "string past the end": (pack_gguf({"a": listed(STRING, 1, struct.pack("<Q", 1 << 40))}), "key 'a': truncated: 1 strings do not end within the file"),
    "string of 2^64 - 1": (pack_gguf({"a": listed(STRING, 2, struct.pack("<QQ", 2**64 - 1, 0))}), "key 'a': truncated: 2 strings do not end within the file"),
    "alignment 0": (one((2,), alignment=0), "general.alignment is 0 (expected a power of two"),
    "alignment 24": (one((2,), alignment=24), "general.alignment is 24 (expected a power of two"),
    "alignment 2^31": (one((2,), alignment=1 << 31), "general.alignment is 2147483648"),
    "alignment a text": (one((2,), alignment="32"), "general.alignment is '32' (expected a power of two"),
    # G3
    "tensor twice": (raw(2, 0, pack_tensor("x", (2,), "F32", 0) * 2 + bytes(64)), "tensor 'x' occurs twice"),
    "name of 1001 bytes": (one((2,), name="n" * 1001), "the name of a tensor of 1001 bytes (limit 1000)"),
    "five dimensions": (one((1, 1, 1, 1, 2)), "tensor 'x': 5 dimensions (limit 4)"),
    "2^32 - 1 dimensions": (raw(1, 0, pack_text("x") + struct.pack("<I", 2**32 - 1) + bytes(32)), "tensor 'x': 4294967295 dimensions (limit 4)"),
    "a type of number 43": (one((32,), kind=43), "tensor 'x': type 43 is not decoded (unknown; llama.cpp has types 0 to 42, and its forks have others); use F32"),
    "rows of parts of blocks": (one((2, 48), kind="Q4_0", size=96), "tensor 'x': rows of 48 numbers are not whole blocks of Q4_0 (32 numbers)"),
    "a scalar of blocks": (one((), kind="Q8_0"), "tensor 'x': rows of 1 numbers are not whole blocks of Q8_0"),
    "dimensions overflow": (one((2**40, 2**40)), "tensor 'x': shape (1099511627776, 1099511627776) too large"),
    "empty and huge": (one((0, 2**40)), "tensor 'x': shape (0, 1099511627776) too large for no elements"),
    "1 TB, not there": (one((2**20,)), "truncated: tensor 'x' needs bytes up to 4194304, the file has 64"),
    "offset not aligned": (one((2,), offset=8), "tensor 'x': offset 8 is not a multiple of 32"),
    "offset past the end": (one((2,), offset=2**40), "truncated: tensor 'x' needs bytes up to 1099511627784, the file has 64"),
    "offset of 2^64 - 32": (one((2,), offset=2**64 - 32), "truncated: tensor 'x' needs bytes up to 18446744073709551592"),
    "overlap": (two(0, 0), "tensor 'b': offsets (0,32) overlap another tensor"),
    "cut in the numbers": (WHOLE[:-30], "truncated: tensor 'x' needs bytes up to 8, the file has 2"),
    "bytes after": (pack_gguf({}, X) + bytes(64), "88 bytes after the last tensor"),
    # G4, G5
    "type that is not decoded": (one((256,), kind=137, size=96), "tensor 'x': type IQ2_K is not decoded (of ik_llama.cpp); use F32, F16, Q4_0"),
    "no tensors": (pack_gguf({"a": 1}), "no tensors in this GGUF file"),
}  # fmt: skip
