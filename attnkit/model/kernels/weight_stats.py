"""Summaries of the attention weights, computed without the T x S matrix."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import UsageError
from attnkit.model.dtypes import Array, DType, output_dtype, quiet, working
from attnkit.model.formulas.dense_attention import DEFAULT, AttentionOptions
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.sampling import largest
from attnkit.model.formulas.softmax import softmax
from attnkit.model.hooks import WEIGHT_SUMMARIES, parse_weight_summary
from attnkit.model.kernels.tiled_attention import update_running_max
from attnkit.model.kernels.tiles import (
    QueryTile,
    Task,
    TiledInputs,
    Workspace,
    make_query_tile,
    prepare_tiles,
    run_tasks,
    split_tasks,
)

BLOCKS = (128, 2240)  # queries and keys: a megabyte of float32, which stays in a core's own cache


def summarize_weights(
    summary: str, q: Array, k: Array, options: AttentionOptions = DEFAULT, **changes: Any
) -> dict[str, Array]:
    """Summarize the weights, by the names of the intermediates.

    q (..., H, T, K), k (..., G, S, K)

    stats       weights.lse, entropy, max, argmax, span, received: see weight_stats
    topk:K      weights.top and weights.keys: see weight_topk
    rows:I,J,…  weights.rows: see weight_rows; -1 is the last query

    UsageError for an unknown summary, and for a query out of range.

    >>> x = np.eye(2)[None]
    >>> summarize_weights("rows:-1", x, x, causal=True)["weights.rows"].round(2).tolist()
    [[[0.33, 0.67]]]
    """
    kind, numbers = parse_weight_summary(summary)
    options = options.replace(**changes)
    if kind == "stats":
        result = weight_stats(q, k, options)
    elif kind == "topk":
        result = dict(zip(WEIGHT_SUMMARIES["topk"], weight_topk(q, k, numbers[0], options), strict=True))
    else:
        result = {"rows": weight_rows(q, k, query_indices(numbers, q.shape[-2]), options)}
    return {f"weights.{name}": x for name, x in result.items()}


def summarize_dense_weights(summary: str, weights: Array, lse: Array, position: Array) -> dict[str, Array]:
    """Summarize dense weights.

    weights (..., H, T, S), lse (..., H, T), position (..., 1, T) of the queries among the keys

    >>> weights, zeros = np.array([[[0.25, 0.75]]]), np.zeros((1, 1))
    >>> summarize_dense_weights("topk:1", weights, zeros, zeros)["weights.keys"].tolist()
    [[[1]]]
    """
    kind, numbers = parse_weight_summary(summary)
    keys = np.arange(weights.shape[-1])
    is_empty = ~(weights != 0).any(axis=-1)  # queries without any key
    if kind == "stats":
        logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        result = {
            "lse": lse,
            "entropy": -np.sum(weights * logs, axis=-1),
            "max": weights.max(axis=-1, initial=0),
            "argmax": np.where(
                is_empty | np.isnan(weights).any(axis=-1), -1, weights.argmax(axis=-1) if len(keys) else -1
            ),
            "span": np.sum(weights * np.abs(position[..., None] - keys).astype(weights.dtype), axis=-1),
            "received": weights.sum(axis=-2, dtype=np.float64).astype(weights.dtype),
        }
    elif kind == "topk":
        order = largest(weights, numbers[0])
        top = np.take_along_axis(weights, order, axis=-1)
        result = {"top": top, "keys": np.where((top == 0) | np.isnan(top), -1, order)}
    else:
        result = {"rows": weights[..., query_indices(numbers, weights.shape[-2]), :]}
    return {f"weights.{name}": x for name, x in result.items()}


def query_indices(numbers: tuple[int, ...], count: int) -> list[int]:
    """Indices of queries, negative ones from the end; UsageError if out of range.

    >>> query_indices((0, -1), 5)
    [0, 4]
    """
    for number in numbers:
        if not -count <= number < count:
            expected = f"expected {-count} to {count - 1}" if count else "it has none"
            raise UsageError(f"weights rows: query {number} of {count} ({expected})")
    return [number % count for number in numbers]


def weight_stats(
    q: Array,
    k: Array,
    options: AttentionOptions = DEFAULT,
    *,
    blocks: tuple[int, int] = BLOCKS,
    threads: int | None = None,
    **changes: Any,
) -> dict[str, Array]:
    """How queries distribute their weights, and how much each key receives.

    q (..., H, T, K), k (..., G, S, K) -> {name: (..., H, T)}, but received (..., H, S)

    lse         logarithm of the sum of the exponentials of the scores, float64 as `merge` wants it
    entropy     of the weights, in nats: 0 for a single key, log n for n equal weights
    max         the largest weight, and argmax its key, the lower one of ties; -1 without any key
    span        attention distance: the weighted mean of |i + offset - j|
    received    the sum over the queries of the weights of a key

    A query without keys has -inf, 0, 0, -1 and 0, one with NaN among its scores NaN. Time grows with T S, memory
    with T + S. Sources: Ghader and Monz 2017 (entropy); Vig and Belinkov 2019, section 4.2 (distance).

    >>> x = np.eye(2)[None]
    >>> for name, stat in weight_stats(x, x, causal=True).items():
    ...     print(name, stat.round(2).tolist())
    lse [[0.71, 1.11]]
    entropy [[0.0, 0.63]]
    max [[1.0, 0.67]]
    argmax [[0, 1]]
    span [[0.0, 0.33]]
    received [[1.33, 0.67]]
    """
    result, inputs = _prepare(q, k, options.replace(**changes))
    queries, keys = inputs.q.shape[:3], (*inputs.q.shape[:2], inputs.k.shape[2])
    stats = {name: np.zeros(keys if name == "received" else queries) for name in WEIGHT_SUMMARIES["stats"]}
    stats["argmax"] = np.full(queries, -1)

    def compute(task: Task, workspace: Workspace) -> None:
        for name, stat in _stats(make_query_tile(inputs, task), blocks[1], workspace).items():
            stats[name][task] = stat

    def receive(task: Task, workspace: Workspace) -> None:
        stats["received"][task] = _received(inputs, task, stats["lse"], blocks[0], workspace)

    run_tasks(compute, inputs, split_tasks(inputs, queries[2], blocks[0]), threads)
    run_tasks(receive, inputs, split_tasks(inputs, keys[2], blocks[1]), threads)
    stats["received"][np.isnan(stats["lse"]).any(axis=-1)] = np.nan
    kinds = {"lse": np.dtype(np.float64), "argmax": np.dtype(np.int64)}
    return {
        name: x.reshape(*q.shape[:-2], x.shape[-1]).astype(kinds.get(name, result), copy=False)
        for name, x in stats.items()
    }


def _stats(block: QueryTile, step: int, workspace: Workspace) -> dict[str, Array]:
    """Statistics of a tile of queries, each (m,), by an online softmax."""
    top = np.full(len(block.low), -np.inf, block.columns.dtype)
    total, below, distance = np.zeros((3, len(top)))  # sums of e^d, -d e^d and |i - j| e^d; d is the score less the top
    best = np.full(len(top), -1)
    for keys in block.key_blocks(step):
        scores = block.masked_scores(keys, workspace)  # (n, m)
        before = top
        top, base, decay = update_running_max(before, scores)
        rose = np.flatnonzero(top > before)
        best[rose] = keys.start + scores[:, rose].argmax(axis=0)
        scores -= base
        weights = np.exp(scores)
        scores *= weights
        np.copyto(scores, 0, where=weights == 0)  # instead of NaN from -inf times 0
        ones, steps = np.ones(len(weights), weights.dtype), np.arange(len(weights), dtype=weights.dtype)
        here = ones @ weights
        below = decay * (below + total * np.where(total > 0, base - before, 0)) - ones @ scores
        distance = decay * distance + _distances(weights, block.position - keys.start, here, steps)
        total = decay * total + here
    divisor = np.where(total == 0, 1, total)
    best[np.isnan(total)] = -1
    return {
        "lse": top + np.log(total),
        "entropy": np.log(divisor) + below / divisor,
        "max": np.where(total == 0, 0, 1 / divisor),
        "argmax": best,
        "span": distance / divisor,
    }


def _distances(weights: Array, position: Array, total: Array, steps: Array) -> Array:
    """Weighted sum of each query's distances to a tile of keys.

    (n, m), (m,), (m,), (n,) -> (m,)
    """
    last = len(steps) - 1
    if position.min() >= last:  # every query is at or after every key
        distances: Array = (position - last) * total + (last - steps) @ weights
    elif position.max() <= 0:
        distances = steps @ weights - position * total
    else:
        weights *= np.abs(position - steps[:, None]).astype(weights.dtype)
        distances = np.ones_like(steps) @ weights
    return distances


def _received(inputs: TiledInputs, task: Task, lse: Array, step: int, workspace: Workspace) -> Array:
    """Sum of the weights of each key of a tile, (n,), by tiles of the first pass."""
    batch, head, keys = task
    received = np.zeros(keys.stop - keys.start)
    queries = np.flatnonzero((inputs.low[batch] < keys.stop) & (inputs.high[batch] > keys.start))
    if not len(queries):
        return received
    for first in range(queries[0] // step * step, queries[-1] + 1, step):
        part = batch, head, slice(first, min(first + step, inputs.q.shape[2]))
        block = make_query_tile(inputs, part)
        weights = block.masked_scores(keys, workspace)
        weights -= np.where(np.isneginf(lse[part]), 0, lse[part]).astype(weights.dtype)
        np.exp(weights, out=weights)
        received += weights @ np.ones(weights.shape[1], weights.dtype)
    return received


def weight_topk(
    q: Array,
    k: Array,
    count: int,
    options: AttentionOptions = DEFAULT,
    *,
    blocks: tuple[int, int] = BLOCKS,
    threads: int | None = None,
    **changes: Any,
) -> tuple[Array, Array]:
    """Largest weights of each query and their keys, ties by the lower key.

    q (..., H, T, K), k (..., G, S, K) -> weights (..., H, T, N), keys (..., H, T, N) int64, with N the lesser of
    count and S

    Where fewer keys have a weight above 0, the rest has key -1; a query with NaN
    among its scores has weights of NaN. UsageError for a count below 1.

    >>> x = np.eye(2)[None]
    >>> weights, keys = weight_topk(x, x, 2, causal=True)
    >>> weights.round(2).tolist(), keys.tolist()
    ([[[1.0, 0.0], [0.67, 0.33]]], [[[0, -1], [1, 0]]])
    """
    if count < 1:
        raise UsageError(f"count {count} (expected 1 or more)")
    result, inputs = _prepare(q, k, options.replace(**changes))
    count = min(count, k.shape[-2])
    shape = (*inputs.q.shape[:3], count)
    weights, keys = np.zeros(shape, result), np.full(shape, -1, np.int64)

    def compute(task: Task, workspace: Workspace) -> None:
        weights[task], top_keys = _largest(make_query_tile(inputs, task), count, blocks[1], workspace)
        keys[task] = np.where((weights[task] == 0) | np.isnan(weights[task]), -1, top_keys)

    run_tasks(compute, inputs, split_tasks(inputs, shape[2], blocks[0]), threads)
    return weights.reshape(*q.shape[:-1], count), keys.reshape(*q.shape[:-1], count)


def _largest(block: QueryTile, count: int, step: int, workspace: Workspace) -> tuple[Array, Array]:
    """Largest weights of a tile of queries and their keys: (m, N), (m, N)."""
    queries = len(block.low)
    top, total = np.full(queries, -np.inf, block.columns.dtype), np.zeros(queries)
    best, where = np.full((queries, count), -np.inf, block.columns.dtype), np.full((queries, count), -1)
    for keys in block.key_blocks(step):
        scores = block.masked_scores(keys, workspace)  # (n, m)
        least = floor = best[:, -1]
        if len(scores) > count and np.isneginf(floor).any():  # a first tile: only its own largest are candidates
            floor = np.maximum(floor, np.partition(scores, -count, axis=0)[-count])
        j, i = np.nonzero((scores >= floor) & (scores > least))
        best, where = _merge_candidates(best, where, i, scores[j, i], j + keys.start)
        top, base, decay = update_running_max(top, scores)
        scores -= base
        total = decay * total + np.ones(len(scores), scores.dtype) @ np.exp(scores, out=scores)
    lse = np.where(total == 0, 0, top + np.log(total))
    return np.exp(best - lse[:, None]), where


def _merge_candidates(best: Array, where: Array, i: Array, scores: Array, j: Array) -> tuple[Array, Array]:
    """Best scores and keys with candidates (query i, score, key j): (m, N), (m, N)."""
    if not len(i):
        return best, where
    rows, count = best.shape
    i = np.concatenate([np.repeat(np.arange(rows), count), i])
    scores, j = np.concatenate([best.ravel(), scores]), np.concatenate([where.ravel(), j])
    order = np.lexsort((j, -scores, i))
    first = np.searchsorted(i[order], np.arange(rows))
    chosen = order[first[:, None] + np.arange(count)]
    return scores[chosen], j[chosen]


def weight_rows(
    q: Array,
    k: Array,
    queries: ArrayLike,
    options: AttentionOptions = DEFAULT,
    *,
    blocks: tuple[int, int] = BLOCKS,
    threads: int | None = None,
    **changes: Any,
) -> Array:
    """Weights of some queries on all keys, in the requested order.

    q (..., H, T, K), k (..., G, S, K), queries (R,) -> (..., H, R, S)

    UsageError for a query out of range.

    >>> x = np.eye(2)[None]
    >>> weight_rows(x, x, [1], causal=True).round(2).tolist()
    [[[0.33, 0.67]]]
    """
    result, inputs = _prepare(q, k, options.replace(**changes))
    requested = np.reshape(check_ids(queries, q.shape[-2], "query"), -1)
    chosen, order = np.unique(requested, return_inverse=True)  # in ascending order, as a tile needs them
    inputs = inputs.select_queries(chosen)
    shape = (*inputs.q.shape[:3], k.shape[-2])
    weights = np.empty(shape, result)
    at_once = max(1, blocks[0] * blocks[1] // max(k.shape[-2], 1))

    def compute(task: Task, workspace: Workspace) -> None:
        block = make_query_tile(inputs, task)
        scores = np.full((len(block.low), shape[-1]), -np.inf, block.columns.dtype)
        for keys in block.key_blocks(blocks[1]):
            scores[:, keys] = block.masked_scores(keys, workspace).T
        weights[task] = softmax(scores)

    run_tasks(compute, inputs, split_tasks(inputs, shape[2], min(at_once, blocks[0])), threads)
    return weights[:, :, order].reshape(*q.shape[:-2], len(requested), shape[-1])


@quiet
def _prepare(q: Array, k: Array, options: AttentionOptions) -> tuple[DType, TiledInputs]:
    dtype = working(q, k)
    return output_dtype(q), prepare_tiles(np.asarray(q, dtype), np.asarray(k, dtype), options)
