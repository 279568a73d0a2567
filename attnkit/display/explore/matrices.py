"""Matrices of a page: numbers as compressed bytes in base64, whole, in 8 bits or as the largest of each block and row.

A blob is the bytes of an array, little-endian, C order, compressed (RFC 1950) and in base64.
"""

import base64
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LEVELS = 254  # of a row in 8 bits, 0 to its largest number; 255: NaN or infinite
SIGNED = 127  # levels of each sign in a row with both; -128: NaN or infinite
SIDE = 128  # most blocks of a pooled map on each side
FAST = 1  # level of compression


def blob(array: Array) -> str:
    """Return an array as a blob.

    >>> zlib.decompress(base64.b64decode(blob(np.array([1.0], np.float32))))
    b'\\x00\\x00\\x80?'
    """
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.data.cast("B") if little.size else b"", FAST)).decode()


def pack_exact(weights: Array) -> dict[str, Any]:
    """Return matrices (H, T, S) in float32: {form, values}."""
    return {"form": "float32", "values": blob(weights.astype(np.float32, copy=False))}


def pack_bytes(weights: Array, is_signed: bool = False) -> dict[str, Any]:
    """Return matrices (H, T, S) in 8 bits: {form, scale, values}; a number is its level times the scale of its row.

    >>> packed = pack_bytes(np.array([[[0.0, 0.5, 1.0]]], np.float32))
    >>> zlib.decompress(base64.b64decode(packed["values"])), packed["form"]
    (b'\\x00\\x7f\\xfe', 'bytes')
    """
    finite = np.isfinite(weights)
    values = weights if finite.all() else np.where(finite, weights, 0)
    most = SIGNED if is_signed else LEVELS
    peak = (np.abs(values) if is_signed else values).max(axis=-1, keepdims=True, initial=0)
    scale = (peak / most).astype(np.float32)
    with np.errstate(all="ignore"):
        levels = np.rint(np.where(scale > 0, values / scale, 0)).clip(-most if is_signed else 0, most)
    kind = np.int8 if is_signed else np.uint8
    packed = np.where(finite, levels, -128 if is_signed else 255).astype(kind)
    return {"form": "signed" if is_signed else "bytes", "scale": blob(scale[..., 0]), "values": blob(packed)}


def pack_pooled(weights: Array) -> dict[str, Any]:
    """Return the largest of each block of matrices (H, T, S) in 8 bits: {form, block, shape, scale, values}.

    No number of a block is larger than its level times the scale of its matrix.
    """
    queries, keys = weights.shape[1:]
    block = [-(-queries // SIDE), -(-keys // SIDE)]
    rows = np.maximum.reduceat(weights, np.arange(0, queries, block[0]), axis=1)
    pooled = np.maximum.reduceat(rows, np.arange(0, keys, block[1]), axis=2).astype(np.float64)
    is_finite = np.isfinite(pooled)
    pooled = np.where(is_finite, pooled, 0).clip(0)
    scale = np.nextafter((pooled.max(axis=(1, 2)) / LEVELS).astype(np.float32), np.float32(np.inf))
    levels = np.ceil(pooled / scale[:, None, None]).clip(0, LEVELS)
    return {
        "form": "pooled",
        "block": block,
        "shape": list(pooled.shape),
        "scale": blob(scale),
        "values": blob(np.where(is_finite, levels, 255).astype(np.uint8)),
    }


def pack_largest(weights: Array, count: int) -> dict[str, Any]:
    """Return the largest numbers of each row of matrices (H, T, S), largest first, unrounded: {count, keys, values}.

    >>> packed = pack_largest(np.array([[[0.25, 0.75]]], np.float32), 1)
    >>> zlib.decompress(base64.b64decode(packed["keys"])), packed["count"]
    (b'\\x01\\x00', 1)
    """
    count = min(count, weights.shape[-1])
    keys = np.argpartition(weights, -count, axis=-1)[..., -count:]
    values = np.take_along_axis(weights, keys, axis=-1)
    order = np.argsort(-values, axis=-1, kind="stable")
    keys, values = (np.take_along_axis(one, order, axis=-1) for one in (keys, values))
    kind = np.uint16 if weights.shape[-1] <= 1 << 16 else np.uint32
    return {"count": count, "keys": blob(keys.astype(kind)), "values": blob(values.astype(np.float32))}
