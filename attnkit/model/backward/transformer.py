"""The steps of a stack recorded in a forward pass, and their adjoints in reverse.

`run_recorded` is `transformer.run` with a tape: for every step its input, and what the adjoint of its operator needs
besides. `run_backward` goes through the tape from its end:

    y = x + f(x)        dx = dy + f′ᵀ dy        the residual of a step
    y = f(x)            dx = f′ᵀ dy             every other step

so the gradient of a residual is that of its branch plus that of its sum. Gradients of parameters are added up under
their own names, as those of a bias on the scores that all layers share. A hook receives the gradient of every
intermediate under the name that the intermediate has in the forward pass, as decoder.0.ffn.hidden.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.attention import multi_head_attention
from attnkit.model.backward.attention import multi_head_attention_backward, multi_head_attention_forward
from attnkit.model.backward.dropout import dropout_backward
from attnkit.model.backward.embedding import embed_backward
from attnkit.model.backward.feedforward import feed_forward_backward, feed_forward_forward
from attnkit.model.backward.linear import as_rows, linear_backward, sum_to_shape
from attnkit.model.backward.norms import layer_norm_backward, norm_forward, rms_norm_backward
from attnkit.model.backward.patch_embedding import extract_patches_backward, interpolate_positions_backward
from attnkit.model.backward.positions import add_positions_backward, learned_positions_backward, t5_bias_backward
from attnkit.model.backward.tape import Dropout, RecordedStep, Reverse, Tape
from attnkit.model.config import Config, Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dropout import dropout
from attnkit.model.dtypes import Array
from attnkit.model.hooks import Hook, apply_hook, no_hook, scoped
from attnkit.model.patch_embedding import extract_patches
from attnkit.model.transformer import (
    absolute_positions,
    apply_step,
    attention_arguments,
    attention_source,
    changed_grid,
    position_buckets,
    run,
    segments,
)

KEPT = ("q", "k", "v", "heads", "lse")  # what the adjoint of attention takes of a forward pass


def dropout_layers(steps: Iterable[Step]) -> frozenset[str]:
    """Return the layers whose results dropout applies to: sub-layers, and the last of the embedding's steps.

    >>> steps = [Step("embed", "decoder.embed"), Step("posenc", "decoder.positions"), Step("ffn", "decoder.0.ffn")]
    >>> sorted(dropout_layers([*steps, Step("layernorm", "decoder.norm")]))
    ['decoder.0.ffn', 'decoder.positions']
    """
    steps = list(steps)
    sublayers = {step.layer for step in steps if step.adds_residual or step.op in ("attend", "ffn", "rnn")}
    embeddings = [step.layer for step in steps if step.op in ("embed", "posenc") or step.layer.endswith(".embed_norm")]
    return frozenset(sublayers.union(embeddings[-1:]))


def run_recorded(
    model: Model, steps: Iterable[Step], x: Array, context: Context, dropping: Dropout | None = None
) -> tuple[Array, Tape]:
    """Apply the steps to x as `run` does, and return the tape that `run_backward` needs.

    x (..., T, D), or what the first step takes: ids (..., T), an image (..., C, height, width) -> (..., T, D)

    A hook of the context may read intermediates; gradients are those of a pass in which it replaces none. Errors are
    those of `run`; UsageError for a KV cache.

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
    steps = list(steps)
    tape = Tape(context, dropping, dropout_layers(steps) if dropping else frozenset())

    def record(model: Model, step: Step, x: Array, context: Context) -> Array:
        y, saved = RECORDERS.get(step.op, _record_nothing)(model, step, x, context)
        tape.steps.append(RecordedStep(step, x, saved))
        return (
            dropout(y, **tape.dropout._asdict(), place=step.layer) if tape.dropout and step.layer in tape.dropped else y
        )

    return run(model, steps, x, context, record), tape


def _record_nothing(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, dict[str, Array]]:
    return apply_step(model, step, x, context), {}


def _record_attention(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, dict[str, Array]]:
    layer, source = step.layer, attention_source(step.layer, x, context)
    params, options = attention_arguments(model, layer, x.shape[-2], context)
    if context.hook is no_hook:
        return multi_head_attention_forward(x, source, source, params, **options)
    request: Any = {"summary": context.weights, "keep": KEPT, "hook": scoped(context.hook, layer)}
    saved = multi_head_attention(x, source, source, params, **options, **request)
    return saved.pop("output"), {"query": x, "key": source, "value": source, **saved}


def _record_ffn(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, dict[str, Array]]:
    hook = _reshaped(scoped(context.hook, step.layer), x.shape[:-1])
    activation = model.config.activation
    output, saved = feed_forward_forward(as_rows(x), model.params[step.layer], activation=activation, hook=hook)
    return output.reshape(*x.shape[:-1], output.shape[-1]), saved


def _record_rnn(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, dict[str, Any]]:
    from attnkit.model.backward import recorded_decoder, recurrent_model

    is_attentive = parse_layer_name(step.layer)[1] is None
    record = recorded_decoder.record_decoder if is_attentive else recurrent_model.record_recurrence
    return record(model, step.layer, x, context)


def _record_norm(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, dict[str, Array]]:
    y, saved = norm_forward(x, **_norm_arguments(model, step.layer), centred=model.config.norm != "rms")
    return apply_hook(context.hook, step.layer, y), saved


def _norm_arguments(model: Model, layer: str) -> dict[str, Any]:
    return {**model.params.get(layer, {}), "eps": model.config.eps}


RECORDERS: dict[str, Callable[[Model, Step, Array, Context], tuple[Array, dict[str, Any]]]] = {
    "attend": _record_attention,
    "ffn": _record_ffn,
    "layernorm": _record_norm,
    "rnn": _record_rnn,
}


def _reshaped(hook: Hook, lead: tuple[int, ...]) -> Hook:
    """Return a hook that takes rows (rows, F) for one that takes them by batch and token (..., T, F)."""

    def visit(name: str) -> Callable[[Array], Array] | None:
        function = hook(name)
        return None if function is None else lambda rows: as_rows(function(rows.reshape(*lead, rows.shape[-1])))

    return hook if hook is no_hook else visit


def run_backward(model: Model, tape: Tape, grad_output: Array, reverse: Reverse) -> Array:
    """Return the gradient of the input of a tape, and add those of its parameters to `reverse.gradients`.

    grad_output (..., T, D) -> (..., T, D), or of images (..., C, height, width); of ids that of their embeddings

    The gradient of the memory is added to `reverse.memory`. DataError where shapes do not match.
    """
    gradient, waiting = grad_output, None
    for recorded in reversed(tape.steps):
        step, dy = recorded.step, gradient
        if step.adds_residual == "concat":
            both = apply_hook(reverse.hook, f"{step.layer}.concat", gradient)
            dy, gradient = np.split(both, [both.shape[-1] - recorded.x.shape[-1]], axis=-1)
        elif step.adds_residual:
            dy = gradient = apply_hook(reverse.hook, f"{step.layer}.residual", gradient)
        if tape.dropout and step.layer in tape.dropped:
            dy = dropout_backward(dy, **tape.dropout._asdict(), place=step.layer)
        dx = ADJOINTS[step.op](model, recorded, dy, tape.context, reverse)
        if step.adds_residual in ("input", "concat"):
            dx = dx + gradient
        elif step.adds_residual:
            waiting = gradient if waiting is None else waiting + gradient
        if step.saves_residual and waiting is not None:
            dx, waiting = dx + waiting, None
        gradient = dx
    for name, bias in reverse.biases.items():
        buckets = position_buckets(model.config, name, 0, bias.shape[-2])
        reverse.add(f"{name}.bias", {"table": t5_bias_backward(bias, buckets, model.config.positions.buckets)})
    reverse.biases.clear()
    return gradient if waiting is None else gradient + waiting


def _embed_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    layer, config = recorded.step.layer, model.config
    params, dy = model.params[layer], apply_hook(reverse.hook, layer, dy)
    if config.patches:
        image, size = recorded.x, (config.patches.patch_height, config.patches.patch_width)
        patches = linear_backward(dy[..., 1:, :], extract_patches(image, *size), params["w"], params.get("b"))
        first = sum_to_shape(dy[..., 0, :], params["cls"].shape)
        reverse.add(layer, {"w": patches.weight, "b": patches.bias, "cls": first})
        return extract_patches_backward(patches.x, image.shape, *size)
    if "types" in params:
        kinds = np.broadcast_to(segments(recorded.x, context), np.shape(recorded.x))
        reverse.add(layer, {"types": embed_backward(dy, kinds, len(params["types"]))})
    if config.embed_scale != 1:
        dy = dy * np.asarray(config.embed_scale, dy.dtype)
    reverse.add(layer, {"table": embed_backward(dy, recorded.x, len(params["table"]))})
    return dy


def _positions_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    layer, config = recorded.step.layer, model.config
    if config.positions.kind not in ("learned", "sinusoidal"):
        return dy
    dy = apply_hook(reverse.hook, layer, dy)
    if config.positions.kind == "learned":
        where, table = absolute_positions(recorded.x, context) + config.positions.first, model.params[layer]["table"]
        grids = changed_grid(config, context.grid)
        size = 1 + grids[2] * grids[3] if grids else len(table)
        _, encoding = add_positions_backward(dy, (*where.shape, dy.shape[-1]))
        gradient = learned_positions_backward(encoding, where, size)
        reverse.add(layer, {"table": interpolate_positions_backward(gradient, *grids) if grids else gradient})
    return dy


def _norm_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    layer = recorded.step.layer
    dy = apply_hook(reverse.hook, layer, dy)
    dx, gradients = normalize_backward(model, layer, recorded.x, dy, recorded.saved)
    reverse.add(layer, gradients)
    return dx


def normalize_backward(
    model: Model, layer: str, x: Array, dy: Array, saved: Mapping[str, Array] | None = None
) -> tuple[Array, dict[str, Array | None]]:
    """Return the gradient of x before the model's norm, and those of gamma and beta.

    dy (..., T, D), x (..., T, D), saved as `norm_forward` returned it -> (..., T, D), {"gamma", "beta": (D,)}
    """
    norm = rms_norm_backward if model.config.norm == "rms" else layer_norm_backward
    gradients = norm(dy, x, **_norm_arguments(model, layer), saved=saved)
    return gradients.x, {"gamma": gradients.gamma, "beta": gradients.beta}


def _attention_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    layer, x, saved = recorded.step.layer, recorded.x, recorded.saved
    params, options = attention_arguments(model, layer, x.shape[-2], context)
    inputs, gradients = multi_head_attention_backward(
        dy, saved, params, hook=scoped(reverse.hook, layer), **options
    )  # fmt: skip
    reverse.add(layer, gradients | {name: inputs[name] for name in options.get("score_params", {})})
    add_relative_gradients(model.config, layer, inputs, reverse)
    stack, _, part = parse_layer_name(layer)
    if "bias" in inputs:
        known = reverse.biases.get(stack)
        reverse.biases[stack] = inputs["bias"] if known is None else known + inputs["bias"]
    both = inputs["key"] + inputs["value"]
    dx: Array = inputs["query"] if part == "cross" else inputs["query"] + both
    if part == "cross":
        reverse.memory = both if reverse.memory is None else reverse.memory + both
    return dx


def add_relative_gradients(config: Config, layer: str, inputs: Mapping[str, Array], reverse: Reverse) -> None:
    """Add the gradients of disentangled positions that attention in a layer returns beside those of its inputs."""
    stack, number, _ = parse_layer_name(layer)
    own = layer if config.positions.shares_projections else f"{stack}.{number}.relative"
    for name, gradient in inputs.items():
        kind, _, parameter = name.partition("relative.")
        if not kind and parameter:
            reverse.add(f"{stack}.relative" if parameter in ("table", "gamma", "beta") else own, {parameter: gradient})


def _rnn_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    from attnkit.model.backward import recurrent_decoder, recurrent_model

    is_attentive = parse_layer_name(recorded.step.layer)[1] is None
    undo = recurrent_decoder.decoder_backward if is_attentive else recurrent_model.recurrence_backward
    return undo(model, recorded, dy, context, reverse)


def _ffn_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    layer, x = recorded.step.layer, recorded.x
    options: Any = {"activation": model.config.activation, "saved": recorded.saved}
    hook = _reshaped(scoped(reverse.hook, layer), x.shape[:-1])
    dx, gradients = feed_forward_backward(as_rows(dy), as_rows(x), model.params[layer], **options, hook=hook)
    reverse.add(layer, gradients)
    return dx.reshape(x.shape)


def _linear_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    layer = recorded.step.layer
    params, dy = model.params[layer], apply_hook(reverse.hook, layer, dy)
    gradients = linear_backward(dy, recorded.x, params["w"], params.get("b"))
    reverse.add(layer, {"w": gradients.weight, "b": gradients.bias})
    return gradients.x


Adjoint = Callable[[Model, RecordedStep, Array, Context, Reverse], Array]

ADJOINTS: dict[str, Adjoint] = {
    "embed": _embed_backward,
    "posenc": _positions_backward,
    "layernorm": _norm_backward,
    "attend": _attention_backward,
    "ffn": _ffn_backward,
    "linear": _linear_backward,
    "rnn": _rnn_backward,
}
