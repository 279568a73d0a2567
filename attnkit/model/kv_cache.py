"""The KV cache: keys and values of earlier tokens, or the states after them."""

from collections.abc import Callable, Iterator

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array
from attnkit.model.formulas.recurrent_cells import State, map_state

Pair = tuple[Array, Array]
INITIAL = 64  # positions that a new buffer has; a full one doubles


class KVCache:
    """Keys and values (..., G, S, K) of every attention layer, memory included.

    >>> cache, two = KVCache(), np.ones((1, 2, 4))
    >>> _ = cache.append("decoder.0.self", two, two)
    >>> keys, values, past = cache.append("decoder.0.self", two, two)
    >>> keys.shape, past
    ((1, 4, 4), 2)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Pair] = {}
        self._lengths: dict[str, int] = {}

    @property
    def length(self) -> int:
        """The number of tokens that every self-attention layer has."""
        return min((size for layer, size in self._lengths.items() if layer.endswith("self")), default=0)

    def append(self, layer: str, k: Array, v: Array) -> tuple[Array, Array, int]:
        """Append keys and values; return all of the layer, and the number of earlier ones."""
        past, new = self._lengths.get(layer, 0), k.shape[-2]
        if layer not in self._buffers:
            self._buffers[layer] = _new_buffer(k, max(INITIAL, new)), _new_buffer(v, max(INITIAL, new))
        if past + new > self._buffers[layer][0].shape[-2]:
            self._buffers[layer] = tuple(_grow(buffer, past, past + new) for buffer in self._buffers[layer])  # type: ignore[assignment]
        for buffer, x in zip(self._buffers[layer], (k, v), strict=True):
            buffer[..., past : past + new, :] = x
        self._lengths[layer] = past + new
        keys, values = self.get(layer)
        return keys, values, past

    def get_or_compute(self, layer: str, compute: Callable[[], Pair]) -> tuple[Array, Array, int]:
        """Keys and values of a memory, computed on first use, and 0 earlier ones."""
        if layer not in self._buffers:
            self.set(layer, *compute())
        return *self.get(layer), 0

    def set(self, layer: str, k: Array, v: Array) -> None:
        """Set the keys and values of a layer; DataError if their lengths differ."""
        if k.shape[:-1] != v.shape[:-1]:
            raise DataError(f"{layer}: keys {as_text(k.shape)} and values {as_text(v.shape)} do not belong together")
        self._buffers[layer], self._lengths[layer] = (k, v), k.shape[-2]

    def get(self, layer: str) -> Pair:
        """Keys and values of a layer."""
        length = self._lengths[layer]
        k, v = self._buffers[layer]
        return k[..., :length, :], v[..., :length, :]

    def reorder(self, rows: Array) -> None:
        """Replace row i of the batch by row rows[i]."""
        for layer, (k, v) in self._buffers.items():
            self._buffers[layer] = k[rows], v[rows]

    def __iter__(self) -> Iterator[tuple[str, Pair]]:
        return ((layer, self.get(layer)) for layer in self._buffers)


def _new_buffer(like: Array, positions: int) -> Array:
    return np.empty((*like.shape[:-2], positions, like.shape[-1]), like.dtype)


def _grow(buffer: Array, used: int, needed: int) -> Array:
    wider = _new_buffer(buffer, max(needed, 2 * buffer.shape[-2]))
    wider[..., :used, :] = buffer[..., :used, :]
    return wider


class StateCache(KVCache):
    """States (B, P) and (B, H) of recurrent layers, and keys and values of the memory.

    >>> cache = StateCache()
    >>> cache.set_state("decoder.0.rnn", State(np.array([[1.0], [2.0]])), 3)
    >>> cache.reorder(np.array([1, 1]))
    >>> cache.states["decoder.0.rnn"].hidden.ravel().tolist(), cache.length
    ([2.0, 2.0], 3)
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}
        self._tokens = 0

    @property
    def length(self) -> int:
        """The number of tokens that the states have read."""
        return self._tokens

    def set_state(self, layer: str, state: State, tokens: int) -> None:
        """Set the state of a layer after a number of tokens."""
        self.states[layer], self._tokens = state, tokens

    def reorder(self, rows: Array) -> None:
        """Replace row i of the batch by row rows[i]."""
        super().reorder(rows)
        for layer, state in self.states.items():
            self.states[layer] = map_state(lambda part: part[rows], state)
