"""The KV cache: keys and values of earlier tokens, and the states after them."""

from collections.abc import Callable, Iterator

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array
from attnkit.model.formulas.recurrent_cells import State, map_state

Pair = tuple[Array, Array]
Parts = tuple[Array, ...] | State  # what a layer keeps of all earlier tokens, each part with a batch axis
INITIAL = 64  # positions that a new buffer has; a full one doubles


class KVCache:
    """What the layers of a decoder keep of earlier tokens.

    Keys and values (..., G, S, K) of a layer of attention grow with the tokens; those of a memory do not. A state of
    another layer, parts (B, ...), is replaced. It cannot be cut to fewer tokens.

    >>> cache, two = KVCache(), np.ones((1, 2, 4))
    >>> _ = cache.append("decoder.0.self", two, two)
    >>> keys, values, past = cache.append("decoder.0.self", two, two)
    >>> keys.shape, past
    ((1, 4, 4), 2)
    >>> cache.advance("decoder.1.shortconv", (np.array([[3.0, 4.0]]),), 4)
    >>> cache.reorder(np.array([0, 0]))
    >>> cache.states["decoder.1.shortconv"][0].tolist(), cache.length
    ([[3.0, 4.0], [3.0, 4.0]], 4)
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Pair] = {}
        self._lengths: dict[str, int] = {}  # tokens that each layer has read
        self.states: dict[str, Parts] = {}

    @property
    def length(self) -> int:
        """The number of tokens that all layers have read; a memory is not counted."""
        return min((size for layer, size in self._lengths.items() if not layer.endswith("cross")), default=0)

    def advance(self, layer: str, state: Parts, tokens: int) -> None:
        """Replace the state of a layer by that after some more tokens."""
        self.states[layer], self._lengths[layer] = state, self._lengths.get(layer, 0) + tokens

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
        for layer, state in self.states.items():
            self.states[layer] = _take_rows(state, rows)

    def __iter__(self) -> Iterator[tuple[str, Pair]]:
        """The layers with keys and values, and these."""
        return ((layer, self.get(layer)) for layer in self._buffers)


def _take_rows(state: Parts, rows: Array) -> Parts:
    if isinstance(state, State):
        return map_state(lambda part: part[rows], state)
    return tuple(part[rows] for part in state)


def _new_buffer(like: Array, positions: int) -> Array:
    return np.empty((*like.shape[:-2], positions, like.shape[-1]), like.dtype)


def _grow(buffer: Array, used: int, needed: int) -> Array:
    wider = _new_buffer(buffer, max(needed, 2 * buffer.shape[-2]))
    wider[..., :used, :] = buffer[..., :used, :]
    return wider
