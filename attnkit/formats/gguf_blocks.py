"""The types of tensors in GGUF files: how blocks of bytes hold numbers.

A quantized row is a sequence of blocks of 32 or 256 numbers. Each block holds a scale, perhaps scales of its parts and
minima, and a few bits for each number. Source: the structures and `dequantize_row_*` of ggml (ggml-common.h,
ggml-quants.c).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.records import Array

Decoder = Callable[[Array], Array]

TOGETHER = 1 << 18  # numbers decoded at a time, so that what is between stays in the processor's cache
LINEAR_4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # kvalues_iq4nl
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # the values of four-bit floats, doubled


class BlockType(NamedTuple):
    """A type of tensors.

    numbers  of a block, and size: its bytes, 0 where these are not known
    dtype    where the bytes are numbers of a dtype, else ""
    decode   blocks (N, size) as uint8 -> their numbers (N, numbers) as float32; None where it is not known here
    """

    name: str
    numbers: int
    size: int
    dtype: str = ""
    decode: Decoder | None = None


def decode_blocks(data: Array, kind: BlockType) -> Array:
    """The numbers of whole blocks as float32, in order: bytes (N,) -> (numbers,).

    DataError for a type that is not decoded here.

    >>> block = np.array([1.0], np.float16).tobytes() + bytes([255, 2] + [0] * 30)
    >>> decode_blocks(np.frombuffer(block, np.uint8), BLOCK_TYPES[8])[:3]
    array([-1.,  2.,  0.], dtype=float32)
    """
    if kind.decode is None:
        known = ", ".join(one.name for one in BLOCK_TYPES.values() if one.decode or one.dtype)
        raise DataError(f"type {kind.name} is not {'known' if kind.name.isdigit() else 'decoded'} (use {known})")
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
    9: BlockType("Q8_1", 32, 36),
    10: BlockType("Q2_K", 256, 84, decode=decode_q2_k),
    11: BlockType("Q3_K", 256, 110, decode=decode_q3_k),
    12: BlockType("Q4_K", 256, 144, decode=decode_q4_k),
    13: BlockType("Q5_K", 256, 176, decode=decode_q5_k),
    14: BlockType("Q6_K", 256, 210, decode=decode_q6_k),
    15: BlockType("Q8_K", 256, 292, decode=decode_q8_k),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18, decode=decode_iq4_nl),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136, decode=decode_iq4_xs),
    24: BlockType("I8", 1, 1, "int8"),
    25: BlockType("I16", 1, 2, "int16"),
    26: BlockType("I32", 1, 4, "int32"),
    27: BlockType("I64", 1, 8, "int64"),
    28: BlockType("F64", 1, 8, "float64"),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2, "bfloat16"),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17, decode=decode_mxfp4),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
}
# types that ggml has removed, and one whose blocks have 64 numbers in ggml and 128 in a fork
UNSIZED = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8", 42: "Q2_0",
}  # fmt: skip


def find_type(number: int) -> BlockType:
    """The type of a number in a file; for an unknown number one without a size.

    >>> find_type(9).size, find_type(42).name, find_type(99).name
    (36, 'Q2_0', '99')
    """
    return BLOCK_TYPES.get(number, BlockType(UNSIZED.get(number, str(number)), 1, 0))


def byte_size(kind: BlockType, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor. DataError if its rows are not whole blocks.

    >>> byte_size(BLOCK_TYPES[12], (2, 512))
    576
    """
    row = shape[-1] if shape else 1
    if row % kind.numbers:
        raise DataError(f"rows of {row} numbers are not whole blocks of {kind.name} ({kind.numbers} numbers)")
    return math.prod(shape) // kind.numbers * kind.size
