"""The steps of a stack recorded in a forward pass, and undone in reverse.

`run_recorded` is `transformer.run` with a tape: for every step the function from the gradient of its result to the
gradient of its input. `run_backward` reads the tape from its end:

    y = x + c f(x)      dx = dy + c f′ᵀ dy      the residual of a step, whose factor c is 1 in most models
    y = f(x)            dx = f′ᵀ dy             every other step

so the gradient of a residual is the sum of the gradients of its branch and of its sum. The operations themselves are
undone by backward/layer_vjps.py.
"""

from collections.abc import Iterable

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.backward.tape import Dropout, RecordedStep, Reverse, Tape
from attnkit.model.config import Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.dropout import dropout
from attnkit.model.formulas.linear import scaled
from attnkit.model.formulas.positions import t5_bias_backward
from attnkit.model.groups import GROUPS
from attnkit.model.hooks import apply_hook
from attnkit.model.layers.attention import position_buckets
from attnkit.model.passes.transformer import run
from attnkit.model.processor.products import PLAIN


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
