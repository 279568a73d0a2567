"""Matrices of a page, as compressed bytes in base64: exact, 8 bits or pooled.

A blob is the bytes of an array, little-endian, C order, compressed (RFC 1950) and in base64. Numbers in 8 bits are
levels times a scale: uint8 0 to 254, and 255 for what is not finite; of matrices with both signs int8 -127 to 127, and
-128.
"""

import base64
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 128  # most blocks of a pooled map on each side
FAST = 1  # level of compression


def blob(array: Array) -> str:
    """An array as a blob.

    >>> zlib.decompress(base64.b64decode(blob(np.array([1.0], np.float32))))
    b'\\x00\\x00\\x80?'
    """
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.data.cast("B") if little.size else b"", FAST)).decode()


def has_signs(weights: Array) -> bool:
    """Whether a finite number is below 0."""
    return bool(np.isfinite(weights[weights < 0]).any())


def pack_exact(weights: Array) -> dict[str, Any]:
    """Pack matrices (H, T, S) exactly: {form, dtype, values}."""
    return {"form": "exact", **pack_numbers(weights)}


def pack_numbers(array: Array) -> dict[str, Any]:
    """Pack numbers in float64 or float32: {dtype, values}."""
    numbers = as_packed(array)
    return {"dtype": numbers.dtype.name, "values": blob(numbers)}


def as_packed(array: Array) -> Array:
    """Numbers in the dtype of a page: float64 as it is, others as float32.

    >>> as_packed(np.ones(1)).dtype.name, as_packed(np.ones(1, np.float16)).dtype.name
    ('float64', 'float32')
    """
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def pack_bytes(weights: Array) -> dict[str, Any]:
    """Pack matrices (H, T, S) in 8 bits with a scale a row: {form, scale, values}.

    >>> packed = pack_bytes(np.array([[[0.0, 0.5, 1.0]]], np.float32))
    >>> zlib.decompress(base64.b64decode(packed["values"])), packed["form"]
    (b'\\x00\\x7f\\xfe', 'bytes')
    """
    scale, levels = _quantize(weights, (-1,), has_signs(weights), np.rint)
    return {"form": "bytes", "scale": blob(scale), "values": blob(levels)}


def pack_pooled(weights: Array) -> dict[str, Any]:
    """Pack the largest of each block: {form, block, shape, scale, values}.

    No number of a block is larger in magnitude than its level times the scale of its matrix.
    """
    is_signed = has_signs(weights)
    queries, keys = weights.shape[1:]
    block = [-(-queries // SIDE), -(-keys // SIDE)]
    pooled = _pool(weights, block, np.maximum)
    if is_signed:
        low = _pool(weights, block, np.minimum)
        pooled = np.where(-low > pooled, low, pooled)
    scale, levels = _quantize(pooled, (-2, -1), is_signed, lambda values: np.copysign(np.ceil(np.abs(values)), values))
    return {"form": "pooled", "block": block, "shape": list(pooled.shape), "scale": blob(scale), "values": blob(levels)}


def _pool(weights: Array, block: list[int], reduce: np.ufunc) -> Array:
    """The largest or the smallest of each block: (H, T, S) -> (H, rows, columns)."""
    queries, keys = weights.shape[1:]
    rows = reduce.reduceat(weights, np.arange(0, queries, block[0]), axis=1)
    pooled: Array = reduce.reduceat(rows, np.arange(0, keys, block[1]), axis=2)
    return pooled


def _quantize(
    weights: Array, axes: tuple[int, ...], is_signed: bool, rounded: Callable[[Array], Array]
) -> tuple[Array, Array]:
    most = 127 if is_signed else 254
    finite = np.isfinite(weights)
    values = weights if finite.all() else np.where(finite, weights, 0)
    peak = (np.abs(values) if is_signed else values).max(axis=axes, keepdims=True, initial=0)
    scale = np.nextafter((peak / most).astype(np.float32), np.float32(np.inf))
    levels = rounded(values / scale).clip(-most if is_signed else 0, most)
    kind, hole = (np.int8, -128) if is_signed else (np.uint8, 255)
    return scale.squeeze(axes), np.where(finite, levels, hole).astype(kind)


def pack_largest(weights: Array, count: int) -> dict[str, Any]:
    """Pack the largest numbers of each row, unrounded: {count, keys, values}.

    >>> packed = pack_largest(np.array([[[0.25, 0.75]]], np.float32), 1)
    >>> zlib.decompress(base64.b64decode(packed["keys"])), packed["count"]
    (b'\\x01\\x00', 1)
    """
    count = min(count, weights.shape[-1])
    size = np.abs(weights) if has_signs(weights) else weights
    keys = np.argpartition(size, -count, axis=-1)[..., -count:]
    order = np.argsort(-np.take_along_axis(size, keys, axis=-1), axis=-1, kind="stable")
    keys = np.take_along_axis(keys, order, axis=-1)
    return pack_top(keys, np.take_along_axis(weights, keys, axis=-1), weights.shape[-1])


def pack_top(keys: Array, values: Array, size: int) -> dict[str, Any]:
    """Pack numbers (H, T, K) by their keys, -1 for none: {count, keys, values}."""
    kind = np.uint16 if size < 1 << 16 else np.uint32
    return {"count": keys.shape[-1], "keys": blob(keys.astype(kind)), "values": blob(values.astype(np.float32))}


def scatter_blocks(keys: Array, values: Array, size: int) -> Array:
    """The largest of (H, T, K) in each block of a map: (H, rows, columns).

    >>> scatter_blocks(np.array([[[1, -1], [0, 1]]]), np.array([[[0.5, 0.0], [0.25, 0.75]]]), 2)
    array([[[0.  , 0.5 ],
            [0.25, 0.75]]])
    """
    heads, queries, _ = keys.shape
    high, wide = -(-queries // SIDE), -(-size // SIDE)
    blocks = np.zeros((heads, -(-queries // high), -(-size // wide)), values.dtype)
    head, query = np.arange(heads)[:, None, None], np.arange(queries)[:, None]
    is_key = keys >= 0
    place = np.broadcast_arrays(head, query // high, keys // wide)
    np.maximum.at(blocks, tuple(one[is_key] for one in place), values[is_key])
    return blocks
