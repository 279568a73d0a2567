"""Attention heads by weights alone: OV circuits, and composition of heads.

Weights are used as they are stored: without biases, rotations, and the scales of norms. Source: A Mathematical
Framework for Transformer Circuits (transformer-circuits.pub/2021/framework).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnkit.model.dtypes import Array, cast, working

ROWS = 4096  # words of the vocabulary multiplied at a time
MODES = ("q", "k", "v")


class HeadWeights(NamedTuple):
    """Projections of each head of a layer: q, k (H, D, K), v (H, D, V), o (H, V, D)."""

    q: Array
    k: Array
    v: Array
    o: Array


def split_projections(params: Mapping[str, Array], heads: int) -> HeadWeights:
    """Projections of each head; heads that share keys and values share them.

    params  wq (D, H*K), wk (D, G*K), wv (D, G*V), wo (H*V, D)

    >>> split_projections({"wq": np.eye(4), "wk": np.ones((4, 2)), "wv": np.ones((4, 2)), "wo": np.eye(4)}, 2).k.shape
    (2, 4, 2)
    """
    width = params["wq"].shape[1] // heads

    def split(w: Array) -> Array:
        groups = np.moveaxis(cast(w, working(w)).reshape(len(w), -1, width), 1, 0)  # (G, D, K)
        return np.repeat(groups, heads // len(groups), axis=0)

    q, k, v = (split(params[f"w{name}"]) for name in MODES)
    wo = params["wo"]
    return HeadWeights(q, k, v, cast(wo, working(wo)).reshape(heads, width, -1))


def vocabulary_product(head: Array, table: Array) -> Array:
    """Product of the output matrix and the embeddings, some words at a time.

    head (D, N), table (N, D) -> (D, D) float64

    >>> vocabulary_product(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    product = np.zeros((len(head), table.shape[1]))
    for start in range(0, len(table), ROWS):
        rows = slice(start, start + ROWS)
        product += head[:, rows].astype(np.float64) @ table[rows].astype(np.float64)
    return product


def copying_scores(weights: HeadWeights, product: Array) -> Array:
    """How much each head copies: Σ λ / Σ |λ| of its OV circuit from words to words.

    product (D, D), as of `vocabulary_product` -> (H,); 1: a word raises its own logit, -1: it lowers it

    The circuit is W_E W_V W_O W_U. The eigenvalues (N, N) are those of the small matrix W_O W_U W_E W_V, (V, V), and
    zeros. NaN if all are 0.

    >>> copying_scores(HeadWeights(*np.eye(2)[None].repeat(4, 0)[:, None]), np.diag([1.0, -3.0]))
    array([-0.5])
    """
    circuits = weights.o.astype(np.float64) @ product @ weights.v.astype(np.float64)
    if not np.isfinite(circuits).all():
        return np.full(len(circuits), np.nan)
    eigenvalues = np.linalg.eigvals(circuits)
    with np.errstate(invalid="ignore"):
        scores: Array = eigenvalues.sum(axis=-1).real / np.abs(eigenvalues).sum(axis=-1)
    return scores


def written_by(weights: HeadWeights) -> Array:
    """Matrices (H, V, D) with the norms of W_OV = W_V W_O in every later product.

    >>> np.abs(written_by(HeadWeights(*np.full((4, 1, 1, 1), 2.0)))).tolist()
    [[[4.0]]]
    """
    return np.asarray(reduce_left(weights.v) @ weights.o)


def read_by(weights: HeadWeights) -> dict[str, Array]:
    """Matrices (H, D, K) with the norms of what heads read, by MODES.

    The queries read with W_QK = W_Q W_Kᵀ, the keys with its transpose, the values with W_OV.

    >>> {mode: w.shape for mode, w in read_by(HeadWeights(*np.ones((3, 2, 4, 1)), np.ones((2, 1, 4)))).items()}
    {'q': (2, 4, 1), 'k': (2, 4, 1), 'v': (2, 4, 1)}
    """
    q, k, v, o = weights
    pairs = zip((q, k, v), (k, q, np.swapaxes(o, -1, -2)), strict=True)
    reading = (one @ np.swapaxes(reduce_left(other), -1, -2) for one, other in pairs)
    return dict(zip(MODES, reading, strict=True))


def composition_scores(written: Array, read: Array) -> Array:
    """How much later heads read of what earlier heads write.

    |W_OV W| / (|W_OV| |W|) by Frobenius norms.

    written (E, V, D), as of `written_by`; read (H, D, K), as of `read_by` -> (H, E); NaN if a norm is 0

    >>> same = HeadWeights(*np.eye(2)[None].repeat(4, 0)[:, None])
    >>> composition_scores(written_by(same), read_by(same)["q"]).round(4)
    array([[0.7071]])
    """
    products = np.tensordot(written, read, axes=(2, 1))  # (E, V, H, K)
    norms = np.linalg.norm(products.transpose(2, 0, 1, 3).reshape(len(read), len(written), -1), axis=-1)
    lengths = np.linalg.norm(read, axis=(-2, -1))[:, None] * np.linalg.norm(written, axis=(-2, -1))
    with np.errstate(invalid="ignore"):
        return np.asarray(norms / lengths)


def reduce_left(w: Array) -> Array:
    """Factor R of Q R = w, with |w x| = |R x| for every x: (H, D, K) -> (H, K, K).

    >>> np.abs(reduce_left(np.array([[[3.0], [4.0]]]))).round(4).tolist()
    [[[5.0]]]
    """
    return np.asarray(np.linalg.qr(w, mode="r"))
