"""GGUF files, packed byte by byte as docs/gguf.md of ggml says."""

import struct

import numpy as np

from attnkit.formats.gguf_blocks import BLOCK_TYPES

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, LIST, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", U64: "Q", I64: "q", F64: "d"}
TYPE_NUMBERS = {kind.name: number for number, kind in BLOCK_TYPES.items()}


def pack_text(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def pack_value(value):
    """The type of a value and its bytes, by its type in Python; bytes are there already."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, list | tuple):
        kinds = {kind_of(item) for item in value}
        kind = kinds.pop() if len(kinds) == 1 else F32 if value else STRING
        return struct.pack("<IIQ", LIST, kind, len(value)) + b"".join(pack_bare(kind, item) for item in value)
    return struct.pack("<I", kind_of(value)) + pack_bare(kind_of(value), value)


def kind_of(value):
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return I32 if value < 0 else U32
    return F32 if isinstance(value, float) else STRING


def pack_bare(kind, value):
    if kind == BOOL:
        return bytes([value])
    return pack_text(value) if kind == STRING else struct.pack(f"<{FORMATS[kind]}", value)


def pack_tensor(name, shape, kind, offset):
    number = TYPE_NUMBERS.get(kind, kind)
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return pack_text(name) + dims + struct.pack("<IQ", number, offset)


def pack_gguf(metadata=(), tensors=None, version=3, counts=None, alignment=32):
    """A whole file.

    metadata  key -> value; or pairs, of which several may have one key
    tensors   name -> array in float32, or (type, shape, bytes), each at the next multiple of the alignment
    counts    (tensors, keys) that the header states, where they are others
    """
    pairs = list(metadata.items() if isinstance(metadata, dict) else metadata)
    infos, data = b"", b""
    for name, tensor in (tensors or {}).items():
        kind, shape, content = tensor if isinstance(tensor, tuple) else ("F32", tensor.shape, as_float32(tensor))
        infos += pack_tensor(name, shape, kind, len(data))
        data += content + bytes(-len(content) % alignment)
    keys = b"".join(pack_text(key) + pack_value(value) for key, value in pairs)
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors or {}), len(pairs)))) + keys + infos
    return head + bytes(-len(head) % alignment) + data


def as_float32(array):
    return np.ascontiguousarray(array, "<f4").tobytes()
