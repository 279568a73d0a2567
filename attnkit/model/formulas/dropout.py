"""Dropout, with masks that depend only on seed, training step and place."""

import math

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.dtypes import Array, cast, quiet, working


def dropout_mask(shape: tuple[int, ...], rate: float, *, seed: int, step: int, place: str, row: int = 0) -> Array:
    """Which elements of an array dropout keeps, each with probability 1 - rate.

    shape (...) -> (...) bool

    The random numbers are those of np.random.Philox, a counter-based generator, with the key [seed, the first 64 bits
    of the SHA-256 of the place] and the counter [0, 0, 0, step]. Element i is kept if the i-th half of its 64-bit
    numbers, the lower half first, is at least rate · 2^32. Equal arguments produce equal masks, in any order, without
    a state. An array that is part of a larger one, from index `row` of its first axis, has that part of its mask.
    UsageError for a rate outside 0 <= rate < 1, or a seed or step outside 0..2^64-1.

    >>> mask = dropout_mask((4, 100), 0.25, seed=1, step=7, place="decoder.0.ffn")
    >>> float(mask.mean()), bool((mask == dropout_mask((4, 100), 0.25, seed=1, step=7, place="decoder.0.ffn")).all())
    (0.74, True)
    >>> bool((mask[1:] == dropout_mask((3, 100), 0.25, seed=1, step=7, place="decoder.0.ffn", row=1)).all())
    True
    """
    if not 0 <= rate < 1:
        raise UsageError(f"dropout rate {rate} (expected 0 or more, and less than 1)")
    for name, number in (("seed", seed), ("step", step)):
        if not 0 <= number < 2**64:
            raise UsageError(f"{name} {number} outside 0..2^64-1")
    size = math.prod(shape)
    count, skipped = divmod(row * math.prod(shape[1:]), 8)  # a count of the generator gives four numbers, eight halves
    generator = np.random.Philox(
        key=np.array([seed, _number(place)], np.uint64), counter=np.array([count, 0, 0, step], np.uint64)
    )
    halves = generator.random_raw(-(-(skipped + size) // 2)).astype("<u8", copy=False).view("<u4")
    mask: Array = halves[skipped : skipped + size] >= np.uint32(rate * 2**32)
    return mask.reshape(shape)


def _number(place: str) -> int:
    import hashlib  # imported here, as it would cost every other stage of a pipe two milliseconds

    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:8], "big")


@quiet
def dropout(x: Array, rate: float, *, seed: int, step: int, place: str, row: int = 0) -> Array:
    """Set elements to zero with probability `rate`; divide the others by 1 - rate.

    x (...) -> (...)

    The function is its own adjoint: the gradient of x is the dropout of the gradient of the result. Source: Srivastava
    et al. 2014; Attention Is All You Need, section 5.4, for the places. Errors: see `dropout_mask`.

    >>> dropout(np.ones(8), 0.5, seed=0, step=0, place="embed").tolist()
    [2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 2.0, 0.0]
    """
    dtype = working(x)
    if rate == 0:
        return cast(x, dtype)
    y: Array = cast(x, dtype) * dropout_mask(x.shape, rate, seed=seed, step=step, place=place, row=row)
    y *= np.asarray(1 / (1 - rate), dtype)
    return y
