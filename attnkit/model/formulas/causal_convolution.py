"""A depthwise convolution that continues: a token sees itself and those before it.

    y[t] = b + Σ w[j] x[t − K + 1 + j],  j = 0 … K − 1      each channel by itself; the last tap meets the token

What it keeps of a text is its last K − 1 inputs, the window, which is zeros at the beginning. Padding, wherever it is,
is skipped: it is not seen by a token, and does not enter the window. NumPy and JAX compute with the same text, by the
array module `xp`.
"""

from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array


def causal_convolution(
    x: Array,
    taps: Array,
    bias: Array | None = None,
    before: Array | None = None,
    real: Array | None = None,
    xp: Any = np,
) -> Array:
    """Weigh and sum each token with the K − 1 before it; 0 where it is padding.

    x (B, T, C), taps (K, C), bias (C,) -> (B, T, C)

    before  (B, K - 1, C), the window before the first token [zeros]
    real    (B, T), False = padding

    DataError for taps of another width. Source: LFM2, and Mamba (Gu and Dao 2023, section 3.4).

    >>> causal_convolution(np.array([[[1.0], [2.0], [4.0]]]), np.array([[10.0], [1.0]])).ravel().tolist()
    [1.0, 12.0, 24.0]
    >>> padded, real = np.array([[[1.0], [9.0], [2.0]]]), np.array([[True, False, True]])
    >>> causal_convolution(padded, np.array([[10.0], [1.0]]), real=real).ravel().tolist()
    [1.0, 0.0, 12.0]
    """
    if taps.shape[-1] != x.shape[-1]:
        raise DataError.about("w", f"{as_text(taps.shape)} for x {as_text(x.shape)}: expected {x.shape[-1]} channels")
    order, tokens = _order(real, xp), x.shape[-2]
    whole = _whole(x, len(taps), before, order, xp)
    y: Array = sum(tap * whole[:, at : at + tokens] for at, tap in enumerate(taps))
    y = y if bias is None else y + bias
    return y if real is None else xp.where(real[..., None], _restore(y, order, xp), np.zeros((), y.dtype))


def last_window(x: Array, size: int, before: Array | None = None, real: Array | None = None, xp: Any = np) -> Array:
    """The window after x: the last inputs that are no padding, (B, size, C).

    before, real  as of `causal_convolution`

    >>> last_window(np.array([[[1.0], [2.0], [4.0]]]), 2, real=np.array([[True, True, False]])).ravel().tolist()
    [1.0, 2.0]
    """
    whole = _whole(x, size + 1, before, _order(real, xp), xp)
    if real is None:
        return whole[:, x.shape[-2] :]
    places = real.sum(axis=-1)[:, None] + xp.arange(size)
    window: Array = xp.take_along_axis(whole, places[..., None], axis=1)
    return window


def causal_convolution_backward(
    grad_output: Array, x: Array, taps: Array, before: Array | None = None, real: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients of x, taps and bias; the window before x is a constant.

    grad_output (B, T, C) -> (B, T, C), (K, C), (C,)

    before, real  as of `causal_convolution`

    >>> dy, x, taps = np.array([[[1.0], [1.0]]]), np.array([[[3.0], [4.0]]]), np.array([[10.0], [1.0]])
    >>> [gradient.ravel().tolist() for gradient in causal_convolution_backward(dy, x, taps)]
    [[11.0, 1.0], [3.0, 7.0], [2.0]]
    >>> causal_convolution_backward(dy, x, taps, before=np.array([[[5.0]]]))[1].ravel().tolist()
    [8.0, 7.0]
    """
    order, size, tokens = _order(real, np), len(taps), x.shape[-2]
    dy = grad_output if real is None else np.where(real[..., None], grad_output, np.zeros((), grad_output.dtype))
    bias = dy.sum(axis=(0, 1))
    dy = dy if order is None else np.take_along_axis(dy, order[..., None], axis=1)
    whole = _whole(x, size, before, order, np)
    dwhole, dtaps = np.zeros_like(whole), np.empty_like(taps)
    for at, tap in enumerate(taps):
        dwhole[:, at : at + tokens] += tap * dy
        dtaps[at] = (whole[:, at : at + tokens] * dy).sum(axis=(0, 1))
    return _restore(dwhole[:, size - 1 :], order, np), dtaps, bias


def _whole(x: Array, size: int, before: Array | None, order: Array | None, xp: Any) -> Array:
    """The window before x, its tokens, and its padding: (B, K - 1 + T, C)."""
    rows = x if order is None else xp.take_along_axis(x, order[..., None], axis=1)
    first = xp.zeros((len(x), size - 1, x.shape[-1]), x.dtype) if before is None else before.astype(x.dtype)
    whole: Array = xp.concatenate([first, rows], axis=1)
    return whole


def _order(real: Array | None, xp: Any) -> Array | None:
    """The places of the tokens of each text, and then those of its padding: (B, T)."""
    return None if real is None else xp.argsort(~real, axis=-1, stable=True)


def _restore(x: Array, order: Array | None, xp: Any) -> Array:
    """Tokens in the order of the batch: the inverse of `_order`."""
    return x if order is None else xp.take_along_axis(x, xp.argsort(order, axis=-1)[..., None], axis=1)
