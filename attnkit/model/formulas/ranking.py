"""The quality of rankings by grades of relevance: nDCG, recall, reciprocal rank.

The definitions are those of trec_eval: a grade itself is the gain, a grade of 0 or less is not relevant.
"""

import numpy as np

from attnkit.model.dtypes import Array


def discounted_gain(grades: Array) -> float:
    """The gains of a ranking, each divided by log2 of its rank + 1: grades (N) -> DCG.

    >>> discounted_gain(np.array([1.0, 0, 2]))
    2.0
    """
    return float((np.maximum(grades, 0) / np.log2(np.arange(2, len(grades) + 2))).sum())


def normalized_gain(grades: Array, judged: Array, cutoff: int) -> float:
    """The discounted gain of the first ranks, divided by the largest possible (nDCG).

    grades  (N) of the ranks, and judged (M) all grades of the query; 0 if nothing is relevant

    >>> round(normalized_gain(np.array([0.0, 1]), np.array([1.0, 0]), 10), 6)
    0.63093
    """
    best = discounted_gain(-np.sort(-judged)[:cutoff])
    return discounted_gain(grades[:cutoff]) / best if best else 0.0


def recall_at(grades: Array, judged: Array, cutoff: int) -> float:
    """The share of the relevant documents that is among the first ranks.

    >>> recall_at(np.array([0.0, 1, 0, 2]), np.array([1.0, 2, 1]), 2)
    0.3333333333333333
    """
    relevant = int((judged > 0).sum())
    return int((grades[:cutoff] > 0).sum()) / relevant if relevant else 0.0


def reciprocal_rank(grades: Array, cutoff: int) -> float:
    """One divided by the rank of the first relevant document, 0 if none is ranked.

    >>> reciprocal_rank(np.array([0.0, 0, 1]), 10)
    0.3333333333333333
    """
    found = np.flatnonzero(grades[:cutoff] > 0)
    return 1 / (int(found[0]) + 1) if found.size else 0.0
