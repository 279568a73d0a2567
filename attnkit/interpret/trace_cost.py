"""The cost of the layers of a trace, from its shapes and its model.

Its history names the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnkit.errors import DataError
from attnkit.inputs.text_inputs import command_words, named_models
from attnkit.interpret.cost import count_connector, count_head, count_model, count_step
from attnkit.model.graph.costs import Cost, ModelShapes, Passes
from attnkit.model.intermediates import SQUARE
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def model_of_history(history: Sequence[Mapping[str, Any]]) -> str:
    """The folder of the model that made a trace.

    DataError for the trace of a pipeline, or if its history names no model.

    >>> model_of_history([{"command": "attnkit encode 'a cat' --model gpt2 --trace t.npz"}])
    'gpt2'
    """
    for words in map(command_words, reversed(history)):
        if words[:1] == ["run"]:
            raise DataError("a trace of a pipeline; attnkit cost 'A | B' counts the pipeline itself")
        if models := named_models(words):
            return models[0]
    raise DataError("its history names no model (expected a trace of encode or decode with --model)")


def reads_image(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the model that made a trace read an image.

    >>> reads_image([{"command": "attnkit encode --model clip --image cat.png --trace t.npz"}])
    True
    """
    commands = [command_words(entry) for entry in history]
    return any("--image" in words for words in commands if named_models(words))


def count_trace(trace: Record, checkpoint: "Checkpoint") -> list[Cost]:
    """The rows of the layers that a trace has, each in one pass over its tokens.

    DataError for a trace of none of the model's layers.
    """
    has_image = reads_image(trace.history)
    parts = (
        [*checkpoint.towers.values()][::-1] if checkpoint.pictures and has_image else [checkpoint.reading(has_image)]
    )
    rows = [
        row
        for model in map(count_model, parts)
        for stack in model.config.stacks
        for row in count_traced_stack(trace, model, stack)
    ]
    if not rows:
        raise DataError(f"it has no layer of {checkpoint.folder}")
    return rows


def count_traced_stack(trace: Record, model: ModelShapes, stack: str) -> Iterator[Cost]:
    """Yield the rows of one stack, and of the head after the last one."""
    config = model.config
    names = [name for name in trace if name.startswith(f"{stack}.")]
    sizes = [size for name in names if (size := find_sizes(trace, name))]
    if not sizes:
        return
    texts, tokens = sizes[-1]
    source = next((trace[name].shape[-2] for name in names if name.endswith(".cross.k")), 0)
    passes = Passes(texts, tokens, source=source, heads=tokens)
    for step in config.plan(stack):
        if any(f"{name}.".startswith(f"{step.layer}.") for name in names):
            is_dense = any(f"{step.layer}.{name}" in trace for name in SQUARE)
            frames = trace[step.layer].shape[-2] if step.op == "conv" and step.layer in trace else 0
            yield from count_step(model, step, replace(passes, is_dense=is_dense), frames)
    if config.connector and any(name.startswith("connector.") for name in trace):
        yield from count_connector(model, passes)
    has_vector = config.vector_width and "modules.1" in trace
    if ("logits" in trace or has_vector) and stack == config.stacks[-1]:
        yield from count_head(model, passes)


def find_sizes(trace: Record, name: str) -> tuple[int, int] | None:
    """The texts and the tokens of an intermediate; None if it has no axis of tokens."""
    sizes = dict(zip(trace.axes_of(name), trace[name].shape, strict=True))
    tokens = next((sizes[axis] for axis in ("token", "query", "patch", "patch query") if axis in sizes), None)
    return None if tokens is None else (sizes.get("batch", sizes.get("tile", 1)), tokens)
