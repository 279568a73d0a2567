"""Pickled data read without executing anything.

A pickle is a program for a stack machine. Only the instructions that build plain values are known here. A name, as
`os.system`, is never imported: it is looked up in the table of the caller, and one that is not there is refused, as is
every other instruction. All lengths are compared with the bytes that exist.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnkit.errors import DataError

LONGEST = 8 << 20  # bytes of one pickle, as those of some 80,000 tensors
MOST_COSTLY = 1_600_000  # containers, marks and stored values, which take 140 bytes each: as those of 100,000 tensors
NEWEST_PROTOCOL = 5
WIDEST_INTEGER = 8  # bytes
STOP = ord(".")
REFUSED = {
    **{ord("0"): "POP", ord("1"): "POP_MARK", ord("2"): "DUP", ord("F"): "FLOAT", ord("I"): "INT", ord("L"): "LONG"},
    **{ord("P"): "PERSID", ord("S"): "STRING", ord("T"): "BINSTRING", ord("U"): "SHORT_BINSTRING", ord("V"): "UNICODE"},
    **{ord("d"): "DICT", ord("g"): "GET", ord("i"): "INST", ord("l"): "LIST", ord("o"): "OBJ", ord("p"): "PUT"},
    **{ord("B"): "BINBYTES", ord("C"): "SHORT_BINBYTES", 0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4"},
    **{0x8B: "LONG4", 0x8D: "BINUNICODE8", 0x8E: "BINBYTES8", 0x8F: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET"},
    **{0x92: "NEWOBJ_EX", 0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER"},
}


class Dict(NamedTuple):
    """A pickled dict: its pairs in order, without attributes."""

    pairs: list[tuple[Any, Any]]


class Call(NamedTuple):
    """A function of this package in place of one that a pickle names."""

    apply: Callable[[tuple[Any, ...]], Any]


class Names(NamedTuple):
    """What a pickle may refer to.

    table       `module.name` -> a value, or a Call
    persistent  a persistent id -> its value
    """

    table: Mapping[str, Any]
    persistent: Callable[[Any], Any]


def read_pickle(data: bytes, names: Names) -> tuple[Any, int]:
    r"""The value of the pickle at the front of bytes, and its length.

    The value consists of None, bool, int, float, str, tuple, list, Dict, and what `names` has. DataError for every
    other instruction or name, and for a pickle that is cut or longer than 8 MB.

    >>> read_pickle(b"\x80\x02](K\x01\x88e.", Names({}, lambda id: id))
    ([1, True], 9)
    >>> read_pickle(b"\x80\x02cbuiltins\nprint\n.", Names({}, lambda id: id))
    Traceback (most recent call last):
    attnkit.errors.DataError: at byte 2: the name 'builtins.print' is refused: only tensors are read from a pickle
    """
    machine = _Machine(data[:LONGEST], names)
    try:
        return machine.run(), machine.at
    except DataError as error:
        if machine.at >= LONGEST:
            raise DataError(f"longer than {LONGEST} bytes") from error
        raise DataError(f"at byte {machine.start}: {error.problem}") from error


class _Machine:
    """The stack machine.

    start   where the instruction at work begins
    at      how many bytes have been read
    costly  how many containers were made, marks set and values stored: what takes more memory than its bytes
    """

    def __init__(self, data: bytes, names: Names) -> None:
        self.data, self.names = data, names
        self.start = self.at = 0
        self.costly = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            self.start = self.at
            code = self.take(1)[0]
            if code == STOP:
                return self.pop()
            operation = OPERATIONS.get(code)
            if operation is None:
                name = REFUSED.get(code, f"{code:#04x}")
                raise DataError(f"the opcode {name} is refused: only tensors are read from a pickle")
            self.costly += code in COSTLY
            if self.costly > MOST_COSTLY:
                raise DataError(f"more than {MOST_COSTLY:,} containers and stored values")
            operation(self)

    def take(self, count: int) -> bytes:
        data = self.data[self.at : self.at + count]
        self.at += len(data)
        if len(data) < count:
            raise DataError(f"truncated: {count} bytes needed, {len(data)} left")
        return data

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def pop(self) -> Any:
        if not self.stack:
            raise DataError("a value is missing")
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        if not self.marks:
            raise DataError("a mark is missing")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def protocol(self) -> None:
        version = self.take(1)[0]
        if version > NEWEST_PROTOCOL:
            raise DataError(f"protocol {version} (expected up to {NEWEST_PROTOCOL})")

    def frame(self) -> None:
        size = self.number("<Q")
        if size > len(self.data) - self.at:
            raise DataError(f"truncated: {size} bytes needed, {len(self.data) - self.at} left")

    def text(self, layout: str) -> None:
        try:
            self.stack.append(self.take(self.number(layout)).decode())
        except UnicodeDecodeError as error:
            raise DataError("text that is not UTF-8") from error

    def long(self) -> None:
        size = self.take(1)[0]
        if size > WIDEST_INTEGER:
            raise DataError(f"an integer of {size} bytes (limit {WIDEST_INTEGER})")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def float(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def put(self, index: int) -> None:
        if not self.stack:
            raise DataError("a value is missing")
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise DataError(f"no value {index} was stored before")
        self.stack.append(self.memo[index])

    def tuple(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.stack.append((*reversed(values),))

    def global_name(self) -> None:
        parts = []
        for _ in range(2):
            end = self.data.find(b"\n", self.at, self.at + 1000)
            if end < 0:
                raise DataError("a name without an end")
            parts.append(self.take(end + 1 - self.at)[:-1].decode("utf-8", "replace"))
        self.look_up(*parts)

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        self.look_up(module, name)

    def look_up(self, module: object, name: object) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise DataError("a name that is no text")
        key = f"{module}.{name}"
        if key not in self.names.table:
            raise DataError(f"the name {key[:200]!r} is refused: only tensors are read from a pickle")
        self.stack.append(self.names.table[key])

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not (isinstance(function, Call) and type(arguments) is tuple):
            raise DataError("REDUCE of a value that is no function")
        self.stack.append(function.apply(arguments))

    def build(self) -> None:
        state, value = self.pop(), self.pop()
        if not (isinstance(value, Dict) and isinstance(state, Dict)):
            raise DataError("BUILD of a value that is no dict")
        self.stack.append(value)

    def persistent(self) -> None:
        self.stack.append(self.names.persistent(self.pop()))

    def append(self, values: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, list):
            raise DataError("APPEND to a value that is no list")
        target += values
        self.stack.append(target)

    def set_items(self, values: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, Dict) or len(values) % 2:
            raise DataError("SETITEMS of a value that is no dict, or without pairs")
        target.pairs.extend(zip(values[::2], values[1::2], strict=True))
        self.stack.append(target)


# opcode -> what it does; the name of each in the documentation of pickle follows
OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,  # PROTO
    0x95: _Machine.frame,  # FRAME
    ord("N"): lambda machine: machine.stack.append(None),  # NONE
    0x88: lambda machine: machine.stack.append(True),  # NEWTRUE
    0x89: lambda machine: machine.stack.append(False),  # NEWFALSE
    ord("J"): lambda machine: machine.stack.append(machine.number("<i")),  # BININT
    ord("K"): lambda machine: machine.stack.append(machine.number("<B")),  # BININT1
    ord("M"): lambda machine: machine.stack.append(machine.number("<H")),  # BININT2
    0x8A: _Machine.long,  # LONG1
    ord("G"): _Machine.float,  # BINFLOAT
    ord("X"): lambda machine: machine.text("<I"),  # BINUNICODE
    0x8C: lambda machine: machine.text("<B"),  # SHORT_BINUNICODE
    ord("}"): lambda machine: machine.stack.append(Dict([])),  # EMPTY_DICT
    ord("]"): lambda machine: machine.stack.append([]),  # EMPTY_LIST
    ord(")"): lambda machine: machine.stack.append(()),  # EMPTY_TUPLE
    0x85: lambda machine: machine.tuple(1),  # TUPLE1
    0x86: lambda machine: machine.tuple(2),  # TUPLE2
    0x87: lambda machine: machine.tuple(3),  # TUPLE3
    ord("("): lambda machine: machine.marks.append(len(machine.stack)),  # MARK
    ord("t"): lambda machine: machine.stack.append((*machine.pop_mark(),)),  # TUPLE
    ord("a"): lambda machine: machine.append([machine.pop()]),  # APPEND
    ord("e"): lambda machine: machine.append(machine.pop_mark()),  # APPENDS
    ord("s"): lambda machine: machine.set_items([machine.pop(), machine.pop()][::-1]),  # SETITEM
    ord("u"): lambda machine: machine.set_items(machine.pop_mark()),  # SETITEMS
    ord("q"): lambda machine: machine.put(machine.number("<B")),  # BINPUT
    ord("r"): lambda machine: machine.put(machine.number("<I")),  # LONG_BINPUT
    0x94: lambda machine: machine.put(len(machine.memo)),  # MEMOIZE
    ord("h"): lambda machine: machine.get(machine.number("<B")),  # BINGET
    ord("j"): lambda machine: machine.get(machine.number("<I")),  # LONG_BINGET
    ord("c"): _Machine.global_name,  # GLOBAL
    0x93: _Machine.stack_global,  # STACK_GLOBAL
    ord("R"): _Machine.reduce,  # REDUCE
    ord("b"): _Machine.build,  # BUILD
    ord("Q"): _Machine.persistent,  # BINPERSID
}

# those that take ten times the memory of their bytes, or more
COSTLY = frozenset(b"}](qrtR\x85\x86\x87\x94")
