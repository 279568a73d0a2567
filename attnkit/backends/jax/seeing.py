"""Hooks of a pass: which intermediates they read, and how an array of JAX reaches a hook and comes back."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from attnkit.backends.jax.formulas import JaxArray, See
from attnkit.backends.jax.processes import to_numpy
from attnkit.model.config import Config, Step
from attnkit.model.context import Context
from attnkit.model.dense_attention import query_positions
from attnkit.model.dtypes import Array, DType, is_float
from attnkit.model.hooks import no_hook, summary_names
from attnkit.model.intermediates import STEPS
from attnkit.model.intermediates import step_names as names_of
from attnkit.model.kernels.weight_stats import summarize_dense_weights
from attnkit.model.recurrent_config import RecurrentConfig
from attnkit.model.softmax import log_sum_exp


def step_names(config: Config, step: Step, is_gated: bool, summary: str) -> Iterator[str]:
    """Yield the names of the intermediates of a step, in the order of a pass.

    >>> [*step_names(Config("bert", 2), Step("ffn", "encoder.0.ffn", "input"), False, "full")][1:]
    ['encoder.0.ffn.activated', 'encoder.0.ffn.output', 'encoder.0.ffn.residual']
    """
    parts: tuple[str, ...] = ()
    if step.op == "attend":
        has_relative = config.positions.relative == "disentangled" and step.layer.endswith(".self")
        parts = (*("relative",) * has_relative, *STEPS, *summary_names(summary), "output")
    elif step.op == "ffn":
        parts = (*names_of("ffn")[: 4 if is_gated else 2], "output")
    else:
        yield step.layer
    yield from (f"{step.layer}.{part}" for part in (*parts, *("residual",) * bool(step.adds_residual)))


def head_names(config: Config) -> list[str]:
    """Return the names of the intermediates of a head, in the order of a pass.

    >>> head_names(Config("gpt2", 2)), head_names(Config("bert", 2, transform=True))
    (['logits'], ['head.dense', 'head.norm', 'logits'])
    """
    transform = ["head.dense", *["head.norm"] * config.head_norm] if config.transform else []
    return [*["pooler"] * (config.is_head_pooled and config.pooling == "pooler"), *transform, "logits"]


def is_seen(config: Config, gated: frozenset[str], steps: Sequence[Step], context: Context) -> bool:
    """Return whether the hook of a context has a function for any intermediate of the steps; it is called for all.

    gated  the layers of feed-forward networks with a gate
    """
    if context.hook is no_hook or isinstance(config, RecurrentConfig):
        return context.hook is not no_hook
    names = (name for step in steps for name in step_names(config, step, step.layer in gated, context.weights))
    hooks = [context.hook(name) for name in names]
    return any(hook is not None for hook in hooks)


def hook_of_arrays(context: Context, dtype: DType) -> See:
    """Return the function that hands intermediates to the hook of a context, as arrays of NumPy.

    dtype  of floats among them
    """
    before: dict[str, Array] = {}  # the masked scores and the weights of the layer at hand, where they are summarized

    def see(name: str, x: JaxArray) -> JaxArray:
        layer, _, part = name.rpartition(".")
        if context.weights != "full" and part in ("masked", "weights"):
            before[part] = to_numpy(x, dtype)
        x = visit(name, x)
        if part == "heads" and before:
            past = 0 if layer.endswith(".cross") else context.past
            for summary, array in summarize_arrays(context.weights, before, past).items():
                if function := context.hook(f"{layer}.{summary}"):
                    function(array)
            before.clear()
        return x

    def visit(name: str, x: JaxArray) -> JaxArray:
        function = context.hook(name)
        if function is None:
            return x
        array = to_numpy(x)
        array = array.astype(dtype, copy=False) if is_float(array.dtype) else array
        changed = function(array)
        return x if changed is array else jnp.asarray(changed, x.dtype)

    return see


def summarize_arrays(summary: str, arrays: dict[str, Array], past: int) -> dict[str, Array]:
    """Return a summary of the weights of attention, from the weights and the masked scores."""
    weights = arrays["weights"]
    position = query_positions(slice(0, weights.shape[-2]), past)
    return summarize_dense_weights(summary, weights, log_sum_exp(arrays["masked"]), position)
