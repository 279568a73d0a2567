"""Dense attention by blocks of queries: exact, on every core, for any score."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.model.dtypes import Array, quiet
from attnkit.model.formulas import dense_attention
from attnkit.model.formulas.dense_attention import DEFAULT, AttentionOptions
from attnkit.model.formulas.scores import SCORES, dot
from attnkit.model.hooks import Requested, parse_weight_summary
from attnkit.model.kernels.weight_stats import query_indices, summarize_dense_weights
from attnkit.model.processor.threads import run_parallel, split_range

PART = 1 << 20  # approximate number of scores (or of terms in them) computed at once
BANDS = 16  # of queries; what each key receives is summed band by band, in their order
ACROSS = {"heads": -2, "weights.top": -2, "weights.keys": -2, "weights.rows": -2}  # axis of queries if not the last
RECEIVED = "weights.received"  # the only result per key


def row_attention(
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions = DEFAULT,
    *,
    summary: str = "full",
    threads: int | None = None,
    **changes: Any,
) -> dict[str, Array]:
    """Heads, log-sum-exps and a summary of the weights, some queries at a time.

    q (..., H, T, K) and k (..., G, S, K) as the score projects them, v (..., G, S, V) -> {"heads": (..., H, T, V),
    "lse": (..., H, T) float64, ...}

    The result is the same on any number of threads. DataError if mask or bias do not broadcast, and for a query
    out of range; UsageError for an unknown summary or an invalid window.

    >>> x = np.eye(2)[None]
    >>> result = row_attention(x, x, x, score="dot", summary="rows:-1")
    >>> result["heads"].round(2).tolist(), result["weights.rows"].round(2).tolist()
    ([[[0.73, 0.27], [0.27, 0.73]]], [[[0.27, 0.73]]])
    """
    options = options.replace(**changes)
    queries, keys = q.shape[-2], k.shape[-2]
    mask, bias = dense_attention.broadcast_mask(options.mask, options.bias, (*q.shape[:-1], keys), q.dtype)
    rows = Rows(q, k, v, options.replace(mask=mask, bias=bias, scale=options.scale_for(q.shape[-1])))
    kind, numbers = parse_weight_summary(summary)
    chosen = query_indices(numbers, queries) if kind == "rows" else []
    each = math.prod(q.shape[:-2]) * keys * (1 if SCORES[options.score].score is dot else q.shape[-1])
    at_once = max(1, PART // max(each, 1))
    bands = [*split_range(0, queries, max(at_once, math.ceil(queries / BANDS)))]
    results: list[dict[str, Array]] = [{} for _ in bands]

    @quiet
    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            results[i] = rows.attend_band(bands[i], at_once, "full" if kind == "rows" else summary)

    run_parallel(work, range(len(bands)), threads)
    result = concatenate_parts(results)
    if kind == "stats":
        result[RECEIVED] = result[RECEIVED].astype(v.dtype)
    if kind == "rows":
        summaries = [rows.attend(slice(i, i + 1), "rows:0") for i in chosen]
        result["weights.rows"] = np.concatenate([row["weights.rows"] for row in summaries], axis=-2)
    return result


@dataclass(frozen=True, eq=False)
class Rows:
    """Operands of dense attention that is computed for some queries at a time."""

    q: Array
    k: Array
    v: Array
    options: AttentionOptions  # with mask and bias broadcast to the scores, and a scale

    def attend(self, part: slice, summary: str) -> dict[str, Array]:
        """Heads, log-sum-exps and a summary of the weights of some queries."""
        options, keys = self.options, self.k.shape[-2]
        offset = options.offset(self.q.shape[-2], keys)
        allowed = dense_attention.allowed_cells(part.stop - part.start, keys, offset + part.start, options)
        scores = SCORES[options.score].score(
            self.q[..., part, :], self.k, options.score_params or {}, options.products.stacked
        )
        mask, bias = (None if x is None else x[..., part, :] for x in (options.mask, options.bias))
        here = options.replace(mask=mask, bias=bias)
        result = dense_attention.dense_attention(scores, self.v, allowed, here, Requested(keep=("lse",)))
        weights = result.pop("weights")
        if summary == "full":
            return result
        position = dense_attention.query_positions(part, offset)
        return result | summarize_dense_weights(summary, weights, result["lse"], position)

    def attend_band(self, band: slice, at_once: int, summary: str) -> dict[str, Array]:
        """Attend a band of queries, `at_once` at a time.

        What each key receives is summed in float64.
        """
        parts: list[dict[str, Array]] = []
        sums: dict[str, Array] = {}
        for part in split_range(band.start, band.stop, at_once):
            parts.append(self.attend(part, summary))
            if RECEIVED in parts[-1]:
                sums[RECEIVED] = sums.get(RECEIVED, 0) + parts[-1].pop(RECEIVED).astype(np.float64)
        return concatenate_parts(parts) | sums


def concatenate_parts(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate results of consecutive queries; what keys receive is summed.

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
