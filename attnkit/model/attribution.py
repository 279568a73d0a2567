"""Direct attribution: what each part of a state becomes through a norm whose scale is that of the whole state."""

from collections.abc import Mapping

import numpy as np

from attnkit.model.dtypes import Array, quiet
from attnkit.model.norms import layer_norm, rms_norm


@quiet
def normalize_parts(parts: Array, x: Array, params: Mapping[str, Array], norm: str, eps: float) -> Array:
    """Return what parts of x become as a norm is applied to x, without its shift: they add up to norm(x) - beta.

    parts (P, D), x (D,) -> (P, D); each part is centered unless the norm is rms, and divided by the deviation of x

    >>> x = np.array([1.0, 3.0])
    >>> normalize_parts(np.array([[1.0, 0], [0, 3]]), x, {"gamma": np.full(2, 2.0)}, "layer", 1e-12).round(4)
    array([[ 1., -1.],
           [-3.,  3.]])
    """
    scale = (rms_norm if norm == "rms" else layer_norm)(x, eps=eps).inverse_std
    centered = parts if norm == "rms" else parts - parts.mean(axis=-1, keepdims=True)
    return np.asarray(centered * scale * params.get("gamma", 1.0))


def split_output(heads: Array, wo: Array) -> Array:
    """Return what each head adds to the output of attention, heads (H, V), wo (H*V, D) -> (H, D).

    >>> split_output(np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])).tolist()
    [[3.0], [10.0]]
    """
    return np.asarray(heads[:, None] @ wo.reshape(*heads.shape, -1))[:, 0]
