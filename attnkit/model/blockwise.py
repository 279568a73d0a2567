"""Attention over blocks of queries and keys: exact, on every core, never holding every query with every key.

A block of scores lies keys first, (n, m), so that what belongs to a query runs along the last axis; blocks of
several heads at once are (h, n, m).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.introspect import opt_func_info
from numpy.typing import ArrayLike

from attnkit.errors import DataError
from attnkit.model import masks
from attnkit.model.embedding import check_ids
from attnkit.model.formula import spread
from attnkit.model.parallel import on_all_cores, spans
from attnkit.model.precision import Array, DType, output_dtype, quiet, working
from attnkit.model.shapes import shown

BLOCKS = (256, 1024)  # queries and keys: what belongs to them, and their scores, stay in a core's own cache
CALL = 2  # blocks of keys, of several heads, in one go at most: each call of NumPy also costs a while
BAND = 16  # blocks of queries at most that take their turns with a block of keys
TASKS = 24  # or more, so that every core has as much to do
COLUMNS = 96  # queries in one product at most
PRODUCT = 128 * COLUMNS * 64  # multiplications in it: up to 10^6 OpenBLAS copies no operand, and is a fifth faster
SMALL = 1 << 21  # scores up to which two threads would hinder each other more than help

# scores up to this size are exact enough in their own dtype, and their exponentials need no maximum subtracted
NEAR: dict[DType, float] = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}
# logarithms up to this size stay clear of overflow and underflow
RANGE: dict[DType, float] = {np.dtype(np.float32): 80.0, np.dtype(np.float64): 690.0}

Task = tuple[int, int | slice, slice]  # batch, head or heads, queries or keys


class Room:
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
class Operands:
    """What scores are made of, and what each query may see: keys from low to high, less what the mask blocks."""

    q: Array  # (B, H, T, K)
    k: Array  # (B, G, S, K)
    bound: Array  # (B, H, T), no scaled product of a query with a key is larger: |q| max |k|
    position: Array  # (B, T), where a query stands among the keys
    low: Array  # (B, T), never falling
    high: Array  # (B, T), never falling
    mask: Array | None  # (B, H, T, S), boolean or added; it may end early, where `high` does
    bias: Array | None  # (B, H, T, S)
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

    def only(self, queries: Array) -> "Operands":
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


class Rows(NamedTuple):
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
        seen = (self.seen(keys) for keys in spans(self.reach[0], self.reach[3], size))
        return (keys for keys in seen if keys.start < keys.stop)

    def scores(self, keys: "Keys") -> Array:
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
            seen = below((self.high - start).tobytes(), keys.stop - start, scores.dtype)
            if fill == 0:  # of finite numbers: several times as fast
                ends *= seen
            else:
                np.copyto(ends, fill, where=seen == 0)
        return scores


@lru_cache(maxsize=4)
def below(high: bytes, count: int, dtype: DType) -> Array:
    """1 where a key, one of so many, is below the end of what a query sees, else 0: (n, m); alike on a diagonal.

    >>> below(np.array([1, 2]).tobytes(), 2, np.dtype(np.float32)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return (np.arange(count)[:, None] < np.frombuffer(high, np.int64)).astype(dtype)


def score_dtype(given: Operands, task: Task) -> tuple[DType, float]:
    """The dtype to compute the scores of a block in, and how large they can be; far ones are no good in float32."""
    size = float(given.bound[task].max())
    return given.q.dtype if size <= NEAR[given.q.dtype] else np.dtype(np.float64), size


def rows(given: Operands, task: Task, size: int, dtype: DType, unit: float = 1.0) -> list[Rows]:
    """The queries of a task in blocks of one size, whose scores are to be of that dtype, in that unit."""
    batch, head, queries = task
    each = even(size, COLUMNS)
    scale = given.scale / given.softcap if given.softcap else given.scale * unit
    q = given.q[batch, head, queries]
    q = q.reshape(*q.shape[:-2], -1, 1, size // each, each, q.shape[-1])
    columns = np.multiply(q.swapaxes(-1, -2), scale, dtype=dtype, order="C")
    position, low, high = (x[batch, queries].reshape(-1, size) for x in (given.position, given.low, given.high))
    ends = (low[:, 0].tolist(), low[:, -1].tolist(), high[:, 0].tolist(), high[:, -1].tolist())
    reach = list(zip(*ends, strict=True))
    k = given.k[batch, given.group(head)]
    mask, bias = (None if x is None else x[batch, head, queries] for x in (given.mask, given.bias))
    return [
        Rows(
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
        for i, part in enumerate(spans(0, queries.stop - queries.start, size))
    ]


def block_of(given: Operands, task: Task, dtype: DType) -> Rows:
    """The queries of a task in a single block."""
    return rows(given, task, task[2].stop - task[2].start, dtype)[0]


@cache
def even(count: int, most: int) -> int:
    """How many of so many to take at once, so that all parts are alike: up to `most`, or all if it would be too few.

    >>> even(1024, 100), even(100, 128), even(101, 96)
    (64, 100, 101)
    """
    return next((each for each in range(min(most, count), 31, -1) if count % each == 0), max(count, 1))


def rows_of_product(count: int, width: int, columns: int) -> int:
    """How many rows of `width`, of so many, to multiply at once with so many columns."""
    return even(count, PRODUCT // max(width * columns, 1))


def cut(x: Array, rows: int, columns: int) -> Array:
    """x in parts of so many rows and columns each, a view: (..., n, m) -> (..., P, Q, n / P, m / Q)."""
    *before, n, m = x.shape
    return x.reshape(*before, n // rows, rows, m // columns, columns).swapaxes(-3, -2)


class Keys:
    """A block of keys, cut for products of a few rows each, and room for the scores of some queries with them."""

    def __init__(self, rows: Rows, at: slice, room: Room) -> None:
        k = rows.k[..., at, :].astype(rows.columns.dtype, copy=False)
        *heads, _, parts, width, columns = rows.columns.shape
        count = at.stop - at.start
        each = rows_of_product(count, width, columns)
        self.at, self.k = at, cut(k, each, width)
        self.scores = room.array("scores", k.dtype, (*heads, count, parts * columns))
        self.products = cut(self.scores, each, columns)


class Tile(Keys):
    """A block of keys and their values, and room for what some queries have to do with them."""

    def __init__(self, rows: Rows, v: Array, at: slice, room: Room) -> None:
        super().__init__(rows, at, room)
        v = v[..., at, :]
        count, columns, width = self.scores.shape[-2], self.products.shape[-1], v.shape[-1]
        each = rows_of_product(count, width, columns)
        self.shares = room.array("scores", v.dtype, self.scores.shape)  # the scores themselves, if of their dtype
        self.turned = cut(self.shares, each, columns).swapaxes(-1, -2)
        self.v = cut(v, each, width)
        self.parts = room.array("parts", v.dtype, (*self.turned.shape[:-1], v.shape[-1]))
        self.ones = np.ones(count, v.dtype)

    def sums(self) -> tuple[Array, Array]:
        """The sums over the keys of the shares, (..., m), and of the values in such shares, (..., Q, m / Q, V)."""
        total = self.ones @ self.shares
        np.matmul(self.turned, self.v, out=self.parts)
        return total, np.add.reduce(self.parts, axis=-4)


def norms(x: Array) -> Array:
    """The length of each vector: (..., K) -> (...)."""
    squares: Array = np.einsum("...k,...k->...", x, x)
    return np.sqrt(squares)


def batched(x: Array) -> Array:
    """x with a batch axis: (H, T, K) -> (1, H, T, K)."""
    return x if x.ndim == 4 else x[None]


def operands(
    q: Array,
    k: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    align: str | None = None,
    window: tuple[int, int] = (-1, -1),
    lengths: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    past: int = 0,
) -> Operands:
    """The options of `attention` as a block needs them; nothing here is of every query with every key.

    q (..., H, T, K), k (..., G, S, K) of the dtype to compute in

    DataError where mask or bias do not fit, UsageError for what is no window or alignment.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    mask, bias = spread(mask, bias, (*q.shape[:-1], keys))
    seen = keys if mask is None else mask.shape[-1]
    mask, bias = (None if x is None else batched(x) for x in (mask, bias))
    if lengths is not None:
        lengths = check_ids(lengths, keys + 1, "length")
    masks.window(0, 0, *window)  # refuses what is none
    offset = masks.causal_offset(queries, keys, align=align, past=past, lengths=lengths)
    q, k = batched(q), batched(k)
    position = np.broadcast_to(np.arange(queries) + np.reshape(offset, (-1, 1)), (len(q), queries))
    low, high = np.zeros_like(position), np.full_like(position, seen)
    if lengths is not None:
        high = np.minimum(high, np.reshape(lengths, (-1, 1)))
    if window[0] >= 0:
        low = np.maximum(low, position - window[0])
    for right in [0] * causal + [window[1]] * (window[1] >= 0):
        high = np.minimum(high, position + right + 1)
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    longest = np.repeat(norms(k).max(axis=-1, initial=0), q.shape[1] // k.shape[1], axis=1)  # (B, H)
    return Operands(
        q,
        k,
        bound=abs(scale) * norms(q) * longest[..., None],
        position=position,
        low=low,
        high=np.maximum(high, 0),
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=float(softcap),
    )


def tasks_of(given: Operands, length: int, step: int) -> list[Task]:
    """The blocks of an axis of some length, of every batch and head; the last first, which see most when causal."""
    batch, heads = given.q.shape[:2]
    return [(b, h, part) for part in [*spans(0, length, step)][::-1] for b in range(batch) for h in range(heads)]


def bands_of(given: Operands, blocks: tuple[int, int]) -> list[Task]:
    """The queries of every batch in bands, each of blocks of one size; what takes longest comes first.

    Queries that see many keys come several blocks at once, those that see few with several heads at once.
    """
    batch, heads, queries, _ = given.q.shape
    whole = queries // blocks[0] * blocks[0]
    together = max(1, min(BAND, batch * heads * whole // blocks[0] // TASKS)) * blocks[0]
    tasks: list[tuple[int, Task]] = []
    for b in range(batch):
        stop = 0
        while stop < queries:
            start, stop = stop, min(stop + blocks[0], queries)
            seen = int(given.high[b, stop - 1] - given.low[b, start])
            if seen > blocks[1] and stop <= whole:
                stop = min(start + together, whole)
            several = max(1, min(CALL * blocks[1] // max(seen, 1), heads // 2))
            if given.sharing > 1:
                several = math.gcd(several, given.sharing)
            cost = several * (stop - start) * seen
            tasks += [(cost, (b, some, slice(start, stop))) for some in spans(0, heads, several)]
    return [task for _, task in sorted(tasks, key=lambda one: -one[0])]


def shared(work: Callable[[Task, Room], None], given: Operands, tasks: list[Task], threads: int | None) -> None:
    """Calls `work` on every core, for each task, with the room of its thread.

    The tasks do not depend on the number of threads; little work is done in one.
    """

    @quiet
    def run(tasks: Iterator[Task]) -> None:
        room = Room()
        for task in tasks:
            work(task, room)

    on_all_cores(run, tasks, 1 if math.prod((*given.q.shape[:3], given.k.shape[2])) < SMALL else threads)


@quiet
def blockwise_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    blocks: tuple[int, int] = BLOCKS,
    threads: int | None = None,
    **options: Any,
) -> tuple[Array, Array]:
    """The heads of `attention` and the logarithm of the sum of each query's exponentials, block by block.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> (..., H, T, V), (..., H, T) float64

    `options` are those of `operands`. What a query may not see is not computed where it fills a block, memory
    grows with T + S, and the result is the same on any number of threads. It is exact: in float32 within 2e-6
    of the largest value, far scores included, which are computed in float64. Where |q| max |k| shows that no
    exponential can overflow, none is shifted; else each block is shifted by the largest score so far, and what
    came before it faded accordingly (Milakov and Gimelshein 2018; Rabe and Staats 2021; Dao et al. 2022); a
    weight under e^-80 of the largest, in float64 e^-690, is then zero. A query that sees nothing gets zeros and
    -inf, and a key of weight zero adds nothing, NaN and infinity included.

    >>> x = np.eye(2)[None]
    >>> heads, lse = blockwise_attention(x, x, x, causal=True)
    >>> heads.round(4).tolist(), lse.round(4).tolist()
    ([[[1.0, 0.0], [0.3302, 0.6698]]], [[0.7071, 1.1079]])
    """
    result, dtype = output_dtype(q), working(q, k, v)
    q, k, v = (np.asarray(x, dtype) for x in (q, k, v))
    largest = np.maximum(v.max(axis=(-1, -2), initial=0), -v.min(axis=(-1, -2), initial=0))
    if not np.isfinite(largest).all():
        heads, lse = _with_infinite_values(q, k, v, blocks=blocks, threads=threads, **options)
        return heads.astype(result, copy=False), lse
    given, values = operands(q, k, **options), batched(v)
    reach = np.abs(np.log(largest)).reshape(values.shape[:2]) + math.log(max(v.shape[-2], 1))
    heads, lse = np.empty((*given.q.shape[:3], v.shape[-1]), result), np.empty(given.q.shape[:3])

    def work(task: Task, room: Room) -> None:
        group = task[0], given.group(task[1])
        lse[task] = _average(given, values[group], reach[group].max(), task, blocks, room, heads[task])

    shared(work, given, bands_of(given, blocks), threads)
    return heads.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def _average(
    given: Operands, v: Array, reach: float, task: Task, blocks: tuple[int, int], room: Room, out: Array
) -> Array:
    """Writes the averages of a band of queries to `out` (h, m, V), and gives the logarithms of their sums: (h, m)."""
    batch, _, band = task
    averages = Averages(given, v, reach, task, min(blocks[0], band.stop - band.start))
    low, high = int(given.low[batch, band.start]), int(given.high[batch, band.stop - 1])
    for keys in spans(low, high, key_block(high - low, blocks[1])):
        tiles: dict[tuple[int, int], Tile] = {}
        for i, rows in enumerate(averages.rows):
            seen = rows.seen(keys)
            if seen.start < seen.stop:
                at = seen.start, seen.stop
                if at not in tiles:
                    tiles[at] = Tile(rows, v, seen, room)
                averages.add(i, tiles[at])
    return averages.written(out)


def key_block(count: int, size: int) -> int:
    """How many keys of so many make a block: about `size`, and easily cut; all if they are few.

    >>> key_block(4096, 1024), key_block(2500, 1024), key_block(2000, 1024)
    (1024, 1280, 2048)
    """
    blocks, unit = (count // size if count > 2 * size else 1), min(size, 128)
    return math.ceil(max(count, 1) / blocks / unit) * unit


class Averages:
    """The averages over the values for some blocks of queries, as they grow with each block of keys."""

    def __init__(self, given: Operands, v: Array, reach: float, task: Task, size: int) -> None:
        """v (h, S, V); blocks of `size`; logarithms of sums times values are no larger than scores plus reach."""
        exact, largest = score_dtype(given, task)
        self.plain = not given.added and largest <= NEAR[v.dtype] and largest + reach < RANGE[v.dtype]
        self.power, unit = fastest_power()
        self.rows = rows(given, task, size, exact, unit if self.plain else 1.0)
        heads, _, parts, _, columns = self.rows[0].columns.shape
        self.top = np.full((heads, len(self.rows), size), 0 if self.plain else -np.inf, exact)
        self.total = np.zeros(self.top.shape)
        self.sums = np.zeros((heads, len(self.rows), parts, columns, v.shape[-1]), v.dtype)

    def add(self, i: int, tile: Tile) -> None:
        """What a block of queries sees of a block of keys."""
        scores = self.rows[i].scores(tile)  # (h, n, m)
        total, sums = self.total[:, i], self.sums[:, i]
        if self.plain:
            self.rows[i].block(self.power(scores, scores), tile.at, fill=0)
        else:
            self.top[:, i], base, faded = risen(self.top[:, i], self.rows[i].block(scores, tile.at))
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
def fastest_power() -> tuple[np.ufunc, float]:
    """The faster of exp and exp2, and the unit in which it takes its argument: exp2, where NumPy has it in vectors."""
    built = opt_func_info(func_name="^exp2$").get("exp2", {}).get("ff", {}).get("current", "baseline")
    return (np.exp, 1.0) if built.startswith("baseline") else (np.exp2, math.log2(math.e))


def risen(top: Array, scores: Array) -> tuple[Array, Array, Array]:
    """The largest scores once a block is seen, what to subtract for none above 0, and what is left of before.

    top (..., m), scores (..., n, m) -> (..., m), (..., m), (..., m)

    >>> risen(np.array([1.0, -np.inf]), np.array([[3.0, -np.inf], [2.0, -np.inf]]))[:2]
    (array([  3., -inf]), array([3., 0.]))
    """
    higher = np.maximum(top, scores.max(axis=-2))
    base = np.where(higher == -np.inf, 0, higher).astype(scores.dtype)
    return higher, base, np.exp(top - base)


def _with_infinite_values(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    """The same for values of which some are NaN or infinite: they count where their weight is not zero."""
    parts = [np.where(np.isfinite(v), v, 0), v == np.inf, v == -np.inf, np.isnan(v)]
    heads, lse = blockwise_attention(q, k, np.concatenate(parts, axis=-1, dtype=v.dtype), **options)
    finite, above, below, nan = np.split(heads, 4, axis=-1)
    for weight, value in ((above, np.inf), (below, -np.inf), (nan, np.nan)):
        finite = finite + np.where(weight > 0, value, 0).astype(finite.dtype)
    return finite, lse


@quiet
def merge(outputs: Sequence[Array], lses: Sequence[Array]) -> tuple[Array, Array]:
    """Attention over all keys from attention over parts of them: exact, in any order, and again mergeable.

    outputs (..., H, T, V) and lses (..., H, T) of each part -> (..., H, T, V), (..., H, T) float64

    A part in which a query sees nothing has -inf there, and adds nothing. DataError where shapes differ.

    >>> output, lse = merge([np.array([[[1.0]]]), np.array([[[4.0]]])], [np.array([[0.0]]), np.log([[2.0]])])
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
