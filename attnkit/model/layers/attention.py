"""A step of attention: its source, parameters, masks and positions."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnkit.errors import DataError, counted
from attnkit.model.attention import attend_in_one_batch, multi_head_attention
from attnkit.model.config import AttentionRules, Config, parse_layer_name
from attnkit.model.context import Context, Model, layer_products
from attnkit.model.dtypes import Array, rounded
from attnkit.model.formulas.dense_attention import MultiHeadOptions
from attnkit.model.formulas.positions import alibi_slopes, t5_bias, t5_buckets, token_positions
from attnkit.model.formulas.relative import RelativePositions, distance_rows
from attnkit.model.formulas.rotary import batch_frequencies, grid_angles, grid_places, rotary_angles
from attnkit.model.hooks import scoped


def attend_to_source(model: Model, layer: str, x: Array, context: Context) -> Array:
    cache, source = context.cache, attention_source(layer, x, context)
    params, options = attention_arguments(model, layer, x.shape[-2], context)
    if cache is not None and layer.endswith(".cross"):
        options["kv_store"] = lambda make: cache.get_or_compute(layer, make)
    elif cache is not None:
        options["kv_store"] = lambda make: cache.append(layer, *make())
    hook = scoped(context.hook, layer)
    request: dict[str, Any] = {"summary": context.weights, "keep": (), "hook": hook}
    if x.ndim > 3:  # of several batch axes, the last of which would be taken for that of heads
        if options["mask"] is not None and options["mask"].ndim == x.ndim:  # without an axis of heads
            options["mask"] = np.expand_dims(options["mask"], -3)
        attend, batch = partial(multi_head_attention, params=params), MultiHeadOptions(**options)
        return attend_in_one_batch(attend, (x, source, source), 2, batch, **request)["output"]
    return multi_head_attention(x, source, source, params, **options, **request)["output"]


def attention_arguments(
    model: Model, layer: str, queries: int, context: Context
) -> tuple[Mapping[str, Array], dict[str, Any]]:
    """Parameters and options of `multi_head_attention` for one layer."""
    params, options = model.params.get(layer, {}), read_attention_options(model, layer, queries, context)
    if model.config.score == "scaled-dot":
        return params, options
    return {}, options | {"score": model.config.score, "score_params": params}


def attention_source(layer: str, x: Array, context: Context) -> Array:
    """What a layer attends to: x or the memory; DataError without a memory."""
    if not layer.endswith(".cross"):
        return x
    if context.memory is None:
        raise DataError.about(layer, "needs a memory to attend to, but none is given")
    return context.memory


def read_attention_options(model: Model, layer: str, queries: int, context: Context) -> dict[str, Any]:
    """Heads, scale, masks and positions of one layer of attention."""
    rules = model.config.attention_rules[layer]
    options = head_options(rules) | {"products": layer_products(model, layer, context)}
    if rules.is_cross:
        return options | {"mask": _over_heads(context.memory_mask)}
    options |= {"causal": rules.causal, "window": rules.window, "mask": _over_heads(context.mask)}
    options |= picture_options(rules, queries, context)
    if rules.shared_key not in context.shared:
        context.shared[rules.shared_key] = relative_positions(model, rules, queries, context)
    options |= context.shared[rules.shared_key]
    if rules.relative == "disentangled":
        options["relative"] = disentangled_positions(model, layer, queries, context)
    return options


def picture_options(rules: AttentionRules, queries: int, context: Context) -> dict[str, Any]:
    """The mask of a causal layer where the tokens of a picture attend to all of it.

    {} if there are none, or if they attend as words do. A window holds for them as well.
    """
    pictures = context.pictures
    if pictures is None or pictures.groups is None or not pictures.within(context.past, queries).any():
        return {}
    keys = np.arange(context.past + queries)
    group = np.full(len(keys), -1)
    known = pictures.within(0, len(keys))
    group[pictures.places[known]] = pictures.groups[known]
    now = keys[context.past :, None]
    mask = (keys <= now) | ((group == group[context.past :, None]) & (group >= 0))
    if rules.window[0] >= 0:
        mask &= keys >= now - rules.window[0]
    if context.mask is not None:
        mask = mask & context.mask
    return {"causal": False, "window": (-1, -1), "mask": _over_heads(mask)}


def head_options(rules: AttentionRules) -> dict[str, Any]:
    """The options of a layer of attention that do not depend on its tokens."""
    names = ("heads", "kv_heads", "scale", "softcap", "norm", "latent", "clip", "key_scale", "interleaved")
    return {name: getattr(rules, name) for name in names}


def relative_positions(model: Model, rules: AttentionRules, queries: int, context: Context) -> dict[str, Any]:
    """Rotary angles and bias on the scores of the layers with these rules."""
    options: dict[str, Any] = {}
    if rules.rotation:
        options["rotary"] = rotation(model.config, rules, queries, context)
    if rules.relative == "alibi":
        options["bias"] = alibi(model.config, rules, context.past + queries, context.mask)
    if rules.relative == "t5":
        buckets = position_buckets(model.config, rules.stack, context.past, queries)
        options["bias"] = t5_bias(buckets, model.params[f"{rules.stack}.bias"]["table"])
    return options


def rotation(config: Config, rules: AttentionRules, queries: int, context: Context) -> tuple[Array, Array]:
    """Cosines and sines (T, R/2) or (B, 1, T, R/2) that queries are rotated by."""
    if rules.rotation == "grid_rotary":
        return grid_angles(patch_places(config, context.grid, queries), rules.rotary_dim, rules.rope)
    where = context.positions if context.positions is not None else context.past + np.arange(queries)
    frequencies, factor = batch_frequencies(rules.rotary_dim, rules.rope, where)
    cos, sin = rotary_angles(where, rules.rotary_dim, frequencies=frequencies)
    if where.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    return cos * factor, sin * factor


def patch_places(config: Config, grid: tuple[int, int] | None, tokens: int) -> Array:
    """Places (T, 2) of the tokens of an image.

    DataError for another number of tokens than its grid has.

    grid  rows and columns of its patches [those of an image of the model's size]
    """
    cut = config.patches
    assert cut is not None
    rows, columns = grid or cut.grid(cut.height, cut.width)
    if cut.before + rows * columns != tokens:
        expected = f"{cut.before} and {rows} x {columns} patches"
        raise DataError(f"{counted(tokens, 'token')} of an image (expected {expected})")
    return grid_places(rows, columns, cut.before)


def alibi(config: Config, rules: AttentionRules, keys: int, mask: Array | None, slopes: Array | None = None) -> Array:
    """The slope of each head times the position of each key, a bias on the scores.

    It differs from the bias by distance by a number for each query, which changes no weight.

    mask (B, 1, S), True = real, or None; slopes (H,), or None for those of ALiBi -> (B, H, 1, S) or (H, 1, S)
    """
    is_padding = mask is not None and mask.ndim == 3 and mask.shape[1:] == (1, keys)
    where = token_positions(mask)[:, None, None] if mask is not None and is_padding else np.arange(keys)
    slopes = (alibi_slopes(rules.heads) if slopes is None else slopes)[:, None, None]
    if config.positions.rounds_bias:
        return rules.factor * rounded(rounded(slopes, "bfloat16") * where, "bfloat16").astype(np.float64)
    bias: Array = slopes * where
    return bias


def disentangled_positions(model: Model, layer: str, queries: int, context: Context) -> RelativePositions:
    """Distances between the tokens of a stack, and projections of one layer."""
    positions, params = model.config.positions, model.params
    keys = np.arange(context.past + queries)
    index = distance_rows(keys[context.past :], keys, positions.buckets, positions.max_distance)
    table, own = (params[relative_layer(model.config, layer, name)] for name in ("table", "wk"))
    used = [f"{kind}{'k' if term == 'c2p' else 'q'}" for term in positions.terms for kind in "wb"]
    projections = {key: own[key] for key in used if key in own}
    return RelativePositions(index, **table, eps=model.config.eps, **projections)


def relative_layer(config: Config, layer: str, name: str) -> str:
    """The layer that holds a parameter of disentangled positions of attention.

    >>> [relative_layer(Config("", 2), "encoder.1.self", name) for name in ("table", "wk")]
    ['encoder.relative', 'encoder.1.relative']
    """
    stack, number, _ = parse_layer_name(layer)
    if name in ("table", "gamma", "beta"):
        return f"{stack}.relative"
    return layer if config.positions.shares_projections else f"{stack}.{number}.relative"


def position_buckets(config: Config, name: str, past: int, queries: int) -> Array:
    """T5 bucket of every query and key: queries T, past P -> (T, P + T)."""
    options = {"buckets": config.positions.buckets, "max_distance": config.positions.max_distance}
    bidirectional = not config.stack(name).causal
    return t5_buckets(past + np.arange(queries), np.arange(past + queries), bidirectional=bidirectional, **options)


def _over_heads(mask: Array | None) -> Array | None:
    return mask[:, None] if mask is not None and mask.ndim == 3 else mask
