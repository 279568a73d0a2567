"""Blocks of queries and keys: what each query may see of the keys, and the scores of one block with another.

A block of scores lies keys first, (n, m), so that what belongs to a query runs along the last axis; blocks of
several heads at once are (h, n, m).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from attnkit.model import masks
from attnkit.model.dense_attention import broadcast_mask
from attnkit.model.dtypes import Array, DType, is_float, quiet
from attnkit.model.embedding import check_ids
from attnkit.model.kernels.threads import run_parallel, split_range
from attnkit.model.options import AttentionOptions

COLUMNS = 96  # queries in one product at most
PRODUCT = 128 * COLUMNS * 64  # multiplications in it: up to 10^6 OpenBLAS copies no operand, and is a fifth faster
SMALL = 1 << 21  # scores up to which two threads would hinder each other more than help

# scores up to this size are exact enough in their own dtype, and their exponentials need no maximum subtracted
SAFE_RANGE: dict[DType, float] = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}

Task = tuple[int, int | slice, slice]  # batch, head or heads, queries or keys


class Workspace:
    """Memory that a thread uses again for one block after the other."""

    def __init__(self) -> None:
        self.memory: dict[tuple[str, DType], Array] = {}

    def array(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        """An array of that shape, with whatever was left in the last of that name and dtype."""
        size, memory = math.prod(shape), self.memory.get((name, dtype))
        if memory is None or len(memory) < size:
            memory = self.memory[name, dtype] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


@dataclass(frozen=True)
class TiledInputs:
    """What scores are made of, and what each query may see: keys from low to high, less what the mask blocks."""

    q: Array  # (B, H, T, K)
    k: Array  # (B, G, S, K)
    bound: Array  # (B, H, T), no scaled product of a query with a key is larger: |q| max |k|
    position: Array  # (B, T), where a query stands among the keys
    low: Array  # (B, T), never falling
    high: Array  # (B, T), never falling
    mask: Array | None  # (B, H, T, S), boolean or added; it may end early, where `high` does
    bias: Array | None  # (B, H, T, S)
    level: float  # how far from 0 mask and bias can put the scores that count
    scale: float
    softcap: float

    @property
    def added(self) -> bool:
        """Whether something is added to the scores, so that nothing is known of their size."""
        return self.bias is not None or (self.mask is not None and self.mask.dtype != bool)

    @property
    def sharing(self) -> int:
        """How many query heads look at one key head."""
        return int(self.q.shape[1] // self.k.shape[1])

    def group(self, head: int | slice) -> int | slice:
        """The key head that a query head looks at; for several heads, which are of one group or alone in theirs."""
        if isinstance(head, int):
            return head // self.sharing
        return slice(head.start // self.sharing, (head.stop - 1) // self.sharing + 1)

    def only(self, queries: Array) -> "TiledInputs":
        """The same for some of the queries, in their order."""
        return replace(
            self,
            q=self.q[:, :, queries],
            bound=self.bound[:, :, queries],
            position=self.position[:, queries],
            low=self.low[:, queries],
            high=self.high[:, queries],
            mask=None if self.mask is None else self.mask[:, :, queries],
            bias=None if self.bias is None else self.bias[:, :, queries],
        )


class QueryTile(NamedTuple):
    """A block of queries of one head, or of several, and all that their scores depend on."""

    columns: Array  # (..., 1, Q, K, m / Q), the queries, scaled, in parts as products want them
    k: Array  # (..., S, K)
    position: Array  # (m,)
    low: Array  # (m,)
    high: Array  # (m,)
    reach: tuple[int, int, int, int]  # some see keys from the first to the last of these, all what is between the rest
    mask: Array | None  # (..., m, S)
    bias: Array | None  # (..., m, S)
    softcap: float

    def seen(self, keys: slice) -> slice:
        """The part of a block of keys that some of these queries may see, which can be nothing."""
        first, last = max(keys.start, self.reach[0]), min(keys.stop, self.reach[3])
        if self.mask is not None and self.mask.dtype == bool and not self.mask[..., first:last].any():
            last = first
        return slice(first, max(first, last))

    def key_blocks(self, size: int) -> Iterator[slice]:
        """The blocks of keys that some of these queries may see."""
        seen = (self.seen(keys) for keys in split_range(self.reach[0], self.reach[3], size))
        return (keys for keys in seen if keys.start < keys.stop)

    def scores(self, keys: "KeyTile") -> Array:
        """The scores of these queries with a block of keys, blocked ones included, in its room: (..., n, m)."""
        s = keys.scores
        np.matmul(keys.k, self.columns, out=keys.products)
        if self.softcap:
            np.multiply(np.tanh(s, out=s), self.softcap, out=s)
        if self.bias is not None:
            s += np.swapaxes(self.bias[..., keys.at], -1, -2)
        if self.mask is not None and self.mask.dtype != bool:
            mask = np.swapaxes(self.mask[..., keys.at], -1, -2)
            s[..., : mask.shape[-2], :] += mask
        return s

    def block(self, scores: Array, keys: slice, fill: float = -np.inf) -> Array:
        """The scores of a block of keys, or what was made of them, with `fill` where blocked: (..., n, m), in place."""
        if self.mask is not None:
            mask = np.swapaxes(self.mask[..., keys], -1, -2)
            blocked = ~mask if mask.dtype == bool else mask == -np.inf
            np.copyto(scores[..., : mask.shape[-2], :], fill, where=blocked)
        _, first, last, _ = self.reach
        if keys.start < first:
            j = np.arange(keys.start, min(first, keys.stop))[:, None]
            np.copyto(scores[..., : len(j), :], fill, where=j < self.low)
        if keys.stop > last:
            start = max(last, keys.start)
            ends = scores[..., start - keys.stop :, :]
            seen = causal_edge((self.high - start).tobytes(), keys.stop - start, scores.dtype)
            if fill == 0:  # of finite numbers: several times as fast
                ends *= seen
            else:
                np.copyto(ends, fill, where=seen == 0)
        return scores


@lru_cache(maxsize=4)
def causal_edge(high: bytes, count: int, dtype: DType) -> Array:
    """1 where a key, one of so many, is below the end of what a query sees, else 0: (n, m); alike on a diagonal.

    >>> causal_edge(np.array([1, 2]).tobytes(), 2, np.dtype(np.float32)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return (np.arange(count)[:, None] < np.frombuffer(high, np.int64)).astype(dtype)


def score_dtype(given: TiledInputs, task: Task) -> tuple[DType, float]:
    """The dtype to compute the scores of a block in, and how large they can be; far ones are no good in float32."""
    size = float(given.bound[task].max()) + given.level
    return given.q.dtype if size <= SAFE_RANGE[given.q.dtype] else np.dtype(np.float64), size


def blocks_of(given: TiledInputs, task: Task, size: int, dtype: DType, unit: float = 1.0) -> list[QueryTile]:
    """The queries of a task in blocks of one size, whose scores are to be of that dtype, in that unit."""
    batch, head, queries = task
    each = even_split(size, COLUMNS)
    scale = given.scale / given.softcap if given.softcap else given.scale * unit
    q = given.q[batch, head, queries]
    q = q.reshape(*q.shape[:-2], (queries.stop - queries.start) // max(size, 1), 1, size // each, each, q.shape[-1])
    columns = np.multiply(q.swapaxes(-1, -2), scale, dtype=dtype, order="C")
    position, low, high = (x[batch, queries].reshape(-1, size) for x in (given.position, given.low, given.high))
    ends = (low[:, 0].tolist(), low[:, -1].tolist(), high[:, 0].tolist(), high[:, -1].tolist())
    reach = list(zip(*ends, strict=True))
    k = given.k[batch, given.group(head)]
    mask, bias = (None if x is None else x[batch, head, queries] for x in (given.mask, given.bias))
    return [
        QueryTile(
            columns[..., i, :, :, :, :],
            k,
            position[i],
            low[i],
            high[i],
            reach[i],
            None if mask is None else mask[..., part, :],
            None if bias is None else bias[..., part, :],
            given.softcap * unit,
        )
        for i, part in enumerate(split_range(0, queries.stop - queries.start, size))
    ]


def block_of(given: TiledInputs, task: Task, dtype: DType) -> QueryTile:
    """The queries of a task in a single block."""
    return blocks_of(given, task, task[2].stop - task[2].start, dtype)[0]


@cache
def even_split(count: int, most: int) -> int:
    """How many of so many to take at once, so that all parts are alike: up to `most`, or all if it would be too few.

    >>> even_split(1024, 100), even_split(100, 128), even_split(101, 96)
    (64, 100, 101)
    """
    return next((each for each in range(min(most, count), 31, -1) if count % each == 0), max(count, 1))


def rows_of_product(count: int, width: int, columns: int) -> int:
    """How many rows of `width`, of so many, to multiply at once with so many columns."""
    return even_split(count, PRODUCT // max(width * columns, 1))


def cut(x: Array, rows: int, columns: int) -> Array:
    """x in parts of so many rows and columns each, a view: (..., n, m) -> (..., P, Q, n / P, m / Q)."""
    *before, n, m = x.shape
    return x.reshape(*before, n // rows, rows, m // max(columns, 1) or 1, columns).swapaxes(-3, -2)


class KeyTile:
    """A block of keys, cut for products of a few rows each, and room for the scores of some queries with them."""

    def __init__(self, rows: QueryTile, at: slice, room: Workspace) -> None:
        k = rows.k[..., at, :].astype(rows.columns.dtype, copy=False)
        *heads, _, parts, width, columns = rows.columns.shape
        count = at.stop - at.start
        each = rows_of_product(count, width, columns)
        self.at, self.k = at, cut(k, each, width)
        self.scores = room.array("scores", k.dtype, (*heads, count, parts * columns))
        self.products = cut(self.scores, each, columns)


def row_norms(x: Array) -> Array:
    """The length of each vector: (..., K) -> (...)."""
    squares: Array = np.einsum("...k,...k->...", x, x)
    return np.sqrt(squares)


def batched(x: Array) -> Array:
    """x with a batch axis: (H, T, K) -> (1, H, T, K)."""
    return x if x.ndim == 4 else x[None]


def prepare_inputs(q: Array, k: Array, options: AttentionOptions) -> TiledInputs:
    """Return queries, keys and options as tiles need them; nothing here is of every query with every key.

    q (..., H, T, K), k (..., G, S, K) of the dtype to compute in

    DataError where mask or bias do not broadcast, UsageError for an invalid window or alignment.
    """
    queries, keys, mask, bias = q.shape[-2], k.shape[-2], options.mask, options.bias
    level = sum(max_bias(x) for x in (mask, bias) if x is not None and is_float(x.dtype))
    mask, bias = broadcast_mask(mask, bias, (*q.shape[:-1], keys), q.dtype)
    limit = keys if mask is None else mask.shape[-1]
    q, k = batched(q), batched(k)
    position, low, high = key_ranges(len(q), queries, keys, limit, options)
    scale = options.scale_for(q.shape[-1])
    longest = np.repeat(row_norms(k).max(axis=-1, initial=0), q.shape[1] // k.shape[1], axis=1)  # (B, H)
    return TiledInputs(
        q,
        k,
        bound=abs(scale) * row_norms(q) * longest[..., None],
        position=position,
        low=low,
        high=high,
        mask=None if mask is None else batched(mask),
        bias=None if bias is None else batched(bias),
        level=level,
        scale=scale,
        softcap=float(options.softcap),
    )


def key_ranges(
    batch: int, queries: int, keys: int, limit: int, options: AttentionOptions
) -> tuple[Array, Array, Array]:
    """Return each query's position, and the first and past-the-last key it may attend to below a limit: (B, T) each.

    >>> [x.tolist() for x in key_ranges(1, 3, 3, 3, AttentionOptions(causal=True, window=(1, -1)))]
    [[[0, 1, 2]], [[0, 0, 1]], [[1, 2, 3]]]
    """
    lengths, (left, right) = options.lengths, options.window
    if lengths is not None:
        lengths = check_ids(lengths, keys + 1, "length")
    masks.window_mask(0, 0, left, right)  # UsageError for an invalid window
    offset = options.replace(lengths=lengths).offset(queries, keys)
    position = np.broadcast_to(np.arange(queries) + np.reshape(offset, (-1, 1)), (batch, queries))
    low, high = np.zeros_like(position), np.full_like(position, limit)
    if lengths is not None:
        high = np.minimum(high, np.reshape(lengths, (-1, 1)))
    if left >= 0:
        low = np.maximum(low, position - left)
    for bound in [0] * options.causal + [right] * (right >= 0):
        high = np.minimum(high, position + bound + 1)
    return position, low, np.maximum(high, 0)


def max_bias(added: Array) -> float:
    """How far from 0 the largest number of a row can be, of what is added to scores; -inf is nothing.

    added (..., S) -> ()

    >>> max_bias(np.array([[0.0, -1000.0], [-3.0, -7.0], [-np.inf, -np.inf]]))
    3.0
    """
    top = np.atleast_1d(added).max(axis=-1, initial=-np.inf).astype(np.float64)
    return float(np.abs(top).max(initial=0, where=np.isfinite(top)))


def tasks_of(given: TiledInputs, length: int, step: int) -> list[Task]:
    """The blocks of an axis of some length, of every batch and head; the last first, which see most when causal."""
    batch, heads = given.q.shape[:2]
    return [(b, h, part) for part in [*split_range(0, length, step)][::-1] for b in range(batch) for h in range(heads)]


def run_tiles(
    work: Callable[[Task, Workspace], None], given: TiledInputs, tasks: list[Task], threads: int | None
) -> None:
    """Calls `work` on every core, for each task, with the room of its thread.

    The tasks do not depend on the number of threads; little work is done in one.
    """

    @quiet
    def run(tasks: Iterator[Task]) -> None:
        room = Workspace()
        for task in tasks:
            work(task, room)

    run_parallel(run, tasks, 1 if math.prod((*given.q.shape[:3], given.k.shape[2])) < SMALL else threads)
