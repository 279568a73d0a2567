"""Attention rollout: how much of each input token is in each state, through all layers."""

from collections.abc import Sequence

import numpy as np

from attnkit.model.dtypes import Array, output_dtype, working


def roll_out(layers: Sequence[Array], residual: float = 0.5) -> Array:
    """Return the attention rollout of layers of weights, the first layer first: each (..., H, T, T) -> (..., T, T).

    A layer is A = residual · I + (1 − residual) · W, with the mean W of its heads, each row divided by its sum; the
    rollout is the product of all A, the last layer first (Abnar and Zuidema 2020, Quantifying Attention Flow in
    Transformers, section 3). A row of zeros, of a query without keys, is that of I if residual is above 0.

    >>> first, second = np.array([[[1.0, 0], [1, 0]]]), np.array([[[0.5, 0.5], [0, 1]]])
    >>> roll_out([first, second]).tolist()
    [[0.875, 0.125], [0.5, 0.5]]
    """
    rollout = None
    for weights in layers:
        step = (1 - residual) * weights.mean(axis=-3, dtype=working(weights))
        step += residual * np.eye(step.shape[-1], dtype=step.dtype)
        sums = step.sum(axis=-1, keepdims=True)
        np.divide(step, sums, out=step, where=sums > 0)
        rollout = step if rollout is None else step @ rollout
    return np.asarray(rollout, output_dtype(layers[0]))
