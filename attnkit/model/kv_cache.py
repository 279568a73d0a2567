"""The keys and values of the tokens before, so that each new token is computed alone."""

from collections.abc import Callable, Iterator

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import shown
from attnkit.model.dtypes import Array

Pair = tuple[Array, Array]
ROOM = 64  # positions that a buffer begins with; a full one doubles


class KVCache:
    """Keys and values (..., G, S, K) of every attention layer: of the tokens so far, and of the memory.

    >>> cache, two = KVCache(), np.ones((1, 2, 4))
    >>> _ = cache.extend("decoder.0.self", two, two)
    >>> keys, values, past = cache.extend("decoder.0.self", two, two)
    >>> keys.shape, past
    ((1, 4, 4), 2)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Pair] = {}
        self._lengths: dict[str, int] = {}

    @property
    def length(self) -> int:
        """How many tokens every layer has seen."""
        return min((size for layer, size in self._lengths.items() if layer.endswith("self")), default=0)

    def extend(self, layer: str, k: Array, v: Array) -> tuple[Array, Array, int]:
        """All keys and values of a layer, these appended, and how many there were before."""
        past, new = self._lengths.get(layer, 0), k.shape[-2]
        if layer not in self._buffers:
            self._buffers[layer] = _room(k, max(ROOM, new)), _room(v, max(ROOM, new))
        if past + new > self._buffers[layer][0].shape[-2]:
            self._buffers[layer] = tuple(_grown(one, past, past + new) for one in self._buffers[layer])  # type: ignore[assignment]
        for buffer, one in zip(self._buffers[layer], (k, v), strict=True):
            buffer[..., past : past + new, :] = one
        self._lengths[layer] = past + new
        keys, values = self.pair(layer)
        return keys, values, past

    def once(self, layer: str, make: Callable[[], Pair]) -> tuple[Array, Array, int]:
        """The keys and values of a memory, made when they are first asked for."""
        if layer not in self._buffers:
            self.put(layer, *make())
        return *self.pair(layer), 0

    def put(self, layer: str, k: Array, v: Array) -> None:
        """Sets the keys and values of a layer; DataError where they are not of one length."""
        if k.shape[:-1] != v.shape[:-1]:
            raise DataError(f"{layer}: keys {shown(k.shape)} and values {shown(v.shape)} do not belong together")
        self._buffers[layer], self._lengths[layer] = (k, v), k.shape[-2]

    def pair(self, layer: str) -> Pair:
        """The keys and values of a layer."""
        length = self._lengths[layer]
        k, v = self._buffers[layer]
        return k[..., :length, :], v[..., :length, :]

    def reorder(self, rows: Array) -> None:
        """Makes row i of the batch what row rows[i] was."""
        for layer, (k, v) in self._buffers.items():
            self._buffers[layer] = k[rows], v[rows]

    def __iter__(self) -> Iterator[tuple[str, Pair]]:
        return ((layer, self.pair(layer)) for layer in self._buffers)


def _room(like: Array, positions: int) -> Array:
    return np.empty((*like.shape[:-2], positions, like.shape[-1]), like.dtype)


def _grown(buffer: Array, used: int, needed: int) -> Array:
    wider = _room(buffer, max(needed, 2 * buffer.shape[-2]))
    wider[..., :used, :] = buffer[..., :used, :]
    return wider
