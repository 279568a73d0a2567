"""The types of tensors in GGUF files: how blocks of bytes hold numbers.

A quantized row is a sequence of blocks of 32 to 256 numbers. Each block holds a scale, perhaps scales of its parts and
minima, and a few bits for each number, or for each point of a grid. Source: the structures and `dequantize_row_*` of
ggml (ggml-common.h, ggml-quants.c).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.gguf_grids import points
from attnkit.records import Array

Decoder = Callable[[Array], Array]

TOGETHER = 1 << 18  # numbers decoded at a time, so that what is between stays in the processor's cache
LINEAR_4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl
SHIFT = np.float32(0.125)  # of the points of IQ1_S
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # the values of four-bit floats, doubled


class BlockType(NamedTuple):
    """A type of tensors.

    numbers  of a block, and size: its bytes, 0 where these are not known
    dtype    where the bytes are numbers of a dtype, else ""
    decode   blocks (N, size) as uint8 -> their numbers (N, numbers) as float32; None where it is not known here
    remark   what is known of a type that is not decoded
    """

    name: str
    numbers: int
    size: int
    dtype: str = ""
    decode: Decoder | None = None
    remark: str = ""


def decode_blocks(data: Array, kind: BlockType) -> Array:
    """The numbers of whole blocks as float32, in order: bytes (N,) -> (numbers,).

    DataError for a type that is not decoded here.

    >>> block = np.array([1.0], np.float16).tobytes() + bytes([255, 2] + [0] * 30)
    >>> decode_blocks(np.frombuffer(block, np.uint8), BLOCK_TYPES[8])[:3]
    array([-1.,  2.,  0.], dtype=float32)
    """
    if kind.decode is None:
        known = ", ".join(one.name for one in BLOCK_TYPES.values() if one.decode or one.dtype)
        raise DataError(f"type {kind.name} is not decoded ({kind.remark}); use {known}")
    blocks = data.reshape(-1, kind.size)
    numbers = np.empty((len(blocks), kind.numbers), np.float32)
    step = max(TOGETHER // kind.numbers, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite, or NaN
        for at in range(0, len(blocks), step):
            numbers[at : at + step] = kind.decode(np.ascontiguousarray(blocks[at : at + step]))
    return numbers.reshape(-1)


def unpack(data: Array, width: int, bits: int) -> Array:
    """Unpack numbers of a few bits: in each `width` bytes first all the lowest.

    >>> unpack(np.array([[0x21, 0x43]], np.uint8), 2, 4), unpack(np.array([[0x21, 0x43]], np.uint8), 1, 4)
    (array([[1, 3, 2, 4]], dtype=uint8), array([[1, 2, 3, 4]], dtype=uint8))
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = data.reshape(len(data), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(data), -1)


def half(blocks: Array, at: int) -> Array:
    """The float16 at a byte of each block, as float32: (N, 1)."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def signed(numbers: Array, zero: int) -> Array:
    """Numbers of a few bits less the one that stands for 0, as float32."""
    return numbers.astype(np.float32) - np.float32(zero)


def spread(scales: Array, numbers: Array, minima: Array | None = None) -> Array:
    """Scale the numbers (N, count) by part, less the minima.

    scales and minima (N, parts)
    """
    scaled: Array = scales[:, :, None] * numbers.reshape(*scales.shape, -1)
    return (scaled if minima is None else scaled - minima[:, :, None]).reshape(numbers.shape)


def decode_q4_0(blocks: Array) -> Array:
    return half(blocks, 0) * signed(unpack(blocks[:, 2:], 16, 4), 8)


def decode_q4_1(blocks: Array) -> Array:
    return spread(half(blocks, 0), unpack(blocks[:, 4:], 16, 4)) + half(blocks, 2)


def decode_q5_0(blocks: Array) -> Array:
    numbers = unpack(blocks[:, 6:], 16, 4) | unpack(blocks[:, 2:6], 1, 1) << 4
    return half(blocks, 0) * signed(numbers, 16)


def decode_q5_1(blocks: Array) -> Array:
    numbers = unpack(blocks[:, 8:], 16, 4) | unpack(blocks[:, 4:8], 1, 1) << 4
    return spread(half(blocks, 0), numbers) + half(blocks, 2)


def decode_q8_0(blocks: Array) -> Array:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8)


def decode_q2_k(blocks: Array) -> Array:
    """Sixteen parts, each with a scale and a minimum of four bits."""
    scales, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    numbers = unpack(blocks[:, 16:80], 32, 2)
    return spread(half(blocks, 80) * scales, numbers, half(blocks, 82) * minima)


def decode_q3_k(blocks: Array) -> Array:
    """Sixteen parts with scales of six bits; the third bit of a number is inverted."""
    scales = unpack(blocks[:, 96:104], 8, 4) | unpack(blocks[:, 104:108], 4, 2) << 4
    numbers = unpack(blocks[:, 32:96], 32, 2) | unpack(blocks[:, :32], 32, 1) << 2
    return spread(half(blocks, 108) * signed(scales, 32), signed(numbers, 4))


def decode_q4_k(blocks: Array) -> Array:
    scales, minima = scales_and_minima(blocks)
    return spread(scales, unpack(blocks[:, 16:], 32, 4), minima)


def decode_q5_k(blocks: Array) -> Array:
    scales, minima = scales_and_minima(blocks)
    numbers = unpack(blocks[:, 48:], 32, 4) | unpack(blocks[:, 16:48], 32, 1) << 4
    return spread(scales, numbers, minima)


def scales_and_minima(blocks: Array) -> tuple[Array, Array]:
    """The scales and the minima of the eight parts of a block of Q4_K or Q5_K.

    Twelve bytes hold six bits of each: the first four of both as they are, the others in four bits, whose upper two
    bits are those of the first.
    """
    first, second, others = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, others & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, others >> 4 | second >> 2 & 48], axis=1)
    return half(blocks, 0) * scales, half(blocks, 2) * minima


def decode_q6_k(blocks: Array) -> Array:
    numbers = unpack(blocks[:, :128], 64, 4) | unpack(blocks[:, 128:192], 32, 2) << 4
    return spread(half(blocks, 208) * blocks[:, 192:208].view(np.int8), signed(numbers, 32))


def decode_q8_k(blocks: Array) -> Array:
    return np.multiply(blocks[:, :4].copy().view(np.float32), blocks[:, 4:260].view(np.int8))


def decode_iq4_nl(blocks: Array) -> Array:
    return half(blocks, 0) * take_values(LINEAR_4, unpack(blocks[:, 2:], 16, 4))


def decode_iq4_xs(blocks: Array) -> Array:
    scales = unpack(blocks[:, 4:8], 1, 4) | unpack(blocks[:, 2:4], 1, 2) << 4
    return spread(half(blocks, 0) * signed(scales, 32), take_values(LINEAR_4, unpack(blocks[:, 8:], 16, 4)))


def decode_mxfp4(blocks: Array) -> Array:
    return half_power(blocks[:, :1]) * take_values(E2M1, unpack(blocks[:, 1:], 16, 4))


def half_power(exponents: Array) -> Array:
    """Half of 2 ** (e - 127), as the values of four-bit floats are doubled.

    >>> half_power(np.array([128], np.uint8)), half_power(np.array([0], np.uint8))[0] == 2.0 ** -128
    (array([1.], dtype=float32), np.True_)
    """
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128, dtype=np.float32)


def decode_q8_1(blocks: Array) -> Array:
    """A scale, the sum of the numbers, which decoding does not need, and the numbers."""
    return half(blocks, 0) * blocks[:, 4:].view(np.int8)


def decode_q1_0(blocks: Array) -> Array:
    """The scale, negative where the bit is 0."""
    return half(blocks, 0) * signs(1 - unpack(blocks[:, 2:], 1, 1))


def decode_q2_0(blocks: Array) -> Array:
    return half(blocks, 0) * signed(unpack(blocks[:, 2:], 1, 2), 1)


def decode_tq1_0(blocks: Array) -> Array:
    """Five digits of base 3 in a byte, the first one highest.

    The last four bytes have four.
    """
    parts = ((0, 32, 5), (32, 48, 5), (48, 52, 4))  # first byte and end, and digits in each
    digits = []
    for begin, end, count in parts:
        powers = np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]
        shifted = (blocks[:, None, begin:end] * powers).astype(np.uint16)  # modulo 256: without the digits before
        digits.append((shifted * np.uint16(3) >> np.uint16(8)).reshape(len(blocks), -1))
    return half(blocks, 52) * signed(np.concatenate(digits, axis=1), 1)


def decode_tq2_0(blocks: Array) -> Array:
    return half(blocks, 64) * signed(unpack(blocks[:, :64], 32, 2), 1)


def decode_nvfp4(blocks: Array) -> Array:
    """Four parts of 16 numbers, each with a scale of eight bits."""
    return spread(half_e4m3(blocks[:, :4]), take_values(E2M1, unpack(blocks[:, 4:], 8, 4)))


def half_e4m3(codes: Array) -> Array:
    """Half of floats of four bits of exponent and three of mantissa, without a sign.

    0x7F, which is not a number elsewhere, is 0.

    >>> half_e4m3(np.array([0x38, 0x01, 0x7E, 0x7F], np.uint8)).tolist()
    [0.5, 0.0009765625, 224.0, 0.0]
    """
    exponents, mantissas = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissas / 8, exponents - 8)
    return np.where(codes == 0x7F, np.float32(0), np.where(exponents == 0, np.ldexp(mantissas, -10), normal))


def decode_iq2_xxs(blocks: Array) -> Array:
    """For 32 numbers four codes of points, and a word of their signs and their scale."""
    words = blocks[:, 2:].copy().view(np.uint32).reshape(len(blocks), 8, 2)
    codes = blocks[:, 2:].reshape(len(blocks), 8, 8)[:, :, :4].reshape(len(blocks), -1)
    scales = half(blocks, 0) * (np.float32(0.5) + scale_of(words[:, :, 1])) * np.float32(0.25)
    return spread(scales, take_points("IQ2_XXS", codes)) * even_signs(words[:, :, 1])


def decode_iq2_xs(blocks: Array) -> Array:
    """Words of nine bits for a point and seven for its signs; a scale for 16 numbers."""
    words = blocks[:, 2:66].copy().view(np.uint16)
    scales = half(blocks, 0) * (np.float32(0.5) + unpack(blocks[:, 66:], 1, 4)) * np.float32(0.25)
    return spread(scales, take_points("IQ2_XS", words & 511)) * signs(unpack(with_parity(words >> 9), 1, 1))


def decode_iq2_s(blocks: Array) -> Array:
    """Codes of ten bits, a bit for each sign, and a scale for 16 numbers."""
    codes = blocks[:, 2:34] | unpack(blocks[:, 66:74], 1, 2).astype(np.uint16) << 8
    scales = half(blocks, 0) * (np.float32(0.5) + unpack(blocks[:, 74:], 1, 4)) * np.float32(0.25)
    return spread(scales, take_points("IQ2_S", codes)) * signs(unpack(blocks[:, 34:66], 1, 1))


def decode_iq3_xxs(blocks: Array) -> Array:
    """Codes of points of four numbers; for 32 numbers a word of signs and a scale."""
    words = blocks[:, 66:].copy().view(np.uint32)
    scales = half(blocks, 0) * (np.float32(0.5) + scale_of(words)) * np.float32(0.5)
    return spread(scales, take_points("IQ3_XXS", blocks[:, 2:66])) * even_signs(words)


def decode_iq3_s(blocks: Array) -> Array:
    """Codes of nine bits, a bit for each sign, and a scale for 32 numbers."""
    codes = blocks[:, 2:66] | unpack(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8
    scales = half(blocks, 0) * (1 + 2 * unpack(blocks[:, 106:], 1, 4))
    return spread(scales, take_points("IQ3_S", codes)) * signs(unpack(blocks[:, 74:106], 1, 1))


def decode_iq1_s(blocks: Array) -> Array:
    """Codes of eleven bits; for 32 numbers a scale and the sign of a shift."""
    words = blocks[:, 34:].copy().view(np.uint16)
    codes = blocks[:, 2:34] | word_fields(words) << 8
    scales = half(blocks, 0) * (2 * (words >> 12 & 7) + 1)
    shifts = np.where(words >> 15, -SHIFT, SHIFT)
    return spread(scales, take_points("IQ1_S", codes) + np.repeat(shifts, 32, axis=1))


def decode_iq1_m(blocks: Array) -> Array:
    """As IQ1_S, with a scale for 16 numbers and a shift for 8.

    The four words of scales have the bits of the scale of all in their upper four bits.
    """
    words, high = blocks[:, 48:].copy().view(np.uint16), unpack(blocks[:, 32:48], 1, 4)
    codes = blocks[:, :32] | (high & 7).astype(np.uint16) << 8
    whole = np.bitwise_or.reduce(words >> 12 << np.arange(0, 16, 4, dtype=np.uint16), axis=1, keepdims=True)
    scales = whole.astype(np.uint16).view(np.float16).astype(np.float32) * (2 * word_fields(words) + 1)
    shifts = np.where(high & 8, -SHIFT, SHIFT)
    return spread(scales, take_points("IQ1_S", codes) + np.repeat(shifts, 8, axis=1))


def take_points(name: str, codes: Array) -> Array:
    """The numbers of the points of a grid: (N, codes) -> (N, numbers)."""
    numbers: Array = points(name)[codes]
    return numbers.reshape(len(codes), -1)


def signs(bits: Array) -> Array:
    """1 where a bit is 0, and -1 where it is 1, as float32."""
    return 1 - 2 * bits.astype(np.float32)


def scale_of(words: Array) -> Array:
    """The upper four bits of words of 32 bits, as float32."""
    return (words >> 28).astype(np.float32)


def even_signs(words: Array) -> Array:
    """The signs of 32 numbers in each word: (N, words) -> (N, words*32).

    A word has seven bits for eight numbers.
    """
    fields = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return signs(unpack(with_parity(fields).reshape(len(words), -1), 1, 1))


def with_parity(bits: Array) -> Array:
    """Seven bits, and an eighth that makes the number of ones even.

    >>> with_parity(np.array([0, 1, 3, 127])).tolist()
    [0, 129, 3, 255]
    """
    eighth = (np.bitwise_count(bits) & 1).astype(np.uint8) << np.uint8(7)
    return bits.astype(np.uint8) | eighth


def word_fields(words: Array) -> Array:
    """The four fields of three bits in words of 16 bits, the lowest first.

    >>> word_fields(np.array([[0o4321]], np.uint16))
    array([[1, 2, 3, 4]], dtype=uint16)
    """
    return (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(words), -1)


def take_values(values: tuple[int, ...], numbers: Array) -> Array:
    return np.array(values, np.float32)[numbers]


# by the number that stands for a type in a file
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4, "float32"),
    1: BlockType("F16", 1, 2, "float16"),
    2: BlockType("Q4_0", 32, 18, decode=decode_q4_0),
    3: BlockType("Q4_1", 32, 20, decode=decode_q4_1),
    6: BlockType("Q5_0", 32, 22, decode=decode_q5_0),
    7: BlockType("Q5_1", 32, 24, decode=decode_q5_1),
    8: BlockType("Q8_0", 32, 34, decode=decode_q8_0),
    9: BlockType("Q8_1", 32, 36, decode=decode_q8_1),
    10: BlockType("Q2_K", 256, 84, decode=decode_q2_k),
    11: BlockType("Q3_K", 256, 110, decode=decode_q3_k),
    12: BlockType("Q4_K", 256, 144, decode=decode_q4_k),
    13: BlockType("Q5_K", 256, 176, decode=decode_q5_k),
    14: BlockType("Q6_K", 256, 210, decode=decode_q6_k),
    15: BlockType("Q8_K", 256, 292, decode=decode_q8_k),
    16: BlockType("IQ2_XXS", 256, 66, decode=decode_iq2_xxs),
    17: BlockType("IQ2_XS", 256, 74, decode=decode_iq2_xs),
    18: BlockType("IQ3_XXS", 256, 98, decode=decode_iq3_xxs),
    19: BlockType("IQ1_S", 256, 50, decode=decode_iq1_s),
    20: BlockType("IQ4_NL", 32, 18, decode=decode_iq4_nl),
    21: BlockType("IQ3_S", 256, 110, decode=decode_iq3_s),
    22: BlockType("IQ2_S", 256, 82, decode=decode_iq2_s),
    23: BlockType("IQ4_XS", 256, 136, decode=decode_iq4_xs),
    24: BlockType("I8", 1, 1, "int8"),
    25: BlockType("I16", 1, 2, "int16"),
    26: BlockType("I32", 1, 4, "int32"),
    27: BlockType("I64", 1, 8, "int64"),
    28: BlockType("F64", 1, 8, "float64"),
    29: BlockType("IQ1_M", 256, 56, decode=decode_iq1_m),
    30: BlockType("BF16", 1, 2, "bfloat16"),
    34: BlockType("TQ1_0", 256, 54, decode=decode_tq1_0),
    35: BlockType("TQ2_0", 256, 66, decode=decode_tq2_0),
    39: BlockType("MXFP4", 32, 17, decode=decode_mxfp4),
    40: BlockType("NVFP4", 64, 36, decode=decode_nvfp4),
    41: BlockType("Q1_0", 128, 18, decode=decode_q1_0),
}
# two types of one number: in ggml and in a fork, which the places of the tensors in a file distinguish
VARIANTS = {
    "Q2_0": (BlockType("Q2_0", 64, 18, decode=decode_q2_0), BlockType("PQ2_0", 128, 34, decode=decode_q2_0)),
}
REMOVED, IK, PRISM = "removed from ggml", "of ik_llama.cpp", "of a fork, PrismML's llama.cpp"
UNMEASURED = "blocks of 64 numbers in ggml and of 128 in a fork; the places of the tensors do not tell which"
# number -> name, and what is known of the type
OTHERS = {
    4: ("Q4_2", REMOVED), 5: ("Q4_3", REMOVED), 31: ("Q4_0_4_4", REMOVED), 32: ("Q4_0_4_8", REMOVED),
    33: ("Q4_0_8_8", REMOVED), 36: ("IQ4_NL_4_4", f"{REMOVED}; I2_S in bitnet.cpp"), 37: ("IQ4_NL_4_8", REMOVED),
    38: ("IQ4_NL_8_8", REMOVED), 42: ("Q2_0", UNMEASURED),
    133: ("Q6_0", IK), 134: ("IQ1_BN", IK), 135: ("IQ2_BN", IK), 137: ("IQ2_K", IK), 138: ("IQ3_K", IK),
    139: ("IQ4_K", IK), 140: ("IQ5_K", IK), 141: ("IQ6_K", IK), 142: ("PQ2_0", PRISM), 143: ("PTQ1_0", PRISM),
    144: ("IQ4_KS", IK), 145: ("IQ2_KS", IK), 146: ("IQ4_KSS", IK), 152: ("IQ5_KS", IK), 153: ("IQ2_KT", IK),
    154: ("IQ3_KT", IK), 155: ("IQ4_KT", IK), 156: ("IQ3_KS", IK), 157: ("IQ2_KL", IK), 158: ("IQ1_KT", IK),
}  # fmt: skip
UNKNOWN = "unknown; llama.cpp has types 0 to 42, and its forks have others"


def find_type(number: int) -> BlockType:
    """The type of a number in a file; one without a size if that is not known.

    >>> find_type(9).size, find_type(42).name, find_type(139).remark, find_type(99).name
    (36, 'Q2_0', 'of ik_llama.cpp', '99')
    """
    name, remark = OTHERS.get(number, (str(number), UNKNOWN))
    return BLOCK_TYPES.get(number, BlockType(name, 1, 0, remark=remark))


def byte_size(kind: BlockType, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor. DataError if its rows are not whole blocks.

    >>> byte_size(BLOCK_TYPES[12], (2, 512))
    576
    """
    row = shape[-1] if shape else 1
    if row % kind.numbers:
        raise DataError(f"rows of {row} numbers are not whole blocks of {kind.name} ({kind.numbers} numbers)")
    return math.prod(shape) // kind.numbers * kind.size
