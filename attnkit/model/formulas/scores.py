"""Score functions of queries and keys, with adjoints: dot, general, additive."""

from collections.abc import Callable, Mapping
from operator import matmul
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array
from attnkit.model.formulas.linear import check_inner, sum_to_shape
from attnkit.model.processor.products import Multiply

Params = Mapping[str, Array]
Gradients = dict[str, Array]
Triple = tuple[Array, Array, Gradients]  # the gradients of queries, of keys, and of parameters by name


def grouped(x: Array, groups: int) -> Array:
    """Stack the query heads of a key head: (..., H, T, K) -> (..., G, H/G*T, K)."""
    heads, queries, width = x.shape[-3:]
    return x.reshape(*x.shape[:-3], groups, heads // groups * queries, width)


def product(x: Array, y: Array, multiply: Multiply = matmul) -> Array:
    """Multiply head h of x by head h // (H/G) of y.

    x (..., H, T, M), y (..., G, M, N) -> (..., H, T, N)
    """
    heads: Array = multiply(grouped(x, y.shape[-3]), y)
    return heads.reshape(*x.shape[:-1], y.shape[-1])


def product_backward(grad_output: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Gradients of `product`: dX = dZ Yᵀ, dY = Xᵀ dZ summed over shared heads.

    grad_output (..., H, T, N), x (..., H, T, M), y (..., G, M, N) -> (..., H, T, M), (..., G, M, N)

    >>> x, y = np.array([[[1.0]], [[2.0]]]), np.array([[[3.0]]])
    >>> [part.ravel().tolist() for part in product_backward(np.array([[[1.0]], [[10.0]]]), x, y)]
    [[3.0, 30.0], [21.0]]
    """
    groups = y.shape[-3]
    shared: Array = np.swapaxes(grouped(x, groups), -1, -2) @ grouped(grad_output, groups)
    return product(grad_output, np.swapaxes(y, -1, -2)), shared


def dot(q: Array, k: Array, params: Params | None = None, multiply: Multiply = matmul) -> Array:
    """Dot product of each query and key, Q K^T.

    q (..., H, T, K), k (..., G, S, K) -> (..., H, T, S)

    >>> dot(np.array([[[2.0, 3.0]]]), np.array([[[1.0, 0.0], [1.0, 1.0]]])).tolist()
    [[[2.0, 5.0]]]
    """
    return product(q, np.swapaxes(k, -1, -2), multiply)


def dot_backward(grad_output: Array, q: Array, k: Array, params: Params) -> Triple:
    """Gradients of Q Kᵀ: dQ = dS K and dK = dSᵀ Q.

    grad_output (..., H, T, S), q (..., H, T, K), k (..., G, S, K) -> (..., H, T, K), (..., G, S, K), {}

    >>> q, k = np.array([[[2.0, 3.0]]]), np.array([[[5.0, 7.0]]])
    >>> [part.tolist() for part in dot_backward(np.array([[[10.0]]]), q, k, {})[:2]]
    [[[[50.0, 70.0]]], [[[20.0, 30.0]]]]
    """
    dq, dk = product_backward(grad_output, q, np.swapaxes(k, -1, -2))
    return dq, np.swapaxes(dk, -1, -2), {}


def identity(q: Array, k: Array, params: Params) -> tuple[Array, Array]:
    """Queries and keys, unchanged."""
    return q, k


def project_general(q: Array, k: Array, params: Params) -> tuple[Array, Array]:
    """Project queries to dot products q W k^T (Luong et al. 2015, section 3.1).

    q (..., H, T, K), k (..., G, S, L), w (K, L) or (H, K, L) -> (..., H, T, L), (..., G, S, L)

    >>> x = np.array([[[1.0, 2.0]]])
    >>> dot(*project_general(x, x, {"w": np.array([[0.0, 1.0], [0.0, 0.0]])})).tolist()
    [[[2.0]]]
    """
    w = params["w"]
    expected = {(q.shape[-1], k.shape[-1]), (q.shape[-3], q.shape[-1], k.shape[-1])}
    if w.shape not in expected:
        pair = f"Q {as_text(q.shape)} and K {as_text(k.shape)}"
        raise DataError(f"w {as_text(w.shape)} for {pair}: expected {as_text((q.shape[-1], k.shape[-1]))}")
    return q @ w, k


def project_general_backward(dq: Array, dk: Array, q: Array, k: Array, params: Params) -> Triple:
    """Gradients of q W with respect to q, the keys and W.

    dq (..., H, T, L), dk (..., G, S, L), q (..., H, T, K), k (..., G, S, L), w (K, L) or (H, K, L)
    -> (..., H, T, K), (..., G, S, L), {"w": (K, L) or (H, K, L)}

    >>> one = np.ones((1, 1, 1))
    >>> dq, _, params = project_general_backward(10 * one, one, 2 * one, one, {"w": np.array([[3.0]])})
    >>> dq.item(), params["w"].item()
    (30.0, 20.0)
    """
    w = params["w"]
    return dq @ np.swapaxes(w, -1, -2), dk, {"w": sum_to_shape(np.swapaxes(q, -1, -2) @ dq, w.shape)}


def project_additive(q: Array, k: Array, params: Params) -> tuple[Array, Array]:
    """Project queries and keys for `additive_scores`, which adds them.

    q (..., H, T, K), k (..., G, S, L), wa (K, A), ua (L, A), va (A,) -> (..., H, T, A), (..., G, S, A)
    """
    wa, ua, va = params["wa"], params["ua"], _vector(params["va"])
    check_inner(q, wa, ("Q", "wa"))
    check_inner(k, ua, ("K", "ua"))
    if not wa.shape[1:] == ua.shape[1:] == va.shape:
        names = f"wa {as_text(wa.shape)}, ua {as_text(ua.shape)} and va {as_text(va.shape)}"
        raise DataError(f"{names}: last dimensions differ")
    return q @ wa, k @ ua


def project_additive_backward(dq: Array, dk: Array, q: Array, k: Array, params: Params) -> Triple:
    """Gradients of q Wa and k Ua with respect to q, k, Wa and Ua.

    dq (..., H, T, A), dk (..., G, S, A), q (..., H, T, K), k (..., G, S, L), wa (K, A), ua (L, A)
    -> (..., H, T, K), (..., G, S, L), {"wa": (K, A), "ua": (L, A)}

    >>> one, params = np.ones((1, 1, 1)), {"wa": np.array([[3.0]]), "ua": np.array([[5.0]])}
    >>> dq, dk, params = project_additive_backward(10 * one, 100 * one, 2 * one, 4 * one, params)
    >>> dq.item(), dk.item(), params["wa"].item(), params["ua"].item()
    (30.0, 500.0, 20.0, 400.0)
    """
    wa, ua = params["wa"], params["ua"]
    weights = {"wa": sum_to_shape(np.swapaxes(q, -1, -2) @ dq, wa.shape)}
    weights["ua"] = sum_to_shape(np.swapaxes(k, -1, -2) @ dk, ua.shape)
    return dq @ wa.T, dk @ ua.T, weights


def additive_terms(q: Array, k: Array) -> Array:
    """Hyperbolic tangents of the sums of every projected query and key.

    q (..., H, T, A), k (..., G, S, A) -> (..., G, H/G*T, S, A)
    """
    terms: Array = np.tanh(grouped(q, k.shape[-3])[..., :, None, :] + k[..., None, :, :])
    return terms


def additive_scores(q: Array, k: Array, params: Params, multiply: Multiply = matmul) -> Array:
    """tanh(q Wa + k Ua) · va of projected queries and keys.

    Source: Bahdanau et al. 2015, appendix A.1.2.

    q (..., H, T, A), k (..., G, S, A), va (A,) -> (..., H, T, S)

    >>> x, one = np.array([[[0.5]]]), np.ones((1, 1))
    >>> params = {"wa": one, "ua": one, "va": np.array([2.0])}
    >>> additive_scores(*project_additive(x, x, params), params).round(4).tolist()
    [[[1.5232]]]
    """
    scores: Array = additive_terms(q, k) @ _vector(params["va"])
    return scores.reshape(*q.shape[:-1], k.shape[-2])


def additive_scores_backward(grad_output: Array, q: Array, k: Array, params: Params) -> Triple:
    """Gradients of tanh(q + k) · va of projected queries, projected keys and va.

    grad_output (..., H, T, S), q (..., H, T, A), k (..., G, S, A), va (A,)
    -> (..., H, T, A), (..., G, S, A), {"va": (A,)}

    With t = tanh(q + k), dva is the sum of dS t, dq the sum of dS va (1 - t²) over the keys, dk over the queries.

    >>> zero, va = np.zeros((1, 1, 1)), {"va": np.array([2.0])}
    >>> dq, dk, params = additive_scores_backward(np.array([[[3.0]]]), zero, zero, va)
    >>> dq.item(), dk.item(), params["va"].tolist()
    (6.0, 6.0, [0.0])
    """
    groups, va = k.shape[-3], params["va"]
    tanh = additive_terms(q, k)  # (..., G, H/G*T, S, A)
    rows = grouped(grad_output, groups)[..., None]  # (..., G, H/G*T, S, 1)
    dva = (rows * tanh).sum(axis=tuple(range(tanh.ndim - 1)))
    inner = rows * va.reshape(-1) * (1 - tanh * tanh)
    return inner.sum(axis=-2).reshape(q.shape), inner.sum(axis=-3), {"va": dva.reshape(va.shape)}


def _vector(va: Array) -> Array:
    return va.reshape(-1) if va.ndim == 2 and 1 in va.shape else va


def identity_backward(dq: Array, dk: Array, q: Array, k: Array, params: Params) -> Triple:
    """Gradients of queries and keys that are not projected: the same."""
    return dq, dk, {}


class Score(NamedTuple):
    """A score function: parameters, projections, scores, and their adjoints."""

    parameters: tuple[str, ...]
    project: Callable[[Array, Array, Params], tuple[Array, Array]]
    score: Callable[..., Array]
    project_backward: Callable[[Array, Array, Array, Array, Params], Triple]
    score_backward: Callable[[Array, Array, Array, Params], Triple]


SCORES = {
    "scaled-dot": Score((), identity, dot, identity_backward, dot_backward),
    "dot": Score((), identity, dot, identity_backward, dot_backward),
    "additive": Score(
        ("wa", "ua", "va"), project_additive, additive_scores, project_additive_backward, additive_scores_backward
    ),
    "general": Score(("w",), project_general, dot, project_general_backward, dot_backward),
}
