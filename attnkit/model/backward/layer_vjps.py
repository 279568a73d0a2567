"""The steps of a plan, each applied and prepared to be undone.

A function here computes what the kernel of its group computes, and returns the function from the gradient of the
result to the gradient of the input. Gradients of parameters are added up under the names of the parameters, and the
gradients of a bias on the scores over the layers that share it. A hook receives the gradient of every intermediate
under the intermediate's own name, as decoder.0.ffn.hidden.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnkit.model.backward.attention_backward import multi_head_attention_vjp
from attnkit.model.backward.tape import Reverse, Undo, undo_projection
from attnkit.model.config import Config, PatchConfig, Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import activation_backward, apply_activation
from attnkit.model.formulas.embedding import embed_backward
from attnkit.model.formulas.experts import ExpertConfig, mix_experts_vjp
from attnkit.model.formulas.feedforward import feed_forward_vjp
from attnkit.model.formulas.linear import as_rows, scaled, sum_to_shape
from attnkit.model.formulas.norms import channel_norm_vjp, group_norm_vjp, layer_norm_vjp, rms_norm_vjp
from attnkit.model.formulas.patch_embedding import extract_patches
from attnkit.model.formulas.patch_grouping import group_patches_backward
from attnkit.model.formulas.positions import add_positions_backward
from attnkit.model.hooks import Hook, apply_hook, no_hook, scoped
from attnkit.model.layers.attention import attention_arguments, attention_source, relative_layer
from attnkit.model.layers.connector import group_patches, read_grouping
from attnkit.model.layers.convolutions import convolve_frames, multiply_windows_backward
from attnkit.model.layers.embeddings import (
    absolute_positions,
    apply_positions,
    cut_patches_backward,
    embed_tokens,
    position_encoding_backward,
    segments,
)
from attnkit.model.layers.networks import expert_layer, layer_experts, project_states


def normalize_vjp(model: Model, layer: str, x: Array) -> tuple[Array, Undo]:
    """Apply the norm of a model, and prepare to undo it: x (..., T, D) -> (..., T, D)."""
    norm = rms_norm_vjp if model.config.norm == "rms" else layer_norm_vjp
    params: Mapping[str, Any] = model.params.get(layer, {})
    y, pullback = norm(x, **params, eps=model.config.eps)

    def undo(dy: Array, reverse: Reverse) -> Array:
        dx, gamma, beta = pullback(apply_hook(reverse.hook, layer, dy))
        reverse.add(layer, {"gamma": gamma, "beta": beta})
        return dx

    return y, undo


def embed_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    layer, config, params = step.layer, model.config, model.params[step.layer]

    def undo_patches(dy: Array, reverse: Reverse, cut: PatchConfig) -> Array:
        before, patches = cut.before, extract_patches(cut.covered(x), cut.patch_height, cut.patch_width)
        dpatches = undo_projection(model, layer, dy[..., before:, :], patches, reverse)
        lead = {"cls": dy[..., 0, :], "registers": dy[..., 1:before, :]}
        gradients = {name: sum_to_shape(part, params[name].shape) for name, part in lead.items() if name in params}
        reverse.add(layer, gradients)
        return cut_patches_backward(dpatches, x.shape, cut)

    def undo(dy: Array, reverse: Reverse) -> Array:
        dy = apply_hook(reverse.hook, layer, dy)
        if config.patches:
            return undo_patches(dy, reverse, config.patches)
        if "types" in params:
            kinds = np.broadcast_to(segments(x, context), np.shape(x))
            reverse.add(layer, {"types": embed_backward(dy, kinds, len(params["types"]))})
        dy = scaled(without_pictures(dy, context), config.embed_scale)
        reverse.add(layer, {"table": embed_backward(dy, x, len(params["table"]))})
        return dy

    return embed_tokens(model, layer, x, context), undo


def without_pictures(dy: Array, context: Context) -> Array:
    """The gradient of the embeddings of words: 0 where a row of a picture is."""
    if context.pictures is None:
        return dy
    words = dy.copy()
    words[..., context.pictures.places, :] = 0
    return words


def positions_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    layer, config = step.layer, model.config

    def undo(dy: Array, reverse: Reverse) -> Array:
        if config.positions.kind not in ("learned", "sinusoidal"):
            return dy
        dy = apply_hook(reverse.hook, layer, dy)
        if config.positions.kind == "learned":
            where = absolute_positions(x, context)
            encoding = add_positions_backward(dy, (*where.shape, dy.shape[-1]))
            reverse.add(layer, {"table": position_encoding_backward(model, layer, encoding, where, context.grid)})
        return dy

    return apply_positions(model, layer, x, context), undo


def norm_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    y, undo = normalize_vjp(model, step.layer, x)
    return apply_hook(context.hook, step.layer, y), undo


def attention_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    layer, source = step.layer, attention_source(step.layer, x, context)
    stack, _, part = parse_layer_name(layer)
    params, options = attention_arguments(model, layer, x.shape[-2], context)
    y, pullback = multi_head_attention_vjp(
        x, source, source, params, summary=context.weights, hook=scoped(context.hook, layer), **options
    )

    def undo(dy: Array, reverse: Reverse) -> Array:
        inputs, gradients = pullback(dy, scoped(reverse.hook, layer))
        reverse.add(layer, gradients | {name: inputs[name] for name in options.get("score_params", {})})
        add_relative_gradients(model.config, layer, inputs, reverse)
        if "bias" in inputs and model.config.positions.relative == "t5":
            known = reverse.biases.get(stack)
            reverse.biases[stack] = inputs["bias"] if known is None else known + inputs["bias"]
        both: Array = inputs["key"] + inputs["value"]
        if part != "cross":
            return inputs["query"] + both
        reverse.add_memory(both)
        return inputs["query"]

    return y, undo


def add_relative_gradients(config: Config, layer: str, inputs: Mapping[str, Array], reverse: Reverse) -> None:
    """Add the gradients of disentangled positions, which attention returns, too."""
    for name, gradient in inputs.items():
        kind, _, parameter = name.partition("relative.")
        if not kind and parameter:
            reverse.add(relative_layer(config, layer, parameter), {parameter: gradient})


def network_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    layer, lead = step.layer, x.shape[:-1]

    def by_token(hook: Hook) -> Hook:
        """Pass rows (rows, F) to a hook by batch and token (..., T, F)."""

        def visit(name: str) -> Callable[[Array], Array] | None:
            function = hook(f"{layer}.{name}")
            return None if function is None else lambda rows: as_rows(function(rows.reshape(*lead, rows.shape[-1])))

        return hook if hook is no_hook else visit

    options = model.config.network_options(layer)
    if mixture := model.config.mixture(layer):
        return _mixture_vjp(model, layer, x, mixture, context, options)
    y, pullback = feed_forward_vjp(as_rows(x), model.params[layer], hook=by_token(context.hook), **options)

    def undo(dy: Array, reverse: Reverse) -> Array:
        dx, gradients = pullback(as_rows(dy), by_token(reverse.hook))
        reverse.add(layer, gradients)
        return dx.reshape(x.shape)

    return y.reshape(*lead, y.shape[-1]), undo


def _mixture_vjp(
    model: Model, layer: str, x: Array, mixture: ExpertConfig, context: Context, options: Mapping[str, Any]
) -> tuple[Array, Undo]:
    name = layer.removesuffix(".ffn")
    y, pullback = mix_experts_vjp(x, layer_experts(model, layer), mixture, hook=scoped(context.hook, layer), **options)

    def undo(dy: Array, reverse: Reverse) -> Array:
        gradients = pullback(dy, scoped(reverse.hook, layer))
        reverse.add(layer, gradients.router)
        for number, one in gradients.experts.items():
            reverse.add(expert_layer(layer, number), one)
        reverse.add(f"{name}.shared", gradients.shared)
        return gradients.x

    return y, undo


def projection_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    def undo(dy: Array, reverse: Reverse) -> Array:
        return undo_projection(model, step.layer, apply_hook(reverse.hook, step.layer, dy), x, reverse)

    return project_states(model, step.layer, x, context), undo


def group_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    how = read_grouping(model, context.grid)

    def undo(dy: Array, reverse: Reverse) -> Array:
        return group_patches_backward(apply_hook(reverse.hook, step.layer, dy), x.shape, how)

    return group_patches(model, step.layer, x, context), undo


def convolution_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    layer, params, cut = step.layer, model.params[step.layer], model.config.convolution(step.layer)
    inner, undo_norm = convolve_frames(model, layer, x, context), None
    norm = {"channel": channel_norm_vjp, "group": group_norm_vjp}.get(cut.norm, layer_norm_vjp)
    if cut.norm_last:
        activated = apply_hook(context.hook, f"{layer}.activated", apply_activation(cut.activation, inner))
        last, undo_norm = norm(activated, params.get("gamma"), params.get("beta"))
    elif cut.norm:
        inner, undo_norm = norm(inner, params.get("gamma"), params.get("beta"))
        inner = apply_hook(context.hook, f"{layer}.normalized", inner)

    def undo(dy: Array, reverse: Reverse) -> Array:
        dy = apply_hook(reverse.hook, layer, dy)
        if undo_norm and cut.norm_last:
            dy, gamma, beta = undo_norm(dy)
            reverse.add(layer, {"gamma": gamma, "beta": beta})
            dy = apply_hook(reverse.hook, f"{layer}.activated", dy)
        dy = activation_backward(cut.activation, dy, inner)
        if undo_norm and not cut.norm_last:
            dy, gamma, beta = undo_norm(apply_hook(reverse.hook, f"{layer}.normalized", dy))
            reverse.add(layer, {"gamma": gamma, "beta": beta})
        dy, frames = apply_hook(reverse.hook, f"{layer}.convolved", dy), x[..., None] if cut.reads_samples else x
        dx, gradients = multiply_windows_backward(dy, frames, params, cut)
        reverse.add(layer, gradients)
        return dx.reshape(x.shape)

    y = last if cut.norm_last else apply_activation(cut.activation, inner)
    return apply_hook(context.hook, layer, y), undo
