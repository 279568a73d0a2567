"""Late interaction: a score of two texts by a vector for each of their tokens."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import Array, quiet, working
from attnkit.model.formulas.nearest import Nearest
from attnkit.model.processor.threads import run_parallel

LATE_METRICS = ("maxsim", "meanmaxsim")
BLOCK = 3 << 18  # numbers of the vectors that are multiplied at a time


def token_similarities(query: Array, document: Array) -> Array:
    """Dot products of the tokens of two texts in float64.

    query (R, D), document (S, D) -> (R, S)

    Each is the same sum wherever its vectors are.

    >>> token_similarities(np.array([[1.0, 0], [0, 1]]), np.array([[0.6, 0.8]])).tolist()
    [[0.6], [0.8]]
    """
    rows = document.astype(np.float64)
    return np.stack([(rows * one).sum(axis=-1) for one in query.astype(np.float64)])


def max_similarity(query: Array, document: Array) -> float:
    """Sum over the tokens of a query of the largest product with a document's.

    query (R, D), document (S, D); there is no padding in either, which could win against negative products.

    Source: Khattab and Zaharia 2020, equation 3.

    >>> query = np.array([[1.0, 0], [0, 1]])
    >>> max_similarity(query, np.array([[-0.6, -0.8]])), max_similarity(query, np.array([[0.8, 0.6], [0.6, 0.8]]))
    (-1.4, 1.6)
    """
    return float(token_similarities(query, document).max(axis=1).sum())


def find_nearest_texts(
    vectors: Array,
    lengths: Array,
    queries: Sequence[Array],
    top: int,
    metric: str = "maxsim",
    release: Callable[[Array], None] = lambda rows: None,
) -> Nearest:
    """The nearest texts by the vectors of their tokens, one text after another.

    vectors (N, D), lengths (M,) of the texts, queries of (R, D) -> indices (Q, top), scores (Q, top)

    Products in the dtype of the vectors select candidates: all texts that may be among the nearest, given how far
    rounding can move a score. These are scored in float64, and the result is rounded. Of equal scores the lower index
    comes first. `meanmaxsim` divides by the tokens of the query. DataError for a text without vectors, or for numbers
    that are not finite.

    >>> rows = np.array([[-0.6, -0.8], [0.8, 0.6], [0.6, 0.8]])
    >>> found = find_nearest_texts(rows, np.array([1, 2]), [np.eye(2)], 2)
    >>> found.indices.tolist(), found.scores.tolist()
    ([[1, 0]], [[1.6, -1.4]])
    """
    if not lengths.all():
        raise DataError.about("text", f"{int(np.argmin(lengths))} of the index has no vectors")
    for number, query in enumerate(queries):
        if not (len(query) and np.isfinite(query).all()):
            problem = "has no vectors" if not len(query) else "has a number that is not finite"
            raise DataError.about("query", f"{number} {problem}")
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    scores = _approximate(vectors, starts, lengths, queries, release)
    dtype = working(vectors, *queries)
    indices, exact = [], []
    for number, query in enumerate(queries):
        likely = _find_candidates(scores[:, number], top, _bound(vectors.shape[1], query, working(vectors)))
        divisor = len(query) if metric == "meanmaxsim" else 1
        each = [max_similarity(query, vectors[starts[at] : starts[at] + lengths[at]]) / divisor for at in likely]
        rounded = np.array(each).astype(dtype)
        order = np.lexsort((likely, -rounded))[:top]
        indices.append(likely[order])
        exact.append(rounded[order])
    return Nearest(np.stack(indices), np.stack(exact))


def _approximate(
    vectors: Array, starts: Array, lengths: Array, queries: Sequence[Array], release: Callable[[Array], None]
) -> Array:
    """Scores of all texts (M, Q), by blocks of whole texts."""
    dtype = working(vectors)
    columns = np.concatenate(queries).astype(dtype).T
    firsts = np.concatenate(([0], np.cumsum([len(query) for query in queries])[:-1]))
    scores = np.empty((len(starts), len(queries)))
    width = max(columns.shape[0], columns.shape[1])

    def work(blocks: Iterator[tuple[int, int]]) -> None:
        for first, last in blocks:
            begin, end = starts[first], starts[last - 1] + lengths[last - 1]
            rows = vectors[begin:end]
            products = _multiply(rows.astype(dtype, copy=False), columns)
            release(rows)
            largest = np.maximum.reduceat(products, starts[first:last] - begin, axis=0)
            scores[first:last] = np.add.reduceat(largest, firsts, axis=1, dtype=np.float64)
            if not np.isfinite(scores[first:last]).all():
                at = first + int(np.argmin(np.isfinite(scores[first:last]).all(axis=1)))
                raise DataError.about("text", f"{at} of the index has numbers that are not finite, or too large")

    run_parallel(work, _split_texts(starts, lengths, max(BLOCK // width, 1)))
    return scores


@quiet
def _multiply(rows: Array, columns: Array) -> Array:
    products: Array = rows @ columns
    return products


def _split_texts(starts: Array, lengths: Array, rows: int) -> list[tuple[int, int]]:
    """Split texts into ranges of about as many vectors.

    >>> _split_texts(np.array([0, 2, 5]), np.array([2, 3, 1]), 4)
    [(0, 1), (1, 3)]
    """
    blocks, first = [], 0
    for at in range(1, len(starts) + 1):
        if at == len(starts) or starts[at] + lengths[at] - starts[first] > rows:
            blocks.append((first, at))
            first = at
    return blocks


def _bound(width: int, query: Array, dtype: np.dtype) -> float:
    """How far rounding can move the score of a query with unit vectors, generously."""
    longest = np.sqrt(np.square(query.astype(np.float64)).sum(axis=1)).sum()
    return float(4 * (width + 2) * np.finfo(dtype).eps * longest)


def _find_candidates(scores: Array, top: int, bound: float) -> Array:
    """The texts whose score may be among the largest, if each is off by a bound."""
    if top >= len(scores):
        return np.arange(len(scores))
    limit = np.partition(scores, -top)[-top]
    slack = 2 * bound * max(1.0, float(np.abs(scores).max()))
    return np.flatnonzero(scores >= limit - slack)
