"""The options of attention as one value for every function and kernel."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from numpy.typing import ArrayLike

from attnkit.errors import UsageError
from attnkit.model.dtypes import FLOATS, Array
from attnkit.model.kernels.products import PLAIN, Products
from attnkit.model.masks import causal_offset
from attnkit.model.relative import RelativePositions

# computes the keys and values of this call -> all keys, all values, and how many of them came before
KVStore = Callable[[Callable[[], tuple[Array, Array]]], tuple[Array, Array, int]]


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionOptions:
    """Which keys a query may attend to, how scores are computed, and earlier keys.

    mask           boolean or 0/1: True = may attend; float: added to the scores. It broadcasts to (..., H, T, S)
                   as in NumPy; one whose last axis is shorter than the keys (and not 1) blocks the rest of them
    bias           added to the scores before the mask; broadcasts likewise
    causal         query i attends to key j only if j <= i + offset, see masks.causal_offset
    align          corner the causal diagonal starts from: top-left or bottom-right
    window         (left, right): keys before and after a query that it may attend to; -1 is unbounded
    lengths        (B,) valid keys of each row of the batch
    scale          factor on the scores; None: 1/sqrt(K) for scaled-dot, else 1
    softcap        c: scores become c tanh(s/c); 0 is off
    score          a name of SCORES, and score_params its parameters by name
    past           how many of k and v belong to tokens before the first query
    past_key       (..., G, P, K), prepended to k, and past_value (..., G, P, V), prepended to v
    softmax_dtype  the dtype that scores are rounded to before softmax, and weights after it
    products       how matrices are multiplied

    >>> AttentionOptions(causal=True).replace(window=(2, 0)).causal
    True
    """

    mask: Array | None = None
    bias: Array | None = None
    causal: bool = False
    align: str | None = None
    window: tuple[int, int] = (-1, -1)
    lengths: ArrayLike | None = None
    scale: float | None = None
    softcap: float = 0.0
    score: str = "scaled-dot"
    score_params: Mapping[str, Array] | None = None
    past: int = 0
    past_key: Array | None = None
    past_value: Array | None = None
    softmax_dtype: str | None = None
    products: Products = PLAIN

    def replace(self, **changes: Any) -> Self:
        """Copy the options with some changed."""
        return replace(self, **changes) if changes else self

    def scale_for(self, width: int) -> float:
        """The factor on the scores of queries of a width.

        >>> AttentionOptions().scale_for(4), AttentionOptions(score="dot").scale_for(4)
        (0.5, 1.0)
        """
        if self.scale is not None:
            return float(self.scale)
        return 1 / math.sqrt(max(width, 1)) if self.score == "scaled-dot" else 1.0

    def offset(self, queries: int, keys: int) -> int | Array:
        """Position of the first query among the keys, () or (B,)."""
        return causal_offset(queries, keys, align=self.align, past=self.past, lengths=self.lengths)

    def check_ranges(self) -> None:
        """Raise UsageError for options that exclude each other or are out of range."""
        if (self.past_key is None) != (self.past_value is None):
            raise UsageError("past key and past value must be given together: only one was")
        if self.past_key is not None and self.lengths is not None:
            raise UsageError("lengths and past keys are mutually exclusive")
        if not 0 <= self.softcap < math.inf:
            raise UsageError(f"softcap {self.softcap} (expected a positive number, or 0 for none)")
        if self.softmax_dtype not in (None, *FLOATS):
            raise UsageError(f"softmax dtype {self.softmax_dtype!r} (expected one of {', '.join(FLOATS)})")


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiHeadOptions(AttentionOptions):
    """Options of attention, and how heads are split, rotated and cached.

    heads     number of query heads
    kv_heads  number of key and value heads; None: as many as query heads
    relative  distances between tokens, whose scores are added (see relative.py)
    rotary    the cosines and sines (..., T, R/2) that queries and keys are rotated by
    kv_store  called with the function that computes keys and values of this call; returns those of all tokens so
              far and the number of earlier ones, as KVCache.append does
    """

    heads: int = 1
    kv_heads: int | None = None
    rotary: tuple[Array, Array] | None = None
    relative: RelativePositions | None = None
    kv_store: KVStore | None = None


DEFAULT = AttentionOptions()
MULTI_HEAD_DEFAULT = MultiHeadOptions()
