"""Whole models: a recorded forward pass, and gradients of all parameters.

They are of a loss of the output.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError, with_article
from attnkit.model.backward.layer_vjps import normalize_vjp
from attnkit.model.backward.tape import Dropout, ModelGradients, Reverse, Tape, undo_projection
from attnkit.model.backward.tied import sum_tied
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, working
from attnkit.model.formulas.activations import activation_backward, apply_activation
from attnkit.model.formulas.linear import linear, scaled
from attnkit.model.formulas.pooling import HEAD_POOLINGS, first_token, first_token_backward
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.passes.output_head import head_logits, pool_first, pool_head, real_places
from attnkit.model.passes.recorded_pass import run_backward, run_recorded
from attnkit.model.processor.threads import single_blas


@dataclass(frozen=True, eq=False)
class StackInputs:
    """What one stack of a model computes from.

    x            token ids (..., T), vectors (..., T, D) for a stack without a vocabulary, or an image
    mask         (T, T), (B, 1, T) or (B, T, T), True = may attend
    memory_mask  (B, 1, S), True = cross-attention may attend [the encoder's mask, if it is (B, 1, S)]
    positions    (T,) or (B, T) [from 0]
    segment_ids  (..., T) [0]
    """

    x: Array
    mask: Array | None = None
    memory_mask: Array | None = None
    positions: Array | None = None
    segment_ids: Array | None = None


class RecordedPass(NamedTuple):
    """Tapes of the stacks, last hidden states (..., T, D), and name of the output."""

    tapes: Mapping[str, Tape]
    hidden: Array
    output: str


class PassGradients(NamedTuple):
    """Gradients of all parameters that the output depends on, and of each input.

    params  layer -> {parameter: gradient}; tied parameters share one gradient, as they share their memory
    inputs  stack -> gradient of its vectors or images (of ids: of their scaled embeddings)
    """

    params: ModelGradients
    inputs: dict[str, Array]


@single_blas()
def run_model(
    model: Model,
    inputs: Mapping[str, StackInputs],
    *,
    output: str = "",
    dropout: Dropout | None = None,
    hook: Hook = no_hook,
    dtype: str | None = None,
) -> tuple[Array, RecordedPass]:
    """Run a model from ids to its output, and record what `model_backward` needs.

    inputs stack -> its inputs; output "logits", "pooled" or "hidden" [logits of a model with a head, else hidden]
    -> (..., T, N) logits, (..., D) pooled or (..., T, D) hidden states, and the recorded pass

    The decoder of an encoder-decoder attends to the encoder's output. `hook` reads intermediates; `dtype` is the dtype
    of embeddings, as in Context. Errors are as in `transformer.run`; DataError if the inputs of a stack are missing.

    >>> from attnkit.model.config import Config, StackConfig
    >>> stack = StackConfig(layers=0, heads=1, hidden=0, kv_heads=1, head_dim=2, vocab=3)
    >>> params = {"decoder.embed": {"table": np.eye(3)[:, :2]}, "head": {"w": np.array([[1.0, 0.0], [2.0, 3.0]])}}
    >>> ids = np.array([1, 2, 1])
    >>> logits, recorded = run_model(Model(Config("", 2, decoder=stack), params), {"decoder": StackInputs(ids)})
    >>> logits.tolist()
    [[2.0, 3.0], [0.0, 0.0], [2.0, 3.0]]
    >>> gradients = model_backward(Model(Config("", 2, decoder=stack), params), recorded, np.ones((3, 2)))
    >>> gradients.params["decoder.embed"]["table"].tolist(), gradients.params["head"]["w"].tolist()
    ([[0.0, 0.0], [2.0, 10.0], [1.0, 5.0]], [[0.0, 0.0], [2.0, 2.0]])
    """
    tapes: dict[str, Tape] = {}
    memory: Any = None
    memory_mask = states = None
    for stack in model.config.stacks:
        if stack not in inputs:
            raise DataError(
                f"inputs of {', '.join(inputs)}: {with_article(model.config.family)} model needs those of its {stack}"
            )
        one = inputs[stack]
        memory_mask = memory_mask if one.memory_mask is None else one.memory_mask
        context = Context(one.mask, memory, memory_mask, one.positions, one.segment_ids, hook=hook, dtype=dtype)
        context.source_states = states
        memory, tapes[stack] = run_recorded(model, model.config.plan(stack), one.x, context, dropout)
        states = context.last_states()
        memory_mask = one.mask if one.mask is not None and one.mask.ndim == 3 and one.mask.shape[1] == 1 else None
    output = output or ("logits" if model.config.head else "hidden")
    if output not in OUTPUTS:
        raise UsageError(f"output {output!r} (expected one of {', '.join(OUTPUTS)})")
    return OUTPUTS[output].compute(model, memory, hook, context.mask), RecordedPass(tapes, memory, output)


@single_blas()
def model_backward(model: Model, recorded: RecordedPass, grad_output: Array, *, hook: Hook = no_hook) -> PassGradients:
    """Gradients of parameters and inputs from the gradient of a pass's output.

    grad_output like the output of the pass -> {layer: {parameter: its shape}}, {stack: its input's shape}

    `hook` receives the gradient of every intermediate under its name in the forward pass. A parameter that the output
    does not depend on has no entry. DataError if shapes do not match.
    """
    reverse, inputs = Reverse(hook=hook), dict[str, Array]()
    mask = list(recorded.tapes.values())[-1].context.mask
    dx: Array | None = OUTPUTS[recorded.output].undo(model, recorded.hidden, grad_output, reverse, mask)
    for stack in reversed(list(recorded.tapes)):
        if dx is not None:
            reverse.memory = None
            inputs[stack] = run_backward(model, recorded.tapes[stack], dx, reverse)
            dx = memory_gradient(recorded.tapes[stack].context, reverse)
    return PassGradients(sum_tied(reverse.gradients, model.params), inputs)


def memory_gradient(context: Context, reverse: Reverse) -> Array | None:
    """Gradient of the memory of a stack; zeros if it read the states alone."""
    if reverse.memory is None and reverse.states and context.memory is not None:
        return np.zeros_like(context.memory)
    return reverse.memory


def head_backward(model: Model, x: Array, grad_output: Array, reverse: Reverse, mask: Array | None = None) -> Array:
    """Undo `head_logits`: gradient of the hidden states; parameters' are added.

    grad_output (..., T, N), or (..., C) for classes of the whole, x (..., T, D), mask (..., 1, T) -> (..., T, D)
    """
    if model.engine:
        return model.engine.head_backward(model, x, grad_output, reverse, mask)
    config, hook = model.config, reverse.hook
    pools_first = config.is_head_pooled and not config.pools_late
    states = pool_head(model, x, no_hook, mask) if pools_first else x
    states = last = cast(states, working(states))
    activation, undo_norm = config.head_activation or config.activation, None
    if config.transform:
        hidden = linear(states, model.params["head.dense"]["w"], model.params["head.dense"].get("b"))
        last = apply_activation(activation, hidden)
        if config.head_norm:
            last, undo_norm = normalize_vjp(model, "head.norm", last)
    read = pool_head(model, last, no_hook, mask) if config.pools_late else last
    dy, states_of_head = apply_hook(hook, "logits", grad_output), scaled(read, config.logit_scale)
    dy = dy[..., None, :] if config.is_head_pooled else dy
    if config.logit_softcap:
        raw = linear(states_of_head, model.params["head"]["w"], model.params["head"].get("b"))
        dy = dy * (1 - np.square(np.tanh(raw / config.logit_softcap)))
    dx = scaled(undo_projection(model, "head", dy, states_of_head, reverse), config.logit_scale)
    dx = pool_head_backward(model, last, dx[..., 0, :], reverse, mask) if config.pools_late else dx
    if config.transform:
        dx = undo_norm(dx, reverse) if undo_norm else dx
        dx = activation_backward(activation, apply_hook(hook, "head.dense", dx), hidden)
        dx = undo_projection(model, "head.dense", dx, states, reverse)
    return pool_head_backward(model, x, dx[..., 0, :], reverse, mask) if pools_first else dx


def pool_head_backward(model: Model, x: Array, grad_output: Array, reverse: Reverse, mask: Array | None) -> Array:
    """Undo the pooling of a head: (..., P), x (..., T, D) -> (..., T, D)."""
    config = model.config
    if config.pooling == "pooler":
        return pool_first_backward(model, x, grad_output, reverse)
    before = config.patches.before if config.patches else 0
    return HEAD_POOLINGS[config.pooling].backward(grad_output, x, real_places(x, mask), before)


def pool_first_backward(model: Model, x: Array, grad_output: Array, reverse: Reverse) -> Array:
    """Undo `pool_first`: grad_output (..., D), x (..., T, D) -> (..., T, D)."""
    if model.engine:
        return model.engine.pool_first_backward(model, x, grad_output, reverse)
    first, params = first_token(x), model.params["pooler"]
    pooled = np.tanh(linear(first, params["w"], params.get("b")))
    dy = apply_hook(reverse.hook, "pooler", grad_output) * (1 - pooled * pooled)
    return first_token_backward(undo_projection(model, "pooler", dy, first, reverse), x.shape)


class Output(NamedTuple):
    """An output of a model: its computation from hidden states and mask, and adjoint."""

    compute: Callable[[Model, Array, Hook, Array | None], Array]
    undo: Callable[[Model, Array, Array, Reverse, Array | None], Array]


OUTPUTS = {
    "logits": Output(head_logits, head_backward),
    "pooled": Output(
        lambda model, x, hook, mask: pool_first(model, x, hook),
        lambda model, x, grad_output, reverse, mask: pool_first_backward(model, x, grad_output, reverse),
    ),
    "hidden": Output(lambda model, x, hook, mask: x, lambda model, x, grad_output, reverse, mask: grad_output),
}
