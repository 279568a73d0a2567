"""The steps of a configuration as one function, which JAX compiles and splits.

The steps are those of model/config.py, and what each computes is what model/transformer.py says.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from attnkit.backends.jax.attention_kernels import Rules, dense_attention, score_function
from attnkit.backends.jax.formulas import (
    JaxArray,
    Params,
    See,
    feed_forward,
    interpolate_positions,
    linear,
    normalize,
    normalize_heads,
    rotate,
    route,
    standardize,
    wide,
)
from attnkit.backends.jax.passes import Pair, Pass
from attnkit.backends.jax.recurrence import attend_and_recur, recur
from attnkit.model.config import AttentionRules, Step, parse_layer_name
from attnkit.model.head_views import merge_heads, view_heads
from attnkit.model.linear import scaled
from attnkit.model.patch_embedding import extract_patches
from attnkit.model.scores import SCORES
from attnkit.model.transformer import changed_grid


def run_steps(run: Pass, steps: Iterable[Step], x: JaxArray) -> JaxArray:
    """Apply steps: ids (..., T), x (..., T, D) or an image -> (..., T, D)."""
    saved = x
    for step in steps:
        if step.reads_saved:
            x, saved = saved, x
        before = x
        saved = x if step.saves_residual else saved
        x = scaled(run.drop(step.layer, OPERATORS[step.op](run, step.layer, x)), step.scale)
        if step.adds_residual == "concat":
            x = run.see(f"{step.layer}.concat", jnp.concatenate([x, before], axis=-1))
        elif step.adds_residual:
            x = run.see(f"{step.layer}.residual", x + (saved if step.adds_residual == "saved" else before))
        x = run.layout(x)
    return x


def embed_tokens(run: Pass, layer: str, ids: JaxArray) -> JaxArray:
    """Embed ids and their segments, scaled, or the patches of an image."""
    config, params = run.config, run.params[layer]
    if config.patches:
        cut = config.patches
        rows = linear(
            extract_patches(cut.covered(ids), cut.patch_height, cut.patch_width), params["w"], params.get("b")
        )
        lead = [jnp.atleast_2d(params[name]) for name in ("cls", "registers") if name in params]
        first = [jnp.broadcast_to(one, (*rows.shape[:-2], *one.shape)) for one in lead]
        return run.see(layer, jnp.concatenate([*first, rows], axis=-2))
    x = params["table"][ids]
    x = x * jnp.asarray(config.embed_scale, x.dtype) if config.embed_scale != 1 else x
    return run.see(layer, x + params["types"][run.inputs["types"]] if "types" in params else x)


def add_positions(run: Pass, layer: str, x: JaxArray) -> JaxArray:
    """Add learned or sinusoidal positions to x (..., T, D)."""
    if "sinusoids" in run.inputs:
        return run.see(layer, x + run.inputs["sinusoids"].astype(x.dtype))
    table, positions = run.params[layer]["table"], run.config.positions
    cut, grids = run.config.patches, changed_grid(run.config, run.inputs.get("grid"))
    if cut and grids:
        table = interpolate_positions(table, *grids, antialias=cut.antialias)
    if cut and cut.registers:
        table = jnp.insert(table, 1, jnp.zeros((cut.registers, 1), table.dtype), axis=0)
    return run.see(layer, x + table[run.inputs["positions"] + positions.first])


def attend_layer(run: Pass, layer: str, x: JaxArray) -> JaxArray:
    """Attention of a layer to x, or to the memory: x (..., T, D) -> (..., T, D)."""
    config, params, see = run.config, run.params.get(layer, {}), run.see_in(layer)
    attention = config.attention_rules[layer]
    is_cross = attention.is_cross
    rotary: Pair | None = run.inputs[attention.rotation] if attention.rotation else None
    source = run.inputs["memory"] if is_cross and layer not in run.caches else x

    def project(x: JaxArray, letter: str) -> JaxArray:
        count = attention.heads if letter == "q" else attention.kv_heads
        y = run.linear(x, params.get(f"w{letter}"), params.get(f"b{letter}"))
        if attention.norm and letter != "v":
            y = normalize_heads(y, params, letter, count, attention.norm)
            split = see(f"{letter}_normed", view_heads(y, count))
        else:
            split = view_heads(y, count)
        split = jnp.clip(split, -attention.clip, attention.clip) if attention.clip else split
        return split if rotary is None or letter == "v" else rotate(split, *rotary, attention.interleaved)

    if attention.latent is not None:
        q, k, v = project_latent(run, params, attention, x, rotary, see)
        stored = store(run, layer, k, v)
        k, v = (k, v) if run.is_start else stored
    elif is_cross and layer in run.caches:
        k, v = run.caches[layer]
    else:
        k, v = (project(source, letter) for letter in "kv")
        stored = store(run, layer, k, v)
        k, v = (k, v) if run.is_start else stored
    q = project(x, "q") if attention.latent is None else q
    rules = make_rules(run, layer, attention, q, k)
    q, k, v = see("q", q), see("k", k), see("v", v)
    if SCORES[config.score].parameters:
        heads = dense_attention(q, k, v, rules, see, score_function(config.score, params))
    else:
        heads = run.kernel(q, k, v, rules, see)
    return see("output", run.linear(merge_heads(heads), params.get("wo"), params.get("bo")))


def project_latent(
    run: Pass, params: Params, attention: AttentionRules, x: JaxArray, rotary: Pair | None, see: See
) -> tuple[JaxArray, JaxArray, JaxArray]:
    """Queries, keys and values of latent attention: see model/latent.py. (..., T, D) -> (..., H, T, K), …"""
    config = attention.latent
    assert config is not None

    def project(x: JaxArray, name: str) -> JaxArray:
        return run.linear(x, params[f"w{name}"], params.get(f"b{name}"))

    def normalized(name: str) -> JaxArray:
        y = standardize(wide(project(x, name)), False, config.eps) * params[f"gamma_{name}"]
        return see(name, y.astype(x.dtype))

    def rotate_end(y: JaxArray) -> JaxArray:
        if rotary is None:
            return y
        turned = rotate(y[..., config.content :], *rotary, attention.interleaved)
        return jnp.concatenate([y[..., : config.content], turned], axis=-1)

    source = normalized("q_latent") if config.query_rank else x
    latent, shared = normalized("kv_latent"), see("k_rotary", project(x, "k_rotary"))
    q = view_heads(project(source, "q"), attention.heads)
    k, v = (view_heads(project(latent, letter), attention.heads) for letter in "kv")
    shared = jnp.broadcast_to(shared[..., None, :, :], (*k.shape[:-1], shared.shape[-1]))
    return rotate_end(q), rotate_end(jnp.concatenate([k, shared], axis=-1)), v


def store(run: Pass, layer: str, k: JaxArray, v: JaxArray) -> Pair:
    """All keys and values of a layer; new ones go to their places in its cache.

    k, v (..., G, T, K) -> (..., G, C, K)
    """
    if run.capacity is None:
        return k, v
    if layer.endswith(".self"):
        rooms = ((*x.shape[:-2], run.capacity, x.shape[-1]) for x in (k, v))
        before = run.caches.get(layer) or tuple(jnp.zeros(room, k.dtype) for room in rooms)
        write, past = jax.lax.dynamic_update_slice_in_dim, run.inputs["past"]
        k, v = (write(cache, x, past, axis=-2) for cache, x in zip(before, (k, v), strict=True))
    run.caches[layer] = k, v
    return k, v


def make_rules(run: Pass, layer: str, attention: AttentionRules, q: JaxArray, k: JaxArray) -> Rules:
    """The rules of attention in a layer, with relative scores in the bias."""
    inputs = run.inputs
    if attention.is_cross:
        return Rules(attention.factor, mask=inputs.get("memory_mask"), bias=inputs.get("memory_bias"))
    rules = Rules(
        attention.factor,
        causal=attention.causal,
        window=attention.window,
        offset=0 if run.is_start else inputs.get("past", 0),
        mask=inputs.get("mask"),
        bias=inputs.get("bias"),
        softcap=attention.softcap,
        sinks=run.params[layer].get("sinks"),
    )
    if attention.relative == "alibi":
        alibi = inputs["alibi"][..., : k.shape[-2]]
        return rules._replace(bias=alibi if rules.bias is None else alibi + rules.bias)
    if attention.relative == "t5":
        return rules._replace(distances=run.params[f"{attention.stack}.bias"]["table"][inputs["buckets"]])
    if attention.relative == "disentangled":
        scores = run.see(f"{layer}.relative", relative_scores(run, layer, q, k) * attention.factor)
        return rules._replace(bias=scores if rules.bias is None else scores + rules.bias)
    return rules


def relative_scores(run: Pass, layer: str, q: JaxArray, k: JaxArray) -> JaxArray:
    """The scores of queries and keys by their distances: see model/relative.py."""
    config, (name, number, _) = run.config, parse_layer_name(layer)
    positions, shared = config.positions, run.params[f"{name}.relative"]
    own = run.params[layer if positions.shares_projections else f"{name}.{number}.relative"]
    table = shared["table"]
    rows = normalize(config, table, shared) if "gamma" in shared else table
    letters = {"c2p": "k", "p2c": "q"}
    used = [f"{kind}{letters[term]}" for term in positions.terms for kind in "wb"]
    return distance_scores(q, k, rows, run.inputs["places"], {name: own[name] for name in used if name in own})


def distance_scores(q: JaxArray, k: JaxArray, rows: JaxArray, places: JaxArray, params: Params) -> JaxArray:
    """The scores of queries and of keys with the rows of a table of distances.

    q (..., H, T, K), k (..., H, S, K), rows (R, D), places (T, S); wk, wq (D, H*K), bk, bq -> (..., H, T, S)
    """
    total = jnp.zeros((), wide(q).dtype)
    for x, letter, index in ((q, "k", places), (k, "q", places.T)):
        if f"w{letter}" in params:
            table = view_heads(linear(rows, params[f"w{letter}"], params.get(f"b{letter}")), q.shape[-3])  # (H, R, K)
            scores = wide(x @ jnp.swapaxes(table, -1, -2))  # (..., H, T, R)
            part = jnp.take_along_axis(scores, index.reshape((1,) * (scores.ndim - 2) + index.shape), axis=-1)
            total = total + (part if letter == "k" else jnp.swapaxes(part, -1, -2))
    return total


def transform(run: Pass, layer: str, x: JaxArray) -> JaxArray:
    """The feed-forward network of a layer, or its mixture of experts: x (..., T, D) -> (..., T, D).

    Every expert computes every token, of which the gates keep what it was chosen for.
    """
    config, params, see = run.config, run.params[layer], run.see_in(layer)
    mixture, limit = config.mixture(layer), config.ffn_limit
    if mixture is None:
        return feed_forward(x, params, config.activation, see, run.linear, limit)
    rows, lead, name = x.reshape(-1, x.shape[-1]), x.shape[:-1], layer.removesuffix(".ffn")

    def by_token(part: str, array: JaxArray) -> JaxArray:
        return see(part, array.reshape(*lead, -1)).reshape(array.shape)

    logits = by_token("router", linear(rows, params["router"], params.get("router_bias")))
    chosen, gates = route(logits, mixture, params.get("correction"))
    chosen, gates = by_token("chosen", chosen), by_token("gates", gates.astype(x.dtype))
    y = jnp.zeros_like(rows)
    options: Any = {"activation": config.activation, "linear": run.linear, "limit": limit}
    for number in range(mixture.count):
        gate = jnp.where(chosen == number, gates, 0).sum(axis=-1, keepdims=True)
        part = feed_forward(rows, run.params[f"{name}.expert.{number}"], **options)
        y = y + jnp.where(gate == 0, 0, gate * part)
    if mixture.shared:
        part = feed_forward(rows, run.params[f"{name}.shared"], **options)
        y = y + (part * jax.nn.sigmoid(rows @ params["shared_gate"]) if "shared_gate" in params else part)
    return see("output", y.reshape(x.shape))


Operator = Callable[[Pass, str, JaxArray], JaxArray]

OPERATORS: dict[str, Operator] = {
    "embed": embed_tokens,
    "posenc": add_positions,
    "layernorm": lambda run, layer, x: run.see(layer, normalize(run.config, x, run.params.get(layer, {}))),
    "attend": attend_layer,
    "ffn": lambda run, layer, x: transform(run, layer, x),
    "linear": lambda run, layer, x: run.see(layer, run.linear(x, run.params[layer]["w"], run.params[layer].get("b"))),
    "rnn": lambda run, layer, x: (recur if parse_layer_name(layer)[1] is not None else attend_and_recur)(run, layer, x),
}
