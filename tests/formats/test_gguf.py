"""GGUF files: the numbers of blocks, worked by hand and as gguf decodes them; headers, split files, lazy reading."""

import hashlib
import struct

import ml_dtypes
import numpy as np
import pytest

from attnkit.errors import DataError, FileError
from attnkit.formats import Source, gguf, load, read
from attnkit.formats.gguf_blocks import BLOCK_TYPES, VARIANTS, decode_blocks
from attnkit.formats.gguf_grids import GRIDS, points
from tests.faults.bad_gguf import WHOLE
from tests.gguf_files import pack_gguf
from tests.places import arrays
from tests.process import run

FROZEN = arrays("gguf_blocks")


def f16(value):
    return np.array(value, "<f2").tobytes()


# type -> its bytes by position, and numbers by index, worked by hand from the structures in ggml-common.h
WORKED = {
    # d 2; number 0 is the low half of byte 0, number 16 its high half, less 8
    "Q4_0": ({0: f16(2), 2: [0x5F]}, {0: 14, 16: -6, 1: -16}),
    # d 2, m 0.5
    "Q4_1": ({0: f16(2), 2: f16(0.5), 4: [0x5F]}, {0: 30.5, 16: 10.5, 1: 0.5}),
    # bit i of the four bytes is the fifth bit of number i
    "Q5_0": ({0: f16(2), 2: [1, 0, 2, 0], 6: [0x5F, 0x70]}, {0: 30, 16: -22, 17: 14, 1: -32}),
    "Q5_1": ({0: f16(2), 2: f16(0.5), 4: [1, 0, 2, 0], 8: [0x5F, 0x70]}, {0: 62.5, 16: 10.5, 17: 46.5, 1: 0.5}),
    "Q8_0": ({0: f16(0.5), 2: [0xFF, 7]}, {0: -0.5, 1: 3.5, 31: 0}),
    # part 3 has scale 5 and minimum 4, part 8 scale 2; 48 = bits 2 and 3 of byte 16 of the numbers, 128 = byte 32
    "Q2_K": (
        {3: [5 | 4 << 4], 8: [2], 32: [3 << 2], 48: [1], 80: f16(1), 82: f16(0.5)},
        {48: 13, 49: -2, 16: 0, 128: 2},
    ),
    # scales of part 0: 37 − 32, of part 9: 30 − 32, of others: −32; a number without its third bit is less by 4
    "Q3_K": (
        {0: [1], 16: [1 << 4], 32: [3], 80: [2], 96: [5, 14 << 4], 104: [2, 1 << 4], 108: f16(2)},
        {0: 30, 1: -40, 32: 256, 144: -8},
    ),
    # part 0: scale 3, minimum 1; part 5: scale 33 and minimum 18, whose upper bits are those of bytes 5 and 9
    "Q4_K": (
        {0: f16(2), 2: f16(0.5), 4: [3, 2 << 6], 8: [1, 1 << 6], 13: [1 | 2 << 4], 16: [7], 80: [9 << 4]},
        {0: 41.5, 1: -0.5, 160: 585, 32: 0},
    ),
    # part 2: scale 2, minimum 3; number 64 is 5 and has bit 2 of the first high byte
    "Q5_K": ({0: f16(1), 2: f16(1), 6: [2], 10: [3], 16: [1 << 2], 80: [5]}, {64: 39, 65: -3}),
    # number 0: 9 + 2·16 − 32; number 97: 15 + 3·16 − 32, with the scale of part 6
    "Q6_K": (
        {0: [9], 33: [15 << 4], 128: [2, 3 << 6], 192: [256 - 4], 198: [2], 208: f16(0.5)},
        {0: -18, 97: 31, 1: 64, 98: -32},
    ),
    "Q8_K": ({0: np.float32(0.25).tobytes(), 4: [256 - 8], 259: [127]}, {0: -2, 255: 31.75}),
    "IQ4_NL": ({0: f16(1), 2: [0xF0]}, {0: -127, 16: 113, 1: -127}),
    # part 3: scale 35 − 32; numbers 96 and 112 are the values 8 and 15 of the table
    "IQ4_XS": ({0: f16(1), 2: [2 << 6], 5: [3 << 4], 56: [8 | 15 << 4]}, {96: 3, 97: -381, 112: 339}),
    # 2 ** (128 − 127) times 1.0 and 6.0
    "MXFP4": ({0: [128], 1: [0x72, 0x0A]}, {0: 2, 16: 12, 1: -2, 17: 0}),
    # the sum of the numbers, here 100, is not needed
    "Q8_1": ({0: f16(0.5), 2: f16(100), 4: [0xFF, 7]}, {0: -0.5, 1: 3.5, 31: 0}),
    # bit 1 of byte 0 is number 1; there is no zero
    "Q1_0": ({0: f16(2), 2: [2], 17: [0x80]}, {0: -2, 1: 2, 8: -2, 127: 2}),
    # four codes in a byte, the first one lowest: −1, 0, 1, 2
    "Q2_0": ({0: f16(2), 2: [0b11100100], 17: [0x40]}, {0: -2, 1: 0, 2: 2, 3: 4, 63: 0, 62: -2}),
    "PQ2_0": ({0: f16(2), 2: [0b11100100], 33: [0x40]}, {0: -2, 1: 0, 2: 2, 3: 4, 127: 0, 126: -2}),
    # the byte of the digits 1 0 0 0 0 is ⌈81·256/243⌉ = 86; 255 has 2 in all places, 0 has 0
    "TQ1_0": ({0: [86, 0, 255], 48: [255], 52: f16(2)}, {0: 0, 32: -2, 1: -2, 2: 2, 130: 2, 240: 2, 252: 2, 241: -2}),
    "TQ2_0": ({0: [0b11100100], 32: [2], 64: f16(2)}, {0: -2, 32: 0, 64: 2, 96: 4, 128: 2, 160: -2}),
    # part 1: scale 1, part 3: scale 2 ** −9; low halves are its numbers 0 to 7, high ones 8 to 15
    "NVFP4": ({1: [0x38, 0x7F, 1], 12: [0x17, 0], 20: [7], 28: [0xF]}, {16: 6, 24: 0.5, 17: 0, 32: 0, 48: -6 / 512}),
    # numbers 32 to 63: the scale is 8·(½ + 3)/4 = 7, code 1 is the point (43, 8 …); a seventh sign makes an eighth
    "IQ2_XXS": ({0: f16(8), 10: [1], 14: [1, 0, 0, 3 << 4]}, {0: 8, 32: -301, 33: 56, 39: -56, 40: 56}),
    # word 2: code 1, the second sign and with it the eighth; the scale of numbers 16 to 31 is 8·(½ + 5)/4
    "IQ2_XS": ({0: f16(8), 6: [1, 2 << 1], 66: [5 << 4]}, {0: 8, 16: 473, 17: -88, 18: 88, 23: -88, 32: 8}),
    # numbers 8 to 15: code 1 and a sign of its own bit; the scale of numbers 0 to 15 is 8·(½ + 6)/4
    "IQ2_S": ({0: f16(8), 3: [1], 35: [4], 74: [6]}, {0: 104, 8: 559, 10: -104, 15: 104, 16: 8}),
    # numbers 36 to 39: code 1, the point (20, 4, 4, 4); the scale is 4·(½ + 2)/2
    "IQ3_XXS": ({0: f16(4), 11: [1], 70: [16, 0, 0, 2 << 4]}, {0: 4, 36: -100, 37: 20, 39: -20, 40: 20}),
    # numbers 4 to 7: code 1, the point (3, 1, 1, 1); scales 2·(1 + 2·3) and 2·(1 + 2·1)
    "IQ3_S": ({0: f16(2), 3: [1], 74: [16], 106: [3 | 1 << 4]}, {0: 14, 4: -42, 5: 14, 32: 6, 64: 2}),
    # numbers 0 to 31: code 1, the point (1, −1 …), scale 2·(1 + 2·2), shift −⅛
    "IQ1_S": ({0: f16(2), 2: [1], 34: [0, 1 << 7 | 2 << 4]}, {0: 8.75, 1: -11.25, 8: -11.25, 32: -1.75}),
    # the scale 2 is 0x4000, its upper four bits those of the last word; numbers 16 to 31: 2·(1 + 2·3), a shift of −⅛
    # for the first eight
    "IQ1_M": ({2: [1], 33: [8], 48: [3 << 3], 55: [0x40]}, {0: -1.75, 16: 12.25, 17: -15.75, 24: -12.25}),
}
TYPES = {kind.name: kind for kind in [*BLOCK_TYPES.values(), *(kind for many in VARIANTS.values() for kind in many)]}


@pytest.mark.parametrize("name", WORKED)
def test_worked_blocks(name):
    places, expected = WORKED[name]
    kind = TYPES[name]
    block = np.zeros(kind.size, np.uint8)
    for at, content in places.items():
        block[at : at + len(content)] = [*content]
    numbers = decode_blocks(block, kind)
    assert numbers.shape == (kind.numbers,) and numbers.dtype == np.float32
    assert {at: float(numbers[at]) for at in expected} == expected


@pytest.mark.parametrize("name", [name for name in FROZEN if "." not in name])
def test_blocks_are_decoded_to_the_bits_of_gguf(name):
    blocks, expected = FROZEN[name], FROZEN[f"{name}.numbers"]
    many = np.tile(blocks, (200, 1)).reshape(-1)  # more than is decoded at a time
    numbers = decode_blocks(many, TYPES[name])
    assert numbers.tobytes() == np.tile(expected, (200, 1)).tobytes()


def test_every_decoded_type_is_tested():
    assert {name for name, kind in TYPES.items() if kind.decode} == {*WORKED}
    not_by_gguf = {"Q8_K", "Q8_1", "Q1_0", "Q2_0", "PQ2_0"}
    assert {name for name in FROZEN if "." not in name} == {*WORKED} - not_by_gguf


@pytest.mark.parametrize("name", GRIDS)
def test_points_of_grids_are_those_of_gguf(name):
    assert hashlib.sha256(points(name).tobytes()).digest() == FROZEN[f"{name}.grid"].tobytes()


# type -> numbers of a block, and the bytes of the fields of its structure in ggml-common.h
BLOCKS = {
    "Q1_0": (128, 2 + 16), "Q4_0": (32, 2 + 16), "Q4_1": (32, 2 + 2 + 16), "Q5_0": (32, 2 + 4 + 16),
    "Q5_1": (32, 2 + 2 + 4 + 16), "Q8_0": (32, 2 + 32), "Q8_1": (32, 2 + 2 + 32), "Q2_K": (256, 16 + 64 + 2 + 2),
    "Q3_K": (256, 32 + 64 + 12 + 2), "Q4_K": (256, 2 + 2 + 12 + 128), "Q5_K": (256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": (256, 128 + 64 + 16 + 2), "Q8_K": (256, 4 + 256 + 2 * 16), "IQ1_S": (256, 2 + 32 + 2 * 8),
    "IQ1_M": (256, 32 + 16 + 8), "IQ2_XXS": (256, 2 + 2 * 32), "IQ2_XS": (256, 2 + 2 * 32 + 8),
    "IQ2_S": (256, 2 + 64 + 8 + 8), "IQ3_XXS": (256, 2 + 3 * 32), "IQ3_S": (256, 2 + 64 + 8 + 32 + 4),
    "IQ4_NL": (32, 2 + 16), "IQ4_XS": (256, 2 + 2 + 4 + 128), "TQ1_0": (256, 48 + 4 + 2), "TQ2_0": (256, 64 + 2),
    "MXFP4": (32, 1 + 16), "NVFP4": (64, 4 + 32), "Q2_0": (64, 2 + 16), "PQ2_0": (128, 2 + 32),
}  # fmt: skip


def test_sizes_of_blocks():
    assert {name: kind[1:3] for name, kind in TYPES.items() if not kind.dtype} == BLOCKS


def read_type_42(path, shapes, block):
    """A file of tensors of type 42, of `block` numbers in block / 4 + 2 bytes, and a tensor behind them."""
    sizes = [int(np.prod(shape)) // block * (block // 4 + 2) for shape in shapes]
    scaled = [(f16(1) + bytes(range(block // 4))) * (size // (block // 4 + 2)) for size in sizes]
    tensors = {f"w{at}": (42, shape, data) for at, (shape, data) in enumerate(zip(shapes, scaled, strict=True))}
    path.write_bytes(pack_gguf({}, tensors | {"last": np.arange(3.0)}))
    return gguf.map_tensors(str(path))


@pytest.mark.parametrize(("block", "name"), [(64, "Q2_0"), (128, "PQ2_0")])
def test_type_42_is_told_by_the_places_of_the_tensors(block, name, tmp_path):
    """Of one block both sizes are 64 bytes with padding; a larger tensor of the same file tells."""
    mapped = read_type_42(tmp_path / "m.gguf", [(128,), (4, 1024)], block)
    assert mapped.packed == {"w0": name, "w1": name} and mapped.tensor("last").tolist() == [0, 1, 2]
    expected = [(byte >> shift & 3) - 1 for byte in range(block // 4) for shift in (0, 2, 4, 6)]
    assert mapped.tensor("w1").reshape(-1, block).tolist() == [expected] * (4096 // block)
    assert mapped.rows("w1", 2).tolist() == expected * (1024 // block)


def test_type_42_is_refused_where_the_places_do_not_tell(tmp_path):
    """A tensor of one block alone, and blocks of 256 numbers in 42 bytes, as an early STQ1_0 had."""
    ambiguous = read_type_42(tmp_path / "m.gguf", [(128,)], 128)
    (tmp_path / "n.gguf").write_bytes(pack_gguf({}, {"w0": (42, (8, 256), bytes(8 * 42)), "v": np.ones(1)}))
    for mapped in (ambiguous, gguf.map_tensors(str(tmp_path / "n.gguf"))):
        assert mapped.packed["w0"] == "Q2_0"
        with pytest.raises(DataError, match=r"tensor 'w0': type Q2_0 is not decoded \(blocks of 64 .* do not tell"):
            mapped.tensor("w0")


def test_a_tensor_of_an_unknown_type_is_refused_when_it_is_read(tmp_path):
    """The others are read; it ends where the next one begins."""
    tensors = {
        "q": ("Q8_1", (2, 32), bytes(72)),
        "a": (139, (2, 64), bytes(range(36))),
        "w": np.arange(3.0),
        "b": (99, (3, 5), bytes(40)),
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(pack_gguf({}, tensors))
    mapped = gguf.map_tensors(str(path))
    assert mapped.packed == {"q": "Q8_1", "a": "IQ4_K", "b": "99"}
    assert mapped.entries["b"] == ("float32", (3, 5)) and mapped.tensor("w").tolist() == [0, 1, 2]
    header = gguf.read_header(memoryview(path.read_bytes()))
    assert [header.entries[name][2:] for name in tensors] == [(0, 72), (96, 160), (160, 172), (192, 256)]
    problems = {
        "a": r"type IQ4_K is not decoded \(of ik_llama\.cpp\)",
        "b": r"type 99 is not decoded \(unknown; llama\.cpp has types 0 to 42, and its forks have others\)",
    }
    for name, problem in problems.items():
        for read_part in (mapped.tensor, lambda name: mapped.rows(name, 1)):
            with pytest.raises(DataError, match=rf"m\.gguf: tensor '{name}': {problem}; use F32"):
                read_part(name)
    done = run("show", str(path), "--list", env={"COLUMNS": "80"})
    assert done.code == 0 and [line.split() for line in done.out.decode().splitlines()[2:-1]] == [
        ["q", "(2,", "32)", "Q8_1"],
        ["a", "(2,", "64)", "IQ4_K"],
        ["w", "(3)", "F32"],
        ["b", "(3,", "5)", "99"],
    ]


# key -> value, its kind, and what the error says of it
OTHER_KINDS = {
    "a list for a number": ([1, 2], gguf.WHOLE, r"\[1, 2\] \(expected a whole number from 0\)"),
    "texts for a number": (["a", "b"], gguf.WHOLE, r"a list of 2 texts \(expected a whole number from 0\)"),
    "a negative number": (-3, gguf.WHOLE, r"-3 \(expected a whole number from 0\)"),
    "a boolean for a number": (True, gguf.NUMBER, r"True \(expected a finite number\)"),
    "nan": (float("nan"), gguf.NUMBER, r"nan \(expected a finite number\)"),
    "a number for a flag": (1, gguf.FLAG, r"1 \(expected true or false\)"),
    "a text for a flag": ("no", gguf.FLAG, r"'no' \(expected true or false\)"),
    "a number for a text": (5, gguf.TEXT, r"5 \(expected a text\)"),
    "a text for texts": ("a", gguf.TEXTS, r"'a' \(expected a list of texts\)"),
    "floats for whole numbers": ([0.5, 1.5], gguf.WHOLES, r"\[0\.5, 1\.5\] \(expected a list of whole numbers\)"),
    "flags for numbers": ([True, False], gguf.NUMERIC, r"\[True, False\] \(expected a list of numbers\)"),
    "numbers for flags": ([1] * 300, gguf.FLAGS, r"a list of 300 numbers \(expected a list of true and false\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_a_value_of_another_kind_is_refused_by_its_key(name):
    value, kind, problem = OTHER_KINDS[name]
    metadata = gguf.read_header(memoryview(pack_gguf({"some.key": value})), "m.gguf").metadata
    with pytest.raises(DataError, match=rf"^m\.gguf: some\.key is {problem}$"):
        metadata.read("some.key", kind)


def test_a_list_of_equal_numbers_is_read_as_the_number():
    """As converters write sizes of layers."""
    metadata = gguf.read_header(memoryview(pack_gguf({"heads": [4, 4], "flags": [True, True]}))).metadata
    assert metadata.read("heads", gguf.WHOLE) == 4 and type(metadata.read("heads", gguf.WHOLE)) is int
    assert metadata.read("heads", gguf.WHOLES).tolist() == [4, 4] and metadata.read("flags", gguf.FLAGS).all()
    single = gguf.read_header(memoryview(pack_gguf({"heads": [4]}))).metadata
    assert single.read("heads", gguf.WHOLE) == 4  # of a model of one layer
    assert metadata.read("none", gguf.WHOLE) is None and metadata.read("none", gguf.WHOLE, 3) == 3


def test_a_token_longer_than_any_is_not_decoded():
    metadata = gguf.read_header(memoryview(pack_gguf({"tokens": ["a", "b" * (1 << 16), "c" * (1 << 17)]}))).metadata
    with pytest.raises(DataError, match=r"string 2 has 131072 bytes \(limit 65536\)"):
        metadata["tokens"].read()


def test_numbers_of_a_dtype_are_read_in_place(tmp_path):
    values = np.arange(6).reshape(2, 3)
    dtypes = {"F32": "f4", "F16": "f2", "F64": "f8", "BF16": ml_dtypes.bfloat16, "I8": "i1", "I16": "i2", "I32": "i4"}
    dtypes |= {"I64": "i8"}
    tensors = {name: (name, (2, 3), values.astype(dtype).tobytes()) for name, dtype in dtypes.items()}
    path = tmp_path / "m.gguf"
    path.write_bytes(pack_gguf({}, tensors))
    mapped = gguf.map_tensors(str(path))
    for name, dtype in dtypes.items():
        array = mapped.tensor(name)
        assert array.dtype == np.dtype(dtype) and np.array_equal(array.astype(int), values)
        assert (array.dtype.name, array.shape) == mapped.entries[name] and not array.flags.writeable
        assert not array.flags.owndata
    assert mapped.packed == {}
    assert {name: array.tolist() for name, array in load(str(path)).arrays().items()} == dict.fromkeys(
        dtypes, values.tolist()
    )


def test_a_quantized_tensor_is_decoded_when_it_is_accessed(tmp_path):
    blocks, numbers = FROZEN["Q4_K"], FROZEN["Q4_K.numbers"]
    path = tmp_path / "m.gguf"
    path.write_bytes(pack_gguf({}, {"w": ("Q4_K", (3, 512), blocks.tobytes()), "o": (140, (256,), bytes(176))}))
    mapped = gguf.map_tensors(str(path))
    assert mapped.entries == {"w": ("float32", (3, 512)), "o": ("float32", (256,))}
    assert mapped.packed == {"w": "Q4_K", "o": "IQ5_K"}
    assert mapped.tensor("w").tobytes() == numbers.tobytes()
    assert mapped.tensor("w") is not mapped.tensor("w")
    for index in (1, slice(1, 3), np.array([[2, 0], [0, 2]])):
        assert mapped.rows("w", index).tobytes() == numbers.reshape(3, 512)[index].tobytes()
        assert mapped.rows("w", index).shape == numbers.reshape(3, 512)[index].shape
    with pytest.raises(DataError, match=r"m\.gguf: tensor 'o': type IQ5_K is not decoded"):
        mapped.tensor("o")


def test_metadata(tmp_path):
    pairs = {
        "u8": struct.pack("<IB", 0, 255),
        "i8": struct.pack("<Ib", 1, -1),
        "u16": struct.pack("<IH", 2, 65535),
        "i16": struct.pack("<Ih", 3, -2),
        "u32": 7,
        "i32": -7,
        "f32": 0.5,
        "u64": struct.pack("<IQ", 10, 2**64 - 1),
        "i64": struct.pack("<Iq", 11, -(2**63)),
        "f64": struct.pack("<Id", 12, 0.1),
        "yes": True,
        "text": "é",
        "words": ["a", "", "é"],
        "scores": [0.5, -1.5],
        "flags": [True, False],
        "none": [],
    }
    for version in (2, 3):
        path = tmp_path / "m.gguf"
        path.write_bytes(pack_gguf(pairs, version=version))
        found = dict(gguf.open_gguf(str(path)).metadata)
        assert found.pop("words").read() == ["a", "", "é"] and found.pop("none").read() == []
        assert found.pop("scores").tolist() == [0.5, -1.5] and found.pop("flags").tolist() == [True, False]
        assert found == {
            "u8": 255, "i8": -1, "u16": 65535, "i16": -2, "u32": 7, "i32": -7, "f32": 0.5, "u64": 2**64 - 1,
            "i64": -(2**63), "f64": 0.1, "yes": True, "text": "é",
        }  # fmt: skip


def test_a_file_is_recognized_by_its_first_bytes_and_its_results_are_npz():
    stream = read(Source.of(WHOLE))
    assert (stream.source, stream.format) == ("gguf", "npz")
    assert [record["x"].tolist() for record in stream] == [[1, 1]]


def test_other_alignments():
    file = pack_gguf({"general.alignment": 128}, {"a": np.ones(3), "b": np.full(2, 2.0)}, alignment=128)
    [record] = read(Source.of(file))
    assert (record["a"].tolist(), record["b"].tolist()) == ([1, 1, 1], [2, 2])


def test_a_tensor_has_at_most_four_dimensions():
    header = gguf.read_header(memoryview(pack_gguf({}, {"w": np.ones((1, 2, 1, 3))})))
    assert header.entries["w"].shape == (1, 2, 1, 3)
    with pytest.raises(DataError, match=r"tensor 'w': 5 dimensions \(limit 4\)"):
        gguf.read_header(memoryview(pack_gguf({}, {"w": np.ones((1, 1, 1, 1, 1))})))


def test_a_list_of_texts_may_end_with_the_file():
    file = pack_gguf({"words": ["the", "cat"]}, alignment=1)
    assert gguf.read_header(memoryview(file)).metadata["words"].read() == ["the", "cat"]
    with pytest.raises(DataError, match="2 strings do not end within the file"):
        gguf.read_header(memoryview(file[:-1]))


def write_parts(folder, **changes):
    """A file of two parts; changes: keys of the second one."""
    shared = {"split.count": 2, "split.tensors.count": 2}
    first, second = folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf"
    first.write_bytes(pack_gguf({"general.name": "two", "split.no": 0} | shared, {"a": np.ones(2)}))
    pairs = {"split.no": 1} | shared | {key.replace("_", "."): value for key, value in changes.items()}
    second.write_bytes(pack_gguf(pairs, {"b": np.zeros(3)}))
    return first, second


def test_a_split_file(tmp_path):
    first, second = write_parts(tmp_path)
    opened = gguf.open_gguf(str(first))
    assert opened.metadata["general.name"] == "two"
    assert [[*part.entries] for part in opened.parts] == [["a"], ["b"]]
    with pytest.raises(DataError, match=rf"^{second}: part 2 of 2; name the first one, m-00001-of-00002\.gguf$"):
        gguf.open_gguf(str(second))


def test_parts_that_do_not_fit(tmp_path):
    first, second = write_parts(tmp_path, split_no=0)
    with pytest.raises(DataError, match=f"^{second}: not part 2 of 2 of {first}"):
        gguf.open_gguf(str(first))
    write_parts(tmp_path)
    second.write_bytes(pack_gguf({"split.no": 1, "split.count": 2}, {"a": np.ones(2)}))
    with pytest.raises(DataError, match="tensor 'a' occurs in an earlier part too"):
        gguf.open_gguf(str(first))
    second.unlink()
    with pytest.raises(FileError, match=f"^{second}: no such file: part 2 of 2"):
        gguf.open_gguf(str(first))
    renamed = first.rename(tmp_path / "m.gguf")
    with pytest.raises(DataError, match="one of 2 parts, but its name does not say so"):
        gguf.open_gguf(str(renamed))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pack_gguf(counts=(0, 9)), "metadata: truncated: 9 keys, 8 bytes are left"),
        (pack_gguf(counts=(9, 0)), "truncated: 9 tensors, 8 bytes are left"),
        (pack_gguf({"k": struct.pack("<IIQ", 9, 8, 9)}), "metadata: key 'k': truncated: 9 strings, 15 bytes are left"),
    ],
)
def test_more_than_the_bytes_that_are_left_can_hold(data, problem):
    with pytest.raises(DataError) as caught:
        gguf.read_header(memoryview(data))
    assert str(caught.value).startswith(problem)


def test_what_begins_as_a_gguf_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(WHOLE)
    (tmp_path / "short").write_bytes(b"GGU")
    found = [gguf.is_gguf(str(tmp_path / name)) for name in ("m.gguf", "short", "none", ".")]
    assert found == [True, False, False, False]
