"""Disentangled attention (He et al. 2021): scores that depend on distances.

score(query i, key j) = (q_i · k_j + q_i · K[d] + k_j · Q[d]) · scale, where d is the row of the distance i − j in a
table of embeddings, K is the table projected to keys, and Q projected to queries.
"""

from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, DType, cast
from attnkit.model.formulas.linear import linear, linear_backward
from attnkit.model.formulas.norms import layer_norm, layer_norm_vjp
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.processor.products import PLAIN, Products, whole_tiles_product


class RelativePositions(NamedTuple):
    """Embeddings of distances, and their projections to keys and queries.

    places       (T, S) the row of the table for each query and key
    table        (R, D), to which a norm with gamma and beta (D,) is applied if there is a gamma
    wk, bk       (D, H*K), (H*K,) to keys, which queries are multiplied by; None: these scores are left out
    wq, bq       the same to queries, which keys are multiplied by
    """

    places: Array
    table: Array
    gamma: Array | None = None
    beta: Array | None = None
    eps: float = 1e-7
    wk: Array | None = None
    bk: Array | None = None
    wq: Array | None = None
    bq: Array | None = None

    def rows(self, dtype: DType) -> Array:
        """Rows of the table after its norm: (R, D)."""
        table = cast(self.table, dtype)
        return table if self.gamma is None else layer_norm(table, self.gamma, self.beta, eps=self.eps).y


def relative_scores(q: Array, k: Array, relative: RelativePositions, products: Products = PLAIN) -> Array:
    """Scores of queries and keys with the distances between them, unscaled.

    q (..., H, T, K), k (..., H, S, K) -> (..., H, T, S)

    DataError if the places have another shape.

    >>> one, table = np.array([[[1.0], [2.0]]]), np.array([[10.0], [20.0], [30.0]])
    >>> index = np.array([[1, 0], [2, 1]])
    >>> relative_scores(one, one, RelativePositions(index, table, wk=np.eye(1))).tolist()  # q_i · table[d]
    [[[20.0, 10.0], [60.0, 40.0]]]
    >>> relative_scores(one, one, RelativePositions(index, table, wq=np.eye(1))).tolist()  # k_j · table[d]
    [[[20.0, 20.0], [30.0, 40.0]]]
    """
    shape = q.shape[-2], k.shape[-2]
    if relative.places.shape != shape:
        raise DataError(
            f"relative positions {as_text(relative.places.shape)} for {shape[0]} queries and {shape[1]} keys"
        )
    rows, scores = relative.rows(q.dtype), np.zeros((*q.shape[:-1], shape[1]), q.dtype)
    if relative.wk is not None:
        scores += _gather(
            _with_rows(q, linear(rows, relative.wk, relative.bk, products=products), products), relative.places
        )
    if relative.wq is not None:
        projected = linear(rows, relative.wq, relative.bq, products=products)
        scores += np.swapaxes(_gather(_with_rows(k, projected, products), relative.places.T), -1, -2)
    return scores


def relative_scores_backward(grad_output: Array, q: Array, k: Array, relative: RelativePositions) -> dict[str, Array]:
    """Gradients of queries, keys and parameters of relative positions, by name.

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
    named: dict[str, Array | None] = {}
    sides = (
        ("q", q, grad_output, relative.places, "k", relative.wk, relative.bk),
        ("k", k, np.swapaxes(grad_output, -1, -2), relative.places.T, "q", relative.wq, relative.bq),
    )
    for name, x, gradient, places, letter, weight, bias in sides:
        if weight is None:
            continue
        heads, width = x.shape[-3], x.shape[-1]
        distances = linear(rows, weight, bias).reshape(len(rows), heads, width).swapaxes(0, 1)  # (H, R, K)
        spread = _scatter(gradient, places, len(rows))  # (..., H, T, R)
        gradients[name] = spread @ distances
        each = (np.swapaxes(spread, -1, -2) @ x).reshape(-1, heads, len(rows), width).sum(axis=0)
        parts = linear_backward(each.swapaxes(0, 1).reshape(len(rows), heads * width), rows, weight, bias)
        drows = drows + parts.x
        named |= {f"w{letter}": parts.weight, f"b{letter}": parts.bias}
    named["table"] = drows
    if relative.gamma is not None:
        norm = layer_norm_vjp(relative.table, relative.gamma, relative.beta, eps=relative.eps)[1](drows)
        named |= {"table": norm.x, "gamma": norm.gamma, "beta": norm.beta}
    return gradients | {name: part for name, part in named.items() if part is not None}


def _scatter(gradient: Array, places: Array, rows: int) -> Array:
    """Add the gradient of each score to its row: (..., T, S), (T, S) -> (..., T, R)."""
    queries = len(places)
    flat = (np.arange(queries)[:, None] * rows + places).ravel()
    sums = [np.bincount(flat, one.ravel(), queries * rows) for one in gradient.reshape(-1, places.size)]
    spread: Array = np.array(sums).reshape(*gradient.shape[:-1], rows).astype(gradient.dtype)
    return spread


def add_relative_scores(
    bias: Array | None,
    q: Array,
    k: Array,
    relative: RelativePositions | None,
    scale: float,
    hook: Hook = no_hook,
    products: Products = PLAIN,
) -> Array | None:
    """Add the scaled scores of relative positions, if there are any, to a bias.

    q (..., H, T, K), k (..., H, S, K), as `project_heads` returns them -> (..., H, T, S)

    >>> relative = RelativePositions(np.array([[1]]), np.array([[3.0], [5.0]]), wk=np.eye(1))
    >>> one = np.array([[[2.0]]])
    >>> add_relative_scores(None, one, one, relative, 0.5).tolist(), add_relative_scores(None, one, one, None, 0.5)
    ([[[5.0]]], None)
    """
    if relative is None:
        return bias
    scores = apply_hook(hook, "relative", relative_scores(q, k, relative, products) * q.dtype.type(scale))
    return scores if bias is None else scores + bias


def _with_rows(x: Array, rows: Array, products: Products) -> Array:
    """Products of heads with rows: (..., H, T, K), (R, H*K) -> (..., H, T, R)."""
    columns = np.ascontiguousarray(rows.reshape(len(rows), x.shape[-3], -1).transpose(1, 2, 0))
    return whole_tiles_product(x, columns, products.stacked)


def _gather(scores: Array, index: Array) -> Array:
    """Scores of each row at an index: (..., T, R), (T, S) -> (..., T, S)."""
    return np.take_along_axis(scores, index.reshape(*(1,) * (scores.ndim - 2), *index.shape), axis=-1)


def distance_rows(queries: Array, keys: Array, span: int, longest: int = 0) -> Array:
    """Row of a table of 2·span distances for each query and key.

    queries (T,), keys (S,) -> (T, S)

    Near distances are exact, far ones logarithmic. The row is span + d for a distance d = query − key; distances
    outside the table use its first or last row. With `longest`, distances from span/2 on share rows, so that `longest`
    − 1 is the last that has one. Computed in float32, as by the published code (He et al. 2021, DeBERTa).

    >>> distance_rows(np.array([1]), np.arange(4), 2).tolist()
    [[3, 2, 1, 0]]
    """
    distance = np.asarray(queries)[:, None] - np.asarray(keys)[None, :]
    if longest:
        middle = span // 2
        far = np.maximum(np.abs(distance), middle).astype(np.float32) / np.float32(middle)
        growth = np.log(far) / np.log(np.float32((longest - 1) / middle))
        steps = np.ceil(growth * np.float32(middle - 1)).astype(np.int64) + middle
        distance = np.where(np.abs(distance) <= middle, distance, steps * np.sign(distance))
    rows: Array = np.clip(distance + span, 0, 2 * span - 1).astype(np.int64)
    return rows
