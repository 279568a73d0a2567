"""Vectors through the last steps of a model: its head, or a decoder without words."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitError, DataError, UsageError
from attnkit.inference import callbacks, layers, text_inputs
from attnkit.inference.detokenizer import Detokenizer
from attnkit.inference.hooks import Tracer
from attnkit.inference.options import GenerationOptions
from attnkit.inference.prompts import find_memory
from attnkit.record import Array, Record, shared_labels


class HeadOutput(NamedTuple):
    """Hidden states as a record, the logits (..., N) of the head, what each stands for, and how words make a text."""

    record: Record
    logits: Array
    words: list[str]
    join: Callable[[Sequence[int]], str] | None


def apply_head(given: Sequence[str] | Record | None, asked: GenerationOptions) -> HeadOutput:
    """What a model's head makes of hidden states: those of a record, or those that its encoder makes of text."""
    core, config = layers.core_model(asked.model_), asked.model_.config
    if not config.head:
        raise UsageError(f"this {config.family} model has no head: it maps tokens to vectors", "--model")
    tracer = asked.tracer()
    record = given if isinstance(given, Record) else encode_inputs(given, asked, tracer)
    x = record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {x.shape}: expected hidden states (T, {config.width}) or (B, T, {config.width})")
    logits = model.head_logits(core, x, tracer.visit)
    tracer.check()
    if asked.trace:
        callbacks.current().write_side_output(asked.trace, tracer.record(record.labels.get("token")))
    if config.classes:
        return HeadOutput(record, logits, list(config.classes), None)
    side = "target" if config.encoder and config.decoder else "source"
    try:
        found = asked.tokenizer or text_inputs.tokenizer_of(asked.model_, side)
    except AttnkitError:
        return HeadOutput(record, logits, [], None)
    return HeadOutput(record, logits, Detokenizer(found, logits.shape[-1]).words() or [], found.decode)


def encode_inputs(given: Sequence[str] | None, asked: GenerationOptions, tracer: Tracer) -> Record:
    """The hidden states that an encoder makes of texts, ids or an image, as encode makes them."""
    inputs, base = text_inputs.model_inputs(
        asked.model_, "encoder", given, asked.tokenizer, asked.ids, None, asked.image, asked.batch
    )
    core = layers.complete_model(asked.model_)
    context = layers.context_from(base, visit=tracer.visit, dtype=asked.dtype)
    x = model.run(core, model.layer_plan(core.config, "encoder"), inputs, context)
    axes = ("batch", "token", "model")[3 - x.ndim :]
    return Record({"x": x}, {"x": axes}).joined(base)


def run_decoder_stack(record: Record, asked: GenerationOptions) -> Record:
    """Vectors through a decoder that has no words: x (..., T, D), with the memory it looks at -> (..., T, D)."""
    core, config = layers.complete_model(asked.model_), asked.model_.config
    x = record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {x.shape}: expected (T, {config.width}) or (B, T, {config.width})")
    memory, mask, source = find_memory(record, asked)
    if memory is not None and (memory.ndim != x.ndim or memory.shape[-1] != config.width):
        raise DataError(f"memory {memory.shape} for x {x.shape}: expected the same batch, and width {config.width}")
    if memory is not None and memory is record.tensors.get("memory") and np.array_equal(x, memory):
        raise DataError("x is the memory itself: the target comes as x, as in decode --memory FILE < target.npz")
    tracer = asked.tracer()
    for one in (record.tensors.get("mask"), mask):
        layers.warn_empty_mask_rows(one)
    context = layers.context_from(
        record,
        memory=memory,
        memory_mask=mask,
        visit=tracer.visit,
    )
    y = model.run(core, model.layer_plan(config, "decoder"), x.astype(asked.dtype or x.dtype, copy=False), context)
    tracer.check()
    if asked.trace:
        names = None if source is None else shared_labels(source)
        callbacks.current().write_side_output(asked.trace, tracer.record(record.labels.get("token"), names))
    return record.put({"x": y}, {"x": record.axes_of("x")}, formulas={"x": "hidden states of the decoder"})
