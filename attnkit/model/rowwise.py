"""Attention by its formula for some queries at a time: exact, on every core, whatever a score is made of."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from attnkit.model import formula
from attnkit.model.inspection import places, views_of
from attnkit.model.parallel import on_all_cores, spans
from attnkit.model.precision import Array, quiet
from attnkit.model.scores import Score, dot
from attnkit.model.visits import nobody, view

PART = 1 << 20  # numbers, about, that some queries are compared in
BANDS = 16  # of queries; what each key receives is summed up band by band, in their order
ACROSS = {"heads": -2, "weights.top": -2, "weights.keys": -2, "weights.rows": -2}  # where the queries are not last
RECEIVED = "weights.received"  # the one that is of the keys


def rowwise_attention(
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
    >>> found = rowwise_attention(SCORES["dot"], {}, x, x, x, 0, how="rows:-1")
    >>> found["heads"].round(2).tolist(), found["weights.rows"].round(2).tolist()
    ([[[0.73, 0.27], [0.27, 0.73]]], [[[0.27, 0.73]]])
    """
    queries, keys = q.shape[-2], k.shape[-2]
    mask, bias = formula.spread(mask, bias, (*q.shape[:-1], keys), q.dtype)
    kind, numbers = view(how)
    chosen = places(numbers, queries) if kind == "rows" else []

    def of(part: slice, said: str) -> dict[str, Array]:
        """What there is of some queries."""
        allowed = formula.allowed(
            part.stop - part.start, keys, offset + part.start, causal=causal, window=window, lengths=lengths
        )
        added = {name: None if x is None else x[..., part, :] for name, x in (("mask", mask), ("bias", bias))}
        scores = score.compared(q[..., part, :], k, params)
        found = formula.average(
            scores, v, allowed, softmax_dtype, True, lambda step: False, nobody, scale=scale, softcap=softcap, **added
        )
        weights = found.pop("weights")
        if said == "full":
            return found
        return found | views_of(said, weights, found["lse"], formula.positions(part, offset))

    each = math.prod(q.shape[:-2]) * keys * (1 if score.compared is dot else q.shape[-1])
    at_once = max(1, PART // max(each, 1))
    bands = [*spans(0, queries, max(at_once, math.ceil(queries / BANDS)))]
    found: list[dict[str, Array]] = [{} for _ in bands]

    @quiet
    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            parts: list[dict[str, Array]] = []
            sums: dict[str, Array] = {}
            for part in spans(bands[i].start, bands[i].stop, at_once):
                parts.append(of(part, "full" if kind == "rows" else how))
                if RECEIVED in parts[-1]:
                    sums[RECEIVED] = sums.get(RECEIVED, 0) + parts[-1].pop(RECEIVED).astype(np.float64)
            found[i] = joined(parts) | sums

    on_all_cores(work, range(len(bands)), threads)
    result = joined(found)
    if kind == "stats":
        result[RECEIVED] = result[RECEIVED].astype(v.dtype)
    if kind == "rows":
        rows = [of(slice(i, i + 1), "rows:0") for i in chosen]
        result["weights.rows"] = np.concatenate([row["weights.rows"] for row in rows], axis=-2)
    return result


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """What there is of queries from what there is of some after the other.

    >>> joined([{"lse": np.array([1.0]), RECEIVED: np.ones(2)}, {"lse": np.array([2.0]), RECEIVED: np.ones(2)}])
    {'lse': array([1., 2.]), 'weights.received': array([2., 2.])}
    """
    return {
        name: np.sum([part[name] for part in parts], axis=0)
        if name == RECEIVED
        else np.concatenate([part[name] for part in parts], axis=ACROSS.get(name, -1))
        for name in parts[0]
    }
