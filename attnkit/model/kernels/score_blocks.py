"""Blocks of scores with their queries first, (b, g, m, n), as an adjoint multiplies them from both sides.

A block is of several rows of the batch and several heads at once, as each NumPy call has a fixed cost.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from attnkit.model.dense_attention import broadcast_mask
from attnkit.model.dtypes import Array, DType, quiet
from attnkit.model.kernels.threads import run_parallel, split_range
from attnkit.model.kernels.tiles import SAFE_RANGE, Workspace, batched, key_ranges
from attnkit.model.options import AttentionOptions

ROWS = (64, 128)  # queries of a block of short and of long texts: fewer have fewer keys that are blocked when causal
LONG = 512  # number of queries from which on a text is long
KEYS = 512  # maximum number of its keys, where scores are not kept
CELLS = 1 << 17  # its scores, approximately
FEW = 1 << 16  # number of scores up to which one thread is faster than two
PARTS = 2  # minimum number of parts of batch and heads

Task = TypeVar("Task")


@dataclass(frozen=True)
class BlockInputs:
    """Queries, keys and options, and which keys each query may attend to: low to high, unless masked."""

    q: Array  # (B, H, T, K)
    k: Array  # (B, G, S, K)
    low: Array  # (B, T), non-decreasing
    high: Array  # (B, T), non-decreasing
    mask: Array | None  # (B, H, T, S), boolean or added; it may be shorter than S, as `high` is then
    bias: Array | None  # (B, H, T, S)
    scale: float
    softcap: float
    is_alike: bool  # whether low and high are the same in every row of the batch

    @property
    def unit(self) -> float:
        """The factor on the products of queries and keys: the scale, divided by the cap."""
        return self.scale / self.softcap if self.softcap else self.scale


class BatchPart(NamedTuple):
    """Rows of the batch and key heads that are computed at once."""

    batch: slice
    groups: slice


class ScoreBlock(NamedTuple):
    """Some queries of one head of each group of a part, and the keys that any of them may attend to."""

    batch: slice
    heads: slice
    groups: slice
    rows: slice
    keys: slice

    @property
    def queries(self) -> tuple[slice, slice, slice]:
        """The index of these queries in an array (B, H, T, ...)."""
        return self.batch, self.heads, self.rows

    @property
    def sources(self) -> tuple[slice, slice, slice]:
        """The index of these keys in an array (B, G, S, ...)."""
        return self.batch, self.groups, self.keys

    @property
    def cells(self) -> tuple[slice, slice, slice, slice]:
        """The index of these scores in an array (B, H, T, S)."""
        return self.batch, self.heads, self.rows, self.keys


def prepare_blocks(q: Array, k: Array, options: AttentionOptions) -> BlockInputs:
    """Return queries, keys and options as blocks need them; nothing here is of every query with every key.

    q (..., H, T, K), k (..., G, S, K) of the dtype to compute in

    DataError where mask or bias do not broadcast, UsageError for an invalid window or alignment.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    mask, bias = broadcast_mask(options.mask, options.bias, (*q.shape[:-1], keys), q.dtype)
    q, k = batched(q), batched(k)
    limit = keys if mask is None else mask.shape[-1]
    low, high = _key_ranges(len(q), queries, keys, limit, options)
    mask, bias = (None if x is None else batched(x) for x in (mask, bias))
    scale, softcap, is_alike = options.scale_for(q.shape[-1]), float(options.softcap), options.lengths is None
    return BlockInputs(q, k, low, high, mask, bias, scale, softcap, is_alike)


def _key_ranges(batch: int, queries: int, keys: int, limit: int, options: AttentionOptions) -> tuple[Array, Array]:
    """Return the first and past-the-last key that each query may attend to: (B, T) each."""
    if options.lengths is not None:
        return key_ranges(batch, queries, keys, limit, options)[1:]
    low, high = _repeated_ranges(
        queries, keys, limit, options.causal, options.align, tuple(options.window), options.past
    )
    return np.broadcast_to(low, (batch, queries)), np.broadcast_to(high, (batch, queries))


@lru_cache(maxsize=16)
def _repeated_ranges(
    queries: int, keys: int, limit: int, causal: bool, align: str | None, window: tuple[int, int], past: int
) -> tuple[Array, Array]:
    """Return the same of one row of the batch, (1, T) each; cached, as steps of training repeat it."""
    options = AttentionOptions(causal=causal, align=align, window=window, past=past)
    return key_ranges(1, queries, keys, limit, options)[1:]


def split_parts(inputs: BlockInputs, keys: int, by_heads: bool = False) -> list[list[BatchPart]]:
    """Split batch and heads into tasks of parts whose blocks, with that many keys, have about CELLS scores.

    A task is a single part or, `by_heads`, every row of the batch of some heads.
    """
    batch, groups = inputs.k.shape[:2]
    pairs = max(1, CELLS // max(1, row_blocks(inputs)[0].stop * keys))
    pairs = min(pairs, math.ceil((groups if by_heads else batch * groups) / PARTS))
    heads = min(pairs, groups)
    rows = max(1, pairs // groups) if inputs.is_alike and not by_heads else 1
    across = [[BatchPart(b, g) for b in split_range(0, batch, rows)] for g in split_range(0, groups, heads)]
    return across if by_heads else [[part] for parts in across for part in parts]


def row_blocks(inputs: BlockInputs) -> list[slice]:
    """Return the queries of each block of a head, of which there is at least one."""
    queries = inputs.q.shape[2]
    return list(split_range(0, queries, ROWS[queries >= LONG]))


def visible_block(inputs: BlockInputs, part: BatchPart, shared: int, rows: slice, keys: slice) -> ScoreBlock:
    """Return the block of some queries, with those of some keys that any of them may attend to, which can be none.

    The heads are the `shared`-th of each group.
    """
    row, sharing = part.batch.start, inputs.q.shape[1] // inputs.k.shape[1]
    start = max(keys.start, int(inputs.low[row, rows.start]))
    stop = max(start, min(keys.stop, int(inputs.high[row, rows.stop - 1])))
    heads = slice(part.groups.start * sharing + shared, part.groups.stop * sharing, sharing)
    return ScoreBlock(part.batch, heads, part.groups, rows, slice(start, stop))


def block_scores(inputs: BlockInputs, block: ScoreBlock, dtype: DType, workspace: Workspace) -> Array:
    """Return the products of the queries and keys of a block, scaled and divided by the cap: (b, g, m, n)."""
    q = np.multiply(inputs.q[block.queries], inputs.unit, dtype=dtype)
    k = inputs.k[block.sources].astype(dtype, copy=False)
    scores = workspace.array("scores", dtype, (*q.shape[:-1], k.shape[-2]))
    return np.matmul(q, np.swapaxes(k, -1, -2), out=scores)


def add_to_scores(inputs: BlockInputs, block: ScoreBlock, scores: Array) -> Array:
    """Cap the scores of a block, if they are to be, and add bias and float mask, in place."""
    if inputs.softcap:
        np.multiply(np.tanh(scores, out=scores), inputs.softcap, out=scores)
    if inputs.bias is not None:
        scores += inputs.bias[block.cells]
    if inputs.mask is not None and inputs.mask.dtype != bool:
        scores += inputs.mask[block.cells]
    return scores


def exact_scores(inputs: BlockInputs, block: ScoreBlock, workspace: Workspace) -> tuple[Array, bool]:
    """Return the scores of a block, and whether they are small; if they are not, they are -inf where blocked.

    -> (b, g, m, n), in float64 where the largest of a row is far from 0

    Exponentials of small scores neither overflow nor underflow, so blocked ones can be set to 0 after it.
    """
    dtype = inputs.q.dtype
    scores = add_to_scores(inputs, block, block_scores(inputs, block, dtype, workspace))
    limit = SAFE_RANGE[dtype]
    if not scores.size or (scores.max() <= limit and scores.min() >= -limit):
        return scores, True
    fill_blocked(inputs, block, scores, -np.inf)
    top = np.abs(scores.max(axis=-1))
    if dtype != np.float64 and not ((top <= limit) | (top == np.inf)).all():
        scores = add_to_scores(inputs, block, block_scores(inputs, block, np.dtype(np.float64), workspace))
        fill_blocked(inputs, block, scores, -np.inf)
    return scores, False


def fill_blocked(inputs: BlockInputs, block: ScoreBlock, x: Array, fill: float) -> None:
    """Set a block of scores to -inf, or of finite functions of them to 0, where attention is blocked, in place."""
    mask = inputs.mask
    if mask is not None:
        blocked = ~mask[block.cells] if mask.dtype == bool else mask[block.cells] == -np.inf
        np.copyto(x, fill, where=blocked)
    row, start = block.batch.start, block.keys.start
    low, high = inputs.low[row, block.rows] - start, inputs.high[row, block.rows] - start
    if len(low) and (low[-1] > 0 or high[0] < x.shape[-1]):
        allowed = allowed_cells(low.tobytes(), high.tobytes(), x.shape[-1], x.dtype)
        if fill == 0:  # the values are finite, so a product is the same and several times as fast
            x *= allowed
        else:
            np.copyto(x, fill, where=allowed == 0)


@lru_cache(maxsize=16)
def allowed_cells(low: bytes, high: bytes, count: int, dtype: DType) -> Array:
    """Return 1 from the first to before the last key of each query, else 0: (m, count); cached, as diagonals repeat.

    >>> allowed_cells(np.array([0, 1]).tobytes(), np.array([1, 3]).tobytes(), 3, np.dtype(float))
    array([[1., 0., 0.],
           [0., 1., 1.]])
    """
    first, last = (np.frombuffer(ends, np.int64)[:, None] for ends in (low, high))
    keys = np.arange(count)
    return ((first <= keys) & (keys < last)).astype(dtype)


def run_blocks(
    work: Callable[[Task, Workspace], None], tasks: Iterable[Task], scores: int, threads: int | None
) -> None:
    """Call `work` for each task with the workspace of its thread, on every core unless there are few scores."""

    @quiet
    def run(tasks: Iterator[Task]) -> None:
        workspace = Workspace()
        for task in tasks:
            work(task, workspace)

    run_parallel(run, tasks, 1 if scores < FEW else threads)
