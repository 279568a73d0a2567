"""MXFP4 in safetensors, as gpt-oss is published.

`NAME_blocks` and `NAME_scales` are read as one tensor `NAME`.

A byte of a block holds two numbers of four bits, the first in its low half: a sign, two bits of exponent and one of
mantissa. A scale is a power of two for 32 numbers, its exponent stored plus 127. Blocks lie along the inputs of a
weight, so the tensor is their transpose. Source: OCP Microscaling Formats 1.0; the files of gpt-oss.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit.checkpoints.weights import Weights
from attnkit.errors import DataError
from attnkit.formats.mapped import Mapped
from attnkit.model.dtypes import Array

BLOCKS, SCALES = "_blocks", "_scales"
MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
VALUES = np.array([*MAGNITUDES, *(-one for one in MAGNITUDES)], np.float32)
BIAS = 127


def decode_mxfp4_blocks(blocks: Array, scales: Array) -> Array:
    """The numbers of blocks of 16 bytes.

    blocks (..., G, 16) and scales (..., G), both uint8 -> (..., G*32) float32

    >>> blocks = np.full((1, 16), 0xF2, np.uint8)  # 1 and -6
    >>> decode_mxfp4_blocks(blocks, np.array([128], np.uint8))[:4].tolist()
    [2.0, -12.0, 2.0, -12.0]
    """
    halves = np.stack([VALUES[blocks & 15], VALUES[blocks >> 4]], axis=-1)  # (..., G, 16, 2)
    numbers = halves.reshape(*scales.shape, -1)
    scaled: Array = np.ldexp(numbers, scales[..., None].astype(np.int32) - BIAS)
    return scaled.reshape(*scales.shape[:-1], -1)


def join_packed(weights: Weights) -> Weights:
    """Weights whose pairs of blocks and scales are one tensor each, decoded by entry.

    DataError if the two do not fit each other.
    """
    packed = [name.removesuffix(BLOCKS) for name in weights.entries if name.endswith(BLOCKS)]
    packed = [name for name in packed if name + SCALES in weights.entries]
    if not packed:
        return weights
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in packed:
        (kind, blocks), (other, scales) = (weights.entries[name + part] for part in (BLOCKS, SCALES))
        if (kind, other) != ("uint8", "uint8") or len(blocks) < 3 or blocks[-1] != 16 or blocks[:-1] != scales:
            problem = f"is {kind} {blocks} and its scales {other} {scales} (expected uint8 (..., G, 16) and (..., G))"
            raise DataError(f"tensor {name + BLOCKS!r} {problem}", weights.file(name + BLOCKS))
        shapes[name] = "float32", (*blocks[:-3], blocks[-2] * 32, blocks[-3])

    def read_rows(name: str, index: Any) -> Array:
        decoded = decode_mxfp4_blocks(weights.rows(name + BLOCKS, index), weights.rows(name + SCALES, index))
        return np.swapaxes(decoded, -1, -2)

    kinds: Mapping[str, str] = dict.fromkeys(packed, "MXFP4")
    mapped = Mapped(weights.name, shapes, lambda name: read_rows(name, slice(None)), kinds, read_rows)
    return weights.joined_with(mapped, without={name + part for name in packed for part in (BLOCKS, SCALES)})
