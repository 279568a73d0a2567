"""The gradients of the intermediates of a model's run, as a trace names and describes the intermediates."""

import math
from collections.abc import Mapping

import numpy as np

from attnkit.inputs import encoding, layers
from attnkit.inputs.encoding import Encoding
from attnkit.interpret.gradients.attention import MANY
from attnkit.interpret.gradients.stages import IMAGE_AXES, Outer, StageCall, StageGradients, collect_gradients
from attnkit.interpret.tracer import Tracer
from attnkit.model import Array
from attnkit.model.backward.recorded_steps import run_backward, run_recorded
from attnkit.model.backward.tape import Reverse
from attnkit.model.backward.whole_models import head_backward, pool_first_backward
from attnkit.model.dtypes import is_float
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.intermediates import SQUARE
from attnkit.model.pooling import first_token_backward, l2_normalize_backward, mean_pool_backward
from attnkit.record import Labels, Record, Tensor


def describe_trace(
    collected: Mapping[str, Array], tokens: Labels | None, source: Labels | None = None
) -> dict[str, Tensor]:
    """Return the gradients of intermediates, from the last to the first, in the order, axes and labels of a trace."""
    tracer = Tracer({"--trace-only": ("*",)})
    tracer.saved = {name: collected[name] for name in order_forward(list(collected))}
    traced = tracer.record(tokens, source)
    return {name: traced.tensor(name) for name in traced}


def order_forward(names: list[str]) -> list[str]:
    """Return the names of intermediates in the order of a forward pass, from that in which gradients are computed.

    >>> order_forward(["decoder.0.self.heads", "decoder.0.self.q", "decoder.0.self.k", "decoder.0.self.v"])
    ['decoder.0.self.q', 'decoder.0.self.k', 'decoder.0.self.v', 'decoder.0.self.heads']
    """
    ordered = names[::-1]
    for at in range(len(ordered) - 2):
        three = ordered[at : at + 3]
        if [name.rpartition(".")[2] for name in three] == ["v", "k", "q"]:
            ordered[at : at + 3] = three[::-1]
    return ordered


HEAD = ("head.dense", "head.norm", "logits")  # what --keep adds of the head of a model without a decoder


def undo_encode(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of the model's parameters, of every intermediate, and of hidden states or an image as input."""
    if call.values["patch"] or call.values["ablate"]:
        raise call.error("no gradient with --patch or --ablate")
    reverse_encoding(call, outer, into)


def reverse_encoding(call: StageCall, outer: Outer, into: StageGradients, forward: Hook = no_hook) -> None:
    """Add the gradients of a run of encode.

    forward  reads intermediates of the run, and may replace the embeddings
    """
    encoded = encoding.prepare_encoding(call.item, call.values)
    core, inputs, base = encoded.core, encoded.inputs, encoded.base
    if "mask" in base and is_float(base["mask"].dtype):
        raise call.error("no gradient of a mask of floats; one of booleans has none")
    context = layers.context_from(base, hook=forward, dtype=call.values["dtype"])
    x, tape = run_recorded(core, encoded.steps, inputs, context)
    collected: dict[str, Array] = {}
    used, has_many = set(outer), count_scores(encoded) > MANY

    def is_kept(name: str) -> bool:
        return name in used or not has_many or name.rpartition(".")[2] not in SQUARE

    into.layers.hook = collect_gradients(collected, outer, is_kept)
    dx = undo_outputs(call, encoded, x, outer, into.layers)
    dx = run_backward(core, tape, dx, into.layers)
    for name in collected:
        outer.pop(name, None)
    if isinstance(call.item, Record) and is_float(inputs.dtype):
        into.add_input("x", dx)
    elif is_float(inputs.dtype):
        into.tensors["image"] = Tensor(dx, IMAGE_AXES)
    into.traced = describe_trace(collected, base.labels.get("token"))


def count_scores(encoded: Encoding) -> int:
    """Return the number of scores of a layer of attention, 0 for an image."""
    shape = encoded.inputs.shape if encoded.inputs.dtype.kind in "iu" else encoded.inputs.shape[:-1]
    is_image = encoded.core.config.patches is not None
    return 0 if is_image else math.prod(shape) * shape[-1] * encoded.core.config.stack(encoded.stack).heads


def undo_outputs(call: StageCall, encoded: Encoding, x: Array, outer: Outer, reverse: Reverse) -> Array:
    """Return the gradient of the last hidden states, from those of x, of the memory and of the head's intermediates."""
    dx = np.zeros_like(x)
    if "x" in outer:
        dx = outer.pop("x") if encoded.pool == "none" else undo_pooling(call, encoded, x, outer, reverse)
    if "memory" in outer:
        dx = dx + outer.pop("memory")
    if any(name in outer for name in HEAD):
        logits = (*x.shape[: -1 - bool(encoded.core.config.is_head_pooled)], encoded.core.params["head"]["w"].shape[1])
        dx = dx + head_backward(encoded.core, x, np.zeros(logits, x.dtype), reverse)
    return dx


def undo_pooling(call: StageCall, encoded: Encoding, x: Array, outer: Outer, reverse: Reverse) -> Array:
    """Return the gradient of hidden states (B, T, D), from that of one vector of each text (B, D)."""
    dy, pool = outer.pop("x"), encoded.pool
    if pool not in ("cls", "mean", "pooler"):
        raise call.error(f"no gradient of --pool {pool} (use cls, mean or pooler)")
    real, order = encoding.pooled_tokens(encoded.base, x)
    states = x if order is None else np.take_along_axis(x, order[..., None], axis=-2)
    if call.values["normalize"]:
        vectors = encoding.pool_states(encoded.core, states, real, pool)[0]
        dy = l2_normalize_backward(dy, vectors)
    if pool == "mean":
        dx = mean_pool_backward(dy, real)
    elif pool == "pooler":
        dx = pool_first_backward(encoded.core, states, dy, reverse)
    else:
        dx = first_token_backward(dy, states.shape)
    if order is None:
        return dx
    gradient = np.empty_like(dx)
    np.put_along_axis(gradient, np.broadcast_to(order[..., None], dx.shape), dx, axis=-2)
    return gradient
