"""The nearest of many vectors to some queries: exact, in blocks of rows."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import Array, quiet, working
from attnkit.model.processor.threads import run_parallel, split_range

METRICS = ("cosine", "dot", "euclidean")
PIECE = 3 << 18  # most elements of the rows that are multiplied at a time; a fourth stays in the cache of a processor
PIECE_ROWS = 512  # rows of a piece, if so many fit: NumPy lets other threads run in a product of more than 500
PIECES = 16  # most pieces whose products are compared at a time
QUERIES = 256  # queries that are compared at a time
SAFE = (1e-25, 1e25)  # squared lengths whose products are far from the limits of float32


class Nearest(NamedTuple):
    """The nearest rows to each query, nearest first.

    indices  (Q, top) the numbers of the rows
    scores   (Q, top) their cosine or dot product, or their distance
    zeros    how many rows are zero vectors, whose cosine counts as 0
    """

    indices: Array
    scores: Array
    zeros: int = 0


class RowBlock(NamedTuple):
    """Rows (R, D) from `start` on, products with queries (Q, R), and lengths (R)."""

    start: int
    rows: Array
    products: Array
    lengths: Array


def find_nearest(
    vectors: Array,
    queries: Array,
    top: int,
    metric: str = "cosine",
    release: Callable[[Array], None] = lambda rows: None,
) -> Nearest:
    """Nearest vectors and their scores.

    vectors (N, D), queries (Q, D) -> indices (Q, top), scores (Q, top)

    Products in the dtype of the vectors only select candidates: all rows that may be among the nearest, given how far
    rounding can move a product (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Candidates are scored in
    float64, row by row, and rounded to the dtype of the result: equal rows have equal scores wherever they are, and of
    equal scores the lower index comes first. DataError for numbers that are not finite, and for a query of zeros with
    cosine.

    release  is called with rows that have been read, as for a file that is mapped

    >>> find_nearest(np.array([[1.0, 0], [0, 2], [3, 3]]), np.array([[0, 1.0]]), 2)
    Nearest(indices=array([[1, 2]]), scores=array([[1.        , 0.70710678]]), zeros=0)
    """
    none = Nearest(np.empty((0, top), np.int64), np.empty((0, top), working(vectors, queries)))
    parts = [
        _search(vectors, queries[at : at + QUERIES], top, metric, release) for at in range(0, len(queries), QUERIES)
    ]
    indices, scores, zeros = zip(none, *parts, strict=True)
    return Nearest(np.concatenate(indices), np.concatenate(scores), max(zeros))


def check_queries(queries: Array, metric: str) -> Array:
    """Lengths of queries (Q, D); DataError for one that has no usable direction."""
    lengths = _length(queries.astype(np.float64))
    _check_finite(queries, lengths, 0, "query")
    if metric == "cosine" and not lengths.all():
        at = int(np.argmin(lengths))
        raise DataError.about("query", f"{at} is all zeros, which has no cosine; --metric euclidean takes it")
    return lengths


def score_rows(rows: Array, query: Array, metric: str) -> Array:
    """Scores of rows (R, D) with one query (D) in float64.

    >>> score_rows(np.array([[3.0, 4], [0, 2]]), np.array([3.0, 0]), "cosine").tolist()
    [0.6, 0.0]
    """
    wide, q = rows.astype(np.float64), query.astype(np.float64)
    if metric == "euclidean":
        return _length(wide - q)
    if metric == "dot":
        return np.asarray((wide * q).sum(axis=-1))
    wide, q = _scaled(wide), _scaled(q)
    products, squares = (wide * q).sum(axis=-1), np.square(wide).sum(axis=-1) * np.square(q).sum()
    return np.asarray(np.divide(products, np.sqrt(squares), out=np.zeros_like(products), where=squares > 0))


def _search(vectors: Array, queries: Array, top: int, metric: str, release: Callable[[Array], None]) -> Nearest:
    """Nearest vectors of a few queries, by several threads in blocks of their own."""
    searches = [_Search(vectors, queries, top, metric, np.full(len(queries), -np.inf))]
    count = _piece_rows(vectors) * max(PIECES // len(queries), 1)

    def work(starts: Iterator[int]) -> None:
        search = _Search(vectors, queries, top, metric, searches[0].limits)
        searches.append(search)
        for start in starts:
            rows = vectors[start : start + count]
            search.compare(search.multiply(start, rows))
            release(rows)

    run_parallel(work, range(0, len(vectors), count))
    first, *others = searches
    for query in range(len(queries)):
        for other in others:
            first.add(query, *other.best[query])
    indices, scores = zip(*first.best, strict=True)
    return Nearest(np.stack(indices), np.stack(scores), sum(search.zeros for search in searches))


class _Search:
    """The search for the nearest vectors to a few queries (Q, D).

    best    for each query the indices and scores found so far, nearest first
    limits  for each query a key that a row must reach to be among the nearest; several threads raise it
    zeros   how many zero vectors were seen
    """

    def __init__(self, vectors: Array, queries: Array, top: int, metric: str, limits: Array) -> None:
        self.top, self.metric, self.limits, self.zeros = top, metric, limits, 0
        self.dtype = working(vectors, queries)
        self.queries = queries.astype(np.float64)
        self.lengths = check_queries(queries, metric)
        self.is_safe = _is_safe(np.square(self.lengths[self.lengths > 0]))
        self.best = [(np.empty(0, np.int64), np.empty(0, self.dtype)) for _ in queries]

    def multiply(self, start: int, rows: Array) -> RowBlock:
        """Multiply rows by the queries, in float64 if float32 might overflow.

        DataError names a row that is not finite.
        """
        products, squares = _multiply(rows, self.queries.astype(working(rows)))
        is_safe = _is_safe(squares)
        if products.dtype != np.float64 and not (self.is_safe and is_safe):
            products, squares = _multiply(rows, self.queries)
        lengths = np.sqrt(squares)
        if not is_safe:
            _check_finite(rows, lengths, start, "row")
            self.zeros += len(lengths) - int(np.count_nonzero(lengths))
        return RowBlock(start, rows, products, lengths)

    def compare(self, block: RowBlock) -> None:
        """Compare the rows of a block with the queries, and keep the nearest."""
        keys, margin = self.approximate(block)
        floor = self.limits - margin
        if np.isneginf(self.limits).any() and self.top <= keys.shape[1]:
            floor = np.maximum(floor, np.partition(keys, -self.top, axis=1)[:, -self.top] - 2 * margin)
        is_near = keys >= floor[:, None].astype(keys.dtype)
        if not is_near.any():
            return
        queries, rows = np.nonzero(is_near)
        bounds = np.searchsorted(queries, np.arange(len(self.best) + 1))
        for query in np.flatnonzero(np.diff(bounds)):
            numbers = rows[bounds[query] : bounds[query + 1]]
            scores = score_rows(block.rows[numbers], self.queries[query], self.metric)
            self.add(int(query), block.start + numbers, scores.astype(self.dtype))

    def approximate(self, block: RowBlock) -> tuple[Array, Array]:
        """Keys (Q, R), the larger the nearer, and how far rounding can move them (Q)."""
        keys, unit = block.products, _unit(block)
        if self.metric == "cosine":  # |q| cos, and 0 for a row of zeros
            keys /= np.maximum(block.lengths, np.finfo(keys.dtype).tiny, out=block.lengths)
            return keys, unit * self.lengths
        largest = float(block.lengths.max())
        if self.metric == "euclidean":  # |q − r|² = |q|² − 2 (q·r − |r|²/2)
            keys -= np.square(block.lengths) / 2
            return keys, unit * np.square(self.lengths + largest)
        return keys, unit * self.lengths * largest

    def add(self, query: int, indices: Array, scores: Array) -> None:
        """Add rows to the nearest of a query, and drop those that no longer are."""
        indices = np.concatenate([self.best[query][0], indices])
        scores = np.concatenate([self.best[query][1], scores])
        order = np.lexsort((indices, scores if self.metric == "euclidean" else -scores))[: self.top]
        self.best[query] = indices[order], scores[order]
        if len(order) == self.top:
            self.limits[query] = max(self.limits[query], self.limit(query, float(scores[order[-1]])))

    def limit(self, query: int, score: float) -> float:
        """Least key of a row with that score, which is rounded to the result's dtype."""
        slack = float(np.finfo(self.dtype).eps)
        if self.metric == "euclidean":
            square = float(self.lengths[query]) * float(self.lengths[query])
            least: float = (square - score * score) / 2 - slack * (square + score * score)
            return least
        return (score - slack * abs(score)) * (float(self.lengths[query]) if self.metric == "cosine" else 1)


def _scaled(x: Array) -> Array:
    """Scale vectors by a power of two, which is exact, to elements near 1."""
    scaled: Array = np.ldexp(x, -np.frexp(np.abs(x).max(axis=-1, keepdims=True, initial=0))[1])
    return scaled


@quiet
def _length(x: Array) -> Array:
    return np.asarray(np.sqrt(np.square(x).sum(axis=-1)))


@quiet
def _multiply(rows: Array, queries: Array) -> tuple[Array, Array]:
    """Products of queries with rows, and the squared lengths of the rows.

    rows (R, D), queries (Q, D) -> (Q, R), (R); a piece of the rows is read once, and used while it is in the cache
    """
    products, squares = np.empty((len(queries), len(rows)), queries.dtype), np.empty(len(rows), queries.dtype)
    for part in split_range(0, len(rows), _piece_rows(rows)):
        piece = rows[part].astype(queries.dtype, copy=False)
        np.vecdot(piece, piece, out=squares[part])
        np.matmul(queries, piece.T, out=products[:, part])
    return products, squares


def _piece_rows(vectors: Array) -> int:
    most = PIECE // max(int(vectors.shape[1]), 1)
    return max(most // 4, min(most, PIECE_ROWS), 1)


def _is_safe(squares: Array) -> bool:
    return bool(SAFE[0] < squares.min(initial=1) and squares.max(initial=1) < SAFE[1])


def _unit(block: RowBlock) -> float:
    """Doubled bound of the error of a product of two vectors of length 1."""
    unit: float = 2 * (block.rows.shape[1] + 16) * float(np.finfo(block.products.dtype).eps)
    return unit


def _check_finite(rows: Array, lengths: Array, start: int, kind: str) -> None:
    """Raise DataError for the first row whose length is not finite."""
    if np.isfinite(lengths).all():
        return
    at = int(np.argmin(np.isfinite(lengths)))
    value = rows[at].astype(np.float64)
    value = value[~np.isfinite(value)]
    raise DataError.about(kind, f"{start + at} {f'has {value[0]}' if value.size else 'is too long for float64'}")
