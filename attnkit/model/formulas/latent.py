"""Latent attention, with the adjoint: short vectors expanded to q, k, v.

Every query head is [content, rotary]: the content features of a key head are its own, the rotary ones are one vector
that all heads share. Source: DeepSeek-V2 (2024), section 2.1.
"""

from collections.abc import Callable, Mapping

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.formulas.dense_attention import LatentConfig, MultiHeadOptions
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.linear import linear, projection_backward
from attnkit.model.formulas.norms import rms_norm, rms_norm_vjp
from attnkit.model.formulas.rotary import rotate
from attnkit.model.hooks import Hook, apply_hook
from attnkit.model.processor.products import Products

Params = Mapping[str, Array]
See = Callable[[str, Array], Array]


def compute_latents(
    x: Array, params: Params, config: LatentConfig, see: See, products: Products
) -> tuple[Array, Array, Array]:
    """The latents of queries, of keys and values, and the shared unrotated key.

    x (..., T, D) -> (..., T, Q) or x, (..., T, R), (..., T, P)
    """

    def project(name: str) -> Array:
        return linear(x, params[f"w{name}"], params.get(f"b{name}"), products=products)

    q_source = x
    if config.query_rank:
        q_source = see("q_latent", rms_norm(project("q_latent"), params["gamma_q_latent"], eps=config.eps).y)
    kv_latent = see("kv_latent", rms_norm(project("kv_latent"), params["gamma_kv_latent"], eps=config.eps).y)
    return q_source, kv_latent, see("k_rotary", project("k_rotary"))


def expand_queries(source: Array, params: Params, options: MultiHeadOptions) -> Array:
    """Queries of all heads: (..., T, Q) -> (..., H, T, content + rotary)."""
    q = view_heads(linear(source, params["wq"], params.get("bq"), products=options.products), options.heads)
    return _rotate_end(q, options)


def expand_keys(latent: Array, k_rotary: Array, params: Params, options: MultiHeadOptions) -> tuple[Array, Array]:
    """Keys and values of all heads.

    latent (..., T, R), k_rotary (..., T, P) -> (..., H, T, content + rotary), (..., H, T, value)
    """
    k, v = (
        view_heads(linear(latent, params[f"w{letter}"], products=options.products), options.heads) for letter in "kv"
    )
    shared = np.broadcast_to(k_rotary[..., None, :, :], (*k.shape[:-1], k_rotary.shape[-1]))
    return _rotate_end(np.concatenate([k, shared], axis=-1), options), v


def _rotate_end(x: Array, options: MultiHeadOptions, direction: int = 1) -> Array:
    """Rotate the last features of each head."""
    if options.rotary is None:
        return x
    cos, sin = options.rotary
    cut = x.shape[-1] - 2 * cos.shape[-1]
    turned = rotate(x[..., cut:], cos, direction * sin, interleaved=options.interleaved)
    return np.concatenate([x[..., :cut], turned], axis=-1)


def latent_backward(
    gradients: Mapping[str, Array], x: Array, params: Params, options: MultiHeadOptions, hook: Hook
) -> tuple[Array, dict[str, Array]]:
    """Gradients of states and parameters from those of queries, keys and values.

    gradients  q (..., H, T, K), k (..., H, T, K), v (..., H, T, V); x (..., T, D) -> (..., T, D), {"wq": …}
    """
    config = options.latent
    assert config is not None
    latents: dict[str, Array] = {}
    q_source, kv_latent, _ = compute_latents(
        x.astype(gradients["q"].dtype, copy=False), params, config, latents.setdefault, options.products
    )
    dq, dk = (_rotate_end(gradients[letter], options, -1) for letter in "qk")
    weights: dict[str, Array] = {}

    def undo(gradient: Array, source: Array, name: str) -> Array:
        named = {"w": params[f"w{name}"]} | ({"b": params[f"b{name}"]} if f"b{name}" in params else {})
        back, parts = projection_backward(gradient, source, named)
        weights.update({f"{kind}{name}": part for kind, part in parts.items()})
        return back

    def undo_norm(gradient: Array, name: str) -> Array:
        raw = linear(x, params[f"w{name}"], params.get(f"b{name}"))
        parts = rms_norm_vjp(raw, params[f"gamma_{name}"], eps=config.eps)[1](apply_hook(hook, name, gradient))
        if parts.gamma is not None:
            weights[f"gamma_{name}"] = parts.gamma
        return undo(parts.x, x, name)

    dx = undo(merge_heads(dq), q_source, "q")
    dx = undo_norm(dx, "q_latent") if config.query_rank else dx
    content, shared = dk[..., : config.content], dk[..., config.content :].sum(axis=-3)
    dlatent = undo(merge_heads(content), kv_latent, "k") + undo(merge_heads(gradients["v"]), kv_latent, "v")
    return dx + undo_norm(dlatent, "kv_latent") + undo(apply_hook(hook, "k_rotary", shared), x, "k_rotary"), weights
