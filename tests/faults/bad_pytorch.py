"""A table of bad PyTorch files: {name: (content, parts of the message)}, read by tests/formats and by the tools."""

import builtins
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np

from tests.faults.bad_npz import npz, patched

FOLDER = Path(__file__).parent.parent / "references" / "pytorch"
STATE, LEGACY = (FOLDER / "state.bin").read_bytes(), (FOLDER / "legacy.bin").read_bytes()
DATA = np.arange(6, dtype="<f4").tobytes()


class Trap:
    """Calls a function when it is unpickled."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def op(value) -> bytes:
    """The opcodes that push a value: bytes are opcodes already."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"(" + b"".join(map(op, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(op, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(op(key) + op(item) for key, item in value.items()) + b"u"
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def name(path: str) -> bytes:
    module, _, last = path.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def call(path: str, *values) -> bytes:
    return name(path) + op(values) + b"R"


def storage(key="0", count=6, kind="torch.FloatStorage", start="storage") -> bytes:
    return op((start, name(kind), key, "cpu", count)) + b"Q"


def tensor(shape=(2, 3), strides=(3, 1), offset=0, **where) -> bytes:
    return call(
        "torch._utils._rebuild_tensor_v2",
        storage(**where),
        offset,
        shape,
        strides,
        False,
        call("collections.OrderedDict"),
    )


def archive(value, members=(("data/0", DATA),), method=zipfile.ZIP_STORED, root="a", **others) -> bytes:
    """A PyTorch file of the opcodes of a pickle and of its storages."""
    pickled = b"\x80\x02" + op(value) + b"."
    texts = [(file.replace("_", "."), content) for file, content in others.items()]
    return npz(
        [(f"{root}/data.pkl", pickled), *((f"{root}/{file}", content) for file, content in (*texts, *members))], method
    )


def raw(pickled: bytes, method=zipfile.ZIP_STORED) -> bytes:
    return npz([("a/data.pkl", pickled), ("a/data/0", DATA)], method)


def doubled(levels: int) -> bytes:
    """A list in which each level has the one below twice."""
    return (
        b"\x80\x02"
        + op([1])
        + b"q\x00"
        + b"".join(b"](h" + bytes([at]) + b"h" + bytes([at]) + b"eq" + bytes([at + 1]) for at in range(levels))
        + b"."
    )


def damaged(data: bytes, old: bytes) -> bytes:
    """The bytes with one of them changed where others are found."""
    at = data.index(old)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


GOOD = archive({"w": tensor()})
REFUSED = "is refused: only tensors are read from a pickle"
TRAPS = {
    "os.system": (Trap(os.system, "touch canary"), f"the name '{os.name}.system' {REFUSED}"),
    "eval": (Trap(builtins.eval, "open('canary', 'w')"), f"the name 'builtins.eval' {REFUSED}"),
    "exec inside": ({"w": [Trap(builtins.exec, "open('canary', 'w')")]}, f"the name 'builtins.exec' {REFUSED}"),
    "getattr": (Trap(getattr, "x", "upper"), f"the name 'builtins.getattr' {REFUSED}"),
}
BAD = {
    **{
        f"{what}, protocol {protocol}": (
            raw(pickle.dumps(trap, protocol)),
            "data.pkl: at byte",
            problem.replace("builtins", "__builtin__" if protocol < 3 else "builtins"),
        )
        for what, (trap, problem) in TRAPS.items()
        for protocol in (2, 3, 4, 5)
    },
    **{
        f"{what}, protocol 0": (raw(pickle.dumps(trap, 0)), "data.pkl: at byte", "is refused")
        for what, (trap, _) in TRAPS.items()
    },
    # P1, P5: names and opcodes
    "a whole module": ((FOLDER / "module.pt").read_bytes(), "the name 'torch.nn.modules.linear.Linear' is refused"),
    "a program": (
        (FOLDER / "script.pt").read_bytes(),
        "member 'script/data/0' before data.pkl: not a state_dict, but a program (TorchScript)",
    ),
    "name that holds a dot": (
        raw(b"\x80\x02ctorch\n_utils._rebuild_tensor_v2\n."),
        "a function or a class, not a tensor",
    ),
    "name without an end": (raw(b"\x80\x02ctorch"), "a name without an end"),
    "name of no text": (raw(b"\x80\x04K\x01K\x02\x93."), "a name that is no text"),
    "numpy array": (
        archive({"w": name("numpy.core.multiarray._reconstruct")}),
        f"the name 'numpy.core.multiarray._reconstruct' {REFUSED}",
    ),
    "quantized": (
        archive({"w": call("torch._utils._rebuild_qtensor")}),
        f"the name 'torch._utils._rebuild_qtensor' {REFUSED}",
    ),
    "complex": (
        archive({"w": tensor(kind="torch.ComplexFloatStorage")}),
        f"the name 'torch.ComplexFloatStorage' {REFUSED}",
    ),
    "float8": (archive({"w": name("torch.float8_e4m3fn")}), f"the name 'torch.float8_e4m3fn' {REFUSED}"),
    **{
        f"opcode {code}": (raw(b"\x80\x02" + byte + b"."), f"data.pkl: at byte 2: the opcode {code} is refused")
        for code, byte in {
            "INST": b"i",
            "OBJ": b"o",
            "NEWOBJ": b"\x81",
            "NEWOBJ_EX": b"\x92",
            "EXT1": b"\x82",
            "PERSID": b"P",
            "INT": b"I",
            "STRING": b"S",
            "LONG4": b"\x8b",
            "BINBYTES": b"B",
            "DUP": b"2",
            "0xff": b"\xff",
        }.items()
    },
    "REDUCE of a value": (raw(b"\x80\x02K\x01)R."), "REDUCE of a value that is no function"),
    "REDUCE of a tensor": (archive(tensor() + b")R"), "REDUCE of a value that is no function"),
    "REDUCE without a tuple": (raw(b"\x80\x02ccollections\nOrderedDict\n}R."), "REDUCE of a value that is no function"),
    "OrderedDict of a list": (archive(call("collections.OrderedDict", [("w", 1)])), "an OrderedDict of arguments"),
    "BUILD of a tensor": (archive(tensor() + b"}b"), "BUILD of a value that is no dict"),
    "BUILD of a function": (
        archive(name("torch._utils._rebuild_parameter") + b"}b"),
        "BUILD of a value that is no dict",
    ),
    "protocol 6": (raw(b"\x80\x06}."), "protocol 6 (expected up to 5)"),
    # P2: the stack machine
    "empty pickle": (raw(b""), "truncated: 1 bytes needed, 0 left"),
    "no value": (raw(b"\x80\x02."), "a value is missing"),
    "no mark": (raw(b"\x80\x02t."), "a mark is missing"),
    "no memo": (raw(b"\x80\x02h\x07."), "no value 7 was stored before"),
    "huge memo": (raw(b"\x80\x02}r\xff\xff\xff\xffj\xfe\xff\xff\xff."), "no value 4294967294 was stored before"),
    "put of nothing": (raw(b"\x80\x02q\x00."), "a value is missing"),
    "huge integer": (raw(b"\x80\x02\x8a\xff" + bytes(255) + b"."), "an integer of 255 bytes (limit 8)"),
    "huge text": (raw(b"\x80\x02X\xff\xff\xff\xffabc."), "truncated: 4294967295 bytes needed, 4 left"),
    "huge frame": (raw(b"\x80\x04\x95" + b"\xff" * 8 + b"}."), "truncated: 18446744073709551615 bytes needed"),
    "text not UTF-8": (raw(b"\x80\x02X\x02\0\0\0\xff\xfe."), "text that is not UTF-8"),
    "odd items": (raw(b"\x80\x02}(K\x01u."), "SETITEMS of a value that is no dict, or without pairs"),
    "append to a dict": (raw(b"\x80\x02}K\x01a."), "APPEND to a value that is no list"),
    "bytes after the pickle": (raw(b"\x80\x02}.abc"), "data.pkl: 3 bytes after the pickle"),
    "pickle cut": (raw(b"\x80\x02" + op({"w": tensor()})), "truncated: 1 bytes needed, 0 left"),
    "deep lists": (raw(b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."), "dicts nested more than 16 deep"),
    "deep tuples": (raw(b"\x80\x02)" + b"\x85" * 200_000 + b"."), "dicts nested more than 16 deep"),
    "a dict in itself": (raw(b"\x80\x02}q\x00X\x01\0\0\0ah\x00s."), "dicts nested more than 16 deep"),
    "doubled 14 times": (raw(doubled(14)), "'0.0.0.0.0.0.0.0.0.0.0.0.0.0.0' is a int, not a tensor"),
    "compressed pickle": (
        raw(b"\x80\x02" + b"]" * (2 << 20) + b".", zipfile.ZIP_DEFLATED),
        "data.pkl: 2.1 MB (limit 1.0 MB)",
    ),
    # what is in it
    "nothing": (archive({}), "no tensors in this PyTorch file"),
    "a number": (archive({"w": tensor(), "epoch": 3}), "'epoch' is a int, not a tensor; save only the state_dict"),
    "a text": (archive("hello"), "the file is a str, not a tensor"),
    "key of numbers": (archive({(1, 2): tensor()}), "a dict whose key is a tuple (expected a name)"),
    "long key": (archive({"k" * 2000: tensor()}), "a name of more than 1000 characters"),
    "key twice": (archive({"a": {"b": tensor()}, "a.b": tensor()}), "tensor 'a.b' occurs twice"),
    # P3: storages
    "storage missing": (archive({"w": tensor(key="1")}), "storage '1' is missing"),
    "storage elsewhere": (archive({"w": tensor(key="../../etc/passwd")}), "storage '../../etc/passwd' is missing"),
    "storage small": (
        archive({"w": tensor()}, [("data/0", DATA[:-4])]),
        "storage '0': data.pkl says 24 bytes, the file has 20",
    ),
    "storage large": (
        archive({"w": tensor()}, [("data/0", DATA + b"1234")]),
        "storage '0': data.pkl says 24 bytes, the file has 28",
    ),
    "storage of two sizes": (archive({"w": tensor(), "v": tensor(count=7)}), "storage '0' has 24 bytes, and 28"),
    "storage of -1": (archive({"w": tensor(count=-1)}), "storage '0': its size is not a number of elements"),
    "storage of 2^62": (archive({"w": tensor(count=1 << 62)}), "storage '0': its size is not a number of elements"),
    "storage of 2^40": (
        archive({"w": tensor(count=1 << 40)}),
        "storage '0': data.pkl says 4398046511104 bytes, the file has 24",
    ),
    "storage of a list": (archive({"w": tensor(count=[])}), "storage '0': its size is not a number of elements"),
    "no storage": (archive({"w": tensor(start="module")}), "a persistent value that is no storage"),
    "persistent number": (archive({"w": op(1) + b"Q"}), "a persistent value that is no storage"),
    "storage of no type": (
        archive({"w": tensor(kind="collections.OrderedDict")}),
        "a storage that is not described by type, name and size",
    ),
    "big-endian": (archive({"w": tensor()}, byteorder=b"big"), "byteorder 'big' not supported (expected 'little')"),
    # P4: tensors
    "overruns its storage": (
        archive({"w": tensor((2, 4), (4, 1))}),
        "shape (2, 4), strides (4, 1), offset 0: needs 8 elements of storage '0', which has 6",
    ),
    "offset too large": (archive({"w": tensor(offset=1)}), "offset 1: needs 7 elements of storage '0', which has 6"),
    "stride too large": (archive({"w": tensor(strides=(1 << 40, 1))}), "elements of storage '0', which has 6"),
    "negative stride": (
        archive({"w": tensor(strides=(3, -1), offset=2)}),
        "strides (3, -1), offset 2: a negative number",
    ),
    "negative offset": (archive({"w": tensor(offset=-1)}), "offset -1: a negative number"),
    "negative shape": (archive({"w": tensor((-2, 3))}), "a negative number"),
    "shape of floats": (archive({"w": tensor((b"G" + struct.pack(">d", 2.0), 3))}), "no whole numbers"),
    "shape of deep lists": (archive({"w": tensor((b"]" * 50_000 + b"a" * 49_999, 3))}), "no whole numbers"),
    "shape of 65 axes": (archive({"w": tensor((1,) * 65, (1,) * 65)}), "no tuple of at most 64"),
    "no stride": (archive({"w": tensor((2, 3), (1,))}), "one stride an axis"),
    "huge view": (archive({"w": tensor((1 << 40, 1 << 40), (0, 0))}), "too large"),
    "view larger than memory": (archive({"w": tensor((1 << 45,), (0,))}), "more than this machine's memory"),
    "expanded": (archive({"w": tensor((1 << 25,), (0,))}), "tensors of 134.2 MB are views of"),
    "huge and empty": (archive({"w": tensor((1 << 40, 0), (1, 1))}), "too large for no elements"),
    "tensor of nothing": (archive({"w": call("torch._utils._rebuild_tensor_v2")}), "a tensor without a storage"),
    "conjugated": (
        archive({"w": call("torch._utils._rebuild_tensor_v2", storage(), 0, (6,), (1,), False, None, {"conj": True})}),
        "conjugated",
    ),
    "typed without dtype": (
        archive(
            {
                "w": call(
                    "torch._utils._rebuild_tensor_v3",
                    storage(kind="torch.storage.UntypedStorage", count=24),
                    0,
                    (6,),
                    (1,),
                    False,
                    None,
                    "float",
                )
            }
        ),
        "a tensor without a storage and a dtype",
    ),
    "untyped": (
        archive({"w": tensor(kind="torch.storage.UntypedStorage", count=24)}),
        "a tensor whose elements are not those of its storage",
    ),
    "parameter of a dict": (
        archive({"w": call("torch._utils._rebuild_parameter", {}, True, {})}),
        "a parameter without a tensor",
    ),
    "bool of 2": (
        archive({"w": tensor((6,), (1,), kind="torch.BoolStorage")}, [("data/0", b"\0\1\0\1\2\0")]),
        "storage '0': bool value 2 (expected 0 or 1)",
    ),
    # the container
    "no pickle": (
        npz([("a/data/0", DATA)]),
        "a ZIP archive without arrays (expected NPY files, or data.pkl of PyTorch)",
    ),
    "two archives": (GOOD + GOOD, "2 archives (expected 1)"),
    "bytes after it": (GOOD + b"abc", "3 bytes after the ZIP archive"),
    "storage twice": (
        archive({"w": tensor()}, [("data/0", DATA), ("data/1", DATA)]).replace(b"data/1", b"data/0"),
        "duplicate member 'a/data/0'",
    ),
    "storage damaged": (damaged(GOOD, DATA), "damaged: its size or checksum differs"),
    "pickle damaged": (damaged(STATE, b"running_mean"), "damaged: its size or checksum differs"),
    "cut": (STATE[:-30], "truncated ZIP archive"),
    "cut in a storage": (STATE[: STATE.index(b"data/3")], "truncated ZIP archive"),
    "cut in the pickle": (STATE[:700], "data.pkl: truncated: its end is missing"),
    "overlapping": (patched(GOOD, -42, 0, "<I"), "members of the ZIP archive overlap"),
    "bomb": (
        archive({"w": tensor()}, [("data/0", bytes(70_000_000))], zipfile.ZIP_DEFLATED),
        "compressed would become",
    ),
    # before PyTorch 1.6
    "old: a program": (
        LEGACY[:15] + pickle.dumps(Trap(os.system, "touch canary"), 2),
        f"the name '{os.name}.system' is refused",
    ),
    "old: cut in a storage": (LEGACY[:-10], "truncated: storage", "are left"),
    "old: cut in a pickle": (LEGACY[:200], "pickles before the storages: at byte"),
    "old: bytes after it": (LEGACY + b"abc", "3 bytes after the last storage"),
    "old: other protocol": (LEGACY.replace(b"M\xe9\x03", b"M\xe8\x03", 1), "not of PyTorch's protocol 1001"),
    "old: big-endian": (re.sub(rb"(?<=little_endianq.)\x88", b"\x89", LEGACY), "not little-endian"),
}
