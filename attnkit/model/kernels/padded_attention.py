"""Attention within texts of a padded batch, each in the shapes that it has alone, so that it has the same bits."""

from collections.abc import Callable, Mapping

import numpy as np

from attnkit.model.dense_attention import broadcast_mask
from attnkit.model.dtypes import Array
from attnkit.model.options import AttentionOptions

Attend = Callable[[Array, Array, Array, AttentionOptions], Mapping[str, Array]]
RETURNED = ("heads", "lse")


def text_lengths(q: Array, k: Array, options: AttentionOptions) -> Array | None:
    """Return how many tokens each text of a batch has, (B,), where it attends to itself and is padded after its end.

    q (B, H, T, K), k (B, G, T, K), mask (B, 1, 1, T); None for every other mask.

    >>> x, mask = np.ones((2, 1, 3, 4)), np.array([[True, True, False], [True, True, True]])
    >>> text_lengths(x, x, AttentionOptions(mask=mask[:, None, None])).tolist()
    [2, 3]
    """
    mask, past = options.mask, options.past
    if mask is None or mask.dtype != bool or past or q.ndim != 4 or q.shape[-2] != k.shape[-2] or q.shape[-2] < 2:
        return None
    if mask.shape != (len(q), 1, 1, k.shape[-2]) or options.lengths is not None or options.align is not None:
        return None
    real = mask[:, 0, 0]
    lengths: Array = real.sum(axis=-1)
    return lengths if (real == (np.arange(real.shape[-1]) < lengths[:, None])).all() else None


def attend_by_length(
    q: Array, k: Array, v: Array, options: AttentionOptions, lengths: Array, attend: Attend, most: int
) -> dict[str, Array]:
    """Return the heads of a padded batch, (B, H, T, V), and log-sum-exps, from texts of one length at a time.

    q (B, H, T, K), k (B, G, T, K), v (B, G, T, V), lengths (B,)

    attend  the kernel of texts without padding
    most    scores that one call of it computes, except for a longer text

    The queries of padding attend to the keys of their text, as a mask has them do.
    """
    result: dict[str, Array] = {}
    _, bias = broadcast_mask(None, options.bias, (*q.shape[:-1], k.shape[-2]), q.dtype)
    for length in np.unique(lengths).tolist():
        (rows,) = np.nonzero(lengths == length)
        together = max(1, most // max(1, q.shape[1] * length * length))
        for some in np.split(rows, range(together, len(rows), together)):
            keys, values = k[some, :, :length], v[some, :, :length]
            for part, past in ((slice(0, length), 0), (slice(length, None), length)):
                own = None if bias is None else bias[some, :, part, :length]
                steps = attend(q[some, :, part], keys, values, options.replace(mask=None, past=past, bias=own))
                for name, x in ((name, steps[name]) for name in RETURNED if name in steps):
                    whole = result.setdefault(name, np.empty((*q.shape[:-1], *x.shape[3:]), x.dtype))
                    whole[some, :, part] = x
    return result
