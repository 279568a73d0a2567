"""Every reader of files: a case is a seed file with one to four structure-aware mutations.

Each must give records that every format writes and reads back equal, or an AttnkitError of one short line. `growth`
measures how the time of each reader grows from n to 2n on 1 MB of each hostile kind of input.
"""

import collections
import contextlib
import io
import itertools
import json
import os
import random
import re
import struct
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import AttnkitError
from attnkit.formats import FORMATS, Record, Source, encode, gguf, npz, pytorch, read, safetensors
from attnkit.formats.json import normalize_nan
from attnkit.formats.zip import ArchiveWriter
from attnkit.records import Tensor
from tests.fuzz.runner import INTEGERS, Door, Escape, check_error
from tests.gguf_files import pack_gguf
from tests.sound_files import pack_wav


def encode_archive(files):
    """An archive of stored files: pairs of a name and buffers."""
    buffers = []
    archive = ArchiveWriter(buffers.extend)
    for name, content in files:
        archive.add(name, content)
    archive.finish()
    return buffers


CHECKED = 8  # records of a stream that are written again
UNZIP_ERRORS = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error)
MODELS = Path(__file__).parent.parent / "references" / "models"

PYTORCH_FILES = ("state.bin", "state.bin", "protocol4.bin", "nested.pt", "tensor.pt", "legacy.bin", "legacy.bin")

NUMBERS = [
    *map(str, INTEGERS),
    "20000000",
    "1e5",
    "1e308",
    "1e309",
    "-1e-400",
    "0.1",
    "1.0",
    "-0.0",
    "01",
    "NaN",
    "1_0",
]
NUMBERS += [
    "Infinity",
    '"NaN"',
    '"-Infinity"',
    "null",
    "true",
    "[]",
    "[[],[]]",
    "{}",
    "9" * 400,
    "0." + "3" * 300,
    "1e",
]
STRINGS = ["", "x", "mask", "é", "\\u0000", "\\ud800", "\\ud83d\\ude00", "\x1b[2J", "\\n", "a" * 300, "__metadata__"]
STRINGS += ["meta.json", "../../etc/x", "token", "float16", "bfloat16", "int8", "uint64", "F64", "BF16", "BOOL", "<f8"]
STRINGS += [">i2", "|O", "|V2", "shape", "data", "axes", "files", "beside", "NaN", "Infinity", "attnkit", "\\x"]
NESTED = [b"[" * 70, b"[" * 64 + b"]" * 64, b"[" * 3000, b'{"a":' * 70, b'{"a":' * 70 + b"1" + b"}" * 70, b"[[[[1]]]]"]
BAD_TEXT = [
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"\n",
]

Mutate = Callable[[random.Random, bytes], bytes]


# Mutations of bytes


def spot(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = spot(rng, data)
    return start, min(len(data), start + int(rng.expovariate(1 / 12)))


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    result = bytearray(data or b"\0")
    for _ in range(rng.choice([1, 1, 2, 8])):
        result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
    return bytes(result)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: spot(rng, data)]


def remove(rng: random.Random, data: bytes) -> bytes:
    start, end = span(rng, data)
    return data[:start] + data[end:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = span(rng, data)
    return data[:end] + data[start:end] * rng.choice([1, 2, 50]) + data[end:]


def move(rng: random.Random, data: bytes) -> bytes:
    start, end = span(rng, data)
    rest = data[:start] + data[end:]
    at = spot(rng, rest)
    return rest[:at] + data[start:end] + rest[at:]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = spot(rng, data)
    piece = rng.choice([*NESTED, *BAD_TEXT, rng.randbytes(rng.randrange(9)), bytes(rng.choices(b'{}[]",: -.0e', k=3))])
    return data[:at] + piece + data[at:]


def write_integer(rng: random.Random, data: bytes) -> bytes:
    """Overwrites a field of 1, 2, 4 or 8 bytes, at the start and at the end of a file more often."""
    width = rng.choice([1, 2, 4, 8])
    at = rng.choice([rng.randrange(12), spot(rng, data), max(0, len(data) - rng.randrange(1, 24))])
    value = rng.choice([*INTEGERS, len(data), rng.randrange(1 << 16)]) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def substitute(pattern: bytes, choices: list[str], rng: random.Random, data: bytes) -> bytes:
    found = list(re.finditer(pattern, data))
    if not found:
        return insert(rng, data)
    place = rng.choice(found)
    return data[: place.start()] + rng.choice(choices).encode() + data[place.end() :]


def edit_number(rng: random.Random, data: bytes) -> bytes:
    return substitute(rb"(?<![\w.])-?[0-9][0-9.eE+-]*", NUMBERS, rng, data)


def edit_string(rng: random.Random, data: bytes) -> bytes:
    return substitute(rb"""(?<=["'])[^"'\\]{0,40}(?=["'])""", STRINGS, rng, data)


def nest(rng: random.Random, data: bytes) -> bytes:
    return substitute(rb"[0-9]+|\[\]|\{\}", [piece.decode() for piece in NESTED], rng, data)


def flood(rng: random.Random, data: bytes) -> bytes:
    at = spot(rng, data)
    return (
        data[:at] + rng.choice([b" ", b"\r\n", b"[]", b",", b"[],", b"\\", b"0", b"a", b'"', b"\0"]) * 3000 + data[at:]
    )


BYTES: list[Mutate] = [flip_bits, truncate, remove, repeat, move, insert, write_integer, flood]
TEXT: list[Mutate] = [edit_number, edit_number, edit_string, edit_string, nest, remove, move, insert, flood]


def splice(rng: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    other = rng.choice(seeds)
    return rng.choice([data + other, data[: spot(rng, data)] + other[spot(rng, other) :]])


CSV_SEEDS = [
    b"1,2.5\n3,NaN\n",
    b"word\ta\tb\nThe\t1\t2\ncat\t3\t4\n",
    b"  1 2\r\n  3 4\r\n",
    b'token,"a,""b",0\n"=x\ny",true,false\n',
    b"batch,token,token_label,x\n0,0,a,1\n0,1,b,2\n1,0,c,3\n1,1,,4\n",
    b"token,loss\n0,0.5\n1,1e-9\n",
]


def edit_csv(rng: random.Random, data: bytes) -> bytes:
    """Writes a separator, a quote, a line end or a name of an axis over another piece."""
    pieces = [
        ",",
        "\t",
        " ",
        '"',
        "\n",
        "\r\n",
        "token",
        "query_label",
        "0",
        "-1",
        "true",
        "99999999999",
        ";",
        "\ufeff",
    ]
    return substitute(rb"[,\t \n\"]|[a-z]+|[0-9]+", pieces, rng, data)


# Mutations of a JSON tree, its objects as lists of pairs so that a key may stand twice


class Pairs(list[tuple[str, Any]]):
    """A JSON object."""


def to_json(value: Any) -> bytes:
    if isinstance(value, Pairs):
        return b"{" + b",".join(json.dumps(key).encode() + b":" + to_json(item) for key, item in value) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(to_json, value)) + b"]"
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def nodes(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
        for item in value:
            yield from nodes(item[1] if isinstance(item, tuple) else item)


def edit_tree(rng: random.Random, data: bytes) -> bytes:
    """Duplicates, removes, reorders, renames or replaces a member of one of the objects and lists of a text."""
    try:
        tree = json.loads(data, object_pairs_hook=Pairs)
    except (ValueError, RecursionError):
        return edit_string(rng, data)
    for _ in range(rng.randrange(1, 3)):
        filled = [node for node in nodes(tree) if node]
        if not filled:
            break
        edit_node(rng, rng.choice(filled), filled)
    return to_json(tree)


def edit_node(rng: random.Random, node: list[Any], others: list[list[Any]]) -> None:
    at = rng.randrange(len(node))
    match rng.randrange(6):
        case 0:
            node.insert(rng.randrange(len(node) + 1), node[at])
        case 1:
            del node[at]
        case 2:
            rng.shuffle(node)
        case 3 if isinstance(node, Pairs):
            node[at] = (rng.choice(["é", "x", "data", "attnkit", "token", "files", "", "__metadata__"]), node[at][1])
        case 4:
            donor = rng.choice(others)
            item = rng.choice([to_json(donor), to_json(list(donor)) if not isinstance(donor, Pairs) else b"{}"])
            node[at] = (node[at][0], item) if isinstance(node, Pairs) else item
        case _:
            item = rng.choice([*NUMBERS[:-4], '"a"', '["a","b"]', '[["a"],["b"]]', "[1,2]", "[[1,2],[3,4]]"]).encode()
            node[at] = (node[at][0], item) if isinstance(node, Pairs) else item


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    return rng.choice([*TEXT, *BYTES, edit_tree, edit_tree, edit_tree])(rng, data)


# Mutations inside the containers, lengths and checksums made to fit again


def mutate_npy(rng: random.Random, data: bytes) -> bytes:
    length = int.from_bytes(data[8:10], "little")
    if rng.random() < 0.4 or len(data) < 10 + length:
        return rng.choice(BYTES)(rng, data)
    header = rng.choice([edit_number, edit_number, edit_string, flip_bits, remove, repeat])(rng, data[10 : 10 + length])
    body = data[10 + length :]
    body = rng.choice([body, body, body * 2, body[:4], b""])
    return data[:8] + struct.pack("<H", len(header) % 65536) + header + body


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3 or len(data) < 8 + length:
        return rng.choice(BYTES)(rng, data)
    header = rng.choice([edit_tree, edit_tree, edit_number, edit_string, nest, flip_bits])(rng, data[8 : 8 + length])
    if rng.random() < 0.2:
        header = metadata_edited(rng, header)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def metadata_edited(rng: random.Random, header: bytes) -> bytes:
    try:
        tree = json.loads(header)
        tree["__metadata__"]["attnkit"] = mutate_json(rng, tree["__metadata__"]["attnkit"].encode()).decode("latin-1")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return header
    return json.dumps(tree).encode()


def mutate_npz(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.2:
        return rng.choice(BYTES)(rng, data)
    if rng.random() < 0.3:
        return lie(rng, data)
    try:
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(io.BytesIO(data)) as file:
            members = [(info.filename, file.read(info)) for info in file.infolist()]
    except UNZIP_ERRORS:
        return lie(rng, data)
    return packed(rng, members_edited(rng, members)) if members else lie(rng, data)


def mutate_pytorch(rng: random.Random, data: bytes) -> bytes:
    """Damages the bytes, a header of the archive, or a file in it, the pickle more often; then packed again."""
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(*UNZIP_ERRORS):
        if rng.random() < 0.8:
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                members = [(info.filename, file.read(info)) for info in file.infolist()]
            at = rng.choice([0, 0, 0, rng.randrange(len(members))])
            members[at] = (members[at][0], rng.choice([*BYTES, edit_pickle, edit_pickle])(rng, members[at][1]))
            return packed(rng, members)
    return rng.choice([*BYTES, edit_pickle, lie])(rng, data)


def edit_pickle(rng: random.Random, data: bytes) -> bytes:
    """Writes a number over another, or opcodes between others."""
    found = list(re.finditer(rb"K[\0-\x20]|M..|\x8a.", data, re.DOTALL))
    if found and rng.random() < 0.6:
        place = rng.choice(found)
        number = rng.choice(INTEGERS)
        wide = number.to_bytes(8, "little", signed=True) if -(1 << 63) <= number < 1 << 63 else bytes(7) + b"\x7f"
        return data[: place.start()] + b"\x8a\x08" + wide + data[place.end() :]
    at = spot(rng, data)
    pieces = [
        b"(",
        b"t",
        b"u",
        b"s",
        b"e",
        b"R",
        b"b",
        b"Q",
        b"h\x00",
        b"q\x00",
        b"}",
        b"]",
        b")",
        b"N",
        b"cos\nsystem\n",
    ]
    return data[:at] + rng.choice(pieces) * rng.choice([1, 1, 2, 500]) + data[at:]


def lie(rng: random.Random, data: bytes) -> bytes:
    """Overwrites a field of one of the ZIP headers."""
    places = [found.start() for found in re.finditer(rb"PK(?:\x01\x02|\x03\x04|\x05\x06|\x06\x06|\x06\x07)", data)]
    if not places:
        return flip_bits(rng, data)
    at, width = rng.choice(places) + rng.randrange(4, 46), rng.choice([1, 2, 4])
    value = rng.choice([*INTEGERS, len(data), *places]) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def members_edited(rng: random.Random, members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    at = rng.randrange(len(members))
    name, content = members[at]
    match rng.randrange(6):
        case 0:
            return [*members, members[at]]
        case 1:
            return members[:at] + members[at + 1 :]
        case 2:
            return rng.sample(members, len(members))
        case 3:
            members[at] = (rng.choice([*STRINGS, "x.npy", ".npy", "é.npy", "a.pkl", "meta.json.npy"]), content)
        case _:
            members[at] = (name, (mutate_json if name == "meta.json" else mutate_npy)(rng, content))
    return members


def packed(rng: random.Random, members: list[tuple[str, bytes]]) -> bytes:
    if rng.random() < 0.5:
        return b"".join(encode_archive([(name, [content]) for name, content in members]))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as file:
        for name, content in {name or "x": content for name, content in members}.items():
            file.writestr(name, content)
    return target.getvalue()


# The law


def check_tensors(data: bytes) -> bool:
    accepted = [check_stream(data, bfloat16) for bfloat16 in (False, True)]
    return any(accepted)


def check_stream(data: bytes, bfloat16: bool) -> bool:
    try:
        for at, record in enumerate(read(Source.of(data, "file"), bfloat16=bfloat16, lone_is_x=False)):
            if at < CHECKED:
                check_record(record)
    except AttnkitError as error:
        return check_error(error)
    return True


def check_record(record: Record) -> None:
    if not record.tensors:
        raise Escape("a record without tensors")
    record.check()
    for format in FORMATS if len(record) == 1 else [name for name in FORMATS if name != "npy"]:
        try:
            written = b"".join(encode(record, format))
        except AttnkitError as error:
            if any(why in str(error) for why in ("cannot hold a tensor called", "too long for a ZIP")):
                continue
            raise Escape(f"{record} is read, but not written as {format}: {error}") from error
        check_same(record, written, format)


def check_same(record: Record, written: bytes, format: str) -> None:
    try:
        [again] = read(Source.of(written, "again"), bfloat16=format == "npy", lone_is_x=False)
    except AttnkitError as error:
        raise Escape(f"{record} written as {format} is not read: {error}") from error
    before = [normalize_nan(array) if format == "json" else array for array in record.arrays().values()]
    same = all(
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        for one, other in zip(before, again.arrays().values(), strict=True)
    )
    if format != "npy":
        same = same and axes_of(again) == axes_of(record)
        same = same and again.labels == record.labels and again.history == record.history
    if not same:
        raise Escape(f"{record} is not the same when written as {format} and read again")


def axes_of(record: Record) -> list[tuple[str, tuple[str, ...] | None]]:
    return [(name, one.axes) for name, one in record.tensors.items()]


def check_mapped(module: Any, data: bytes, path: str) -> bool:
    Path(path).write_bytes(data)
    try:
        found = module.map_tensors(path)
        for name, (dtype, shape) in found.entries.items():
            array = found.tensor(name)
            if array.shape != shape or array.dtype.name != dtype:
                raise Escape(f"{name}: {array.shape} {array.dtype} is announced as {shape} {dtype}")
    except AttnkitError as error:
        return check_error(error)
    return True


def check_folder(files: dict[str, bytes], folder: str) -> bool:
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    for name, content in files.items():
        Path(folder, name).write_bytes(content)
    try:
        tokenizer = open_tokenizer(folder)
        ids = tokenizer.encode("Hello wörld <s> the cat").ids
        tokenizer.decode(ids)
    except AttnkitError as error:
        return check_error(error)
    return True


# The seeds


def samples(format: str) -> list[bytes]:
    records = [
        Record({"x": np.array([[1.5, np.nan], [-np.inf, 0.1]], np.float32)}),
        Record({"x": Tensor(np.arange(6, dtype=np.int64).reshape(2, 3), ("token", "model"))}, {"token": ["The", "é"]}),
        Record({"x": np.zeros((2, 0, 3), ml_dtypes.bfloat16)}),
        Record({"x": np.array(2**64 - 1, np.uint64)}),
    ]
    if format != "npy":
        records.append(full())
    files = [b"".join(encode(record, format)) for record in records]
    return [*files, files[0] + files[1]] if format in ("json", "npy") else files


def full() -> Record:
    tensors = {
        "x": Tensor(np.array([[[1.5, 2.5]], [[1e-8, 3]]], np.float64), ("batch", "token", "model")),
        "mask": Tensor(np.array([[True, False]]), ("batch", "model")),
        "half": np.array([0.1, 65504], np.float16),
        "b": np.ones(2, ml_dtypes.bfloat16),
        "ids": Tensor(np.array([[1], [2]], np.uint8), ("batch", "token")),
    }
    labels = {"token": [["a"], ["b"]], "vocab": ["p", "q"]}
    history = [{"command": "embed 'a'", "version": "1", "files": {"t.npy": "ab" * 32}, "beside": "out.npz"}]
    return Record(tensors, labels, history)


def json_seeds() -> list[bytes]:
    bare = [b"[[1, 2], [3, 4]] [5]\n7", b"[[],[]]", b"[true, false]", b'["NaN", -1.5e3]', b'{"tensors":{"x":[[1.5]]}}']
    indented = b"".join(encode(full(), "json", indent=True))
    return [*samples("json"), *bare, indented, b"\xef\xbb\xbf[1,\r\n2]\r\n"]


def tokenizer_folders() -> dict[str, tuple[dict[str, bytes], list[str]]]:
    """Name of a reader -> the files of a folder, and which of them are damaged."""

    def folder(model: str, *names: str) -> dict[str, bytes]:
        return {name: (MODELS / model / name).read_bytes() for name in names if (MODELS / model / name).exists()}

    special = b'{"unk_token":{"content":"<unk>"},"extra_ids":3,"added_tokens_decoder":{"7":{"content":"<x>"}},"a":true}'
    settings = {"tokenizer_config.json": special, "added_tokens.json": b'{"<y>": 60}'}
    marian = folder("marian", "vocab.json", "source.spm", "target.spm", "tokenizer_config.json")
    llama = folder("llama", "tokenizer.model")
    words = {"vocab.json": b'{"<unk>":0,"</s>":1,"Hello":2,"the":3,"cat":4}'}
    lines = {"vocab.yml": b"---\n<unk>: 0\n</s>: 1\n'it''s': 2\n\"\\x41\\u00e9\\\"\": 3\nthe: 4\n"}
    return {
        "vocab.txt": (folder("bert-mlm", "vocab.txt"), ["vocab.txt"]),
        "vocab.json": (words, ["vocab.json"]),
        "vocab.yml": (lines, ["vocab.yml"]),
        "settings": (words | settings, ["tokenizer_config.json", "added_tokens.json"]),
        "merges.txt": (
            folder("openai-gpt", "vocab.json", "merges.txt", "tokenizer_config.json"),
            ["vocab.json", "merges.txt"],
        ),
        "source.spm": (marian, ["source.spm", "vocab.json"]),
        "spiece.model": ({"spiece.model": marian["source.spm"]} | settings, ["spiece.model", "tokenizer_config.json"]),
        "tokenizer.model": (llama, ["tokenizer.model"]),
    }


def gguf_seeds() -> list[bytes]:
    """Files with metadata of each type, plain and quantized tensors."""
    pairs = {"general.architecture": "llama", "n": 7, "f": 0.5, "yes": True, "words": ["a", "bc"], "list": [1, 2, 3]}
    blocks = {
        "q": ("Q4_K", (2, 256), bytes(range(144)) * 2),
        "m": ("MXFP4", (32,), bytes(17)),
        "b": ("I8", (3,), b"abc"),
    }
    return [pack_gguf(pairs, blocks | {"x": np.eye(3)}), pack_gguf({}, {"x": np.ones(2)}, version=2)]


def wav_seeds() -> list[bytes]:
    """Sounds of several widths and channels."""
    longer = struct.pack("<HHIH14x", 22, 24, 4, 1)
    chunk = b"LIST\3\0\0\0abc\0"
    return [
        pack_wav(bytes(range(12)), before=chunk, extra=chunk),
        pack_wav(bytes(range(12)), bits=24, channels=2, code=0xFFFE, more=longer),
        pack_wav(np.ones(2, "<f4").tobytes(), bits=32, code=3),
    ]


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    return rng.choice(BYTES)(rng, data)


def damage(seeds: list[bytes], mutate: Mutate, rng: random.Random) -> bytes:
    data = rng.choice(seeds)
    for _ in range(rng.choice([1, 1, 1, 2, 2, 4])):
        data = splice(rng, data, seeds) if rng.random() < 0.05 else mutate(rng, data)
    return data


def damaged(seeds: list[bytes], mutate: Mutate, check: Callable[[bytes], bool], share: int = 1) -> Door:
    """The door of a reader, by files that it reads well, and what damages one of them."""
    return Door(partial(damage, seeds, mutate), check, share)


def doors(scratch: str) -> dict[str, Door]:
    """Every reader by name; those that need a file or a folder keep it under `scratch`."""
    path = os.path.join(scratch, "file")
    files = {format: samples(format) for format in FORMATS}
    pytorch_files = [(MODELS.parent / "pytorch" / name).read_bytes() for name in PYTORCH_FILES]
    found = {
        "json": damaged(json_seeds(), mutate_json, check_tensors, 8),
        "csv": damaged(CSV_SEEDS, lambda rng, data: rng.choice([*BYTES, *TEXT, edit_csv])(rng, data), check_tensors, 4),
        "npy": damaged(files["npy"], mutate_npy, check_tensors, 4),
        "npz": damaged(files["npz"], mutate_npz, check_tensors, 8),
        "safetensors": damaged(files["safetensors"], mutate_safetensors, check_tensors, 8),
        "pytorch": damaged(pytorch_files, mutate_pytorch, check_tensors, 8),
        "pytorch mapped": damaged(pytorch_files, mutate_pytorch, lambda data: check_mapped(pytorch, data, path), 4),
        "gguf": damaged(gguf_seeds(), mutate_bytes, check_tensors, 8),
        "wav": damaged(wav_seeds(), mutate_bytes, check_tensors, 4),
        "gguf mapped": damaged(gguf_seeds(), mutate_bytes, lambda data: check_mapped(gguf, data, path), 4),
        "npz mapped": damaged(files["npz"], mutate_npz, lambda data: check_mapped(npz, data, path)),
        "safetensors mapped": damaged(
            files["safetensors"], mutate_safetensors, lambda data: check_mapped(safetensors, data, path)
        ),
    }
    for name, (folder, chosen) in tokenizer_folders().items():
        if chosen[0] in folder:
            found |= {f"{name}: {file}": tokenizer_reader(folder, file, scratch) for file in chosen}
    return found


def tokenizer_reader(folder: dict[str, bytes], file: str, scratch: str) -> Door:
    place = os.path.join(scratch, "folder")
    os.makedirs(place, exist_ok=True)
    mutate = mutate_json if file.endswith(".json") else lambda rng, data: rng.choice([*BYTES, *TEXT])(rng, data)
    return damaged([folder[file]], mutate, lambda data: check_folder(folder | {file: data}, place))


# Hostile inputs of n bytes, for the growth of time


def sized(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def rec(**parts: Any) -> bytes:
    return json.dumps(parts, separators=(",", ":")).encode()


def st(header: Any) -> bytes:
    return sized(json.dumps(header).encode())


def entries(n: int) -> bytes:
    return st({f"t{i}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(n)}) + bytes(
        4 * n
    )


def raw_pickle(code: bytes) -> bytes:
    return b"".join(encode_archive([("a/data.pkl", [b"\x80\x02" + code])]))


X = {"x": {"data": [1]}}
one = b"".join(encode(Record({"x": np.ones(1)}), "npy"))
HOSTILE: dict[str, Callable[[int], bytes]] = {
    "json keys": lambda n: rec(tensors={f"t{i}": 1 for i in range(n // 10)}),
    "json tiny lists": lambda n: b"[" + b"[]," * (n // 3),
    "json lists of one": lambda n: b"[" + b",".join([b"[1]"] * (n // 4)) + b"]",
    "json lists, one bad": lambda n: b"[" + b",".join([b"[1]"] * (n // 4)) + b",x]",
    "json nulls": lambda n: b"[" + b",".join([b"[null]"] * (n // 7)) + b"]",
    "json ragged": lambda n: b"[" + b",".join([b"[1]"] * (n // 4)) + b",[1,2]]",
    "json spaced lists": lambda n: b"[" + b"[ ]," * (n // 4) + b"[ ]]",
    "json documents": lambda n: b"[1]" * (n // 60),
    "json open": lambda n: b"[" * n,
    "json long string": lambda n: b'"' + b"a" * n + b'"',
    "json escapes": lambda n: b'"' + b"\\n" * (n // 2) + b'"',
    "json long number": lambda n: b"[0." + b"3" * n + b"]",
    "json long integer": lambda n: b"[" + b"3" * n + b"]",
    "json int64 long": lambda n: b'{"tensors":{"x":{"dtype":"int64","data":[' + b"3" * n + b"]}}}",
    "json int64 exponents": lambda n: (
        b'{"tensors":{"x":{"dtype":"int64","data":[' + b",".join([b"1e0"] * (n // 4)) + b"]}}}"
    ),
    "json halfway": lambda n: (
        b'{"tensors":{"x":{"dtype":"float32","data":[' + b",".join([b"1.00000005960464477539"] * (n // 23)) + b"]}}}"
    ),
    "json spaces": lambda n: b" " * n + b"1",
    "json lines": lambda n: b"\n" * n + b"x",
    "json spaces inside": lambda n: b"[1" + b" " * n + b"x]",
    "json labels": lambda n: rec(tensors=X, labels={"a": ["b"] * (n // 4)}),
    "json label lists": lambda n: rec(tensors=X, labels={"a": [["b"]] * (n // 6)}),
    "json label axes": lambda n: rec(tensors=X, labels={f"a{i}": [] for i in range(n // 12)}),
    "json history": lambda n: rec(tensors=X, history=[{"command": "a", "version": "1"}] * (n // 30)),
    "json axes": lambda n: rec(tensors={"x": {"data": [1], "axes": ["a"] * (n // 4)}}),
    "json deep history": lambda n: b'{"tensors":{"x":1},"history":' + b"[" * n,
    "csv fields": lambda n: b"1," * (n // 2) + b"1\n",
    "csv rows": lambda n: b"1,2\n" * (n // 4),
    "csv rows, one bad": lambda n: b"1,2\n" * (n // 4) + b"1,x\n",
    "csv quotes": lambda n: b"a,b\n" + b'"' * n,
    "csv open quotes": lambda n: b'a,b\n"' + b"1,2\n" * (n // 4),
    "csv quoted rows": lambda n: b"a,b\n" + b'"x\ny",2\n' * (n // 8),
    "csv heading": lambda n: b"a," * (n // 2) + b"a\n" + b"1," * (n // 2) + b"1\n",
    "csv digits": lambda n: b"1," + b"3" * n + b"\n",
    "csv empty lines": lambda n: b"1,2\n" + b"\n" * n + b"3,4",
    "csv elements": lambda n: b"head,query,x\n" + b"".join(b"0,%d,1\n" % at for at in range(n // 10)),
    "csv words": lambda n: b"a " * n + b"\n" + b"b " * n,
    "npy header spaces": lambda n: b"\x93NUMPY\x01\x00" + struct.pack("<H", 65000) + b"{" + b" " * 64998 + b"}",
    "npy header quotes": lambda n: b"\x93NUMPY\x01\x00" + struct.pack("<H", 65000) + b"{" + b"'a': " * 12999 + b"}",
    "npy header digits": lambda n: (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", 65000)
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': ("
        + b"1" * 64950
    ),
    "npy header shape": lambda n: (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", 65000)
        + (b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 32400 + b")}").ljust(65000)
    ),
    "npy arrays": lambda n: one * (n // len(one)),
    "npz members": lambda n: b"".join(encode_archive([(f"t{i}.npy", [one]) for i in range(n // 300)])),
    "npz meta labels": lambda n: b"".join(
        encode_archive([("x.npy", [one]), ("meta.json", [rec(labels={"a": [["b"]] * (n // 6)})])])
    ),
    "npz meta lists": lambda n: b"".join(
        encode_archive([("x.npy", [one]), ("meta.json", [b'{"labels":{"a":[' + b"[]," * (n // 3) + b"[]]}}"])])
    ),
    "npz meta many keys": lambda n: b"".join(
        encode_archive([("x.npy", [one]), ("meta.json", [rec(labels={f"a{i}": [] for i in range(n // 12)})])])
    ),
    "npz long name": lambda n: b"".join(encode_archive([("x" * 60000, [one])])),
    "npz PK": lambda n: b"PK\x03\x04" + b"PK\x05\x06" * (n // 4),
    "safetensors entries": lambda n: entries(n // 64),
    "safetensors spaces": lambda n: n.to_bytes(8, "little") + b"{" + b" " * (n - 1),
    "safetensors quotes": lambda n: n.to_bytes(8, "little") + b"{" + b'"a"' * ((n - 1) // 3) + b" " * ((n - 1) % 3),
    "safetensors backslashes": lambda n: n.to_bytes(8, "little") + b'{"' + b"\\" * (n - 2),
    "safetensors lists": lambda n: sized(b'{"a":[' + b"[]," * (n // 3) + b"[]]}"),
    "safetensors metadata": lambda n: st(
        {"__metadata__": {"attnkit": "[" * n}, "x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    ),
    "pytorch lists": lambda n: raw_pickle(b"]" * n + b"."),
    "pytorch dicts": lambda n: raw_pickle(b"}" * n + b"."),
    "pytorch numbers": lambda n: raw_pickle(b"](" + b"K\x01" * (n // 2) + b"e."),
    "pytorch doubled lists": lambda n: raw_pickle(b"](" + b"}" * (n // 2) + b"eq\x00" + b"h\x00" * (n // 4) + b"."),
    "pytorch deep tuples": lambda n: raw_pickle(b")" + b"\x85" * n + b"."),
    "pytorch names": lambda n: raw_pickle(b"ctorch\nfloat32\n" * (n // 15) + b"."),
    "pytorch marks": lambda n: raw_pickle(b"}" + b"(" * (n // 2) + b"u" * (n // 2) + b"."),
    "pytorch empties": lambda n: raw_pickle(b"](" + b"]" * (n - 4) + b"e."),
    "pytorch descriptors": lambda n: (
        b"PK\x03\x04" + bytes(2) + b"\x08\x08" + bytes(18) + b"\x0a\0\0\0a/data.pkl" + b"PK\x07\x08" * (n // 4)
    ),
    "safetensors empties": lambda n: st(
        {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(n // 60)}
    ),
}


def cost(data: bytes) -> float:
    start = time.process_time()
    with contextlib.suppress(AttnkitError):
        collections.deque(read(Source.of(data)), maxlen=0)
    return time.process_time() - start


def steps(data: bytes) -> int:
    """The lines and calls, of Python and of C, that reading takes: the same on every machine."""
    count = itertools.count()

    def note(frame: object, event: str, argument: object) -> object:
        next(count)
        return note

    sys.settrace(note)
    sys.setprofile(note)
    try:
        cost(data)
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return next(count)


def growth(n: int = 1 << 20) -> int:
    """Print the seconds for n and 2n bytes of each kind; 1 where one takes more than three times as long."""
    failed = False
    for name, make in HOSTILE.items():
        once, twice = (min(cost(make(size)) for _ in range(2)) for size in (n, 2 * n))
        is_steep = twice > max(3 * once, 0.05)
        print(f"{name:26} {once:7.3f} {twice:7.3f}{' grows faster than its input' if is_steep else ''}", flush=True)
        failed |= is_steep
    return failed
