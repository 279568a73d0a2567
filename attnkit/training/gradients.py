"""The norm of all gradients together, and clipping by it."""

from collections.abc import Iterator

import numpy as np

from attnkit.model import Array
from attnkit.model.kernels.threads import run_parallel, split_range

BLOCK = 1 << 16  # elements that are worked on at a time, which stay in a core's cache


def gradient_norm(gradients: Array) -> float:
    """Return the Euclidean norm of gradients, added up in float64 in an order that threads do not change.

    >>> gradient_norm(np.array([3.0, 4.0], np.float32))
    5.0
    """
    flat = gradients.reshape(-1)
    blocks = list(split_range(0, flat.size, BLOCK))
    squares = np.zeros(len(blocks))

    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            wide = flat[blocks[number]].astype(np.float64)
            squares[number] = wide @ wide

    run_parallel(work, range(len(blocks)))
    return float(np.sqrt(squares.sum()))


def clip_gradients(gradients: Array, max_norm: float) -> float:
    """Scale gradients in place so that their norm is at most `max_norm`; return the norm before.

    The factor is max_norm / (norm + 1e-6), as in torch.nn.utils.clip_grad_norm_. Where the norm is not finite, the
    gradients are unchanged.

    >>> gradients = np.array([3.0, 4.0])
    >>> clip_gradients(gradients, 1.0), gradients.round(4).tolist()
    (5.0, [0.6, 0.8])
    """
    norm = gradient_norm(gradients)
    factor = max_norm / (norm + 1e-6)
    if not np.isfinite(norm) or factor >= 1:
        return norm
    flat = gradients.reshape(-1)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            flat[block] *= factor

    run_parallel(work, split_range(0, flat.size, BLOCK))
    return norm
