"""The nodes of attention: projections, heads, scores, mask, weights, mix."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnkit.model.backward.attention_backward import normalize_heads_vjp, sinks_backward, undo_clip
from attnkit.model.config import AttentionRules
from attnkit.model.context import Context
from attnkit.model.dtypes import Array, rounded
from attnkit.model.formulas import masks
from attnkit.model.formulas.dense_attention import LatentConfig, add_sinks
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.linear import scaled, sum_to_shape
from attnkit.model.formulas.positions import t5_bias_backward
from attnkit.model.formulas.relative import RelativePositions, relative_scores_backward
from attnkit.model.formulas.rotary import batch_frequencies, grid_angles, rope_frequencies
from attnkit.model.formulas.scores import dot_backward, product_backward
from attnkit.model.formulas.softmax import log_sum_exp, softmax_backward
from attnkit.model.graph.costs import Cost, Costs, Sizes, count_product
from attnkit.model.graph.linear import apply_linear, apply_linear_backward, scale_and_shift, standardize
from attnkit.model.graph.nodes import Built, Kind, Node, Place, Scope, stack_sizes
from attnkit.model.graph.recurrence import build_attend
from attnkit.model.intermediates import STEPS
from attnkit.model.layers.attention import alibi, disentangled_positions, patch_places, position_buckets, relative_layer


def cut_fused(scope: Scope, flat: Sequence[Array]) -> Array:
    """One of q, k and v, cut out of all three in another layout.

    q (B, T, H*K), k and v (B, T, G*K) each

    The layouts are flat, all queries before all keys before all values, and grouped, in which each key head and its
    value head follow the query heads that read them.
    """
    groups, at = scope.option("groups"), scope.option("place")
    grouped = np.concatenate([one.reshape(*one.shape[:-1], groups, -1) for one in flat], axis=-1)
    ends = np.cumsum([one.shape[-1] for one in flat])
    start, end = ends[at] - flat[at].shape[-1], ends[at]
    if scope.option("stored") == "flat":
        fused: Array = np.concatenate(flat, axis=-1).reshape(grouped.shape)
        return fused[..., start // groups : end // groups].reshape(flat[at].shape)
    fused = grouped.reshape(*flat[0].shape[:-1], -1)
    return fused[..., start:end]


def _heads(scope: Scope, x: Array, *fused: Array) -> Array:
    """Split into heads, and rotate: (B, T, H*K) -> (B, H, T, K).

    fused  keys and values that a slip cuts queries (x) out of
    """
    y = split_heads_of(scope, cut_fused(scope, [x, *fused]) if fused else x)
    if clip := scope.option("clip", 0.0):
        y = scope.xp.clip(y, -clip, clip)
    return turn(scope, scaled(y, scope.option("key_scale", 1.0)))


def _undo_heads(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    dy = scaled(turn_back(scope, dy), scope.option("key_scale", 1.0))
    dy = undo_clip(dy, split_heads_of(scope, x), scope.option("clip", 0.0))
    return [dy if scope.option("splits") == "before" else merge_heads(dy)]


def _count_heads(sizes: Sizes) -> Costs:
    """Rotation of some features, clipping, and a factor."""
    turned = math.prod(sizes.node.shape[:-1]) * sizes.option("width", 0) * sizes.option("times", 0)
    clipped = (bool(sizes.option("clip")) + (sizes.option("key_scale", 1.0) != 1)) * math.prod(sizes.node.shape)
    return [Cost(elementwise=3 * turned + clipped)]


def split_heads_of(scope: Scope, x: Array) -> Array:
    """Split the features of each token into heads."""
    count = scope.option("heads")
    if scope.option("splits") == "before":
        return x
    if scope.option("splits") == "no transposing":
        return x.reshape(x.shape[0], count, x.shape[1], -1)
    if scope.option("splits") == "heads last":
        return np.moveaxis(x.reshape(*x.shape[:-1], -1, count), -1, 1)
    return view_heads(x, count)


def turn(scope: Scope, x: Array) -> Array:
    """Rotate heads (B, H, T, K) as often as the node says."""
    for _ in range(scope.option("times", 0)):
        x = turn_once(scope, x)
    return scope.functions.contiguous(x)


def turn_back(scope: Scope, dy: Array) -> Array:
    """The gradient of heads (B, H, T, K), rotated in the other direction."""
    return turn(scope._replace(node=scope.node.change(direction=-scope.option("direction", 1))), dy)


def turn_once(scope: Scope, x: Array) -> Array:
    """Rotate the first or the last features of a head, or by a slip both halves.

    Of both halves the first ones.
    """
    width = scope.option("width", x.shape[-1])
    if scope.option("distant"):
        pairs, half = np.arange(width // 2), x.shape[-1] // 2  # pairs (i, i + K/2) of a head
        order = np.r_[pairs, half + pairs, np.delete(np.arange(x.shape[-1]), np.r_[pairs, half + pairs])]
        return scope.functions.rotate(x[..., order], *_angles(scope, width))[..., np.argsort(order)]
    cut = x.shape[-1] - width if scope.option("part") == "last" else 0
    turned = scope.functions.rotate(
        x[..., cut:], *_angles(scope, width), interleaved=scope.option("interleaved", False)
    )
    return scope.xp.concatenate([x[..., :cut], turned], axis=-1) if cut else turned


def _angles(scope: Scope, width: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotation of a node."""
    if (angles := scope.option("angles")) is not None:
        given: tuple[Array, Array] = angles
        return given
    rope, where = scope.option("rope"), np.asarray(scope.option("where"))
    if (places := scope.option("places")) is not None:
        cos, sin = grid_angles(places, width, rope)
        return cos, sin * scope.option("direction", 1)
    length = scope.option("length")  # of all texts; None: each has its own
    base = scope.option("base_width", width)
    frequencies, factor = rope_frequencies(base, rope, length) if length else batch_frequencies(base, rope, where)
    frequencies = frequencies[..., : width // 2]
    if form := scope.option("rounds_frequencies"):
        frequencies = rounded(frequencies, form).astype(np.float64)
    if scope.precision != "float64":  # as implementations compute them
        where, frequencies = where.astype(np.float32), frequencies.astype(np.float32)
    phases = where[..., None] * frequencies
    cos, sin = np.cos(phases), np.sin(phases)
    if form := scope.option("rounds_angles"):
        cos, sin = (rounded(one, form).astype(np.float64) for one in (cos, sin))
    if where.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    factor = scope.option("factor", factor)
    return cos * factor, sin * scope.option("direction", 1) * factor


def norm_heads(scope: Scope, x: Array) -> Array:
    """Norm of projected queries or keys: (B, T, H*K) -> (B, H, T, K)."""
    heads, norm = scope.option("heads"), scope.option("norm")
    if scope.option("rotates"):
        x = merge_heads(turn_once(scope, view_heads(x, heads)))
    if scope.option("skips"):
        return view_heads(x, heads)
    rows = x if norm.scope == "projection" else x.reshape(*x.shape[:-1], heads, -1)
    y = standardize(scope, rows, norm.kind, norm.eps).reshape(x.shape)
    each = (scope.parameter(name) for name in scope.option("names"))  # of one head for all, or of all heads
    gamma, beta = (one if one is None else scope.xp.resize(one, (x.shape[-1],)) for one in each)
    return view_heads(scale_and_shift(scope, y, gamma, beta), heads)


def _undo_norm_heads(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    names, heads, norm = scope.option("names"), scope.option("heads"), scope.option("norm")
    gamma, beta = map(scope.parameter, names)
    dx, *parts = normalize_heads_vjp(x, gamma, beta, heads, norm)[1](dy)
    scope.add(scope.node.layer, dict(zip(names, parts, strict=True)))
    return [dx]


def _count_norm(sizes: Sizes) -> Costs:
    cost = sizes.elementwise(5)
    return [cost._replace(parameters=sizes.own(*sizes.option("names")))]


def _latent_keys(scope: Scope, content: Array, shared: Array) -> Array:
    """Keys of latent attention, whose last features all heads share.

    (B, T, H*C), (B, T, P) -> (B, H, T, C + P)
    """
    own = split_heads_of(scope, content)
    both = [own, scope.xp.broadcast_to(shared[..., None, :, :], (*own.shape[:-1], shared.shape[-1]))]
    return turn(scope, scope.xp.concatenate(both, axis=-1))


def _undo_latent_keys(scope: Scope, dy: Array, y: Array, content: Array, shared: Array) -> list[Array]:
    own, rotary = np.split(turn_back(scope, dy), [y.shape[-1] - shared.shape[-1]], axis=-1)
    return [merge_heads(own), rotary.sum(axis=-3)]


def _scores(scope: Scope, q: Array, k: Array) -> Array:
    return scope.functions.product(q, np.swapaxes(repeat_heads(scope, k, q.shape[-3]), -1, -2))


def _count_scores(sizes: Sizes) -> Costs:
    """Count the products of queries and keys, or the sums of additive scores.

    Additive scores are a sum and its tanh before the product with va.
    """
    (q, k), scores = sizes.shapes, sizes.scores
    added = 2 * scores * q[-1] * (sizes.option("score") == "additive")
    read, own = math.prod(q) + sizes.read_keys(k), sizes.own("va")
    return [Cost("", square(sizes, k[-2]), 2 * scores * q[-1], added, read, scores, parameters=own)]


def square(sizes: Sizes, keys: int) -> tuple[int, int, int]:
    """The shape of the scores of a text in one pass, (H, T, S)."""
    return sizes.option("rules").heads, sizes.passes.shown_tokens, sizes.present_keys(keys)


def repeat_heads(scope: Scope, x: Array, heads: int) -> Array:
    """Key or value heads for every query head: (B, G, S, K) -> (B, H, S, K)."""
    groups = x.shape[-3]
    if heads == groups:
        return x
    order = np.arange(heads) % groups if scope.option("in_turn") else np.arange(heads) // (heads // groups)
    return x[..., order, :, :]


def cap(scope: Scope, x: Array) -> Array:
    softcap = scope.option("softcap", 0.0)
    return softcap * scope.xp.tanh(x / softcap) if softcap else x


def cap_backward(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    softcap = scope.option("softcap", 0.0)
    return [dy * (1 - np.square(y / softcap)) if softcap else dy]


def _mask(scope: Scope, x: Array, *pair: Array) -> Array:
    """Scores (B, H, T, S) with bias and mask; the pair are q and k."""
    rules: AttentionRules = scope.option("rules")
    queries, keys = x.shape[-2:]
    if not scope.option("no_bias") and not rules.is_cross:
        x = x + _relative_bias(scope, rules, queries, pair) if rules.relative else x
    allowed = np.ones((queries, keys), bool)
    if rules.causal:
        allowed = allowed & masks.causal_mask(queries, keys, scope.option("offset", 0))
    if rules.window != (-1, -1):
        left, right = rules.window
        allowed = allowed & masks.window_mask(queries, keys, left, right)
    padding = scope.option("padding")
    if padding is not None:
        allowed = allowed & padding[:, None, None, :]
    return masks.mask_block(x, allowed, scope.option("fill", -np.inf), scope.xp)


def _undo_mask(scope: Scope, dy: Array, y: Array, x: Array, *pair: Array) -> list[Array]:
    """Gradients of scores, and of q and k where positions multiply them.

    Gradients of tables of positions are added.
    """
    rules: AttentionRules = scope.option("rules")
    dy = np.where(np.isneginf(y), 0, dy)
    if rules.relative == "t5" and not rules.is_cross:
        layer, queries = f"{rules.stack}.bias", y.shape[-2]
        size = len(scope.core.params[layer]["table"])
        buckets = position_buckets(scope.config, rules.stack, 0, queries)
        bias = sum_to_shape(dy, y.shape[-3:])
        scope.add(layer, {"table": t5_bias_backward(bias, buckets, size)})
    if not pair:
        return [dy]
    q, k = pair
    parts = relative_scores_backward(dy * rules.factor, q, k, _distances(scope, y.shape[-2]))
    both = [parts.pop(name) for name in "qk"]
    for name, part in parts.items():
        scope.add(relative_layer(scope.config, scope.node.layer, name), {name: part})
    return [dy, *both]


def _count_mask(sizes: Sizes) -> Costs:
    """Count what relative positions add to scores.

    The products of disentangled ones with their table are rows of their own.
    """
    rules: AttentionRules = sizes.option("rules")
    if rules.relative == "disentangled":
        yield from _count_distances(sizes, rules)
    yield sizes.elementwise(int(bool(rules.relative)))


def _count_distances(sizes: Sizes, rules: AttentionRules) -> Costs:
    """The table of distances projected, and products of queries and keys with it."""
    config, layer, tokens = sizes.model.config, sizes.node.layer, sizes.passes.tokens
    positions, inner = config.positions, rules.heads * rules.head_dim
    distances, terms = 2 * positions.buckets, len(positions.terms)
    own = layer if positions.shares_projections else f"{layer.rpartition('.')[0]}.relative"
    names = [f"{kind}{'k' if term == 'c2p' else 'q'}" for term in positions.terms for kind in "wb"]
    flops, read = 2 * distances * config.width * inner, distances * config.width + sizes.model.size(own, *names)
    parameters = sizes.model.own_size(own) if own != layer else 0
    written, rows = terms * distances * inner, sizes.passes.rows
    yield Cost(f"{layer}.distances", (distances, inner), terms * flops, 0, read, written, parameters=parameters)
    flops, shape = 2 * rows * inner * distances, (rules.heads, tokens, tokens)
    read, added = terms * (distances + rows) * inner, 2 * terms * sizes.scores
    yield Cost(f"{layer}.relative", shape, terms * flops, added, read, sizes.scores)


def _relative_bias(scope: Scope, rules: AttentionRules, queries: int, pair: Sequence[Array]) -> Array:
    """What relative positions add to scores: (H, T, S) or (B, H, T, S)."""
    core = scope.core
    if rules.relative == "alibi":
        padding = scope.option("padding")
        mask = None if padding is None else padding[:, None]
        bias = alibi(core.config, rules, queries, mask, scope.option("slopes"))
        return scope.convert(bias * scope.option("bias_factor", 1.0))
    if not pair:
        buckets = position_buckets(scope.config, rules.stack, 0, queries)
        table = scope.xp.asarray(core.params[f"{rules.stack}.bias"]["table"])
        return scope.convert(scope.functions.t5_bias(buckets, table))
    q, k = pair
    scores: Array = scope.functions.relative_scores(q, k, _distances(scope, queries)) * rules.factor
    return scores


def _distances(scope: Scope, queries: int) -> RelativePositions:
    """The embeddings of distances of a layer in the precision of the computation."""
    relative = disentangled_positions(scope.core, scope.node.layer, queries, Context())
    tables: dict[str, Any] = {
        name: scope.convert(scope.xp.asarray(one))
        for name, one in relative._asdict().items()
        if name not in ("places", "eps") and one is not None
    }
    return relative._replace(**tables)


def _softmax(scope: Scope, x: Array) -> Array:
    axis, sinks, functions = scope.option("axis", -1), scope.parameter("sinks"), scope.functions
    weights = np.moveaxis(functions.softmax(np.moveaxis(x, axis, -1)), -1, axis)
    if sinks is None:
        return weights
    share, _ = add_sinks(functions.log_sum_exp(x), sinks, scope.xp)
    result: Array = weights * share[..., None].astype(x.dtype)
    return result


def _undo_softmax(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    if (sinks := scope.parameter("sinks")) is not None:
        saved = {"heads": y, "lse": add_sinks(log_sum_exp(x), sinks)[1]}
        scope.add(scope.node.layer, {"sinks": sinks_backward(dy, sinks, saved)})
    return [softmax_backward(dy, y)]


def _count_softmax(sizes: Sizes) -> Costs:
    """Count maximum, subtraction, exponential, sum and division of each score.

    A sink adds two to each row.
    """
    cost, sinks = sizes.elementwise(4), sizes.found("sinks")
    rows = 2 * math.prod(sizes.node.shape[:-1]) * len(sinks)
    shape = square(sizes, sizes.node.shape[-1]) if sizes.option("rules") else ()
    return [cost._replace(shape=shape, elementwise=cost.elementwise + rows, parameters=sizes.own("sinks"))]


def _mix(scope: Scope, weights: Array, v: Array) -> Array:
    return scope.functions.product(weights, repeat_heads(scope, v, weights.shape[-3]))


def _count_mix(sizes: Sizes) -> Costs:
    scores, v, width = sizes.scores, sizes.shapes[1], sizes.node.shape[-1]
    read, written = scores + sizes.read_keys(v), math.prod(sizes.node.shape)
    return [Cost(flops=2 * scores * width, read=read, written=written)]


def _join(scope: Scope, x: Array) -> Array:
    if scope.option("no_transposing"):
        return x.reshape(x.shape[0], x.shape[2], -1)
    return merge_heads(x)


KINDS = {
    "expand": Kind(value=apply_linear, pullback=apply_linear_backward, cost=count_product),
    "norm of heads": Kind(value=norm_heads, pullback=_undo_norm_heads, cost=_count_norm),
    "heads": Kind(value=_heads, pullback=_undo_heads, cost=_count_heads),
    "latent keys": Kind(value=_latent_keys, pullback=_undo_latent_keys, cost=_count_heads),
    "scores": Kind(
        value=_scores, pullback=lambda scope, dy, y, q, k: [*dot_backward(dy, q, k, {})[:2]], cost=_count_scores
    ),
    "cap": Kind(
        value=cap, pullback=cap_backward, cost=lambda sizes: [sizes.elementwise(3 * bool(sizes.option("softcap")))]
    ),
    "mask": Kind(value=_mask, pullback=_undo_mask, cost=_count_mask),
    "softmax": Kind(value=_softmax, pullback=_undo_softmax, cost=_count_softmax),
    "mix": Kind(
        value=_mix, pullback=lambda scope, dy, y, weights, v: [*product_backward(dy, weights, v)], cost=_count_mix
    ),
    "join": Kind(value=_join, pullback=lambda scope, dy, y, x: [view_heads(dy, x.shape[-3])]),
}


def _positions_of(place: Place, rules: AttentionRules) -> dict[str, Any]:
    """The options of a node that rotates."""
    if not rules.rotation:
        return {}
    rotation = {"rope": rules.rope, "width": rules.rotary_dim, "interleaved": rules.interleaved}
    if rules.rotation == "grid_rotary":
        config, image = place.core.config, place.inputs.image
        grid = config.patches.grid(*image.shape[-2:]) if config.patches and image is not None else None
        rotation["places"] = patch_places(config, grid, place.tokens)
    return rotation | {"where": place.positions()}


def _build_projections(place: Place, rules: AttentionRules, source: str, keys: int) -> Built:
    layer = place.step.layer
    for letter, read, rows in (("q", place.x, place.tokens), ("k", source, keys), ("v", source, keys)):
        count = rules.heads if letter == "q" else rules.kv_heads
        projected = f"{layer}.{letter}_projected"
        shape = (place.batch, rows, count * rules.head_dim)
        parameters = (f"w{letter}", f"b{letter}")
        yield Node(projected, "linear", (read,), shape, layer, {"names": parameters, "heads": count})
        options: dict[str, Any] = {"heads": count, "clip": rules.clip}
        if letter == "k" and rules.key_scale != 1:
            options["key_scale"] = rules.key_scale
        split = (place.batch, count, rows, rules.head_dim)
        if rules.norm and letter != "v":
            norm = {"names": (f"gamma_{letter}", f"beta_{letter}"), "heads": count, "norm": rules.norm}
            yield Node(f"{layer}.{letter}_normed", "norm of heads", (projected,), split, layer, norm)
            projected = f"{layer}.{letter}_normed"
            options["splits"] = "before"
        if rotation := _positions_of(place, rules):
            options |= {**rotation, "times": int(letter != "v")}
        yield Node(f"{layer}.{letter}", "heads", (projected,), split, "", options)


def _build_latents(place: Place, rules: AttentionRules, latent: LatentConfig) -> Built:
    layer, heads = place.step.layer, rules.heads
    rotation = {**_positions_of(place, rules), "part": "last", "times": 1} if rules.rotation else {}
    for name, size in (("q_latent", latent.query_rank), ("kv_latent", latent.rank)):
        if size:
            names, shape = {"names": (f"w{name}", f"b{name}")}, place.states(size)
            norm = {"kind": "rms", "eps": latent.eps, "names": (f"gamma_{name}", "")}
            yield Node(f"{layer}.{name}_projected", "linear", (place.x,), shape, layer, names)
            yield Node(f"{layer}.{name}", "norm", (f"{layer}.{name}_projected",), shape, layer, norm)
    shared = {"names": ("wk_rotary", "bk_rotary")}
    yield Node(f"{layer}.k_rotary", "linear", (place.x,), place.states(latent.rotary), layer, shared)
    sources = {"q": f"{layer}.q_latent" if latent.query_rank else place.x, "k": f"{layer}.kv_latent"}
    for letter, width in (("q", rules.head_dim), ("k", latent.content), ("v", latent.value)):
        read, projected = sources.get(letter, sources["k"]), f"{layer}.{letter}_projected"
        expansion: dict[str, Any] = {"names": (f"w{letter}", f"b{letter}"), "heads": heads}
        expands = "linear" if letter == "q" else "expand"
        yield Node(projected, expands, (read,), place.states(heads * width), layer, expansion)
        split = (place.batch, heads, place.tokens, latent.value if letter == "v" else rules.head_dim)
        if letter == "k":
            both = (projected, f"{layer}.k_rotary")
            yield Node(f"{layer}.k", "latent keys", both, split, layer, {"heads": heads, **rotation})
        else:
            yield Node(
                f"{layer}.{letter}",
                "heads",
                (projected,),
                split,
                "",
                {"heads": heads} | (rotation if letter == "q" else {}),
            )


def build_attention(place: Place) -> Built:
    core, inputs, layer = place.core, place.inputs, place.step.layer
    if core.config.score != "scaled-dot":
        yield from build_attend(place)
        return
    rules = core.config.attention_rules[layer]
    source = place.memory if rules.is_cross else place.x
    keys = stack_sizes(core, inputs, "encoder")[1] if rules.is_cross else place.tokens
    if rules.latent is not None:
        yield from _build_latents(place, rules, rules.latent)
    else:
        yield from _build_projections(place, rules, source, keys)
    padding = inputs.of(core.config.stacks[0] if rules.is_cross else rules.stack, core.config)[1]
    padding = None if padding is None or padding.all() else padding
    names = ("q", "k", "v", *STEPS[3:], "joined", "output")  # scores to heads between them
    q, k, v, scores, scaled, capped, masked, weights, heads, joined, output = (f"{layer}.{name}" for name in names)
    pair = (q, k) if rules.relative == "disentangled" and not rules.is_cross else ()
    grouped = {"is_grouped": rules.heads != rules.kv_heads, "rules": rules}
    square, each = (place.batch, rules.heads, place.tokens, keys), (place.batch, rules.heads, place.tokens)
    yield Node(scores, "scores", (q, k), square, options=grouped)
    yield Node(scaled, "scale", (scores,), square, options={"factor": rules.factor, "rules": rules})
    yield Node(capped, "cap", (scaled,), square, options={"softcap": rules.softcap})
    yield Node(masked, "mask", (capped, *pair), square, layer, {"rules": rules, "padding": padding})
    yield Node(weights, "softmax", (masked,), square, layer, {"rules": rules})
    yield Node(heads, "mix", (weights, v), (*each, rules.value_dim), options=grouped)
    if rules.is_gated:
        projected, gate, gated = (f"{layer}.{name}" for name in ("gate_projected", "gate", "gated_heads"))
        flat, split = place.states(rules.heads * rules.value_dim), (*each, rules.value_dim)
        yield Node(projected, "linear", (place.x,), flat, layer, {"names": ("wg", "bg"), "heads": rules.heads})
        yield Node(gate, "heads", (projected,), split, options={"heads": rules.heads})
        yield Node(gated, "gated", (heads, gate), split, options={"activation": "sigmoid"})
        heads = gated
    yield Node(joined, "join", (heads,), place.states(rules.heads * rules.value_dim))
    yield Node(output, "linear", (joined,), place.states(place.width()), layer, {"names": ("wo", "bo")})
