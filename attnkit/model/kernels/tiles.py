"""Tiles of queries and keys: their scores, and which keys may be attended to.

A tile of scores has its keys first, (n, m), so that per-query values run along the last axis; tiles of several
heads at once are (h, n, m).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from attnkit.model.dtypes import Array, DType, is_float, quiet
from attnkit.model.formulas import masks
from attnkit.model.formulas.dense_attention import AttentionOptions, broadcast_mask
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.processor.threads import run_parallel, split_range

COLUMNS = 96  # maximum number of queries in one product
PRODUCT = 128 * COLUMNS * 64  # multiplications in it: up to 10^6 OpenBLAS copies no operand, and is 20 % faster
SMALL = 1 << 21  # number of scores up to which one thread is faster than two

# scores up to this size are exact enough in their own dtype, and their exponentials need no maximum subtracted
SAFE_RANGE: dict[DType, float] = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}

Task = tuple[int, int | slice, slice]  # batch, head or heads, queries or keys
AnyTask = TypeVar("AnyTask")


class Workspace:
    """Buffers that a thread reuses for one tile after another."""

    def __init__(self) -> None:
        self.memory: dict[tuple[str, DType], Array] = {}

    def array(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Uninitialized array that shares memory with the last of its name and dtype."""
        size, memory = math.prod(shape), self.memory.get((name, dtype))
        if memory is None or len(memory) < size:
            memory = self.memory[name, dtype] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


@dataclass(frozen=True)
class ScoreInputs:
    """Queries, keys and options, and the keys from low to high of each query."""

    q: Array  # (B, H, T, K)
    k: Array  # (B, G, S, K)
    position: Array  # (B, T), position of a query among the keys
    low: Array  # (B, T), non-decreasing
    high: Array  # (B, T), non-decreasing
    mask: Array | None  # (B, H, T, S), boolean or added; it may be shorter than S, as `high` is then
    bias: Array | None  # (B, H, T, S)
    scale: float
    softcap: float

    @property
    def count(self) -> int:
        """The number of scores."""
        return math.prod((*self.q.shape[:3], self.k.shape[2]))

    @property
    def sharing(self) -> int:
        """The number of query heads that share one key head."""
        return int(self.q.shape[1] // self.k.shape[1])


@dataclass(frozen=True)
class TiledInputs(ScoreInputs):
    """Inputs with bounds of the scores, by which the dtype of a tile is chosen."""

    norms: Array  # (B, G, S), |k|
    bound: Array  # (B, H, T), |q| max |k|, an upper bound of every scaled product
    level: float  # how far from 0 mask and bias can move the largest scores

    @property
    def added(self) -> bool:
        """Whether something is added to the scores, so that their size is not bounded."""
        return self.bias is not None or (self.mask is not None and self.mask.dtype != bool)

    def group(self, head: int | slice) -> int | slice:
        """Key head of a query head, or of several heads in one group or in one each."""
        if isinstance(head, int):
            return head // self.sharing
        return slice(head.start // self.sharing, (head.stop - 1) // self.sharing + 1)

    def select_queries(self, queries: Array) -> "TiledInputs":
        """Select some of the queries, in their order."""
        rows = {name: getattr(self, name) for name in ("q", "bound", "mask", "bias")}
        rows = {name: None if x is None else x[:, :, queries] for name, x in rows.items()}
        return replace(self, **rows, **{name: getattr(self, name)[:, queries] for name in ("position", "low", "high")})


class QueryTile(NamedTuple):
    """A tile of queries of one head or several, and all that their scores depend on."""

    columns: Array  # (..., 1, Q, K, m / Q), the scaled queries in parts for one product each
    k: Array  # (..., S, K)
    position: Array  # (m,)
    low: Array  # (m,)
    high: Array  # (m,)
    reach: tuple[int, int, int, int]  # any query may attend to keys from [0] to [3], every query from [1] to [2]
    mask: Array | None  # (..., m, S)
    bias: Array | None  # (..., m, S)
    softcap: float

    def visible_keys(self, keys: slice) -> slice:
        """The part of a tile of keys that any of these queries may attend to."""
        first, last = max(keys.start, self.reach[0]), min(keys.stop, self.reach[3])
        if self.mask is not None and self.mask.dtype == bool and not self.mask[..., first:last].any():
            last = first
        return slice(first, max(first, last))

    def key_blocks(self, size: int) -> Iterator[slice]:
        """Yield the tiles of keys that any of these queries may attend to."""
        visible = (self.visible_keys(keys) for keys in split_range(self.reach[0], self.reach[3], size))
        return (keys for keys in visible if keys.start < keys.stop)

    def scores(self, keys: "KeyTile") -> Array:
        """Scores of these queries with a tile of keys, before masking: (..., n, m)."""
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

    def masked_scores(self, keys: slice, workspace: Workspace) -> Array:
        """Scores of these queries with a tile of keys, -inf if blocked: (..., n, m)."""
        return self.apply_mask(self.scores(KeyTile(self, keys, workspace)), keys)

    def apply_mask(self, scores: Array, keys: slice, fill: float = -np.inf) -> Array:
        """Set blocked scores, or functions of them, to `fill`: (..., n, m), in place."""
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
            allowed = causal_edge((self.high - start).tobytes(), keys.stop - start, scores.dtype)
            if fill == 0:  # scores are finite, so a product is the same and several times as fast
                ends *= allowed
            else:
                np.copyto(ends, fill, where=allowed == 0)
        return scores


@lru_cache(maxsize=4)
def causal_edge(high: bytes, count: int, dtype: DType) -> Array:
    """1 if a key is before the end of a query's keys, else 0: (count, m).

    Cached, as diagonals repeat.

    >>> causal_edge(np.array([1, 2]).tobytes(), 2, np.dtype(np.float32)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return (np.arange(count)[:, None] < np.frombuffer(high, np.int64)).astype(dtype)


def score_dtype(inputs: TiledInputs, task: Task) -> tuple[DType, float]:
    """The dtype to compute the scores of a tile in, and a bound of their size."""
    size = float(inputs.bound[task].max()) + inputs.level
    return inputs.q.dtype if size <= SAFE_RANGE[inputs.q.dtype] else np.dtype(np.float64), size


def make_query_tiles(inputs: TiledInputs, task: Task, size: int, dtype: DType, unit: float = 1.0) -> list[QueryTile]:
    """Split the queries of a task into tiles, with scores in units of `unit`."""
    batch, head, queries = task
    each = even_split(size, COLUMNS)
    scale = inputs.scale / inputs.softcap if inputs.softcap else inputs.scale * unit
    q = inputs.q[batch, head, queries]
    q = q.reshape(*q.shape[:-2], (queries.stop - queries.start) // max(size, 1), 1, size // each, each, q.shape[-1])
    columns = np.multiply(q.swapaxes(-1, -2), scale, dtype=dtype, order="C")
    position, low, high = (x[batch, queries].reshape(-1, size) for x in (inputs.position, inputs.low, inputs.high))
    ends = (low[:, 0].tolist(), low[:, -1].tolist(), high[:, 0].tolist(), high[:, -1].tolist())
    reach = list(zip(*ends, strict=True))
    k = inputs.k[batch, inputs.group(head)]
    mask, bias = (None if x is None else x[batch, head, queries] for x in (inputs.mask, inputs.bias))
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
            inputs.softcap * unit,
        )
        for i, part in enumerate(split_range(0, queries.stop - queries.start, size))
    ]


def make_query_tile(inputs: TiledInputs, task: Task) -> QueryTile:
    """The queries of a task in a single tile, with scores of the dtype that they need."""
    return make_query_tiles(inputs, task, task[2].stop - task[2].start, score_dtype(inputs, task)[0])[0]


@cache
def even_split(count: int, most: int) -> int:
    """Largest size of equal parts up to `most` and above 31; all if there is none.

    >>> even_split(1024, 100), even_split(100, 128), even_split(101, 96)
    (64, 100, 101)
    """
    return next((each for each in range(min(most, count), 31, -1) if count % each == 0), max(count, 1))


def rows_of_product(count: int, width: int, columns: int) -> int:
    """How many of `count` rows to multiply with a number of columns at once."""
    return even_split(count, PRODUCT // max(width * columns, 1))


def split_matrix(x: Array, rows: int, columns: int) -> Array:
    """View matrices as parts of rows and columns.

    (..., n, m) -> (..., P, Q, n / P, m / Q)
    """
    *before, n, m = x.shape
    return x.reshape(*before, n // rows, rows, m // max(columns, 1) or 1, columns).swapaxes(-3, -2)


class KeyTile:
    """A tile of keys, split for products, and memory for the scores of some queries."""

    def __init__(self, rows: QueryTile, at: slice, workspace: Workspace) -> None:
        k = rows.k[..., at, :].astype(rows.columns.dtype, copy=False)
        *heads, _, parts, width, columns = rows.columns.shape
        count = at.stop - at.start
        each = rows_of_product(count, width, columns)
        self.at, self.k = at, split_matrix(k, each, width)
        self.scores = workspace.array("scores", k.dtype, (*heads, count, parts * columns))
        self.products = split_matrix(self.scores, each, columns)


def row_norms(x: Array) -> Array:
    """Euclidean norm of each vector: (..., K) -> (...)."""
    squares: Array = np.einsum("...k,...k->...", x, x)
    return np.sqrt(squares)


def batched(x: Array) -> Array:
    """Make all batch axes one: (..., H, T, K) -> (B, H, T, K), with B 1 of none."""
    return x if x.ndim == 4 else x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def prepare_inputs(q: Array, k: Array, options: AttentionOptions) -> ScoreInputs:
    """Prepare queries, keys and options without an array of every pair.

    q (..., H, T, K), k (..., G, S, K) of the dtype to compute in

    DataError if mask or bias do not broadcast, UsageError for an invalid window or alignment.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    mask, bias = broadcast_mask(options.mask, options.bias, (*q.shape[:-1], keys), q.dtype)
    limit = keys if mask is None else mask.shape[-1]
    q, k = batched(q), batched(k)
    mask, bias = (None if x is None else batched(x) for x in (mask, bias))
    position, low, high = key_ranges(len(q), queries, keys, limit, options)
    return ScoreInputs(q, k, position, low, high, mask, bias, options.scale_for(q.shape[-1]), float(options.softcap))


def prepare_tiles(q: Array, k: Array, options: AttentionOptions) -> TiledInputs:
    """Prepare inputs with bounds of the scores; errors: see `prepare_inputs`."""
    inputs = prepare_inputs(q, k, options)
    level = sum(max_bias(x) for x in (options.mask, options.bias) if x is not None and is_float(x.dtype))
    norms = row_norms(inputs.k)
    longest = np.repeat(norms.max(axis=-1, initial=0), inputs.sharing, axis=1)  # (B, H)
    bound = abs(inputs.scale) * row_norms(inputs.q) * longest[..., None]
    return TiledInputs(**vars(inputs), norms=norms, bound=bound, level=level)


def key_ranges(
    batch: int, queries: int, keys: int, limit: int, options: AttentionOptions
) -> tuple[Array, Array, Array]:
    """Position of each query, and the range of keys it may attend to: (B, T) each.

    >>> [x.tolist() for x in key_ranges(1, 3, 3, 3, AttentionOptions(causal=True, window=(1, -1)))]
    [[[0, 1, 2]], [[0, 0, 1]], [[1, 2, 3]]]
    """
    valid = None if options.lengths is None else check_ids(options.lengths, keys + 1, "length")
    lengths = None if valid is None else tuple(valid.ravel().tolist())
    ranges = _find_ranges(
        queries, keys, limit, options.causal, options.align, tuple(options.window), options.past, lengths
    )
    position, low, high = (np.broadcast_to(x, (batch, queries)) for x in ranges)
    return position, low, high


@lru_cache(maxsize=16)
def _find_ranges(
    queries: int,
    keys: int,
    limit: int,
    causal: bool,
    align: str | None,
    window: tuple[int, int],
    past: int,
    lengths: tuple[int, ...] | None,
) -> tuple[Array, Array, Array]:
    """Ranges of one row of the batch, or of all with lengths; cached for training."""
    left, right = window
    masks.window_mask(0, 0, left, right)  # UsageError for an invalid window
    offset = masks.causal_offset(queries, keys, align=align, past=past, lengths=lengths)
    position = np.arange(queries) + np.reshape(offset, (-1, 1))
    low, high = np.zeros_like(position), np.full_like(position, limit)
    if lengths is not None:
        high = np.minimum(high, np.reshape(lengths, (-1, 1)))
    if left >= 0:
        low = np.maximum(low, position - left)
    for bound in [0] * causal + [right] * (right >= 0):
        high = np.minimum(high, position + bound + 1)
    return position, low, np.maximum(high, 0)


def max_bias(added: Array) -> float:
    """Largest magnitude of the rows' maxima of an added mask or bias, without -inf.

    added (..., S) -> ()

    >>> max_bias(np.array([[0.0, -1000.0], [-3.0, -7.0], [-np.inf, -np.inf]]))
    3.0
    """
    top = np.atleast_1d(added).max(axis=-1, initial=-np.inf).astype(np.float64)
    return float(np.abs(top).max(initial=0, where=np.isfinite(top)))


def split_tasks(inputs: TiledInputs, length: int, step: int) -> list[Task]:
    """Split an axis for every batch and head, the last parts first.

    The last have most keys when causal.
    """
    batch, heads = inputs.q.shape[:2]
    return [(b, h, part) for part in [*split_range(0, length, step)][::-1] for b in range(batch) for h in range(heads)]


def run_tasks(
    work: Callable[[AnyTask, Workspace], None],
    inputs: ScoreInputs,
    tasks: Iterable[AnyTask],
    threads: int | None,
    few: int = 0,
) -> None:
    """Call `work` for each task with the workspace of its thread, on every core.

    Tasks do not depend on the number of threads, and few scores [SMALL] are computed in one thread.
    """

    @quiet
    def run(tasks: Iterator[AnyTask]) -> None:
        workspace = Workspace()
        for task in tasks:
            work(task, workspace)

    run_parallel(run, tasks, 1 if inputs.count < (few or SMALL) else threads)
