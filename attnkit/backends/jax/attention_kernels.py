"""Kernels of attention in JAX: every intermediate, fused, by blocks, by a ring.

q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> heads (..., H, T, V); query head h uses key head h // (H/G).
"""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from attnkit.backends.jax.formulas import JaxArray, See, see_nothing, softmax, wide
from attnkit.model.formulas.dense_attention import add_sinks
from attnkit.model.formulas.scores import SCORES, dot, grouped, product

BLOCK = 1024  # queries, and keys, whose scores are computed at a time
MANY = 1 << 26  # scores of all heads, from which on they are computed by blocks
WIDEST_CUDNN = 128  # features of a head that cuDNN's kernel takes
LEAST_CUDNN = 8.0  # compute capability of the GPUs that have it


class Rules(NamedTuple):
    """The rules of attention: which keys a query may attend to, and what scores are.

    causal, window  as in AttentionOptions, for a first query at position `offset`, () or (B,), among the keys
    mask       boolean, True = may attend, broadcastable to (..., H, T, S)
    bias       added to the scores, broadcastable to (..., H, T, S)
    distances  (L, H) added to the scores by key − query, with distance 0 in row L // 2
    softcap    c: scores become c tanh(s/c); 0 is off
    sinks      (H,) a score of each head for no key, as in AttentionOptions
    rounding   the dtype that scores and weights are rounded to, "" for none
    has_infinite  whether values may not be finite: values of weight 0 then add nothing
    """

    scale: float
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    offset: Any = 0
    mask: JaxArray | None = None
    bias: JaxArray | None = None
    distances: JaxArray | None = None
    softcap: float = 0.0
    sinks: JaxArray | None = None
    rounding: str = ""
    has_infinite: bool = False

    def is_plain(self, queries: int, keys: int) -> bool:
        """Whether only causality, perhaps in a window, masks the scores."""
        is_from_start = isinstance(self.offset, int) and self.offset == 0 and queries == keys
        return is_from_start and self.causal and self.window[1] <= 0 and self.mask is None


Kernel = Callable[[JaxArray, JaxArray, JaxArray, Rules, See], JaxArray]


def allowed_cells(rules: Rules, i: JaxArray, j: JaxArray) -> JaxArray | None:
    """The keys that causality and window allow to queries; None for all.

    i (T,) numbers of queries, j (S,) numbers of keys -> (T, S), or (B, 1, T, S) if each row has its offset
    """
    where = i[:, None] + jnp.asarray(rules.offset)[..., None, None]
    where = where[:, None] if where.ndim == 3 else where
    left, right = rules.window
    parts = [j <= where] if rules.causal else []
    parts += [j >= where - left] if left >= 0 else []
    parts += [j <= where + right] if right >= 0 else []
    return reduce(jnp.logical_and, parts) if parts else None


def position_bias(rules: Rules, i: JaxArray, j: JaxArray) -> JaxArray | None:
    """The bias of the distances between queries and keys, (H, T, S), or None."""
    if rules.distances is None:
        return None
    distance = j - i[:, None] - jnp.asarray(rules.offset)
    return jnp.moveaxis(rules.distances[distance + len(rules.distances) // 2], -1, 0)


def mask_scores(scores: JaxArray, rules: Rules, i: JaxArray, j: JaxArray, mask: JaxArray | None) -> JaxArray:
    """Add the biases to scores, with -inf for blocked keys: (..., H, T, S)."""
    for bias in (rules.bias, position_bias(rules, i, j)):
        scores = scores if bias is None else scores + bias.astype(scores.dtype)
    for allowed in (allowed_cells(rules, i, j), mask):
        scores = scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)
    return scores


def dense_attention(
    q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, see: See = see_nothing, score: Any = dot
) -> JaxArray:
    """Compute the heads from all scores at once; `see` may replace intermediates.

    >>> x = jnp.array([[[1.0, 0], [0, 1]]])
    >>> dense_attention(x, x, x, Rules(0.0, causal=True)).tolist()
    [[[1.0, 0.0], [0.5, 0.5]]]
    """
    return dense_with_lse(q, k, v, rules, see, score)[0]


def dense_with_lse(
    q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, see: See = see_nothing, score: Any = dot
) -> tuple[JaxArray, JaxArray]:
    """`dense_attention` with the log-sum-exp of each query's scores, (..., H, T)."""
    i, j = jnp.arange(q.shape[-2]), jnp.arange(k.shape[-2])
    scores = see("scores", wide(score(q, k)))
    scaled = see("scaled", scores * rules.scale)
    capped = see("capped", cap(scaled, rules))
    masked = see("masked", mask_scores(capped, rules, i, j, rules.mask))
    rounded = masked.astype(rules.rounding).astype(masked.dtype) if rules.rounding else masked
    weights, lse = softmax(rounded)
    if rules.sinks is not None:
        share, lse = add_sinks(lse, rules.sinks.astype(lse.dtype), jnp)
        weights = weights * share[..., None].astype(weights.dtype)
    weights = weights.astype(rules.rounding).astype(weights.dtype) if rules.rounding else weights
    weights = see("weights", weights)
    values = weighted_values if rules.has_infinite else product
    return see("heads", values(weights.astype(v.dtype), v)), lse


def cap(scores: JaxArray, rules: Rules) -> JaxArray:
    return rules.softcap * jnp.tanh(scores / rules.softcap) if rules.softcap else scores


def score_function(name: str, params: Mapping[str, JaxArray]) -> Callable[[JaxArray, JaxArray], JaxArray]:
    """Score function of queries and keys: see model/formulas/scores.py."""
    score = SCORES[name]
    if not score.parameters:
        return score.score
    return lambda q, k: projected_scores(name, *score.project(q, k, params), params)


def projected_scores(name: str, q: JaxArray, k: JaxArray, params: Mapping[str, JaxArray]) -> JaxArray:
    """The scores of queries and keys after their projection by a score function."""
    if name != "additive":
        return SCORES[name].score(q, k, params)
    rows = grouped(q, k.shape[-3])[..., :, None, :]
    return (jnp.tanh(rows + k[..., None, :, :]) @ params["va"].reshape(-1)).reshape(*q.shape[:-1], k.shape[-2])


def weighted_values(weights: JaxArray, v: JaxArray) -> JaxArray:
    """The weighted sum of values that may not be finite: 0 x NaN is 0."""
    heads = product(weights, jnp.where(jnp.isfinite(v), v, 0))
    has_weight = (weights != 0).astype(v.dtype)
    for kind, value in ((v == jnp.inf, jnp.inf), (v == -jnp.inf, -jnp.inf), (jnp.isnan(v), jnp.nan)):
        heads = heads + jnp.where(product(has_weight, kind.astype(v.dtype)) > 0, value, 0).astype(v.dtype)
    return heads


def fused_attention(q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, see: See = see_nothing) -> JaxArray:
    """Compute the heads by `jax.nn.dot_product_attention`, or cuDNN in 16 bits.

    Many scores, all of which the kernel would hold, are computed by blocks. `dense_attention` computes float64, whose
    scores the kernel would round, and float16 on a CPU, which the kernel does not support.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    is_plain = rules.is_plain(queries, keys)
    is_cudnn = has_cudnn(q, v, rules, is_plain)
    if not is_cudnn and q.shape[-3] * queries * keys >= MANY and rules.bias is None:
        return block_attention(q, k, v, rules)[0].astype(q.dtype)
    if rules.softcap or rules.sinks is not None or v.shape[-1] != q.shape[-1]:
        return dense_attention(q, k, v, rules)
    if q.dtype.itemsize == 8 or (q.dtype == jnp.float16 and jax.default_backend() == "cpu"):
        return dense_attention(q, k, v, rules)
    i, j = jnp.arange(queries), jnp.arange(keys)
    masks = [] if is_plain else [one for one in (allowed_cells(rules, i, j), rules.mask) if one is not None]
    biases = [one.astype(q.dtype) for one in (rules.bias, position_bias(rules, i, j)) if one is not None]
    mask = four_axes(reduce(jnp.logical_and, masks)) if masks else None
    bias = four_axes(reduce(jnp.add, biases)) if biases else None
    rows = [jnp.swapaxes(four_axes(x), -2, -3) for x in (q, k, v)]  # (B, T, H, K)
    y = jax.nn.dot_product_attention(
        *rows,
        bias,
        jnp.broadcast_to(mask, (*mask.shape[:2], queries, keys)) if is_cudnn and mask is not None else mask,
        scale=rules.scale,
        is_causal=is_plain,
        local_window_size=(rules.window[0], 0) if is_plain and rules.window[0] >= 0 else None,
        implementation="cudnn" if is_cudnn else "xla",
    )
    y = jnp.swapaxes(y, -2, -3)
    y = y if mask is None else jnp.where(mask.any(axis=-1, keepdims=True), y, 0)
    return y.reshape(*q.shape[:-1], v.shape[-1])


def has_cudnn(q: JaxArray, v: JaxArray, rules: Rules, is_plain: bool) -> bool:
    """Whether cuDNN's kernel accepts queries: an NVIDIA GPU, 16 bits, known sizes.

    A mask it takes as an array of all scores of a head, so not where these are many.
    """
    keys = v.shape[-2]
    is_capped = rules.softcap or rules.sinks is not None or v.shape[-1] != q.shape[-1]
    if q.dtype.itemsize != 2 or rules.distances is not None or is_capped or jax.default_backend() != "gpu":
        return False
    capability = getattr(jax.local_devices()[0], "compute_capability", "")
    is_known = capability.partition(".")[0].isdigit() and float(capability) >= LEAST_CUDNN
    is_small = is_plain or q.shape[-2] * keys < MANY
    is_even = q.shape[-2] % 2 == 0 and keys % 2 == 0
    return is_known and is_small and is_even and q.shape[-1] % 8 == 0 and q.shape[-1] <= WIDEST_CUDNN


def four_axes(x: JaxArray) -> JaxArray:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def merge_parts(first: tuple[JaxArray, JaxArray], second: tuple[JaxArray, JaxArray]) -> tuple[JaxArray, JaxArray]:
    """Join attention over two parts of the keys: heads (..., T, V), sums (..., T).

    >>> part = jnp.array([[1.0]]), jnp.array([0.0])
    >>> [one.round(4).tolist() for one in merge_parts(part, (jnp.array([[3.0]]), jnp.array([0.0])))]
    [[[2.0]], [0.6930999755859375]]
    """
    lse = jnp.logaddexp(first[1], second[1])
    safe = jnp.where(jnp.isneginf(lse), 0, lse)
    shares = [jnp.exp(part - safe)[..., None] * heads for heads, part in (first, second)]
    return shares[0] + shares[1], lse


def part_attention(
    q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, i: JaxArray, j: JaxArray
) -> tuple[JaxArray, JaxArray]:
    """Heads and log-sum-exps of queries i over keys j, in float32 at least."""
    mask = rules.mask
    if mask is not None:
        mask = mask if mask.shape[-1] == 1 else mask[..., j]
        mask = mask if mask.shape[-2] == 1 else mask[..., i, :]
    scores = mask_scores(cap(wide(dot(q, k)) * rules.scale, rules), rules, i, j, mask)
    weights, lse = softmax(scores)
    return wide(product(weights.astype(v.dtype), v)), lse


def block_size(count: int) -> int:
    """The largest size of equal blocks of at most BLOCK: 768 for 1536."""
    return next(count // parts for parts in range(-(-count // BLOCK), count + 1) if count % parts == 0)


def block_attention(
    q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, first_query: Any = 0, first_key: Any = 0
) -> tuple[JaxArray, JaxArray]:
    """Heads and log-sum-exps in blocks: memory grows with T + S, not with T · S.

    first_query, first_key  the numbers of the first query and key, where these are a part of all
    """
    rows, columns = block_size(q.shape[-2]), block_size(k.shape[-2])
    starts = jnp.arange(0, k.shape[-2], columns)

    def over_keys(start: Any) -> tuple[JaxArray, JaxArray]:
        block = jax.lax.dynamic_slice_in_dim(q, start, rows, axis=-2)
        i = first_query + start + jnp.arange(rows)
        none = wide(jnp.zeros((*block.shape[:-1], v.shape[-1]), q.dtype))
        empty = none, jnp.full_like(none[..., 0], -jnp.inf)

        def add(carry: Any, at: Any) -> tuple[Any, None]:
            keys, values = (jax.lax.dynamic_slice_in_dim(x, at, columns, axis=-2) for x in (k, v))
            j = first_key + at + jnp.arange(columns)
            attend = jax.checkpoint(partial(part_attention, rules=rules))
            is_needed = (first_key + at <= i[-1] + jnp.max(jnp.asarray(rules.offset))) | (not rules.causal)
            return jax.lax.cond(
                is_needed, lambda: merge_parts(carry, attend(block, keys, values, i=i, j=j)), lambda: carry
            ), None

        parts: tuple[JaxArray, JaxArray] = jax.lax.scan(add, empty, starts)[0]
        return parts

    heads, lse = jax.lax.map(over_keys, jnp.arange(0, q.shape[-2], rows))  # (blocks, ..., rows, V)
    return with_sinks(
        jnp.moveaxis(heads, 0, -3).reshape(*q.shape[:-1], -1), jnp.moveaxis(lse, 0, -2).reshape(q.shape[:-1]), rules
    )


def with_sinks(heads: JaxArray, lse: JaxArray, rules: Rules) -> tuple[JaxArray, JaxArray]:
    """Heads and log-sum-exps of all keys, with the sinks of the rules if any."""
    if rules.sinks is None:
        return heads, lse
    share, lse = add_sinks(lse, rules.sinks.astype(lse.dtype), jnp)
    return heads * share[..., None].astype(heads.dtype), lse


def ring_attention(mesh: Mesh, q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules) -> tuple[JaxArray, JaxArray]:
    """Heads and log-sum-exps of queries and keys split over the axis `seq` of a mesh.

    q (B, H, T, K), k (B, G, S, K), v (B, G, S, V); T and S are divisible by the size of `seq`

    Every device has a part of the queries, and the keys pass it part by part, around the ring; what it has of the
    keys so far is merged with what the next part adds (Liu et al. 2023, Ring Attention).
    """
    size = mesh.shape["seq"]
    groups = k.shape[-3]
    if groups % mesh.shape["model"]:
        k, v = (jnp.repeat(x, q.shape[-3] // groups, axis=-3) for x in (k, v))
    spec = PartitionSpec("data", "model", "seq", None)
    arrays = {name: getattr(rules, name) for name in ("mask", "distances") if getattr(rules, name) is not None}
    specs = {"mask": PartitionSpec("data", None, None, None), "distances": PartitionSpec(None, "model")}
    rules, sinks = rules._replace(sinks=None), rules.sinks

    def turn(q: JaxArray, k: JaxArray, v: JaxArray, arrays: dict[str, JaxArray]) -> tuple[JaxArray, JaxArray]:
        own, me, parts = rules._replace(**arrays), jax.lax.axis_index("seq"), []
        pass_on = partial(jax.lax.ppermute, axis_name="seq", perm=[(one, (one + 1) % size) for one in range(size)])
        for step in range(size):
            source = (me - step) % size
            parts.append(block_attention(q, k, v, own, me * q.shape[-2], source * k.shape[-2]))
            if step + 1 < size:
                k, v = jnp.split(pass_on(jnp.concatenate([k, v], axis=-1)), [k.shape[-1]], axis=-1)
        whole: tuple[JaxArray, JaxArray] = reduce(merge_parts, parts)
        return whole

    mapped = jax.shard_map(
        turn,
        mesh=mesh,
        in_specs=(spec, spec, spec, {name: specs[name] for name in arrays}),
        out_specs=(spec, PartitionSpec("data", "model", "seq")),
        check_vma=False,
    )
    heads, lse = mapped(q, k, v, arrays)
    return with_sinks(heads, lse, rules._replace(sinks=sinks))
