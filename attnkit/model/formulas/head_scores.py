"""Scores of the attention of each head, summed over texts, and its kind.

The scores of targets are those of `detect_head` of TransformerLens with its error measure "mul": the mean over the
queries of the weight on the target, and over several texts the mean of the texts. The targets of query i:

previous   key i - 1
first      the first key
self       key i
duplicate  the earlier keys of the same token
induction  the keys after these: the token that followed this one before (In-context Learning and Induction Heads)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working

TARGETS = ("previous", "first", "self", "duplicate", "induction")
MEANS = (*TARGETS, "entropy", "span")
KINDS = (*TARGETS, "broad", "other")
EXCESS = 0.4  # least weight on a target beyond even attention, 1 being all of it, that decides the kind of a head
EVENNESS = 0.7  # least entropy of a broad head, 1 being the entropy of even attention
BLOCK = 1 << 22  # weights whose scores are computed together
QUERIES = 3  # least number of queries with a target that a kind is judged by


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of H heads, summed over texts; they add up across texts.

    texts    how many there are
    sums     (H, 7) the scores of MEANS
    chosen   (H, 6) of the queries that have a target, and more keys than it: their weights on the target of each kind
             of TARGETS; in the last column the entropy of queries with several keys
    even     (H, 6) the same, were the attention even over the keys that a query may attend to
    counts   (H, 5) how many queries these are
    largest  (H,) the largest weight of a query with several keys; place (H, 3) its text, query and key, -1: none

    >>> weights = np.array([[[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]])
    >>> scores = score_heads(weights) + score_heads(weights)
    >>> scores.means().round(2).tolist(), scores.kinds(), scores.place.tolist()
    ([[0.75, 0.5, 0.25, nan, nan, 0.0, 0.75]], ['previous'], [[0, 1, 0]])
    """

    texts: int
    sums: Array
    chosen: Array
    even: Array
    counts: Array
    largest: Array
    place: Array

    def __add__(self, other: "HeadScores") -> "HeadScores":
        place = other.place + np.where(other.place[:, :1] < 0, 0, [self.texts, 0, 0])
        is_larger = other.largest > self.largest
        return HeadScores(
            self.texts + other.texts,
            self.sums + other.sums,
            self.chosen + other.chosen,
            self.even + other.even,
            self.counts + other.counts,
            np.where(is_larger, other.largest, self.largest),
            np.where(is_larger[:, None], place, self.place),
        )

    def means(self) -> Array:
        """Scores of MEANS, averaged over texts: (H, 7); NaN if a score is not defined."""
        return self.sums / self.texts

    def measures(self) -> Array:
        """What decides the kind of a head, (H, 6): 0 if even, 1 if all on the target.

        The last column is the entropy as a share of the entropy of even attention; NaN without a query to judge by.
        """
        with np.errstate(all="ignore"):
            excess = (self.chosen[:, :-1] - self.even[:, :-1]) / (self.counts - self.even[:, :-1])
            evenness = self.chosen[:, -1:] / self.even[:, -1:]
        return np.concatenate([np.where(self.counts < QUERIES, np.nan, excess), evenness], axis=1)

    def kinds(self) -> list[str]:
        """Kind of each head: the target it attends to most beyond even attention.

        broad or other if there is none.
        """
        return [choose_kind(row) for row in self.measures()]

    def kind_measures(self) -> Array:
        """Measure of the kind of each head, (H,); of `other` the largest."""
        rows = zip(self.kinds(), self.measures(), strict=True)
        return np.array([row[KINDS.index(kind)] if kind != "other" else largest_of(row[:-1]) for kind, row in rows])


def choose_kind(measures: Array) -> str:
    """Kind of a head by its measures (6,) of TARGETS and of evenness.

    >>> choose_kind(np.array([0.9, 0.5, 0, 0, np.nan, 0.1])), choose_kind(np.array([0.1, 0, 0, 0, 0, 0.2]))
    ('previous', 'other')
    """
    excess = np.nan_to_num(measures[:-1], nan=-np.inf)
    if excess.max() >= EXCESS:
        return TARGETS[int(excess.argmax())]
    return "broad" if measures[-1] >= EVENNESS else "other"


def largest_of(row: Array) -> float:
    """Largest number of a row without NaN; NaN for a row of NaN only.

    >>> float(largest_of(np.array([0.5, np.nan]))), float(largest_of(np.array([np.nan])))
    (0.5, nan)
    """
    return float(row[~np.isnan(row)].max()) if not np.isnan(row).all() else np.nan


@quiet
def score_heads(
    weights: Array, tokens: Array | None = None, is_real: Array | None = None, is_cross: bool = False
) -> HeadScores:
    """Scores of the heads of one layer and one text.

    weights (H, T, S), tokens (S,), is_real (S,) -> scores of H heads

    tokens    an integer for each key, the same for the same token; None: no duplicates and no induction
    is_real   False if a key is padding; None: none is
    is_cross  whether the keys are of another text: then `first` is the only target

    Of fewer queries than keys, the queries are the last. A layer without any weight on a later key is causal: its
    queries may not attend to one. Entropy is in nats; the span is the mean |i - j|.
    """
    weights = cast(weights, working(weights))
    queries, keys = weights.shape[-2:]
    real = np.full(keys, True) if is_real is None else is_real
    own = np.arange(queries) + (0 if is_cross else keys - queries)  # the key of each query
    allowed = np.broadcast_to(real, (queries, keys)) if is_cross else real[own][:, None] & real
    weights, is_later = np.where(allowed, weights, 0), np.arange(keys) > own[:, None]
    if not (is_cross or any((head[is_later] != 0).any() for head in weights)):
        allowed = allowed & ~is_later
    targets = mark_targets(own, real, tokens)
    targets &= allowed
    if is_cross:
        targets = targets[TARGETS.index("first")][None]
    names = ("first",) if is_cross else TARGETS if tokens is not None else TARGETS[:3]
    return _sum_scores(weights, allowed, dict(zip(names, targets, strict=True)), own)


def mark_targets(own: Array, real: Array, tokens: Array | None) -> Array:
    """Targets of each query as booleans.

    own (T,), real (S,), tokens (S,) -> (5, T, S), (3, T, S) without tokens

    own  the key of each query

    >>> mark_targets(np.array([2]), np.full(3, True), np.array([7, 8, 7])).astype(int).tolist()
    [[[0, 1, 0]], [[1, 0, 0]], [[0, 0, 1]], [[1, 0, 0]], [[0, 1, 0]]]
    """
    at, query = np.arange(len(real)), own[:, None]
    targets = [at == query - 1, np.broadcast_to(at == real.argmax(), (len(own), len(real))), at == query]
    if tokens is not None:
        duplicates = (tokens == tokens[np.minimum(own, len(tokens) - 1)][:, None]) & (at < query)
        after = np.zeros_like(duplicates)
        after[:, 1:] = duplicates[:, :-1]
        targets += [duplicates, after]
    marked = np.stack(targets)
    marked &= real
    return marked


def _sum_scores(weights: Array, allowed: Array, targets: dict[str, Array], own: Array) -> HeadScores:
    """Scores of weights (H, T, S) on targets (T, S) among the allowed cells (T, S)."""
    heads, per_query = len(weights), allowed.sum(axis=-1)  # (T,)
    queries, has_choice = max(int((per_query > 0).sum()), 1), per_query > 1
    mass = np.empty((len(own), heads, len(targets) + 1))  # (T, H, C)
    entropy = np.empty((heads, len(own)))
    for rows in query_blocks(weights.shape):
        part = weights[:, rows]
        distance = np.abs(own[rows, None] - np.arange(allowed.shape[1]))
        columns = np.stack([*(one[rows] for one in targets.values()), distance]).astype(weights.dtype)
        mass[rows] = np.swapaxes(part, 0, 1) @ np.moveaxis(columns, 0, -1)
        entropy[:, rows] = -(part * np.log(np.where(part > 0, part, 1))).sum(axis=-1, dtype=np.float64)
    sums, chosen, even = np.full((heads, 7), np.nan), np.zeros((heads, 6)), np.zeros((heads, 6))
    counts = np.zeros((heads, 5), np.int64)
    for at, (name, target) in enumerate(targets.items()):
        column, size = TARGETS.index(name), target.sum(axis=-1)
        judged = has_choice & (size > 0) & (size < per_query)
        sums[:, column] = mass[..., at].sum(axis=0) / queries
        chosen[:, column] = mass[judged, :, at].sum(axis=0)
        even[:, column], counts[:, column] = (size[judged] / per_query[judged]).sum(), judged.sum()
    chosen[:, -1], even[:, -1] = entropy[:, has_choice].sum(axis=-1), np.log(per_query[has_choice]).sum()
    sums[:, 5] = entropy.sum(axis=-1) / queries
    if len(targets) > 1:
        sums[:, 6] = mass[..., -1].sum(axis=0) / queries
    weights[:, ~has_choice] = 0  # a copy, which is needed no more
    return HeadScores(1, sums, chosen, even, counts, *_find_largest(weights))


def query_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield ranges of queries of weights (H, T, S), each of at most BLOCK weights.

    >>> [*query_blocks((1, 3, BLOCK // 2))]
    [slice(0, 2, None), slice(2, 4, None)]
    """
    heads, queries, keys = shape
    step = max(BLOCK // max(heads * keys, 1), 1)
    return (slice(start, start + step) for start in range(0, queries, step))


def _find_largest(weights: Array) -> tuple[Array, Array]:
    """Largest weight of each head and its place, -1 if all are 0.

    (H, T, S) -> (H,), (H, 3)
    """
    rows = weights.reshape(len(weights), -1)
    if not rows.shape[1]:
        return np.zeros(len(rows)), np.full((len(rows), 3), -1)
    best = rows.argmax(axis=-1)
    largest = rows[np.arange(len(rows)), best].astype(np.float64)
    place = np.stack([np.zeros_like(best), *np.unravel_index(best, weights.shape[1:])], axis=1)
    return largest, np.where(largest[:, None] > 0, place, -1)


def concatenate_heads(layers: Iterable[HeadScores]) -> HeadScores:
    """Concatenate the scores of several layers on the same texts."""
    each = [*layers]
    fields = ("sums", "chosen", "even", "counts", "largest", "place")
    return HeadScores(each[0].texts, *(np.concatenate([getattr(one, name) for one in each]) for name in fields))


def roll_out(layers: Sequence[Array], residual: float = 0.5) -> Array:
    """Attention rollout of layers of weights, the first layer first.

    each (..., H, T, T) -> (..., T, T)

    A layer is A = residual · I + (1 − residual) · W, with the mean W of its heads, each row divided by its sum; the
    rollout is the product of all A, the last layer first (Abnar and Zuidema 2020, Quantifying Attention Flow in
    Transformers, section 3). A row of zeros, of a query without keys, is that of I if residual is above 0.

    >>> first, second = np.array([[[1.0, 0], [1, 0]]]), np.array([[[0.5, 0.5], [0, 1]]])
    >>> roll_out([first, second]).tolist()
    [[0.875, 0.125], [0.5, 0.5]]
    """
    rollout = None
    for weights in layers:
        step = (1 - residual) * weights.mean(axis=-3, dtype=working(weights))
        step += residual * np.eye(step.shape[-1], dtype=step.dtype)
        sums = step.sum(axis=-1, keepdims=True)
        np.divide(step, sums, out=step, where=sums > 0)
        rollout = step if rollout is None else step @ rollout
    return np.asarray(rollout, output_dtype(layers[0]))
