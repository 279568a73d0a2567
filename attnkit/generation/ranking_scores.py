"""The quality of rankings: nDCG, recall and MRR of near and of rerankers."""

import warnings
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from attnkit.errors import AttnkitWarning, DataError, counted
from attnkit.model.formulas.ranking import normalized_gain, recall_at, reciprocal_rank
from attnkit.records import Array, Record, Tensor

MEASURES = ("ndcg", "recall", "mrr")
BY_QUERY = "_by_query"  # ends the names of the scores of each query
Judgments = Mapping[int, Mapping[int, float]]  # query -> row -> grade


def measure_rankings(rankings: Iterable[Record], judgments: Record, cutoff: int | None) -> Record:
    """The mean scores of rankings, and those of each query.

    rankings   records with `rows` (rank) or (query, rank), whose queries are numbered from 0, one after the other
    judgments  x (N, 2) or (N, 3): query, row and grade [1]
    cutoff     ranks that count [all]

    A query without a judgment does not count, as in trec_eval. DataError for rows that are no numbers of documents, and
    for a judgment of a query that is not there.
    """
    grades = read_judgments(judgments["x"])
    ranked = [row for number, record in enumerate(rankings) for row in read_rows(record, number)]
    if not ranked:
        raise DataError("there is no ranking")
    if beyond := [query for query in grades if query >= len(ranked)]:
        raise DataError(f"query {beyond[0]} is judged, and the last ranking is that of {len(ranked) - 1}", "--relevant")
    left_out = len(ranked) - len(grades)
    if left_out:
        problem = (
            f"{counted(left_out, 'ranking')} of a query without a judgment {'is' if left_out == 1 else 'are'} left out"
        )
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    cutoff = cutoff or max(map(len, ranked))
    columns: dict[str, list[float]] = {name: [] for name in MEASURES}
    for query in sorted(grades):
        of_ranks = np.array([grades[query].get(row, 0.0) for row in ranked[query].tolist()])
        judged = np.array([*grades[query].values()])
        columns["ndcg"].append(normalized_gain(of_ranks, judged, cutoff))
        columns["recall"].append(recall_at(of_ranks, judged, cutoff))
        columns["mrr"].append(reciprocal_rank(of_ranks, cutoff))
    tensors = {name: Tensor(np.array(np.mean(values)), ()) for name, values in columns.items()}
    tensors |= {"queries": Tensor(np.array(len(grades)), ()), "at": Tensor(np.array(cutoff), ())}
    labels = {"query": [str(query) for query in sorted(grades)]}
    rows = {f"{name}{BY_QUERY}": Tensor(np.array(values), ("query",)) for name, values in columns.items()}
    return Record({}).with_tensors(tensors | rows, labels)


def read_rows(record: Record, number: int) -> list[Array]:
    """The rows of each ranking of a record.

    number  of the record, for errors
    """
    rows = record.get("rows")
    if rows is None or rows.ndim not in (1, 2) or rows.dtype.kind not in "iu":
        shape = "no rows" if rows is None else f"rows {rows.dtype} {rows.shape}"
        raise DataError(f"record {number} has {shape} (expected those of near or decode --rerank)")
    for row in np.atleast_2d(rows):
        if len(np.unique(row)) != len(row):
            raise DataError(f"record {number}: a row is ranked twice")
    return [*np.atleast_2d(rows)]


def read_judgments(table: Array) -> Judgments:
    """The grade of each row that is judged, by query.

    >>> read_judgments(np.array([[0, 4], [0, 2], [1, 4]]))
    {0: {4: 1.0, 2: 1.0}, 1: {4: 1.0}}
    """
    error = partial(DataError, name="--relevant")
    if table.ndim != 2 or table.shape[1] not in (2, 3) or not len(table):
        raise error(f"shape {table.shape} (expected a line for each judgment: query, row and perhaps grade)")
    numbers = table.astype(np.float64)
    whole = numbers[:, :2]
    if not np.isfinite(numbers).all() or (whole < 0).any() or (whole != np.floor(whole)).any():
        raise error("queries and rows are whole numbers from 0, and grades are finite")
    grades: dict[int, dict[int, float]] = {}
    for query, row, *grade in numbers.tolist():
        of_query = grades.setdefault(int(query), {})
        if int(row) in of_query:
            raise error(f"row {int(row)} is judged twice for query {int(query)}")
        of_query[int(row)] = grade[0] if grade else 1.0
    return grades
