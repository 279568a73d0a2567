"""Tiled attention with an online softmax (FlashAttention), on every core.

Exact, without the T x S matrix.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, DType, output_dtype, quiet, working
from attnkit.model.formulas.activations import fastest_exp
from attnkit.model.formulas.dense_attention import DEFAULT, AttentionOptions, add_infinite_values
from attnkit.model.kernels.tiles import (
    SAFE_RANGE,
    KeyTile,
    QueryTile,
    Task,
    TiledInputs,
    Workspace,
    batched,
    make_query_tiles,
    prepare_tiles,
    rows_of_product,
    run_tasks,
    score_dtype,
    split_matrix,
)
from attnkit.model.processor.threads import split_range

BLOCKS = (256, 512)  # queries and keys of a tile: they and their scores stay in a core's own cache
FAR = 32  # keys that are computed in float64 if the scores of one of them are large
MOST_NEAR = 0.75  # share of such blocks from which the others are computed by themselves
CALL = 2  # maximum number of tiles of keys, of several heads, in one NumPy call, as each call has a fixed cost
BAND = 16  # maximum number of tiles of queries that use one tile of keys in turn
TASKS = 16  # minimum number of tasks, so that cores are equally busy

# exponentials of numbers up to this size neither overflow nor underflow
RANGE: dict[DType, float] = {np.dtype(np.float32): 80.0, np.dtype(np.float64): 690.0}


class Tile(KeyTile):
    """A tile of keys and values, and memory for the weights of some queries."""

    def __init__(self, rows: QueryTile, v: Array, at: slice, workspace: Workspace) -> None:
        super().__init__(rows, at, workspace)
        v = v[..., at, :]
        count, columns, width = self.scores.shape[-2], self.products.shape[-1], v.shape[-1]
        each = rows_of_product(count, width, columns)
        self.weights = workspace.array("scores", v.dtype, self.scores.shape)
        self.transposed = split_matrix(self.weights, each, columns).swapaxes(-1, -2)
        self.v = split_matrix(v, each, width)
        self.parts = workspace.array("parts", v.dtype, (*self.transposed.shape[:-1], v.shape[-1]))
        self.ones = np.ones(count, v.dtype)

    def sums(self) -> tuple[Array, Array]:
        """Sums over the keys of weights, (..., m), and of values, (..., Q, m / Q, V)."""
        total = self.ones @ self.weights
        np.matmul(self.transposed, self.v, out=self.parts)
        return total, np.add.reduce(self.parts, axis=-4)


def split_bands(inputs: TiledInputs, blocks: tuple[int, int]) -> list[Task]:
    """Split the queries of every batch into tasks, the most expensive first.

    Queries with many keys come several tiles at once, those with few keys with several heads at once.
    """
    batch, heads, queries, _ = inputs.q.shape
    whole = queries // blocks[0] * blocks[0]
    together = max(1, min(BAND, batch * heads * whole // blocks[0] // TASKS)) * blocks[0]
    tasks: list[tuple[int, Task]] = []
    for b in range(batch):
        stop = 0
        while stop < queries:
            start, stop = stop, min(stop + blocks[0], queries)
            visible = int(inputs.high[b, stop - 1] - inputs.low[b, start])
            if visible > blocks[1] and stop <= whole:
                stop = min(start + together, whole)
            several = max(1, min(CALL * blocks[1] // max(visible, 1), heads // 2))
            if inputs.sharing > 1:
                several = math.gcd(several, inputs.sharing)
            cost = several * (stop - start) * visible
            tasks += [(cost, (b, some, slice(start, stop))) for some in split_range(0, heads, several)]
    return [task for _, task in sorted(tasks, key=lambda task: -task[0])]


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
    """Heads and log-sum-exps of `attention`, computed tile by tile.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> (..., H, T, V), (..., H, T) float64

    Tiles that are blocked as a whole are skipped, memory grows with T + S, and the result is the same on any number
    of threads. It is exact: in float32 within 2e-6 of the largest value, or 3e-7 times the largest score if that is
    more; scores outside SAFE_RANGE are computed in float64. Where |q| max |k| shows that no exponential can overflow,
    no maximum is subtracted; else each tile subtracts the running maximum, and earlier sums are rescaled (Milakov and
    Gimelshein 2018; Rabe and Staats 2021; Dao et al. 2022); a weight under e^-80 of the largest, in float64 e^-690,
    is then zero. If a few keys are much longer than all others, these sums are of them alone. A query without keys gets
    zeros and -inf, and a key of weight zero adds nothing, NaN and infinity included.

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
        scale = dtype.type(0.5 ** int(v.shape[-2]).bit_length())
        heads, lse = tiled_attention(q, k, v * scale, options, blocks=blocks, threads=threads)
        return (heads / scale).astype(result, copy=False), lse
    inputs, values = prepare_tiles(q, k, options), batched(v)
    reach = np.abs(np.log(largest)).reshape(values.shape[:2]) + math.log(max(v.shape[-2], 1))
    heads, lse = np.empty((*inputs.q.shape[:3], v.shape[-1]), result), np.empty(inputs.q.shape[:3])

    def work(task: Task, workspace: Workspace) -> None:
        group = task[0], inputs.group(task[1])
        lse[task] = _attend_band(inputs, values[group], reach[group].max(), task, blocks, workspace, heads[task])

    run_tasks(work, inputs, split_bands(inputs, blocks), threads)
    return heads.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def _attend_band(
    inputs: TiledInputs, v: Array, reach: float, task: Task, blocks: tuple[int, int], workspace: Workspace, out: Array
) -> Array:
    """Write the heads of a band to `out` (h, m, V); return log-sum-exps (h, m)."""
    batch, _, band = task
    low, high = int(inputs.low[batch, band.start]), int(inputs.high[batch, band.stop - 1])
    dtype, largest = score_dtype(inputs, task)
    limit = 0.0 if inputs.added else min(SAFE_RANGE[v.dtype], RANGE[v.dtype] - reach)
    is_far = find_far_keys(inputs, task, slice(low, high), largest, limit)
    size = min(blocks[0], band.stop - band.start)
    sums = {kind: OnlineSoftmax(inputs, v, task, size, dtype if kind else v.dtype, not kind) for kind in {*is_far}}
    for keys, kind in key_tiles(is_far, low, high, blocks[1]):
        tiles: dict[tuple[int, int], Tile] = {}
        for i, rows in enumerate(sums[kind].rows):
            visible = rows.visible_keys(keys)
            if visible.start < visible.stop:
                at = visible.start, visible.stop
                if at not in tiles:
                    tiles[at] = Tile(rows, v, visible, workspace)
                sums[kind].add(i, tiles[at])
    first, *rest = sums.values()
    for other in rest:
        first.merge(other)
    return first.write(out)


def find_far_keys(inputs: TiledInputs, task: Task, keys: slice, largest: float, limit: float) -> list[bool]:
    """Which blocks of FAR keys may have scores above a limit.

    One value for all if most have, or none.

    largest  a bound of the scores of the task
    """
    if largest <= limit or keys.start >= keys.stop:
        return [False]
    norms = np.atleast_2d(inputs.norms[task[0], inputs.group(task[1])])
    relative = (norms / norms.max(axis=-1, keepdims=True)).max(axis=0)[keys]
    is_near = np.maximum.reduceat(relative, range(0, len(relative), FAR)) * largest <= limit
    return (~is_near).tolist() if np.mean(is_near) >= MOST_NEAR else [True]


def key_tiles(is_far: list[bool], low: int, high: int, size: int) -> Iterator[tuple[slice, bool]]:
    """Split keys into tiles of about one size, each of keys of one kind.

    >>> [*key_tiles([True, False, False], 0, 80, 1024)], [*key_tiles([False], 0, 80, 1024)]
    ([(slice(0, 32, None), True), (slice(32, 80, None), False)], [(slice(0, 80, None), False)])
    """
    start = low
    for kind, run in groupby(is_far):
        stop = high if len(is_far) == 1 else min(start + FAR * len([*run]), high)
        for keys in split_range(start, stop, key_tile_size(stop - start, size)):
            yield keys, kind
        start = stop


def key_tile_size(count: int, size: int) -> int:
    """Keys of a tile: about `size` and a multiple of 128; all if there are few.

    >>> key_tile_size(4096, 1024), key_tile_size(2500, 1024), key_tile_size(1500, 1024)
    (1024, 1280, 1536)
    """
    blocks, unit = (max(2, count // size) if 2 * count > 3 * size else 1), min(size, 128)
    return math.ceil(max(count, 1) / blocks / unit) * unit


class OnlineSoftmax:
    """Running maxima, sums of exponentials and weighted sums of some query tiles."""

    def __init__(self, inputs: TiledInputs, v: Array, task: Task, size: int, exact: DType, is_unshifted: bool) -> None:
        """Take v (h, S, V), tiles of `size`, and scores of dtype `exact`.

        No maximum is subtracted if unshifted.
        """
        self.is_unshifted = is_unshifted
        self.exp, unit = fastest_exp()
        self.rows = make_query_tiles(inputs, task, size, exact, unit if self.is_unshifted else 1.0)
        heads, _, parts, _, columns = self.rows[0].columns.shape
        self.top = np.full((heads, len(self.rows), size), 0 if self.is_unshifted else -np.inf, exact)
        self.total = np.zeros(self.top.shape)
        self.sums = np.zeros((heads, len(self.rows), parts, columns, v.shape[-1]), v.dtype)

    def add(self, i: int, tile: Tile) -> None:
        """Add a tile of keys to a tile of queries."""
        scores = self.rows[i].scores(tile)  # (h, n, m)
        total, sums = self.total[:, i], self.sums[:, i]
        if self.is_unshifted:
            self.rows[i].apply_mask(self.exp(scores, scores), tile.at, fill=0)
        else:
            self.top[:, i], base, decay = update_running_max(self.top[:, i], self.rows[i].apply_mask(scores, tile.at))
            weights = np.subtract(scores, base[..., None, :], out=tile.weights, casting="same_kind")
            np.copyto(weights, -np.inf, where=weights < -RANGE[weights.dtype])  # denormal numbers are slow
            np.exp(weights, out=weights)
            total *= decay
            sums *= decay.reshape(sums.shape[:-1])[..., None]
        ones, parts = tile.sums()
        total += ones
        sums += parts

    def merge(self, other: "OnlineSoftmax") -> None:
        """Add the sums over other keys, whose memory is overwritten."""
        top = np.maximum(self.top, other.top)
        base = np.where(top == -np.inf, 0, top)
        for one in (self, other):
            decay = np.exp(one.top - base)
            one.total *= decay
            one.sums *= decay.astype(one.sums.dtype).reshape(one.sums.shape[:-1])[..., None]
        self.top = top
        self.total += other.total
        self.sums += other.sums

    def write(self, out: Array) -> Array:
        """Write weighted averages to `out` (h, m, V); return log-sum-exps (h, m)."""
        total = np.where(self.total == 0, 1, self.total).astype(self.sums.dtype)
        sums = self.sums.reshape(*total.shape, -1)
        np.divide(sums, total[..., None], out=out.reshape(sums.shape), casting="same_kind")
        return (self.top + np.log(self.total)).reshape(out.shape[:-1])


def update_running_max(top: Array, scores: Array) -> tuple[Array, Array, Array]:
    """Running maximum with a tile's scores, its finite base, and the decay of sums.

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
    """Tiled attention for values with NaN or infinity.

    They count wherever their weight is not zero.
    """
    parts = [np.where(np.isfinite(v), v, 0), v == np.inf, v == -np.inf, np.isnan(v)]
    heads, lse = tiled_attention(q, k, np.concatenate(parts, axis=-1, dtype=v.dtype), options, **settings)
    return add_infinite_values(*np.split(heads, 4, axis=-1)), lse


@quiet
def merge_partial_attention(outputs: Sequence[Array], lses: Sequence[Array]) -> tuple[Array, Array]:
    """Merge attention over parts of the keys (split-KV) into attention over all.

    outputs (..., H, T, V) and lses (..., H, T) of each part -> (..., H, T, V), (..., H, T) float64

    Exact, in any order, and repeatable. A part without keys for a query has a log-sum-exp of -inf there, and adds
    nothing. DataError if shapes differ.

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
            pair = f"output {as_text(output.shape)} and log-sum-exp {as_text(lse.shape)}"
            raise DataError(f"{pair}: expected {as_text(first)} and {as_text(first[:-1])}")
    top = np.max([np.asarray(lse, np.float64) for lse in lses], axis=0)
    base = np.where(top == -np.inf, 0, top)
    total, merged = np.zeros(first[:-1]), np.zeros(first)
    for output, lse in zip(outputs, lses, strict=True):
        weight = np.exp(lse - base)
        total += weight
        merged += np.where(weight[..., None] == 0, 0, weight[..., None] * output)
    merged /= np.where(total == 0, 1, total)[..., None]
    return merged.astype(output_dtype(outputs[0]), copy=False), base + np.log(total)
