"""Score functions of queries and keys: dot product, general, additive."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array
from attnkit.model.kernels.products import stacked_product
from attnkit.model.linear import check_inner


def grouped(x: Array, groups: int) -> Array:
    """Stack the query heads of one key head into one matrix: (..., H, T, K) -> (..., G, H/G*T, K)."""
    heads, queries, width = x.shape[-3:]
    return x.reshape(*x.shape[:-3], groups, heads // groups * queries, width)


def product(x: Array, y: Array) -> Array:
    """Multiply head h of x by head h // (H/G) of y: x (..., H, T, M), y (..., G, M, N) -> (..., H, T, N)."""
    return stacked_product(grouped(x, y.shape[-3]), y).reshape(*x.shape[:-1], y.shape[-1])


def dot(q: Array, k: Array, params: Mapping[str, Array] | None = None) -> Array:
    """Return the dot product of each query and key, Q K^T.

    q (..., H, T, K), k (..., G, S, K) -> (..., H, T, S)

    >>> dot(np.array([[[2.0, 3.0]]]), np.array([[[1.0, 0.0], [1.0, 1.0]]])).tolist()
    [[[2.0, 5.0]]]
    """
    return product(q, np.swapaxes(k, -1, -2))


def identity(q: Array, k: Array, params: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return queries and keys unchanged."""
    return q, k


def project_general(q: Array, k: Array, params: Mapping[str, Array]) -> tuple[Array, Array]:
    """Project queries so that their dot products with keys are q W k^T (Luong et al. 2015, section 3.1).

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


def project_additive(q: Array, k: Array, params: Mapping[str, Array]) -> tuple[Array, Array]:
    """Project queries and keys to the space where `additive_scores` adds them.

    q (..., H, T, K), k (..., G, S, L), wa (K, A), ua (L, A), va (A,) -> (..., H, T, A), (..., G, S, A)
    """
    wa, ua, va = params["wa"], params["ua"], _vector(params["va"])
    check_inner(q, wa, ("Q", "wa"))
    check_inner(k, ua, ("K", "ua"))
    if not wa.shape[1:] == ua.shape[1:] == va.shape:
        names = f"wa {as_text(wa.shape)}, ua {as_text(ua.shape)} and va {as_text(va.shape)}"
        raise DataError(f"{names}: last dimensions differ")
    return q @ wa, k @ ua


def additive_scores(q: Array, k: Array, params: Mapping[str, Array]) -> Array:
    """Return tanh(q Wa + k Ua) . va of projected queries and keys (Bahdanau et al. 2015, appendix A.1.2).

    q (..., H, T, A), k (..., G, S, A), va (A,) -> (..., H, T, S)

    >>> x, one = np.array([[[0.5]]]), np.ones((1, 1))
    >>> params = {"wa": one, "ua": one, "va": np.array([2.0])}
    >>> additive_scores(*project_additive(x, x, params), params).round(4).tolist()
    [[[1.5232]]]
    """
    rows = grouped(q, k.shape[-3])[..., :, None, :]  # (..., G, H/G*T, 1, A)
    scores: Array = np.tanh(rows + k[..., None, :, :]) @ _vector(params["va"])
    return scores.reshape(*q.shape[:-1], k.shape[-2])


def _vector(va: Array) -> Array:
    """Return the vector of a linear layer with one output."""
    return va.reshape(-1) if va.ndim == 2 and 1 in va.shape else va


class Score(NamedTuple):
    """A score function: its parameters, the projection of queries and keys, and the scores of what it returns."""

    parameters: tuple[str, ...]
    project: Callable[[Array, Array, Mapping[str, Array]], tuple[Array, Array]]
    score: Callable[[Array, Array, Mapping[str, Array]], Array]


SCORES = {
    "scaled-dot": Score((), identity, dot),
    "dot": Score((), identity, dot),
    "additive": Score(("wa", "ua", "va"), project_additive, additive_scores),
    "general": Score(("w",), project_general, dot),
}
