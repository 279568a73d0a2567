"""Attention by its formula for some queries at a time: exact, on every core, whatever a score is made of."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from attnkit.model import dense_attention
from attnkit.model.dtypes import Array, quiet
from attnkit.model.hooks import no_hook, parse_weight_summary
from attnkit.model.kernels.threads import run_parallel, split_range
from attnkit.model.kernels.weight_stats import places, summarize_dense_weights
from attnkit.model.scores import Score, dot

PART = 1 << 20  # numbers, about, that some queries are compared in
BANDS = 16  # of queries; what each key receives is summed up band by band, in their order
ACROSS = {"heads": -2, "weights.top": -2, "weights.keys": -2, "weights.rows": -2}  # where the queries are not last
RECEIVED = "weights.received"  # the one that is of the keys


def row_attention(
    score: Score,
    params: Mapping[str, Array],
    q: Array,
    k: Array,
    v: Array,
    offset: int | Array,
    softmax_dtype: str | None = None,
    how: str = "full",
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    lengths: Array | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    threads: int | None = None,
) -> dict[str, Array]:
    """The heads and log-sum-exps of `attention`, and what `how` says of its weights, which are not held.

    q (..., H, T, K) and k (..., G, S, K) as `score` prepares them, v (..., G, S, V) -> {"heads": (..., H, T, V),
    "lse": (..., H, T) float64, ...}

    `offset` is the position of the first query, () or (B,), the other options are those of `attention`. The result
    is the same on any number of threads. DataError where mask or bias do not fit, and for a query that is not
    there; UsageError for another `how`, and for what is no window.

    >>> from attnkit.model.scores import SCORES
    >>> x = np.eye(2)[None]
    >>> found = row_attention(SCORES["dot"], {}, x, x, x, 0, how="rows:-1")
    >>> found["heads"].round(2).tolist(), found["weights.rows"].round(2).tolist()
    ([[[0.73, 0.27], [0.27, 0.73]]], [[[0.27, 0.73]]])
    """
    queries, keys = q.shape[-2], k.shape[-2]
    mask, bias = dense_attention.broadcast_mask(mask, bias, (*q.shape[:-1], keys), q.dtype)
    kind, numbers = parse_weight_summary(how)
    chosen = places(numbers, queries) if kind == "rows" else []

    def of(part: slice, said: str) -> dict[str, Array]:
        """What there is of some queries."""
        allowed = dense_attention.allowed_cells(
            part.stop - part.start, keys, offset + part.start, causal=causal, window=window, lengths=lengths
        )
        added = {name: None if x is None else x[..., part, :] for name, x in (("mask", mask), ("bias", bias))}
        scores = score.compared(q[..., part, :], k, params)
        found = dense_attention.dense_attention(
            scores, v, allowed, softmax_dtype, True, lambda step: False, no_hook, scale=scale, softcap=softcap, **added
        )
        weights = found.pop("weights")
        if said == "full":
            return found
        return found | summarize_dense_weights(
            said, weights, found["lse"], dense_attention.query_positions(part, offset)
        )

    each = math.prod(q.shape[:-2]) * keys * (1 if score.compared is dot else q.shape[-1])
    at_once = max(1, PART // max(each, 1))
    bands = [*split_range(0, queries, max(at_once, math.ceil(queries / BANDS)))]
    found: list[dict[str, Array]] = [{} for _ in bands]

    @quiet
    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            parts: list[dict[str, Array]] = []
            sums: dict[str, Array] = {}
            for part in split_range(bands[i].start, bands[i].stop, at_once):
                parts.append(of(part, "full" if kind == "rows" else how))
                if RECEIVED in parts[-1]:
                    sums[RECEIVED] = sums.get(RECEIVED, 0) + parts[-1].pop(RECEIVED).astype(np.float64)
            found[i] = concatenate_parts(parts) | sums

    run_parallel(work, range(len(bands)), threads)
    result = concatenate_parts(found)
    if kind == "stats":
        result[RECEIVED] = result[RECEIVED].astype(v.dtype)
    if kind == "rows":
        rows = [of(slice(i, i + 1), "rows:0") for i in chosen]
        result["weights.rows"] = np.concatenate([row["weights.rows"] for row in rows], axis=-2)
    return result


def concatenate_parts(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """What there is of queries from what there is of some after the other.

    >>> first, second = ({"lse": np.array([lse]), RECEIVED: np.ones(2)} for lse in (1.0, 2.0))
    >>> concatenate_parts([first, second])
    {'lse': array([1., 2.]), 'weights.received': array([2., 2.])}
    """
    return {
        name: np.sum([part[name] for part in parts], axis=0)
        if name == RECEIVED
        else np.concatenate([part[name] for part in parts], axis=ACROSS.get(name, -1))
        for name in parts[0]
    }
