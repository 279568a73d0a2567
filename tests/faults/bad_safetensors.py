# ruff: noqa: E501 - a case of a table is a line
"""A table of bad safetensors: {name: (content, parts of the message)}, read by tests/formats and by the tools."""

import json


def safetensors(header, data=b"", length=None):
    """A file with any header: bytes, or what JSON makes of it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def two(first, second, size=20):
    """Two tensors with these offsets, their sizes fitting."""
    shapes = [[max(end - begin, 0) // 4] for begin, end in (first, second)]
    return safetensors({"a": entry("F32", shapes[0], first), "b": entry("F32", shapes[1], second)}, bytes(size))


WHOLE = safetensors({"x": entry()}, bytes(8))
HEADER = "bad safetensors header: "

BAD = {
    # S1
    "3 bytes": (b"\x02\0\0", "truncated header: expected 8 bytes, got 3"),
    "length of 63": (safetensors(b"{}", length=2**63 - 1), "header too large: 9223372036854775807 bytes"),
    "length one less": (safetensors({"x": entry()}, bytes(8), 60), HEADER),
    "length alone": (WHOLE[:8], "truncated header: expected 69 bytes, got 8"),
    "header cut": (WHOLE[:30], "truncated header: expected 69 bytes, got 30"),
    "length 0": (safetensors(b""), HEADER + "it does not begin with {"),
    "length 2^63": (safetensors(b"{}", length=2**63), "header too large: 9223372036854775808 bytes"),
    "length over the limit": (safetensors(b"{}" * 9, length=100_000_001), "header too large: 100000001 bytes (limit 100000000)"),
    "length past the end": (safetensors(b"{}", bytes(8), 99_000_000), "truncated header: expected 99000008 bytes, got 18"),
    # S2
    "a list": (safetensors(b"[1,2]"), HEADER + "it does not begin with {"),
    "space first": (safetensors(b' {"x":1}'), HEADER + "it does not begin with {"),
    "byte order mark": (safetensors(b"\xef\xbb\xbf{}"), HEADER + "it does not begin with {"),
    "UTF-16": (safetensors('{"x":1}'.encode("utf-16")), HEADER + "it does not begin with {"),
    "zero bytes after the object": (safetensors(b'{"x":{}}' + bytes(8)), HEADER + "line 1 column 9: unexpected content"),
    "a comma at the end": (safetensors(b'{"x":{},}'), HEADER + "line 1 column 8: trailing comma"),
    "key twice, once escaped": (safetensors(b'{"x":{},"\\u0078":{}}'), HEADER, 'duplicate key "x"'),
    "key twice in an entry": (safetensors(b'{"x":{"dtype":"F32","dtype":"I32"}}'), HEADER, 'duplicate key "dtype"'),
    "metadata twice": (safetensors(b'{"__metadata__":{},"__metadata__":{}}'), HEADER, 'duplicate key "__metadata__"'),
    "not JSON": (safetensors(b'{"x":}' + b" " * 9), HEADER + "line 1 column 6: unexpected '}'"),
    "text after the object": (safetensors(b"{} x"), HEADER + "line 1 column 4: unexpected content"),
    "invalid UTF-8": (safetensors(b'{"\xff":1}'), HEADER + "line 1 column 3: ", "invalid UTF-8"),
    "NaN": (safetensors(b'{"x":NaN}'), HEADER + "line 1 column 6: ", "NaN is not JSON"),
    "depth 2000": (safetensors(b'{"x":' + b"[" * 2000), HEADER, "depth limit exceeded"),
    "key twice": (safetensors(b'{"x":{},"x":{}}'), HEADER, 'duplicate key "x"'),
    # S3
    "hole": (two((0, 8), (12, 20)), "tensor 'b': offsets (12,20) leave a hole at 8"),
    "hole at the start": (safetensors({"x": entry(offsets=(4, 12))}, bytes(12)), "tensor 'x': offsets (4,12) leave a hole at 0"),
    "overlap": (two((0, 8), (4, 12)), "tensor 'b': offsets (4,12) overlap"),
    "end before begin": (two((0, 8), (12, 8)), "tensor 'b': offsets (12,8) end before they begin"),
    "negative offset": (safetensors({"x": entry(offsets=(-8, 0))}, bytes(8)), "tensor 'x': data_offsets are not two whole numbers"),
    "offset of 2^63": (safetensors({"x": entry(offsets=(0, 2**63))}, bytes(8)), "tensor 'x': shape [2] F32 needs 8 bytes, has 9223372036854775808"),
    "offset a float": (safetensors({"x": entry(offsets=(0.0, 8.0))}, bytes(8)), "tensor 'x': data_offsets are not two whole numbers"),
    "offset a boolean": (safetensors({"x": entry(offsets=(False, 8))}, bytes(8)), "tensor 'x': data_offsets are not two whole numbers"),
    "an empty tensor within another": (safetensors({"a": entry(), "z": entry(shape=(0,), offsets=(4, 4))}, bytes(8)), "tensor 'z': offsets (4,4) overlap"),
    "one offset": (safetensors({"x": entry(offsets=(8,))}, bytes(8)), "tensor 'x': data_offsets are not two whole numbers"),
    "past the end": (safetensors({"x": entry()}, bytes(6)), "truncated data: tensor 'x' needs 8 bytes, got 6"),
    "bytes after": (WHOLE + b"abc", "3 bytes after the last tensor"),
    # S4
    "size differs": (safetensors({"a": entry(shape=(3,))}, bytes(8)), "tensor 'a': shape [3] F32 needs 12 bytes, has 8"),
    "product overflows": (safetensors({"a": entry(shape=(2**32, 2**32, 4), offsets=(0, 0))}), "tensor 'a': shape [4294967296, 4294967296, 4] F32 needs"),
    "1 TB, not there": (safetensors({"a": entry(shape=(2**38,), offsets=(0, 2**40))}), "tensor 'a': ", "1.1 TB"),
    "too large though empty": (safetensors({"a": entry(shape=(2**70, 0), offsets=(0, 0))}), "tensor 'a': ", "invalid shape"),
    "float dimension": (safetensors({"a": entry(shape=(2.0,))}, bytes(8)), "tensor 'a': invalid shape (2.0)"),
    "negative dimension": (safetensors({"a": entry(shape=(-2,))}, bytes(8)), "tensor 'a': invalid shape (-2)"),
    "boolean dimension": (safetensors({"a": entry(shape=(True, 2))}, bytes(8)), "tensor 'a': invalid shape (True, 2)"),
    "shape a number": (safetensors({"a": {**entry(), "shape": 2}}, bytes(8)), "tensor 'a': shape is not a list"),
    "key missing": (safetensors({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "tensor 'a': expected the keys dtype, shape and data_offsets"),
    "65 dimensions": (safetensors({"a": entry(shape=(1,) * 64 + (2,))}, bytes(8)), "tensor 'a': "),
    "a key more": (safetensors({"a": {**entry(), "order": "C"}}, bytes(8)), "tensor 'a': expected the keys dtype, shape and data_offsets"),
    "entry a list": (safetensors({"a": [1]}), "tensor 'a': expected the keys dtype, shape and data_offsets"),
    # S6
    **{
        f"dtype {name}": (safetensors({"a": entry(name, offsets=(0, 2))}, bytes(2)), f"tensor 'a': dtype {name} not supported")
        for name in ("F8_E4M3", "F8_E5M2", "F4", "C64", "f32", "Q7")
    },
    "dtype of control characters": (safetensors({"a": entry("\x1b\n")}, bytes(8)), "tensor 'a': dtype \\x1b\\n not supported"),
    "dtype a list": (safetensors({"a": entry(["F32"])}, bytes(8)), "tensor 'a': dtype ['F32'] not supported"),
    "dtype a number": (safetensors({"a": entry(7)}, bytes(8)), "tensor 'a': dtype 7 not supported"),
    "bool of 7": (safetensors({"x": entry("BOOL", offsets=(0, 2))}, b"\1\7"), "bool value 7"),
    "no tensors": (safetensors({"__metadata__": {}}), "no tensors"),
    "metadata of numbers": (safetensors({"__metadata__": {"a": 1}, "x": entry()}, bytes(8)), "__metadata__ does not map names to strings"),
    "metadata a list": (safetensors({"__metadata__": [], "x": entry()}, bytes(8)), "__metadata__ does not map names to strings"),
    "our metadata broken": (safetensors({"__metadata__": {"attnkit": "{"}, "x": entry()}, bytes(8)), "line 1 column 2"),
}  # fmt: skip
