"""The adjoint of disentangled attention: of the scores of queries and keys with the distances between them."""

import numpy as np

from attnkit.model.attention import merge_heads, view_heads
from attnkit.model.backward.linear import linear_backward
from attnkit.model.backward.norms import layer_norm_backward
from attnkit.model.dtypes import Array
from attnkit.model.linear import linear
from attnkit.model.relative import RelativePositions


def relative_scores_backward(grad_output: Array, q: Array, k: Array, relative: RelativePositions) -> dict[str, Array]:
    """Return the gradients of queries, keys and the parameters of relative positions, by their names.

    grad_output (..., H, T, S), q (..., H, T, K), k (..., H, S, K)
    -> {"q": (..., H, T, K), "k": (..., H, S, K), "table": (R, D), "wk": (D, H*K), ...}

    >>> relative = RelativePositions(np.array([[1]]), np.array([[3.0], [5.0]]), wk=np.eye(1))
    >>> one = np.array([[[2.0]]])  # the score is q · table[1] · wk
    >>> gradients = relative_scores_backward(np.array([[[1.0]]]), one, one, relative)
    >>> gradients["q"].tolist(), gradients["table"].tolist(), gradients["wk"].tolist()
    ([[[5.0]]], [[0.0], [2.0]], [[10.0]])
    """
    rows = relative.rows(q.dtype)
    gradients, drows = {"q": np.zeros_like(q), "k": np.zeros_like(k)}, np.zeros_like(rows)
    sides = (
        ("q", q, grad_output, relative.places, "k", relative.wk, relative.bk),
        ("k", k, np.swapaxes(grad_output, -1, -2), relative.places.T, "q", relative.wq, relative.bq),
    )
    for name, x, gradient, places, letter, weight, bias in sides:
        if weight is None:
            continue
        distances = view_heads(linear(rows, weight, bias), q.shape[-3])  # (H, R, K)
        spread = _scatter(gradient, places, len(rows))  # (..., H, T, R)
        gradients[name] = spread @ distances
        each = np.swapaxes(spread, -1, -2) @ x
        parts = linear_backward(merge_heads(each.reshape(-1, *distances.shape).sum(axis=0)), rows, weight, bias)
        drows = drows + parts.x
        pair = {f"w{letter}": parts.weight, f"b{letter}": parts.bias}
        gradients |= {key: part for key, part in pair.items() if part is not None}
    return gradients | _undo_norm(drows, relative)


def _scatter(gradient: Array, places: Array, rows: int) -> Array:
    """Add the gradient of each score to that of its row: (..., T, S), (T, S) -> (..., T, R)."""
    queries = len(places)
    flat = (np.arange(queries)[:, None] * rows + places).ravel()
    sums = [np.bincount(flat, one.ravel(), queries * rows) for one in gradient.reshape(-1, places.size)]
    spread: Array = np.array(sums).reshape(*gradient.shape[:-1], rows).astype(gradient.dtype)
    return spread


def _undo_norm(drows: Array, relative: RelativePositions) -> dict[str, Array]:
    """Return the gradients of the table, and of its norm if it has one."""
    if relative.gamma is None:
        return {"table": drows}
    parts = layer_norm_backward(drows, relative.table, relative.gamma, relative.beta, eps=relative.eps)
    norm = {"gamma": parts.gamma, "beta": parts.beta}
    return {"table": parts.x} | {key: part for key, part in norm.items() if part is not None}
