"""Attention over blocks of queries and keys: exact, on every core, never holding every query with every key."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.introspect import opt_func_info

from attnkit.errors import DataError
from attnkit.model.checks import shown
from attnkit.model.dense_attention import add_infinite_values
from attnkit.model.dtypes import Array, DType, output_dtype, quiet, working
from attnkit.model.kernels.threads import split_range
from attnkit.model.kernels.tiles import (
    SAFE_RANGE,
    KeyTile,
    QueryTile,
    Task,
    TiledInputs,
    Workspace,
    batched,
    make_query_tiles,
    prepare_inputs,
    rows_of_product,
    run_tiles,
    score_dtype,
    split_matrix,
)
from attnkit.model.options import DEFAULT, AttentionOptions

BLOCKS = (256, 1024)  # queries and keys: what belongs to them, and their scores, stay in a core's own cache
CALL = 2  # blocks of keys, of several heads, in one go at most: each call of NumPy also costs a while
BAND = 16  # blocks of queries at most that take their turns with a block of keys
TASKS = 16  # or more, so that every core has as much to do

# logarithms up to this size stay clear of overflow and underflow
RANGE: dict[DType, float] = {np.dtype(np.float32): 80.0, np.dtype(np.float64): 690.0}


class Tile(KeyTile):
    """A block of keys and their values, and workspace for what some queries have to do with them."""

    def __init__(self, rows: QueryTile, v: Array, at: slice, workspace: Workspace) -> None:
        super().__init__(rows, at, workspace)
        v = v[..., at, :]
        count, columns, width = self.scores.shape[-2], self.products.shape[-1], v.shape[-1]
        each = rows_of_product(count, width, columns)
        self.shares = workspace.array("scores", v.dtype, self.scores.shape)  # the scores themselves, if of their dtype
        self.turned = split_matrix(self.shares, each, columns).swapaxes(-1, -2)
        self.v = split_matrix(v, each, width)
        self.parts = workspace.array("parts", v.dtype, (*self.turned.shape[:-1], v.shape[-1]))
        self.ones = np.ones(count, v.dtype)

    def sums(self) -> tuple[Array, Array]:
        """The sums over the keys of the shares, (..., m), and of the values in such shares, (..., Q, m / Q, V)."""
        total = self.ones @ self.shares
        np.matmul(self.turned, self.v, out=self.parts)
        return total, np.add.reduce(self.parts, axis=-4)


def split_bands(inputs: TiledInputs, blocks: tuple[int, int]) -> list[Task]:
    """The queries of every batch in bands, each of blocks of one size; what takes longest comes first.

    Queries that see many keys come several blocks at once, those that see few with several heads at once.
    """
    batch, heads, queries, _ = inputs.q.shape
    whole = queries // blocks[0] * blocks[0]
    together = max(1, min(BAND, batch * heads * whole // blocks[0] // TASKS)) * blocks[0]
    tasks: list[tuple[int, Task]] = []
    for b in range(batch):
        stop = 0
        while stop < queries:
            start, stop = stop, min(stop + blocks[0], queries)
            seen = int(inputs.high[b, stop - 1] - inputs.low[b, start])
            if seen > blocks[1] and stop <= whole:
                stop = min(start + together, whole)
            several = max(1, min(CALL * blocks[1] // max(seen, 1), heads // 2))
            if inputs.sharing > 1:
                several = math.gcd(several, inputs.sharing)
            cost = several * (stop - start) * seen
            tasks += [(cost, (b, some, slice(start, stop))) for some in split_range(0, heads, several)]
    return [task for _, task in sorted(tasks, key=lambda one: -one[0])]


@quiet
def tiled_attention(
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions = DEFAULT,
    *,
    blocks: tuple[int, int] = BLOCKS,
    threads: int | None = None,
    **changes: Any,
) -> tuple[Array, Array]:
    """The heads of `attention` and the logarithm of the sum of each query's exponentials, block by block.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> (..., H, T, V), (..., H, T) float64

    `options` are those of `operands`. What a query may not see is not computed where it fills a block, memory
    grows with T + S, and the result is the same on any number of threads. It is exact: in float32 within 2e-6
    of the largest value, or 3e-7 times the largest score if that is more; scores that may be far from 0 (NEAR)
    are computed in float64. Where |q| max |k| shows that no exponential can overflow, none is shifted; else each
    block is shifted by the largest score so far, and what came before it faded accordingly (Milakov and Gimelshein
    2018; Rabe and Staats 2021; Dao et al. 2022); a weight under e^-80 of the largest, in float64 e^-690, is then
    zero. A query that sees nothing gets zeros and -inf, and a key of weight zero adds nothing, NaN and infinity
    included.

    >>> x = np.eye(2)[None]
    >>> heads, lse = tiled_attention(x, x, x, causal=True)
    >>> heads.round(4).tolist(), lse.round(4).tolist()
    ([[[1.0, 0.0], [0.3302, 0.6698]]], [[0.7071, 1.1079]])
    """
    options, result, dtype = options.replace(**changes), output_dtype(q), working(q, k, v)
    q, k, v = (np.asarray(x, dtype) for x in (q, k, v))
    largest = np.maximum(v.max(axis=(-1, -2), initial=0), -v.min(axis=(-1, -2), initial=0))
    if not np.isfinite(largest).all():
        heads, lse = _with_infinite_values(q, k, v, options, blocks=blocks, threads=threads)
        return heads.astype(result, copy=False), lse
    if largest.max(initial=0) > np.finfo(dtype).max / max(v.shape[-2], 1):  # their sums would overflow
        down = dtype.type(0.5 ** int(v.shape[-2]).bit_length())
        heads, lse = tiled_attention(q, k, v * down, options, blocks=blocks, threads=threads)
        return (heads / down).astype(result, copy=False), lse
    inputs, values = prepare_inputs(q, k, options), batched(v)
    reach = np.abs(np.log(largest)).reshape(values.shape[:2]) + math.log(max(v.shape[-2], 1))
    heads, lse = np.empty((*inputs.q.shape[:3], v.shape[-1]), result), np.empty(inputs.q.shape[:3])

    def work(task: Task, workspace: Workspace) -> None:
        group = task[0], inputs.group(task[1])
        lse[task] = _average(inputs, values[group], reach[group].max(), task, blocks, workspace, heads[task])

    run_tiles(work, inputs, split_bands(inputs, blocks), threads)
    return heads.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def _average(
    inputs: TiledInputs, v: Array, reach: float, task: Task, blocks: tuple[int, int], workspace: Workspace, out: Array
) -> Array:
    """Writes the averages of a band of queries to `out` (h, m, V), and gives the logarithms of their sums: (h, m)."""
    batch, _, band = task
    averages = OnlineSoftmax(inputs, v, reach, task, min(blocks[0], band.stop - band.start))
    low, high = int(inputs.low[batch, band.start]), int(inputs.high[batch, band.stop - 1])
    for keys in split_range(low, high, key_tile_size(high - low, blocks[1])):
        tiles: dict[tuple[int, int], Tile] = {}
        for i, rows in enumerate(averages.rows):
            seen = rows.visible_keys(keys)
            if seen.start < seen.stop:
                at = seen.start, seen.stop
                if at not in tiles:
                    tiles[at] = Tile(rows, v, seen, workspace)
                averages.add(i, tiles[at])
    return averages.written(out)


def key_tile_size(count: int, size: int) -> int:
    """How many keys of so many make a block: about `size`, and easily cut; all if they are few.

    >>> key_tile_size(4096, 1024), key_tile_size(2500, 1024), key_tile_size(1500, 1024)
    (1024, 1280, 1536)
    """
    blocks, unit = (max(2, count // size) if 2 * count > 3 * size else 1), min(size, 128)
    return math.ceil(max(count, 1) / blocks / unit) * unit


class OnlineSoftmax:
    """The averages over the values for some blocks of queries, as they grow with each block of keys."""

    def __init__(self, inputs: TiledInputs, v: Array, reach: float, task: Task, size: int) -> None:
        """v (h, S, V); blocks of `size`; logarithms of sums times values are no larger than scores plus reach."""
        exact, largest = score_dtype(inputs, task)
        self.plain = not inputs.added and largest <= SAFE_RANGE[v.dtype] and largest + reach < RANGE[v.dtype]
        self.power, unit = fastest_exp()
        self.rows = make_query_tiles(inputs, task, size, exact, unit if self.plain else 1.0)
        heads, _, parts, _, columns = self.rows[0].columns.shape
        self.top = np.full((heads, len(self.rows), size), 0 if self.plain else -np.inf, exact)
        self.total = np.zeros(self.top.shape)
        self.sums = np.zeros((heads, len(self.rows), parts, columns, v.shape[-1]), v.dtype)

    def add(self, i: int, tile: Tile) -> None:
        """What a block of queries sees of a block of keys."""
        scores = self.rows[i].scores(tile)  # (h, n, m)
        total, sums = self.total[:, i], self.sums[:, i]
        if self.plain:
            self.rows[i].apply_mask(self.power(scores, scores), tile.at, fill=0)
        else:
            self.top[:, i], base, faded = update_running_max(self.top[:, i], self.rows[i].apply_mask(scores, tile.at))
            shares = np.subtract(scores, base[..., None, :], out=tile.shares, casting="same_kind")
            np.copyto(shares, -np.inf, where=shares < -RANGE[shares.dtype])  # denormal numbers are slow
            np.exp(shares, out=shares)
            total *= faded
            sums *= faded.reshape(sums.shape[:-1])[..., None]
        ones, parts = tile.sums()
        total += ones
        sums += parts

    def written(self, out: Array) -> Array:
        """The logarithms of the sums, (h, m), once the averages are in `out` (h, m, V)."""
        total = np.where(self.total == 0, 1, self.total).astype(self.sums.dtype)
        sums = self.sums.reshape(*total.shape, -1)
        np.divide(sums, total[..., None], out=out.reshape(sums.shape), casting="same_kind")
        return (self.top + np.log(self.total)).reshape(out.shape[:-1])


@cache
def fastest_exp() -> tuple[np.ufunc, float]:
    """The faster of exp and exp2, and the unit in which it takes its argument: exp2, where NumPy has it in vectors."""
    built = opt_func_info(func_name="^exp2$").get("exp2", {}).get("ff", {}).get("current", "baseline")
    return (np.exp, 1.0) if built.startswith("baseline") else (np.exp2, math.log2(math.e))


def update_running_max(top: Array, scores: Array) -> tuple[Array, Array, Array]:
    """The largest scores once a block is seen, what to subtract for none above 0, and what is left of before.

    top (..., m), scores (..., n, m) -> (..., m), (..., m), (..., m)

    >>> update_running_max(np.array([1.0, -np.inf]), np.array([[3.0, -np.inf], [2.0, -np.inf]]))[:2]
    (array([  3., -inf]), array([3., 0.]))
    """
    higher = np.maximum(top, scores.max(axis=-2))
    base = np.where(higher == -np.inf, 0, higher).astype(scores.dtype)
    return higher, base, np.exp(top - base)


def _with_infinite_values(
    q: Array, k: Array, v: Array, options: AttentionOptions, **settings: Any
) -> tuple[Array, Array]:
    """The same for values of which some are NaN or infinite: they count where their weight is not zero."""
    parts = [np.where(np.isfinite(v), v, 0), v == np.inf, v == -np.inf, np.isnan(v)]
    heads, lse = tiled_attention(q, k, np.concatenate(parts, axis=-1, dtype=v.dtype), options, **settings)
    return add_infinite_values(*np.split(heads, 4, axis=-1)), lse


@quiet
def merge_partial_attention(outputs: Sequence[Array], lses: Sequence[Array]) -> tuple[Array, Array]:
    """Attention over all keys from attention over parts of them: exact, in any order, and again mergeable.

    outputs (..., H, T, V) and lses (..., H, T) of each part -> (..., H, T, V), (..., H, T) float64

    A part in which a query sees nothing has -inf there, and adds nothing. DataError where shapes differ.

    >>> outputs, lses = [np.array([[[1.0]]]), np.array([[[4.0]]])], [np.array([[0.0]]), np.log([[2.0]])]
    >>> output, lse = merge_partial_attention(outputs, lses)
    >>> output.item(), round(float(np.exp(lse.item())), 4)
    (3.0, 3.0)
    """
    if not outputs or len(outputs) != len(lses):
        raise DataError(f"{len(outputs)} outputs and {len(lses)} log-sum-exps (expected as many of both)")
    first = outputs[0].shape
    for output, lse in zip(outputs, lses, strict=True):
        if output.shape != first or lse.shape != first[:-1]:
            pair = f"output {shown(output.shape)} and log-sum-exp {shown(lse.shape)}"
            raise DataError(f"{pair}: expected {shown(first)} and {shown(first[:-1])}")
    top = np.max([np.asarray(lse, np.float64) for lse in lses], axis=0)
    base = np.where(top == -np.inf, 0, top)
    total, merged = np.zeros(first[:-1]), np.zeros(first)
    for output, lse in zip(outputs, lses, strict=True):
        share = np.exp(lse - base)
        total += share
        merged += np.where(share[..., None] == 0, 0, share[..., None] * output)
    merged /= np.where(total == 0, 1, total)[..., None]
    return merged.astype(output_dtype(outputs[0]), copy=False), base + np.log(total)
