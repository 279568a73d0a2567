"""The head of a model: hidden states to logits of words or of classes."""

from typing import Any

import numpy as np

from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, working
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.formulas.linear import linear, scaled
from attnkit.model.formulas.pooling import HEAD_POOLINGS, first_token
from attnkit.model.formulas.sampling import logits
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.layers.networks import normalize
from attnkit.model.passes.transformer import run
from attnkit.model.processor.products import FIXED, LANES, PLAIN, Products
from attnkit.model.processor.threads import split_range

LARGEST = 1 << 23  # numbers of a weight that are multiplied at once


def head_logits(model: Model, x: Array, hook: Hook = no_hook, mask: Array | None = None) -> Array:
    """Logits of hidden states: a score for every word (or class) of the model.

    x (..., T, D), mask (..., 1, T), True = a token, not padding -> (..., T, N), or (..., C) for classes of the whole,
    at least float32
    """
    if model.engine:
        return model.engine.head_logits(model, x, hook, mask)
    config, params = model.config, model.params
    products = FIXED if config.fixes_shapes("head") else PLAIN
    pools_first = config.is_head_pooled and not config.pools_late
    x = cast(pool_head(model, x, hook, mask, products) if pools_first else x, working(x))
    if config.transform:
        activation = ACTIVATIONS[config.head_activation or config.activation]
        dense = activation(linear(x, params["head.dense"]["w"], params["head.dense"].get("b"), products=products))
        x = apply_hook(hook, "head.dense", dense)
        if config.head_norm:
            x = apply_hook(hook, "head.norm", normalize(model, "head.norm", x).y)
    x = pool_head(model, x, hook, mask, products) if config.pools_late else x
    rows = _multiply(scaled(x, config.logit_scale), model.part("head", "w"), model.part("head", "b"), products)
    if config.logit_softcap:
        rows = config.logit_softcap * np.tanh(rows / config.logit_softcap)
    return apply_hook(hook, "logits", rows[..., 0, :] if config.is_head_pooled else rows)


def _multiply(x: Array, weight: Any, bias: Array | None, products: Products) -> Array:
    """Logits of a head by blocks of words, so that few weights are converted at once."""
    words = weight.shape[1]
    each = max(LARGEST // max(len(weight), 1) // LANES, 1) * LANES
    if words <= each:
        return logits(x, weight[:, :], bias, products)
    rows = np.empty((*x.shape[:-1], words), working(x, weight))
    for part in split_range(0, words, each):
        rows[..., part] = logits(x, weight[:, part], None if bias is None else bias[part], products)
    return rows


def pool_head(model: Model, x: Array, hook: Hook, mask: Array | None, products: Products = PLAIN) -> Array:
    """Vector that a head of whole texts or images reads, each text as if alone.

    x (..., T, D), mask (..., 1, T) -> (..., 1, P)
    """
    config = model.config
    if config.pooling == "pooler":
        return pool_first(model, x, hook, products)[..., None, :]
    before = config.patches.before if config.patches else 0
    return HEAD_POOLINGS[config.pooling].pool(x, real_places(x, mask), before)[..., None, :]


def real_places(x: Array, mask: Array | None) -> Array:
    """Which tokens are real by a mask; all without one.

    x (..., T, D), mask (..., 1, T) -> (..., T)

    >>> real_places(np.zeros((2, 1)), np.array([[True, False]])).tolist()
    [True, False]
    """
    return np.full(x.shape[:-1], True) if mask is None else np.broadcast_to(mask[..., 0, :], x.shape[:-1])


def pool_first(model: Model, x: Array, hook: Hook = no_hook, products: Products = PLAIN) -> Array:
    """Apply the pooler to the first token's hidden state: tanh(x w + b).

    x (..., T, D) -> (..., D)
    """
    if model.engine:
        return model.engine.pool_first(model, x, hook)
    params = model.params["pooler"]
    first = first_token(x)[..., None, :]  # one text a product
    pooled = np.tanh(linear(first, params["w"], params.get("b"), products=products))
    return apply_hook(hook, "pooler", pooled[..., 0, :])


def pool_by_probe(model: Model, x: Array, hook: Hook = no_hook) -> Array:
    """Attend to hidden states with the probe; apply a network with its residual.

    x (..., T, D) -> (..., D)
    """
    context = Context(memory=cast(x, working(x)), hook=hook)
    return run(model, model.config.plan("vector"), repeat_probe(model, x), context)[..., 0, :]


def repeat_probe(model: Model, x: Array) -> Array:
    """Repeat the learned query for each text or image of hidden states x.

    x (..., T, D) -> (..., 1, D)
    """
    probe = model.params["vector"]["probe"].astype(working(x))
    return np.broadcast_to(probe, (*x.shape[:-2], 1, x.shape[-1]))
