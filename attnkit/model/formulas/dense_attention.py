"""The options of attention, and attention on a dense score matrix.

Every function and kernel reads the options as one value. On a dense matrix its steps are scale, cap, mask, softmax and
weighted sum.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import UsageError
from attnkit.model.checks import as_text, fit
from attnkit.model.dtypes import FLOATS, Array, DType, cast, is_float, quiet, rounded
from attnkit.model.formulas import masks
from attnkit.model.formulas.norms import QueryKeyNorm
from attnkit.model.formulas.relative import RelativePositions
from attnkit.model.formulas.scores import product
from attnkit.model.formulas.softmax import log_sum_exp, softmax
from attnkit.model.hooks import Requested, apply_hook
from attnkit.model.processor.products import PLAIN, Multiply, Products

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
    sinks          (H,) a score of each head for no key at all: softmax includes it, and its weight is left out
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
    sinks: Array | None = None
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
        return masks.causal_offset(queries, keys, align=self.align, past=self.past, lengths=self.lengths)

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


class LatentConfig(NamedTuple):
    """The widths of latent attention (see latent.py).

    rank        of the latent of keys and values
    query_rank  of the latent of queries; 0: queries are projected from the states
    content     features of a head that are compared without positions; rotary: those that are rotated
    value       features of a value head
    eps         of the RMS norms of the latents
    """

    rank: int
    query_rank: int
    content: int
    rotary: int
    value: int
    eps: float = 1e-6


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiHeadOptions(AttentionOptions):
    """Options of attention, and how heads are split, normalized, rotated and cached.

    heads     number of query heads
    kv_heads  number of key and value heads; None: as many as query heads
    norm      of queries and keys, by gamma_q, gamma_k, beta_q, beta_k of the parameters
    latent    how they come from latent vectors of the parameters; None: they are projected directly
    clip      queries, keys and values are then clipped to -clip … clip; 0 is off
    key_scale  factor on keys, before they are rotated
    relative  distances between tokens, whose scores are added (see relative.py)
    rotary    the cosines and sines (..., T, R/2) that queries and keys are rotated by; interleaved: see `rotate`
    kv_store  called with the function that computes keys and values of this call; returns those of all tokens so
              far and the number of earlier ones, as KVCache.append does
    """

    heads: int = 1
    kv_heads: int | None = None
    norm: QueryKeyNorm | None = None
    latent: LatentConfig | None = None
    clip: float = 0.0
    key_scale: float = 1.0
    rotary: tuple[Array, Array] | None = None
    interleaved: bool = False
    relative: RelativePositions | None = None
    kv_store: KVStore | None = None


DEFAULT = AttentionOptions()
MULTI_HEAD_DEFAULT = MultiHeadOptions()


def dense_attention(
    scores: Array, values: Array, allowed: Array | None, options: AttentionOptions, requested: Requested
) -> dict[str, Array]:
    """Compute heads, weights and the requested intermediates from raw scores.

    scores (..., H, T, S), values (..., G, S, V), allowed (..., 1, T, S) -> {"heads": (..., H, T, V), ...}

    Intermediates that are not requested are computed in place, in the memory of `scores`. The options used are
    bias, mask, scale [1], softcap, softmax_dtype and products. A query with every score blocked has heads of 0.
    """
    hook, softmax_dtype = requested.hook, options.softmax_dtype
    scores = apply_hook(hook, "scores", scores)
    scaled = np.multiply(scores, options.scale_for(1), out=None if "scores" in requested else scores)
    scaled = apply_hook(hook, "scaled", scaled)
    capped = apply_hook(hook, "capped", _cap(scaled, float(options.softcap), in_place="scaled" not in requested))
    masked = apply_hook(hook, "masked", mask_scores(capped, options.mask, options.bias, allowed))
    exact = masked if softmax_dtype is None else rounded(masked, softmax_dtype)
    has_sums = requested.is_returned("lse") or requested.has_summary or options.sinks is not None
    lse = log_sum_exp(exact) if has_sums else None
    weights = softmax(exact)
    if options.sinks is not None and lse is not None:
        share, lse = add_sinks(lse, options.sinks)
        weights *= share[..., None].astype(weights.dtype)
    weights = weights if softmax_dtype is None else rounded(weights, softmax_dtype).astype(masked.dtype)
    weights = apply_hook(hook, "weights", weights)
    steps = {"scores": scores, "scaled": scaled, "capped": capped, "masked": masked}
    steps = {name: step for name, step in steps.items() if name in requested} | {"weights": weights}
    if lse is not None:
        steps["lse"] = lse
    steps["heads"] = _weighted_sum(weights, values, options.products.stacked)
    return steps


@quiet
def add_sinks(lse: Array, sinks: Array, xp: Any = np) -> tuple[Array, Array]:
    """The share of the keys in softmax beside a sink, and the log-sum-exp with it.

    lse (..., H, T) of the scores, sinks (H,) -> (..., H, T), (..., H, T); xp the module of the arrays

    The weight of the sink is 1 − the share. Source: Xiao et al. 2024, with a learned score as in gpt-oss.

    >>> [one.round(4).tolist() for one in add_sinks(np.log([[3.0]]), np.zeros(1))]
    [[[0.75]], [[1.3863]]]
    """
    total = xp.logaddexp(lse, sinks[:, None])
    return xp.exp(lse - total), total


def _cap(scores: Array, softcap: float, *, in_place: bool) -> Array:
    """softcap tanh(scores / softcap), or the scores if softcap is 0."""
    if not softcap:
        return scores
    capped = np.divide(scores, softcap, out=scores if in_place else None)
    np.tanh(capped, out=capped)
    capped *= softcap
    return capped


def allowed_cells(queries: int, keys: int, offset: int | Array, options: AttentionOptions) -> Array | None:
    """Which keys each query may attend to by lengths, causality and window.

    (..., 1, T, S); None: all of them.
    """
    rules = []
    if options.lengths is not None:
        rules.append(masks.padding_mask(options.lengths, keys))
    is_last = queries == 1 and isinstance(offset, int) and offset >= keys - 1
    if options.causal and not is_last:  # the last query attends to every key
        rules.append(masks.causal_mask(queries, keys, offset))
    if options.window != (-1, -1):
        rules.append(masks.window_mask(queries, keys, *options.window, offset))
    return np.expand_dims(reduce(np.logical_and, rules), -3) if rules else None


def query_positions(queries: slice, offset: int | Array) -> Array:
    """Positions of queries among the keys, if query 0 is at offset () or (B,).

    -> (1, T) or (B, 1, T)

    >>> query_positions(slice(1, 3), 4).tolist(), query_positions(slice(0, 2), np.array([0, 5])).tolist()
    ([[5, 6]], [[[0, 1]], [[5, 6]]])
    """
    return np.asarray(offset)[..., None, None] + np.arange(queries.start, queries.stop)


def broadcast_mask(
    mask: Array | None, bias: Array | None, shape: tuple[int, ...], dtype: DType
) -> tuple[Array | None, Array | None]:
    """Broadcast mask and bias to scores of a shape and dtype.

    The last axis of a shorter mask is not broadcast. A mask of 0 and 1 becomes a boolean one. DataError if they do not
    broadcast.

    >>> mask, bias = broadcast_mask(np.array([[True, False]]), None, (2, 3, 4), np.dtype(float))
    >>> mask.shape, bias
    ((2, 3, 2), None)
    """
    target, keys = f"scores {as_text(shape)}", shape[-1]
    if mask is not None:
        mask = mask.astype(dtype, copy=False) if is_float(mask.dtype) else masks.to_boolean(mask)
        until = mask.shape[-1] if mask.ndim and mask.shape[-1] != 1 else keys
        mask = fit(mask, (*shape[:-1], min(until, keys)), "mask", target)
    if bias is not None:
        bias = fit(bias.astype(dtype, copy=False), shape, "bias", target)
    return mask, bias


def mask_scores(scores: Array, mask: Array | None, bias: Array | None = None, allowed: Array | None = None) -> Array:
    """Add a bias and a float mask to scores, and put -inf at blocked keys.

    scores (..., T, S), mask and bias broadcast to them -> (..., T, S)

    DataError if a mask or bias does not broadcast.

    >>> mask_scores(np.array([[3.0, 2.0]]), np.array([[True, False]])).tolist()
    [[3.0, -inf]]
    """
    target = f"scores {as_text(scores.shape)}"
    if bias is not None:
        scores = scores + fit(cast(bias, scores.dtype), scores.shape, "bias", target)
    if mask is not None:
        padded = pad_mask(mask, scores.shape[-1])
        added = cast(padded, scores.dtype) if is_float(mask.dtype) else None
        unblocked = masks.to_boolean(padded) if added is None else ~np.isneginf(added)
        unblocked = fit(unblocked, scores.shape, "mask", target, mask)
        allowed = unblocked if allowed is None else unblocked & allowed
        scores = scores if added is None else scores + added
    return scores if allowed is None else masks.mask_block(scores, allowed)


def pad_mask(mask: Array, keys: int) -> Array:
    """Block the keys behind those of a shorter mask; one of length 1 broadcasts.

    mask (..., S') -> (..., S)

    >>> pad_mask(np.array([True, True]), 3), pad_mask(np.zeros(2), 3)
    (array([ True,  True, False]), array([  0.,   0., -inf]))
    """
    if mask.ndim == 0 or mask.shape[-1] == 1 or mask.shape[-1] >= keys:
        return mask
    blocked = -np.inf if is_float(mask.dtype) else 0
    rest = np.full((*mask.shape[:-1], keys - mask.shape[-1]), blocked, mask.dtype)
    return np.concatenate([mask, rest], axis=-1)


def _weighted_sum(weights: Array, v: Array, multiply: Multiply) -> Array:
    """Weighted sum of values, in which 0 x NaN is 0, so blocked keys add nothing."""
    finite = np.isfinite(v)
    if finite.all():
        return product(weights, v, multiply)
    has_weight = (weights != 0).astype(v.dtype)
    kinds = (v == np.inf, v == -np.inf, np.isnan(v))
    above, below, nan = (product(has_weight, kind.astype(v.dtype), multiply) for kind in kinds)
    return add_infinite_values(product(weights, np.where(finite, v, 0), multiply), above, below, nan)


def add_infinite_values(finite: Array, above: Array, below: Array, nan: Array) -> Array:
    """Add inf, -inf and NaN to averages of finite values if their weight is above 0.

    All four have one shape.

    >>> add_infinite_values(*np.array([[1.0, 1.0, 1.0], [0, 0.5, 0], [0, 0, 0], [0, 0, 0.5]])).tolist()
    [1.0, inf, nan]
    """
    for weight, value in ((above, np.inf), (below, -np.inf), (nan, np.nan)):
        finite = finite + np.where(weight > 0, value, 0).astype(finite.dtype)
    return finite
