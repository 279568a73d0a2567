"""Positions: sinusoidal and learned encodings, and the biases of ALiBi and T5."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, check_gradient
from attnkit.model.dtypes import Array, output_dtype, working
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.linear import add, sum_to_shape
from attnkit.model.formulas.rotary import angles

BLOCK = 1 << 18  # elements in a block of tokens

LAYOUTS = {
    "paper": lambda sin, cos: np.stack([sin, cos], axis=-1).reshape(*sin.shape[:-1], 2 * sin.shape[-1]),
    "halves": lambda sin, cos: np.concatenate([sin, cos], axis=-1),
}


def sinusoidal_positions(positions: ArrayLike, dim: int, *, layout: str = "paper", base: float = 10000.0) -> Array:
    """Sinusoidal encodings: sin and cos of p / base^(2i/D).

    positions (..., T) -> (..., T, D) float64

    Layout "paper" alternates sine and cosine (Attention Is All You Need, section 3.5); "halves" puts all
    sines first, as Marian and tensor2tensor do. DataError for an odd width, UsageError for an unknown layout.

    >>> sinusoidal_positions([0, 1], 4).round(4)
    array([[0.    , 1.    , 0.    , 1.    ],
           [0.8415, 0.5403, 0.01  , 1.    ]])
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r} (expected {' or '.join(LAYOUTS)})")
    phases = angles(positions, dim, base, "sinusoidal")
    table: Array = LAYOUTS[layout](np.sin(phases), np.cos(phases))
    return table


def base_of_pairs(pairs: int) -> float:
    """The base whose last pair has the period 10000.

    fairseq and tensor2tensor compute sinusoids so.

    There the period of pair i of n is 10000^(i/(n-1)), not 10000^(i/n).

    >>> round(base_of_pairs(5)), sinusoidal_positions([10000], 4, layout="halves", base=base_of_pairs(2))[:, 1].round(4)
    (100000, array([0.8415]))
    """
    return math.pow(10000, pairs / max(pairs - 1, 1))


def add_positions(x: Array, positions: ArrayLike, encoding: Callable[[Array], Array]) -> Array:
    """Add the encoding of every token's position to x, by blocks of tokens.

    x (..., T, D), positions (..., T), encoding (..., T) -> (..., T, D) -> (..., T, D)

    Source: Attention Is All You Need, section 3.5. DataError if the widths do not meet.

    >>> add_positions(np.ones((2, 2), np.float32), [0, 1], lambda p: sinusoidal_positions(p, 2)).round(4)
    array([[1.    , 2.    ],
           [1.8415, 1.5403]], dtype=float32)
    """
    where, result = np.asarray(positions), np.empty(x.shape, output_dtype(x))
    step = max(BLOCK // max(x.shape[-1], 1), 1)
    for start in range(0, x.shape[-2], step):
        part = slice(start, start + step)
        code = encoding(where[..., part])
        if x.ndim == 4 and code.ndim == 3:
            code = code[:, None]  # (B, 1, T, D)
        result[..., part, :] = add(x[..., part, :], code)
    return result


def add_positions_backward(grad_output: Array, encoding_shape: tuple[int, ...]) -> Array:
    """Gradient of the encodings added to x, summed over the batch that shares them.

    grad_output (..., T, D), encoding_shape (T, D) or (B, T, D) -> encoding_shape

    >>> add_positions_backward(np.array([[[1.0]], [[2.0]]]), (1, 1)).tolist()
    [[3.0]]
    """
    if grad_output.ndim == 4 and len(encoding_shape) == 3:
        batch, *rest = encoding_shape
        return sum_to_shape(grad_output, (batch, 1, *rest)).reshape(encoding_shape)  # was (B, 1, T, D)
    return sum_to_shape(grad_output, encoding_shape)


def learned_positions(positions: ArrayLike, table: Array) -> Array:
    """Row of the table for each position.

    positions (..., T), table (P, D) -> (..., T, D)

    DataError names a position outside 0..P-1.

    >>> learned_positions([1, 0], np.array([[0.5], [0.25]]))
    array([[0.25],
           [0.5 ]])
    """
    if table.ndim != 2:
        raise DataError.about("position", f"table {as_text(table.shape)}: expected rank 2 (position, model)")
    return np.ascontiguousarray(table[check_ids(positions, len(table), "position")])


def alibi_slopes(heads: int) -> Array:
    """ALiBi slope of each head: a geometric sequence from 2^(-8/H) to 2^-8.

    heads H -> (H,) float64

    Where H is no power of two, the slopes of the power below it, then every other one of the power above
    (Press et al. 2021 and their published code). UsageError for heads < 1.

    >>> alibi_slopes(3)
    array([0.0625    , 0.00390625, 0.25      ])
    """
    if heads < 1:
        raise UsageError(f"heads {heads} (expected 1 or more)")
    power = 1 << heads.bit_length() - 1
    return np.concatenate([_geometric(power), _geometric(2 * power)[::2][: heads - power]])


def _geometric(count: int) -> Array:
    slopes: Array = 2.0 ** (-8.0 * np.arange(1, count + 1) / count)
    return slopes


def alibi_bias(query_positions: ArrayLike, key_positions: ArrayLike, heads: int) -> Array:
    """ALiBi bias, -slope |i - j|.

    query_positions (T,), key_positions (S,) -> (H, T, S) float64

    >>> alibi_bias([0, 1], [0, 1], 1)
    array([[[ 0.        , -0.00390625],
            [-0.00390625,  0.        ]]])
    """
    distance = np.abs(np.asarray(query_positions)[:, None] - np.asarray(key_positions))
    bias: Array = alibi_slopes(heads)[:, None, None] * (0.0 - distance)
    return bias


def t5_buckets(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Array:
    """T5 bucket of each relative position: exact when near, logarithmic when far.

    query_positions (T,), key_positions (S,) -> (T, S) int64

    Bidirectional: half of the buckets for keys before the query, half for keys after it; else every key after
    the query shares bucket 0. Source: T5 (Raffel et al. 2020), section 2.1 and its published code.

    >>> t5_buckets([2], [0, 1, 2, 3, 4])
    array([[ 2,  1,  0, 17, 18]])
    """
    relative = np.asarray(key_positions)[None, :] - np.asarray(query_positions)[:, None]
    side = buckets // 2 if bidirectional else buckets
    exact = side // 2
    if exact < 1 or max_distance <= exact:
        raise UsageError(f"{buckets} buckets up to distance {max_distance}: too few buckets, or too short a distance")
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    growth = np.log(np.maximum(distance, exact) / exact) / math.log(max_distance / exact)
    far = np.minimum(exact + (growth * (side - exact)).astype(np.int64), side - 1)
    after: Any = side * (relative > 0) if bidirectional else 0
    buckets_of: Array = np.where(distance < exact, distance, far).astype(np.int64) + after
    return buckets_of


def t5_bias(buckets: ArrayLike, table: Array) -> Array:
    """Learned T5 bias of each bucket and head.

    buckets (T, S), table (N, H) -> (H, T, S)

    DataError for a bucket outside 0..N-1.

    >>> t5_bias([[0, 1]], np.array([[0.5, 5.0], [0.25, 2.5]]))
    array([[[0.5 , 0.25]],
    <BLANKLINE>
           [[5.  , 2.5 ]]])
    """
    if table.ndim != 2:
        raise DataError.about("bias", f"table {as_text(table.shape)}: rank {table.ndim}, expected 2 (bucket, head)")
    return np.ascontiguousarray(np.moveaxis(table[check_ids(buckets, len(table), "bucket")], -1, 0))


def t5_bias_backward(grad_output: Array, buckets: ArrayLike, size: int) -> Array:
    """Gradient of T5's table: row n sums all pairs of tokens in bucket n.

    grad_output (H, T, S), buckets (T, S), size N -> (N, H)

    Summed in float64. DataError for a bucket outside 0..N-1, or if the shapes do not match.

    >>> t5_bias_backward(np.array([[[1.0, 2.0], [4.0, 8.0]]]), [[0, 1], [2, 0]], 3).tolist()
    [[9.0], [2.0], [4.0]]
    """
    rows = check_ids(buckets, size, "bucket")
    check_gradient(grad_output, (*grad_output.shape[:1], *rows.shape), "the bias")
    flat = [np.bincount(rows.ravel(), head.ravel(), size) for head in grad_output]
    table: Array = np.stack(flat, axis=-1).astype(working(grad_output), copy=False)
    return table


def token_positions(mask: Array) -> Array:
    """Position of every token of a padded batch: its index among the real ones.

    mask (B, 1, T), (B, T), or (T,) of a single text, True = real -> (B, T) or (T,)

    >>> token_positions(np.array([[False, True, True]]))
    array([[0, 0, 1]])
    """
    real = mask.reshape(len(mask), mask.shape[-1]) if mask.ndim > 2 else mask
    positions: Array = np.maximum(np.cumsum(real, axis=-1) - 1, 0)
    return positions
