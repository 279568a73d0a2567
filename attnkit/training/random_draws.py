"""Random numbers that depend on seed, purpose and step only, so that a run continues at any step without a state."""

from typing import NamedTuple

import numpy as np

from attnkit.model import Array


class DrawKey(NamedTuple):
    """What random numbers depend on: the seed of the run, what they are for, and the step, epoch or layer."""

    seed: int
    purpose: str
    step: int = 0


def draw_uniform(count: int, key: DrawKey) -> Array:
    """Return numbers in [0, 1), each a multiple of 2^-53.

    -> (count,) float64

    The generator is Philox 4x64 (Salmon et al. 2011) with the key [seed, SHA-256 of the purpose] at counter step 2^192.

    >>> draws = [draw_uniform(2, DrawKey(1, "blocks", step)).tolist() for step in (7, 8, 7)]
    >>> draws[0] == draws[2], draws[0] == draws[1]
    (True, False)
    """
    import hashlib

    purpose = int.from_bytes(hashlib.sha256(key.purpose.encode()).digest()[:8], "big")
    counter = np.array([0, 0, 0, key.step], np.uint64)
    bits = np.random.Philox(key=np.array([key.seed, purpose], np.uint64), counter=counter).random_raw(count)
    uniform: Array = (bits >> np.uint64(11)) * 2.0**-53
    return uniform


def draw_integers(below: int, count: int, key: DrawKey) -> Array:
    """Return integers from 0 to below - 1.

    -> (count,) int64

    >>> bool((draw_integers(3, 100, DrawKey(1, "blocks")) < 3).all())
    True
    """
    return (draw_uniform(count, key) * below).astype(np.int64)


def draw_permutation(count: int, key: DrawKey) -> Array:
    """Return 0 to count - 1 in random order.

    -> (count,) int64

    >>> sorted(draw_permutation(4, DrawKey(1, "pairs")).tolist())
    [0, 1, 2, 3]
    """
    return np.argsort(draw_uniform(count, key), kind="stable")
