"""Adjoints of the score functions and of softmax."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from attnkit.model.backward.linear import sum_to_shape
from attnkit.model.dtypes import Array
from attnkit.model.scores import grouped, product

Gradients = dict[str, Array]
Params = Mapping[str, Array]


def softmax_backward(grad: Array, weights: Array) -> Array:
    """Return the gradient of the scores of a softmax: dS = P (dP - sum of P dP over the row).

    grad (..., S), weights (..., S) -> (..., S)

    The Jacobian of a row is diag(P) - P P^T. A row of weights zero has a gradient of zero, and so has a weight of
    zero, even if its gradient is not finite.

    >>> softmax_backward(np.array([1.0, 0.0, np.inf]), np.array([0.5, 0.5, 0.0])).round(2) + 0.0
    array([ 0.25, -0.25,  0.  ])
    """
    if not np.isfinite(grad.sum()):
        grad = np.where(weights == 0, 0, grad)
    scores: Array = weights * (grad - (weights * grad).sum(axis=-1, keepdims=True))
    return scores


def product_backward(grad: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Return the gradients of `product`, which multiplies head h of x by head h // (H/G) of y.

    grad (..., H, T, N), x (..., H, T, M), y (..., G, M, N) -> (..., H, T, M), (..., G, M, N)

    dX = dZ Y^T, and dY = X^T dZ, summed over the heads that share y.

    >>> x, y = np.array([[[1.0]], [[2.0]]]), np.array([[[3.0]]])
    >>> [part.ravel().tolist() for part in product_backward(np.array([[[1.0]], [[10.0]]]), x, y)]
    [[3.0, 30.0], [21.0]]
    """
    groups = y.shape[-3]
    shared: Array = np.swapaxes(grouped(x, groups), -1, -2) @ grouped(grad, groups)
    return product(grad, np.swapaxes(y, -1, -2)), shared


def dot_backward(grad: Array, q: Array, k: Array, params: Params) -> tuple[Array, Array, Gradients]:
    """Return the gradients of Q K^T: dQ = dS K and dK = dS^T Q.

    grad (..., H, T, S), q (..., H, T, K), k (..., G, S, K) -> (..., H, T, K), (..., G, S, K), {}

    >>> q, k = np.array([[[2.0, 3.0]]]), np.array([[[5.0, 7.0]]])
    >>> [part.tolist() for part in dot_backward(np.array([[[10.0]]]), q, k, {})[:2]]
    [[[[50.0, 70.0]]], [[[20.0, 30.0]]]]
    """
    dq, dk = product_backward(grad, q, np.swapaxes(k, -1, -2))
    return dq, np.swapaxes(dk, -1, -2), {}


def additive_scores_backward(grad: Array, q: Array, k: Array, params: Params) -> tuple[Array, Array, Gradients]:
    """Return the gradients of tanh(q + k) . va, with respect to projected queries, projected keys and va.

    grad (..., H, T, S), q (..., H, T, A), k (..., G, S, A), va (A,) -> (..., H, T, A), (..., G, S, A), {"va": (A,)}

    With t = tanh(q + k): dva = sum of dS t, and dq = sum over the keys of dS va (1 - t^2), dk over the queries.

    >>> zero, va = np.zeros((1, 1, 1)), {"va": np.array([2.0])}
    >>> dq, dk, params = additive_scores_backward(np.array([[[3.0]]]), zero, zero, va)
    >>> dq.item(), dk.item(), params["va"].tolist()
    (6.0, 6.0, [0.0])
    """
    groups, va = k.shape[-3], params["va"]
    tanh = np.tanh(grouped(q, groups)[..., :, None, :] + k[..., None, :, :])  # (..., G, H/G*T, S, A)
    rows = grouped(grad, groups)[..., None]  # (..., G, H/G*T, S, 1)
    dva = (rows * tanh).sum(axis=tuple(range(tanh.ndim - 1)))
    inner = rows * va.reshape(-1) * (1 - tanh * tanh)
    return inner.sum(axis=-2).reshape(q.shape), inner.sum(axis=-3), {"va": dva.reshape(va.shape)}


def identity_backward(dq: Array, dk: Array, q: Array, k: Array, params: Params) -> tuple[Array, Array, Gradients]:
    """Return the gradients of queries and keys that are not projected: the same."""
    return dq, dk, {}


def project_general_backward(
    dq: Array, dk: Array, q: Array, k: Array, params: Params
) -> tuple[Array, Array, Gradients]:
    """Return the gradients of q W, with respect to the queries before it, the keys, and W.

    dq (..., H, T, L), dk (..., G, S, L), q (..., H, T, K), k (..., G, S, L), w (K, L) or (H, K, L)
    -> (..., H, T, K), (..., G, S, L), {"w": (K, L) or (H, K, L)}

    >>> one = np.ones((1, 1, 1))
    >>> dq, _, params = project_general_backward(10 * one, one, 2 * one, one, {"w": np.array([[3.0]])})
    >>> dq.item(), params["w"].item()
    (30.0, 20.0)
    """
    w = params["w"]
    return dq @ np.swapaxes(w, -1, -2), dk, {"w": sum_to_shape(np.swapaxes(q, -1, -2) @ dq, w.shape)}


def project_additive_backward(
    dq: Array, dk: Array, q: Array, k: Array, params: Params
) -> tuple[Array, Array, Gradients]:
    """Return the gradients of q Wa and k Ua, with respect to queries and keys before them, Wa and Ua.

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


class ScoreAdjoint(NamedTuple):
    """The adjoints of a score function: of the projection of queries and keys, and of the scores of what it returns."""

    project: Callable[[Array, Array, Array, Array, Params], tuple[Array, Array, Gradients]]
    score: Callable[[Array, Array, Array, Params], tuple[Array, Array, Gradients]]


SCORE_ADJOINTS = {
    "scaled-dot": ScoreAdjoint(identity_backward, dot_backward),
    "dot": ScoreAdjoint(identity_backward, dot_backward),
    "additive": ScoreAdjoint(project_additive_backward, additive_scores_backward),
    "general": ScoreAdjoint(project_general_backward, dot_backward),
}
