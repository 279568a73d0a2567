"""The steps of a stack recorded in a forward pass, and undone in reverse.

`run_recorded` is `transformer.run` with a tape: for every step the function from the gradient of its result to the
gradient of its input. `run_backward` reads the tape from its end:

    y = x + c f(x)      dx = dy + c f′ᵀ dy      the residual of a step, whose factor c is 1 in most models
    y = f(x)            dx = f′ᵀ dy             every other step

so the gradient of a residual is the sum of the gradients of its branch and of its sum. Gradients of parameters are
added up under the names of the parameters, and the gradients of a bias on the scores over the layers that share it. A
hook receives the gradient of every intermediate under the intermediate's own name, as decoder.0.ffn.hidden.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.activations import activation_backward, apply_activation
from attnkit.model.backward.attention_backward import multi_head_attention_vjp
from attnkit.model.backward.tape import Dropout, RecordedStep, Reverse, Tape, Undo, undo_projection
from attnkit.model.config import Config, PatchConfig, Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dropout import dropout
from attnkit.model.dtypes import Array
from attnkit.model.embedding import embed_backward
from attnkit.model.experts import ExpertConfig, mix_experts_vjp
from attnkit.model.feedforward import feed_forward_vjp
from attnkit.model.groups import GROUPS
from attnkit.model.hooks import Hook, apply_hook, no_hook, scoped
from attnkit.model.kernels.products import PLAIN
from attnkit.model.linear import as_rows, scaled, sum_to_shape
from attnkit.model.norms import channel_norm_vjp, layer_norm_vjp, rms_norm_vjp
from attnkit.model.patch_embedding import extract_patches
from attnkit.model.positions import add_positions_backward, t5_bias_backward
from attnkit.model.transformer import (
    absolute_positions,
    apply_step,
    attention_arguments,
    attention_source,
    convolve_frames,
    cut_patches_backward,
    expert_layer,
    layer_experts,
    multiply_windows_backward,
    position_buckets,
    position_encoding_backward,
    relative_layer,
    run,
    segments,
)


def dropout_layers(steps: Iterable[Step]) -> frozenset[str]:
    """Layers whose results have dropout: sub-layers, and the last of the embedding.

    >>> steps = [Step("embed", "decoder.embed"), Step("posenc", "decoder.positions"), Step("ffn", "decoder.0.ffn")]
    >>> sorted(dropout_layers([*steps, Step("layernorm", "decoder.norm")]))
    ['decoder.0.ffn', 'decoder.positions']
    """
    steps = list(steps)
    sublayers = {step.layer for step in steps if step.adds_residual or step.attends or step.op in ("ffn", "rnn")}
    embeddings = [step.layer for step in steps if step.op in ("embed", "posenc") or step.layer.endswith(".embed_norm")]
    return frozenset(sublayers.union(embeddings[-1:]))


def run_recorded(
    model: Model, steps: Iterable[Step], x: Array, context: Context, dropping: Dropout | None = None
) -> tuple[Array, Tape]:
    """Apply the steps to x as `run` does, and record a tape for `run_backward`.

    x (..., T, D), or for a first step that embeds ids (..., T) or an image (..., C, height, width) -> (..., T, D)

    A hook of the context may read intermediates; gradients are correct if it replaces none. Errors as in `run`;
    UsageError for a KV cache.

    >>> from attnkit.model.config import Config
    >>> model = Model(Config("", 4, eps=1e-12), {"norm": {"gamma": np.ones(4)}})
    >>> x = np.array([[1.0, 1.0, 5.0, 5.0]])
    >>> y, tape = run_recorded(model, [Step("layernorm", "norm", "input")], x, Context())
    >>> y.round(4).tolist()  # the norm is -1 -1 1 1
    [[0.0, 0.0, 6.0, 6.0]]
    >>> run_backward(model, tape, np.array([[4.0, 0.0, 0.0, 0.0]]), Reverse()).round(4) + 0  # 1 -1 0 0 and itself
    array([[ 5., -1.,  0.,  0.]])
    """
    if context.cache is not None:
        raise UsageError("a cache of keys and values has no gradients: expected all tokens in one call")
    context.products, steps = PLAIN, list(steps)
    if steps and model.engine and model.engine.differentiates(steps):
        y, undo = model.engine.run_recorded(model, steps, x, context)
        return y, Tape(context, steps=[RecordedStep(Step("engine", ""), x, undo)])
    tape = Tape(context, dropping, dropout_layers(steps) if dropping else frozenset())

    def record(model: Model, step: Step, x: Array, context: Context) -> Array:
        y, undo = GROUPS[step.op].vjp(model, step, x, context)
        tape.steps.append(RecordedStep(step, x, undo))
        return dropout(y, **dropping._asdict(), place=step.layer) if dropping and step.layer in tape.dropped else y

    return run(model, steps, x, context, record), tape


def run_backward(model: Model, tape: Tape, grad_output: Array, reverse: Reverse) -> Array:
    """Undo the steps of a tape, and add gradients to `reverse.gradients`.

    grad_output (..., T, D) -> (..., T, D), or for images (..., C, height, width); for ids the embeddings' gradient

    The gradient of the memory is added to `reverse.memory`. DataError if shapes do not match.
    """
    gradient, waiting = grad_output, None
    for step, x, undo in reversed(tape.steps):
        dy = gradient
        if step.adds_residual == "concat":
            both = apply_hook(reverse.hook, f"{step.layer}.concat", gradient)
            dy, gradient = np.split(both, [both.shape[-1] - x.shape[-1]], axis=-1)
        elif step.adds_residual:
            dy = gradient = apply_hook(reverse.hook, f"{step.layer}.residual", gradient)
        dy = scaled(dy, step.scale)
        if tape.dropout and step.layer in tape.dropped:
            dy = dropout(dy, **tape.dropout._asdict(), place=step.layer)  # its own adjoint
        dx = undo(dy, reverse)
        if step.adds_residual in ("input", "concat"):
            dx = dx + gradient
        elif step.adds_residual:
            waiting = gradient if waiting is None else waiting + gradient
        if step.saves_residual and waiting is not None:
            dx, waiting = dx + waiting, None
        gradient = dx
        if step.reads_saved:
            gradient, waiting = np.zeros_like(dx) if waiting is None else waiting, dx
    for name, bias in reverse.biases.items():
        buckets = position_buckets(model.config, name, 0, bias.shape[-2])
        reverse.add(f"{name}.bias", {"table": t5_bias_backward(bias, buckets, model.config.positions.buckets)})
    reverse.biases.clear()
    return gradient if waiting is None else gradient + waiting


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
        dy = scaled(dy, config.embed_scale)
        reverse.add(layer, {"table": embed_backward(dy, x, len(params["table"]))})
        return dy

    return apply_step(model, step, x, context), undo


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

    return apply_step(model, step, x, context), undo


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

    options = model.config.network_options
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

    return apply_step(model, step, x, context), undo


def convolution_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    layer, params, cut = step.layer, model.params[step.layer], model.config.convolution(step.layer)
    inner, undo_norm = convolve_frames(model, layer, x, context), None
    if cut.norm:
        norm = channel_norm_vjp if cut.norm == "channel" else layer_norm_vjp
        inner, undo_norm = norm(inner, params.get("gamma"), params.get("beta"))
        inner = apply_hook(context.hook, f"{layer}.normalized", inner)

    def undo(dy: Array, reverse: Reverse) -> Array:
        dy = activation_backward(cut.activation, apply_hook(reverse.hook, layer, dy), inner)
        if undo_norm:
            dy, gamma, beta = undo_norm(apply_hook(reverse.hook, f"{layer}.normalized", dy))
            reverse.add(layer, {"gamma": gamma, "beta": beta})
        dy, frames = apply_hook(reverse.hook, f"{layer}.convolved", dy), x[..., None] if cut.reads_samples else x
        dx, gradients = multiply_windows_backward(dy, frames, params, cut)
        reverse.add(layer, gradients)
        return dx.reshape(x.shape)

    return apply_hook(context.hook, layer, apply_activation(cut.activation, inner)), undo


def recurrent_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    from attnkit.model.backward import recurrent_backward, recurrent_decoder

    is_attentive = parse_layer_name(step.layer)[1] is None
    vjp = recurrent_decoder.decoder_vjp if is_attentive else recurrent_backward.recurrence_vjp
    return vjp(model, step.layer, x, context)
