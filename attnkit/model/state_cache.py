"""The state cache of a recurrent model: its states after the tokens so far, so that only new tokens are computed."""

from attnkit.model.dtypes import Array
from attnkit.model.kv_cache import KVCache
from attnkit.model.recurrent_cells import State, map_state


class StateCache(KVCache):
    """The states (B, P) and (B, H) of every recurrent layer after the tokens so far, and keys and values of the memory.

    >>> import numpy as np
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
