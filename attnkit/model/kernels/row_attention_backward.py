"""The adjoint of attention for some queries at a time: exact, for any score function, mask and bias."""

import math

import numpy as np

from attnkit.model.backward.attention_backward import dense_attention_backward
from attnkit.model.dtypes import Array
from attnkit.model.kernels.threads import split_range
from attnkit.model.options import AttentionOptions
from attnkit.model.scores import SCORES, dot

PART = 1 << 21  # approximate number of scores (or of terms in them) computed at once


def row_attention_backward(
    grad_output: Array, q: Array, k: Array, v: Array, options: AttentionOptions
) -> dict[str, Array]:
    """Return what `dense_attention_backward` does, without scores of every query with every key.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), "bias", "mask" if it is a float, "va"}

    >>> q, x = np.array([[[0.0], [0.0]]]), np.array([[[1.0], [0.0]]])
    >>> grads = row_attention_backward(np.array([[[4.0], [4.0]]]), q, x, x, AttentionOptions(bias=np.zeros(2)))
    >>> {name: grad.ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0, 1.0], 'k': [0.0, 0.0], 'v': [4.0, 4.0], 'bias': [2.0, -2.0]}
    """
    queries, keys = q.shape[-2], k.shape[-2]
    offset = options.offset(queries, keys)
    each = math.prod(q.shape[:-2]) * keys * (1 if SCORES[options.score].score is dot else q.shape[-1])
    total: dict[str, Array] = {"q": np.empty(q.shape, grad_output.dtype)}
    for rows in split_range(0, queries, max(1, PART // max(each, 1))):
        here = options.replace(bias=_rows(options.bias, rows), mask=_rows(options.mask, rows))
        part = dense_attention_backward(grad_output[..., rows, :], q[..., rows, :], k, v, here, offset + rows.start)
        total["q"][..., rows, :] = part.pop("q")
        for name, gradient in part.items():
            source = {"bias": options.bias, "mask": options.mask}.get(name)
            shape = gradient.shape if source is None else source.shape
            into = total.setdefault(name, np.zeros(shape, gradient.dtype))
            rows_of = _rows(into, rows) if source is not None else into
            rows_of += gradient
    return total


def _rows(x: Array | None, rows: slice) -> Array | None:
    """Return the part of a mask or bias (..., T, S) that is added to the scores of some queries."""
    return x if x is None or x.ndim < 2 or x.shape[-2] == 1 else x[..., rows, :]
