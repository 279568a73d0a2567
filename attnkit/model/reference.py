"""The Transformer of "Attention Is All You Need": one function per formula.

Vaswani et al. 2017, in plain NumPy.

Each function uses the ones above it. The other modules of attnkit.model compute the same numbers faster, for more
variants and with checks of every input, and are tested against these. Arrays hold floats, all of them finite.

    T  queries (tokens of x)      D  width of the model      H  heads
    S  keys (tokens of memory)    K  width of a head, D / H  F  hidden width of the feed-forward network

`...` denotes batch axes. A mask is boolean, True = may attend. Weights are shaped (in, out). Parameters are dicts
whose keys are argument names, `feed_forward(x, **params["ffn"])`, and of attention the dict of its projections.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit.model.dtypes import Array

Params = Mapping[str, Mapping[str, Any]]  # of a layer: self, cross, ffn, norm1, norm2, norm3


def softmax(x: Array) -> Array:
    """Turn scores into weights that sum to 1; a row of -inf becomes zeros.

    (..., S) -> (..., S)

    >>> softmax(np.log([[1.0, 3.0], [2.0, 2.0]])).round(4).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    largest = x.max(axis=-1, keepdims=True, initial=np.finfo(x.dtype).min)  # finite even where all are -inf
    exp: Array = np.exp(x - largest)  # the same weights, and no overflow
    total: Array = exp.sum(axis=-1, keepdims=True)  # at least 1, as the largest adds exp(0); 0 if all are -inf
    return exp / np.maximum(total, 1)


def attention_weights(q: Array, k: Array, mask: Array | bool = True) -> Array:
    """Compute softmax(Q Kᵀ / √K), section 3.2.1.

    q (..., T, K), k (..., S, K), mask (..., T, S) -> (..., T, S)
    """
    scores: Array = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    return softmax(np.where(mask, scores, -np.inf))


def attention(q: Array, k: Array, v: Array, mask: Array | bool = True) -> Array:
    """Compute softmax(Q Kᵀ / √K) V, equation 1, with K for the paper's d_k.

    v (..., S, V) -> (..., T, V)

    >>> x = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])  # scores of the first: 2 0 2, scaled: 1 0 1
    >>> attention_weights(x, x)[0].round(4).tolist()
    [0.4223, 0.1554, 0.4223]
    >>> attention(x, x, x)[0].round(4).tolist()
    [0.8446, 0.5777, 0.8446, 0.5777]
    """
    return attention_weights(q, k, mask) @ v


def linear(x: Array, w: Array, b: Array | float = 0.0) -> Array:
    """X W + b: x (..., D), w (D, E), b (E) -> (..., E)."""
    y: Array = x @ w + b
    return y


def multi_head_attention(
    query: Array, key: Array, value: Array, params: Mapping[str, Array], *, heads: int = 1, mask: Array | bool = True
) -> Array:
    """Compute Concat(head_1, …, head_H) W_O, section 3.2.2.

    query (..., T, D), key and value (..., S, D) -> (..., T, D)

    params  the projections wq wk wv wo, (D, D), and where it has them their biases bq bk bv bo, (D)

    >>> one = np.eye(2)  # heads of width 1 with scores 1 and 0: weights 0.7311 and 0.2689
    >>> params = {"wq": one, "wk": one, "wv": one, "wo": 2 * one}
    >>> multi_head_attention(one, one, one, params, heads=2).round(4).tolist()
    [[1.4621, 1.0], [1.0, 1.4621]]
    """

    def project(x: Array, name: str) -> Array:
        return linear(x, params[f"w{name}"], params.get(f"b{name}", 0.0))

    projected = project(query, "q"), project(key, "k"), project(value, "v")
    q, k, v = (np.stack(np.split(x, heads, axis=-1)) for x in projected)  # (H, ..., T, K)
    return project(np.concatenate(attention(q, k, v, mask), axis=-1), "o")


def layer_norm(x: Array, gamma: Array | float = 1.0, beta: Array | float = 0.0, eps: float = 1e-5) -> Array:
    """Compute (x − mean) / √(variance + ε) · γ + β over the width.

    Ba et al. 2016: (..., D) -> (..., D)

    >>> layer_norm(np.array([2.0, 4.0, 6.0, 8.0])).round(4).tolist()  # mean 5, variance 5
    [-1.3416, -0.4472, 0.4472, 1.3416]
    """
    y: Array = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    return y * gamma + beta


def feed_forward(x: Array, w1: Array, w2: Array, b1: Array | float = 0.0, b2: Array | float = 0.0) -> Array:
    """Compute max(0, x W1 + b1) W2 + b2, equation 2.

    x (..., D), w1 (D, F), w2 (F, D) -> (..., D)

    >>> feed_forward(np.array([[-2.0], [3.0]]), np.array([[1.0]]), np.array([[2.0]]), b2=1.0).tolist()
    [[1.0], [7.0]]
    """
    return linear(np.maximum(0, linear(x, w1, b1)), w2, b2)


def sinusoidal_positions(length: int, width: int) -> Array:
    """PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i+1) = cos of the same.

    Section 3.5: T, D -> (T, D)

    >>> sinusoidal_positions(2, 4).round(4).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.01, 1.0]]
    """
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # (T, D/2)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def encoder_layer(x: Array, params: Params, *, heads: int, mask: Array | bool = True) -> Array:
    """LayerNorm(x + Sublayer(x)) for self-attention, then feed-forward.

    Section 3.1: (..., T, D) -> (..., T, D)
    """
    x = layer_norm(x + multi_head_attention(x, x, x, params["self"], heads=heads, mask=mask), **params["norm1"])
    return layer_norm(x + feed_forward(x, **params["ffn"]), **params["norm2"])


def decoder_layer(
    x: Array, memory: Array, params: Params, *, heads: int, mask: Array | bool = True, memory_mask: Array | bool = True
) -> Array:
    """Apply causal self-attention, attention to the memory, and the network.

    Section 3.1, with the memory (..., S, D).
    """
    causal = mask & np.tri(x.shape[-2], dtype=bool)  # token i attends to tokens 0..i
    x = layer_norm(x + multi_head_attention(x, x, x, params["self"], heads=heads, mask=causal), **params["norm1"])
    cross = multi_head_attention(x, memory, memory, params["cross"], heads=heads, mask=memory_mask)
    x = layer_norm(x + cross, **params["norm2"])
    return layer_norm(x + feed_forward(x, **params["ffn"]), **params["norm3"])


def embed(ids: Array, table: Array) -> Array:
    """Embeddings times √D plus positions, sections 3.4 and 3.5.

    ids (..., T), table (N, D) -> (..., T, D)

    >>> embed(np.array([1, 0]), np.array([[0.0] * 4, [1.0] * 4])).round(2).tolist()
    [[2.0, 3.0, 2.0, 3.0], [0.84, 0.54, 0.01, 1.0]]
    """
    vectors: Array = table[ids] * table.shape[-1] ** 0.5
    return vectors + sinusoidal_positions(ids.shape[-1], table.shape[-1])


def next_token(x: Array, table: Array) -> Array:
    """Probabilities of the next token from the same table, section 3.4.

    x (..., T, D), table (N, D) -> (..., T, N)

    >>> next_token(np.array([[1.0, 0.0]]), np.log([[1.0, 1.0], [3.0, 1.0]])).round(4).tolist()
    [[0.25, 0.75]]
    """
    return softmax(x @ table.T)
