"""What the layers of a trace cost, from the shapes that it holds and the model that its history names."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnkit.errors import DataError
from attnkit.interpret.cost import ModelShapes, Passes, Stage, count_head, count_model, count_step
from attnkit.model.intermediates import SQUARE
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def model_of_history(history: Sequence[Mapping[str, Any]]) -> str:
    """The folder of the model that made a trace; DataError if its history names none.

    >>> model_of_history([{"command": "attnkit encode 'a cat' --model gpt2 --trace t.npz"}])
    'gpt2'
    """
    for entry in reversed(history):
        words = shlex.split(str(entry.get("command", "")))
        for word, value in zip(words, [*words[1:], ""], strict=True):
            if word == "--model" and value:
                return value
            if word.startswith("--model="):
                return word.partition("=")[2]
    raise DataError("its history names no model (expected a trace of encode or decode with --model)")


def count_trace(trace: Record, checkpoint: "Checkpoint") -> list[Stage]:
    """The stages of the layers that a trace has, each in one pass over its tokens.

    DataError for a trace of none of the model's layers.
    """
    model = count_model(checkpoint)
    stages = [stage for stack in model.config.stacks for stage in count_traced_stack(trace, model, stack)]
    if not stages:
        raise DataError(f"it has no layer of {checkpoint.folder}")
    return stages


def count_traced_stack(trace: Record, model: ModelShapes, stack: str) -> Iterator[Stage]:
    """Yield the stages of one stack, and of the head after the last one."""
    config = model.config
    names = [name for name in trace if name.startswith(f"{stack}.")]
    tokens_of = [trace[name].shape for name in names if token_axes(trace, name)]
    if not tokens_of:
        return
    shape = tokens_of[-1]
    texts, tokens = (shape[0] if len(shape) > 2 else 1), shape[-2]
    source = next((trace[name].shape[-2] for name in names if name.endswith(".cross.k")), 0)
    passes = Passes(texts, tokens, source=source, heads=tokens)
    for step in config.plan(stack):
        if any(f"{name}.".startswith(f"{step.layer}.") for name in names):
            is_dense = any(f"{step.layer}.{name}" in trace for name in SQUARE)
            yield from count_step(model, step, replace(passes, is_dense=is_dense))
    if "logits" in trace and stack == config.stacks[-1]:
        yield from count_head(model, passes)


def token_axes(trace: Record, name: str) -> bool:
    """Whether a tensor holds a vector of the model for each token."""
    return trace.axes_of(name)[-2:] == ("token", "model")
